"""Who speaks in a file: by its name, by its neighbours' names, by torchrun's directories and error files."""

from __future__ import annotations

import json

import pytest

from runbook.logs.lines import family_profiles, file_profile
from runbook.model.job import JobRecord
from runbook.model.units import NodeName
from tests.logs.launcher_logs import FAILURE, OOM, STACK, chatter, job, prefixed, root, story

NODES = (NodeName("gpu-21"), NodeName("gpu-22"))


@pytest.mark.parametrize(
    ("path", "rank", "task", "local_rank", "node", "attempt", "stream"),
    [
        ("logs/rank_3.log", 3, None, None, None, None, ""),
        ("logs/global_rank-0011.err", 11, None, None, None, None, "stderr"),
        ("logs/train.task00003.out", None, 3, None, None, None, "stdout"),
        ("logs/gpu-22/local_rank_3.log", None, None, 3, "gpu-22", None, ""),
        ("logs/gpu-22.cluster.example.log", None, None, None, "gpu-22", None, ""),
        ("run/none_x1/attempt_1/3/stderr.log", None, None, 3, None, 1, "stderr"),
        ("gpu-22/run/none_x1/attempt_0/3/error.json", None, None, 3, "gpu-22", 0, ""),
        ("run/none_x1/attempt_2/filtered_stderr.log", None, None, None, None, 2, "stderr"),
        ("gpu-21-gpu-22.log", None, None, None, None, None, ""),
        ("gpu-220.log", None, None, None, None, None, ""),
        ("train-123.e", None, None, None, None, None, "stderr"),
    ],
)
def test_a_name_says_who_speaks(
    path: str, rank: int | None, task: int | None, local_rank: int | None, node: str | None, attempt: int | None,
    stream: str,
) -> None:
    said = file_profile(path, NODES)
    assert (said.rank, said.task, said.local_rank, said.node, said.attempt, said.stream) == (
        rank, task, local_rank, node, attempt, stream
    )


def tasks(paths: list[str], known: JobRecord | None) -> list[int | None]:
    nodes = known.nodes if known else ()
    return [one.task for one in family_profiles(paths, [file_profile(path, nodes) for path in paths], known)]


EIGHT = job(["gpu-21", "gpu-22"], 8, 4)


@pytest.mark.parametrize(
    ("pattern", "known"),
    [
        ("out.{t}", None),
        ("train-123-{t:05}.out", EIGHT),
        ("123.0_{t:03}.err", EIGHT),
        ("logs/train_{t}_{N}.log", EIGHT),
        ("logs/{N}-{t}.log", EIGHT),
        ("logs/n{n}-t{t}.log", EIGHT),
    ],
)
def test_numbers_that_run_from_zero_are_tasks(pattern: str, known: JobRecord | None) -> None:
    paths = [pattern.format(t=task, n=task // 4, N=NODES[task // 4]) for task in range(8)]
    assert tasks(paths, known) == list(range(8))


def test_output_and_error_files_are_families_of_their_own() -> None:
    paths = [f"log.{task}.{end}" for end in ("out", "err") for task in range(8)]
    assert tasks(paths, EIGHT) == [*range(8), *range(8)]


@pytest.mark.parametrize(
    ("paths", "known"),
    [
        (["out.1", "out.2"], None),
        (["out.0", "out.1"], job([], 8)),
        (["slurm-100_0.out", "slurm-100_1.out"], None),
        (["train_100_0.out", "train_100_1.out"], job(["gpu-21"], 2, 2, job_id="101", array_job_id="100")),
        (["alone.0"], None),
    ],
)
def test_other_numbers_are_no_tasks(paths: list[str], known: JobRecord | None) -> None:
    assert set(tasks(paths, known)) == {None}


def test_one_file_a_node_is_told_from_one_a_task() -> None:
    paths = ["train-123.0.out", "train-123.1.out"]
    known = job(["gpu-21", "gpu-22"], 8, 4)
    said = family_profiles(paths, [file_profile(path, known.nodes) for path in paths], known)
    assert [(one.task, one.node) for one in said] == [(None, "gpu-21"), (None, "gpu-22")]


def test_a_task_that_runs_torchrun_is_not_its_rank() -> None:
    files = [(f"out.{task}", chatter("")) for task in range(2)]
    files[1] = ("out.1", chatter("[default0]:") + prefixed("[default3]:[rank11]: ", FAILURE))
    found = root(*files, job=job(["gpu-21", "gpu-22"], 2, 8))
    assert (found.rank, found.local_rank) == (11, 3)


def test_a_file_of_one_process_lends_its_rank_to_lines_without_one() -> None:
    path = "run/none_x1/attempt_0/3/stderr.log"
    found = root((path, "[rank11]:[W301 10:00:00.1 Utils.hpp:1] a warning\n" + prefixed("", FAILURE)))
    assert (found.rank, found.local_rank) == (11, 3)


def test_an_error_file_has_the_rank_that_its_neighbour_names() -> None:
    folder = "run/none_x1/attempt_0/3"
    found = root((f"{folder}/error.json", WHOLE), (f"{folder}/stderr.log", "[rank11]: warming up\n" * 3))
    assert (found.rank, found.local_rank) == (11, 3)


def test_rays_worker_files_share_a_process() -> None:
    name = "session_latest/logs/worker-" + "0a" * 28 + "-01000000-4711"
    found = root((f"{name}.out", "rank 3 ready (pid 4711)\n" * 2), (f"{name}.err", prefixed("", FAILURE)))
    assert (found.rank, found.pid) == (3, 4711)


def error_json(message: object, extra: dict[str, str] | None = None, **more: object) -> str:
    return json.dumps({"message": {"message": message, "extraInfo": extra or {}, **more}})


CALLSTACK = "\n".join((*STACK, OOM)) + "\n"
STAMP = {"py_callstack": CALLSTACK, "timestamp": "1772359205"}
WHOLE = error_json(f"OutOfMemoryError: {OOM.partition(': ')[2]}", STAMP, errorCode=1)


def test_an_error_file_is_read_with_its_traceback_and_time() -> None:
    told = story(("gpu-22/run/none_x1/attempt_0/3/error.json", WHOLE), job=job(["gpu-21", "gpu-22"], 2, 4))
    found = told.root_cause
    assert found is not None
    assert (found.signature, found.local_rank, found.node, found.phase) == ("PT-CUDA-07", 3, "gpu-22", "backward")
    assert (found.time_s, found.line, found.offset) == (1772359205.0, 1, 0)
    assert "error file" in told.sources[0].note


def test_the_local_rank_of_the_only_node_is_the_rank() -> None:
    assert root(("run/none_x1/attempt_0/3/error.json", WHOLE), job=job(["gpu-22"], 1, 4)).rank == 3


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"message": OOM}),
        WHOLE[: WHOLE.index("If reserved") + 900],
        WHOLE + WHOLE,
        error_json(OOM, {"timestamp": "not a time"}),
        json.dumps({"message": {"message": None, "extraInfo": STAMP}}),
    ],
    ids=["a plain string", "cut", "written twice", "a damaged time", "no message"],
)
def test_a_damaged_error_file_is_read_as_far_as_it_goes(content: str) -> None:
    found = root(("run/none_x1/attempt_0/3/error.json", content))
    assert (found.signature, found.local_rank) == ("PT-CUDA-07", 3)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"message": {}}', "\x00\x01", "[" * 60_000])
def test_an_error_file_without_an_exception_is_no_failure(content: str) -> None:
    assert story(("attempt_0/3/error.json", content)).root_cause is None


def table(rank: int, local_rank: int, node: str, first: bool = True, signal: str = "", traceback: str = "") -> str:
    head = "Root Cause (first observed failure):\n[0]:\n" if first else "[1]:\n"
    body = "\n  ".join(traceback.splitlines()) if traceback else (
        "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    return (
        f"{head}  time      : 2026-03-01_10:00:05\n  host      : {node}\n"
        f"  rank      : {rank} (local_rank: {local_rank})\n"
        f"  exitcode  : {-9 if signal else 1} (pid: 4711){signal}\n  error_file: <N/A>\n  traceback : {body}\n"
    )


def tables(text: str) -> str:
    line = "-" * 60
    return f"{'=' * 60}\ntrain.py FAILED\n{line}\nFailures:\n  <NO_OTHER_FAILURES>\n{line}\n{text}{'=' * 60}\n"


@pytest.mark.parametrize("prefix", ["", "1: ", "gpu-22: ", "[1,1]<stderr>:"])
def test_an_exception_inside_torchruns_table_is_its_rows_rank(prefix: str) -> None:
    text = chatter(prefix) + prefixed(prefix, tables(table(11, 3, "gpu-22.cluster", traceback=CALLSTACK)).splitlines())
    found = root(("train.out", text), job=job(["gpu-21", "gpu-22"], 2, 8) if "gpu" in prefix else None)
    assert (found.signature, found.rank, found.local_rank, found.node) == ("PT-CUDA-07", 11, 3, "gpu-22")
    assert (found.time_s, found.phase) == (1772359205.0, "backward")


def test_tables_of_several_nodes_in_one_log() -> None:
    one = tables(table(3, 3, "gpu-21.cluster", signal=" (SIGKILL)"))
    other = tables(table(11, 3, "gpu-22.cluster"))
    text = chatter("0: ") + chatter("1: ") + prefixed("1: [rank11]: ", FAILURE)
    for first, second in zip(one.splitlines(), other.splitlines(), strict=True):
        text += f"0: {first}\n1: {second}\n"
    told = story(("train.out", text), job=job(["gpu-21", "gpu-22"], 2, 8))
    assert told.root_cause is not None
    assert (told.root_cause.rank, told.root_cause.node) == (11, "gpu-22")
    assert told.rank_nodes[3] == "gpu-21"
