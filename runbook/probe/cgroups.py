"""Which Slurm job a cgroup belongs to, and what the jobs' cgroups say of memory.

Layouts (Slurm's sources): version 1 `/slurm[_NODE]/uid_N/job_ID/step_S[/task_T]`; version 2
`…/[NODE_]slurmstepd.scope/job_ID/step_S/user/task_T`; version 2 of Slurm 26.05 with the job's SLUID
(`sEKNKTV3WPV500`: an s and 13 characters of Crockford's base 32) in the place of `job_ID`.
"""

import glob
import os
import re
from typing import Any, Dict, List, Optional, Sequence

from .words import unknown

_JOB = r"(?:job_(?P<job>\d{1,12})|(?P<sluid>s[0-9A-HJKMNP-TV-Z]{13}))"
_REST = r"(?:/step_(?P<step>[^/]+))?(?:/(?:user|slurm)(?=/|$))?(?:/task_(?P<task>[^/]+))?(?:/|$)"
_VERSION_1 = re.compile(r"/slurm(?:_(?P<node>[^/]+))?/uid_(?P<uid>\d+)/" + _JOB + _REST)
_VERSION_2 = re.compile(r"/(?:(?P<node>[^/]+)_)?slurmstepd\.scope/" + _JOB + _REST)
_ANY = re.compile(r"/slurm(?:[_/]|$)|slurmstepd\.scope")
_LIMIT_NONE = 1 << 62
"""A limit of version 1 that is none: the largest number of pages in bytes."""

Part = Dict[str, Any]


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
