"""The stamps of time in launcher logs: where a line's own stamp may stand, and what moment it means."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

_DAY_S = 86_400
_REGION = 200
"""How far into a line its own stamp can begin."""

_ISO = r"\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)(?![\w:]))?"
_CTIME = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}"
LEADING = re.compile(rf"\[?(?:{_ISO}|{_CTIME})\]?[ |]{{0,3}}")
"""A stamp that stands in front of the launchers' prefixes or between them."""
COLLECTOR = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) ")
"""A stamp as container runtimes and log collectors put in front of every line."""
STREAM = re.compile(r"(?:stdout|stderr) [FP] ")
"""What a container runtime puts behind its stamp: the stream, and whether the line is full or a part of one."""
TAGGED = re.compile(
    r"(?P<keys>(?:[A-Za-z_][\w.]{0,30}=[^\s=]{1,80} ){0,4})"
    r"(?:[\[(]?(?P<level>TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)[\])]?(?: [-|]|:)? )?"
)
"""What a log shipper puts in front of every line: keys with values, and a level. It may match nothing."""

_STAMP = re.compile(
    r"(?<![\w/.:-])(?:"
    r"(?P<iso>(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"(?: ?(Z|UTC|GMT|[+-]\d\d:?\d\d)(?![\w:]))?)"
    r"|(?P<ctime>(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<name>[A-Z][a-z]{2}) (?P<day>[ \d]\d) (?P<clock>\d\d:\d\d:\d\d)"
    r" (?P<year>\d{4}))"
    r"|(?P<glog>[IWEFCD](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?=[ \]]))"
    r"|(?P<short>(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?=[ \]])))"
)
_MONTHS = {name: number for number, name in enumerate(
    ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1)}

_GROUPED = re.compile(r"\[[^\[\]]{0,120}\]|\([^()]{0,160}\)|<[^<>]{0,40}>")
_LEVEL = re.compile(
    r"(?i:trace|debug|info|notice|warn|warning|error|critical|fatal|severe)|[IWEFDC]|[\[({|*\-:;,.>#=]{1,8}|\d{1,6}:"
)
_TAG = re.compile(r"[\w.@/+-]{1,80}(?:[:|,]|:[\w.@/+-]{0,80}:)")
_RAISED = re.compile(r"(?:Error|Exception|Interrupt|Warning):$")
_SLURM = re.compile(r"\b(?:JOB|STEP) \S{1,40} ON \S{1,255} CANCELLED AT $")


def read_time(text: str, started_s: float | None) -> float | None:
    """A line's own stamp as epoch seconds; one that a message only mentions is not taken. Without a zone it is UTC.

    `started_s` (when the job began, epoch seconds) gives stamps without a year theirs ("[E1121 10:00:00.123"), over a
    New Year too; None leaves those unread."""
    for found in _STAMP.finditer(text[: _REGION + 40]):
        if found.start() > _REGION:
            return None
        if not _own(text[: found.start()]):
            return None
        moment = _moment(found, started_s)
        if moment is not None:
            return moment
    return None


def _own(before: str) -> bool:
    """Whether what stands before a stamp is nothing but prefixes: brackets, levels, names that end in a colon."""
    if not before or _SLURM.search(before):
        return True
    words = _GROUPED.sub(" ", before).replace("[", " ").replace("(", " ").split()
    if len(words) > 6:
        return False
    return all(
        (_LEVEL.fullmatch(word) or _TAG.fullmatch(word)) and not _RAISED.search(word) for word in words
    )


def _moment(found: re.Match[str], started_s: float | None) -> float | None:
    try:
        if found["iso"]:
            year, month, day, hour, minute, second, digits, zone = found.groups()[1:9]
            moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=_zone(zone))
            return moment.timestamp() + _fraction(digits)
        if found["ctime"]:
            hour, minute, second = found["clock"].split(":")
            moment = datetime(
                int(found["year"]), _MONTHS.get(found["name"], 0), int(found["day"]), int(hour), int(minute),
                int(second), tzinfo=UTC,
            )
            return moment.timestamp()
        whole = found["glog"] or found["short"]
        index = found.re.groupindex["glog" if found["glog"] else "short"]
        parts = found.groups()[index: index + 6]
        if started_s is None or whole is None:
            return None
        return _nearest(tuple(int(part) for part in parts[:5]), started_s) + _fraction(parts[5])
    except (ValueError, OverflowError):
        return None


def _nearest(parts: tuple[int, ...], started_s: float) -> float:
    """A moment without a year, in the year that puts it behind the job's start (clocks may differ by a day)."""
    month, day, hour, minute, second = parts
    year = datetime.fromtimestamp(started_s, tz=UTC).year
    for candidate in (year - 1, year, year + 1):
        try:
            moment = datetime(candidate, month, day, hour, minute, second, tzinfo=UTC).timestamp()
        except ValueError:  # 29 February of another year
            continue
        if moment >= started_s - _DAY_S:
            return moment
    raise ValueError("no such day near the job's start")


def _zone(written: str | None) -> timezone:
    if written is None or written in ("Z", "UTC", "GMT"):
        return UTC
    sign = -1 if written[0] == "-" else 1
    digits = written[1:].replace(":", "")
    return timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))


def _fraction(digits: str | None) -> float:
    return int(digits) / 10 ** len(digits) if digits else 0.0
