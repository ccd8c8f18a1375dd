"""Pure: the memory a transformer training job needs, from the published formulas; all results in bytes.

Sources of the constants:

- model states: ZeRO (arXiv 1910.02054, figure 1): 2 + 2 + 12 bytes a parameter for 16-bit weights, 16-bit
  gradients and fp32 master weight, momentum and variance of mixed-precision Adam; stage 1 divides the 12, stage 2
  also the gradients, stage 3 (= FSDP full shard) also the weights by the number of shards;
- activations: Korthikanti et al. (arXiv 2205.05198, table 2): a layer keeps s*b*h*(34 + 5*a*s/h) bytes in 16 bit;
  a fused attention kernel does away with 5*a*s/h; full recomputation keeps the layer's input, 2*s*b*h;
- logits and loss: 8 bytes an element (2 for 16-bit logits, 4 for the fp32 copy, 2 for the gradient); measured
  full-logits losses lie between 6.1 and 8.3 (torchtitan 7.5, torchtune 8.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Checkpointing(Enum):
    """How much of a layer's forward pass is recomputed in backward instead of being kept."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """A GPT-like decoder with 12*h*h parameters a layer and one matrix for embedding and output."""

    hidden_size: int = 4096
    layers: int = 32
    heads: int = 32
    vocab_size: int = 32000

    def attention_parameters(self) -> int:
        """Parameters of one layer's attention: query, key, value and projection."""
        return 4 * self.hidden_size * self.hidden_size

    def mlp_parameters(self) -> int:
        """Parameters of one layer's MLP with a factor of 4."""
        return 8 * self.hidden_size * self.hidden_size

    def embedding_parameters(self) -> int:
        """Parameters of the embedding, which is also the output layer."""
        return self.vocab_size * self.hidden_size

    def parameters(self) -> int:
        """Parameters of the model; biases and norms are left out."""
        layer = self.attention_parameters() + self.mlp_parameters()
        return self.layers * layer + self.embedding_parameters()


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward pass gets: sequences, and tokens in each after padding to the longest."""

    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Sharding:
    """ZeRO stage (0 to 3) and the number of ranks over which it divides the states."""

    stage: int = 3
    degree: int = 1

    def weight_divisor(self) -> int:
        """Ranks that share the 16-bit weights."""
        return self.degree if self.stage >= 3 else 1

    def gradient_divisor(self) -> int:
        """Ranks that share the gradients."""
        return self.degree if self.stage >= 2 else 1

    def optimizer_divisor(self) -> int:
        """Ranks that share the optimizer states."""
        return self.degree if self.stage >= 1 else 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor by name and size in bytes."""

    name: str
    size_bytes: int


#: Bytes per token and hidden unit of a layer's tensors (they add up to 34), and which of them a selective
#: recomputation keeps: the inputs of the two blocks, query/key/value, attention output and the MLP's inner tensor
#: (20 of 34, the saving that torchtitan published for its selective policy, 32 to 42 %).
_LAYER_TENSORS = (
    ("input", 2, True),
    ("norm_1", 2, False),
    ("query_key_value", 6, True),
    ("attention_output", 2, True),
    ("attention_dropout", 1, False),
    ("residual", 2, True),
    ("norm_2", 2, False),
    ("mlp_inner", 8, True),
    ("mlp_activated", 8, False),
    ("mlp_dropout", 1, False),
)


def layer_tensors(shape: TransformerShape, batch: MicroBatch, fused_attention: bool = True) -> list[Tensor]:
    """What one layer's forward pass makes and its backward pass needs."""
    unit = batch.sequences * batch.tokens * shape.hidden_size
    tensors = [Tensor(name, factor * unit) for name, factor, _ in _LAYER_TENSORS]
    if not fused_attention:
        scores = 5 * shape.heads * batch.tokens * batch.tokens * batch.sequences
        tensors.insert(3, Tensor("attention_scores", scores))
    return tensors


def kept_layer_tensors(
    shape: TransformerShape, batch: MicroBatch, checkpointing: Checkpointing, fused_attention: bool = True
) -> list[Tensor]:
    """What stays allocated of one layer between its forward and its backward pass."""
    tensors = layer_tensors(shape, batch, fused_attention)
    if checkpointing is Checkpointing.NONE:
        return tensors
    if checkpointing is Checkpointing.FULL:
        return tensors[:1]
    kept = {name for name, _, is_kept in _LAYER_TENSORS if is_kept}
    return [tensor for tensor in tensors if tensor.name in kept]


def logits_tensors(shape: TransformerShape, batch: MicroBatch) -> list[Tensor]:
    """The loss's tensors, in the order in which they are made: 16-bit logits, fp32 copy, gradient."""
    elements = batch.sequences * batch.tokens * shape.vocab_size
    return [Tensor("logits", 2 * elements), Tensor("logits_fp32", 4 * elements), Tensor("logits_grad", 2 * elements)]


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """Peak need of one rank in bytes, by part; without allocator overhead and without what PyTorch does not own."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    working_bytes: int

    @property
    def total_bytes(self) -> int:
        """Sum of the parts."""
        states = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.activations_bytes + self.working_bytes


def forecast(
    shape: TransformerShape,
    batch: MicroBatch,
    checkpointing: Checkpointing,
    sharding: Sharding,
    fused_attention: bool = True,
) -> MemoryForecast:
    """The closed form of what the simulated job allocates at its highest point, the start of backward."""
    parameters = shape.parameters()
    kept = sum(t.size_bytes for t in kept_layer_tensors(shape, batch, checkpointing, fused_attention))
    everything = sum(t.size_bytes for t in layer_tensors(shape, batch, fused_attention))
    logits = sum(t.size_bytes for t in logits_tensors(shape, batch))
    gathered = 0
    if sharding.weight_divisor() > 1:
        gathered = 2 * 2 * (shape.attention_parameters() + shape.mlp_parameters())
    return MemoryForecast(
        weights_bytes=2 * parameters // sharding.weight_divisor(),
        gradients_bytes=2 * parameters // sharding.gradient_divisor(),
        optimizer_bytes=12 * parameters // sharding.optimizer_divisor(),
        activations_bytes=shape.layers * kept,
        working_bytes=max(logits, everything - kept) + gathered,
    )
