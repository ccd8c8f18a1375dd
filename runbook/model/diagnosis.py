"""The judgement on a failure. Shapes are those of the diagnosis contract."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any, Self

from runbook.model.sentences import NOTHING, Sentence
from runbook.model.sentences.of_diagnosis import Say

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


class Died(StrEnum):
    """What a kind of failure died of."""

    GPU_MEMORY = auto()
    MAIN_MEMORY = auto()
    SHARED_MEMORY = auto()
    GPU = auto()
    """The card itself."""
    PROGRAM = auto()
    """Of something else."""
    UNKNOWN = auto()

    @property
    def of_memory(self) -> bool:
        return self in (Died.GPU_MEMORY, Died.MAIN_MEMORY, Died.SHARED_MEMORY)


class Remedy(StrEnum):
    """What may help against a kind of failure."""

    LEVERS = "levers"
    """A changed template; the lever documents have ladders for it."""
    OTHER_NODES = "other_nodes"
    """The unchanged job, elsewhere."""
    PERSON = "person"
    """Nothing that this tool does."""


class DiagnosisOutcome(StrEnum):
    """The ways out of the box that diagnoses."""

    TRUE_OOM = auto()
    FRAGMENTATION = auto()
    OTHER_MEMORY = auto()
    CO_TENANT = auto()
    HARDWARE_FAULT = auto()
    HOST_OOM = auto()
    NOT_OOM = auto()
    UNDETERMINED = auto()


class LogReading(StrEnum):
    """What the log reader concludes where no signature's own meaning holds; one kind of a playbook claims each."""

    ABSURD_SIZE = "absurd_size"
    """A request so large that nothing ran out (R-13)."""
    PINNED_MEMORY = "pinned_memory"
    """CUDA's words for a shortage, where the traceback pins memory of the host."""
    KILLED_FOR_MEMORY = "killed_for_memory"
    """SIGKILL, and Slurm's accounting says OUT_OF_MEMORY (R-22)."""


@dataclass(frozen=True, slots=True)
class DetailWords:
    """What a detail of a kind is called."""

    title: str = ""
    meaning: str = ""
    """Where the detail changes what the kind means."""
    reason: str = ""
    """What a diagnosis says for it, where that is not what it says for the kind."""


_NO_DETAIL = DetailWords()


@dataclass(frozen=True, slots=True)
class KindEntry:
    """What a playbook's kinds.yaml says of a kind. The defaults are those of a kind that the playbook does not have."""

    title: str = ""
    meaning: str = ""
    """Half a sentence without its full stop."""
    named: str = ""
    """As a sentence names it: "a GPU fault"."""
    short: str = ""
    """What happened, for the subject of a message: "GPU out of memory"."""
    died: Died = Died.UNKNOWN
    outcome: DiagnosisOutcome = DiagnosisOutcome.OTHER_MEMORY
    confidence: float = 0.9
    """How firm a line is that means it and does not say how firm."""
    reason: str = ""
    """What a diagnosis says for it beside the line itself."""
    remedy: Remedy = Remedy.LEVERS
    no_plan: str = ""
    """Why no lever is chosen for it."""
    no_lever: str = ""
    """Why a lever that a person named is not used without his yes."""
    read_from: tuple[LogReading, ...] = ()
    rule: str = ""
    """The rule that weighs other evidence with a line that means it; "" where the line's word stands."""
    perhaps: str = ""
    """The id of another kind whose levers count too, as far as that one cannot be excluded."""
    by_figures: bool = False
    """A line that means it leaves the decision to the figures of its message."""
    on_the_card: bool = False
    """A line that means it may have been caused by whoever else holds memory of the card."""
    in_the_allocator: bool = False
    """Memory that PyTorch's allocator manages."""
    why: str = ""
    source: str = ""
    details: Mapping[str, DetailWords] = field(default_factory=dict)
    place: int = 0
    """Its place in the document, which is the order of lists."""

    def detail(self, detail: str) -> DetailWords:
        return self.details.get(detail, _NO_DETAIL)

    def meaning_of(self, detail: str) -> str:
        """What the kind means, or its detail where that says otherwise."""
        return self.detail(detail).meaning or self.meaning


class Kind(str):
    """The id of a kind of failure, with what the playbook says of it. Equal to its id; a bare one knows only that."""

    __slots__ = ("entry",)
    entry: KindEntry

    def __new__(cls, kind: str, entry: KindEntry | None = None) -> Self:
        made = super().__new__(cls, kind)
        plain = kind.replace("_", " ")
        made.entry = entry or KindEntry(plain[:1].upper() + plain[1:], plain, plain, plain)
        return made

    def __reduce__(self) -> tuple[type[Kind], tuple[str, KindEntry]]:
        return type(self), (str(self), self.entry)

    def __str__(self) -> str:
        return str.__str__(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Its id in JSON; read back by the `Kinds` that the validation was given as its context."""
        from pydantic_core import core_schema

        def read(value: str, info: core_schema.ValidationInfo[Any]) -> Kind:
            return info.context.of(value) if isinstance(info.context, Kinds) else cls(value)

        return core_schema.with_info_after_validator_function(read, core_schema.str_schema())


class Kinds(Mapping[str, Kind]):
    """The kinds of a playbook by id, in the order of its document."""

    def __init__(self, entries: Iterable[Kind] = (), rules: Sequence[str] = ()) -> None:
        self._known = {str(kind): kind for kind in entries}
        self.rules = tuple(rules)
        """What decides between them, by name and in the order of decision."""
        self._read_from = {reading: kind for kind in self._known.values() for reading in kind.entry.read_from}

    def of(self, kind: str) -> Kind:
        """A bare one for an id that the playbook does not have."""
        return self._known.get(kind) or Kind(kind)

    def read_from(self, reading: LogReading) -> Kind:
        """The kind that the playbook takes such a log for; a bare one where none claims it."""
        return self._read_from.get(reading) or Kind(reading)

    def __getitem__(self, kind: str) -> Kind:
        return self._known[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class Detail(StrEnum):
    """What kind of its kind a diagnosis is. It chooses between levers that a kind alone leaves open."""

    STATIC = auto()
    """true_oom: before or within the first steps, so a size is wrong from the start."""
    GROWN = auto()
    """true_oom: after completed steps."""
    IMPOSSIBLE_REQUEST = auto()
    """true_oom: one request larger than the card."""
    PRIVATE_POOLS = auto()
    """true_oom: memory in pools of CUDA graphs, which only they may use again."""
    SEQUENCE_LENGTH = auto()
    """true_oom: memory follows the length of sequences, as tokens or lengths in the log show."""
    RAISE_SHARE = auto()
    """kv_cache_sizing: the engine's share is too small; lowering it makes it worse."""
    LOWER_SHARE = auto()
    """kv_cache_sizing, inference_reservation: the engine's share is too large for what else the card must hold."""
    RUN_TIME = auto()
    """kv_cache_sizing: the cache ran out of tokens while serving; fewer or shorter requests."""
    NCCL = auto()
    """nccl_buffers: NCCL's own allocation was refused."""
    LIBRARY = auto()
    """nccl_buffers: a handle or workspace of cuBLAS, cuDNN or the like."""
    OUTSIDE = auto()
    """nccl_buffers: this process holds memory outside the caching allocator, whose it is not known."""
    RANKS_SHARE_GPU = auto()
    """cuda_context_or_driver: several ranks of the job made their context on one GPU."""
    CGROUP = auto()
    """host_oom: the job's own limit."""
    NODE = auto()
    """host_oom: the node as a whole."""
    RAY_MONITOR = auto()
    """host_oom: Ray killed workers before the kernel would."""
    PINNED = auto()
    """host_oom: pinned memory could not be had."""
    REFUSED = auto()
    """host_oom: an allocation was refused (address space, overcommit, ulimit), nothing was killed."""
    LEAK = auto()
    """host_oom: main memory rose from step to step until it ran out."""
    NCCL_SEGMENT = auto()
    """shm: NCCL's segments."""
    DATA_LOADER = auto()
    """shm: tensors of data loading workers."""
    OBJECT_STORE = auto()
    """shm: Ray's object store."""
    HANG = auto()
    """not_oom: ranks waited for one another until a timeout."""
    PROGRAM = auto()
    """not_oom: an exception of the program."""
    CONFIGURATION = auto()
    """not_oom: settings that exclude one another."""
    STOPPED = auto()
    """not_oom: time limit, cancellation, preemption."""
    FINISHED = auto()
    """not_oom: the job ran to its end."""
    NONE = ""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One possible cause. `confidence` is in 0..1; those of one diagnosis sum to at most 1."""

    kind: Kind
    """One of those that the playbook describes in kinds.yaml."""
    confidence: float
    reasons: tuple[Sentence, ...] = ()
    against: tuple[Sentence, ...] = ()
    missing: tuple[Sentence, ...] = ()
    """Evidence that would settle it."""
    detail: Detail = Detail.NONE

    @property
    def as_objection(self) -> Sentence:
        """What it says against another hypothesis: "true_oom: …"; nothing where it has no reason."""
        return Say.OBJECTION(kind=str(self.kind), reason=self.reasons[0]) if self.reasons else NOTHING


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Ranked hypotheses, best first."""

    best: Hypothesis
    runners_up: tuple[Hypothesis, ...] = ()
    rules: tuple[str, ...] = ()
    """Names of the rules that were applied, in order ("R-04 perfect defragmentation")."""
