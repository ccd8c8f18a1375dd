"""Who said a line: its prefixes taken off, however they are stacked, coloured, broken by another process's line.

NCCL's own form is of its debug.cc; the launchers' are in `framing_prefixes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from runbook.evidence.framing_prefixes import BARE, ROLE, prefixes
from runbook.evidence.framing_records import Record, record_of
from runbook.evidence.framing_values import FileFrame, Frame, Said, short_name
from runbook.model.units import NodeName

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b]{0,200}\x07?)")
_RAY_REPEATED = re.compile(r"(?:\[\d{1,3}m)? \[repeated (\d{1,9})x across cluster\]")
_NCCL = re.compile(r"(?:\[[^\]\n]{8,40}\] )?([A-Za-z][\w.-]{0,60}):(\d{1,9}):\d{1,9} \[(\d{1,3})\] ")
_ENGINE_LOGGER = re.compile(r"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]{1,120}:\d{1,6}\](?: |$)")
"""vLLM's logger repeats its prefix in front of every line of a traceback (vllm/logging_utils/formatter.py)."""
_BREAK = re.compile(
    r"(?<!['\"`(={,])(?:\[rank\d{1,6}\]: ?|\[[A-Za-z_][\w-]{0,30}?\d{1,4}\]:|\[\d{1,6}\]:"
    r"|\[[\w.@+-]{1,120},\d{1,6}\](?:\[[\w.-]{1,80}:\d{1,9}\])?<std(?:out|err)>:"
    r"| ?\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?\] iteration +\d)"
)
_BAR = re.compile(r"\d{1,3}%\|[^|\n]{0,300}\| {0,12}\d{1,12}/(?:\d{1,12}|\?) \[[^\[\]\n]{1,200}\]")
_RECORDS_DEEP = 3
IS_BAR = re.compile(r"\s{0,8}(?:[^%|\n]{0,80}: {1,6})?\d{1,3}%\|[^|\n]{0,300}\|[^\n]{0,260}$")


def without_escapes(text: str) -> str:
    """Text without terminal escapes (colours, titles) and zero bytes (a signal handler of PyTorch's writes one)."""
    if "\0" in text:
        text = text.replace("\0", "")
    return _ANSI.sub("", text) if "\x1b" in text else text


def frame(line: str, file: FileFrame) -> Frame:
    """Take the launchers' prefixes off, however they are stacked. What the file says fills what the line does not.

    Of a line that is a JSON record, the record's first line."""
    said = Said()
    first = _framed(without_escapes(line), file, said)
    if first.text.startswith("{") and (record := record_of(first.text)):
        return next(_of_record(first, record, file, said))
    return first


def frames(line: str, file: FileFrame) -> list[Frame]:
    """As `frame`, but a line that several processes wrote into each other becomes a frame a piece, and a JSON record a
    frame for each line that it holds."""
    text = without_escapes(line)
    said = Said()
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
        own = Said(task=said.task, group=said.group, node=said.node)
        if not by_other:
            own.rank, own.local_rank, own.voice, own.pid = said.rank, said.local_rank, said.voice, said.pid
        piece = _framed(text[start:] if last else text[start: starts[index + 1][0]], file, own)
        pieces.append(replace(
            piece, cut=not last and starts[index + 1][1], after_cut=any(other for _, other in starts[: index + 1])
        ))
    return pieces


def _of_record(
    outer: Frame, record: Record, file: FileFrame, said: Said, depth: int = _RECORDS_DEEP
) -> Iterator[Frame]:
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
        inner = Said(
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


def _broken_at(text: str, begin: int, said: Said, file: FileFrame) -> Iterator[tuple[int, bool]]:
    """Where pieces begin, and whether another process wrote the piece (else the same one, behind its progress bar)."""
    end_of_bar = -1
    if "%|" in text and (bar := _BAR.search(text, begin)) and text[bar.end():].strip() and (
        text[bar.end():].lstrip()[:1] not in ("{", ",")
    ):
        end_of_bar = bar.end()
    if "]: " not in text[begin:] and "]:" not in text[begin:] and ">:" not in text and "] iteration" not in text:
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


def _framed(text: str, file: FileFrame, said: Said) -> Frame:
    position, behind_stamps = prefixes(text, file, said)
    if " NCCL " in text and (found := _NCCL.match(text, behind_stamps) or _NCCL.match(text, position)):
        said.node, said.pid, said.device = NodeName(short_name(found[1])), int(found[2]), int(found[3])
    if text.startswith(("ERROR ", "CRITICAL "), position) and (found := _ENGINE_LOGGER.match(text, position)):
        position = found.end()
    body, repeats = text[position:], 0
    if "x across cluster]" in body and (folded := _RAY_REPEATED.search(body)):
        body, repeats = body[: folded.start()], int(folded[1])
    return Frame(
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
