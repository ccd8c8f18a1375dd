"""Logs that are small on the disk and endless to a reader: holes, and packed text that unpacks to tens of gigabytes."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from runbook.adapters.log_files import find_logs, open_logs
from runbook.adapters.silent import PlainFile
from runbook.errors import NotFound
from runbook.logs.search import CHUNK_BYTES, segments_of
from runbook.logs.search.pool import MOST_BYTES

_CPU_S = 30
_MEMORY_BYTES = 1 << 30
FAILURE = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
    "79.15 GiB of which 1.00 GiB is free.\n"
)
Told = dict[str, object]


def diagnosed(path: Path) -> tuple[int, Told]:
    """What `runbook diagnose` says under limits of CPU and memory that are the kernel's and no timing."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))

    command = (sys.executable, "-m", "runbook", "diagnose", "--json", str(path))
    answer = subprocess.run(command, capture_output=True, text=True, timeout=170, preexec_fn=limit)
    assert answer.returncode >= 0 and answer.stdout, answer.stderr[-2000:]
    told: Told = json.loads(answer.stdout)
    return answer.returncode, told


def sparse(path: Path, size: int, texts: dict[int, str]) -> Path:
    with path.open("wb") as file:
        for offset, text in texts.items():
            file.seek(offset)
            file.write(text.encode())
        file.truncate(size)
    return path


@pytest.mark.parametrize("at", [0, 7 << 40, (15 << 40) - 1000])
def test_of_a_sparse_log_of_15_tb_only_what_has_blocks_is_read(tmp_path: Path, at: int) -> None:
    log = sparse(tmp_path / "slurm-7.out", 15 << 40, {at: f"step 61 loss 2.1\n{FAILURE}"})
    if log.stat().st_blocks > 1 << 20:
        pytest.skip("this file system has no holes")
    _, told = diagnosed(log)
    cause = told["root_cause"]
    assert isinstance(cause, dict) and cause["rank"] == 3
    assert cause["offset"] == at + len("step 61 loss 2.1\n")


class Endless:
    """A file of data all through, of which nothing is read here."""

    size_bytes = 15 << 40

    def read_at(self, space: memoryview, offset: int) -> int:
        return len(space)

    def next_data(self, offset: int) -> int:
        return offset


def test_of_a_log_that_is_too_large_the_head_and_the_tail_are_read_and_the_rest_is_said() -> None:
    segments = list(segments_of(0, Endless(), Endless.size_bytes))
    assert sum(one.stop - one.start for one in segments) <= MOST_BYTES + CHUNK_BYTES
    assert segments[0].first and segments[-1].last and segments[-1].stop == Endless.size_bytes
    behind = [one for one in segments if one.cut_from >= 0]
    assert behind[0].cut_from == MOST_BYTES // 2 and behind[0].start == Endless.size_bytes - MOST_BYTES // 2
    assert not any(one.count for one in behind)


def test_the_position_of_a_file_stays_where_it_was_when_its_holes_are_asked_for(tmp_path: Path) -> None:
    with PlainFile(sparse(tmp_path / "a.log", 1 << 30, {0: "step 1\n", 1 << 29: "step 2\n"})) as file:
        file.seek(3)
        assert file.next_data(1 << 20) in (1 << 29, 1 << 20)
        assert file.read(3) == b"p 1" and file.next_data((1 << 30) - 1) in (1 << 30, (1 << 30) - 1)


def packed_gzip(path: Path, text: bytes, times: int) -> None:
    path.write_bytes(gzip.compress(FAILURE.encode()) + gzip.compress(text) * times)


def packed_zstandard(path: Path, gigabytes: int) -> None:
    """A frame of blocks that each say one byte, 128 KiB of them, in four bytes (RFC 8878, 3.1.1.2)."""
    block = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"\n"
    literal = (len(FAILURE.encode()) << 3).to_bytes(3, "little") + FAILURE.encode()
    last = (1 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\n"
    frame = b"\x28\xb5\x2f\xfd" + bytes((0x00, 0x58))  # window of 2 MiB
    path.write_bytes(frame + literal + block * (gigabytes << 13) + last)


def test_a_megabyte_of_zstd_that_holds_32_gb_is_cut_and_said(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    log = tmp_path / "train.log.zst"
    packed_zstandard(log, 32)
    assert os.path.getsize(log) < 2 << 20
    _, told = diagnosed(log)
    sources = told["sources"]
    assert isinstance(sources, list) and "cut at byte" in sources[0]["note"]
    cause = told["root_cause"]
    assert isinstance(cause, dict) and cause["rank"] == 3


def test_gzip_of_the_same_line_is_cut_and_an_ordinary_one_is_not(tmp_path: Path) -> None:
    packed_gzip(tmp_path / "bomb.log.gz", b"\n" * (16 << 20), 100)
    packed_gzip(tmp_path / "small.log.gz", b"\n" * (16 << 20), 10)
    for name, cut in (("bomb.log.gz", True), ("small.log.gz", False)):
        sources = diagnosed(tmp_path / name)[1]["sources"]
        assert isinstance(sources, list) and ("cut at byte" in sources[0]["note"]) == cut


def test_a_log_of_a_folder_that_became_a_link_since_it_was_listed_is_not_read(tmp_path: Path) -> None:
    """Root reads a user's folder; the user swaps in a link to another user's file."""
    share, private = tmp_path / "share", tmp_path / "private.log"
    share.mkdir()
    private.write_text("another user's\n")
    (share / "rank_0.log").write_text("step 1\n")
    files = find_logs([str(share)])
    (share / "rank_0.log").unlink()
    (share / "rank_0.log").symlink_to(private)
    with ExitStack() as stack, pytest.raises(NotFound, match="another file took its name"):
        open_logs(files, stack)
