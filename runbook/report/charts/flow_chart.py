"""The flowchart with the path taken: the same document that the engine walks, drawn.

Graphviz is a program that a site would have to install; the libraries in Python that lay out a directed graph
(grandalf, networkx, igraph) place boxes and leave the arrows' ways around them, their labels and the drawing to us,
which is what `lay_out` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from runbook.model.incident import BoxVisit
from runbook.report.charts.plots import svg_element, svg_text, svg_title
from runbook.report.vocabulary.clean import clean_line, shorten

# What a picture is drawn from: the flow's boxes and arrows with the path taken, and a GPU's memory in parts.

@dataclass(frozen=True, slots=True)
class FlowBox:
    """A box of the flowchart. `acts`: it does something outside."""

    name: str
    title: str
    acts: bool = False


@dataclass(frozen=True, slots=True)
class FlowArrow:
    """From box to box on an outcome. A target that is no box ("end") is not drawn."""

    source: str
    target: str
    outcome: str


@dataclass(frozen=True, slots=True)
class FlowPhase:
    """Boxes whose time is one part of the picture of times. `acts`: all of them do something outside."""

    name: str
    title: str
    boxes: frozenset[str]
    acts: bool = False


@dataclass(frozen=True, slots=True)
class FlowPicture:
    """A flow document as a graph. Boxes are in document order: it is the order from top to bottom."""

    title: str
    boxes: tuple[FlowBox, ...]
    arrows: tuple[FlowArrow, ...]
    taken: tuple[BoxVisit, ...] = ()
    """Empty: the visits of the incident that is reported."""
    phases: tuple[FlowPhase, ...] = ()
    """What the work on a failure consists of, up to the relaunch."""
    afterwards: frozenset[str] = frozenset()
    """Boxes with which that work is over."""
    proof: str = ""
    """The box that watches a relaunched job until it is proven."""


@dataclass(frozen=True, slots=True)
class Stay:
    """One number of the path: a box entered once, however often it looked again before it was left."""

    number: int
    box: str
    outcome: str
    started_s: float
    ended_s: float | None
    attempt: int
    summary: str
    looks: int = 1

    @property
    def duration_s(self) -> float | None:
        return None if self.ended_s is None else self.ended_s - self.started_s


def stays(visits: tuple[BoxVisit, ...]) -> tuple[Stay, ...]:
    """Visits in order, those that follow each other in one box taken together (verification polls its box)."""
    path: list[Stay] = []
    for visit in visits:
        last = path[-1] if path else None
        if last is not None and last.box == visit.box:
            path[-1] = Stay(
                last.number, visit.box, visit.outcome, last.started_s, visit.ended_s, visit.attempt,
                visit.summary or last.summary, last.looks + 1,
            )
        else:
            path.append(
                Stay(
                    len(path) + 1, visit.box, visit.outcome, visit.started_s, visit.ended_s, visit.attempt,
                    visit.summary,
                )
            )
    return tuple(path)


# Where the boxes and arrows of a flow go: layers from top to bottom, the usual way straight down.
#
# Arrows to a neighbouring layer run between the boxes; all others leave into the gap below their box, run in a lane at
# the side (left: forward, right: back) and enter from the gap above their target. Targets of many arrows
# ("escalate") are only given those that were taken, else they would hide the rest.

BOX_WIDTH = 228.0
BOX_HEIGHT = 38.0
_COLUMN = BOX_WIDTH + 26.0
_GAP = 46.0
_LANE = 14.0
_MARGIN = 10.0
_ASIDE = 70.0
"""Arrows with a lane leave and enter this far beside the middle."""
_MANY = 4
"""A box that more boxes than this lead to is a hub."""


@dataclass(frozen=True, slots=True)
class PlacedBox:
    name: str
    title: str
    acts: bool
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class PlacedArrow:
    """Corner points from source to target; `label_at` is left of where the label starts."""

    source: str
    target: str
    outcomes: tuple[str, ...]
    points: tuple[tuple[float, float], ...]
    taken: bool
    label_at: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Layout:
    width: float
    height: float
    boxes: tuple[PlacedBox, ...]
    arrows: tuple[PlacedArrow, ...]
    hubs: tuple[str, ...]
    """Boxes to which arrows were left out."""


def lay_out(flow: FlowPicture, taken: frozenset[tuple[str, str]]) -> Layout:
    """Place a flow. `taken` holds the (source, target) pairs that were walked."""
    order = {box.name: index for index, box in enumerate(flow.boxes)}
    outcomes: dict[tuple[str, str], list[str]] = {}
    for arrow in flow.arrows:
        if arrow.source in order and arrow.target in order and arrow.source != arrow.target:
            outcomes.setdefault((arrow.source, arrow.target), []).append(arrow.outcome)
    layers = _layers(order, outcomes)
    hubs = {name for name in order if sum(1 for _, target in outcomes if target == name) > _MANY}
    drawn = {
        pair: names
        for pair, names in outcomes.items()
        if pair[1] not in hubs or pair in taken or layers[pair[1]] - layers[pair[0]] == 1
    }
    columns = _columns(order, layers, drawn, hubs)
    far = [pair for pair in drawn if not _between_neighbours(pair, layers, columns)]
    left = [pair for pair in far if layers[pair[1]] > layers[pair[0]]]
    right = [pair for pair in far if layers[pair[1]] <= layers[pair[0]]]
    # The longest way round takes the outermost lane, so that lanes do not cross.
    left.sort(key=lambda pair: layers[pair[1]] - layers[pair[0]])
    right.sort(key=lambda pair: layers[pair[0]] - layers[pair[1]])
    leftmost = min(columns.values(), default=0)
    origin = _MARGIN + len(left) * _LANE - leftmost * _COLUMN
    lanes = {pair: _MARGIN + (len(left) - 1 - index) * _LANE for index, pair in enumerate(left)}
    edge = origin + max(columns.values(), default=0) * _COLUMN + BOX_WIDTH
    lanes.update({pair: edge + (index + 1) * _LANE for index, pair in enumerate(right)})
    x = {name: origin + columns[name] * _COLUMN for name in order}
    y = {name: _MARGIN + layers[name] * (BOX_HEIGHT + _GAP) for name in order}
    arrows = tuple(
        _route(pair, tuple(names), x, y, lanes.get(pair), pair in taken) for pair, names in drawn.items()
    )
    return Layout(
        width=edge + len(right) * _LANE + _MARGIN + _LANE,
        height=max(y.values(), default=0.0) + BOX_HEIGHT + _MARGIN,
        boxes=tuple(PlacedBox(box.name, box.title, box.acts, x[box.name], y[box.name]) for box in flow.boxes),
        arrows=arrows,
        hubs=tuple(
            box.title for box in flow.boxes
            if box.name in hubs and any(pair[1] == box.name and pair not in drawn for pair in outcomes)
        ),
    )


def _layers(order: dict[str, int], outcomes: dict[tuple[str, str], list[str]]) -> dict[str, int]:
    """Longest way from the top. An arrow against the document's order leads back and pushes nothing down."""
    layers = dict.fromkeys(order, 0)
    for name in order:
        for source, target in outcomes:
            if source == name and order[target] > order[source]:
                layers[target] = max(layers[target], layers[source] + 1)
    return layers


def _columns(
    order: dict[str, int], layers: dict[str, int], drawn: dict[tuple[str, str], list[str]], hubs: set[str]
) -> dict[str, int]:
    """Column 0 is the usual way down; where it is passed over by an arrow, or shared, boxes step to the left."""
    columns: dict[str, int] = {}
    for layer in sorted(set(layers.values())):
        row = [name for name in order if layers[name] == layer]
        passed_over = any(
            layers[source] < layer < layers[target] and target not in hubs and layers[target] - layers[source] == 2
            for source, target in drawn
        )
        row.sort(key=lambda name: (name in hubs, -order[name]))
        for place, name in enumerate(row):
            columns[name] = -(place + (1 if passed_over else 0))
    return columns


def _between_neighbours(pair: tuple[str, str], layers: dict[str, int], columns: dict[str, int]) -> bool:
    """Whether a straight or once-bent line meets no box on its way."""
    source, target = pair
    step = layers[target] - layers[source]
    if step == 1:
        return True
    if step != 2 or columns[source] != columns[target]:
        return False
    return all(
        columns[name] != columns[source] for name, layer in layers.items() if layer == layers[source] + 1
    )


def _route(
    pair: tuple[str, str],
    outcomes: tuple[str, ...],
    x: dict[str, float],
    y: dict[str, float],
    lane: float | None,
    taken: bool,
) -> PlacedArrow:
    source, target = pair
    bottom = y[source] + BOX_HEIGHT
    middle_source, middle_target = x[source] + BOX_WIDTH / 2, x[target] + BOX_WIDTH / 2
    if lane is None:
        turn = y[target] - _GAP / 2
        points = [(middle_source, bottom)]
        if abs(middle_source - middle_target) > 0.5:
            points += [(middle_source, turn), (middle_target, turn)]
        points.append((middle_target, y[target]))
        return PlacedArrow(source, target, outcomes, tuple(points), taken, (middle_source + 7, bottom + 15))
    back = lane > middle_source
    aside = _ASIDE if back else -_ASIDE
    leave, enter = middle_source + aside, middle_target + aside
    below, above = bottom + _GAP * 0.6, y[target] - _GAP * 0.3
    points = [(leave, bottom), (leave, below), (lane, below), (lane, above), (enter, above), (enter, y[target])]
    label = (leave + 4, below + 12) if back else (leave - 4, below + 12)
    return PlacedArrow(source, target, outcomes, tuple(points), taken, label)


_RADIUS = 6.0


def flow_chart(flow: FlowPicture, path: tuple[Stay, ...]) -> tuple[Markup, tuple[str, ...]]:
    """The picture, and the titles of the boxes to which untaken arrows were left out."""
    walked = frozenset((here.box, there.box) for here, there in pairwise(path))
    layout = lay_out(flow, walked)
    shapes: list[Markup] = [svg_title(f"{flow.title}: {len(path)} boxes visited"), _arrow_heads()]
    labelled: set[tuple[float, float]] = set()
    # Labels of one box share a place: the taken way's is shown, else the one straight down. Taken lines lie on top.
    lines: list[Markup] = []
    labels: list[Markup] = []
    for arrow in sorted(layout.arrows, key=lambda arrow: (not arrow.taken, len(arrow.points))):
        lines.insert(0, _line(arrow))
        if arrow.label_at not in labelled:
            labelled.add(arrow.label_at)
            labels.append(_label(arrow, path))
    shapes += lines + labels
    for box in layout.boxes:
        shapes.append(_box(box, [stay for stay in path if stay.box == box.name]))
    picture = svg_element(
        "svg", Markup("").join(shapes), class_="flow-chart", role="img", width=layout.width, height=layout.height,
        viewBox=f"0 0 {layout.width:.0f} {layout.height:.0f}",
    )
    return picture, layout.hubs


def _arrow_heads() -> Markup:
    heads = Markup("").join(
        svg_element(
            "marker", svg_element("path", d="M0,0 L7,3.5 L0,7 z", class_=f"head-{name}"), id=f"head-{name}",
            viewBox="0 0 7 7", refX=6.5, refY=3.5, markerWidth=7.0, markerHeight=7.0, orient="auto",
            markerUnits="userSpaceOnUse",
        )
        for name in ("taken", "pale")
    )
    return svg_element("defs", heads)


def _line(arrow: PlacedArrow) -> Markup:
    name = "taken" if arrow.taken else "pale"
    return svg_element("path", d=_rounded(arrow.points), class_=f"arrow arrow-{name}", marker_end=f"url(#head-{name})")


def _label(arrow: PlacedArrow, path: tuple[Stay, ...]) -> Markup:
    if arrow.taken:
        walked = [
            here.outcome.replace("_", " ")
            for here, there in pairwise(path)
            if (here.box, there.box) == (arrow.source, arrow.target) and here.outcome
        ]
        words = " / ".join(dict.fromkeys(walked))
        label = words if len(words) <= 20 else walked[-1]
    else:
        shown = [outcome.replace("_", " ") for outcome in arrow.outcomes[:2]]
        label = " / ".join(shown) + (" …" if len(arrow.outcomes) > 2 else "")
    x, y = arrow.label_at
    return svg_text(
        clean_line(label)[:32], x=x, y=y, class_=f"label label-{'taken' if arrow.taken else 'pale'}",
        text_anchor="end" if x < arrow.points[0][0] else "start",
    )


def _box(box: PlacedBox, visits: list[Stay]) -> Markup:
    running = bool(visits) and visits[-1].ended_s is None
    state = "running" if running else "visited" if visits else "pale"
    shapes = [
        svg_element("rect", x=box.x, y=box.y, width=BOX_WIDTH, height=BOX_HEIGHT, rx=_RADIUS, class_="frame"),
        svg_text(
            shorten(clean_line(box.title), 30), x=box.x + BOX_WIDTH / 2, y=box.y + BOX_HEIGHT / 2 + 4.5,
            text_anchor="middle", class_="name",
        ),
    ]
    if box.acts:
        shapes.append(
            svg_element(
                "line", x1=box.x + 5, x2=box.x + 5, y1=box.y + 9, y2=box.y + BOX_HEIGHT - 9, class_="acts"
            )
        )
    if visits:
        numbers = [str(visit.number) for visit in visits]
        label = ", ".join(numbers if len(numbers) <= 4 else [*numbers[:2], "…", numbers[-1]])
        width = max(20.0, 7.0 * len(label) + 10)
        left = box.x - 6
        shapes.append(
            svg_element("rect", x=left, y=box.y - 9, width=width, height=18.0, rx=9.0, class_="number-back")
        )
        shapes.append(svg_text(label, x=left + width / 2, y=box.y + 4, text_anchor="middle", class_="number"))
    return svg_element("g", Markup("").join(shapes), class_=f"box box-{state}")


def _rounded(points: tuple[tuple[float, float], ...]) -> str:
    """A line through the points with rounded corners."""
    path = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        start, stop = _towards(corner, before), _towards(corner, after)
        path.append(f"L{start[0]:.1f},{start[1]:.1f} Q{corner[0]:.1f},{corner[1]:.1f} {stop[0]:.1f},{stop[1]:.1f}")
    path.append(f"L{points[-1][0]:.1f},{points[-1][1]:.1f}")
    return " ".join(path)


def _towards(corner: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    length = max(abs(other[0] - corner[0]), abs(other[1] - corner[1]), 0.001)
    share = min(_RADIUS / length, 0.5)
    return corner[0] + (other[0] - corner[0]) * share, corner[1] + (other[1] - corner[1]) * share
