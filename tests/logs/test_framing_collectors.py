"""What collectors and shippers put in front of every line hides nothing: traceback, table, rank, node, indentation."""

from __future__ import annotations

import pytest

from runbook.diagnosis import diagnose
from runbook.logs.lines import FileProfile, learn_prefixes, parse_line
from runbook.report.vocabulary.sentences import in_words
from tests.kinds import MEANINGS, Kind
from tests.logs.launcher_logs import FAILURE, OOM, STACK, chatter, prefixed, root, story

TABLE = (
    "============================================================", "train.py FAILED",
    "------------------------------------------------------------", "Root Cause (first observed failure):", "[0]:",
    "  time      : 2026-03-01_10:00:20", "  host      : gpu-22.cluster", "  rank      : 3 (local_rank: 3)",
    "  exitcode  : 1 (pid: 4711)", "  error_file: <N/A>",
)
IN_FRONT = (
    "2026-03-01T10:00:09.118000000Z stderr F ", "2026-03-01T10:00:09.118Z ", "[2026-03-01 10:00:09] ",
    "2026-03-01 10:00:09,118 ", "2026-03-01 10:00:09 | ", "ERROR ", "node=gpu-22 ERROR ",
    "2026-03-01T10:00:09.940Z node=gpu-22 ERROR ", "[2026-03-01 10:00:09] [ERROR] ", "Sun Mar  1 10:00:09 2026 ",
)


@pytest.mark.parametrize("before", IN_FRONT)
def test_a_traceback_behind_it_keeps_its_phase_and_its_confidence(before: str) -> None:
    bare = diagnose(story(("train.out", chatter("") + prefixed("", FAILURE))), meanings=MEANINGS, job=None).best
    told = story(("train.out", chatter(before) + prefixed(before, FAILURE)))
    assert told.root_cause is not None
    assert (told.root_cause.phase, told.root_cause.excerpt.split("\n")[0]) == ("backward", STACK[0])
    best = diagnose(told, meanings=MEANINGS, job=None).best
    assert (best.kind, best.confidence) == (bare.kind, bare.confidence)


@pytest.mark.parametrize("before", IN_FRONT)
def test_torchruns_table_behind_it_is_read(before: str) -> None:
    text = chatter(before) + prefixed(before, ("[rank3]: " + OOM, *TABLE))
    found = root(("train.out", text))
    assert (found.rank, found.node, found.pid) == (3, "gpu-22", 4711)


def test_the_lines_own_indentation_stays() -> None:
    lines = [f"2026-03-01T10:00:0{n}.1Z stderr F {line}" for n, line in enumerate(FAILURE)]
    file = FileProfile(habits=learn_prefixes(lines, frozenset()))
    assert [parse_line(line, file).text for line in lines] == list(FAILURE)


def test_a_loggers_own_stamps_are_no_collectors() -> None:
    lines = [f"2026-03-01 10:00:0{n} ERROR trainer: failed" for n in range(3)] + list(FAILURE)
    habits = learn_prefixes(lines, frozenset())
    assert not habits.collected
    assert not habits.tagged


def test_tags_name_the_rank_and_the_node_of_the_job() -> None:
    lines = [f"2026-03-01T10:00:09.9Z host=gpu-22.x rank=5 INFO {line}" for line in FAILURE]
    one = parse_line(lines[0], FileProfile(habits=learn_prefixes(lines, frozenset())))
    assert (one.text, one.rank, one.node, one.level) == (STACK[0], 5, "gpu-22", "INFO")
    other = frozenset({"gpu-30"})
    assert parse_line(lines[0], FileProfile(nodes=other, habits=learn_prefixes(lines, other))).node is None


@pytest.mark.parametrize("stop", range(47, len(OOM), 7))
def test_a_message_that_is_cut_says_nothing_else_than_the_whole(stop: int) -> None:
    whole = root(("train.out", chatter("") + prefixed("", FAILURE))).fields
    text = chatter("") + prefixed("", STACK) + OOM[:stop]
    found = root(("train.out", text))
    assert found.means == Kind.TRUE_OOM
    for name in ("tried_bytes", "capacity_bytes", "free_bytes", "process_bytes", "allocated_bytes"):
        assert getattr(found.fields, name) in (None, getattr(whole, name)), OOM[:stop]


def test_of_a_cut_message_the_limit_settles_why_free_memory_did_not_help() -> None:
    cut = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of {} "
        "of which {} is free. Including non-PyTorch memory, this process has 16.22 GiB memory in use. "
        "15.75 GiB allowed; Of"
    )
    told = story(("train.out", chatter("") + cut.format("39.38 GiB", "22.71 GiB")))
    free = diagnose(told, meanings=MEANINGS, job=None).best
    assert (free.kind, free.confidence >= 0.8) == (Kind.PER_PROCESS_LIMIT, True)
    nearly = story(("train.out", chatter("") + cut.format("39.38 GiB", "0.71 GiB")))
    full = diagnose(nearly, meanings=MEANINGS, job=None).best
    assert full.kind != Kind.PER_PROCESS_LIMIT


def test_of_rays_wrappers_the_innermost_exception_counts() -> None:
    wrapper = "ray.exceptions.RayTaskError({0}): ray::{1}() (pid={2}, ip=10.0.9.9, actor_id=aa)"
    lines = [
        "Traceback (most recent call last):", '  File "/opt/main.py", line 62, in main', "    run(config)",
        wrapper.format("ValueError", "Runner.run", 6100), '  File "/opt/trainer.py", line 9, in fit', "    self.save()",
        wrapper.format("ValueError", "Worker.save_checkpoint", 6330),
        '  File "/opt/workers.py", line 80, in save_checkpoint', "    write()", "ValueError: no such layout",
    ]
    found = root(("driver.txt", chatter("") + prefixed("", lines)))
    assert (found.pid, found.phase) == (6330, "checkpoint")
    assert found.excerpt.endswith("ValueError: no such layout")
    outer = root(("driver.txt", chatter("") + prefixed("", lines[:5])))
    assert outer.pid == 6100


def test_the_kernels_report_of_a_process_that_no_line_places_is_said_to_name_it() -> None:
    line = (
        "Mar 01 10:00:00 gpu-22 kernel: Out of memory: Killed process 41877 (python) total-vm:9kB, anon-rss:9kB, "
        "file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:9kB oom_score_adj:0"
    )
    notes = " ".join(map(in_words, story(("journal.txt", f"{line}\n")).notes))
    assert "names process 41877" in notes
    assert "names no process" not in notes
