"""Lines as they come: broken into each other, behind progress bars, stamped in every way."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from runbook.logs.lines import PrefixProfile, learn_prefixes, parse_line, parse_lines, read_time
from runbook.report.vocabulary.sentences import in_words
from tests.logs.launcher_logs import FAILURE, OOM, PLAIN, STACK, chatter, job, prefixed, root, story

BAR = " 12%|█▏        | 12/100 [00:10<01:10,  1.25it/s]"
MEGATRON = (
    "[2026-03-01 10:00:05] iteration       12/    5000 | consumed samples:           40 | elapsed time per iteration "
    "(ms): 1210.0 | global batch size:     8 | lm loss: 2.1E+00 |"
)


def moment(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]


# -- progress bars and carriage returns


def test_a_failure_behind_ten_thousand_turns_of_a_bar_is_its_own_line() -> None:
    bars = "".join(f"\r{BAR}" for _ in range(10_000))
    found = root(("train.out", chatter("") + bars + "\r[rank3]: " + OOM + "\n"))
    assert (found.signature, found.rank) == ("PT-CUDA-07", 3)


def test_a_failure_glued_to_a_bar_has_its_own_rank_and_stack() -> None:
    text = chatter("") + f"\r{BAR}[rank3]: {STACK[0]}\n" + prefixed("[rank3]: ", STACK[1:]) + f"\r{BAR}"
    found = root(("train.out", text + f"[rank3]: {OOM}\n"))
    assert (found.rank, found.phase) == (3, "backward")


def test_bars_between_the_lines_of_a_traceback_do_not_break_it() -> None:
    text = chatter("")
    for line in FAILURE:
        text += f"\r{BAR}\r{BAR}\n{line}\n"
    assert root(("train.out", text)).phase == "backward"


def test_a_bar_of_a_named_process_lends_its_name_to_what_is_glued_to_it() -> None:
    text = chatter("[default0]:") + chatter("[default3]:") + f"[default3]:{BAR}{OOM}\n"
    assert root(("train.out", text)).local_rank == 3


# -- lines that several processes wrote into each other


def test_a_message_broken_by_another_rank_stays_with_its_own() -> None:
    at = OOM.index("Including")
    text = prefixed("[rank3]: ", STACK) + prefixed("[rank5]: ", ["warming up"])
    text += f"[rank3]: {OOM[:at]}[rank5]: {STACK[0]}\n{OOM[at:]}\n" + prefixed("[rank5]: ", STACK[1:])
    found = root(("train.out", text))
    assert (found.signature, found.rank, found.fields.process_bytes) == ("PT-CUDA-07", 3, 84396107366)


def test_an_exceptions_name_broken_in_two_is_put_together() -> None:
    text = chatter("[rank3]: ") + chatter("[rank5]: ")
    text += f"[rank3]: torch.OutOf[rank5]: {STACK[0]}\n" + OOM.removeprefix("torch.OutOf") + "\n"
    text += prefixed("[rank5]: ", [*STACK[1:3], "ValueError: something else"])
    told = story(("train.out", text))
    assert told.root_cause is not None
    assert (told.root_cause.signature, told.root_cause.rank) == ("PT-CUDA-07", 3)
    assert any("into each other" in in_words(note) for note in told.notes)


def test_a_progress_line_inside_a_message_does_not_hide_it() -> None:
    at = OOM.index("capacity")
    text = f" {MEGATRON}\n" * 2 + f"[rank3]: {OOM[:at]} {MEGATRON}\n{OOM[at:]}\n"
    found = root(("train.out", text))
    assert (found.signature, found.rank) == ("PT-CUDA-07", 3)


def test_two_whole_messages_on_one_line_are_two_ranks() -> None:
    text = chatter("[rank3]: ") + chatter("[rank5]: ") + f"[rank3]: {OOM}[rank5]: {OOM}\n"
    told = story(("train.out", text))
    assert told.root_cause is not None
    assert {told.root_cause.rank, *(one.rank for one in told.candidates)} == {3, 5}


def test_a_mixed_line_names_nobody_and_says_why() -> None:
    text = chatter("[rank3]: ") + chatter("[rank5]: ")
    text += f"[rank3]: torch.OutOf[rank5]: Traceb{OOM.removeprefix('torch.OutOf')}\n"
    told = story(("train.out", text))
    assert told.root_cause is not None
    assert told.root_cause.rank is None
    assert any("not certain" in in_words(note) for note in told.notes)


def test_a_quoted_prefix_does_not_break_a_line() -> None:
    line = "[rank3]: RuntimeError: peer said '[rank5]: gone'"
    assert [one.rank for one in parse_lines(line, PLAIN)] == [3]


def test_the_same_rank_twice_is_one_line() -> None:
    assert len(parse_lines("[rank3]: one [rank3]: two", PLAIN)) == 1


# -- stamps

STARTED = moment(2026, 3, 1, 9)
STAMPS = [
    ("[2026-03-01 10:00:05] iteration 5", moment(2026, 3, 1, 10, 0, 5)),
    ("2026-03-01 10:00:05,250 - ERROR - x", moment(2026, 3, 1, 10, 0, 5) + 0.25),
    ("2026-03-01T10:00:05.250Z x", moment(2026, 3, 1, 10, 0, 5) + 0.25),
    ("2026-03-01T12:00:05+02:00 x", moment(2026, 3, 1, 10, 0, 5)),
    ("2026-03-01 12:00:05 +0200 x", moment(2026, 3, 1, 10, 0, 5)),
    ("2026/03/01 10:00:05 x", moment(2026, 3, 1, 10, 0, 5)),
    ("Sun Mar  1 10:00:05 2026 x", moment(2026, 3, 1, 10, 0, 5)),
    ("[rank3]:[E301 10:00:05.250000000 ProcessGroupNCCL.cpp:1] x", moment(2026, 3, 1, 10, 0, 5) + 0.25),
    ("[rank3]:[E1121 10:00:05.25 ProcessGroupNCCL.cpp:1] x", moment(2026, 11, 21, 10, 0, 5) + 0.25),
    ("E0301 10:00:05.250000 4711 torch/x.py:8] failed", moment(2026, 3, 1, 10, 0, 5) + 0.25),
    ("(EngineCore pid=207) ERROR 03-01 10:00:05 [core.py:1132] x", moment(2026, 3, 1, 10, 0, 5)),
    ("(raylet, ip=10.0.0.2) [2026-03-01 10:00:05,250 E 9 9] (raylet) x", moment(2026, 3, 1, 10, 0, 5) + 0.25),
    ("slurmstepd: error: *** JOB 123 ON gpu-21 CANCELLED AT 2026-03-01T10:00:05 ***", moment(2026, 3, 1, 10, 0, 5)),
    ("12: [default3]:[rank11]: 2026-03-01 10:00:05 x", moment(2026, 3, 1, 10, 0, 5)),
    ("gpu-22: [2026-03-01 10:00:05,250] [INFO] x", moment(2026, 3, 1, 10, 0, 5) + 0.25),
]


@pytest.mark.parametrize(("line", "expected"), STAMPS)
def test_a_lines_own_stamp_is_read(line: str, expected: float) -> None:
    assert read_time(line, STARTED) == pytest.approx(expected)


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: the shard of 2026-03-01 10:00:05 is missing",
        "RuntimeError: 2026-03-01 10:00:05 is not a step",
        "Loading /ckpt/run_2026-03-01_10:00:05/step-5",
        "checkpoint written at 2026-03-01 10:00:05",
        "2026-13-41 10:00:05 x",
        "[E1399 10:00:05.25 x.cpp:1] x",
    ],
)
def test_a_stamp_that_a_message_mentions_is_not_the_lines(line: str) -> None:
    assert read_time(line, STARTED) is None


def test_stamps_without_a_year_go_on_over_new_year() -> None:
    started = moment(2026, 12, 31, 20)
    december = read_time("[E1231 23:59:00.5 File.cpp:1] x", started)
    january = read_time("[E0101 00:01:00.5 File.cpp:1] x", started)
    assert december is not None
    assert january is not None
    assert january - december == 120
    assert read_time("[E0101 00:01:00.5 File.cpp:1] x", None) is None


def test_the_first_failure_over_new_year_is_decembers() -> None:
    def failing(stamp: str) -> str:
        return f"{stamp} ERROR {OOM}\n"

    files = [
        ("rank_0.log", failing("[E0101 00:00:10.5 x.cpp:1]")), ("rank_1.log", failing("[E1231 23:59:50.5 x.cpp:1]")),
    ]
    assert root(*files, job=job(["gpu-21"], 2, 2, start_time_s=moment(2026, 12, 31, 20))).rank == 1


# -- which of the node's GPUs

COMM = "NCCL INFO comm 0x55d0c3a0 rank {rank} nranks {ranks} cudaDev {dev} nvmlDev {nvml} busId 1a000 - Init"


def nccl(node: str, pid: int, rank: int, ranks: int, dev: int, nvml: int) -> str:
    return f"{node}:{pid}:{pid + 90} [{dev}] {COMM.format(rank=rank, ranks=ranks, dev=dev, nvml=nvml)} COMPLETE\n"


def test_nccl_tells_ranks_processes_nodes_and_the_nodes_gpu() -> None:
    text = "".join(nccl(f"gpu-2{1 + rank // 4}", 4700 + rank, rank, 8, 0, rank % 4) for rank in range(8))
    text += nccl("gpu-22", 4706, 0, 2, 0, 2)  # a group's rank is not the job's
    told = story(("train.out", text + prefixed("[rank6]: ", [*STACK, OOM.replace("GPU 3", "GPU 0")])))
    assert told.root_cause is not None
    found = told.root_cause
    assert (found.node, found.pid, found.device, found.node_device) == ("gpu-22", 4706, 0, "2")
    assert told.world_size == 8


def test_a_group_alone_places_no_rank() -> None:
    text = "".join(nccl("gpu-21", 4700 + rank, rank % 2, 2, rank, rank) for rank in range(4))
    assert story(("train.out", text + OOM + "\n")).rank_pids == {}


@pytest.mark.parametrize(
    ("listed", "node_device"),
    [("4,5,6,7", "7"), ("6", "6"), ("0,1", None), ("MIG-1f0a9b7e-aaaa-5bbb-8ccc-000011112222",) * 2],
)
def test_a_process_that_states_its_list_points_into_it(listed: str, node_device: str | None) -> None:
    text = f"[rank3]: CUDA_VISIBLE_DEVICES={listed}\n" + prefixed("[rank3]: ", FAILURE)
    assert root(("train.out", text)).node_device == node_device


def test_lightnings_list_is_of_a_local_rank() -> None:
    text = "".join(
        f"{local}: LOCAL_RANK: {local} - CUDA_VISIBLE_DEVICES: [0,1,2,3]\n" for local in range(4)
    ) + prefixed("3: ", FAILURE)
    assert root(("train.out", text)).node_device == "3"


def test_a_list_that_the_script_alone_states_says_nothing_of_a_bound_task() -> None:
    text = "CUDA_VISIBLE_DEVICES=0,1,2,3\n" + chatter("0: ") + chatter("3: ") + prefixed(
        "3: ", [OOM.replace("GPU 3", "GPU 0")]
    )
    assert root(("train.out", text), job=job(["gpu-21"], 4, 4)).node_device is None


# -- cost


HOSTILE = {
    "prefixes without end": "[rank3]: " * 1_800,
    "brackets": "[" * 16_000,
    "parentheses": "(a" * 8_000,
    "stamps": "2026-03-01 10:00:05 " * 800,
    "names": "gpu-21: " * 2_000,
    "bars": BAR * 300,
    "half prefixes": "[rank" * 3_200,
    "spaces": " " * 16_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_framing_a_hostile_line_costs_linear_time(name: str) -> None:
    file = replace(PLAIN, nodes=frozenset({"gpu-21"}), habits=PrefixProfile(frozenset({1}), bare="rank", piped=True))
    line = HOSTILE[name][:16_384]
    started = time.process_time()
    for _ in range(20):
        parse_lines(line, file)
        read_time(line, STARTED)
        learn_prefixes([line[:400]] * 20, frozenset())
    assert time.process_time() - started < 2.0


def test_prefixes_are_taken_off_at_most_a_few_times() -> None:
    assert parse_line("[rank3]: " * 40 + "x", PLAIN).rank == 3
