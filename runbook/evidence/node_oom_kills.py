"""Processes that a node's kernel killed for want of main memory, from its log.

Two lines a kill since Linux 5.0: `oom-kill:constraint=…,oom_memcg=…,task_memcg=PATH,task=NAME,pid=N,uid=N` names the
cgroup, `Memory cgroup out of memory: Killed process N (NAME) total-vm:…` (or `Out of memory: …`, of the whole node)
tells it; older kernels write `Kill process N (NAME) score S or sacrifice child`. A process names itself as it likes,
and a user may name cgroups: only how a message begins says what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from runbook.evidence.node_answers import NodeAnswers, printable
from runbook.evidence.node_kernel_log import ANY_USER, NodeClock, in_window, line_time
from runbook.evidence.node_processes import job_of_cgroup
from runbook.evidence.xid import FRONT
from runbook.model.node import OomKill
from runbook.model.units import Unknown

_KILLED = re.compile(
    FRONT + r"(?P<group>[Mm]emory cgroup out of memory|Out of memory)[^:]{0,40}: Kill(?:ed)? process (?P<pid>\d{1,9}) "
    r"\((?P<name>.{0,32}?)\)(?:, UID \d+,)?(?: total-vm| score|,|$)"
)
_CONSTRAINT = re.compile(
    FRONT + r"oom-kill:constraint=CONSTRAINT_(?P<kind>[A-Z]+),(?P<rest>.{0,3000}),pid=(?P<pid>\d{1,9}),uid=\d+\s*$"
)
_CGROUP = re.compile(r"(?:^|,)task_memcg=(?P<path>[^,]{0,1000}),task=(?P<name>.*)$")
_SAME_S = 60.0
_LIMIT = 200


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a kernel log by our clock."""

    time_s: float | None
    text: str
    any_user_can_write: bool = False


def read_oom_kills(
    lines: Iterable[LogLine], since_s: float | None, until_s: float | None
) -> tuple[OomKill, ...]:
    """The kills, oldest first, at most the newest 200. Lines of one kill, and the same line of another log, are one."""
    found: dict[int, list[OomKill]] = {}
    for line in lines:
        kill = _kill(line.text)
        if kill is None:
            continue
        inside = ANY_USER if line.any_user_can_write else in_window(line.time_s, since_s, until_s)
        kill = replace(kill, time_s=line.time_s, in_window=inside)
        same_pid = found.setdefault(kill.pid, [])
        for at, other in enumerate(same_pid):
            if kill.time_s is None or other.time_s is None or abs(kill.time_s - other.time_s) <= _SAME_S:
                same_pid[at] = _joined(other, kill)
                break
        else:
            same_pid.append(kill)
    kills = [kill for same_pid in found.values() for kill in same_pid]
    kills.sort(key=lambda kill: kill.time_s if kill.time_s is not None else float("inf"))
    return tuple(kills[-_LIMIT:])


def oom_kills_of_answers(
    answers: NodeAnswers, clock: NodeClock, since_s: float | None, until_s: float | None
) -> tuple[OomKill, ...]:
    """The same of the sections that the log's own commands wrote."""
    sections = [section for name in ("journal", "kernel_log") if (section := answers.get(name)) is not None]
    stamped = (line_time(line, clock) for section in sections for line in section.lines)
    return read_oom_kills((LogLine(time_s, text) for time_s, text in stamped), since_s, until_s)


def _kill(text: str) -> OomKill | None:
    match = _KILLED.match(text)
    if match:
        whole_node = match["group"] == "Out of memory"
        return OomKill(int(match["pid"]), None, printable(match["name"], 32), whole_node=whole_node)
    match = _CONSTRAINT.match(text)
    if match is None:
        return None
    cgroup = _CGROUP.search(match["rest"])
    return OomKill(
        int(match["pid"]), None,
        name=printable(cgroup["name"], 32) if cgroup else "",
        job=job_of_cgroup(cgroup["path"]) if cgroup else Unknown("the line names no cgroup"),
        whole_node=match["kind"] != "MEMCG",
    )


def _joined(first: OomKill, second: OomKill) -> OomKill:
    return replace(
        first,
        time_s=first.time_s if first.time_s is not None else second.time_s,
        name=first.name or second.name,
        job=second.job if isinstance(first.job, Unknown) else first.job,
        whole_node=second.whole_node if isinstance(first.whole_node, Unknown) else first.whole_node,
        in_window=second.in_window if isinstance(first.in_window, Unknown) else first.in_window,
    )
