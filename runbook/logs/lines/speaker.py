"""Who said a line: its prefixes taken off, however they are stacked, coloured, broken by another process's line.

NCCL's own form is of its debug.cc; the launchers' are in `prefixes`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from runbook.logs.lines.json_records import Record, record_of
from runbook.logs.lines.log_line import FileProfile, LogLine, PrefixFacts, PrefixProfile, short_name
from runbook.logs.lines.prefixes import (
    BARE,
    COLLECTOR,
    CONTAINER,
    HOST,
    LABEL,
    LEADING,
    MPI,
    PIPED,
    RANK_AS_ROLE,
    ROLE,
    STREAM,
    TAGGED,
    prefixes,
)
from runbook.logs.signatures import PrefixForm
from runbook.model.units import NodeName

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b]{0,200}\x07?)")
_RAY_REPEATED = re.compile(r"(?:\[\d{1,3}m)? \[repeated (\d{1,9})x across cluster\]")
_NCCL = re.compile(r"(?:\[[^\]\n]{8,40}\] )?([A-Za-z][\w.-]{0,60}):(\d{1,9}):\d{1,9} \[(\d{1,3})\] ")
_ENGINE_LOGGER = re.compile(r"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]{1,120}:\d{1,6}\](?: |$)")
"""vLLM's logger repeats its prefix in front of every line of a traceback (vllm/logging_utils/formatter.py)."""
_BREAK = re.compile(
    r"(?<!['\"`(={,])(?:\[rank\d{1,6}\]: ?|\[[A-Za-z_][\w-]{0,30}?\d{1,4}\]:|\[\d{1,6}\]:"
    r"|\[[\w.@+-]{1,120},\d{1,6}\](?:\[[\w.-]{1,80}:\d{1,9}\])?<std(?:out|err)>:"
    r"| ?\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?\] iteration +\d"
    r"|(?<= )[WEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} \d{1,9} [\w./-]{1,160}\.(?:py|cc|cpp):\d{1,6}\] )"
)
_BAR = re.compile(r"\d{1,3}%\|[^|\n]{0,300}\| {0,12}\d{1,12}/(?:\d{1,12}|\?) \[[^\[\]\n]{1,200}\]")
_RECORDS_DEEP = 3
IS_BAR = re.compile(r"\s{0,8}(?:[^%|\n]{0,80}: {1,6})?\d{1,3}%\|[^|\n]{0,300}\|[^\n]{0,260}$")


def without_escapes(text: str) -> str:
    """Text without terminal escapes (colours, titles) and zero bytes (a signal handler of PyTorch's writes one)."""
    if "\0" in text:
        text = text.replace("\0", "")
    return _ANSI.sub("", text) if "\x1b" in text else text


def parse_line(line: str, file: FileProfile) -> LogLine:
    """Take the launchers' prefixes off, however they are stacked. What the file says fills what the line does not.

    Of a line that is a JSON record, the record's first line."""
    said = PrefixFacts()
    first = _framed(without_escapes(line), file, said)
    if first.text.startswith("{") and (record := record_of(first.text)):
        return next(_of_record(first, record, file, said))
    return first


def parse_lines(line: str, file: FileProfile) -> list[LogLine]:
    """As `parse_line`, but a line that several processes wrote into each other becomes a line a piece, and a JSON
    record one for each line that it holds."""
    text = without_escapes(line)
    said = PrefixFacts()
    first = _framed(text, file, said)
    if first.text.startswith("{") and (record := record_of(first.text)):
        return list(_of_record(first, record, file, said))
    begin = len(text) - len(first.text)
    starts = [] if first.repeats else list(_broken_at(text, begin, said, file))
    if not starts:
        return [first]
    pieces = [replace(first, text=text[begin: starts[0][0]], cut=starts[0][1])]
    for index, (start, by_other) in enumerate(starts):
        last = index + 1 == len(starts)
        # A task or a node prints line by line, so its prefix holds for the whole line; a rank's does not.
        own = PrefixFacts(task=said.task, group=said.group, node=said.node)
        if not by_other:
            own.rank, own.local_rank, own.voice, own.pid = said.rank, said.local_rank, said.voice, said.pid
        piece = _framed(text[start:] if last else text[start: starts[index + 1][0]], file, own)
        pieces.append(replace(
            piece, cut=not last and starts[index + 1][1], after_cut=any(other for _, other in starts[: index + 1])
        ))
    return pieces


def _of_record(
    outer: LogLine, record: Record, file: FileProfile, said: PrefixFacts, depth: int = _RECORDS_DEEP
) -> Iterator[LogLine]:
    """The lines of a record, framed; a collector's record may hold a logger's. The prefixes in front of the record
    and its own fields say who speaks, unless a line in it says so itself."""
    node = said.node
    if node is None and record.node is not None and (not file.nodes or short_name(record.node) in file.nodes):
        node = NodeName(short_name(record.node))
    rank = record.rank if said.rank is None else said.rank
    local_rank = record.local_rank if said.local_rank is None else said.local_rank
    pid = record.pid if said.pid is None else said.pid
    lines = tuple(without_escapes(line) for line in record.lines)
    several = lines if len(lines) > 1 else ()
    for index, line in enumerate(lines):
        inner = PrefixFacts(
            said.task, rank, local_rank, node, pid, said.device, said.group, said.voice, said.ip, name=said.name
        )
        one = _framed(line, file, inner)
        if not index:  # what the first line's own prefix says holds for all
            rank, local_rank, node, pid = inner.rank, inner.local_rank, inner.node, inner.pid
        inside = depth > 1 and not several and one.text.startswith("{") and one.text != outer.text
        if inside and (nested := record_of(one.text)):
            yield from _of_record(one, nested, file, inner, depth - 1)
            return
        stamp = record.stamp or ("" if record.time_s is not None else one.stamp or outer.stamp)
        yield replace(
            one, stamp=stamp, time_s=record.time_s if record.time_s is not None else one.time_s,
            level=record.level or one.level, record=several, at=index,
        )


def _broken_at(text: str, begin: int, said: PrefixFacts, file: FileProfile) -> Iterator[tuple[int, bool]]:
    """Where pieces begin, and whether another process wrote the piece (else the same one, behind its progress bar)."""
    end_of_bar = -1
    if "%|" in text and (bar := _BAR.search(text, begin)) and text[bar.end():].strip() and (
        text[bar.end():].lstrip()[:1] not in ("{", ",")
    ):
        end_of_bar = bar.end()
    if not any(one in text[begin:] for one in ("]:", ">:", "] iteration", ".py:", ".cpp:")):
        if end_of_bar >= 0:
            yield end_of_bar, False
        return
    previous = begin
    rank = said.rank
    for found in _BREAK.finditer(text, begin):
        start, words = found.start(), found[0]
        if not text[previous:start].strip():
            previous = found.end()
            continue
        if role := ROLE.fullmatch(words.rstrip()):
            if role[1] == "rank":
                if int(role[2]) == (said.local_rank if "rank" in file.habits.roles else rank):
                    continue
                rank = int(role[2])
            elif role[1] not in file.habits.roles or int(role[2]) == said.local_rank:
                continue
        elif BARE.fullmatch(words) and not file.habits.bare:
            continue
        if 0 <= end_of_bar <= start:
            if text[end_of_bar:start].strip():
                yield end_of_bar, False
            end_of_bar = -1
        yield start, True
        previous = found.end()
    if end_of_bar >= 0:
        yield end_of_bar, False


def _framed(text: str, file: FileProfile, said: PrefixFacts) -> LogLine:
    position, behind_stamps = prefixes(text, file, said)
    if " NCCL " in text and (found := _NCCL.match(text, behind_stamps) or _NCCL.match(text, position)):
        said.node, said.pid, said.device = NodeName(short_name(found[1])), int(found[2]), int(found[3])
    if text.startswith(("ERROR ", "CRITICAL "), position) and (found := _ENGINE_LOGGER.match(text, position)):
        position = found.end()
    body, repeats = text[position:], 0
    if "x across cluster]" in body and (folded := _RAY_REPEATED.search(body)):
        body, repeats = body[: folded.start()], int(folded[1])
    return LogLine(
        text=body,
        task=said.task if said.task is not None else file.task,
        rank=said.rank if said.rank is not None else file.rank,
        local_rank=said.local_rank if said.local_rank is not None else file.local_rank,
        node=said.node or file.node,
        pid=said.pid if said.pid is not None else file.pid,
        device=said.device,
        stamp=text[said.region: said.region + 240],
        group=said.group,
        voice=said.voice,
        ip=said.ip,
        repeats=repeats,
        time_s=file.time_s,
        place=file.place,
        level=said.level,
        name=said.name,
    )


# How a file's lines begin: learned from samples of them, where the launcher leaves the shape of its prefix open.

RANKS_A_NODE = 8
"""What a number alone must reach before it can be no local rank."""

_LAUNCHER = ("srun:", "slurmstepd", "mpirun:", "prterun", "pdsh@", "clush:", "---", "===")
_COUNTERS = re.compile(
    r"(?i)(?:global_?|local_?)?(?:rank|task|epoch|step|iter|iteration|layer|stage|cuda|device|batch|loss|phase|fold|trial"
    r"|expert|param|test|round|seed|shard)[-_.]?\d*$|.*\.(?:py|cc|cpp|cu|h)$"
)
_POD_NAME = re.compile(r"[a-z0-9]+-[a-z0-9]+(?:-[a-z0-9]+){1,12}$")
_PREFIX_CHARACTERS = 200
_INSIDE = re.compile(
    r'  File "[^"\n]{1,160}", line \d|  (?:time      : \d{4}-|rank      : \d|exitcode  : |error_file: |traceback : )'
)
"""Lines in the middle of a traceback, and of torchrun's table."""
_FRAME = re.compile(r'  File "[^"\n]{1,160}", line \d')
_RANK = re.compile(r"\[rank(\d{1,6})\]")
_PASTED_LINES = 12
_RAISED = re.compile(
    r"(?:[a-z_]\w{0,40}\.){0,6}[A-Z]\w{1,60}(?:Error|Exception): |Traceback \(most|terminate called|Fatal|FATAL|Killed$"
    r"|Segmentation fault|Bus error|Aborted|\w{2,5} out of memory|ERROR\b|\w{1,30}Error: "
)


def learn_prefixes(
    lines: Sequence[str], nodes: frozenset[str], forms: tuple[PrefixForm, ...] = ()
) -> PrefixProfile:
    """Habits of a file from sampled lines in their order; `nodes` are the job's, by short name, where known; `forms`
    those that it may have."""
    every = [
        record.lines[0] if (record := record_of(line)) is not None else line for line in map(without_escapes, lines)
    ]
    own = [line for line in every if line.strip() and not line.startswith(_LAUNCHER)]
    if len(own) < 2:
        return PrefixProfile(forms=_forms([_behind_stamp(line) for line in own], forms))
    stamped, tagged = _of_each_line(own)
    collected = stamped or (sum(1 for line in own if COLLECTOR.match(line)) * 5 >= len(own) * 4 and len(own) >= 3)
    bare = [_behind_stamp(line) for line in own]
    outer = PrefixProfile(
        label_widths=_label_widths(bare),
        roles=frozenset(),
        hosts=frozenset() if nodes else _hosts(bare),
        piped=_piped(bare),
        containers=_containers(bare),
        collected=collected,
        tagged=tagged,
    )
    rest = [parse_line(line, FileProfile(nodes=nodes, habits=outer, forms=forms)).text for line in own]
    return PrefixProfile(
        outer.label_widths, _roles(rest) | {"default"}, _bare(rest, nodes), _spaced(own, rest), outer.hosts,
        outer.piped, outer.containers, collected, tagged, _forms(rest, forms), _from_one(rest, forms),
    )


def _behind_stamp(line: str) -> str:
    """A line behind its first stamp, and behind the stream that a container runtime names there."""
    stamp = LEADING.match(line)
    rest = line[stamp.end():] if stamp else line
    stream = STREAM.match(rest) if stamp else None
    return rest[stream.end():] if stream else rest


def _of_each_line(lines: Sequence[str]) -> tuple[bool, bool]:
    """Whether a stamp, and whether tags stand in front of each line: those inside a traceback or a table tell, which
    no program stamps itself."""
    inside = stamped = tagged = 0
    for line in lines:
        found = _INSIDE.search(line[:_PREFIX_CHARACTERS])
        if found is None:
            continue
        before = line[: found.start()]
        stamp = LEADING.match(before)
        rest = before[stamp.end():] if stamp else before
        stream = STREAM.match(rest)
        rest = rest[stream.end():] if stream else rest
        tags = TAGGED.match(f"{rest.rstrip()} " if rest.strip() else "")
        inside += 1
        stamped += stamp is not None
        tagged += tags is not None and tags.end() > 0
    return 0 < inside * 4 <= stamped * 5, 0 < inside * 4 <= tagged * 5


def _label_widths(lines: Sequence[str]) -> frozenset[int]:
    """Widths of srun's labels: right-aligned, so that all tasks of a step have the same. A counter has none."""
    found = [(index, match) for index, line in enumerate(lines) if (match := LABEL.match(line))]
    if len(found) < 2 or len(found) * 2 <= len(lines) - found[0][0]:
        return frozenset()
    numbers = [int(match[2]) for _, match in found]
    counting = all(later > earlier for earlier, later in pairwise(numbers))
    if counting and len(numbers) > 8 and not any(match[2].startswith(" ") or match[1] for _, match in found):
        return frozenset()
    widths = Counter(len(match[2]) for _, match in found)
    return frozenset(width for width, count in widths.items() if count >= 2 or len(found) <= 4)


def _hosts(lines: Sequence[str]) -> frozenset[str]:
    """Names in front of most lines that look like hosts and come again."""
    names = Counter(
        found[1] for line in lines
        if (found := HOST.match(line)) and any(one.isalpha() for one in found[1])
        and any(one.isdigit() for one in found[1]) and not _COUNTERS.match(found[1])
    )
    total = sum(names.values())
    again = sum(1 for count in names.values() if count >= 2)
    if total < 4 or total * 5 < len(lines) * 3 or again * 2 < len(names):
        return frozenset()
    return frozenset(names) | frozenset(short_name(name) for name in names)


def _piped(lines: Sequence[str]) -> bool:
    named = sum(1 for line in lines if (found := PIPED.match(line)) and any(one.isdigit() for one in found[1])
                and any(one.isalpha() for one in found[1]))
    return named >= 4 and named * 5 >= len(lines) * 3


def _containers(lines: Sequence[str]) -> frozenset[str]:
    found = [match for line in lines if (match := CONTAINER.match(line)) and _POD_NAME.match(match[1])]
    if len(found) < 6 or len(found) * 10 < len(lines) * 9 or len({one[1] for one in found}) * 3 > len(found):
        return frozenset()
    second = Counter(match[2] for match in found)
    return frozenset(second) if len(second) <= 3 else frozenset()


def _roles(lines: Sequence[str]) -> frozenset[str]:
    counts: Counter[str] = Counter()
    members: dict[str, set[str]] = {}
    for line in lines:
        if (found := ROLE.match(line)) and not _COUNTERS.match(found[1]):
            counts[found[1]] += 1
            members.setdefault(found[1], set()).add(found[2])
    if any(found[1] != found[2] for line in lines if (found := RANK_AS_ROLE.match(line))):
        counts["rank"] = len(lines)
    return frozenset(
        role for role, count in counts.items()
        if count * 10 >= len(lines) * 3 or (count >= 4 and len(members[role]) >= 2)
    )


def _forms(lines: Sequence[str], known: Sequence[PrefixForm]) -> tuple[PrefixForm, ...]:
    """Forms that name the speaker in a file, although they could be counters: those in front of the lines inside a
    traceback, which no program counts; else those in front of most lines whose numbers come again, up and down. In a
    few pasted lines, those in front of an exception."""
    said = [line for line in lines if line.strip()]
    found = []
    pasted = [_behind_stamp(line) for line in said] if len(said) <= _PASTED_LINES else []
    for form in known:
        every = [form.pattern.match(line) if line[:1] in form.opens else None for line in said] if form.learned else []
        own = [one for one in every if one is not None]
        if form.learned and any(
            (one := form.pattern.match(line)) and _RAISED.match(line, one.end())
            for line in pasted if line[:1] and line[:1] in form.opens
        ):
            found.append(form)
            continue
        if len(own) < 3:
            continue
        frames = [_FRAME.search(line[:_PREFIX_CHARACTERS]) for line in said]
        framed = [
            one is not None and one.end() == frame.start() for one, frame in zip(every, frames, strict=True) if frame
        ]
        names = [next(filter(None, one.groups())) for one in own]
        numbers = [int(name) if name.isdecimal() else names.index(name) for name in names]
        turns = sum(later < earlier for earlier, later in pairwise(numbers))
        again = len(own) * 2 > len(said) and turns >= 2 and len(set(numbers)) * 2 <= len(numbers)
        if again or (framed and sum(framed) * 5 >= len(framed) * 4):
            found.append(form)
    return tuple(found[:1])


def _from_one(lines: Sequence[str], known: Sequence[PrefixForm]) -> bool:
    """Whether processes named with the number of all of them ("[8/8] ") are counted from 1: the last one is there."""
    for form in known:
        found = [
            one for line in lines if "world_size" in form.units and line[:1] in form.opens
            and (one := form.pattern.match(line)) and one["world_size"]
        ]
        if found and any(one["rank"] == one["world_size"] for one in found) and all(int(one["rank"]) for one in found):
            return True
    return False


def _bare(lines: Sequence[str], nodes: frozenset[str]) -> str:
    """What "[3]:" in front of most lines is. torchrun's template can put the rank or the local rank there."""
    found = [(int(match[1]), line) for line in lines if (match := BARE.match(line))]
    if len(found) < 3 or len(found) * 2 <= len(lines):
        return ""
    pairs = [(number, int(rank[1])) for number, line in found if (rank := _RANK.search(line[:40]))]
    if pairs:
        return "rank" if all(number == rank for number, rank in pairs) else "local_rank"
    if len(nodes) > 1 and max(number for number, _ in found) < RANKS_A_NODE:
        return "local_rank"  # the rank could be on any of the nodes
    return "rank"


def _spaced(lines: Sequence[str], rest: Sequence[str]) -> bool:
    behind: list[str] = []
    for line, text in zip(lines, rest, strict=True):
        if found := MPI.search(line[:300]):
            behind.append(line[found.end():])
        elif found := ROLE.match(text) or BARE.match(text):
            behind.append(text[found.end():])
    behind = [text for text in behind if text.strip()]
    return len(behind) >= 3 and all(text.startswith(" ") for text in behind)
