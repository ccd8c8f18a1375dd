"""Pure: how long the sequences of each micro-batch are, by seed, rank and iteration."""

from __future__ import annotations

from dataclasses import dataclass

from .memory_model import MicroBatch

_MASK = (1 << 64) - 1
_STEP_TOKENS = 8
_SKEW = 2.0


def uniform(*key: int) -> float:
    """A number in [0, 1) that depends on nothing but the key (SplitMix64 over its parts)."""
    state = 0x9E3779B97F4A7C15
    for part in key:
        state = (state + part * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state / (1 << 64)


@dataclass(frozen=True, slots=True)
class Growth:
    """Short sequences first: up to ``first_tokens`` until ``full_from_iteration``, where the full length begins."""

    first_tokens: int
    full_from_iteration: int


@dataclass(frozen=True, slots=True)
class SequenceLengths:
    """Lengths in tokens; every micro-batch is padded to its longest sequence.

    Without mix, growth and imbalance all sequences have ``longest_tokens``. A mix draws lengths between
    ``shortest_tokens`` and the limit, evenly on a logarithmic scale and then skewed to the short ones.
    ``imbalance`` is the share by which the data of one rank may be shorter than the limit in every iteration, as
    when each rank reads a part of a data set that is ordered by length.
    """

    longest_tokens: int
    seed: int = 1234
    shortest_tokens: int | None = None
    growth: Growth | None = None
    imbalance: float = 0.0

    def limit_tokens(self, iteration: int) -> int:
        """The longest sequence of an iteration (counted from 1)."""
        growth = self.growth
        if growth is not None and iteration < growth.full_from_iteration:
            return min(growth.first_tokens, self.longest_tokens)
        return self.longest_tokens

    def is_constant(self) -> bool:
        """Whether all micro-batches that a rank sees in one iteration are alike."""
        return self.shortest_tokens is None

    def micro_batches(self, rank: int, iteration: int, sequences: int, accumulation: int) -> list[MicroBatch]:
        """A rank's micro-batches of one iteration.

        A mix draws by the number of the sequence within the iteration, so that half the micro-batch size with
        twice the accumulation sees the same sequences.
        """
        limit = self.limit_tokens(iteration)
        if self.imbalance:
            share = 1.0 - self.imbalance * uniform(self.seed, rank)
            limit = max(_STEP_TOKENS, int(limit * share) // _STEP_TOKENS * _STEP_TOKENS)
        batches = []
        for first in range(0, sequences * accumulation, sequences):
            longest = max(self._length(rank, iteration, first + i, limit) for i in range(sequences))
            batches.append(MicroBatch(sequences, longest))
        return batches

    def _length(self, rank: int, iteration: int, sequence: int, limit: int) -> int:
        if self.shortest_tokens is None or self.shortest_tokens >= limit:
            return limit
        draw = uniform(self.seed, rank, iteration, sequence)
        length = self.shortest_tokens * (limit / self.shortest_tokens) ** (draw**_SKEW)
        return min(limit, -(-int(length) // _STEP_TOKENS) * _STEP_TOKENS)
