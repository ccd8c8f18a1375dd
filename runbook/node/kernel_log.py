"""The kernel log of a node: which GPU events it holds, when they were, and how far back it reaches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from runbook.model.node import IN_TEXT_ONLY, OomKill, XidEvent
from runbook.model.units import JobId, Unknown
from runbook.node.processes import job_of_cgroup
from runbook.node.sections import NodeAnswers, printable
from runbook.node.xid import PREFIX, XidLine, read_xid

_RECOVERY_ACTION_CHANGED = 154
_EVENT_LIMIT = 400
_SKEW_IGNORED_S = 2.0
_DRIFT_S = 60.0
"""Between the times that two sources give one line."""
ANY_USER = Unknown("the line stands in syslog only, where any user of the node can write one")
LINE_BREAK = Unknown("its record in the kernel log holds a line break, so that somebody else has a part in its text")
NO_RECORD = Unknown(
    "a line of the kernel log's text says so and none of the kernel's own records of that time does: it may be forged"
)

_ISO = re.compile(r"(?P<stamp>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]\d+)(?P<zone>[+-]\d\d:?\d\d|Z)\s")
_CTIME = re.compile(r"\[(?P<stamp>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\]\s")
_UNIX = re.compile(r"(?P<stamp>\d{9,11}\.\d+)\s")
_BOOT = re.compile(r"\[\s*(?P<stamp>\d+\.\d+)\]\s")
_DROPPED = re.compile(r"dropped=\d+$")
_RECORD = re.compile(r"(?P<level>\d{1,10}),\d{1,20},(?P<since_start_us>\d{1,20}),[^;]{0,400};(?P<message>.*)$")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class NodeClock:
    """What turns the node's stamps into our epoch seconds. `ahead_s`: how far the node's clock is ahead of ours."""

    now_s: float | None = None
    uptime_s: float | None = None
    offset_s: int = 0
    ahead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when a line counts, both ends included; None: no end there."""

    since_s: float | None = None
    until_s: float | None = None

    def holds(self, time_s: float | None) -> bool | Unknown:
        if time_s is None:
            return Unknown("the line has no readable time")
        return (self.since_s is None or time_s >= self.since_s) and (self.until_s is None or time_s <= self.until_s)


@dataclass(frozen=True, slots=True)
class KernelLog:
    """GPU events of all times, oldest first, and the oldest time that the log still reaches."""

    events: tuple[XidEvent, ...] | Unknown
    covers_since_s: float | None | Unknown
    any_user_can_write: bool = False
    """A syslog file: any user of the node can put such a line there, so that none is ever in the window."""
    whole_records: bool = False
    """Records of /dev/kmsg: a line break that a user gave to the kernel makes no line of its own there."""


def read_clock(answers: NodeAnswers, asked_at_s: float | None) -> NodeClock:
    """The node's clock from its `node` section; a difference of up to 2 s to ours is the way there and back."""
    now_s = _number(answers.value("node", "now"))
    ahead_s = now_s - asked_at_s if now_s is not None and asked_at_s is not None else 0.0
    return NodeClock(
        now_s=now_s,
        uptime_s=_number(answers.value("node", "uptime")),
        offset_s=_offset_s(answers.value("node", "offset")),
        ahead_s=ahead_s if abs(ahead_s) > _SKEW_IGNORED_S else 0.0,
    )


def line_time(line: str, clock: NodeClock) -> tuple[float | None, str]:
    """Epoch seconds by our clock and the rest of a line of `dmesg` (iso, -T, plain) or `journalctl -o short-unix`.

    `dmesg -T` has no zone: the node's present one is taken. None: the line has no stamp that can be read."""
    for pattern in (_ISO, _CTIME, _UNIX, _BOOT):
        match = pattern.match(line)
        if match:
            stamp_s = _stamp_s(pattern, match, clock)
            return (None if stamp_s is None else stamp_s - clock.ahead_s), line[match.end():]
    return None, line


def event_of(message: str, time_s: float | None, witness: bool | Unknown = IN_TEXT_ONLY) -> XidEvent | None:
    """The event of a line without its stamp, not yet placed in the job's window. None: no GPU event."""
    found = read_xid(message)
    if found is None:
        return None
    return XidEvent(
        code=found.code, time_s=time_s, bus_id=found.bus_id, line=printable(message), pid=found.pid,
        on_job_gpu=Unknown("which GPUs the job had is not known on the node"), witness=witness,
    )


def read_kernel_log(
    answers: NodeAnswers, clock: NodeClock, window: Window
) -> KernelLog:
    """The kernel's own records, and of text the log that reaches back furthest, with what only the other one has. An
    event without a readable time is neither in nor out of the window. A simulated node's text is all the log there is,
    and nobody's but the simulation's."""
    names = ("kernel_log", "journal")
    logs = [log for name in names if (log := _read_one(answers, name, clock)) is not None]
    records = answers.get("kmsg")
    if records is not None and records.text.strip():
        logs.append(_read_records(records.lines, clock))
    return joined(logs, window)


def joined(logs: Sequence[KernelLog], window: Window) -> KernelLog:
    """Several logs of one node as one, as `read_kernel_log` says."""
    readable = [log for log in logs if not isinstance(log.events, Unknown)]
    if not readable:
        refusals = [log.events for log in logs if isinstance(log.events, Unknown)]
        why = refusals[0] if refusals else Unknown("the node did not answer on its kernel log")
        return KernelLog(why, why)
    best = min(readable, key=_reach)
    whole = [log for log in readable if log.whole_records]
    found = _together(whole)
    records = tuple(event for event, _ in found)
    reach = min((_reach(log) for log in whole), default=float("inf"))
    for event, log in _together([log for log in readable if not log.whole_records]):
        witness = _witness_of_text(event, records, reach)
        if witness is not None:
            found.append((replace(event, witness=witness), log))
    found.sort(key=lambda each: (each[0].time_s is None, each[0].time_s or 0.0))
    placed = tuple(
        replace(
            event,
            in_window=ANY_USER if log.any_user_can_write else window.holds(event.time_s),
        )
        for event, log in found
    )
    return KernelLog(merged(placed)[-_EVENT_LIMIT:], best.covers_since_s)


def _together(logs: Sequence[KernelLog]) -> list[tuple[XidEvent, KernelLog]]:
    """The events of the log that reaches back furthest, and of the others what it does not have."""
    if not logs:
        return []
    best = min(logs, key=_reach)
    found = [(event, best) for event in _known(best.events)]
    have = {(event.code, event.bus_id) for event, _ in found}
    for other in logs:
        found += [(event, other) for event in _known(other.events) if (event.code, event.bus_id) not in have]
    return found


def _witness_of_text(event: XidEvent, records: Sequence[XidEvent], reach: float) -> Unknown | None:
    """What a line of text is worth beside the kernel's own records, which reach back to `reach`. None: nothing, as a
    record says the same."""
    alike = [one for one in records if (one.code, one.bus_id) == (event.code, event.bus_id)]
    if event.time_s is None:
        return None if alike else IN_TEXT_ONLY
    if event.time_s >= reach:
        return None if alike else NO_RECORD
    again = any(one.line == event.line and abs((one.time_s or 0.0) - event.time_s) <= _DRIFT_S for one in alike)
    return None if again else IN_TEXT_ONLY


def merged(events: Iterable[XidEvent]) -> tuple[XidEvent, ...]:
    """Repeated lines become one event with a count: the same code, GPU, window and worth, and texts that differ in
    numbers only (driver 595 repeats Xid 48 once a channel; page faults differ in the address). The first time stays.
    Changes of the recovery action stay one by one: their order says how it ended."""
    first: dict[tuple[object, ...], XidEvent] = {}
    for position, event in enumerate(events):
        found = read_xid(event.line)
        key: tuple[object, ...] = (event.code, event.bus_id, event.in_window, event.witness, _shape(found))
        if event.code == _RECOVERY_ACTION_CHANGED:
            key = (position,)
        seen = first.get(key)
        if seen is None:
            first[key] = event
            continue
        last_s = event.time_s if event.last_time_s is None else event.last_time_s
        first[key] = replace(seen, count=seen.count + event.count, last_time_s=last_s or seen.last_time_s)
    return tuple(first.values())


def _shape(line: XidLine | None) -> str:
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", f"{line.switch_severity} {line.text}") if line else ""


def record_of(line: str, clock: NodeClock) -> tuple[float | None, str] | None:
    """Epoch seconds by our clock and the message of a record of /dev/kmsg, with what the kernel had escaped. None: it
    is none, or a process of root has written it and not the kernel."""
    match = _RECORD.match(line)
    if match is None or int(match["level"]) >> 3:
        return None
    escaped = match["message"].encode("utf-8", "replace")
    message = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), escaped).decode("utf-8", "replace")
    if clock.now_s is None or clock.uptime_s is None:
        return None, message
    return clock.now_s - clock.uptime_s + int(match["since_start_us"]) / 1e6 - clock.ahead_s, message


def _read_records(lines: Iterable[str], clock: NodeClock) -> KernelLog:
    events: list[XidEvent] = []
    oldest_s: float | None = None
    dropped = False
    for line in lines:
        dropped = dropped or bool(_DROPPED.match(line))
        record = record_of(line, clock)
        if record is None:
            continue
        time_s, message = record
        if time_s is not None and (oldest_s is None or time_s < oldest_s):
            oldest_s = time_s
        first, *more = re.split(r"[\r\n]", message)
        event = event_of(" ".join((first, *more)), time_s, LINE_BREAK if more else True)
        if event is not None:
            events.append(event)
    return KernelLog(tuple(events), _covers(events, oldest_s, dropped), whole_records=True)


def _covers(events: Sequence[XidEvent], oldest_s: float | None, dropped: bool) -> float | Unknown:
    if dropped:
        times = [event.time_s for event in events if event.time_s is not None]
        return min(times) if times else Unknown("the kernel log holds more GPU lines than were read")
    return Unknown("no line of the kernel log has a readable time") if oldest_s is None else oldest_s


def _read_one(answers: NodeAnswers, name: str, clock: NodeClock) -> KernelLog | None:
    section = answers.get(name)
    simulated = bool(answers.value("node", "simulated"))
    if section is None:
        return None
    if section.exit_code is None:
        return _unknown("the kernel log did not come within the time that was given")
    events: list[XidEvent] = []
    oldest_s: float | None = None
    dropped = False
    for line in section.lines:
        if _DROPPED.match(line):
            dropped = True
            continue
        time_s, message = line_time(line, clock)
        if time_s is not None and (oldest_s is None or time_s < oldest_s):
            oldest_s = time_s
        event = event_of(message, time_s, True if simulated else IN_TEXT_ONLY)
        if event is not None:
            events.append(event)
    if oldest_s is None and not events:
        return _unknown(_refusal(section.text, name))
    return KernelLog(tuple(events), _covers(events, oldest_s, dropped), whole_records=simulated)


def _refusal(text: str, name: str) -> str:
    if "not permitted" in text or "Permission denied" in text:
        return "the kernel log may not be read by this user (kernel.dmesg_restrict=1 needs root or CAP_SYSLOG)"
    first = printable(text.strip().split("\n")[0], 120)
    return f"no kernel log could be read ({name}: {first or 'no line'})"


def _unknown(reason: str) -> KernelLog:
    return KernelLog(Unknown(reason), Unknown(reason))


def _known(events: tuple[XidEvent, ...] | Unknown) -> tuple[XidEvent, ...]:
    return () if isinstance(events, Unknown) else events


def _reach(log: KernelLog) -> float:
    return log.covers_since_s if isinstance(log.covers_since_s, float) else float("inf")


def _stamp_s(pattern: re.Pattern[str], match: re.Match[str], clock: NodeClock) -> float | None:
    stamp = match["stamp"]
    try:
        if pattern is _ISO:
            zone = "+00:00" if match["zone"] == "Z" else match["zone"]
            return datetime.fromisoformat(stamp.replace(",", ".") + zone).timestamp()
        if pattern is _CTIME:
            _, month, day, clock_time, year = stamp.split()
            hour, minute, second = (int(part) for part in clock_time.split(":"))
            zone_info = timezone(timedelta(seconds=clock.offset_s))
            when = datetime(
                int(year), _MONTHS.index(month) + 1, int(day), hour, minute, second, tzinfo=zone_info
            )
            return when.timestamp()
        if pattern is _UNIX:
            return float(stamp)
    except ValueError:
        return None
    if clock.now_s is None or clock.uptime_s is None:
        return None
    return clock.now_s - clock.uptime_s + float(stamp)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e11 else None


def _offset_s(text: str) -> int:
    if not re.fullmatch(r"[+-]\d{4}", text):
        return 0
    seconds = int(text[1:3]) * 3600 + int(text[3:5]) * 60
    return -seconds if text[0] == "-" else seconds


# Processes that a node's kernel killed for want of main memory, from its log.
#
# Two lines a kill since Linux 5.0: `oom-kill:constraint=…,oom_memcg=…,task_memcg=PATH,task=NAME,pid=N,uid=N` names the
# cgroup, `Memory cgroup out of memory: Killed process N (NAME) total-vm:…` (or `Out of memory: …`, of the whole node)
# tells it; older kernels write `Kill process N (NAME) score S or sacrifice child`. A process names itself as it likes,
# and a user may name cgroups: only how a message begins says what it is.

_KILLED = re.compile(
    PREFIX + r"(?P<group>[Mm]emory cgroup out of memory|Out of memory)[^:]{0,40}: Kill(?:ed)? process (?P<pid>\d{1,9}) "
    r"\((?P<name>.{0,32}?)\)(?:, UID \d+,)?(?: total-vm| score|,|$)"
)
_CONSTRAINT = re.compile(
    PREFIX + r"oom-kill:constraint=CONSTRAINT_(?P<kind>[A-Z]+),(?P<rest>.{0,3000}),pid=(?P<pid>\d{1,9}),"
    r"uid=(?P<uid>\d{1,10})\s*$"
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
    lines: Iterable[LogLine], window: Window
) -> tuple[OomKill, ...]:
    """The kills, oldest first, at most the newest 200. Lines of one kill, and the same line of another log, are one."""
    found: dict[int, list[OomKill]] = {}
    for line in lines:
        kill = _kill(line.text)
        if kill is None:
            continue
        inside = ANY_USER if line.any_user_can_write else window.holds(line.time_s)
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
    answers: NodeAnswers, clock: NodeClock, window: Window
) -> tuple[OomKill, ...]:
    """The same of the sections that the log's own commands wrote."""
    sections = [section for name in ("journal", "kernel_log") if (section := answers.get(name)) is not None]
    stamped = [line_time(line, clock) for section in sections for line in section.lines]
    records = answers.get("kmsg")
    if records is not None:
        stamped += [record for line in records.lines if (record := record_of(line, clock)) is not None]
    return read_oom_kills((LogLine(time_s, text) for time_s, text in stamped), window)


def _kill(text: str) -> OomKill | None:
    match = _KILLED.match(text)
    if match:
        whole_node = match["group"] == "Out of memory"
        return OomKill(int(match["pid"]), None, printable(match["name"], 32), whole_node=whole_node)
    match = _CONSTRAINT.match(text)
    if match is None:
        return None
    cgroup = _CGROUP.search(match["rest"])
    job: JobId | Unknown | None = Unknown("the line names no cgroup")
    if cgroup is not None and any(match["rest"].count(word) != 1 for word in (",task_memcg=", ",task=")):
        # A user names his cgroups and his programs as he likes.
        job = Unknown("the line names more than one cgroup or process")
    elif cgroup is not None:
        job = job_of_cgroup(cgroup["path"], int(match["uid"]))
    return OomKill(
        int(match["pid"]), None,
        name=printable(cgroup["name"], 32) if cgroup else "",
        job=job,
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
