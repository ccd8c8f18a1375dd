"""Logs named on the command line, whose owner may change them while they are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runbook.adapters.log_files import PathStream


def test_a_file_that_becomes_a_fifo_is_an_error_and_no_wait(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(b"step 1\n")
    stream = PathStream(str(path), 7)
    assert stream.read_at(memoryview(bytearray(4)), 0) == 4
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError):
        stream.read_at(memoryview(bytearray(4)), 0)
