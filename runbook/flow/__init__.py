"""The flow document as a graph: loading it proves that every outcome of every step leads somewhere."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from pydantic import Field

from runbook.documents import Document, DocumentsInvalid, Problem, load_document
from runbook.steps.shared.base import ACTS, Proposal, StepContext, StepResult

END = "end"


class BoxDocument(Document):
    title: str
    why: str
    acts: tuple[str, ...] = ()
    """What it does outside, by the method of the port: it needs the policy's leave, and a plan only names it."""
    step: str = ""
    """Module of `runbook.steps`; the box's own name when empty."""
    late_s: float | None = Field(default=None, gt=0)
    """As the document's, for this box."""
    next: dict[str, str]


class PhaseDocument(Document):
    """Boxes whose time is one part of the report's picture."""

    title: str
    boxes: list[str]


class FlowDocument(Document):
    version: int = Field(ge=1, le=1)
    id: str
    title: str
    why: str
    source: str
    start: str
    phases: dict[str, PhaseDocument] = {}
    """What the work on a failure consists of, up to the relaunch."""
    afterwards: list[str] = []
    """Boxes with which that work is over."""
    proof: str = ""
    """The box that watches a relaunched job until it is proven."""
    person: str = ""
    """The box that hands over to a person, where another cannot go on."""
    late_s: float = Field(default=300.0, gt=0)
    """A box that is at work for longer is told of. What a box waits for between two looks does not count."""
    boxes: dict[str, BoxDocument]


@dataclass(frozen=True, slots=True)
class Box:
    """One box of the flowchart with its step's functions bound."""

    name: str
    title: str
    why: str
    acts: tuple[str, ...]
    next: Mapping[str, str]
    closes: bool
    """Nothing follows it: it only tells what was done."""
    run: Callable[[StepContext], StepResult]
    propose: Callable[[StepContext], Proposal | None] | None
    late_s: float
    """At work for longer than this, it is told of."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A checked flow. `boxes` is in document order, which is the order of the picture."""

    id: str
    title: str
    start: str
    boxes: Mapping[str, Box]
    phases: Mapping[str, PhaseDocument] = field(default_factory=dict)
    afterwards: frozenset[str] = frozenset()
    proof: str = ""
    person: str = ""

    def after(self, box: str, outcome: str) -> str:
        """The box that follows, or `END`. Unknown outcomes cannot happen in a checked flow."""
        return self.boxes[box].next[outcome]


class Boxes(Protocol):
    """Where a box's own functions run: here, or in the cage."""
    def run(self, box: Box, context: StepContext) -> StepResult: ...
    def propose(self, box: Box, context: StepContext) -> Proposal | None: ...


class Here:
    """In this process."""

    def run(self, box: Box, context: StepContext) -> StepResult:
        return box.run(context)

    def propose(self, box: Box, context: StepContext) -> Proposal | None:
        return box.propose(context) if box.propose else None


def load_flow(path: Path) -> Flow:
    """Read and check a flow document. Raises `DocumentsInvalid` with every fault at once."""
    document = load_document(path, FlowDocument, kept=True)
    text = path.read_text(encoding="utf-8")
    problems: list[Problem] = []

    def wrong(box: str, what: str, next_step: str) -> None:
        problems.append(Problem(str(path), _line_of(text, box), f"boxes.{box}", what, next_step))

    boxes: dict[str, Box] = {}
    for name, entry in document.boxes.items():
        module_name = entry.step or name
        try:
            module = importlib.import_module(f"runbook.steps.{module_name}")
            outcomes: type[StrEnum] = module.Outcome
        except (ImportError, AttributeError):
            wrong(name, f"no step runbook/steps/{module_name}.py with an Outcome", "name an existing step")
            continue
        wanted = {outcome.value for outcome in outcomes}
        for missing in sorted(wanted - entry.next.keys()):
            wrong(name, f"outcome {missing!r} leads nowhere", f"add `{missing}: BOX` under next")
        for extra in sorted(entry.next.keys() - wanted):
            wrong(name, f"the step has no outcome {extra!r}", "remove it")
        for outcome, target in entry.next.items():
            if target != END and target not in document.boxes:
                wrong(name, f"{outcome!r} leads to {target!r}, which is no box", "name a box or `end`")
        propose = getattr(module, "propose", None)
        if entry.acts and propose is None:
            wrong(name, "acts, but its step proposes nothing to approve", "add propose() to the step")
        for act in sorted(set(entry.acts) - ACTS):
            wrong(name, f"acts by {act!r}, which no port does", f"name one of {', '.join(sorted(ACTS))}")
        closes = set(entry.next.values()) == {END}
        boxes[name] = Box(
            name, entry.title, entry.why, entry.acts, entry.next, closes, module.run, propose,
            entry.late_s or document.late_s,
        )
    if document.start not in document.boxes:
        problems.append(Problem(str(path), 1, "start", f"{document.start!r} is no box", "name one"))
    else:
        for name in sorted(document.boxes.keys() - _reachable(document)):
            wrong(name, "no outcome leads here", "wire it or remove it")
    if not any(END in entry.next.values() for entry in document.boxes.values()):
        problems.append(Problem(str(path), 1, "boxes", "no outcome leads to `end`", "wire one"))
    named = [name for phase in document.phases.values() for name in phase.boxes] + document.afterwards
    for name in [*named, *filter(None, (document.proof, document.person))]:
        if name not in document.boxes:
            wrong(name, "named by phases, afterwards, proof or person, and no box", "name a box")
    if problems:
        raise DocumentsInvalid(problems)
    return Flow(
        document.id, document.title, document.start, boxes, document.phases, frozenset(document.afterwards),
        document.proof, document.person,
    )


def _reachable(document: FlowDocument) -> set[str]:
    seen: set[str] = set()
    ahead = [document.start]
    while ahead:
        name = ahead.pop()
        if name in seen or name not in document.boxes:
            continue
        seen.add(name)
        ahead.extend(document.boxes[name].next.values())
    return seen


def _line_of(text: str, box: str) -> int:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() == f"{box}:":
            return number
    return 1
