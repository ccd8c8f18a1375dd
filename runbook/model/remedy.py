"""Levers and plans, what is refused, and what is remembered of earlier incidents so that the next has a witness."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count, takewhile

from runbook.model.diagnosis import Detail, Kind
from runbook.model.log import Phase
from runbook.model.sentences import NOTHING, Sentence
from runbook.model.template import Edit
from runbook.model.units import Effect as Effect
from runbook.model.units import IncidentId

RANKS = "ranks"
"""The name under which a person says how many ranks the training has."""


class AnswerKind(StrEnum):
    """What settles a question, and by which option of the command line a person says it."""

    VALUE = "set"
    """The present value of a parameter, or of a variable of the script."""
    VERSION = "version"
    """The installed version of a package."""
    OPTION = "option"
    """That the program takes an option."""
    AGREE = "agree"
    """That a change may be made which is not made unasked."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is not known and stops the lever that comes first."""

    kind: AnswerKind
    name: str
    """The parameter's id, the package, the option, or the key of the lever's use."""
    choices: tuple[str, ...] = ()
    """Answers that mean something; empty: any."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a person has said of a job beyond its files."""

    values: dict[str, str] = field(default_factory=dict)
    """By parameter (id or spelling), by the name of a variable of the script, or by the number of its argument: "1"."""
    versions: dict[str, str] = field(default_factory=dict)
    """By package."""
    options: tuple[str, ...] = ()
    """Options that the program takes."""
    agreed: tuple[str, ...] = ()
    """Keys of lever uses, each a lever with its values, that may be made though they ask."""

    def __bool__(self) -> bool:
        return bool(self.values or self.versions or self.options or self.agreed)

    @property
    def variables(self) -> dict[str, str]:
        """Those that can be variables of a shell."""
        return {name: value for name, value in self.values.items() if name.isidentifier() and name.isascii()}

    @property
    def arguments(self) -> tuple[str, ...] | None:
        """The script's own arguments, `$1` and on; None where nothing was said of them."""
        told = takewhile(self.values.__contains__, map(str, count(1)))
        return tuple(self.values[name] for name in told) or None

    def joined(self, later: Answers) -> Answers:
        """Both; the later one counts where they differ."""
        return Answers(
            {**self.values, **later.values}, {**self.versions, **later.versions},
            tuple(dict.fromkeys((*self.options, *later.options))),
            tuple(dict.fromkeys((*self.agreed, *later.agreed))),
        )


class Fit(StrEnum):
    """Whether a run fits a card."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    CANNOT_SAY = "cannot say"


class Basis(StrEnum):
    """What a measured peak counts."""

    ALLOCATED = "allocated"
    """Tensors (`torch.cuda.max_memory_allocated`)."""
    RESERVED = "reserved"
    """And what the caching allocator keeps beyond (`max_memory_reserved`)."""
    DEVICE = "device"
    """And what is outside of it, as nvidia-smi shows a process: context, NCCL, libraries."""


@dataclass(frozen=True, slots=True)
class PeakBounds:
    """A peak of memory that is foreseen, in bytes: the likely figure, and bounds in which the true one should lie."""

    low_bytes: int
    likely_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """A peak of memory that a log tells, in bytes."""

    bytes: int
    basis: Basis
    at_least: bool = False
    """The run would have needed this much or more: it ran out of memory."""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a job is foreseen to need on its fullest GPU with a change."""

    fit: Fit
    card_bytes: int
    least_bytes: int
    """Lower bound on the card where the allocator keeps nothing beyond the peak."""
    peaks: dict[Basis, PeakBounds] = field(default_factory=dict)
    terms: dict[str, int] = field(default_factory=dict)
    """Likely bytes of each part."""
    anchors: tuple[MemoryFigure, ...] = ()
    """Figures of the job that failed, by which the formulas were corrected."""
    chance: float | None = None
    """How likely it is that the card is large enough."""
    expected_cost: float | None = None
    """Share of the speed that the change is thought to cost, and beside it what a relaunch counts for, by how likely it
    is to run out again: of several changes the one with the least is made."""
    distrusted: bool = False
    """It would fit by the sum, and such a word was wrong before: nothing is said until a measured peak agrees again."""


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
    expectation: Sentence = NOTHING
    """What it should free, with the formula, where that can be said."""
    needs_reshard: bool = False
    """Only with a checkpoint that can be loaded into another sharding or world size."""
    seen_before: tuple[str, ...] = ()
    """How this lever ended in earlier incidents like this one, in sentences, the nearest incidents first."""


@dataclass(frozen=True, slots=True)
class RefusedLever:
    """A lever of the ladder that was passed over, and why."""

    lever: str
    why: Sentence
    needs_person: bool = False
    question: Sentence = NOTHING
    ask: Ask | None = None
    """What would settle it, where it is passed over only because something is not known."""
    foreseen: Foreseen | None = None
    """Passed over for what is foreseen with it; `why` is empty then."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next rung of the ladder: levers used together, and those refused on the way."""

    uses: tuple[LeverUse, ...]
    refused: tuple[RefusedLever, ...] = ()
    system: str = ""
    ladder: str = ""
    foreseen: Foreseen | None = None
    """What the job is foreseen to need with these levers; None where nothing is foreseen."""

    @property
    def edits(self) -> tuple[Edit, ...]:
        return tuple(edit for use in self.uses for edit in use.edits)


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No lever is left or none is safe. `question` is set where a person's answer would open one."""

    why: Sentence
    refused: tuple[RefusedLever, ...] = ()
    exhausted: bool = True
    question: Sentence = NOTHING
    ask: Ask | None = None
    """What settles the question, where an answer can be given on the command line."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the job was told to do when it failed first, by its template. None and "" are not known."""

    system: str = ""
    """Id of the lever document that describes its framework."""
    releases: tuple[str, ...] = ()
    """The stretches of the framework's releases that the template can be written for."""
    model: str = ""
    """The last part of the model's name or path, masked."""
    micro_batch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    sequence_length: int | None = None
    degrees: dict[str, int] = field(default_factory=dict)
    """Degrees of parallelism, by the lever document's names."""


@dataclass(frozen=True, slots=True)
class TriedLever:
    """A lever in one relaunch, and how that ended."""

    lever: str
    key: str
    """Lever and new values; two uses with the same key made the same change."""
    change: str
    """ "--micro-batch-size 8 → 4"."""
    attempt: int
    """Relaunches add up: the levers of the ones before are in force, too."""
    worked: bool | None
    """False: the relaunch died of memory again. None: not proven, or it ended for another reason."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """An incident as a witness. It holds no names of people or jobs: whose job it was is only compared."""

    incident: IncidentId
    opened_s: float
    kind: Kind
    detail: Detail = Detail.NONE
    phase: Phase = Phase.UNKNOWN
    script: str = ""
    """Digest of owner and path of the script, "" where the path is not known."""
    series: str = ""
    """Digest of owner and name of the job."""
    owner: str = ""
    """Digest of the owner."""
    circumstances: Circumstances = Circumstances()
    framework_version: str = ""
    """PyTorch, as the log tells it: "2.6.0" or a range."""
    gpu: str = ""
    gpu_bytes: int | None = None
    gpus: int | None = None
    levers: tuple[TriedLever, ...] = ()
    headroom: str = ""
    """What the proven relaunch left free, in a sentence."""
    simulated: bool = False
    fits_foreseen: int = 0
    """Relaunches that were said to fit."""
    fits_wrong: int = 0
    """Those of them that ran out again."""
    forecast_held: bool | None = None
    """Whether the newest forecast that could be judged was right."""
