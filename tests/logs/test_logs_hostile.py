"""Logs made to break or to delay the reader: it neither crashes, nor grows, nor takes more than its share of time."""

from __future__ import annotations

import gzip
import io
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runbook.adapters.log_files import on_threads
from runbook.adapters.silent import PlainFile
from runbook.locations import data_folder
from runbook.logs.reader import LogReader
from runbook.logs.search import LiteralSearch, scan
from runbook.logs.signatures import load_signatures
from runbook.logs.signatures.signature_document import load_samples
from runbook.model.log import LogStory
from runbook.report.vocabulary.sentences import in_words

FOLDER = data_folder("playbooks") / "oom" / "signatures"
SIGNATURES = load_signatures(FOLDER)
READER = LogReader(SIGNATURES)
SAMPLES = [sample.line.encode() for entry in load_samples(FOLDER) for sample in entry.samples]
NEAR_MISSES = [line.encode() for entry in load_samples(FOLDER) for line in entry.near_misses]
FRAMINGS = [
    b"", b"[rank3]: ", b" 3: ", b"12: [rank12]: ", b"[default3]:[rank11]: ", b"(Worker pid=77, ip=10.0.0.7) ",
    b"[1,4]<stderr>: ", b"gpu-22: ", b"gpu-22:400:401 [3] NCCL INFO ", b"\x1b[36m(Actor pid=3)\x1b[0m ",
    b"2026-03-01 10:00:00,123 - ", b"[E301 10:00:00.123456789 File.cpp:1] ", b"[lrdn0137:0]:[Rank 0] ", b"\r 10%|#  | ",
]
OOM = next(line for line in SAMPLES if b"has a total capacity of" in line).replace(b"\n", b" ")


def read(content: bytes, path: str = "train.out") -> LogStory:
    return READER.read([(path, io.BytesIO(content), len(content))], job=None)


LINES = st.one_of(
    st.tuples(st.sampled_from(FRAMINGS), st.sampled_from(SAMPLES + NEAR_MISSES)).map(b"".join),
    st.tuples(
        st.sampled_from(FRAMINGS), st.sampled_from(SAMPLES), st.integers(0, 200), st.binary(max_size=12),
        st.integers(0, 400),
    ).map(lambda one: one[0] + one[1][: one[2]] + one[3] + one[1][one[4]:]),
    st.tuples(st.sampled_from(FRAMINGS), st.binary(max_size=120)).map(b"".join),
    st.binary(max_size=300),
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(LINES, max_size=40), st.sampled_from([b"\n", b"\r\n", b"\r", b""]))
def test_no_splice_of_real_words_breaks_the_reading(lines: list[bytes], end: bytes) -> None:
    content = end.join(lines)
    story = read(content)
    for finding in (story.root_cause, *story.candidates, *story.harmless):
        if finding is not None:
            assert 0 <= finding.offset <= len(content)
            line = content[: finding.offset].count(b"\n") + 1
            nowhere = finding.signature == "RANK-SILENT" and finding.line == 0  # what was not said may stand nowhere
            assert nowhere or finding.line == line
            assert len(finding.excerpt) <= 2100


@pytest.mark.parametrize("odd", ["\x0b", "\x1c", "\xa0", "\u2028"])
def test_white_space_of_any_kind_in_front_of_a_message_breaks_nothing(odd: str) -> None:
    """Python's split() takes more characters for white space than a blank and a tab."""
    story = read("".join(f"{odd}{sample.decode()}\n" for sample in SAMPLES).encode())
    assert story.root_cause is not None


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(LINES, max_size=30), st.sampled_from(["gz", "zst"]), st.integers(0, 4000), st.binary(max_size=8))
def test_no_damage_to_a_packed_log_breaks_the_reading(
    lines: list[bytes], kind: str, place: int, damage: bytes
) -> None:
    content = b"\n".join(lines)
    packed = gzip.compress(content, 1) if kind == "gz" else zstandard.compress(content, 1)
    at = place % (len(packed) + 1)
    story = read(packed[:at] + damage + packed[at + len(damage):], f"train.out.{kind}")
    assert len(story.sources) == 1


def test_a_million_lines_of_everything_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """In a process of its own, whose memory is measured from outside."""
    source = random.Random(11)
    pieces = [source.choice(FRAMINGS) + source.choice(SAMPLES + NEAR_MISSES + [b"an ordinary line"] * 60_000).replace(
        b"\n", b" ") for _ in range(50_000)]
    path = tmp_path / "million.log"
    with path.open("wb") as file:
        for _ in range(20):
            source.shuffle(pieces)
            file.write(b"\n".join(pieces) + b"\n")
    seconds, peak_mib = measured(path)
    assert peak_mib < 150
    assert seconds < 60


def measured(*paths: Path) -> tuple[float, float]:
    """Processor seconds and peak memory in MiB of a process that reads files.

    Not ru_maxrss: at its start a process has that of the one that started it."""
    program = (
        "import sys, resource\nfrom pathlib import Path\nfrom runbook.logs.reader import LogReader\n"
        "from runbook.adapters.silent import PlainFile\n"
        "from runbook.adapters.log_files import on_threads\n"
        "from runbook.logs.signatures import load_signatures\n"
        f"reader = LogReader(load_signatures(Path({str(FOLDER)!r})))\n"
        "paths = [Path(one) for one in sys.argv[1:]]\n"
        "reader.read([(str(one), PlainFile(one), one.stat().st_size) for one in paths], in_order=on_threads(2))\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(used.ru_utime + used.ru_stime, int(peak.split()[1]) / 1024)\n"
    )
    done = subprocess.run((sys.executable, "-c", program, *map(str, paths)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, peak = done.stdout.split()
    return float(seconds), float(peak)


def long_line(size: int) -> bytes:
    return b"a" * size + b"\n" + OOM + b"\n"


def long_line_of_a_literal(size: int) -> bytes:
    return b"CUDA out of memory. " * (size // 20) + b"\n" + OOM + b"\n"


def nothing_but_nul(size: int) -> bytes:
    return b"\0" * size + b"\n" + OOM + b"\n"


def a_literal_on_every_line(size: int) -> bytes:
    line = b"[rank3]: something was out of memory once, they say\n"
    return line * (size // len(line)) + OOM + b"\n"


def a_real_message_on_every_line(size: int) -> bytes:
    lines = [b"[rank%d]: " % (number % 64) + OOM + b"\n" for number in range(size // len(OOM))]
    return b"".join(lines)


def a_near_miss_on_every_line(size: int) -> bytes:
    line = OOM[: len(OOM) // 2] + b"\n"
    return line * (size // len(line)) + OOM + b"\n"


def escapes(size: int) -> bytes:
    return b"\x1b[31mout\x1b[0m\x1b]0;of memory\x07" * (size // 30) + b"\n" + OOM + b"\n"


def not_utf8(size: int) -> bytes:
    return b"\xff\xfe CUDA out of memory \xc0\x80\n" * (size // 27) + OOM + b"\n"


def carriage_returns(size: int) -> bytes:
    return b"\r 50%|#####     | 500/1000 [00:10<00:10, 50.0it/s]" * (size // 52) + b"\n" + OOM + b"\n"


def empty_lines(size: int) -> bytes:
    return b"\n" * size + OOM + b"\n"


def tracebacks_without_end(size: int) -> bytes:
    return b"[rank1]: Traceback (most recent call last):\n" * (size // 44) + OOM + b"\n"


def brackets(size: int) -> bytes:
    return b"[" * size + b"\n" + OOM + b"\n"


HOSTILE: list[Callable[[int], bytes]] = [
    long_line, long_line_of_a_literal, nothing_but_nul, a_literal_on_every_line, a_real_message_on_every_line,
    a_near_miss_on_every_line, escapes, not_utf8, carriage_returns, empty_lines, tracebacks_without_end, brackets,
]


def cost(content: bytes) -> float:
    """Processor seconds, the better of two: a garbage collection is nobody's fault."""
    figures = []
    for _ in range(2):
        started = time.process_time()
        story = read(content)
        figures.append(time.process_time() - started)
        assert story.root_cause is not None
    return min(figures)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda one: one.__name__)
def test_twice_as_much_costs_no_more_than_three_times(hostile: Callable[[int], bytes]) -> None:
    half, whole = cost(hostile(1_000_000)), cost(hostile(2_000_000))
    assert whole < 3 * half + 0.15, f"{half:.2f} s, then {whole:.2f} s"
    assert whole < 6.0


def test_a_line_of_a_hundred_megabytes_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "line.log"
    with path.open("wb") as file:
        for _ in range(100):
            file.write((b"x" * 986 + b" CUDA error: \xff") * 1000)
        file.write(b"\n" + OOM + b"\n")
    seconds, peak_mib = measured(path)
    assert peak_mib < 150
    assert seconds < 30


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_decompression_bomb_stays_small(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"train.log.{kind}"
    block = b"\n" * (1 << 20)
    with path.open("wb") as file:
        if kind == "gz":
            with gzip.GzipFile(fileobj=file, mode="wb") as packer:
                for _ in range(150):
                    packer.write(block)
        else:
            with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed:
                for _ in range(150):
                    packed.write(block)
    assert path.stat().st_size < 1 << 20
    _, peak_mib = measured(path)
    assert peak_mib < 150


def test_a_zst_log_is_unpacked_on_the_way_frame_by_frame() -> None:
    first, second = zstandard.compress(b"quiet\n" * 9), zstandard.compress(OOM + b"\n")
    story = read(first + second, "train.out.zst")
    assert story.root_cause is not None
    assert story.root_cause.line == 10
    assert "zstd" in story.sources[0].note


def test_a_cut_zst_log_is_read_as_far_as_it_goes() -> None:
    source = random.Random(3)
    noise = b"".join(b"%d\n" % source.getrandbits(60) for _ in range(200_000))
    packed = zstandard.compress(OOM + b"\n" + noise)
    story = read(packed[: len(packed) // 2] + b"\0" * 40, "train.out.zst")
    assert story.root_cause is not None
    assert "damaged or cut" in story.sources[0].note


@pytest.mark.parametrize("engine", ["hyperscan", "automata"])
@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.one_of(st.sampled_from(SAMPLES), st.binary(max_size=40)), max_size=12))
def test_each_engine_finds_the_lines_that_hold_a_literal(engine: str, pieces: list[bytes]) -> None:
    pytest.importorskip(engine if engine == "hyperscan" else "ahocorasick_rs")
    search = LiteralSearch((literal for one in SIGNATURES.events for literal in one.literals), (), engine)
    content = b"\n".join(piece.replace(b"\n", b" ") for piece in pieces)
    found = {content.count(b"\n", 0, at) for at in search.positions(memoryview(content))}
    lines = content.split(b"\n")
    assert found == {number for number, line in enumerate(lines) if any(one in line for one in search.literals)}
    for line in lines:
        assert set(search.within(line)) == {one for one in search.literals if one in line}


def test_chunks_of_a_plain_file_tell_the_same_as_a_stream(tmp_path: Path) -> None:
    """A file is read by several threads in chunks that overlap, a stream in one piece after the other."""
    source = random.Random(5)
    words = [one.replace(b"\n", b" ") for one in SAMPLES] + [b"nothing of note, at great length" * 4] * 40_000
    lines = [source.choice(FRAMINGS[:6]) + source.choice(words) for _ in range(80_000)]
    content = b"\n".join(lines) + b"\n"
    assert len(content) > 2 * scan.CHUNK_BYTES
    path = tmp_path / "train.out"
    path.write_bytes(content)
    with PlainFile(path) as file:
        by_threads = READER.read([("train.out", file, len(content))], job=None, in_order=on_threads(2))
    by_stream = read(content)
    assert by_threads.root_cause == by_stream.root_cause
    assert {one.signature for one in by_threads.candidates} == {one.signature for one in by_stream.candidates}
    assert by_threads.progress.last_step == by_stream.progress.last_step


def test_a_file_that_is_cut_while_it_is_read_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "train.out"
    path.write_bytes(OOM + b"\n" + b"filler\n" * 3_000_000)

    def cut(done: int, total: int) -> None:
        if path.stat().st_size > 5 << 20:
            with path.open("r+b") as file:
                file.truncate(5 << 20)

    with PlainFile(path) as file:
        story = READER.read([(str(path), file, path.stat().st_size)], progress=cut, in_order=on_threads(2))
    assert story.root_cause is not None
    assert story.sources[0].bytes_read <= story.sources[0].size_bytes


def test_reading_leaves_no_threads_and_no_memory_behind(tmp_path: Path) -> None:
    import threading

    path = tmp_path / "train.out"
    path.write_bytes(b"filler\n" * 2_000_000 + OOM + b"\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(6):
        with PlainFile(path) as file:
            READER.read([(str(path), file, path.stat().st_size)], in_order=on_threads(2))
    deadline = time.monotonic() + 5
    while any(one.name == "runbook-log-search" for one in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [one for one in threading.enumerate() if one.name == "runbook-log-search"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 << 10


def test_task_lists_of_hundreds_of_thousands_cost_neither_memory_nor_time() -> None:
    def lists(count: int) -> bytes:
        return "".join(f"srun: error: gpu-21: tasks {one}-99999: Killed\n" for one in range(count)).encode()

    took = {}
    for count in (50, 800):
        began = time.perf_counter()
        story = read(lists(count))
        took[count] = time.perf_counter() - began
        assert any("only the first task is read" in in_words(note) for note in story.notes)
        assert len(story.collateral) < 400_000
    assert took[800] < 16 * took[50] + 1.0


def test_utf_16_is_named_and_random_bytes_are_no_text() -> None:
    text = "step 1 | loss 2.0\nCUDA out of memory. Tried to allocate 2.00 GiB.\n" * 50
    assert "UTF-16" in read(text.encode("utf-16")).sources[0].note
    assert "UTF-16" in read(text.encode("utf-16-le")).sources[0].note
    noise = random.Random(7).randbytes(1 << 16)
    assert "binary" in read(noise).sources[0].note
    assert not read(text.encode()).sources[0].note
    assert not read(("日志 " * 50 + "\n").encode("gbk") * 40).sources[0].note


def test_a_file_that_becomes_shorter_while_it_is_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"step 1 | loss 2.0\n" * 100)
    with PlainFile(path) as stream:
        story = READER.read([(str(path), stream, 50_000)], job=None)
    assert "shorter" in story.sources[0].note


def test_long_lines_that_nearly_match_are_looked_at_less_after_the_first_and_that_is_said() -> None:
    near = (
        b"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB "
        b"is free. "
    )
    line = (near * 200)[:15_000] + b"\n"
    story = read(line * 40 + b"[rank3]: " + OOM + b"\n")
    assert any("long lines" in in_words(note) for note in story.notes)
    named = [one for one in (story.root_cause, *story.candidates) if one is not None and one.rank == 3]
    assert {one.signature[:7] for one in named} == {"PT-CUDA"}
