"""How many parameters a model has, exactly, and how many of them lie on the fullest rank.

Counts follow the modules of the public implementations: embedding, learned positions, a layer's query, key, value and
output matrix, MLP or experts with their router, norms, a last norm, and an output matrix where it is not tied.
"""

from __future__ import annotations

from dataclasses import dataclass

from runbook.foresight.training_run import TrainingRun


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of the whole model by where they lie."""

    embedding: int
    """With learned positions."""
    output: int
    """0 where it is the embedding's matrix."""
    dense_layer: int
    """Of a layer without experts."""
    sparse_layer: int
    """Of a layer with experts, less these."""
    experts: int
    """Of all experts of a layer."""
    dense_layers: int
    sparse_layers: int
    last_norm: int

    @property
    def total(self) -> int:
        layers = self.dense_layers * self.dense_layer + self.sparse_layers * (self.sparse_layer + self.experts)
        return self.embedding + layers + self.last_norm + self.output

def head_size(run: TrainingRun) -> int | None:
    """Width of one attention head."""
    if run.head_size is not None:
        return run.head_size
    return run.hidden // run.heads if run.hidden and run.heads else None


def counted(run: TrainingRun) -> ParameterCount | None:
    """None where the shape is not known whole."""
    size = head_size(run)
    if run.hidden is None or run.layers is None or run.heads is None or size is None or run.vocabulary is None:
        return None
    if run.mlp is None and not run.experts:
        return None
    if run.experts and run.expert_mlp is None and run.mlp is None:
        return None
    hidden = run.hidden
    queries, keys = run.heads * size, (run.kv_heads or run.heads) * size
    attention = hidden * (queries + 2 * keys) + queries * hidden
    if run.qkv_bias or run.biases:
        attention += queries + 2 * keys
    if run.biases:
        attention += hidden
    if run.query_key_norm:
        attention += 2 * size
    norm = 2 * hidden if run.biases else hidden
    matrices = 3 if run.gated is not False else 2

    def mlp(width: int) -> int:
        return matrices * hidden * width + ((matrices - 1) * width + hidden if run.biases else 0)

    inside = attention + 2 * norm
    sparse = run.layers - run.dense_layers if run.experts else 0
    return ParameterCount(
        embedding=(run.vocabulary + run.positions) * hidden,
        output=0 if run.tied else run.vocabulary * hidden,
        dense_layer=inside + mlp(run.mlp or 0),
        sparse_layer=inside + hidden * run.experts + (mlp(run.shared_mlp) if run.shared_mlp else 0),
        experts=run.experts * mlp(run.expert_mlp or run.mlp or 0),
        dense_layers=run.layers - sparse, sparse_layers=sparse, last_norm=norm,
    )


@dataclass(frozen=True, slots=True)
class Local:
    """Parameters of one rank before any sharding over data-parallel ranks."""

    dense: float
    experts: float
    layers: int
    """Layers of its pipeline stage."""
    embedding: float
    """Those of `dense` that are the embedding's or the output's."""

    @property
    def all(self) -> float:
        return self.dense + self.experts


def on_stage(run: TrainingRun, *, first: bool, last: bool) -> Local | None:
    """Of the first stage of a pipeline, of its last, or of both in one. None where the number is not known."""
    count = counted(run)
    if count is None:
        return _by_number(run, first=first, last=last)
    layers = -(-count.dense_layers // run.pipeline) if not count.sparse_layers else None
    if layers is not None:
        dense, experts, here = float(layers * count.dense_layer), 0.0, layers
    else:
        here = -(-(count.dense_layers + count.sparse_layers) // run.pipeline)
        leading = min(here, count.dense_layers) if first else 0
        dense = leading * count.dense_layer + (here - leading) * count.sparse_layer
        experts = (here - leading) * count.experts / run.expert_parallel
    ends = count.embedding if first or run.tied else 0
    ends += count.output + count.last_norm if last else 0
    return Local((dense + ends) / run.tensor, experts / run.tensor, here, ends / run.tensor)


def _by_number(run: TrainingRun, *, first: bool, last: bool) -> Local | None:
    if run.parameters is None or run.experts:
        return None
    layers = -(-(run.layers or 0) // run.pipeline)
    ends = (run.vocabulary or 0) * (run.hidden or 0) * ((1 if first else 0) + (1 if last and not run.tied else 0))
    return Local(run.parameters / run.pipeline / run.tensor, 0.0, layers, ends / run.tensor)
