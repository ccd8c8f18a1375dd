"""What `runbook diagnose` prints: the answer first, then why, then all that a person may want to check."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from runbook.model.diagnosis import Diagnosis
from runbook.model.log import Collateral, Finding, LogSource, LogStory
from runbook.report import diagnosis_words as words
from runbook.report.clean import clean, clean_line, shorten, shorten_lines
from runbook.report.memory_picture import memory_at_failure, shortfall

WIDTH = 100
_LABEL = 13
_ITEMS = 12
_FILES = 8
_EXCERPT_LINES = 14


def render_diagnosis(story: LogStory, diagnosis: Diagnosis) -> str:
    """Plain text, at most 100 columns; ends with a newline. Nothing in it moves a terminal."""
    best = diagnosis.best
    lines = [
        f"{words.diagnosis_title(best)}, confidence {best.confidence:.2f}",
        *_wrapped(words.diagnosis_meaning(best) + ".", "  "),
        "",
        *_row("first failure", _who(story.root_cause)),
        *_row("when", _when(story.root_cause, story)),
        *_row("where", _where(story.root_cause)),
        *_excerpt(story.root_cause),
        *_figures(story.root_cause),
        *_items("for it", best.reasons),
        *_items("against it", best.against),
        *_items("would settle", best.missing),
        *_row("else", ", ".join(
            f"{words.diagnosis_title(one)} {one.confidence:.2f}" for one in diagnosis.runners_up
        )),
        *_items("also failed", [_candidate(one) for one in _others(story)]),
        *_items("collateral", _collateral(story.collateral)),
        *_items("no failure", _harmless(story.harmless)),
        *_row("progress", _progress(story)),
        *_items("notes", story.notes),
        *_items("read", _sources(story.sources)),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _wrapped(text: str, indent: str, first: str | None = None, limit: int = 600) -> list[str]:
    return textwrap.wrap(
        shorten(clean_line(text), limit), WIDTH, initial_indent=indent if first is None else first,
        subsequent_indent=indent, break_on_hyphens=False,
    )


def _row(label: str, text: str) -> list[str]:
    return _wrapped(text, " " * (_LABEL + 1), f"{label:<{_LABEL}} ") if text else []


def _items(label: str, items: Sequence[str]) -> Iterator[str]:
    indent = " " * (_LABEL + 3)
    for number, item in enumerate(items[:_ITEMS]):
        yield from _wrapped(item, indent, f"{label if number == 0 else '':<{_LABEL}} - ")
    if len(items) > _ITEMS:
        yield f"{indent}… and {len(items) - _ITEMS} more (--json has all)"


def _who(root: Finding | None) -> str:
    if root is None:
        return "no line of these logs says what failed first"
    parts = [
        f"rank {root.rank}" if root.rank is not None else "a rank that the logs do not name",
        f"on {root.node}" if root.node else "on a node that the logs do not name",
    ]
    device = [f"GPU {root.device} of the process"] if root.device is not None else []
    if root.node_device is not None:
        device.append(f"GPU {root.node_device} of the node")
    more = [*device, *([f"pid {root.pid}"] if root.pid is not None else [])]
    return " ".join(parts) + (f" ({', '.join(more)})" if more else "")


def _when(root: Finding | None, story: LogStory) -> str:
    if root is None:
        return ""
    parts = [f"step {root.step}" if root.step is not None else "step unknown"]
    if root.phase.value != "unknown":
        parts.append(words.PHASE_WORDS[root.phase])
    if root.time_s is not None:
        parts.append(words.moment(root.time_s))
    version = story.framework_version or root.framework_version
    if version:
        parts.append(f"PyTorch {version}" if version[0].isdigit() else version)
    return ", ".join(parts)


def _where(root: Finding | None) -> str:
    if root is None:
        return ""
    line = f":{root.line}" if root.line else f", at byte {root.offset}"
    return f"{root.file}{line} ({root.signature}; runbook explain {root.signature})"


def _excerpt(root: Finding | None) -> Iterator[str]:
    if root is None or not root.excerpt:
        return
    rows = clean(root.excerpt).split("\n")
    text = shorten_lines("\n".join(rows[-_EXCERPT_LINES:]), _EXCERPT_LINES, 2000)
    for row in text.split("\n"):
        # An out-of-memory message is one long line, and it is what a person came to read.
        yield from textwrap.wrap(row, WIDTH, initial_indent="  | ", subsequent_indent="  |   ", break_on_hyphens=False,
                                 drop_whitespace=False, replace_whitespace=False)[:8] or ["  |"]


def _figures(root: Finding | None) -> Iterator[str]:
    picture = memory_at_failure(root.fields) if root is not None else None
    if root is None or picture is None:
        return
    told = [f"{part.words[:1].lower()}{part.words[1:]} {words.size(part.bytes)}" for part in picture.parts]
    told += [f"capacity {words.size(picture.capacity_bytes)}"] if picture.capacity_bytes is not None else []
    told += [f"limit of this process {words.size(picture.limit_bytes)}"] if picture.limit_bytes is not None else []
    if root.fields.private_pool_bytes is not None:
        told.append(f"of that in private pools {words.size(root.fields.private_pool_bytes)}")
    yield from _row("memory", "; ".join(told))
    yield from _row("", shortfall(picture))
    if root.fields.other_processes:
        listed = [f"{one.pid}: {words.size(one.bytes)}" for one in root.fields.other_processes[:_ITEMS]]
        yield from _row("processes", f"named in the message besides this one: {', '.join(listed)}")


def _others(story: LogStory) -> list[Finding]:
    root = story.root_cause
    return [one for one in story.candidates if root is None or (one.file, one.offset) != (root.file, root.offset)]


def _candidate(finding: Finding) -> str:
    who = f"rank {finding.rank}" if finding.rank is not None else "a process without rank"
    node = f" on {finding.node}" if finding.node else ""
    return f"{who}{node}: {finding.signature} at {_place(finding)}"


def _place(finding: Finding) -> str:
    return f"{finding.file}:{finding.line}" if finding.line else f"{finding.file}, byte {finding.offset}"


def _collateral(collateral: Sequence[Collateral]) -> list[str]:
    """Ranks that share a reason and a node share a line."""
    groups: dict[tuple[str, str | None], list[int]] = {}
    unnamed: list[str] = []
    for one in collateral:
        if one.rank is None:
            unnamed.append(one.why + (f" ({one.node})" if one.node else ""))
        else:
            groups.setdefault((one.why, one.node), []).append(one.rank)
    told = [
        f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}{f' on {node}' if node else ''}: {why}"
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
    if story.world_size is not None:
        parts.append(f"{story.world_size} rank{'s' if story.world_size != 1 else ''}")
    if story.framework:
        parts.append(story.framework)
    return ", ".join(parts)


def _sources(sources: Sequence[LogSource]) -> list[str]:
    """A few files one by one, many as a sum; what was not read is always said."""
    if len(sources) <= _FILES:
        return [f"{one.path}: {words.size(one.bytes_read)}{f'; {one.note}' if one.note else ''}" for one in sources]
    notes: dict[str, int] = {}
    for one in sources:
        if one.note:
            notes[one.note] = notes.get(one.note, 0) + 1
    read, size = sum(one.bytes_read for one in sources), sum(one.size_bytes for one in sources)
    told = [f"{len(sources)} files: {words.size(read)} of {words.size(size)}"]
    return told + [f"{count} of them: {note}" for note, count in list(notes.items())[: _ITEMS - 1]]
