"""Logs named on the command line, whose owner may change them while they are read."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from runbook.adapters.log_files import PathStream, find_logs, open_logs
from runbook.errors import NotFound


def test_a_file_that_becomes_a_fifo_is_an_error_and_no_wait(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(b"step 1\n")
    stream = PathStream(str(path), 7)
    assert stream.read_at(memoryview(bytearray(4)), 0) == 4
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError):
        stream.read_at(memoryview(bytearray(4)), 0)


def test_a_link_out_of_a_folder_to_a_file_of_another_owner_is_left_out_and_said(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "rank0.log").write_text("step 1\n")
    (elsewhere / "mine.txt").write_text("step 2\n")
    (folder / "inside.log").symlink_to(folder / "rank0.log")
    (folder / "mine.log").symlink_to(elsewhere / "mine.txt")
    (folder / "system.log").symlink_to("/proc/self/environ")
    files = {Path(one.path).name: one for one in find_logs([str(folder)])}
    assert not files["mine.log"].refused
    assert "link" in files["system.log"].refused
    assert len(files) == 3  # the link inside is the same file
    if os.getuid() == 0:
        os.chown(elsewhere / "mine.txt", 12345, -1)
        files = {Path(one.path).name: one for one in find_logs([str(folder)])}
        assert "another owner" in files["mine.log"].refused


def test_a_link_that_points_elsewhere_when_it_is_opened_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "rank0.log").write_text("step 1\n")
    (tmp_path / "mine.txt").write_text("step 2\n")
    (folder / "a.log").symlink_to(tmp_path / "mine.txt")
    files = find_logs([str(folder)])
    (folder / "a.log").unlink()
    (folder / "a.log").symlink_to("/etc/hostname")
    with ExitStack() as stack, pytest.raises(NotFound):
        open_logs(files, stack)


def test_a_fifo_in_the_place_of_a_file_is_not_waited_for_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("step 1\n")
    files = find_logs([str(path)])
    path.unlink()
    os.mkfifo(path)
    with ExitStack() as stack, pytest.raises(NotFound):
        open_logs(files, stack)
