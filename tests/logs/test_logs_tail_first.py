"""Many files, one a rank: read from their ends, they tell the same story as read whole."""

from __future__ import annotations

import functools
import gzip
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runbook.adapters.log_files import on_threads
from runbook.adapters.silent import PlainFile
from runbook.diagnosis import diagnose
from runbook.locations import data_folder
from runbook.logs.reader import LogReader
from runbook.logs.search import HEAD_BYTES, TAIL_BYTES, tails
from runbook.logs.signatures import load_signatures
from runbook.model.log import LogStory
from runbook.report.vocabulary.sentences import in_words
from tests.kinds import MEANINGS

READER = LogReader(load_signatures(data_folder("playbooks") / "oom" / "signatures"))
RANKS = 10
FAILING = 6
_START = datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)

OOM = (
    "Traceback (most recent call last):\n"
    '  File "/home/ada/train.py", line 120, in train\n'
    "    loss.backward()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {gpu} has a total capacity of 79.15 "
    "GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the "
    "allocated memory 75.20 GiB is allocated by PyTorch, and 730.00 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.\n"
)


def stamp(second: float) -> str:
    return (_START + timedelta(seconds=second)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


@functools.cache
def step_line(step: int) -> str:
    return (
        f" [{stamp(step)[:19]}] iteration {step:8}/   90000 | consumed samples: {step * 512:12} | elapsed time per "
        f"iteration (ms): 1000.0 | learning rate: 1.200000E-04 | global batch size:   512 | lm loss: 2.1E+00 |\n"
    )


@functools.cache
def body(style: str, steps: int = 1600) -> str:
    """What a rank prints while all is well: steps, stamped lines, or neither."""
    if style == "steps":
        return "".join(step_line(step) for step in range(steps))
    if style == "stamps":
        return "".join(
            f"{stamp(step)} INFO loader: shard {step:6} opened, prefetch queue 12 deep, memory map at 0x7f31\n" * 3
            for step in range(steps)
        )
    return "".join(f"layer norm {step % 97:4} of the tower checked, nothing to say about tensor {step:9}\n" * 5
                   for step in range(steps))


def watchdog(rank: int, second: float, times: int = 1) -> str:
    return (
        f"[rank{rank}]:[E301 10:{int(second) // 60 % 60:02}:{int(second) % 60:02}.000000000 ProcessGroupNCCL.cpp:629] "
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=90012, OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds before timing out.\n" * times
    )


def failure_in_the_tail(rank: int, style: str) -> str:
    return body(style) + (OOM.format(gpu=rank % 8) if rank == FAILING else watchdog(rank, 2500))


def failure_far_before_the_spam(rank: int, style: str) -> str:
    if rank == FAILING:
        return body(style) + OOM.format(gpu=2) + watchdog(rank, 2500, 5000)
    return body(style) + watchdog(rank, 2500)


def everybody_is_spammed(rank: int, style: str) -> str:
    failed = OOM.format(gpu=2) if rank == FAILING else ""
    return body(style) + failed + watchdog(rank, 2500, 3000)


def silent_ranks(rank: int, style: str) -> str:
    return body(style) + (OOM.format(gpu=3) if rank == FAILING else "")


def handled_early(rank: int, style: str) -> str:
    """Another rank ran out of memory long before, caught it, and went on."""
    whole = body(style)
    middle = whole.index("\n", len(whole) // 3) + 1
    caught = f"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU {rank} has\n"
    said = caught.rstrip("\n") + ", skipping this batch\n" if rank == 2 else ""
    end = OOM.format(gpu=1) if rank == FAILING else watchdog(rank, 2500)
    return whole[:middle] + said + whole[middle:] + end


def two_fail_one_first(rank: int, style: str) -> str:
    """Rank 6 first, rank 1 two minutes later; which was first is told by the stamps."""
    if rank in (FAILING, 1):
        second = 2400 if rank == FAILING else 2520
        said = f"{stamp(second)} ERROR trainer: died\n"
        return body(style) + said + OOM.format(gpu=rank) + watchdog(rank, second + 1)
    return body(style) + watchdog(rank, 2900)


def noise_behind_the_failure(rank: int, style: str) -> str:
    """A thread of the failed rank goes on talking of other things for 300 KiB."""
    noise = "".join(f"dataloader thread {number:6} closes its files, one after the other\n" for number in range(5000))
    return body(style) + (OOM.format(gpu=4) + noise if rank == FAILING else watchdog(rank, 2500))


def a_second_attempt_in_the_same_files(rank: int, style: str) -> str:
    return (
        body(style, 1500) + (OOM.format(gpu=5) if rank == 3 else watchdog(rank, 1600))
        + " loading checkpoint from /scratch/ckpt at iteration 1000\n"
        + "".join(step_line(step) for step in range(1001, 2000))
        + (OOM.format(gpu=5) if rank == FAILING else watchdog(rank, 2500))
    )


def nobody_fails(rank: int, style: str) -> str:
    return body(style) + watchdog(rank, 2500)


def only_an_unknown_exception(rank: int, style: str) -> str:
    raised = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 12\n'
    return body(style) + (raised if rank == FAILING else watchdog(rank, 2500))


SCENES: list[Callable[[int, str], str]] = [
    failure_in_the_tail, failure_far_before_the_spam, everybody_is_spammed, silent_ranks, handled_early,
    two_fail_one_first, noise_behind_the_failure, a_second_attempt_in_the_same_files, nobody_fails,
    only_an_unknown_exception,
]


def read(paths: list[Path], *, tail_first: bool) -> LogStory:
    with ExitStack() as stack:
        sources = [(str(path), stack.enter_context(PlainFile(path)), path.stat().st_size) for path in paths]
        return READER.read(list(sources), job=None, tail_first=tail_first, in_order=on_threads(2))


def written(folder: Path, scene: Callable[[int, str], str], style: str) -> list[Path]:
    paths = []
    for rank in range(RANKS):
        path = folder / f"rank_{rank}.log"
        path.write_text(f"starting rank {rank} of {RANKS}\n" + scene(rank, style))
        paths.append(path)
    return paths


def told(story: LogStory) -> tuple[object, ...]:
    """What must not depend on how much was read."""
    root = story.root_cause
    diagnosis = diagnose(story, meanings=MEANINGS, job=None)
    cause = (root.signature, root.rank, root.file, root.offset, root.line, root.phase, root.step) if root else None
    return cause, diagnosis.best.kind, diagnosis.best.detail


@pytest.mark.parametrize("style", ["steps", "stamps", "neither"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_ends_tell_the_same_story_as_the_whole(
    tmp_path: Path, scene: Callable[[int, str], str], style: str
) -> None:
    paths = written(tmp_path, scene, style)
    assert told(read(paths, tail_first=True)) == told(read(paths, tail_first=False))


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_files_that_end_alike_tell_the_same_story_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: Callable[[int, str], str]
) -> None:
    """Thousands of files are needed before ends are compared; here the second one is taken to be like the first."""
    paths = written(tmp_path, scene, "steps")
    whole = read(paths, tail_first=False)
    monkeypatch.setattr(tails, "READ_AS_USUAL", 1)
    monkeypatch.setattr(tails, "TEACHERS", 1)
    ends = read(paths, tail_first=True)
    assert told(ends) == told(whole)
    assert [(one.rank, one.signature, one.why) for one in ends.collateral] == [
        (one.rank, one.signature, one.why) for one in whole.collateral
    ]
    assert ends.progress.last_step_by_rank == whole.progress.last_step_by_rank
    assert ends.rank_nodes == whole.rank_nodes
    often = [note for note in whole.notes if "times in the logs" in in_words(note)]
    assert [note for note in ends.notes if "times in the logs" in in_words(note)] == often


def test_of_ranks_that_only_followed_the_middle_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    paths = written(tmp_path, failure_in_the_tail, "steps")
    story = read(paths, tail_first=True)
    for rank, source in enumerate(story.sources):
        if rank == FAILING:
            assert source.bytes_read == source.size_bytes
            assert not source.note
        else:
            assert source.bytes_read == HEAD_BYTES + TAIL_BYTES
            assert "the rest was not read" in source.note
    assert any("9 of 10 files only the beginning and the end were read" in in_words(note) for note in story.notes)
    assert story.progress.last_step_by_rank.keys() == set(range(RANKS))


def test_a_file_is_followed_back_to_its_last_step(tmp_path: Path) -> None:
    story = read(written(tmp_path, everybody_is_spammed, "steps"), tail_first=True)
    spam = len(watchdog(0, 2500, 3000))
    others = [source for rank, source in enumerate(story.sources) if rank != FAILING]
    assert all(spam < source.bytes_read <= source.size_bytes for source in others)


def test_packed_files_among_them_are_read_whole(tmp_path: Path) -> None:
    paths = written(tmp_path, failure_in_the_tail, "steps")
    packed = tmp_path / "rank_6.log.gz"
    packed.write_bytes(gzip.compress(paths[FAILING].read_bytes(), 1))
    paths[FAILING].unlink()
    paths[FAILING] = packed
    story = read(paths, tail_first=True)
    assert story.root_cause is not None
    assert story.root_cause.rank == FAILING
    assert "gzip" in story.sources[FAILING].note


def test_a_small_set_is_read_whole_without_being_asked(tmp_path: Path) -> None:
    paths = written(tmp_path, failure_in_the_tail, "steps")
    with ExitStack() as stack:
        sources = [(str(path), stack.enter_context(PlainFile(path)), path.stat().st_size) for path in paths]
        story = READER.read(list(sources), job=None, in_order=on_threads(2))
    assert all(source.bytes_read == source.size_bytes for source in story.sources)
