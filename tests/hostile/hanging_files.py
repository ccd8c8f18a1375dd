"""A file system that does not answer, as one of a stopped server: mounted by this program until it is killed.

    hanging_files.py MOUNT SOURCE

shows the files of SOURCE. What a path's name says hangs for ever, in the kernel, where no signal reaches whoever waits:
`stat`, `open`, `read` or `close`, as in `hangs-at-read.log`; a folder `hangs-at-list` does when listed. Once the file
`SOURCE/stopped` is there, every request hangs. `SOURCE.waits` is there once somebody waits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.programs import require


def main() -> None:
    import mfusepy  # type: ignore[import-untyped]

    mount, source = sys.argv[1:]

    class Shown(mfusepy.Operations):  # type: ignore[misc]
        def _wait(self, path: str, what: str) -> None:
            if f"hangs-at-{what}" in path or os.path.exists(f"{source}/stopped"):
                Path(f"{source}.waits").touch()
                _for_ever()

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            self._wait(path, "stat")
            try:
                found = os.lstat(source + path)
            except OSError as error:
                raise mfusepy.FuseOSError(error.errno) from error
            names = ("st_mode", "st_size", "st_uid", "st_gid", "st_nlink", "st_mtime")
            return {name: getattr(found, name) for name in names}

        def readdir(self, path: str, fh: int) -> list[str]:
            self._wait(path, "list")
            return [".", "..", *os.listdir(source + path)]

        def open(self, path: str, flags: int) -> int:
            self._wait(path, "open")
            return os.open(source + path, os.O_RDONLY)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            self._wait(path, "read")
            return os.pread(fh, size, offset)

        def flush(self, path: str, fh: int) -> int:
            self._wait(path, "close")
            return 0

    mfusepy.FUSE(
        Shown(), mount, foreground=True, allow_other=True, attr_timeout=0, entry_timeout=0, direct_io=True,
        default_permissions=True,
    )


def _for_ever() -> NoReturn:
    while True:
        time.sleep(3600)


@contextlib.contextmanager
def mounted(mount: Path, source: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The file system while the block runs; afterwards whoever still waits for it is told that it is gone."""
    require("fusermount3")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse cannot be opened here")
    mount.mkdir(exist_ok=True)
    server = subprocess.Popen((sys.executable, __file__, str(mount), str(source)), cwd=Path(__file__).parents[2])
    try:
        deadline = time.monotonic() + 20
        while f" {mount} " not in Path("/proc/self/mountinfo").read_text(encoding="utf-8"):
            assert server.poll() is None and time.monotonic() < deadline, "it was not mounted"
            time.sleep(0.02)
        yield server
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
        subprocess.run(("umount", "--lazy", str(mount)), check=False, capture_output=True)


@dataclass(frozen=True)
class Place:
    shown: Path
    """Where the file system is mounted."""
    source: Path

    def file(self, name: str, text: str = "x\n") -> str:
        """In a folder of its own: the kernel looks for one name in a folder at a time."""
        folder = self.source / str(len(list(self.source.iterdir())))
        folder.mkdir()
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
        return str(self.shown / folder.name / name)

    def folder(self, name: str) -> str:
        above = self.source / str(len(list(self.source.iterdir())))
        (above / name).mkdir(parents=True)
        (above / name / "a.log").write_text("x\n")
        return str(self.shown / above.name / name)

    @property
    def waits(self) -> Path:
        """There once somebody waits."""
        return Path(f"{self.source}.waits")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(0o755)
    source = tmp_path / "source"
    source.mkdir()
    with mounted(tmp_path / "shown", source):
        yield Place(tmp_path / "shown", source)


if __name__ == "__main__":
    main()
