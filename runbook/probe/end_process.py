"""Ends one leaked process on a node, and no other. Not part of the probe, which changes nothing: it is sent alone.

    python3 - '{"pid": 4711, "start_ticks": 123456, "owner": "bob", "cgroup": "0::/...", "job": "99",
                "spared": ["dcgm-exporter"], "grace_s": 10, "kill_s": 5}'

The process is held by a pidfd before it is looked at, so that no signal can reach a later process of the same number.
Where the kernel has no pidfd (before Linux 5.3) nothing is signalled. SIGTERM first; SIGKILL only when the time of
grace is over and the process, looked at again, is still the same. Answers one line of JSON: how and detail.
"""

import ctypes
import errno
import json
import os
import pwd
import re
import select
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

_PIDFD_SEND_SIGNAL = 424
_PIDFD_OPEN = 434
"""System call numbers, the same on every architecture: Python has the functions from 3.9 on only."""
_STEP_DAEMONS = ("slurmstepd", "slurmstepd-wlm")
"""The second is what Debian calls the file."""
_HOLDERS = ("sshd", "sshd-session", *_STEP_DAEMONS)
"""A process below one of these belongs to a session or step that lives."""
_STEP_OF = re.compile(r"slurmstepd: \[(?P<job>\d{1,12})[.\]]")
"""How slurmstepd calls itself: "slurmstepd: [99.0]", "[99.batch]", "[99.extern]"."""
_DEAD = ("Z", "X", "x")
"""States of a process that has ended and that nobody has waited for: it holds nothing, and has no command line."""
_MOST_ANCESTORS = 200


class Refused(Exception):
    """The process must not be ended; the text says why."""


def main(arguments: List[str]) -> int:
    """Exit status 0 whenever an answer was printed."""
    try:
        how, detail = end(json.loads(arguments[0]))
    except Refused as refusal:
        how, detail = "refused", str(refusal)
    sys.stdout.write(json.dumps({"how": how, "detail": detail}) + "\n")
    return 0


def end(target: Dict[str, Any]) -> Tuple[str, str]:
    """How it went, and words on it. Raises `Refused`."""
    pid = int(target["pid"])
    if pid < 2:
        raise Refused("%d is no process that may be ended" % pid)
    try:
        descriptor = _open(pid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return "gone", "there is no process %d any more" % pid
        if error.errno in (errno.ENOSYS, errno.EPERM):
            raise Refused(
                "this kernel gives no hold on a process (pidfd, Linux 5.3): a signal could reach another process"
            ) from error
        raise Refused("process %d could not be held: %s" % (pid, error.strerror)) from error
    try:
        return _end(descriptor, pid, target)
    finally:
        os.close(descriptor)


def _end(descriptor: int, pid: int, target: Dict[str, Any]) -> Tuple[str, str]:
    if not _is_there(descriptor, pid, target):
        return "gone", "process %d has ended by itself" % pid
    started = time.monotonic()
    _send(descriptor, pid, signal.SIGTERM)
    if _gone(descriptor, float(target["grace_s"])):
        return "terminated", "it ended %.1f s after SIGTERM" % (time.monotonic() - started)
    try:
        if not _is_there(descriptor, pid, target):
            return "terminated", "it ended %.1f s after SIGTERM" % (time.monotonic() - started)
        _send(descriptor, pid, signal.SIGKILL)
    except Refused as refusal:
        return "still_there", "it did not end by SIGTERM, and SIGKILL was not sent: %s" % refusal
    if _gone(descriptor, float(target["kill_s"])):
        return "killed", "it ended by SIGKILL, %.1f s after a SIGTERM that did not end it" % (
            time.monotonic() - started
        )
    return "still_there", "it did not end by SIGKILL within %s s (state %s)" % (target["kill_s"], _state(pid))


def _is_there(descriptor: int, pid: int, target: Dict[str, Any]) -> bool:
    """Whether the process lives and is the one that was meant. Raises `Refused` when it is another."""
    try:
        _check(pid, target)
    except Refused:
        if _gone(descriptor, 0):
            return False
        raise
    return not _gone(descriptor, 0)


def _check(pid: int, target: Dict[str, Any]) -> None:
    """Raises `Refused` unless the held process is the one that was meant: with the start time that an earlier look
    found it has had its number since then, and so when it was held."""
    stat = _stat(pid)
    if stat is None:
        raise Refused("process %d cannot be seen by this user" % pid)
    name, fields = stat
    if fields[19] != str(target["start_ticks"]):
        raise Refused("process %d is another one by now: its start time differs" % pid)
    users = _users(pid)
    if not users or "0" in users:
        raise Refused("process %d runs as root, or its user cannot be read" % pid)
    if len(set(users)) > 1 or str(target["owner"]) not in (users[0], _name(users[0])):
        raise Refused("process %d does not run as %s" % (pid, target["owner"]))
    cgroups = _read("/proc/%d/cgroup" % pid).splitlines()
    if target["cgroup"] not in cgroups:
        raise Refused("process %d is in another cgroup by now" % pid)
    names = {name, *_programs(pid)}
    for spared in target["spared"]:
        # The kernel's own name of a program has 15 characters.
        if spared in names or spared[:15] == name:
            raise Refused("process %d is %s, of the driver or of monitoring" % (pid, spared))
    if pid in _line_of(os.getpid()):
        raise Refused("process %d is one that this check runs under" % pid)
    line = _line_of(pid)
    for ancestor in line[1:]:
        above = _stat(ancestor)
        if above is not None and above[0] in _HOLDERS:
            raise Refused("process %d belongs to a living %s (%d)" % (pid, above[0], ancestor))
    if line[-1] > 1 or _stat(1) is None:
        raise Refused("who started process %d cannot be seen by this user" % pid)
    step = _step_of(str(target["job"]))
    if step is not None:
        raise Refused("job %s has a step that lives here (slurmstepd %d)" % (target["job"], step))


def _step_of(job: str) -> Optional[int]:
    """A living slurmstepd of the job. A program that made itself a daemon (Ray does) is not below it, and is the job's
    all the same; and a job of another cluster's Slurm is known to nobody whom we ask."""
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        stat = _stat(pid)
        if stat is None or stat[0] not in _STEP_DAEMONS or stat[1][0] in _DEAD:
            continue
        said = _read("/proc/%d/cmdline" % pid)
        match = _STEP_OF.match(said)
        if match is None and said.split("\0")[1:2] == ["infinity"]:
            continue  # slurmd's own, which only keeps the cgroup of all steps
        if match is None or match.group("job") == job:
            return pid
    return None


def _line_of(pid: int) -> List[int]:
    """The process and those above it, up to 1."""
    line = [pid]
    while line[-1] > 1 and len(line) < _MOST_ANCESTORS:
        stat = _stat(line[-1])
        if stat is None:
            break
        line.append(int(stat[1][1]))
    return line


def _stat(pid: int) -> Optional[Tuple[str, List[str]]]:
    """Name, and the fields after it, of /proc/PID/stat: state, parent, … the 20th is the start time in ticks."""
    text = _read("/proc/%d/stat" % pid)
    head, bracket, rest = text.rpartition(")")
    fields = rest.split()
    return (head.partition("(")[2], fields) if bracket and len(fields) > 19 else None


def _state(pid: int) -> str:
    stat = _stat(pid)
    return stat[1][0] if stat else "unknown"


def _users(pid: int) -> List[str]:
    """Real, effective, saved and file-system user number."""
    for line in _read("/proc/%d/status" % pid).splitlines():
        if line.startswith("Uid:"):
            return line.split()[1:]
    return []


def _name(user: str) -> str:
    try:
        return pwd.getpwuid(int(user)).pw_name
    except (KeyError, ValueError):
        return ""


def _programs(pid: int) -> List[str]:
    """The program's names by its file and by its command line."""
    names = [_read("/proc/%d/cmdline" % pid).split("\0")[0]]
    try:
        names.append(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        pass
    return [name.rsplit("/", 1)[-1] for name in names]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(65536)
    except OSError:
        return ""


def _gone(descriptor: int, wait_s: float) -> bool:
    """A pidfd can be read once the process has ended, all its threads with it."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(wait_s * 1000))


def _open(pid: int) -> int:
    if hasattr(os, "pidfd_open"):
        return int(os.pidfd_open(pid))
    return _call(_PIDFD_OPEN, ctypes.c_long(pid), ctypes.c_long(0))


def _send(descriptor: int, pid: int, number: signal.Signals) -> None:
    """Signal the held process. One that has ended meanwhile is fine. Raises `Refused`."""
    try:
        if hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(descriptor, number)
        else:
            nothing = ctypes.c_void_p()
            _call(
                _PIDFD_SEND_SIGNAL, ctypes.c_long(descriptor), ctypes.c_long(int(number)), nothing, ctypes.c_long(0)
            )
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise Refused("%s may not be sent to process %d: %s" % (number.name, pid, error.strerror)) from error


def _call(number: int, *arguments: Any) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    answer = int(library.syscall(ctypes.c_long(number), *arguments))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
