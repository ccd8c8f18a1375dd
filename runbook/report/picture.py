"""What a picture is drawn from: the flow's boxes and arrows with the path taken, and a GPU's memory in parts."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.model.incident import BoxVisit


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
class FlowPicture:
    """A flow document as a graph. Boxes are in document order: it is the order from top to bottom."""

    title: str
    boxes: tuple[FlowBox, ...]
    arrows: tuple[FlowArrow, ...]
    taken: tuple[BoxVisit, ...] = ()
    """Empty: the visits of the incident that is reported."""


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
