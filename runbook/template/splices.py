"""Replacing byte ranges: put together, shown as a diff, taken back."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.model.template import Patch, Splice, TemplateFile
from runbook.template.errors import CannotEdit


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes `start` to `end` of a text become `after`. An insertion has `start == end`."""

    start: int
    end: int
    after: bytes
    why: str = ""


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def splice(file: TemplateFile, changes: Sequence[Change]) -> tuple[TemplateFile, tuple[Splice, ...]]:
    """The changed file and its splices, by place. Raises `CannotEdit` when two changes touch the same bytes."""
    data = to_bytes(file.text)
    ordered = sorted(dict.fromkeys(changes), key=lambda change: (change.start, change.end))
    pieces: list[bytes] = []
    splices: list[Splice] = []
    position = 0
    for change in ordered:
        if change.start < position:
            line = data.count(b"\n", 0, change.start) + 1
            raise CannotEdit(
                "two of the wanted changes touch the same text",
                where=f"{file.path}:{line}",
                next_step="write the two values apart (one variable each) and try again",
            )
        before = data[change.start : change.end]
        pieces += [data[position : change.start], change.after]
        position = change.end
        if before != change.after:
            splices.append(Splice(file.path, change.start, to_text(before), to_text(change.after)))
    pieces.append(data[position:])
    return TemplateFile(file.path, to_text(b"".join(pieces))), tuple(splices)


def restore(patch: Patch) -> tuple[TemplateFile, ...]:
    """The files as they were before the patch. Raises `CannotEdit` when the patched text is not as it was left."""
    restored = []
    for file in patch.files:
        data = to_bytes(file.text)
        pieces: list[bytes] = []
        position = 0
        shift = 0
        for item in sorted((s for s in patch.splices if s.file == file.path), key=lambda s: s.start):
            before, after = to_bytes(item.before), to_bytes(item.after)
            start = item.start + shift
            if start < position or data[start : start + len(after)] != after:
                raise CannotEdit(
                    "the patched file changed since, so the change cannot be taken back by itself",
                    where=f"{file.path}:{data.count(10, 0, max(start, 0)) + 1}",
                    next_step="take the original from the incident's folder",
                )
            pieces += [data[position:start], before]
            position = start + len(after)
            shift += len(after) - len(before)
        pieces.append(data[position:])
        restored.append(TemplateFile(file.path, to_text(b"".join(pieces))))
    return tuple(restored)


def unified_diff(before: TemplateFile, after: TemplateFile) -> str:
    """A unified diff with `a/` and `b/` names, as `patch -p1` takes it; empty for equal texts."""
    if before.text == after.text:
        return ""
    name = before.path.lstrip("/")
    lines: list[str] = []
    for line in difflib.unified_diff(
        _lines(before.text), _lines(after.text), f"a/{name}", f"b/{name}", n=3
    ):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """Lines ending at newlines only: `str.splitlines` also cuts at form feeds and Unicode separators."""
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
