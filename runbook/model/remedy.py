"""Levers and plans: what may be changed, at what cost, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runbook.model.template import Edit


class Effect(StrEnum):
    """What a change does to the experiment. TRAINING is never used without the owner's consent."""

    NONE = "none"
    """The mathematics stays: the same global batch, the same tokens."""
    NUMERICS = "numerics"
    """The same samples, another order of floating-point sums."""
    TRAINING = "training"
    """The experiment changes: sequence length, samples, dropout masks."""


@dataclass(frozen=True, slots=True)
class LeverUse:
    """One lever applied with concrete values."""

    lever: str
    title: str
    why: str
    source: str
    effect: Effect
    cost: str
    edits: tuple[Edit, ...]
    key: str
    """Lever and values in one word, so that the same change is never tried twice in one incident."""
    expectation: str = ""
    """What it should free, with the formula, where that can be said."""
    needs_reshard: bool = False
    """Only with a checkpoint that can be loaded into another sharding or world size."""
    seen_before: tuple[str, ...] = ()
    """How this lever ended in earlier incidents like this one, in sentences, the nearest incidents first."""


@dataclass(frozen=True, slots=True)
class RefusedLever:
    """A lever of the ladder that was passed over, and why."""

    lever: str
    why: str
    needs_person: bool = False
    question: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next rung of the ladder: levers used together, and those refused on the way."""

    uses: tuple[LeverUse, ...]
    refused: tuple[RefusedLever, ...] = ()
    system: str = ""
    ladder: str = ""

    @property
    def edits(self) -> tuple[Edit, ...]:
        return tuple(edit for use in self.uses for edit in use.edits)


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No lever is left or none is safe. `question` is set where a person's answer would open one."""

    why: str
    refused: tuple[RefusedLever, ...] = ()
    exhausted: bool = True
    question: str = ""
