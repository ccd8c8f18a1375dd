"""Bars and lines as SVG, drawn into the page, so that its colours and its search reach them.

Shapes have classes of the page's style sheet and nothing of their own: no inline style, no id, no script, so that the
page's content security policy can forbid all of it, and the same figures give the same bytes. Each chart is drawn
twice, for a wide page and for a phone, so that its words have their size on both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from markupsafe import Markup, escape

from runbook.report.vocabulary.clean import clean_line


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
_BESIDE_PX = 0.6 * _LABEL_PX
"""A character of the labels at the left: room for the widest."""
_MARGIN = 4
_MARGIN_RIGHT = 30
_SPACING = 8
_EDGE = 0.02
"""What is left free at both ends of a scale, as a share of it."""
_ROW_GAP = 0.06
"""What is left free above and below a bar, as a share of its row."""
_BASELINE = 0.35 * _LABEL_PX
"""How far the baseline of a label lies below its middle."""
_DOT_RADIUS = 2.5

_Label = tuple[float, str]


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
    room = 22 if width == WIDE else 13
    rows = [_cut(clean_line(row), room) for row in bars.rows]
    labels = _apart(bars.ticks, bars.marks, bars.end, width - 130)
    plot = _Plot.beside(rows, width, _ROW_HEIGHT * len(rows) + 34)
    values = _Scale.over(0.0, bars.end, labels, plot.width)
    row_px = plot.height / (1 + 2 * _EDGE) / len(rows)
    tops = [plot.height * _EDGE / (1 + 2 * _EDGE) + row_px * at for at in range(len(rows))]
    names = [_label(row, "-5", top + row_px / 2 + _BASELINE) for row, top in zip(rows, tops)]
    shapes = [_bottom_axis(labels, bars.marks, values, plot), _axis("chart-y", reversed(names))]
    ends = [0.0] * len(rows)
    for part in bars.parts:
        for at, length in reversed(list(enumerate(part.lengths))):
            start, ends[at] = ends[at], ends[at] + length
            if not part.kind or not length:
                continue
            left = values.at(start)
            bar = svg_element(
                "rect", class_=part.kind, x=_px(left), y=_px(tops[at] + row_px * _ROW_GAP),
                width=_px(values.at(ends[at]) - left), height=_px(row_px * (1 - 2 * _ROW_GAP)),
            )
            shapes.append(svg_element("g", svg_title(part.words[at]) + bar) if part.words else bar)
    return plot.picture(bars.words, [plot.group(shapes)])


def _lines(lines: Lines, width: int) -> Markup:
    span = (lines.last - lines.first) or 1.0
    ticks = nice_ticks(lines.first, lines.last, _MOST_TICKS[width], whole=True)
    steps = tuple((value, f"{value:.0f}") for value in ticks)
    below = _apart(steps, lines.x_marks, span, width - 60, start=lines.first)
    marks = [lines.y_mark] if lines.y_mark else []
    levels = [(value, f"{value:g}") for value in nice_ticks(0, lines.top, 5)]
    beside = sorted((*(one for one in levels if all(abs(one[0] - at) >= lines.top / 12 for at, _ in marks)), *marks))
    plot = _Plot.beside([label for _, label in beside], width, _LINES_HEIGHT)
    across = _Scale.over(lines.first, lines.first + span, below, plot.width)
    up = _Scale.over(0.0, lines.top, beside, plot.height)

    def place(point: tuple[float, float]) -> str:
        return f"{_px(across.at(point[0]))} {_px(plot.height - up.at(point[1]))}"

    shapes = [_bottom_axis(below, (), across, plot), _left_axis(beside, marks, up, plot)]
    dots = []
    for line in lines.lines:
        if len(line.points) > 1:
            first, *others = map(place, line.points)
            shapes.append(svg_element("path", class_=line.kind, d=f"M{first} L{' '.join(others)}"))
        else:
            x, y = place(line.points[0]).split()
            dots.append(svg_element("circle", class_=f"{line.kind} chart-dot", cx=x, cy=y, r=_DOT_RADIUS))
    return plot.picture(lines.words, [plot.group(shapes), *([plot.group(dots)] if dots else [])])


class _Scale(NamedTuple):
    """From values to pixels."""

    low: float
    span: float
    length_px: float

    @classmethod
    def over(cls, low: float, high: float, labels: Sequence[_Label], length_px: float) -> _Scale:
        """A scale with some room at its ends, in which the labels have place, too."""
        values = [low, high, *(value for value, _ in labels)]
        low, span = min(values), max(values) - min(values)
        return cls(low - _EDGE * span, span * (1 + 2 * _EDGE), length_px)

    def at(self, value: float) -> float:
        return self.length_px * (value - self.low) / self.span


class _Plot(NamedTuple):
    """Where the shapes go within a picture: right of the labels at its left, above those at its bottom."""

    whole_width: int
    whole_height: int
    left: float

    @classmethod
    def beside(cls, labels: Sequence[str], width: int, height: int) -> _Plot:
        widest = max(len(label) for label in labels) * _BESIDE_PX
        return cls(width, height, _MARGIN + _SPACING + max(widest, _LABEL_PX))

    @property
    def width(self) -> float:
        return self.whole_width - self.left - _MARGIN_RIGHT

    @property
    def height(self) -> int:
        return self.whole_height - 2 * _MARGIN - _SPACING - _LABEL_PX

    def group(self, shapes: Iterable[Markup]) -> Markup:
        return svg_element("g", Markup("").join(shapes), transform=f"translate({int(self.left)}, {_MARGIN})")

    def picture(self, words: str, groups: Iterable[Markup]) -> Markup:
        return svg_element(
            "svg", svg_title(words) + Markup("").join(groups),
            class_=f"chart chart-{'wide' if self.whole_width == WIDE else 'narrow'}", role="img",
            viewBox=f"0 0 {self.whole_width} {self.whole_height}",
        )


def _bottom_axis(labels: Sequence[_Label], marks: Sequence[_Label], scale: _Scale, plot: _Plot) -> Markup:
    shapes = []
    for value, label in labels:
        x = _px(scale.at(value))
        shapes.append(_guide(f"M{x} 0 v{plot.height}", (value, label), marks))
        shapes.append(_label(label, x, plot.height + 10 + _LABEL_PX / 2, (value, label) in marks))
    return _axis("chart-x", shapes, labels, f"M0 0 v{plot.height}")


def _left_axis(labels: Sequence[_Label], marks: Sequence[_Label], scale: _Scale, plot: _Plot) -> Markup:
    shapes = []
    for value, label in labels:
        y = plot.height - scale.at(value)
        shapes.append(_guide(f"M0 {_px(y)} h{_px(plot.width)}", (value, label), marks))
        shapes.append(_label(label, "-5", y + _BASELINE, (value, label) in marks))
    return _axis("chart-y", shapes, labels, f"M0 {plot.height} h{_px(plot.width)}")


def _axis(name: str, shapes: Iterable[Markup], labels: Sequence[_Label] = (), edge: str = "") -> Markup:
    """`edge`: the line that is drawn where no label stands at zero."""
    if edge and all(value for value, _ in labels):
        shapes = [svg_element("path", d=edge, class_="chart-line"), *shapes]
    return svg_element("g", Markup("").join(shapes), class_=f"chart-axis {name}")


def _guide(path: str, label: _Label, marks: Sequence[_Label]) -> Markup:
    classes = {"chart-axis": label[1] == "0", "chart-major": label in marks, "chart-guide": label[0] != 0}
    told = " ".join((*(name for name, holds in classes.items() if holds), "chart-line"))
    return svg_element("path", d=path, class_=told)


def _label(label: str, x: str, y: float, major: bool = False) -> Markup:
    return svg_text(label, class_="chart-label chart-major" if major else "chart-label", x=x, y=_px(y))


def _px(value: float) -> str:
    """A coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def _cut(label: str, room: int) -> str:
    return label if len(label) <= room else f"{label[: room - 1]}…"


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
