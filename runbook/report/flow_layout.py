"""Where the boxes and arrows of a flow go: layers from top to bottom, the usual way straight down.

Arrows to a neighbouring layer run between the boxes; all others leave into the gap below their box, run in a lane at
the side (left: forward, right: back) and enter from the gap above their target. Targets of many arrows
("escalate") are only given those that were taken, else they would hide the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from runbook.report.picture import FlowPicture

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
