"""What every Files does: the fake, our own files, and another user's files through a child with their identity."""

from __future__ import annotations

import getpass
import hashlib
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runbook.adapters.files import OwnerFiles
from runbook.errors import NotAllowed, NotFound, Unavailable
from runbook.model.units import UserName
from runbook.ports import Files
from tests.contract.conftest import sandbox_is_up
from tests.contract.fakes import FakeFile, FakeFiles, names

REPOSITORY = Path(__file__).resolve().parents[2]


def other_user() -> str:
    """A user that is not us, when we may become one."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    return "nobody"


@dataclass
class Shelf:
    files: Files
    owner: UserName
    folder: str
    """A folder of the owner's."""
    real: bool

    def put(self, name: str, content: bytes, mode: int = 0o640) -> str:
        path = f"{self.folder}/{name}"
        if not self.real:
            assert isinstance(self.files, FakeFiles)
            self.files.files[path] = FakeFile(content)
            return path
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
        entry = pwd.getpwnam(self.owner)
        for made in (Path(path).parent, Path(path)):
            os.chown(made, entry.pw_uid, entry.pw_gid)
        os.chmod(path, mode)
        return path

    def unreadable(self) -> str:
        path = self.put("secret", b"x", 0o600)
        if isinstance(self.files, FakeFiles):
            self.files.files[path].readable_by = frozenset({"root"})
        elif self.owner != getpass.getuser():
            os.chown(path, 0, 0)
        else:
            os.chmod(path, 0)
        return path


@pytest.fixture(params=["fake", "same user", "other user"])
def shelf(request: pytest.FixtureRequest) -> Iterator[Shelf]:
    if request.param == "fake":
        yield Shelf(FakeFiles(), UserName("alice"), "/home/alice", False)
        return
    owner = getpass.getuser() if request.param == "same user" else other_user()
    folder = Path(tempfile.mkdtemp(prefix="runbook-files-"))
    entry = pwd.getpwnam(owner)
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    folder.chmod(0o711)
    yield Shelf(OwnerFiles(timeout_s=20), UserName(owner), str(folder), True)
    shutil.rmtree(folder)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_open_and_read(shelf: Shelf) -> None:
    content = bytes(range(256)) * 9000
    path = shelf.put("train 1.log", content)
    with shelf.files.open(path, shelf.owner) as stream:
        assert stream.read(10) == content[:10]
        stream.seek(-5, os.SEEK_END)
        assert stream.read() == content[-5:]
    assert shelf.files.read_small(path, shelf.owner, 100) == content[:100]


def test_what_is_not_there(shelf: Shelf) -> None:
    with pytest.raises(NotFound) as missing:
        shelf.files.open(f"{shelf.folder}/none.log", shelf.owner)
    assert f"{shelf.folder}/none.log" in str(missing.value)
    with pytest.raises(NotFound):
        shelf.files.entries(f"{shelf.folder}/none", shelf.owner)


def test_what_the_owner_may_not_read(shelf: Shelf) -> None:
    path = shelf.unreadable()
    if shelf.real and shelf.owner == "root":
        pytest.skip("root may read everything")
    with pytest.raises(NotAllowed):
        shelf.files.open(path, shelf.owner)


def test_a_folder_is_not_a_file_and_a_path_is_absolute(shelf: Shelf) -> None:
    shelf.put("logs/a.log", b"x")
    with pytest.raises(NotAllowed):
        shelf.files.open(f"{shelf.folder}/logs", shelf.owner)
    with pytest.raises(NotAllowed):
        shelf.files.open("train.log", shelf.owner)


def test_entries(shelf: Shelf) -> None:
    shelf.put("ckpt/step_10/model.pt", b"12345")
    shelf.put("ckpt/latest", b"10")
    base = f"{shelf.folder}/ckpt"
    one = shelf.files.entries(base, shelf.owner)
    assert names(one) == [f"{base}/latest", f"{base}/step_10"]
    assert [entry.is_dir for entry in one] == [False, True]
    two = shelf.files.entries(base, shelf.owner, depth=2)
    assert names(two) == [f"{base}/latest", f"{base}/step_10", f"{base}/step_10/model.pt"]
    assert two[2].size_bytes == 5
    assert two[2].modified_s > 1_500_000_000


def test_replace_keeps_a_backup_and_may_be_repeated(shelf: Shelf) -> None:
    old, new = b"#!/bin/bash\nold\n", b"#!/bin/bash\nnew\n"
    path = shelf.put("train.sh", old, 0o750)
    backup = shelf.files.replace(path, shelf.owner, new, sha256(old))
    assert backup == f"{path}.runbook-{sha256(old)[:8]}.bak"
    assert shelf.files.read_small(path, shelf.owner) == new
    assert shelf.files.read_small(backup, shelf.owner) == old
    assert shelf.files.replace(path, shelf.owner, new, sha256(old)) == backup
    assert shelf.files.read_small(backup, shelf.owner) == old
    if shelf.real:
        facts = os.stat(path)
        assert stat.S_IMODE(facts.st_mode) == 0o750
        assert facts.st_uid == pwd.getpwnam(shelf.owner).pw_uid
        assert sorted(os.listdir(shelf.folder)) == sorted([Path(path).name, Path(backup).name])


def test_replace_refuses_a_file_that_has_changed(shelf: Shelf) -> None:
    path = shelf.put("train.sh", b"edited by its owner")
    with pytest.raises(NotAllowed, match="changed"):
        shelf.files.replace(path, shelf.owner, b"new", sha256(b"as it was"))
    assert shelf.files.read_small(path, shelf.owner) == b"edited by its owner"


@pytest.fixture(params=["same user", "other user"])
def real(request: pytest.FixtureRequest) -> Iterator[Shelf]:
    owner = getpass.getuser() if request.param == "same user" else other_user()
    folder = Path(tempfile.mkdtemp(prefix="runbook-files-"))
    entry = pwd.getpwnam(owner)
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    folder.chmod(0o711)
    yield Shelf(OwnerFiles(timeout_s=20, most_entries=7), UserName(owner), str(folder), True)
    shutil.rmtree(folder)


def test_pipes_sockets_and_devices_are_refused_without_waiting(real: Shelf) -> None:
    os.mkfifo(f"{real.folder}/pipe", 0o666)
    os.chmod(f"{real.folder}/pipe", 0o666)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{real.folder}/socket")
        started = time.monotonic()
        for path in (f"{real.folder}/pipe", f"{real.folder}/socket", "/dev/zero", "/dev/tty"):
            with pytest.raises((NotAllowed, NotFound)):
                real.files.open(path, real.owner)
    assert time.monotonic() - started < 10


def test_a_link_gives_no_more_than_its_owner_may_have(real: Shelf) -> None:
    if real.owner == "root":
        pytest.skip("root may read everything")
    os.symlink("/etc/shadow", f"{real.folder}/train.log")
    with pytest.raises(NotAllowed):
        real.files.open(f"{real.folder}/train.log", real.owner)
    with pytest.raises(NotAllowed):
        real.files.replace(f"{real.folder}/train.log", real.owner, b"x", "0" * 64)


def test_a_long_listing_is_cut_from_the_deepest(real: Shelf) -> None:
    for number in range(5):
        real.put(f"ckpt/step_{number}/model.pt", b"x")
    found = names(real.files.entries(f"{real.folder}/ckpt", real.owner, depth=3))
    assert len(found) == 7
    assert [f"{real.folder}/ckpt/step_{number}" in found for number in range(5)] == [True] * 5


def test_links_in_a_circle_end(real: Shelf) -> None:
    real.put("ckpt/a", b"x")
    os.symlink(f"{real.folder}/ckpt", f"{real.folder}/ckpt/again")
    assert len(real.files.entries(f"{real.folder}/ckpt", real.owner, depth=9)) == 2


def test_replacing_through_a_link_keeps_the_link(real: Shelf) -> None:
    path = real.put("shared/train.sh", b"old")
    link = f"{real.folder}/link.sh"
    os.symlink(path, link)
    backup = real.files.replace(link, real.owner, b"new", sha256(b"old"))
    assert os.path.islink(link)
    assert Path(path).read_bytes() == b"new"
    assert os.path.dirname(backup) == os.path.dirname(path)


def test_another_file_with_the_backups_name_is_not_lost(real: Shelf) -> None:
    path = real.put("train.sh", b"old")
    theirs = real.put(f"train.sh.runbook-{sha256(b'old')[:8]}.bak", b"something else")
    with pytest.raises(NotAllowed):
        real.files.replace(path, real.owner, b"new", sha256(b"old"))
    assert Path(path).read_bytes() == b"old"
    assert Path(theirs).read_bytes() == b"something else"
    assert len(os.listdir(real.folder)) == 2


def test_a_full_disk_leaves_everything_as_it_was() -> None:
    if os.geteuid() != 0:
        pytest.skip("a small file system needs root")
    folder = Path(tempfile.mkdtemp(prefix="runbook-full-"))
    mounted = subprocess.run(("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)), check=False)
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.skip("cannot mount here")
    try:
        (folder / "train.sh").write_bytes(b"old")
        with pytest.raises(Unavailable, match="room"):
            OwnerFiles().replace(str(folder / "train.sh"), UserName("root"), b"n" * 200_000, sha256(b"old"))
        assert os.listdir(folder) == ["train.sh"]
        assert (folder / "train.sh").read_bytes() == b"old"
    finally:
        subprocess.run(("umount", str(folder)), check=True)
        folder.rmdir()


def test_a_user_that_is_not_known_here() -> None:
    with pytest.raises(NotAllowed, match="no user"):
        OwnerFiles().open("/etc/hostname", UserName("nobody-has-this-name"))


AS_SERVICE = """
import sys, time
from runbook.adapters.files import OwnerFiles
from runbook.adapters.identity import identity_of
from runbook.adapters.process import Command, run
from runbook.errors import NotAllowed, Unavailable
files = OwnerFiles(timeout_s=20)
folder = sys.argv[1]
print(files.open(folder + "/mine.txt", "sb-alice").read().decode().strip())
print([entry.path.rpartition("/")[2] for entry in files.entries(folder, "sb-alice")])
done = run(Command(("/usr/bin/id", "-un"), as_user=identity_of("sb-alice"), cwd=folder), 10)
print(done.text().strip(), done.exit_code)
env = {"SECRET": "a\\nb=c", "PATH": "/usr/bin:/bin"}
print(run(Command(("/usr/bin/env",), as_user=identity_of("sb-alice"), env=env), 10).text().count("SECRET=a\\nb=c"))
started = time.monotonic()
try:
    run(Command(("/bin/sh", "-c", "sleep 60 & sleep 61"), as_user=identity_of("sb-alice")), 1)
except Unavailable as error:
    print("stopped", "cannot be killed" in error.what, time.monotonic() - started < 5)
for user in ("root", "sb-probe"):
    try:
        files.open(folder + "/mine.txt", user)
    except NotAllowed as error:
        print("refused", "NOPASSWD" in error.next_step)
"""


@pytest.mark.cluster
@pytest.mark.skipif(not sandbox_is_up(), reason="the sandbox and its sudo rules are not there")
def test_a_service_user_acts_by_sudo_for_those_it_was_allowed() -> None:
    home = Path("/var/lib/runbook-sandbox/home/sb-alice")
    folder = Path(tempfile.mkdtemp(prefix="contract-", dir=home))
    try:
        (folder / "mine.txt").write_text("of alice\n")
        alice, service = pwd.getpwnam("sb-alice"), pwd.getpwnam("sb-runbook")
        for path in (folder, folder / "mine.txt"):
            os.chown(path, alice.pw_uid, alice.pw_gid)
        folder.chmod(0o700)
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        done = subprocess.run(
            ("/usr/bin/python3", "-c", AS_SERVICE, str(folder)),
            env={"PYTHONPATH": f"{REPOSITORY}:{packages}", "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            user=service.pw_uid, group=service.pw_gid, extra_groups=[], cwd="/", capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.stdout.splitlines() == [
            "of alice", "['mine.txt']", "sb-alice 0", "1", "stopped False True", "refused True", "refused True",
        ], done.stderr  # fmt: skip
        left = subprocess.run(("pgrep", "-u", "sb-alice", "-f", "sleep 6[01]"), capture_output=True, check=False)
        assert left.stdout == b""
    finally:
        shutil.rmtree(folder)
