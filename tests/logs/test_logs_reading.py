"""Reading logs as they come: large, packed, broken, hostile."""

from __future__ import annotations

import gzip
import io
import random
import time
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.locations import data_folder
from runbook.logs.reader import LogReader
from runbook.logs.search import scan
from runbook.logs.signatures import load_signatures
from runbook.model.log import LogStory

READER = LogReader(load_signatures(data_folder("playbooks") / "oom" / "signatures"))

MESSAGE = (
    b"[rank3]: Traceback (most recent call last):\n"
    b'[rank3]:   File "/home/ada/train.py", line 120, in train\n'
    b"[rank3]:     loss.backward()\n"
    b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
    b"79.15 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. "
    b"Of the allocated memory 75.20 GiB is allocated by PyTorch, and 730.00 MiB is reserved by PyTorch but "
    b"unallocated. If reserved but unallocated memory is large try setting "
    b"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n"
)
FILLER = b"2026-03-01 10:00:00 INFO an ordinary line of a training program, of ordinary length\n"


def read(content: bytes, path: str = "train.out") -> LogStory:
    return READER.read([(path, io.BytesIO(content), len(content))], job=None)


def test_a_truncated_log_that_begins_with_a_hole_is_read() -> None:
    story = read(bytes(100_000) + b"\n" + MESSAGE)
    assert story.root_cause is not None
    assert story.root_cause.rank == 3


@pytest.mark.parametrize("shift", [0, 1, 40, 130, 400, 700, 1000])
def test_a_message_across_two_chunks_is_read_whole(shift: int) -> None:
    first_chunk = scan.CHUNK_BYTES + scan.KEPT_BYTES - scan.AHEAD_BYTES
    before = FILLER * (first_chunk // len(FILLER) + 1)
    before = before[: first_chunk - shift - 1] + b"\n"
    content = before + MESSAGE + FILLER * 2000
    root = read(content).root_cause
    assert root is not None
    assert (root.signature, root.rank, root.phase) == ("PT-CUDA-07", 3, "backward")
    assert root.line == content[: root.offset].count(b"\n") + 1
    assert content[root.offset:].startswith(b"[rank3]: torch.OutOfMemoryError")


def test_a_message_stands_once_however_chunks_fall() -> None:
    content = FILLER * 150_000 + MESSAGE + FILLER * 150_000
    story = read(content)
    assert story.root_cause is not None
    assert story.candidates == ()
    assert story.harmless == ()


def test_a_packed_log_is_unpacked_on_the_way() -> None:
    packed = gzip.compress(FILLER * 50 + MESSAGE)
    story = read(packed, "train.out.gz")
    assert story.root_cause is not None
    assert story.root_cause.line == 54
    assert "gzip" in story.sources[0].note


def test_a_cut_packed_log_is_read_as_far_as_it_goes() -> None:
    generator = random.Random(4)
    noise = b"".join(b"%d %d\n" % (generator.random() * 1e9, generator.random() * 1e9) for _ in range(200_000))
    packed = gzip.compress(MESSAGE + noise)
    story = read(packed[: len(packed) // 2], "train.out.gz")
    assert story.root_cause is not None
    assert "damaged or cut" in story.sources[0].note


@pytest.mark.parametrize(
    ("content", "note"),
    [(b"", "empty"), (b"\x7fELF" + bytes(5000), "binary data"), (b"PK\x03\x04" + bytes(9000), "binary")],
)
def test_what_is_no_log_is_a_note(content: bytes, note: str) -> None:
    story = read(content)
    assert story.root_cause is None
    assert note in story.sources[0].note


class Breaking(io.BytesIO):
    """A stream whose disk fails after the first read."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.reads = 0

    def readinto(self, space: object) -> int:
        self.reads += 1
        if self.reads > 1:
            raise OSError(5, "Input/output error")
        return super().readinto(space)  # type: ignore[arg-type]


def test_a_stream_that_breaks_is_a_note_and_the_others_are_read() -> None:
    bad: BinaryIO = Breaking(FILLER * 10)
    story = READER.read([("bad.out", bad, 10), ("good.out", io.BytesIO(MESSAGE), len(MESSAGE))], job=None)
    assert "could not be read" in story.sources[0].note
    assert story.root_cause is not None
    assert story.root_cause.file == "good.out"


def test_progress_of_the_reading_is_told_and_ends_at_the_end() -> None:
    content = FILLER * 250_000
    told: list[tuple[int, int]] = []
    READER.read([("a", io.BytesIO(content), len(content)), ("b", io.BytesIO(MESSAGE), len(MESSAGE))],
                job=None, progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (len(content) + len(MESSAGE), len(content) + len(MESSAGE))
    assert len(told) >= 3


HOSTILE = {
    "one line of 40 MB without end": b"x" * 40_000_000,
    "literals without line ends": b"CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a " * 150_000,
    "thirty thousand failures": MESSAGE.split(b"\n")[3][:200] + b"\n",
    "four thousand failing speakers": b"".join(
        b"[rank%d]" % i + MESSAGE.split(b"\n")[3][7:] + b"\n" for i in range(4000)
    ),
    "NUL bytes": (FILLER + b"\x00" * 50) * 200_000,
    "not UTF-8": b"\xff\xfe\xfa CUDA out of memory. Tried to allocate 1.00 GiB\xff\n" * 20_000,
    "a progress bar of 200,000 turns": b"".join(
        b"\r 10%%|#   | %d/200000 [00:01<00:09, 9.0it/s]" % i for i in range(200_000)
    ),
    "tracebacks that never end": b"Traceback (most recent call last):\n" * 30_000,
    "indented for ever": b"Traceback (most recent call last):\n" + b'  File "x", line 1, in y\n' * 400_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_content_costs_time_in_proportion(name: str) -> None:
    content = HOSTILE[name]
    if name == "thirty thousand failures":
        content = content * 30_000
    content += b"\n" + MESSAGE
    started = time.process_time()
    story = read(content)
    seconds = time.process_time() - started
    # A megabyte a second is far above what is needed, and far below what anything quadratic would take.
    assert seconds < 2.0 + len(content) / 1e6, f"{seconds:.1f} s for {len(content) / 1e6:.0f} MB"
    assert story.root_cause is not None
    assert len(story.candidates) <= 64
    for finding in (story.root_cause, *story.candidates, *story.harmless):
        assert len(finding.excerpt) <= 2100
        assert finding.excerpt.count("\n") <= 40
        assert not any(ord(one) < 32 and one not in "\n\t" for one in finding.excerpt)


def test_a_long_traceback_is_cut_around_the_failure() -> None:
    stack = b"".join(b'  File "/home/ada/layer.py", line %d, in forward\n    return f(x)\n' % i for i in range(80))
    content = b"Traceback (most recent call last):\n" + stack + MESSAGE.split(b"\n")[3][9:] + b"\n"
    root = read(content).root_cause
    assert root is not None
    assert "torch.OutOfMemoryError" in root.excerpt
    assert "line 79" in root.excerpt or root.phase == "forward"
    assert root.excerpt.count("\n") < 40


def test_terminal_tricks_do_not_reach_the_reader() -> None:
    content = (
        b"\x1b]0;title\x07\x1b[2J[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB "
        b"\xe2\x80\xae\x9b\n"
    )
    root = read(content).root_cause
    assert root is not None
    assert root.rank == 1
    assert "\x1b" not in root.excerpt
    assert "\u202e" not in root.excerpt


PIECES = [
    MESSAGE, FILLER, MESSAGE[300:], b"srun: error: gpu-[1-9]: tasks 0-99999999,-: Exited with exit code 1\n",
    b"  time      : 9999-99-99_99:99:99\n  host      : x\n  rank      : 1 (local_rank: 1)\n"
    b"  exitcode  : 1 (pid: 1)\n",
    b" loading checkpoint from x at iteration 1\n", b"step 5/1\n", b"\r", b"Traceback (most recent call last):\n",
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=200), st.sampled_from(PIECES)), max_size=30))
def test_no_content_breaks_the_reading(pieces: list[bytes]) -> None:
    content = b"".join(pieces)
    story = read(content)
    assert story.sources[0].path == "train.out"
    if MESSAGE in content and b"step 5" not in content and not story.sources[0].note:
        assert story.root_cause is not None or story.harmless
