"""The failing GPU's memory in parts as one picture: at the failure, what was asked for, and after the change, on one
scale."""

from __future__ import annotations

from markupsafe import Markup

from runbook.model.units import GIB
from runbook.report.charts import BarPart, Bars, draw_bars, nice_ticks
from runbook.report.diagnosis_words import size
from runbook.report.memory_picture import MemoryPicture

_FARTHEST = 1.4
"""A request may be drawn to this many capacities; beyond that it is cut."""


def scale_bytes(pictures: tuple[MemoryPicture, ...]) -> float:
    """How many bytes the full width stands for, common to bars that are compared."""
    ends = [1.0]
    for picture in pictures:
        capacity = float(picture.capacity_bytes or picture.known_bytes)
        wanted = _used(picture) + (picture.tried_bytes or 0)
        ends.append(max(capacity, min(float(max(wanted, picture.known_bytes)), capacity * _FARTHEST)))
    return max(ends)


def memory_chart(named: tuple[tuple[str, str, MemoryPicture], ...]) -> Markup:
    """Pictures with a short name for the row and a long one for those who do not see it."""
    return draw_bars(memory_bars(named))


def memory_bars(named: tuple[tuple[str, str, MemoryPicture], ...]) -> Bars:
    """The rows: a bar for each picture, and under it one for what was asked for, from where the memory in use ends."""
    end = scale_bytes(tuple(picture for _, _, picture in named))
    rows: list[str] = []
    columns: list[list[tuple[str, float, str]]] = []
    for row, _, picture in named:
        rows.append(row)
        columns.append(_parts(picture, end))
        if picture.tried_bytes:
            rows.append("asked for")
            columns.append(_request(picture, end))
    deepest = max(len(column) for column in columns)
    kinds = dict.fromkeys(kind for column in columns for kind, _, _ in column)
    parts: list[BarPart] = []
    for index in range(deepest):
        for kind in kinds:
            here = [
                column[index] if index < len(column) and column[index][0] == kind else (kind, 0.0, "")
                for column in columns
            ]
            if any(length for _, length, _ in here):
                parts.append(BarPart(kind, tuple(one[1] / GIB for one in here), tuple(one[2] for one in here)))
    first = named[0][2]
    marks = []
    if first.capacity_bytes:
        marks.append((first.capacity_bytes / GIB, f"{first.capacity_bytes / GIB:.1f} GiB"))
    if first.limit_bytes and first.limit_bytes < end:
        marks.append((first.limit_bytes / GIB, f"limit {first.limit_bytes / GIB:.1f}"))
    ticks = tuple((value, f"{value:g}") for value in nice_ticks(0, end / GIB, 5))
    return Bars(
        "; ".join(f"{name}: {in_words(picture)}" for _, name, picture in named), tuple(rows), tuple(parts), end / GIB,
        ticks, tuple(marks),
    )


def _parts(picture: MemoryPicture, end: float) -> list[tuple[str, float, str]]:
    """Class, bytes and words of what is laid end to end, cut where the scale ends."""
    told: list[tuple[str, float, str]] = []
    filled = 0.0
    for part in picture.parts:
        length = min(float(part.bytes or 0), end - filled)
        if length > 0:
            told.append((f"part-{part.part}", length, f"{part.words}: {size(part.bytes)}"))
            filled += length
    return told


def _request(picture: MemoryPicture, end: float) -> list[tuple[str, float, str]]:
    used = min(float(_used(picture)), end)
    card = min(float(picture.capacity_bytes or end), end)
    stop = min(used + (picture.tried_bytes or 0), end)
    words = f"Asked for: {size(picture.tried_bytes)}"
    told = [("", used, "")] if used else []
    if min(stop, card) > used:
        told.append(("tried", min(stop, card) - used, words))
    if stop > card:
        told.append(("tried-beyond", stop - max(used, card), words))
    return told


def _used(picture: MemoryPicture) -> int:
    if picture.capacity_bytes is not None and picture.free_bytes is not None:
        return max(picture.capacity_bytes - picture.free_bytes, 0)
    return picture.used_bytes


def in_words(picture: MemoryPicture) -> str:
    """The bar for those who do not see it."""
    told = [f"{part.words} {size(part.bytes)}" for part in picture.parts]
    if picture.tried_bytes is not None:
        told.append(f"asked for {size(picture.tried_bytes)}")
    if picture.capacity_bytes is not None:
        told.append(f"capacity {size(picture.capacity_bytes)}")
    return ", ".join(told)
