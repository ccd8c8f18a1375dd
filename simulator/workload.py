"""One rank of a training job as a sequence of allocations: initialisation, forward, loss, backward, optimizer step.

The order of requests and releases follows fully sharded data parallel training in PyTorch: weights are gathered
layer by layer, gradients appear in backward and go when the step ends, and Adam's states appear in the first step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from runbook.allocator import Block, CachingAllocator

from .memory_model import (
    Checkpointing,
    MicroBatch,
    Sharding,
    Tensor,
    TransformerShape,
    kept_layer_tensors,
    layer_tensors,
    logits_tensors,
)


class Phase(Enum):
    """Where in the program a rank is; decides the frames of a traceback."""

    INIT = "init"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    OPTIMIZER_STEP = "optimizer_step"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """What a rank trains, apart from the batches."""

    shape: TransformerShape
    checkpointing: Checkpointing
    sharding: Sharding
    fused_attention: bool = True
    leak_bytes_per_step: int = 0


@dataclass(slots=True, eq=False)
class TrainingWorkload:
    """The tensors of one rank; AllocationFailedError leaves ``phase`` and ``layer`` at the place of the failure."""

    allocator: CachingAllocator
    settings: WorkloadSettings
    phase: Phase = Phase.INIT
    layer: int = 0
    gathering: bool = False
    _groups: list[int] = field(default_factory=list)
    _weights: list[Block] = field(default_factory=list)
    _optimizer: list[Block] = field(default_factory=list)
    _gradients: dict[int, Block] = field(default_factory=dict)
    _moments_made: bool = False
    _leaked: list[Block] = field(default_factory=list)

    def initialise(self) -> None:
        """Weights and fp32 master weights; Adam's moments come with the first step or with a checkpoint."""
        self.phase = Phase.INIT
        shape, sharding = self.settings.shape, self.settings.sharding
        self._groups = [shape.attention_parameters(), shape.mlp_parameters()] * shape.layers
        self._groups.append(shape.embedding_parameters())
        for parameters in self._groups:
            self._weights.append(self._take(2 * parameters // sharding.weight_divisor()))
            self._weights.append(self._take(4 * parameters // sharding.optimizer_divisor()))

    def has_optimizer_states(self) -> bool:
        """Whether Adam's moments exist; they come with the first step or with a checkpoint."""
        return self._moments_made

    def load_optimizer(self, read_to_card: bool = False) -> None:
        """Adam's moments from a checkpoint, before the first batch. `read_to_card`: master weights and moments are read
        to the card as a whole, and go when the model and the optimizer have taken them over."""
        self.phase = Phase.LOAD
        divisor = self.settings.sharding.optimizer_divisor()
        read = [self._take(12 * parameters // divisor) for parameters in self._groups if read_to_card]
        self._make_moments()
        for block in read:
            self.allocator.free(block)

    def optimizer_step(self) -> None:
        """Adam's step: the moments if they are new, a temporary for each group; then the gradients go."""
        self.phase = Phase.OPTIMIZER_STEP
        divisor = self.settings.sharding.optimizer_divisor()
        if not self._moments_made:
            self._make_moments()
        for parameters in self._groups:
            self.allocator.free(self._take(4 * parameters // divisor))
        for gradient in self._gradients.values():
            self.allocator.free(gradient)
        self._gradients.clear()
        if self.settings.leak_bytes_per_step:
            self._leaked.append(self._take(self.settings.leak_bytes_per_step))

    def forward(self, batch: MicroBatch) -> list[list[Block]]:
        """Forward pass of one micro-batch; returns what each layer keeps for its backward pass."""
        self.phase = Phase.FORWARD
        settings = self.settings
        tensors = layer_tensors(settings.shape, batch, settings.fused_attention)
        kept_names = {t.name for t in self._kept(batch)}
        kept: list[list[Block]] = []
        gathered: Block | None = None
        for layer in range(settings.shape.layers):
            self.layer = layer
            gathered = self._gather(gathered)
            stay: list[Block] = []
            leave: list[Block] = []
            for tensor in tensors:
                (stay if tensor.name in kept_names else leave).append(self._take(tensor.size_bytes))
            for block in leave:
                self.allocator.free(block)
            kept.append(stay)
        self._drop(gathered)
        return kept

    def loss(self, batch: MicroBatch) -> list[Block]:
        """Logits and their fp32 copy, from which the loss is made; both stay for backward."""
        self.phase = Phase.LOSS
        shape = self.settings.shape
        logits, logits_fp32, _ = logits_tensors(shape, batch)
        return [self._take(logits.size_bytes), self._take(logits_fp32.size_bytes)]

    def backward(self, batch: MicroBatch, kept: list[list[Block]], logits: list[Block]) -> None:
        """Backward pass: frees what forward and loss kept; the gradients stay until ``optimizer_step``."""
        self.phase = Phase.BACKWARD
        self._loss_backward(batch, logits)
        settings = self.settings
        tensors = layer_tensors(settings.shape, batch, settings.fused_attention)
        kept_names = {t.name for t in self._kept(batch)}
        recomputed = [t for t in tensors if t.name not in kept_names]
        input_bytes = tensors[0].size_bytes
        upstream = self._take(input_bytes)
        gathered: Block | None = None
        for layer in reversed(range(settings.shape.layers)):
            self.layer = layer
            self.phase = Phase.BACKWARD
            gathered = self._gather(gathered)
            if recomputed:
                self.phase = Phase.RECOMPUTE
            saved = kept[layer] + [self._take(tensor.size_bytes) for tensor in recomputed]
            self.phase = Phase.BACKWARD
            inner = self._take(4 * input_bytes)
            downstream = self._take(input_bytes)
            self.allocator.free(inner)
            for block in saved:
                self.allocator.free(block)
            self.allocator.free(upstream)
            upstream = downstream
            self._reduce_gradient(2 * layer + 1, settings.shape.mlp_parameters())
            self._reduce_gradient(2 * layer, settings.shape.attention_parameters())
        self._drop(gathered)
        self.allocator.free(upstream)

    def _loss_backward(self, batch: MicroBatch, logits: list[Block]) -> None:
        """The gradient of the logits and of the output matrix."""
        shape = self.settings.shape
        gradient = self._take(logits_tensors(shape, batch)[2].size_bytes)
        self.allocator.free(logits[1])
        self._reduce_gradient(2 * shape.layers, shape.embedding_parameters())
        self.allocator.free(logits[0])
        self.allocator.free(gradient)

    def _reduce_gradient(self, group: int, parameters: int) -> None:
        """A whole 16-bit gradient, and the rank's shard of it, which stays until the step ends."""
        divisor = self.settings.sharding.gradient_divisor()
        if divisor == 1 and group not in self._gradients:
            self._gradients[group] = self._take(2 * parameters)
            return
        whole = self._take(2 * parameters)
        if group not in self._gradients:
            self._gradients[group] = self._take(2 * parameters // divisor)
        self.allocator.free(whole)

    def _gather(self, previous: Block | None) -> Block | None:
        """The whole 16-bit weights of a layer, if they are sharded; the layer before goes afterwards."""
        if self.settings.sharding.weight_divisor() == 1:
            return None
        shape = self.settings.shape
        self.gathering = True
        gathered = self._take(2 * (shape.attention_parameters() + shape.mlp_parameters()))
        self.gathering = False
        self._drop(previous)
        return gathered

    def _make_moments(self) -> None:
        divisor = self.settings.sharding.optimizer_divisor()
        for parameters in self._groups:
            self._optimizer.append(self._take(4 * parameters // divisor))
            self._optimizer.append(self._take(4 * parameters // divisor))
        self._moments_made = True

    def _kept(self, batch: MicroBatch) -> list[Tensor]:
        settings = self.settings
        return kept_layer_tensors(settings.shape, batch, settings.checkpointing, settings.fused_attention)

    def _take(self, size_bytes: int) -> Block:
        return self.allocator.allocate(size_bytes)

    def _drop(self, block: Block | None) -> None:
        if block is not None:
            self.allocator.free(block)
