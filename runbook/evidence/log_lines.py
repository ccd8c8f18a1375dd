"""Line numbers of the findings of a finished story, where the reading did not count them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from runbook.evidence.log_crew import ReadAt
from runbook.evidence.log_pass import Sources
from runbook.model.log import Finding, LogStory

MOST_BYTES = 4 << 30
"""Counting stops here: about a second."""
_PIECE_BYTES = 256 << 10


def with_lines(story: LogStory, sources: Sources) -> LogStory:
    """The story with the line of each finding; a note where files are too large to be counted."""
    findings = [one for one in (story.root_cause, *story.candidates, *story.harmless) if one is not None]
    missing = [one for one in findings if one.line == 0]
    if not missing:
        return story
    index_of = {path: index for index, path in enumerate(sources.paths)}
    room = MOST_BYTES
    known: dict[tuple[str, int], int] = {}
    for path, offsets in _by_file(missing).items():
        plain = sources.plain.get(index_of[path])
        if plain is None or offsets[-1] > room:
            continue
        room -= offsets[-1]
        known.update(((path, offset), line) for offset, line in _lines(plain[0], offsets))

    def counted(one: Finding) -> Finding:
        return replace(one, line=known[(one.file, one.offset)]) if (one.file, one.offset) in known else one

    unknown = sum(1 for one in missing if (one.file, one.offset) not in known)
    note = () if not unknown else (
        f"The line numbers of {unknown} findings were not counted: their files are too large and were not read whole.",
    )
    return replace(
        story, root_cause=counted(story.root_cause) if story.root_cause is not None else None,
        candidates=tuple(map(counted, story.candidates)), harmless=tuple(map(counted, story.harmless)),
        notes=(*story.notes, *note),
    )


def _by_file(findings: Iterable[Finding]) -> dict[str, list[int]]:
    """Offsets in order, by file, in the order of the findings: the root cause's file comes first."""
    offsets: dict[str, set[int]] = {}
    for one in findings:
        offsets.setdefault(one.file, set()).add(one.offset)
    return {path: sorted(several) for path, several in offsets.items()}


def _lines(read: ReadAt, offsets: Iterable[int]) -> Iterable[tuple[int, int]]:
    at, lines = 0, 1
    piece = bytearray(_PIECE_BYTES)
    space = memoryview(piece)
    for offset in offsets:
        while at < offset:
            try:
                got = read(space[:min(_PIECE_BYTES, offset - at)], at)
            except OSError:
                return
            if not got:
                return
            lines += got - len(piece[:got].replace(b"\n", b""))
            at += got
        yield offset, lines
