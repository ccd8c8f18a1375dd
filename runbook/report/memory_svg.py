"""The bar of a GPU's memory. It stretches with the page, so it holds no text: the labels stand beside it."""

from __future__ import annotations

from markupsafe import Markup

from runbook.report.diagnosis_words import size
from runbook.report.memory_picture import MemoryPicture
from runbook.report.svg import element, title

WIDTH = 1000.0
_BAR_HEIGHT = 30.0
_LANE_HEIGHT = 12.0
_LEAST_WIDTH = 3.0
_FARTHEST = 1.4
"""A request may be drawn to this many capacities; beyond that it is cut."""


def scale_bytes(pictures: tuple[MemoryPicture, ...]) -> float:
    """How many bytes the full width stands for, common to bars that are compared."""
    ends = [1.0]
    for picture in pictures:
        capacity = float(picture.capacity_bytes or picture.known_bytes)
        wanted = picture.used_bytes + (picture.tried_bytes or 0)
        ends.append(max(capacity, min(float(max(wanted, picture.known_bytes)), capacity * _FARTHEST)))
    return max(ends)


def memory_bar(picture: MemoryPicture, scale: float, name: str) -> Markup:
    """The bar; below it a second lane with what was asked for, its part beyond the card in another colour."""
    shapes: list[Markup] = [title(f"{name}: {in_words(picture)}")]
    # What the message does not account for is drawn over its place, so the bar always ends where the card does.
    x = 0.0
    for part in picture.parts:
        if part.bytes is None or part.bytes == 0:
            continue
        width = min(max(part.bytes / scale * WIDTH, _LEAST_WIDTH), WIDTH - x)
        if width <= 0:
            break
        shapes.append(
            element(
                "rect", title(f"{part.words}: {size(part.bytes)}"), class_=f"part-{part.part}", x=x, y=0.0,
                width=width, height=_BAR_HEIGHT,
            )
        )
        x += width
    height = _BAR_HEIGHT
    end = (picture.capacity_bytes or picture.known_bytes) / scale * WIDTH
    if picture.tried_bytes:
        height += _LANE_HEIGHT + 6
        shapes.extend(_lane(picture, scale, end))
    shapes.append(_mark(min(end, WIDTH), height, "capacity"))
    if picture.limit_bytes is not None:
        shapes.append(_mark(min(picture.limit_bytes / scale * WIDTH, WIDTH), height, "limit"))
    return element(
        "svg", Markup("").join(shapes), class_="memory-bar", viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        preserveAspectRatio="none", role="img", height=height,
    )


def _lane(picture: MemoryPicture, scale: float, end: float) -> list[Markup]:
    """The request, from where the memory in use ends."""
    used = picture.used_bytes
    if picture.capacity_bytes is not None and picture.free_bytes is not None:
        used = max(picture.capacity_bytes - picture.free_bytes, 0)
    start = min(used / scale * WIDTH, WIDTH - _LEAST_WIDTH)
    stop = min(start + max((picture.tried_bytes or 0) / scale * WIDTH, _LEAST_WIDTH), WIDTH)
    top = _BAR_HEIGHT + 6
    inside = min(stop, end)
    shapes = []
    if inside > start:
        shapes.append(element("rect", class_="tried", x=start, y=top, width=inside - start, height=_LANE_HEIGHT))
    if stop > end:
        begin = max(start, end)
        shapes.append(
            element("rect", class_="tried-beyond", x=begin, y=top, width=stop - begin, height=_LANE_HEIGHT)
        )
    return shapes


def _mark(x: float, height: float, kind: str) -> Markup:
    return element("line", class_=f"mark-{kind}", x1=x, x2=x, y1=0.0, y2=height)


def in_words(picture: MemoryPicture) -> str:
    """The bar for those who do not see it."""
    told = [f"{part.words} {size(part.bytes)}" for part in picture.parts]
    if picture.tried_bytes is not None:
        told.append(f"asked for {size(picture.tried_bytes)}")
    if picture.capacity_bytes is not None:
        told.append(f"capacity {size(picture.capacity_bytes)}")
    return ", ".join(told)
