"""Processes on the GPUs: whose they are, of which Slurm job, how old; who holds the devices; the MPS daemons.

All from `/proc`. A process's own environment is its own word; it is shown beside the cgroup, never instead of it.
"""

import os
import pwd
import re
from typing import Any, Dict, List, Optional, Set

from . import host
from .worker import Send, clean, unknown

VARIABLES = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_LOCALID", "LOCAL_RANK")
"""No other variable leaves the node."""
_DEVICE = re.compile(r"/dev/nvidia(?:\d+|-uvm)\Z")
_SCAN_LIMIT = 65536
_READ_LIMIT = 1 << 20
_HOLDER_LIMIT = 1000

Part = Dict[str, Any]


def read(send: Send, root: str, pids: List[int]) -> None:
    """Say `process` for each PID first (this may hang on one that sleeps in the kernel), then `jobs`, `holders`,
    `mps`, and last `account`, the users' names: those may have to come from a directory service."""
    boot = _Boot(root)
    uids = set()
    for pid in pids:
        send({"asking": "process %d" % pid})
        found = one(root, pid, boot)
        uids.add(found.get("uid"))
        send({"process": found})
    send({"asking": "the cgroups of Slurm's jobs"})
    send({"jobs": host.jobs(root)})
    send({"asking": "all processes"})
    send(_all(root))
    for uid in sorted(each for each in uids if each is not None):
        send({"asking": "the names of users"})
        send({"account": [uid, _account(uid, root)]})


class _Boot:
    """What turns ticks into ages."""

    def __init__(self, root: str) -> None:
        self.ticks = os.sysconf("SC_CLK_TCK")
        self.uptime_s: Optional[float] = None
        words = _text(os.path.join(root, "proc/uptime")).split()
        try:
            self.uptime_s = float(words[0])
        except (ValueError, IndexError):
            pass


def one(root: str, pid: int, boot: _Boot) -> Part:
    """One process; `gone` when there is none: it has ended, or lives in another PID namespace."""
    folder = os.path.join(root, "proc", str(pid))
    status = _text(os.path.join(folder, "status"))
    found = re.search(r"^Uid:\s*(\d+)", status, re.M)
    if not found:
        return {"pid": pid, "gone": True}
    uid = int(found.group(1))
    state = re.search(r"^State:\s*(\S)", status, re.M)
    stat = _text(os.path.join(folder, "stat")).strip()
    lines = [line for line in _text(os.path.join(folder, "cgroup")).split("\n") if line]
    environment = _environment(os.path.join(folder, "environ"))
    return {
        "pid": pid, "gone": False, "uid": uid, "user": "", "state": state.group(1) if state else None,
        "stat": clean(stat, 600), "age_s": _age_s(stat, boot),
        "cgroups": [clean(line, 300) for line in host.telling(lines)],
        "slurm": host.job_of(lines) if lines else unknown("its cgroup could not be read"),
        "environment": environment,
    }


def _age_s(stat: str, boot: _Boot) -> Any:
    """Field 22 is the start in ticks after boot; the name in field 2 may hold blanks and brackets."""
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or not fields[19].isdigit() or boot.uptime_s is None:
        return unknown("its start time could not be read")
    return max(0.0, boot.uptime_s - int(fields[19]) / float(boot.ticks))


def _environment(path: str) -> Part:
    """The variables above, or why they may not be read."""
    try:
        with open(path, "rb") as handle:
            data = handle.read(_READ_LIMIT)
    except OSError as error:
        return unknown("this user may not read it (%s)" % (error.strerror or "refused"))
    found = {}
    for item in data.split(b"\0"):
        name, _, value = item.partition(b"=")
        key = name.decode("ascii", "replace")
        if key in VARIABLES and key not in found:
            found[key] = clean(value.decode("utf-8", "replace"), 100)
    return found


def _account(uid: int, root: str) -> str:
    """The user's name; of another root's users only the number is known here."""
    if root != "/":
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _all(root: str) -> Part:
    """Who has an NVIDIA device open (memory can be held by one that NVML does not list), and the MPS daemons."""
    holders: List[Part] = []
    mps: List[Part] = []
    hidden = 0
    for pid in _pids(root)[:_SCAN_LIMIT]:
        folder = os.path.join(root, "proc", str(pid))
        name = _text(os.path.join(folder, "comm")).strip()
        if name.startswith("nvidia-cuda-mps"):
            words = _text(os.path.join(folder, "cmdline")).split("\0")
            program = os.path.basename(words[0]) if words[0] else name
            mps.append({"pid": pid, "name": clean(program, 60)})
        try:
            devices = _open_devices(os.path.join(folder, "fd"))
        except OSError as error:
            hidden += error.errno == 13
            continue
        if devices and len(holders) < _HOLDER_LIMIT:
            holders.append({"pid": pid, "name": clean(name, 60), "devices": sorted(devices)})
    return {"holders": holders, "holders_hidden": hidden, "mps": mps}


def _open_devices(folder: str) -> Set[str]:
    """The NVIDIA devices among the open files of a process. Raises `OSError` where they may not be listed."""
    devices = set()
    for number in os.listdir(folder):
        try:
            target = os.readlink(os.path.join(folder, number))
        except OSError:
            continue  # closed since
        if _DEVICE.match(target):
            devices.add(target)
    return devices


def _pids(root: str) -> List[int]:
    try:
        return sorted(int(name) for name in os.listdir(os.path.join(root, "proc")) if name.isdigit())
    except OSError:
        return []


def _text(path: str) -> str:
    """A small file's text, "" when it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return handle.read(_READ_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""
