"""What launchers put in front of a line, one by one, each only where the file is known to have it; and the stamps of
time among them: where a line's own stamp may stand, and what moment it means.

Sources: srun's write_labelled_message.c, torchelastic's tail_log.py, Open MPI's iof_base_output.c,
openpmix' pmix_iof.c, Ray's worker.py, pdsh's dsh.c.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

from runbook.logs.lines.log_line import FileProfile, PrefixFacts, file_profile, named_file, short_name
from runbook.model.units import NodeName

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


PREFIXES_AT_MOST = 10
_PREFIX_CHARACTERS = 400
_LOST_COLOUR = re.compile(r"\[\d{0,3}(?:;\d{1,3}){0,4}m ?")
"""A colour whose ESC byte a web page or an editor took away."""
LABEL = re.compile(r"(?:P(\d{1,3}) )?( {0,8}\d{1,6}):(?: |$)")
ROLE = re.compile(r"\[([A-Za-z_][\w-]{0,30}?)(\d{1,4})\]:")
RANK_AS_ROLE = re.compile(r"\[rank(\d{1,6})\]:\[rank(\d{1,6})\]:")
"""torchrun's role may be called "rank" itself: then its local rank stands in front of PyTorch's own prefix."""
BARE = re.compile(r"\[(\d{1,6})\]:")
MPI = re.compile(
    r"\[[\w.@+-]{1,120},(?:mpirank:)?(\d{1,6})(?:,[\w.-]{1,60})?\](?:\[([\w.-]{1,80}):(\d{1,9})\])?<std(?:out|err|diag)>:"
)
_RAY = re.compile(
    r"\(([A-Za-z_][^()\n]{0,80}(?:\(([^()\n]{0,80})\))?[^()\n]{0,40}?) pid=(\d{1,9})(?:, ip=([\w.:]{3,45}))?\) ?"
)
_RAY_SYSTEM = re.compile(r"\((raylet|gcs_server|dashboard|autoscaler)(?:, ip=([\w.:]{3,45})| \+[\dhms.]{1,20})?\) ?")
_NAME = re.compile(r"[A-Za-z_][\w.]{0,60}")
_NUMBERED = re.compile(r"(?:_[A-Z]{0,4}\d{1,5}){1,6}$")
_ENGINE_RANK = re.compile(r"^(?!\w*(?:PP|DP)[1-9])\w{0,40}_TP(\d{1,3})(?!\d)")
_ACTOR_RANK = re.compile(r"(?:^|[ ,])(?:world_)?rank=(\d{1,6})(?=$|[ ,])")
NODE_LOCAL = re.compile(r"\[([A-Za-z][A-Za-z0-9.-]{1,60}):(\d{1,3})\]:? ?")
HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,80}):(?: |$)")
PIPED = re.compile(r"([\w.-]{1,80}) {0,30}\| ?")
_FILE = re.compile(r"([\w./-]{1,200}\.(?:log|out|err|txt))(?::\d{1,9}:|:| \|) ?")
_LOG_NAME = re.compile(r"log[._-]?\d|\.(?:log|out|err|txt)$")
SAGEMAKER = re.compile(r"(?:[\w-]{1,40}-)?(algo-\d{1,5})(?:-\w{1,20})?$")
CONTAINER = re.compile(r"([\w.-]{3,80}) ([\w.-]{1,60}) ")
_SOURCE_FILE = re.compile(r"\.(?:py|cpp|cc|cu|cuh|c|h|hpp|go|rs)$")
def prefixes(text: str, file: FileProfile, said: PrefixFacts) -> tuple[int, int]:
    """Where the line's own text begins, and where it would begin if the stamps in front of it were prefixes too."""
    position = kept = 0
    for _ in range(PREFIXES_AT_MOST):
        first = text[position:position + 1]
        stop = _site_prefix(text, position, file, said) if file.prefixes else position
        if stop == position and first:
            stop = _formed(text, position, file, said)
        if stop == position:
            if first == "[":
                stop = _bracketed(text, position, file, said)
            elif first == "(":
                stop = _ray(text, position, said)
            elif first:
                stop = _named(text, position, file, said)
        if stop > position:
            kept = position = stop
        elif first and (found := LEADING.match(text, position)):
            position = found.end()
            if file.habits.collected and not said.stamped and kept == found.start():
                kept = position = _behind_collector(text, found)
            said.stamped = True
        elif file.habits.tagged and kept == position and not said.tagged and (
            (found := TAGGED.match(text, position)) and found.end() > position
        ):
            said.tagged = True
            kept = position = _behind_tags(found, file, said)
        else:
            break
    return kept, position


def _behind_collector(text: str, stamp: re.Match[str]) -> int:
    """Behind a collector's stamp and one separator: further spaces are the line's own indentation."""
    words = len(stamp[0].rstrip(" |"))
    bar = stamp[0].find("|", words)
    position = stamp.start() + (bar + 1 if bar >= 0 else words)
    position += text[position:position + 1] == " "
    found = STREAM.match(text, position)
    return found.end() if found else position


def _behind_tags(found: re.Match[str], file: FileProfile, said: PrefixFacts) -> int:
    said.level = found["level"] or said.level
    for pair in found["keys"].split():
        key, _, value = pair.partition("=")
        if key in ("node", "host", "hostname") and said.node is None and any(one.isalpha() for one in value):
            if not file.nodes or short_name(value) in file.nodes:
                said.node = NodeName(short_name(value))
        elif key in ("rank", "local_rank", "pid") and getattr(said, key) is None and value.isdecimal():
            setattr(said, key, int(value[:12]))
    return found.end()


def _formed(text: str, position: int, file: FileProfile, said: PrefixFacts) -> int:
    """Behind a prefix in one of the documents' forms: those that this file was seen to have, and those that cannot be
    anything else. A second rank behind the first is a group's own numbering, and the line's text."""
    if text.startswith("[rank", position) and said.local_rank is None and (found := ROLE.match(text, position)) and (
        "rank" in file.habits.roles or RANK_AS_ROLE.match(text, position)
    ):
        said.local_rank = int(found[2])
        return _behind_space(text, found.end(), file)
    for form in file.forms_at(text[position]):
        if (found := form.pattern.match(text, position)) is None:
            continue
        facts = {name.partition("__")[0]: words for name, words in found.groupdict().items() if words is not None}
        if "world_size" in facts:
            number = int(facts["rank"]) - file.habits.from_one
            if number >= int(facts.pop("world_size")) and form.learned:
                continue  # it counts something else
            facts["rank"] = str(number)
        if said.rank is not None and int(facts.get("rank", said.rank)) != said.rank:
            return position
        for name, words in facts.items():
            if name == "node":
                said.node = NodeName(short_name(words))
            elif name in ("level", "voice"):
                setattr(said, name, words)
            else:
                setattr(said, name, int(words))
        if "voice" in facts:
            _region(said, found.end())
        return found.end()
    return position


def _bracketed(text: str, position: int, file: FileProfile, said: PrefixFacts) -> int:
    found: re.Match[str] | None
    if (found := ROLE.match(text, position)) and found[1] in file.habits.roles:
        said.local_rank = int(found[2])
        return _behind_space(text, found.end(), file)
    elif found := MPI.match(text, position):
        said.rank = int(found[1])
        if found[2]:
            said.node, said.pid = NodeName(short_name(found[2])), int(found[3])
        return _behind_space(text, found.end(), file)
    elif file.habits.bare and (found := BARE.match(text, position)):
        if file.habits.bare == "rank":
            said.rank = int(found[1])
        else:
            said.local_rank = int(found[1])
        return _behind_space(text, found.end(), file)
    elif (found := NODE_LOCAL.match(text, position)) and _is_host(found[1], file):
        said.node, said.local_rank = NodeName(short_name(found[1])), int(found[2])
    elif not (found := _LOST_COLOUR.match(text, position)):
        return position
    return found.end()


def _behind_space(text: str, position: int, file: FileProfile) -> int:
    """Some launchers put a space behind their prefix and some none; two spaces are the line's own indentation."""
    space = text[position:position + 1] == " " and (file.habits.spaced or text[position + 1:position + 2] != " ")
    return position + 1 if space else position


def _ray(text: str, position: int, said: PrefixFacts) -> int:
    if found := _RAY.match(text, position):
        said.pid, said.ip = int(found[3]), found[4] or ""
        said.voice, said.name = f"{found[1]} {found[3]} {said.ip}", _process_name(found[1])
        if rank := _ACTOR_RANK.search(found[2] or found[1]):
            said.rank = int(rank[1])
        elif rank := _ENGINE_RANK.search(found[1]):
            said.local_rank = int(rank[1])
    elif found := _RAY_SYSTEM.match(text, position):
        said.voice, said.ip, said.name = f"{found[1]} {found[2] or ''}", found[2] or "", found[1]
    else:
        return position
    return found.end()


def _process_name(words: str) -> str:
    """The name alone: vLLM counts its processes behind it ("EngineCore_DP0", "Worker_TP3", "VllmWorker rank=3")."""
    found = _NAME.match(words)
    return _NUMBERED.sub("", found[0]) if found else ""


def _named(text: str, position: int, file: FileProfile, said: PrefixFacts) -> int:
    """Prefixes of words and numbers: labels, hosts, containers. Each only where the file is known to have it."""
    habits = file.habits
    if (
        habits.label_widths and said.task is None and (found := LABEL.match(text, position))
        and len(found[2]) in habits.label_widths
    ):
        said.task, said.group = int(found[2]), int(found[1]) if found[1] else None
        return found.end()
    if (
        (file.nodes or habits.hosts) and said.node is None and (found := HOST.match(text, position))
        and (short_name(found[1]) in file.nodes or found[1] in habits.hosts)
    ):
        said.node = NodeName(short_name(found[1]))
        return found.end()
    if found := _FILE.match(text, position):  # what grep and tail put in front of a line of several files
        own = named_file(found[1])
        if (own.rank, own.local_rank, own.task) != (None,) * 3:
            said.rank, said.local_rank, said.voice = own.rank, own.local_rank, said.voice or found[1]
            said.task = own.task if said.task is None else said.task
            _region(said, found.end())
            return found.end()
    if found := PIPED.match(text, position):
        if container := SAGEMAKER.match(found[1]):
            said.node = NodeName(container[1])
        elif not habits.piped or said.voice:
            return position
        said.voice = found[1]
        if _LOG_NAME.search(found[1]):  # of several files, each line with the name of its own
            own = file_profile(found[1], ())
            said.rank, said.local_rank = own.rank, own.local_rank
            said.task = own.task if said.task is None else said.task
        _region(said, found.end())
        return found.end()
    if (
        habits.containers and not said.voice and (found := CONTAINER.match(text, position))
        and found[2] in habits.containers
    ):
        said.voice = found[0]
        _region(said, found.end())
        return found.end()
    return position


def _region(said: PrefixFacts, position: int) -> None:
    """A prefix of free words is no part of the region where a stamp may stand, unless a stamp came before it."""
    if not said.stamped:
        said.region = position


def _is_host(name: str, file: FileProfile) -> bool:
    if file.nodes:
        return short_name(name) in file.nodes
    return not _SOURCE_FILE.search(name) and (name in file.habits.hosts or any(one.isdigit() for one in name))


def _site_prefix(text: str, position: int, file: FileProfile, said: PrefixFacts) -> int:
    for pattern in file.prefixes:
        found = pattern.match(text[position: position + _PREFIX_CHARACTERS])
        if found is None or not found.end():
            continue
        words = {name: value.strip() for name, value in found.groupdict().items() if value}
        for name in ("rank", "local_rank", "pid"):
            if words.get(name, "").isdecimal():
                setattr(said, name, int(words[name]))
        if words.get("node"):
            said.node = NodeName(short_name(words["node"]))
        _region(said, position + found.end())
        return position + found.end()
    return position


def site_prefixes(expressions: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """A site's own prefixes made ready. Raises ValueError in words for the author."""
    known = ("rank", "local_rank", "node", "pid")
    patterns = []
    for expression in expressions:
        try:
            pattern = re.compile(expression)
        except re.error as error:
            raise ValueError(f"prefix {expression!r} is no regular expression: {error}") from error
        if not set(pattern.groupindex) & set(known):
            raise ValueError(f"prefix {expression!r} has no group named {', '.join(known)}, so it tells nothing")
        patterns.append(pattern)
    return tuple(patterns)
