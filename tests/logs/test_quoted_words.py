"""Words of the kernel, of Slurm and of PyTorch inside a sentence are no failure of high confidence."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from runbook.diagnosis import diagnose
from runbook.model.diagnosis import Hypothesis
from runbook.model.job import JobClass, JobRecord, JobState
from tests.kinds import MEANINGS, Kind
from tests.logs.launcher_logs import OOM, job, reader

KILL = "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed."
VICTIM = (
    "Out of memory: Killed process 1234 (python3) total-vm:9kB, anon-rss:9kB, file-rss:0kB, shmem-rss:0kB, UID:0"
)
STEPS = "".join(f"iteration {step} | loss 2.0\n" for step in range(8))
RUNNING = replace(job(("gpu-21",), 8), state=JobState("RUNNING", JobClass.ACTIVE))


def best(*lines: str, told: JobRecord | None) -> Hypothesis:
    text = (STEPS + "".join(f"{line}\n" for line in lines)).encode()
    story = reader().read([("train.out", io.BytesIO(text), len(text))], job=told)
    return diagnose(story, meanings=MEANINGS, job=told).best


@pytest.mark.parametrize("state", [None, job(("gpu-21",), 8), RUNNING], ids=["no job", "failed", "running"])
@pytest.mark.parametrize("line", [
    f"[response] {KILL}", f"the log said {KILL}", f"[response] it says {VICTIM}", f"Answer: as in {VICTIM}",
    f'(RewardManager pid=4401) [response] You can see "{OOM}" when the batch is too large.',
    f"if you see {OOM.replace('torch.OutOfMemoryError: ', '')}",
    'user: what does it mean when I see torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered',
    'srun says slurmstepd: error: *** JOB 123 ON gpu-21 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***',
])
def test_a_sentence_that_quotes_a_failure_is_no_cause_of_high_confidence(line: str, state: JobRecord | None) -> None:
    assert best(line, told=state).confidence <= 0.6


@pytest.mark.parametrize("line", [
    KILL, f"[2026-03-01T10:00:00.123] {KILL}", f"gpu-21: {KILL}", f"3: {KILL}", f"[gpu-21] {KILL}",
    KILL.replace("slurmstepd", "slurmstepd-gpu-21"), VICTIM, f"[  123.456] {VICTIM}",
    f"[Sun Mar  1 10:02:11 2026] {VICTIM}", f"Nov 21 10:00:00 login kernel: {VICTIM}",
    f"Nov 21 10:00:00 gpu-21 kernel: [12345.678901] {VICTIM}", f"kern  :err   : [  123.4] {VICTIM}",
    f"2026-06-10T10:15:40,101233+00:00 node-a3 kernel: {VICTIM}", json.dumps({"level": "error", "message": KILL}),
])
def test_the_words_at_the_start_of_a_line_speak_in_full(line: str) -> None:
    found = best(line, told=job(("gpu-21",), 8))
    assert found.kind == Kind.HOST_OOM
    assert found.confidence >= 0.9


@pytest.mark.parametrize("line", [
    OOM, f"[rank3]: {OOM}", f"2026-03-01 10:00:00,123 ERROR trainer: {OOM}",
    f"{OOM} (raised as RuntimeError: see above)", f"ERROR 03-01 10:00:00 [core.py:708] {OOM}",
    f"Exception in thread Thread-3 (_worker): {OOM}", json.dumps({"level": "error", "exc": OOM}),
    json.dumps({"message": OOM.partition(": ")[2]}),
    f"ray.exceptions.RayTaskError(OutOfMemoryError): {OOM}", f"RuntimeError: Worker failed with error '{OOM}'",
    f"training failed: {OOM}",
])
def test_an_exception_behind_its_class_a_prefix_or_a_colon_speaks_in_full(line: str) -> None:
    found = best(line, told=job(("gpu-21",), 8))
    assert found.kind == Kind.TRUE_OOM
    assert found.confidence > 0.5


def test_a_sentence_counts_where_its_process_ended_with_an_error_code_after_it() -> None:
    lines = (f"giving up because of {OOM}", "srun: error: gpu-21: task 3: Exited with exit code 1")
    labelled = f"[rank3]: {lines[0]}"
    found = best(labelled, lines[1], told=job(("gpu-21",), 8))
    assert found.kind == Kind.TRUE_OOM
    assert found.confidence > 0.5


def test_a_quotation_never_beats_a_failure_with_a_traceback() -> None:
    bug = ("[rank1]: Traceback (most recent call last):", '[rank1]:   File "/w/train.py", line 4, in step',
           "[rank1]:     x = y[3]", "[rank1]: IndexError: list index out of range")
    assert best(f"[response] {KILL}", *bug, told=job(("gpu-21",), 8)).kind == Kind.NOT_OOM
