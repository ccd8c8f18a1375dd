"""A process of the owner's answers in place of the child that opens his files: it holds nobody up and fills nothing."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import pwd
import resource
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from runbook.adapters import files, process
from runbook.adapters.files import OwnerFiles
from runbook.adapters.identity import Identity, identity_of
from runbook.adapters.log_watch.follower import Follower
from runbook.adapters.process.helpers import Helper, Helpers
from runbook.adapters.silent import FileSystems
from runbook.errors import Hung, NotAllowed, RunbookError, Unavailable
from runbook.model.units import UserName

ME = UserName(getpass.getuser())
BEGIN = "import array, json, os, socket, time\nline = socket.socket(fileno=0)\n"
TRICKLE = "while True:\n    line.sendall(b' ')\n    time.sleep(0.2)\n"
DESCRIPTORS = (
    "zero = os.open('/dev/zero', os.O_RDONLY)\n"
    "for _ in range(2000):\n"
    "    line.sendmsg([b' '], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [zero]))])\n"
    "time.sleep(60)\n"
)
ENDLESS = "while True:\n    line.sendall(b'[],' * 10000)\n"
LINES = (
    "line.sendall(b'{\"entries\": 100000}\\n')\n"
    "while True:\n    line.sendall(b'[\"/a\", false, 1, 1.0]\\n' * 1000)\n"
)
PATHS = "while True:\n    line.sendall(b'[\"FOLDER/' + b'a' * 60000 + b'\", false, 1, 1.0]\\n')\n"
NUMBERS = "while True:\n    line.sendall(b'[\"FOLDER/a\", false, ' + b'9' * 4000 + b', 1.0]\\n')\n"
MOMENT = "line.sendall(b'[\"FOLDER/a\", false, 1, NaN]\\n' * 100000)\n"
ELSEWHERE = "line.sendall(b'[\"/etc/shadow\", false, 1, 1.0]\\n' * 100000)\n"
WORDS = "line.close()\nif os.fork() == 0:\n    while True:\n        os.write(2, b'\\xff' * 65536)\n"
NONSENSE = "line.sendall(b'[' * 60000 + b'\\n')\ntime.sleep(60)\n"


@pytest.mark.parametrize(
    "answer", [TRICKLE, DESCRIPTORS, ENDLESS, LINES, NONSENSE, WORDS],
    ids=[
        "a blank now and then", "descriptors", "an endless line", "more entries than were asked for", "deep brackets",
        "an endless complaint",
    ],
)
@pytest.mark.parametrize("ask", ["open", "entries", "replace"])
def test_what_answers_in_its_place_is_ended_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, ask: str
) -> None:
    monkeypatch.setattr(files, "_source", lambda: BEGIN + answer)
    owners = OwnerFiles(timeout_s=2.0, most_entries=1000, apart=True)
    log = tmp_path / "out.log"
    log.write_text("step 1\n")
    before = len(os.listdir("/proc/self/fd")) + 1  # the line to the one that starts those who open files
    memory_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RunbookError) as told:
        if ask == "open":
            owners.open(str(log), ME)
        elif ask == "entries":
            owners.entries(str(tmp_path), ME)
        else:
            owners.replace(str(log), ME, b"x", "0" * 64)
    assert isinstance(told.value, Hung) or answer is not TRICKLE
    assert len(os.listdir("/proc/self/fd")) <= before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kib < 64 << 10


@pytest.mark.parametrize(
    "answer", [PATHS, NUMBERS, MOMENT, ELSEWHERE],
    ids=["paths without end", "sizes of no disk", "no moment", "a place that was not asked for"],
)
def test_a_forged_listing_is_refused_and_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str
) -> None:
    begin = BEGIN + "line.sendall(b'{\"entries\": 100000}\\n')\n"
    monkeypatch.setattr(files, "_source", lambda: begin + answer.replace("FOLDER", str(tmp_path)))
    resident = _resident_bytes()
    with pytest.raises(NotAllowed, match="the list of files is none"):
        OwnerFiles(timeout_s=5.0, apart=True).entries(str(tmp_path), ME)
    assert _resident_bytes() - resident < 200 << 20


STEALS = """
import ctypes, os, sys
pid, libc = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True)
held, tries, owned = os.pidfd_open(pid), 0, 0
while owned < 100:
    tries += 1
    owned += "Uid:\\t%d" % os.getuid() in open("/proc/%d/status" % pid).read()
    if libc.syscall(438, held, 0, 0) >= 0:
        sys.exit("took its socket at try %d" % tries)
    try:
        sys.exit("sees what it has open: %s" % os.listdir("/proc/%d/fd" % pid))
    except PermissionError:
        pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("way", ["a program of its own", "a fork"])
def test_its_owners_other_processes_cannot_take_what_it_holds_from_its_first_moment_on(way: str) -> None:
    nobody = identity_of(UserName("nobody"))
    ours, theirs = socket.socketpair()
    helpers = Helpers(files._source)
    with theirs:
        if way == "a fork":
            helper: Helper | subprocess.Popen[bytes] = helpers.start(nobody, theirs)
            pid = _pid_at_the_other_end(os.getpid(), _inode(theirs))
        else:
            helper = process.start_as(files._source(), nobody, theirs)
            pid = helper.pid
    try:
        thief = subprocess.run(
            ("/usr/bin/python3", "-c", STEALS, str(pid)), user=nobody.uid, group=nobody.gid, extra_groups=(),
            capture_output=True, text=True, check=False, timeout=60,
        )
        assert (thief.returncode, thief.stderr) == (0, "")
        assert helper.poll() is None
    finally:
        ours.close()
        _end(helper, nobody)


def _inode(line: socket.socket) -> int:
    return os.fstat(line.fileno()).st_ino


def _pid_at_the_other_end(ours: int, inode: int) -> int:
    """Of the process below one of ours that holds a socket, once it is there: the last that was started."""
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s:
        for child in _below(ours):
            for its in _below(child):
                with contextlib.suppress(OSError):
                    if os.stat(f"/proc/{its}/fd/0").st_ino == inode:
                        return its
    raise AssertionError("no helper was started")


def _below(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(child) for task in os.listdir(f"/proc/{pid}/task")
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        ]
    return []


def _end(helper: Helper | subprocess.Popen[bytes], identity: Identity) -> None:
    assert helper.stop() if isinstance(helper, Helper) else process.stop(helper, identity)
    for stream in (helper.stdout, helper.stderr):
        if stream is not None:
            stream.close()


ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


@ROOT_ONLY
def test_each_has_its_owners_rights_and_nothing_of_anothers(tmp_path: Path) -> None:
    """One process starts them all, for whatever owner comes next."""
    owners = [UserName("nobody"), UserName("daemon"), UserName("nobody"), ME]
    for name in set(owners):
        (tmp_path / name).write_text(name)
        os.chown(tmp_path / name, pwd.getpwnam(name).pw_uid, 0)
        (tmp_path / name).chmod(0o400)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    opened = OwnerFiles(apart=True)
    for owner in owners:
        for name in set(owners):
            if owner == name:
                assert opened.read_small(str(tmp_path / name), owner).decode() == name
            else:
                with pytest.raises(NotAllowed):
                    opened.open(str(tmp_path / name), owner)


SHOWS = (
    "import json, os, socket\nline = socket.socket(fileno=0)\n"
    "held = sorted(int(name) for name in os.listdir('/proc/self/fd'))\n"
    "tells = [held, os.getgroups(), os.getresuid(), os.getsid(0) == os.getpid(), dict(os.environ)]\n"
    "line.sendall(json.dumps(tells).encode())\n"
)


@ROOT_ONLY
@pytest.mark.parametrize("apart", [False, True])
def test_what_another_user_planted_where_anybody_may_is_no_file_of_the_owners(tmp_path: Path, apart: bool) -> None:
    """Case: a log that Slurm wrote on a node's /tmp, and somebody else on the service's /tmp under the same path."""
    nobody = pwd.getpwnam("nobody").pw_uid
    with tempfile.TemporaryDirectory(dir=Path.home()) as made:
        group = Path(made)
        for folder in (anybodys := group / "tmp", his := anybodys / "his"):
            folder.mkdir()
        anybodys.chmod(0o1777)
        linked = group / "link.out"
        linked.symlink_to(anybodys / "x-1.out")
        for path in (anybodys / "x-1.out", his / "x-1.out", group / "shared.yaml"):
            path.write_text("CUDA out of memory\n")
            os.chown(path, nobody, nobody)
        own = anybodys / "own.out"
        own.write_text("step 1\n")
        opened = OwnerFiles(apart=apart)
        for path in (anybodys / "x-1.out", his / "x-1.out", linked):
            with pytest.raises(NotAllowed, match="not this owner's"):
                opened.read_small(str(path), ME)
            assert OwnerFiles(apart=apart, ours=(str(path),)).read_small(str(path), ME), "whoever runs us named it"
        assert opened.read_small(str(group / "shared.yaml"), ME) and opened.read_small(str(own), ME)
        follower = Follower(["out of memory"], 120.0, lambda owner: None)
        told: list[object] = []
        for log in (anybodys / "x-1.out", linked, group / "shared.yaml"):
            follower.follow(str(log), (0, 0, ()), [str(log)])
        for now_s in (1000.0, 1001.0, 1002.0):
            told += [one["suspected"] for one in follower.round(now_s, time.time())]
        assert set(told) == {str(group / "shared.yaml")}


@ROOT_ONLY
def test_a_fork_holds_nothing_but_its_line_and_has_no_way_back() -> None:
    nobody = identity_of(UserName("nobody"))
    helpers = Helpers(lambda: SHOWS)
    lines, helping = [], []
    for _ in range(3):  # those of the first are still there when the last is started
        ours, theirs = socket.socketpair()
        with theirs:
            helping.append(helpers.start(nobody, theirs))
        lines.append(ours)
    for line, helper in zip(lines, helping, strict=True):
        with line:
            held, groups, users, leads, environment = json.loads(line.recv(1 << 16))
        assert held[:3] == [0, 1, 2] and len(held) == 4, "and what lists them"
        assert set(groups) <= set(nobody.groups) and users == [nobody.uid] * 3 and leads
        assert set(environment) <= {"PATH", "LANG", "LC_CTYPE"}
        assert helper.wait(20) == 0
        _end(helper, nobody)


def test_a_helper_that_outlives_the_one_that_started_it_is_not_called_gone() -> None:
    """Case: reads that hang were counted as held no more once the forking process was killed."""
    helpers = Helpers(lambda: "import os, socket, time\nos.write(0, str(os.getpid()).encode())\ntime.sleep(120)\n")
    before = set(_below(os.getpid()))
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            helper = helpers.start(identity_of(ME), theirs)
        pid = int(ours.recv(20))
        (starter,) = set(_below(os.getpid())) - before
        os.kill(starter, signal.SIGKILL)
    try:
        assert not helper.stop() and helper.poll() is None
    finally:
        os.kill(pid, signal.SIGKILL)
    assert helper.wait(20) != 0
    helper.stderr.close()


def test_where_the_one_that_starts_them_is_gone_another_takes_its_place(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text("step 1\n")
    opened = OwnerFiles(apart=True)
    before = set(_below(os.getpid()))
    assert opened.read_small(str(log), ME) == b"step 1\n"
    (starter,) = set(_below(os.getpid())) - before
    os.kill(starter, signal.SIGKILL)
    until_s = time.monotonic() + 20
    while Path(f"/proc/{starter}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until_s
    assert opened.read_small(str(log), ME) == b"step 1\n"


@pytest.mark.parametrize(
    ("does", "refused"),
    [
        ("os.fork()", "Resource temporarily unavailable"),
        ("start_new_thread(os.getpid, ())", "can't start new thread"),
        ("bytearray(600 << 20)", "MemoryError"),
        ("os.truncate(os.memfd_create('fill'), 1)", "File too large"),
    ],
)
def test_what_takes_it_over_stays_one_small_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str, refused: str
) -> None:
    """The kernel lets root alone start as many as it likes; the owner has processes of his own beside it."""
    owner = UserName("nobody") if os.geteuid() == 0 else ME
    honest = files._source()
    begun = "found = list_entries"
    monkeypatch.setattr(files, "_source", lambda: honest.replace(begun, f"{does}; {begun}"))
    with subprocess.Popen(("sleep", "60"), user=pwd.getpwnam(owner).pw_uid) as own, pytest.raises(
        Unavailable, match=refused
    ):
        try:
            OwnerFiles(apart=True).entries("/", owner)
        finally:
            own.kill()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_listing_is_cut_where_its_paths_are_long(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(8):
        folder = folder / ("d" * 200)
        folder.mkdir()
    for number in range(30):
        (folder / f"{number:0200}").touch()
    found = OwnerFiles(apart=True, most_entries=100).entries(str(tmp_path), ME, depth=9)
    assert len(found) < 38 and sum(len(entry.path) for entry in found) <= 100 * 250


def test_a_listing_comes_whole_where_it_is_answered_honestly(tmp_path: Path) -> None:
    names = [f"step_{number}\n\udcff" for number in range(3000)]
    for name in names:
        (tmp_path / name).touch()
    found = OwnerFiles(apart=True).entries(str(tmp_path), ME)
    assert [entry.path for entry in found] == sorted(str(tmp_path / name) for name in names)


def test_owners_who_stop_their_helpers_have_no_file_system_called_silent_for_others() -> None:
    systems = FileSystems()
    for owner in ("eve", "mallory"):
        with pytest.raises(Hung), systems.asked("/train.log", owner):
            raise Hung("it did not answer")
    with systems.asked("/train.log", "eve"), systems.asked("/train.log", "mallory"):
        for owner in ("eve", "mallory"):
            with pytest.raises(Hung, match="did not answer others"), systems.asked("/train.log", owner):
                pytest.fail("asked once more while it waits")
        with systems.asked("/train.log", "alice"):
            pass
