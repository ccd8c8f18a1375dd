"""The terms of a training run's memory on one rank, at the moments at which it can be highest.

Formulas: states, ZeRO (arXiv 1910.02054, figure 1); activations, Korthikanti et al. (arXiv 2205.05198, table 2) with
the gated MLP and grouped queries of Llama; micro-batches in flight in a pipeline, Megatron-LM's theoretical memory use.
A figure that no formula gives is a constant of the memory document with bounds. A term is linear in standard normal
unknowns, each named: two runs that share an unknown are wrong in the same direction, which is what an anchor corrects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from runbook.foresight.memory_document import Constant, Constants
from runbook.foresight.parameters import Local, counted, head_size, on_stage
from runbook.foresight.training_run import Attention, LossPath, Recompute, Sharding, TrainingRun
from runbook.foresight.unknowns import Linear
from runbook.model.remedy import Basis

_DIVIDES_GRADIENTS = frozenset({Sharding.ZERO2, Sharding.ZERO3, Sharding.FSDP, Sharding.HSDP})
_DIVIDES_WEIGHTS = frozenset({Sharding.ZERO3, Sharding.FSDP, Sharding.HSDP})
_QUANTISED = 1.06
"""Scales beside weights in fewer bits."""
_COMPUTED_BYTES = 2.0
"""Bytes of an activation and of a gathered weight: training in 16 bit."""


class Part(StrEnum):
    """What a term is of, in the order in which it is shown."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer states"
    GATHERED = "gathered weights and buckets"
    ACTIVATIONS = "activations"
    WORKING = "the layer at work"
    LOGITS = "logits and loss"
    UPDATE = "optimizer step"
    LOAD = "loading the model"
    ENGINE = "inference engine"
    WORKSPACE = "workspaces"
    REST = "what no formula has"
    GAP = "reserved beyond the peak"
    OUTSIDE = "outside the allocator"


@dataclass(frozen=True, slots=True)
class Term:
    part: Part
    bytes: Linear
    how: str
    basis: Basis = Basis.ALLOCATED


@dataclass(frozen=True, slots=True)
class Moment:
    """The terms on a stage of the pipeline at a moment of a step."""

    terms: tuple[Term, ...]

    def total(self, basis: Basis) -> Linear:
        """The sum of what this basis counts."""
        order = list(Basis)
        wanted = [item for item in self.terms if order.index(item.basis) <= order.index(basis)]
        return sum((item.bytes for item in wanted), Linear())


def missing_figures(run: TrainingRun) -> tuple[str, ...]:
    """Fields without which there is nothing to add up."""
    missing = [name for name, value in (
        ("hidden", run.hidden), ("layers", run.layers), ("heads", run.heads), ("micro", run.micro),
        ("sequence", run.sequence), ("vocabulary", run.vocabulary),
    ) if value is None]
    if run.world is None and run.shards is None and run.sharding not in (Sharding.NONE, Sharding.DDP):
        missing.append("world")
    if run.sharding is Sharding.NONE and (run.world or 1) > run.tensor * run.pipeline * run.context:
        missing.append("sharding")  # layers over cards, or replicas: nothing says which
    if run.other_models:
        missing.append("other_models")
    if counted(run) is None and run.parameters is None:
        missing.append("mlp")
    return tuple(missing)


def moments_of(run: TrainingRun, constants: Constants, card_bytes: int | None = None) -> tuple[Moment, ...]:
    """Every stage and moment at which the peak may be. `run` has all figures (`missing_figures`), and defaults where
    something else was open."""
    builder = _Builder(run, constants, card_bytes or 0)
    if run.pipeline <= 1:
        return builder.moments(first=True, last=True)
    return (*builder.moments(first=True, last=False), *builder.moments(first=False, last=True))


def data_ranks(run: TrainingRun) -> int:
    """Data-parallel ranks: what is left of the world by the other degrees."""
    return max(1, (run.world or 1) // (run.tensor * run.pipeline * run.context))


def shard_ranks(run: TrainingRun) -> int:
    """Ranks over which sharded states are divided. Context-parallel ranks take part (FSDP, distributed optimizer)."""
    return run.shards if run.shards is not None else data_ranks(run) * run.context


class _Builder:
    """Makes the terms of one run."""

    def __init__(self, run: TrainingRun, constants: Constants, card_bytes: int) -> None:
        self._run, self._constants, self._card = run, constants, card_bytes
        self._tokens = (run.micro or 0) * (run.sequence or 0) / run.context
        self._sequence_divides = run.tensor if run.sequence_parallel is not False else 1

    def moments(self, *, first: bool, last: bool) -> tuple[Moment, ...]:
        """When the loss is made, when backward begins, when weights are updated, and while they are loaded."""
        local = on_stage(self._run, first=first, last=last)
        if local is None:
            return ()
        states = self._states(local)
        weights = [item for item in states if item.part is Part.WEIGHTS]
        held = [item for item in states if item.part is not Part.GRADIENTS]
        gradients = self._gradients(local)
        beside = [*self._gathered(local), *self._engine()]
        kept = [self._activations(local, first=first), *beside]
        early = self._early(gradients)
        found = [([*held, early, *kept, self._working()], held), ([*states, self._update(local), *beside], states)]
        if last:
            found.insert(0, ([*held, early, *kept, self._logits()], held))
        if self._constants.load.middle and (self._run.sharding or Sharding.NONE) in _DIVIDES_WEIGHTS:
            load = self._bounded("load", local.all * _COMPUTED_BYTES)
            found.append(([*weights, Term(Part.LOAD, load, "weights before they are divided")], weights))
        return tuple(self._closed(terms, sum(item.bytes.middle for item in resident)) for terms, resident in found)

    def _bounded(self, name: str, base: float, how: str = "") -> Linear:
        """`base` times a constant of the document, which is one unknown for all runs."""
        constant: Constant = getattr(self._constants, name)
        return Linear(base * constant.middle, {f"{name}{how}": base * constant.deviation})

    def _typed_states(self, base: float) -> Linear:
        """What the types say, times what a system keeps beside: half of that is another under another sharding."""
        constant, run = self._constants.states, self._run
        part = base * constant.deviation * math.sqrt(0.5)
        return Linear(base * constant.middle, {"states": part, f"states/{run.sharding}/{run.optimizer_offload}": part})

    def _states(self, local: Local) -> list[Term]:
        run, ranks = self._run, shard_ranks(self._run)
        sharding = run.sharding or Sharding.NONE
        weights = run.weight_bytes or 0.0
        trained = _trained(run, local)
        all_weights = self._typed_states(local.all * weights)
        if run.lora_rank:
            whole = run.base_bits / 8
            inner = (local.all - local.embedding) * (min(whole * _QUANTISED, 2.0) if run.base_bits < 16 else whole)
            all_weights = self._typed_states(inner + trained * weights)
            all_weights += (self._bounded("ends", local.embedding) if run.base_bits < 16
                            else Linear(local.embedding * whole))
        over_weights = ranks if sharding in _DIVIDES_WEIGHTS else 1
        over_states = 1 if sharding in (Sharding.NONE, Sharding.DDP) else ranks
        kept = Linear() if run.parameter_offload else all_weights.times(1 / over_weights)
        optimizer = trained * ((run.optimizer_bytes or 0.0) + (run.master_bytes or 0.0)) / over_states
        optimizer *= 1 - run.optimizer_offload
        number = f"{local.all / 1e9:.3f}e9 parameters"
        return [
            Term(Part.WEIGHTS, kept, f"{number} x {weights:g} bytes / {over_weights}"),
            Term(Part.OPTIMIZER, self._typed_states(optimizer),
                 f"{trained / 1e9:.3f}e9 x ({run.optimizer_bytes or 0:g} + {run.master_bytes or 0:g} bytes) "
                 f"/ {over_states}"),
            self._gradients(local),
        ]

    def _gradients(self, local: Local) -> Term:
        """All of them, as they are when weights are updated."""
        run, trained = self._run, _trained(self._run, local)
        over = shard_ranks(run) if run.sharding in _DIVIDES_GRADIENTS else 1
        size = trained * (run.gradient_bytes or 0.0) / over
        how = f"{trained / 1e9:.3f}e9 x {run.gradient_bytes or 0:g} bytes / {over}"
        held = self._bounded("copies", size) if run.optimizer_offload else self._typed_states(size)
        return Term(Part.GRADIENTS, held, how)

    def _early(self, gradients: Term) -> Term:
        """Those that are there before backward has freed activations: all where they are accumulated or lie in a
        buffer."""
        run = self._run
        if run.optimizer_offload or (run.accumulation or 1) > 1 or run.sharding is Sharding.DISTRIBUTED_OPTIMIZER:
            return gradients
        return replace(gradients, bytes=self._bounded("at_loss", gradients.bytes.middle))

    def _gathered(self, local: Local) -> list[Term]:
        run, layer = self._run, (local.all - local.embedding) / max(1, local.layers)
        sharding = run.sharding or Sharding.NONE
        if sharding in _DIVIDES_WEIGHTS and shard_ranks(run) > 1:
            there = self._bounded("gathered", layer * _COMPUTED_BYTES) + Linear(local.embedding * _COMPUTED_BYTES / 2)
            how = f"some layers of {layer / 1e6:.0f}e6 parameters and the output matrix, in 16 bit"
            if not run.lora_rank:
                there += self._bounded("reduced", layer * 4.0)
            return [Term(Part.GATHERED, there, how)]
        if sharding in (Sharding.ZERO1, Sharding.ZERO2):
            return [Term(Part.GATHERED, self._bounded("buckets", 1.0), "communication buckets")]
        if sharding is Sharding.DDP and data_ranks(run) > 1:
            trained = _trained(run, local)
            copies = self._bounded("copies", trained * (run.gradient_bytes or 0.0))
            return [Term(Part.GATHERED, copies, "buckets of gradients")]
        return []

    def _activations(self, local: Local, *, first: bool) -> Term:
        run = self._run
        a_layer = self._layer_bytes()
        flying = min(run.pipeline, run.accumulation or run.pipeline) if first and run.pipeline > 1 else 1
        if run.virtual_stages > 1 and flying > 1:
            flying = round(flying * (1 + (run.pipeline - 1) / (run.pipeline * run.virtual_stages)))
        recomputed = local.layers if run.recomputed_layers is None else min(local.layers, run.recomputed_layers)
        if run.recompute in (None, Recompute.NONE):
            recomputed = 0
        every = self._kept(a_layer)
        kept = every.times((local.layers - recomputed) * flying)
        inputs = 2.0 * (run.hidden or 0) * self._tokens / self._sequence_divides
        how = f"{local.layers} layers x {self._tokens:.0f} tokens x {a_layer / max(1.0, self._tokens):.0f} bytes"
        if recomputed and run.recompute is Recompute.FULL:
            kept += self._beside_quantised(self._bounded("full", inputs * recomputed * flying))
            how = f"{recomputed} layers x {self._tokens:.0f} tokens x {inputs / max(1.0, self._tokens):.0f} bytes"
        elif recomputed:
            less = self._constants.selective
            part = every.times(recomputed * flying)
            kept += part.times(less.middle) + Linear(0.0, {"selective": part.middle * less.deviation})
            how += f", {recomputed} of them recomputed in part"
        if run.activation_offload:
            left = self._constants.offloaded
            kept = kept.times(left.middle) + Linear(0.0, {"offloaded": kept.middle * left.deviation})
        how += f" x {flying} in flight" if flying > 1 else ""
        return Term(Part.ACTIVATIONS, self._filled(kept + self._by_layout(kept)), how)

    def _filled(self, bytes_: Linear) -> Linear:
        """Of sequences as long as they are, where the length that is set is only the longest that there may be."""
        part, run = self._constants.filled, self._run
        name = f"filled/{run.sequence}"
        return bytes_.times(part.middle) + Linear(0.0, {name: bytes_.middle * part.deviation})

    def _working(self) -> Term:
        run, layer = self._run, self._kept(self._layer_bytes()).middle
        at_work = self._bounded("working", layer)
        if run.attention is not Attention.EAGER:
            scores = 5.0 * (run.heads or 0) * (run.sequence or 0) / run.tensor
            at_work += self._bounded("scores", self._tokens * scores)
        return Term(Part.WORKING, at_work, "one layer in backward")

    def _beside_quantised(self, kept: Linear) -> Linear:
        if not self._run.lora_rank or self._run.base_bits >= 16:
            return kept
        part = self._constants.quantised
        return kept.times(part.middle) + Linear(0.0, {"quantised": kept.middle * part.deviation})

    def _kept(self, layer: float) -> Linear:
        constants = self._constants
        kept = self._bounded("kept", layer)
        if self._run.compiled:
            part = constants.compiled
            kept = kept.times(part.middle) + Linear(0.0, {"compiled": kept.middle * part.deviation})
        if self._run.lora_rank:
            part, half = constants.frozen_base, math.sqrt(0.5)  # another rank keeps other inputs
            moved = kept.middle * part.deviation * half
            kept = kept.times(part.middle)
            kept += Linear(0.0, {"frozen_base": moved, f"frozen_base/{self._run.lora_rank}": moved})
        return self._beside_quantised(kept)

    def _by_layout(self, kept: Linear) -> Linear:
        if self._run.tensor <= 1:
            return Linear()
        name = f"layout/{self._run.tensor}/{self._run.sequence_parallel}"
        return Linear(0.0, {name: kept.middle * self._constants.layout.deviation})

    def _layer_bytes(self) -> float:
        """What one layer keeps of one micro-batch on this rank, without recomputation."""
        run, tensor, divided = self._run, self._run.tensor, self._sequence_divides
        hidden, size = run.hidden or 0, head_size(run) or 0
        queries, keys = (run.heads or 0) * size, (run.kv_heads or run.heads or 0) * size
        matrices = 4 if run.gated is not False else 2
        token = 8.0 * hidden / divided + (6.0 * queries + 6.0 * keys) / tensor
        if run.attention is Attention.EAGER:
            token += 5.0 * (run.heads or 0) * (run.sequence or 0) / tensor
        dense = 2.0 * matrices * (run.mlp or 0) / tensor
        if not run.experts:
            return self._tokens * (token + dense)
        width = 2.0 * matrices * ((run.expert_mlp or run.mlp or 0) * run.experts_per_token) / tensor
        routed = (width + 4.0 * hidden * run.experts_per_token / divided) * self._constants.imbalance.middle
        routed += 2.0 * matrices * run.shared_mlp / tensor
        share = (run.dense_layers or 0) / max(1, run.layers or 1)
        return self._tokens * (token + dense * share + routed * (1 - share))

    def _logits(self) -> Term:
        run = self._run
        if run.loss is LossPath.FUSED:
            base = self._tokens * (run.hidden or 0)
            fused = self._filled(self._bounded("fused", base))
            return Term(Part.LOGITS, fused, f"{self._tokens:.0f} tokens, fused with the output")
        elements = self._tokens * (run.vocabulary or 0) / run.tensor
        name = "chunked" if run.loss is LossPath.CHUNKED else "plain"
        how = f"{self._tokens:.0f} tokens x {run.vocabulary} / {run.tensor}"
        how += ", in chunks" if name == "chunked" else ""
        return Term(Part.LOGITS, self._filled(self._bounded(name, elements)), how)

    def _update(self, local: Local) -> Term:
        run = self._run
        ranks = shard_ranks(run) if run.sharding not in (None, Sharding.NONE, Sharding.DDP) else 1
        trained = _trained(run, local)
        copied = trained * (run.weight_bytes or 0.0) / ranks
        return Term(Part.UPDATE, self._bounded("update", copied), "while weights are updated")

    def _engine(self) -> list[Term]:
        if not self._run.engine_share or not self._card:
            return []
        share = Linear(self._run.engine_share * self._card)
        return [Term(Part.ENGINE, share, f"{self._run.engine_share:g} of the card", Basis.DEVICE)]

    def _closed(self, terms: list[Term], resident: float) -> Moment:
        """With what no formula gives: it follows what comes and goes, not the states."""
        constants = self._constants
        moving = sum(item.bytes.middle for item in terms if item.basis is Basis.ALLOCATED) - resident
        deviation = moving * constants.otherwise.deviation
        rest = {name: deviation * share for name, share in self._unknowns_of_the_whole()}
        terms = [
            *terms, Term(Part.WORKSPACE, self._bounded("workspace", 1.0), "libraries"),
            Term(Part.REST, Linear(moving * constants.otherwise.middle, rest), "the formulas as a whole"),
        ]
        sizes = f"jitter/{self._tokens}/{self._run.sequence}/{resident:.0f}"
        gap = self._bounded("gap", moving) + Linear(0.0, {sizes: constants.jitter.middle * moving})
        outside = self._bounded("outside", 1.0)
        if (self._run.world or 1) > 1:
            outside += self._bounded("collectives", 1.0)
        return Moment((
            *terms, Term(Part.GAP, gap, "the caching allocator", Basis.RESERVED),
            Term(Part.OUTSIDE, outside, "context, libraries, NCCL", Basis.DEVICE),
        ))


    def _unknowns_of_the_whole(self) -> list[tuple[str, float]]:
        """What the formulas as a whole are off by, in parts: those that two runs share are equal for both, so that a
        change of a batch leaves little open, and a change of layout much. Shares of the variance."""
        run = self._run
        parts: dict[str, tuple[float, object]] = {
            "model": (0.35, (run.hidden, run.layers, run.mlp, run.heads)), "context": (0.03, run.context),
            "recompute": (0.2, (run.recompute, run.recomputed_layers, run.activation_offload)),
            "tensor": (0.3, (run.tensor, run.sequence_parallel)),
            "pipeline": (0.2 if run.pipeline <= 1 else 0.4, (run.pipeline, run.virtual_stages, run.expert_parallel)),
            "sharding": (0.35, run.sharding), "loss": (0.15, run.loss),
            "compute": (0.1, (run.compiled, run.attention, run.lora_rank > 0, run.base_bits, run.optimizer_offload)),
        }
        return [(f"otherwise/{name}/{value}", math.sqrt(share)) for name, (share, value) in parts.items()]


def _trained(run: TrainingRun, local: Local) -> float:
    """Parameters of the rank that are trained: all, or LoRA's two matrices beside each linear one of a layer (fewer
    targets are less)."""
    if not run.lora_rank:
        return local.all
    hidden, size = run.hidden or 0, head_size(run) or 0
    queries, keys, mlp = (run.heads or 0) * size, (run.kv_heads or run.heads or 0) * size, run.mlp or 0
    widths = [hidden + queries, *[hidden + keys] * 2, queries + hidden]
    widths += [hidden + mlp] * (3 if run.gated is not False else 2)
    ends = local.embedding if run.lora_ends else 0.0
    return float(run.lora_rank * sum(widths) * local.layers) / run.tensor + ends
