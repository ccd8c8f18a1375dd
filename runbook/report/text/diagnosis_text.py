"""What `runbook diagnose` prints: the answer first, then why, then all that a person may want to check."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from runbook.model.diagnosis import Detail, Diagnosis, Died, Hypothesis
from runbook.model.log import (
    SUSPECTED_RANKS,
    Collateral,
    Event,
    Finding,
    LogSource,
    LogStory,
    Meanings,
)
from runbook.model.sentences.of_logs import Say
from runbook.model.units import moment, sentence, size
from runbook.report.memory_picture import memory_at_failure, shortfall
from runbook.report.text import paragraph
from runbook.report.vocabulary import titles
from runbook.report.vocabulary.clean import clean, clean_line, shorten, shorten_lines
from runbook.report.vocabulary.sentences import in_words

WIDTH = 100
_LABEL = 13
_ITEMS = 12
_FILES = 8
_EXCERPT_LINES = 14
_AFTER_LINES = 6
"""At most this many lines of an excerpt stand after the failing one (`logs/search/scan.py`)."""
_RULE = re.compile(r" \(R-\d\d\)")
_RANGE = re.compile(r"^[<>]|-\d+\.\d|\d\+$")
"""Versions whose message reads so, where the log does not print the one that ran."""
_MARKS = re.compile(r"[\s^~]+")
_SAID_ALREADY = frozenset(in_words(one()) for one in (Say.NO_RANK, Say.ONLY_CONSEQUENCES))
"""Notes of a story that say what its first failure says, too."""


def render_diagnosis(story: LogStory, diagnosis: Diagnosis, meanings: Meanings, width: int = WIDTH) -> str:
    """Plain text, at most `width` columns but for long paths; ends with a newline. Nothing in it moves a terminal."""
    best = diagnosis.best
    root = story.root_cause
    suspected = [one for one in story.candidates if _is_suspect(one, meanings)]
    lines = [
        *_paragraph(_title(best), width, ""),
        *_paragraph(sentence(titles.diagnosis_meaning(best)), width, "  "),
        "",
        *_row("first failure", _first(story, best, suspected), width),
        *_row("when", _when(root, story), width),
        *_row("where", _where(root), width, whole=True),
        *_excerpt(root, width),
        *_figures(root, width),
        *_items("why" if best.kind.entry.died is Died.UNKNOWN else "for it", tuple(map(in_words, best.reasons)), width),
        *_items("against it", _against(diagnosis), width),
        *_items("would settle", tuple(map(in_words, best.missing)), width),
        *_row("could also be", ", ".join(
            f"{titles.diagnosis_title(one)} {one.confidence:.2f}" for one in diagnosis.runners_up
        ), width),
        *_others(story, suspected, width),
        *_items("collateral", _collateral(story.collateral), width),
        *_items("no failure", _harmless(story.harmless), width, whole=True),
        *_row("progress", _progress(story), width),
        *_row("job", _job(story), width),
        *_items("notes", [note for note in map(in_words, story.notes) if note not in _SAID_ALREADY], width),
        *_items("read", _sources(story.sources), width, whole=True),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _title(best: Hypothesis) -> str:
    title = titles.diagnosis_title(best)
    return title if best.kind.entry.died is Died.UNKNOWN else f"{title}, confidence {best.confidence:.2f}"


def _paragraph(text: str, width: int, indent: str, first: str | None = None, *, whole: bool = False) -> list[str]:
    """Rules' numbers are the documents' and of no use here. `whole`: a word that is longer, as a path to copy, is not
    cut."""
    text = _RULE.sub("", shorten(clean_line(text), 600))
    return paragraph(text, width, indent, first, cut_words=not whole)


def _row(label: str, text: str, width: int, *, whole: bool = False) -> list[str]:
    return _paragraph(text, width, " " * (_LABEL + 1), f"{label:<{_LABEL}} ", whole=whole)


def _items(label: str, items: Sequence[str], width: int, *, whole: bool = False) -> Iterator[str]:
    indent = " " * (_LABEL + 3)
    for number, item in enumerate(items[:_ITEMS]):
        first = f"{label if number == 0 else '':<{_LABEL}} - "
        yield from _paragraph(item, width, indent, first, whole=whole) or [first]
    if len(items) > _ITEMS:
        yield f"{indent}… and {len(items) - _ITEMS} more (--json has all)"


def _first(story: LogStory, best: Hypothesis, suspected: Sequence[Finding]) -> str:
    if story.root_cause is not None:
        return _who(story.root_cause)
    if best.detail is Detail.FINISHED:
        return ""
    ended = story.ended_first
    if ended is not None and ended.rank is not None:
        return f"{_who(ended)}: it {ended.excerpt}, and no line says why"
    if len({(one.rank, one.node) for one in suspected}) == 1 and suspected[0].rank is not None:
        node = f" on {suspected[0].node}" if suspected[0].node else ""
        return f"not certain; the first to look at is rank {suspected[0].rank}{node}"
    return "not in these logs: they show only what followed" if story.candidates or story.collateral else "none found"


def _against(diagnosis: Diagnosis) -> list[str]:
    """The strongest other kind stands with its title in front of its reason."""
    told = {
        in_words(one.as_objection): f"for “{one.kind.entry.title}”: {in_words(one.reasons[0])}"
        for one in diagnosis.runners_up if one.reasons
    }
    return [told.get(reason, reason) for reason in map(in_words, diagnosis.best.against)]


def _who(root: Finding) -> str:
    if root.rank is None and not root.node:
        who = "rank and node unknown"
    else:
        rank = f"rank {root.rank}" if root.rank is not None else "rank unknown"
        who = f"{rank} on {root.node}" if root.node else f"{rank}, node unknown"
    device = [f"GPU {root.device} of the process"] if root.device is not None else []
    if root.node_device is not None:
        device.append(f"GPU {root.node_device} of the node")
    more = [*device, *([f"pid {root.pid}"] if root.pid is not None else [])]
    return who + (f" ({', '.join(more)})" if more else "")


def _when(root: Finding | None, story: LogStory) -> str:
    if root is None:
        return ""
    parts = [f"step {root.step}" if root.step is not None else "step unknown"]
    if root.phase.value != "unknown":
        parts.append(titles.PHASE_WORDS[root.phase])
    if root.time_s is not None:
        parts.append(moment(root.time_s))
    version = story.framework_version or root.framework_version
    if version:
        told = f"PyTorch {version}" if version[0].isdigit() else version
        parts.append(f"{told} by the message's wording" if _RANGE.search(version) else told)
    return ", ".join(parts)


def _where(root: Finding | None) -> str:
    if root is None:
        return ""
    return f"{_place(root)} (runbook explain {root.signature})"


def _excerpt(root: Finding | None, width: int) -> list[str]:
    """The failing line whole (it is what a person came to read), and of the lines around it what fits."""
    if root is None or not root.excerpt:
        return []
    lines = [line for line in clean(root.excerpt).split("\n") if not _MARKS.fullmatch(line)][-_EXCERPT_LINES:]
    fold = textwrap.TextWrapper(width, initial_indent="  | ", subsequent_indent="  |   ", break_on_hyphens=False).wrap
    rows = [
        fold(line) or ["  | "] for line in shorten_lines("\n".join(lines), _EXCERPT_LINES, 2000).split("\n")
    ]
    while len(rows) > _AFTER_LINES + 1 and sum(map(len, rows)) > _EXCERPT_LINES:
        del rows[0]
    return [line for row in rows for line in row]


def _figures(root: Finding | None, width: int) -> Iterator[str]:
    picture = memory_at_failure(root.fields) if root is not None else None
    if root is None or picture is None:
        return
    told = [f"{part.words[:1].lower()}{part.words[1:]}: {size(part.bytes)}" for part in picture.parts]
    if root.fields.private_pool_bytes is not None:
        told.insert(1, f"of that in private pools: {size(root.fields.private_pool_bytes)}")
    told += [f"capacity: {size(picture.capacity_bytes)}"] if picture.capacity_bytes is not None else []
    told += [f"limit of this process: {size(picture.limit_bytes)}"] if picture.limit_bytes is not None else []
    yield from _row("memory", "; ".join(told), width)
    yield from _row("", shortfall(picture), width)
    if root.fields.other_processes:
        listed = [
            f"{one.pid} ({size(one.bytes) if one.bytes is not None else 'size unknown'})"
            for one in root.fields.other_processes[:_ITEMS]
        ]
        more = f" and {rest} more" if (rest := len(root.fields.other_processes) - _ITEMS) > 0 else ""
        yield from _row("processes", f"named in the message: {', '.join(listed)}{more}", width)


def _is_suspect(finding: Finding, meanings: Meanings) -> bool:
    """A rank that may have failed first, not one whose words merely come first ("lost the connection")."""
    if finding.means != "consequence" or finding.signature in SUSPECTED_RANKS:
        return True
    return meanings.reports(finding.signature, Event.TASK_END)


def _others(story: LogStory, suspected: Sequence[Finding], width: int) -> Iterator[str]:
    root = story.root_cause
    if root is not None:
        others = [one for one in story.candidates if (one.file, one.offset) != (root.file, root.offset)]
        yield from _items("also failed", _candidates(others), width, whole=True)
        return
    yield from _items("suspected", _candidates(suspected), width, whole=True)
    first = [one for one in story.candidates if one not in suspected]
    yield from _items("spoke first", _candidates(first), width, whole=True)


def _candidates(findings: Sequence[Finding]) -> list[str]:
    """Ranks of a node that one line tells of share a row."""
    groups: dict[tuple[str | None, str, str], list[int]] = {}
    for one in findings:
        ranks = groups.setdefault((one.node, one.signature, _place(one)), [])
        if one.rank is not None:
            ranks.append(one.rank)
    return [
        f"{_ranks(ranks)}{f' on {node}' if node else ''}: {signature} at {place}"
        for (node, signature, place), ranks in groups.items()
    ]


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "rank unknown"
    return f"rank{'s' if len(set(ranks)) > 1 else ''} {ranges(ranks)}"


def _place(finding: Finding) -> str:
    file = _file(finding.file)
    return f"{file}:{finding.line}" if finding.line else f"{file}, byte {finding.offset}"


def _file(path: str) -> str:
    return "standard input" if path == "-" else path


def _collateral(collateral: Sequence[Collateral]) -> list[str]:
    """Ranks that share a reason and a node share a line."""
    groups: dict[tuple[str, str | None], list[int]] = {}
    unnamed: list[str] = []
    for one in collateral:
        if one.rank is None:
            unnamed.append(f"rank unknown{f' on {one.node}' if one.node else ''}: {in_words(one.why)}")
        else:
            groups.setdefault((in_words(one.why), one.node), []).append(one.rank)
    told = [
        f"{_ranks(ranks)}{f' on {node}' if node else ''}: {why}"
        for (why, node), ranks in groups.items()
    ]
    return told + list(dict.fromkeys(unnamed))


def ranges(numbers: Iterable[int]) -> str:
    """"0-2, 5, 7-9"."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)


def _harmless(findings: Sequence[Finding]) -> list[str]:
    """What looks like the failure and is not: one line a signature."""
    counts: dict[str, list[Finding]] = {}
    for one in findings:
        counts.setdefault(one.signature, []).append(one)
    return [
        f"{identity} {'once' if len(found) == 1 else f'{len(found)} times or more'}, at {_place(found[0])}: "
        "handled, or not fatal by itself"
        for identity, found in counts.items()
    ]


def _progress(story: LogStory) -> str:
    progress = story.progress
    parts = []
    if progress.last_step is not None:
        total = f" of {progress.total_steps}" if progress.total_steps is not None else ""
        parts.append(f"last completed step {progress.last_step}{total}")
    if progress.step_duration_s is not None:
        parts.append(f"{progress.step_duration_s:.3g} s a step")
    if progress.resumed_from_step is not None:
        parts.append(f"resumed from step {progress.resumed_from_step}")
    if progress.saved_steps:
        parts.append(f"checkpoint written at step {progress.saved_steps[-1]}, by the log's word")
    return ", ".join(parts)


def _job(story: LogStory) -> str:
    ranks = f"{story.world_size} rank{'s' if story.world_size != 1 else ''}" if story.world_size is not None else ""
    return ", ".join(part for part in (story.framework or "", ranks) if part)


def _sources(sources: Sequence[LogSource]) -> list[str]:
    """A few files one by one, many as a sum; what was not read is always said."""
    if len(sources) <= _FILES:
        return [
            f"{_file(one.path)}: {one.note or size(one.bytes_read)}" if not one.bytes_read
            else f"{_file(one.path)}: {size(one.bytes_read)}{f'; {one.note}' if one.note else ''}"
            for one in sources
        ]
    notes: dict[str, int] = {}
    for one in sources:
        if one.note:
            notes[one.note] = notes.get(one.note, 0) + 1
    read, whole = sum(one.bytes_read for one in sources), sum(one.size_bytes for one in sources)
    told = [f"{len(sources)} files: {size(read)} of {size(whole)}"]
    return told + [f"{count} of them: {note}" for note, count in list(notes.items())[: _ITEMS - 1]]
