"""Bars and lines as SVG, drawn by pygal and written into the page, so that its colours and its search reach them.

pygal is pure Python, imports in 60 ms and draws one of these in 5 ms. It is told figures and short labels only; of its
tree the shapes are taken over and nothing else: no style, no script, no comment with a date, no id. What is left has
classes of the page's style sheet, so the content security policy can forbid all else, and the same figures give the
same bytes. matplotlib was the other candidate: it imports in 0.8 s, brings numpy, and sets its styles on each element,
which the policy forbids.

Each chart is drawn twice, for a wide page and for a phone, so that its words have their size on both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

from runbook.report.vocabulary.clean import clean_line

# The few words of SVG that the pictures need. Styles are classes of the page: no inline style, so that the page's
# content security policy can forbid it.

def svg_element(name: str, content: Markup | str = "", **attributes: str | float | int) -> Markup:
    """An element with escaped attributes; `_` in a name stands for `-`, a trailing `_` is dropped."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"' for key, value in attributes.items()
    )
    # Put together by hand: a picture has hundreds of elements, and Markup.format takes five times as long.
    return Markup(f"<{name}{written}>{escape(content)}</{name}>")  # noqa: S704  (its parts are escaped)


def svg_text(content: str, **attributes: str | float | int) -> Markup:
    """A text element; the content is cleaned and escaped."""
    return svg_element("text", escape(clean_line(content)), **attributes)


def svg_title(content: str) -> Markup:
    """The name of a picture or part for screen readers and pointers."""
    return svg_element("title", escape(clean_line(content)))


def _value(value: str | float | int) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return clean_line(str(value))


WIDE = 740
NARROW = 350
_LABEL_PX = 13
_ROW_HEIGHT = 34
_LINES_HEIGHT = 230
_MOST_TICKS = {WIDE: 7, NARROW: 4}
_CHARACTER_PX = 7.2
_NONE = -1.0
"""A value that no axis has: without any, pygal chooses by itself which labels are bold."""
_DECIMALS = re.compile(r"-?\d+\.\d+")
_SHAPES = {"g", "rect", "path", "circle", "text"}
_GEOMETRY = ("x", "y", "width", "height", "d", "cx", "cy", "r", "transform")
_CLASSES = {
    "axis": "chart-axis", "guide": "chart-guide", "major": "chart-major", "line": "chart-line", "x": "chart-x",
    "y": "chart-y", "dot": "chart-dot",
}


@dataclass(frozen=True, slots=True)
class BarPart:
    """What is laid end to end in the rows: one length for each row. A kind of "" leaves its place empty."""

    kind: str
    """A class of the style sheet."""
    lengths: tuple[float, ...]
    words: tuple[str, ...] = ()
    """For whoever points at it, one for each row."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Rows from top to bottom on one scale from zero to `end`."""

    words: str
    """The picture for those who do not see it."""
    rows: tuple[str, ...]
    parts: tuple[BarPart, ...]
    end: float
    ticks: tuple[tuple[float, str], ...] = ()
    """Values and their labels; a picture that is too narrow leaves some out, marks never."""
    marks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """Points in order of x. A single point is a dot."""

    kind: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over a range of x, and y from zero to `top`."""

    words: str
    lines: tuple[Line, ...]
    first: float
    last: float
    top: float
    x_marks: tuple[tuple[float, str], ...] = ()
    """Labels of x that are not left out, unless two would overlap: then the first is shown."""
    y_mark: tuple[float, str] | None = None


@lru_cache(maxsize=256)
def draw_bars(bars: Bars) -> Markup:
    """Both widths of the picture, empty when there is nothing to draw. The cache keeps what finished incidents show
    again and again."""
    if not bars.parts:
        return Markup("")
    return Markup("").join(_bars(bars, width) for width in (WIDE, NARROW))


@lru_cache(maxsize=256)
def draw_lines(lines: Lines) -> Markup:
    """Both widths of the picture."""
    return Markup("").join(_lines(lines, width) for width in (WIDE, NARROW))


def _bars(bars: Bars, width: int) -> Markup:
    from pygal import HorizontalStackedBar

    room = 22 if width == WIDE else 13
    chart: Any = HorizontalStackedBar(
        width=width, height=_ROW_HEIGHT * len(bars.rows) + 34, range=(0, bars.end), **_settings()
    )
    chart.x_labels = [_cut(clean_line(row), room) for row in reversed(bars.rows)]
    chosen = _apart(bars.ticks, bars.marks, bars.end, width - 130)
    chart.y_labels = [{"value": value, "label": label} for value, label in chosen]
    chart.y_labels_major = [value for value, _ in bars.marks] or [_NONE]
    for part in bars.parts:
        chart.add(part.kind, list(reversed(part.lengths)))
    words = [tuple(reversed(part.words)) for part in bars.parts]
    return _picture(chart.render_tree(), [part.kind for part in bars.parts], bars.words, width, words)


def _lines(lines: Lines, width: int) -> Markup:
    from pygal import XY

    span = (lines.last - lines.first) or 1.0
    chart: Any = XY(
        width=width, height=_LINES_HEIGHT, range=(0, lines.top), xrange=(lines.first, lines.first + span),
        show_x_guides=True, dots_size=2.5, **_settings(),
    )
    round_steps = nice_ticks(lines.first, lines.last, _MOST_TICKS[width], whole=True)
    ticks = tuple((value, f"{value:.0f}") for value in round_steps)
    chart.x_labels = [
        {"value": value, "label": label}
        for value, label in _apart(ticks, lines.x_marks, span, width - 60, start=lines.first)
    ]
    chart.x_labels_major = [_NONE]
    levels = tuple((value, f"{value:g}") for value in nice_ticks(0, lines.top, 5))
    marks = (lines.y_mark,) if lines.y_mark else ()
    near = lines.top / 12
    chart.y_labels = [
        {"value": value, "label": label}
        for value, label in sorted(
            (*(one for one in levels if all(abs(one[0] - mark[0]) >= near for mark in marks)), *marks)
        )
    ]
    chart.y_labels_major = [mark[0] for mark in marks] or [_NONE]
    for line in lines.lines:
        chart.add(line.kind, list(line.points), show_dots=len(line.points) == 1)
    return _picture(chart.render_tree(), [line.kind for line in lines.lines], lines.words, width)


def _cut(label: str, room: int) -> str:
    return label if len(label) <= room else f"{label[: room - 1]}…"


def _settings() -> dict[str, Any]:
    from pygal.style import Style

    style = Style(
        font_family="sans-serif", label_font_size=_LABEL_PX, major_label_font_size=_LABEL_PX,
        value_font_size=_LABEL_PX, value_label_font_size=_LABEL_PX,
    )
    return {
        "style": style, "css": (), "js": (), "no_prefix": True, "show_legend": False, "margin": 4, "margin_right": 30,
        "spacing": 8, "truncate_label": -1, "print_values": False,
    }


def nice_ticks(first: float, last: float, most: int, *, whole: bool = False) -> tuple[float, ...]:
    """Round numbers (1, 2, 5 and their tens) within a range, at most `most` and one more."""
    span = last - first
    if not math.isfinite(span) or span <= 0:
        return (first,)
    rough = span / max(1, most)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    if whole:
        step = max(1.0, step)
    begin = math.ceil(first / step - 1e-9)
    return tuple(index * step for index in range(begin, begin + most + 2) if index * step <= last + step * 1e-9)


def _apart(
    ticks: tuple[tuple[float, str], ...], marks: tuple[tuple[float, str], ...], span: float, width_px: float,
    *, start: float = 0.0,
) -> list[tuple[float, str]]:
    """Labels that do not run into each other: marks first, then ticks from left to right."""
    chosen: list[tuple[float, str]] = []

    def place(one: tuple[float, str]) -> float:
        return (one[0] - start) / span * width_px if span else 0.0

    for one in (*marks, *ticks):
        half = len(one[1]) * _CHARACTER_PX / 2
        if all(abs(place(one) - place(other)) > half + len(other[1]) * _CHARACTER_PX / 2 + 6 for other in chosen):
            chosen.append(one)
    return sorted(chosen)


def _picture(
    root: Any, kinds: list[str], words: str, width: int, bar_words: list[tuple[str, ...]] | None = None
) -> Markup:
    """The shapes of pygal's tree, in the page's words."""
    shapes = Markup("").join(_taken_over(child, kinds, bar_words or [], None) for child in root)
    return svg_element(
        "svg", svg_title(words) + shapes, class_=f"chart chart-{'wide' if width == WIDE else 'narrow'}", role="img",
        viewBox=root.attrib["viewBox"],
    )


def _taken_over(node: Any, kinds: list[str], bar_words: list[tuple[str, ...]], series: int | None) -> Markup:
    if not isinstance(node.tag, str):
        return Markup("")  # a comment
    name = node.tag.rpartition("}")[2]
    classes = node.attrib.get("class", "").split()
    if name not in _SHAPES or {"background", "tooltip-overlay", "titles"} & set(classes):
        return Markup("")
    geometry: dict[str, str | float | int] = {
        key: _short(node.attrib[key]) for key in _GEOMETRY if key in node.attrib
    }
    if name == "text":
        major = "chart-label chart-major" if "major" in classes else "chart-label"
        return svg_text(node.text or "", class_=major, **geometry) if node.text else Markup("")
    for one in classes:
        if one.startswith("serie-"):
            series = int(one.removeprefix("serie-"))
    if series is not None and not kinds[series]:
        return Markup("")
    if series is not None and name != "g":
        if name == "rect" and ("width" not in geometry or "height" not in geometry):
            return Markup("")  # a length of zero
        kind = kinds[series]
        return svg_element(name, "", class_=f"{kind} chart-dot" if name == "circle" else kind, **geometry)
    inside = Markup("").join(_children(node, kinds, bar_words, series, bars="bars" in classes))
    if name == "g":
        if not inside:
            return Markup("")
        classes = [one for one in classes if one in ("axis", "x", "y")]
    kept = " ".join(_CLASSES[one] for one in classes if one in _CLASSES)
    if kept:
        geometry["class_"] = kept
    return svg_element(name, inside, **geometry) if geometry else inside


def _children(
    node: Any, kinds: list[str], bar_words: list[tuple[str, ...]], series: int | None, *, bars: bool
) -> Iterator[Markup]:
    # Marks of y lie over the guides of x.
    for index, child in enumerate(sorted(node, key=_depth) if node.attrib.get("class") == "plot" else node):
        inside = _taken_over(child, kinds, bar_words, series)
        if bars and inside and series is not None and index < len(bar_words[series]):
            inside = svg_element("g", svg_title(bar_words[series][index]) + inside)
        yield inside


def _depth(node: Any) -> int:
    classes = node.attrib.get("class", "").split()
    return 2 if "axis" not in classes else 1 if "y" in classes else 0


def _short(value: str) -> str:
    """Coordinates to a tenth of a pixel."""
    return _DECIMALS.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), value)
