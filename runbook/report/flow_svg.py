"""The flowchart with the path taken: the same document that the engine walks, drawn.

The charts of figures are a library's (`charts.py`); this one is ours. Graphviz is a program that a site would have to
install; the libraries in Python that lay out a directed graph (grandalf, networkx, igraph) place boxes and leave the
arrows' ways around them, their labels and the drawing to us, which is what `flow_layout.py` does.
"""

from __future__ import annotations

from itertools import pairwise

from markupsafe import Markup

from runbook.report.clean import clean_line, shorten
from runbook.report.flow_layout import BOX_HEIGHT, BOX_WIDTH, PlacedArrow, PlacedBox, lay_out
from runbook.report.picture import FlowPicture, Stay
from runbook.report.svg import element, text, title

_RADIUS = 6.0


def flow_chart(flow: FlowPicture, path: tuple[Stay, ...]) -> tuple[Markup, tuple[str, ...]]:
    """The picture, and the titles of the boxes to which untaken arrows were left out."""
    walked = frozenset((here.box, there.box) for here, there in pairwise(path))
    layout = lay_out(flow, walked)
    shapes: list[Markup] = [title(f"{flow.title}: {len(path)} boxes visited"), _arrow_heads()]
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
    picture = element(
        "svg", Markup("").join(shapes), class_="flow-chart", role="img", width=layout.width, height=layout.height,
        viewBox=f"0 0 {layout.width:.0f} {layout.height:.0f}",
    )
    return picture, layout.hubs


def _arrow_heads() -> Markup:
    heads = Markup("").join(
        element(
            "marker", element("path", d="M0,0 L7,3.5 L0,7 z", class_=f"head-{name}"), id=f"head-{name}",
            viewBox="0 0 7 7", refX=6.5, refY=3.5, markerWidth=7.0, markerHeight=7.0, orient="auto",
            markerUnits="userSpaceOnUse",
        )
        for name in ("taken", "pale")
    )
    return element("defs", heads)


def _line(arrow: PlacedArrow) -> Markup:
    name = "taken" if arrow.taken else "pale"
    return element("path", d=_rounded(arrow.points), class_=f"arrow arrow-{name}", marker_end=f"url(#head-{name})")


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
    return text(
        clean_line(label)[:32], x=x, y=y, class_=f"label label-{'taken' if arrow.taken else 'pale'}",
        text_anchor="end" if x < arrow.points[0][0] else "start",
    )


def _box(box: PlacedBox, visits: list[Stay]) -> Markup:
    running = bool(visits) and visits[-1].ended_s is None
    state = "running" if running else "visited" if visits else "pale"
    shapes = [
        element("rect", x=box.x, y=box.y, width=BOX_WIDTH, height=BOX_HEIGHT, rx=_RADIUS, class_="frame"),
        text(
            shorten(clean_line(box.title), 30), x=box.x + BOX_WIDTH / 2, y=box.y + BOX_HEIGHT / 2 + 4.5,
            text_anchor="middle", class_="name",
        ),
    ]
    if box.acts:
        shapes.append(
            element(
                "line", x1=box.x + 5, x2=box.x + 5, y1=box.y + 9, y2=box.y + BOX_HEIGHT - 9, class_="acts"
            )
        )
    if visits:
        numbers = [str(visit.number) for visit in visits]
        label = ", ".join(numbers if len(numbers) <= 4 else [*numbers[:2], "…", numbers[-1]])
        width = max(20.0, 7.0 * len(label) + 10)
        left = box.x - 6
        shapes.append(
            element("rect", x=left, y=box.y - 9, width=width, height=18.0, rx=9.0, class_="number-back")
        )
        shapes.append(text(label, x=left + width / 2, y=box.y + 4, text_anchor="middle", class_="number"))
    return element("g", Markup("").join(shapes), class_=f"box box-{state}")


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
