"""What decides how much memory a training run needs on one GPU, and what is foreseen of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from runbook.model.remedy import Basis, Fit, MemoryFigure
from runbook.model.units import Bytes


class Sharding(StrEnum):
    """Over what ranks the states are divided."""

    NONE = "none"
    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    FSDP = "fsdp"
    HSDP = "hsdp"
    DISTRIBUTED_OPTIMIZER = "distopt"


class Recompute(StrEnum):
    """How much of a layer's forward pass is made again in backward instead of being kept."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class LossPath(StrEnum):
    """How the loss is made of the last hidden state."""

    PLAIN = "plain"
    CHUNKED = "chunked"
    FUSED = "fused"


class Attention(StrEnum):
    """Whether the scores of the attention are kept."""

    FUSED = "fused"
    EAGER = "eager"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A training run as far as it is known. None: not known. Sizes are those of the whole model, not of a rank."""

    system: str = ""
    """Id of an entry of the memory document."""
    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    mlp: int | None = None
    """Width of the inner layer of the MLP."""
    gated: bool | None = None
    """Whether the MLP has a gate beside it (SwiGLU), so three matrices."""
    vocabulary: int | None = None
    tied: bool | None = None
    """One matrix for embedding and output."""
    positions: int = 0
    """Learned positions."""
    qkv_bias: bool = False
    biases: bool = False
    """Biases everywhere, norms included."""
    query_key_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_mlp: int | None = None
    shared_mlp: int = 0
    dense_layers: int = 0
    """Leading layers without experts."""
    parameters: int | None = None
    """All of them, where the shape does not tell."""
    world: int | None = None
    sharding: Sharding | None = None
    shards: int | None = None
    """Ranks over which the states are divided, where that is not the whole data-parallel group."""
    tensor: int = 1
    pipeline: int = 1
    virtual_stages: int = 1
    context: int = 1
    expert_parallel: int = 1
    sequence_parallel: bool | None = None
    micro: int | None = None
    """Sequences of one forward pass of one rank."""
    sequence: int | None = None
    """Tokens of a sequence, padded or packed."""
    accumulation: int | None = None
    weight_bytes: float | None = None
    """Bytes a parameter; likewise the three below."""
    gradient_bytes: float | None = None
    master_bytes: float | None = None
    optimizer_bytes: float | None = None
    recompute: Recompute | None = None
    recomputed_layers: int | None = None
    """How many layers are recomputed, where not all are."""
    loss: LossPath | None = None
    attention: Attention | None = None
    compiled: bool | None = None
    optimizer_offload: float = 0.0
    """Share of the optimizer's states that lies in the node's memory."""
    parameter_offload: bool = False
    activation_offload: bool = False
    lora_rank: int = 0
    lora_ends: bool = False
    """Whether embedding and output are trained in full beside it."""
    base_bits: int = 16
    """Bits of a frozen weight beside LoRA's."""
    engine_share: float = 0.0
    """Share of the card that an inference engine beside the training keeps."""
    other_models: bool = False
    """Whether models beside the trained one (reference, critic, reward) are on the card: how large is not known."""
    fp8: bool = False


@dataclass(frozen=True, slots=True)
class Interval:
    """Bytes: the most likely figure, and bounds between which the true one lies nineteen times of twenty."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """The request that could not be served, and what was allocated when it was made."""

    asked_bytes: int
    allocated_bytes: int
    in_backward: bool = False
    """In or behind the backward pass: what the forward pass and the loss need has been there."""
    stepped: bool = False
    """Whether weights had been updated before: optimizers make their states at their first step."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A figure of a run that was made: its peak, or less than that."""

    run: TrainingRun
    figure: MemoryFigure
    request: RefusedRequest | None = None
    """Of a run that ran out, what else its message tells."""


@dataclass(frozen=True, slots=True)
class TermFigure:
    """One part of a run's memory on the fullest rank."""

    title: str
    how: str
    """The sum that leads to it, and where the formula was read."""
    bytes: Interval
    basis: Basis = Basis.ALLOCATED
    """The least basis that counts it."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run will need on its fullest rank."""

    run: TrainingRun
    """With what its system has by default where nothing was known."""
    terms: tuple[TermFigure, ...]
    peaks: Mapping[Basis, Interval]
    """Empty where figures are missing."""
    least_bytes: float
    """Lower bound on the card where the allocator keeps nothing beyond the peak."""
    verdict: Fit
    card_bytes: Bytes | None = None
    anchors: tuple[Anchor, ...] = ()
    """Figures of the job that count."""
    missing: tuple[str, ...] = ()
    """Fields of the run without which nothing can be added up."""
    assumed: tuple[str, ...] = ()
    """Fields that were not known and are taken as the system has them by default."""
    open: tuple[str, ...] = ()
    """Fields that were not known, and widen the interval."""
    chance: float | None = None
    """How likely the card is large enough; None without a card."""
