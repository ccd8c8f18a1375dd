"""The node itself: its clock, its name, as whom the probe runs and from where it looks; which jobs' cgroups it has.

A cgroup names a Slurm job. Layouts (Slurm's sources): version 1 `/slurm[_NODE]/uid_N/job_ID/step_S[/task_T]`; version 2
`…/[NODE_]slurmstepd.scope/job_ID/step_S/user/task_T`; version 2 of Slurm 26.05 with the job's SLUID
(`sEKNKTV3WPV500`: an s and 13 characters of Crockford's base 32) in the place of `job_ID`.
"""

import glob
import os
import pwd
import re
import sys
import time
from typing import Any, Dict, List, Optional, Sequence

from .worker import Send, clean, unknown

Part = Dict[str, Any]
_GPU_FOLDER = "proc/driver/nvidia/gpus"
_PCI_FOLDER = "sys/bus/pci/devices"
_NVIDIA, _DISPLAY = "0x10de", "0x03"
"""Vendor, and the first byte of the class: display controllers, of which those without a screen are 0x0302."""
_HOST_PIDS = "pid:[4026531836]"
"""Where /proc/self/ns/pid points on a host: the number is the kernel's own constant (PROC_PID_INIT_INO)."""
_JOB = r"(?:job_(?P<job>\d{1,12})|(?P<sluid>s[0-9A-HJKMNP-TV-Z]{13}))"
_REST = r"(?:/step_(?P<step>[^/]+))?(?:/(?:user|slurm)(?=/|$))?(?:/task_(?P<task>[^/]+))?(?:/|$)"
_VERSION_1 = re.compile(r"/slurm(?:_(?P<node>[^/]+))?/uid_(?P<uid>\d+)/" + _JOB + _REST)
_VERSION_2 = re.compile(r"/(?:(?P<node>[^/]+)_)?slurmstepd\.scope/" + _JOB + _REST)
_ANY = re.compile(r"/slurm(?:[_/]|$)|slurmstepd\.scope")
_LIMIT_NONE = 1 << 62
"""A limit of version 1 that is none: the largest number of pages in bytes."""


def read(send: Send, root: str) -> None:
    """Say `node`: name, clock, user, point of view, the driver's own list of GPUs, memory in bytes; then `user`, for
    which the node may have to ask a directory service that does not answer."""
    uid = os.geteuid()
    send({"node": {
        "hostname": clean(os.uname().nodename, 255), "now_s": time.time(), "uptime_s": _uptime_s(root),
        "ticks_per_s": os.sysconf("SC_CLK_TCK"), "kernel": clean(os.uname().release, 100),
        "python": "%d.%d.%d" % tuple(sys.version_info[:3]), "user": str(uid), "uid": uid,
        "inside": inside(root), "slurm_cgroup": slurm_folder(root), "driver_gpus": driver_gpus(root),
        "pci_gpus": pci_gpus(root),
        "memory": memory(root),
    }})
    try:
        send({"user": clean(pwd.getpwuid(uid).pw_name, 60)})
    except KeyError:
        pass


def inside(root: str) -> Any:
    """What may hide GPUs and processes from the probe: "slurm" (a job's cgroup), "container", "namespace" (a PID
    namespace that is not the host's), or None."""
    for name in (".dockerenv", "run/.containerenv"):
        if os.path.exists(os.path.join(root, name)):
            return "container"
    try:
        with open(os.path.join(root, "proc/self/cgroup")) as handle:
            if job_of(handle.read().split("\n")) is not None:
                return "slurm"
    except OSError as error:
        return unknown("/proc/self/cgroup: %s" % error.strerror)
    try:
        return None if os.readlink(os.path.join(root, "proc/self/ns/pid")) == _HOST_PIDS else "namespace"
    except OSError:
        return None


def driver_gpus(root: str) -> List[str]:
    """Bus ids as the driver lists them, a lost GPU too."""
    try:
        return sorted(clean(name, 40) for name in os.listdir(os.path.join(root, _GPU_FOLDER)))
    except OSError:
        return []


def pci_gpus(root: str) -> List[str]:
    """Addresses of NVIDIA's graphics cards as the kernel lists them: a GPU that has fallen off the bus stays, one that
    was taken out does not."""
    base = os.path.join(root, _PCI_FOLDER)
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return []
    return [
        clean(name, 40) for name in names
        if _word(os.path.join(base, name, "vendor")) == _NVIDIA
        and _word(os.path.join(base, name, "class")).startswith(_DISPLAY)
    ]


def _word(path: str) -> str:
    try:
        with open(path) as handle:
            return handle.read(16).strip()
    except (OSError, ValueError):
        return ""


def memory(root: str) -> Part:
    """The host's memory in bytes."""
    names = {"MemTotal": "total_bytes", "MemAvailable": "available_bytes", "Shmem": "shared_bytes"}
    found: Part = {name: unknown("/proc/meminfo does not say") for name in names.values()}
    try:
        with open(os.path.join(root, "proc/meminfo")) as handle:
            for line in handle:
                key, _, value = line.partition(":")
                words = value.split()
                if key in names and words and words[0].isdigit():
                    found[names[key]] = int(words[0]) * 1024
    except OSError as error:
        return unknown("/proc/meminfo: %s" % error.strerror)
    return found


def _uptime_s(root: str) -> Any:
    try:
        with open(os.path.join(root, "proc/uptime")) as handle:
            return float(handle.read().split()[0])
    except (OSError, ValueError, IndexError):
        return unknown("/proc/uptime could not be read")


def job_of(lines: Sequence[str]) -> Optional[Part]:
    """The Slurm job of the lines of a `/proc/PID/cgroup`: `job` or `sluid`, `step`, `task`, `version`.

    None: in no cgroup of Slurm's. `{"unknown": …}`: in one that names no job."""
    inside = False
    for line in lines:
        path = line.split(":", 2)[-1]
        version = 2 if line.startswith("0::") else 1
        match = (_VERSION_2 if version == 2 else _VERSION_1).search(path)
        if match:
            found = match.groupdict()
            return {
                "job": found["job"], "sluid": found["sluid"], "step": found["step"], "task": found["task"],
                "version": version,
            }
        inside = inside or bool(_ANY.search(path))
    return unknown("in a Slurm cgroup that names no job") if inside else None


def telling(lines: Sequence[str]) -> List[str]:
    """Those of Slurm's, at most 16; of a process outside Slurm the first two, since version 1 has one a controller."""
    return [line for line in lines if _ANY.search(line)][:16] or list(lines[:2])


def slurm_folder(root: str) -> str:
    """A folder of Slurm's in the cgroup tree, or "": whether Slurm keeps cgroups on this node at all."""
    base = os.path.join(root, "sys/fs/cgroup")
    for pattern in ("slurm*", "*/slurm*", "*slurmstepd.scope", "*/*slurmstepd.scope", "*/*/*slurmstepd.scope"):
        found = sorted(glob.glob(os.path.join(base, pattern)))
        if found:
            return "/" + os.path.relpath(found[0], root)
    return ""


def jobs(root: str) -> List[Part]:
    """The jobs that have a memory cgroup now, with its figures in bytes. A limit of None: there is none."""
    base = os.path.join(root, "sys/fs/cgroup")
    found = []
    for path in sorted(_folders(base))[:512]:
        version = 2 if os.path.exists(os.path.join(path, "cgroup.controllers")) else 1
        place = "/" + os.path.relpath(path, base)
        named = job_of([("0::" if version == 2 else "1:memory:") + place])
        if named is None or "unknown" in named:
            continue
        figures = _version_2(path) if version == 2 else _version_1(path)
        found.append(dict(
            {name: named[name] for name in ("job", "sluid", "version")}, path="/sys/fs/cgroup" + place, **figures
        ))
    return found


def _folders(base: str) -> List[str]:
    patterns = ["memory/slurm*/uid_*/job_*"]
    for scope in ("*slurmstepd.scope", "*/*slurmstepd.scope", "*/*/*slurmstepd.scope"):
        patterns += [scope + "/job_*", scope + "/s*"]
    return [path for pattern in patterns for path in glob.glob(os.path.join(base, pattern)) if os.path.isdir(path)]


def _version_2(path: str) -> Part:
    return {
        "limit_bytes": _bytes(path, "memory.max"), "used_bytes": _bytes(path, "memory.current"),
        "peak_bytes": _bytes(path, "memory.peak"), "oom_kills": _count(path, "memory.events"),
    }


def _version_1(path: str) -> Part:
    return {
        "limit_bytes": _bytes(path, "memory.limit_in_bytes"), "used_bytes": _bytes(path, "memory.usage_in_bytes"),
        "peak_bytes": _bytes(path, "memory.max_usage_in_bytes"), "oom_kills": _count(path, "memory.oom_control"),
    }


def _bytes(path: str, name: str) -> Any:
    try:
        with open(os.path.join(path, name)) as handle:
            text = handle.read(64).strip()
    except OSError as error:
        return unknown("%s: %s" % (name, error.strerror))
    if text == "max":
        return None
    if not text.isdigit():
        return unknown("%s is no number" % name)
    return None if int(text) >= _LIMIT_NONE else int(text)


def _count(path: str, name: str) -> Any:
    try:
        with open(os.path.join(path, name)) as handle:
            for line in handle:
                words = line.split()
                if len(words) == 2 and words[0] == "oom_kill" and words[1].isdigit():
                    return int(words[1])
    except OSError as error:
        return unknown("%s: %s" % (name, error.strerror))
    return unknown("%s counts no OOM kills on this kernel" % name)
