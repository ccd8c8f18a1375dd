"""Who failed first, composed: each way of naming a process with each failure that it may stand at; a launcher's word
where no line says why; the last error of a program; figures that a table of the log tells."""

from __future__ import annotations

import io

import pytest

from runbook.diagnosis import diagnose
from runbook.locations import data_folder
from runbook.logs.reader import LogReader
from runbook.logs.signatures import load_signatures
from runbook.model.diagnosis import Hypothesis
from runbook.model.log import LogStory
from runbook.report.contract import to_contract

SIGNATURES = load_signatures(data_folder("playbooks") / "oom" / "signatures")
READER = LogReader(SIGNATURES)

FAILURES = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB",
    "ValueError: Expected more than 1 value per channel when training",
)
NAMES = (
    "[rank12]: {}", "[rank: 12] {}", "[RANK 12] {}", "[rank=12] {}", "RANK[12] {}", "rank 12: {}", "<rank 12> {}",
    "[R12] {}", "12: {}", "[12]:{}", "[1,12]<stderr>:{}", "[1,mpirank:12,algo-2]<stderr>:{}",
    "rank_12.log: {}", "logs/rank12.err:211:{}", "stderr-12.txt:{}", "<12>{}", "12/16: {}",
    "[HCTR][03:17:52.860][ERROR][RK12][main]: {}",
    "[2026-01-11 10:00:11,001][trainer][ERROR][rank12] - {}", "fa88a9df || [rank=12] {}",
    "2026-01-11 10:00:11 | ERROR | rank=12 | {}", "Process 12 failed: {}", "OOM on rank 12: {}",
    "host gpu-a1 rank 12 local_rank 4 pid 3312: {}",
)
ENDS = {
    "mpirun noticed that process rank 7 with PID 0 on node n14 exited on signal 9 (Killed).": 7,
    "x1921c4s2b0n0: rank 17 died from signal 9\nx1921c4s1b0n0: rank 3 died from signal 15": 17,
    "ERROR:composer.cli.launcher:Rank 3 crashed with exit code -7.\nGlobal rank 0 (PID 4471) exited with code -15": 3,
    "=   RANK 11 PID 40211 RUNNING AT cn0123\n=   KILLED BY SIGNAL: 9 (Killed)": 11,
    "Exception: process 5 terminated with exit code 17": 5,
    "srun: error: n1: task 3: Bus error (core dumped)": 3,
    "Abort(1) on node 7 (rank 7 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 7": 7,
}

BLAMED = {
    "-- Process 6 terminated with the following error:": 6,
    "Error training on worker 9: ray.exceptions.RayTaskError(OSError): ray::TrainWorker.execute()": 9,
    "Process 3 exit with status code 250.": 3,
    "Worker proc VllmWorker-3 died unexpectedly, shutting down executor.": 3,
    "ABORT!!! Out of all 4 trainers, the trainer process with rank=[2] was aborted. Please check its log.": 2,
    "Exit code: 1\nProcess name: 1": 1,
    "/job:jax_worker/replica:0/task:11 has been set to ERROR in coordination service: UNAVAILABLE": 11,
    "Did not get subsequent heartbeat from rank 5. Waited 300.0 seconds.": 5,
    "rank 4 raised an exception, stopping the others": 4,
    "Rank 2 scheduler is dead. Please check if there are relevant logs.": 2,
    "Rank 7 crashed with exit code 1.": 7,
    "srun: error: n1: task 3: Exited with exit code 1": 3,
}


def told(text: str) -> tuple[LogStory, Hypothesis, dict[str, object]]:
    content = f"{text}\n".encode()
    story = READER.read([("train.out", io.BytesIO(content), len(content))])
    diagnosis = diagnose(story, job=None, meanings=SIGNATURES.meanings)
    return story, diagnosis.best, to_contract(story, diagnosis)


@pytest.mark.parametrize("name", NAMES)
def test_a_process_is_named_by_what_stands_at_its_failure(name: str) -> None:
    ranks = {line: story.root_cause.rank if (story := told(name.format(line))[0]).root_cause else None
             for line in FAILURES}
    assert set(ranks.values()) == {12}, ranks


@pytest.mark.parametrize("text", ENDS)
def test_a_launcher_says_who_ended_first_and_not_why(text: str) -> None:
    story, best, contract = told(text)
    first = contract["first_failed"]
    assert story.root_cause is None and best.kind == "undetermined"
    assert isinstance(first, dict) and (first["rank"], first["told_by"]) == (ENDS[text], "launcher")


def test_of_several_reported_ends_none_is_called_the_first() -> None:
    """A rank that lost another one may leave, and be reported, before it."""
    text = "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 2: Aborted (core dumped)"
    assert told(text)[2]["first_failed"] is None


@pytest.mark.parametrize("layout", [
    "{failure}\n{report}", "{report}\n{failure}",
    "{failure}\nTraceback (most recent call last):\n{report}\nshutting down",
    "2026-01-11 10:00:11,001 ERROR {failure}\n2026-01-11 10:00:12,001 ERROR launcher: {report}",
])
@pytest.mark.parametrize("report", BLAMED)
def test_whom_a_wrapper_blames_is_the_rank_of_a_failure_that_names_nobody(report: str, layout: str) -> None:
    """The failure's own line names nobody; a parent, a launcher or a coordinator says whose it was."""
    for failure in FAILURES:
        first = told(layout.format(failure=failure, report=report))[2]["first_failed"]
        assert isinstance(first, dict) and (first["rank"], first["told_by"]) == (BLAMED[report], "line"), failure


def test_of_several_that_wrappers_blame_none_is_taken() -> None:
    text = f"{FAILURES[2]}\nProcess 3 exit with status code 250.\nProcess 2 exit with status code 250."
    first = told(text)[2]["first_failed"]
    assert isinstance(first, dict) and first["rank"] is None


TIMED_OUT = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL("
    "SeqNum=8801, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600018 milliseconds"
)
BROKE = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank {rank}] Exception (either an error or timeout) "
    "detected by watchdog at work: 91122, last enqueued NCCL work: 91124, last completed NCCL work: 91121"
)


@pytest.mark.parametrize(("lines", "rank"), [
    ((TIMED_OUT.format(rank=12),), 12),
    ((BROKE.format(rank=11), TIMED_OUT.format(rank=3), TIMED_OUT.format(rank=0)), 11),
    ((TIMED_OUT.format(rank=3), BROKE.format(rank=11), TIMED_OUT.format(rank=0)), 11),
    ((TIMED_OUT.format(rank=5), TIMED_OUT.format(rank=1), TIMED_OUT.format(rank=7)), None),
])
def test_who_broke_off_first_is_a_suspicion_and_who_only_waited_is_none(
    lines: tuple[str, ...], rank: int | None
) -> None:
    """Of several ranks that lost their patience together nobody knows the first."""
    story, best, contract = told("\n".join(lines))
    first = contract["first_failed"]
    assert story.root_cause is None and best.confidence < 0.7
    assert first is None if rank is None else isinstance(first, dict) and (
        (first["rank"], first["told_by"]) == (rank, "suspicion")
    )


def test_a_process_has_the_rank_that_it_was_assigned() -> None:
    assigned = "(Worker pid=45464) INFO 06-09 06:53:02 parallel_state.py:948] rank 9 in world size 16 is assigned as DP"
    root = told(f"{assigned} rank 0\n(Worker pid=45464) ERROR 06-09 06:57:48 {FAILURES[0]}")[0].root_cause
    assert root is not None and root.rank == 9


@pytest.mark.parametrize("line", [
    "requests.exceptions.Timeout: HTTPSConnectionPool(host='hub', port=443)",
    "google.api_core.exceptions.Forbidden: 403 GET https://storage/b/data",
    "torch._C._LinAlgError: linalg.cholesky: the input is not positive-definite",
    "torch._dynamo.exc.Unsupported: call_function BuiltinVariable(print)",
    "triton.runtime.errors.OutOfResources: out of resource: ", "docker.errors.NotFound: 404 Client Error",
    "[Rank 7] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress",
    "[Error]: The aicore execution times out.",
])
def test_a_failure_in_plain_words_is_no_shortage_whatever_its_class(line: str) -> None:
    best = told(f"step 7 loss 2.0\n{line}")[1]
    assert best.kind == "not_oom" and best.confidence < 0.8


@pytest.mark.parametrize(("failure", "given", "limit"), [
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", "#SBATCH --mem=480G", 480 << 30),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", "   MinCPUsNode=16 MinMemoryNode=64G", 64 << 30),
    ("      Reason:       OOMKilled", '{"cpu":"96","memory":"420Gi"}', 420 << 30),
    ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
     "    Total Requested Memory :                     96.00 GB", 96 << 30),
    ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
     "XLA backend allocating 1073741824 bytes on device 0", 1 << 30),
])
def test_what_a_job_was_given_is_the_limit_that_its_failure_leaves_out(failure: str, given: str, limit: int) -> None:
    for text in (f"{given}\nstep 7\n{failure}", f"step 7\n{failure}\n{given}"):
        root = told(text)[0].root_cause
        assert root is not None and root.fields.limit_bytes == limit
    twice = told(f"{given}\n{given.replace('4', '3').replace('9', '8').replace('10', '20')}\n{failure}")[0].root_cause
    assert twice is not None and twice.fields.limit_bytes is None


def test_a_quoted_error_at_the_end_is_no_last_word() -> None:
    sample = '[response] The text "CUDA error: uncorrectable ECC error encountered" means that the card is to go.'
    assert told(f"step 7\n{sample}")[0].root_cause is None


@pytest.mark.parametrize("words", [
    "Sending process 97 closing signal SIGTERM", "Killed process 97 (python)",
    "Caught ValueError in DataLoader worker 3",
    "seg3d-worker-2 is not running", "Process 97 has 1.00 GiB memory in use",
])
def test_a_number_of_another_kind_is_no_rank(words: str) -> None:
    root = told(f"{words}\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB")[0].root_cause
    assert root is not None and root.rank is None


def test_processes_that_are_counted_from_one_have_the_rank_before() -> None:
    frames = "".join(f"[{number}/8] step 3 loss 2.0\n" for number in (1, 8, 3, 6, 2, 7, 5, 4) * 2)
    trace = '[6/8] Traceback (most recent call last):\n[6/8]   File "/a.py", line 2, in step\n[6/8]     go()\n'
    root = told(f"{frames}{trace}[6/8] RuntimeError: CUDA error: unknown error")[0].root_cause
    assert root is not None and root.rank == 5


@pytest.mark.parametrize("line", [
    "2026-01-11 10:00:11 ERROR trainer: dataset hash mismatch, refusing to resume",
    "ptxas fatal   : Unresolved extern function", "Error: config key 'model.hidden' not found",
])
def test_the_last_error_of_a_program_counts_where_nothing_else_tells(line: str) -> None:
    assert told(f"starting\n{line}")[1].kind == "not_oom"
    assert told(f"{line}\nsrun: error: n3: task 3: Killed")[1].kind == "undetermined"
    assert told(f"{line}\n[rank3]: torch.OutOfMemoryError: CUDA out of memory.")[1].kind == "true_oom"


def test_a_table_tells_the_room_that_a_message_leaves_out() -> None:
    bus = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
    root = told(f"{bus}\n$ df -h /dev/shm\nshm              64M   61M  3.5M  95% /dev/shm")[0].root_cause
    assert root is not None and (root.fields.limit_bytes, root.fields.free_bytes) == (64 << 20, 3670016)
    card = "|   46811MiB /  49140MiB |     98%      Default |"
    root = told(f"| 47%   71C    P2            262W /  300W {card}\nCUDA error: out of memory")[0].root_cause
    assert root is not None and root.fields.capacity_bytes == 49140 << 20
