"""The node itself: its clock, its name, as whom the probe runs and from where it looks."""

import os
import pwd
import sys
import time
from typing import Any, Dict, List

from . import cgroups
from .words import clean, unknown
from .worker import Send

Part = Dict[str, Any]
_GPU_FOLDER = "proc/driver/nvidia/gpus"
_HOST_PIDS = "pid:[4026531836]"
"""Where /proc/self/ns/pid points on a host: the number is the kernel's own constant (PROC_PID_INIT_INO)."""


def read(send: Send, root: str) -> None:
    """Say `node`: name, clock, user, point of view, the driver's own list of GPUs, memory in bytes; then `user`, for
    which the node may have to ask a directory service that does not answer."""
    uid = os.geteuid()
    send({"node": {
        "hostname": clean(os.uname().nodename, 255), "now_s": time.time(), "uptime_s": _uptime_s(root),
        "ticks_per_s": os.sysconf("SC_CLK_TCK"), "kernel": clean(os.uname().release, 100),
        "python": "%d.%d.%d" % tuple(sys.version_info[:3]), "user": str(uid), "uid": uid,
        "inside": inside(root), "slurm_cgroup": cgroups.slurm_folder(root), "driver_gpus": driver_gpus(root),
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
            if cgroups.job_of(handle.read().split("\n")) is not None:
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
