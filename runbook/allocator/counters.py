"""Vocabulary: the allocator's counters, under the names of ``torch.cuda.memory_stats``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Statistic:
    """One counter: its value now, its highest value, and what was added and removed in all."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def increase(self, amount: int) -> None:
        """Add ``amount`` (bytes or pieces, not negative)."""
        self.current += amount
        self.allocated += amount
        if self.current > self.peak:
            self.peak = self.current

    def decrease(self, amount: int) -> None:
        """Take ``amount`` (bytes or pieces, not negative) away."""
        self.current -= amount
        self.freed += amount


@dataclass(slots=True)
class PooledStatistic:
    """A counter for the small pool, for the large pool and for both together."""

    all: Statistic = field(default_factory=Statistic)
    small_pool: Statistic = field(default_factory=Statistic)
    large_pool: Statistic = field(default_factory=Statistic)

    def increase(self, amount: int, is_small: bool) -> None:
        """Add ``amount`` to the pool's counter and to the sum."""
        self.all.increase(amount)
        (self.small_pool if is_small else self.large_pool).increase(amount)

    def decrease(self, amount: int, is_small: bool) -> None:
        """Take ``amount`` from the pool's counter and from the sum."""
        self.all.decrease(amount)
        (self.small_pool if is_small else self.large_pool).decrease(amount)


_POOLED_NAMES = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)


@dataclass(slots=True)
class AllocatorStatistics:
    """All counters of one allocator; ``*_bytes`` are bytes, the others pieces or events.

    As in PyTorch, ``inactive_split*`` leaves blocks of expandable segments out.
    """

    allocation: PooledStatistic = field(default_factory=PooledStatistic)
    segment: PooledStatistic = field(default_factory=PooledStatistic)
    active: PooledStatistic = field(default_factory=PooledStatistic)
    inactive_split: PooledStatistic = field(default_factory=PooledStatistic)
    allocated_bytes: PooledStatistic = field(default_factory=PooledStatistic)
    reserved_bytes: PooledStatistic = field(default_factory=PooledStatistic)
    active_bytes: PooledStatistic = field(default_factory=PooledStatistic)
    inactive_split_bytes: PooledStatistic = field(default_factory=PooledStatistic)
    requested_bytes: PooledStatistic = field(default_factory=PooledStatistic)
    num_alloc_retries: int = 0
    num_ooms: int = 0
    num_device_alloc: int = 0
    num_device_free: int = 0

    def as_dictionary(self) -> dict[str, int]:
        """Flat names and values, as ``torch.cuda.memory_stats()`` returns them."""
        flat: dict[str, int] = {}
        for name in _POOLED_NAMES:
            pooled: PooledStatistic = getattr(self, name)
            for pool in ("all", "small_pool", "large_pool"):
                statistic: Statistic = getattr(pooled, pool)
                for figure in ("current", "peak", "allocated", "freed"):
                    flat[f"{name}.{pool}.{figure}"] = getattr(statistic, figure)
        for name in ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"):
            flat[name] = getattr(self, name)
        return flat

    def reset_peaks(self) -> None:
        """Set every peak to the present value, as ``torch.cuda.reset_peak_memory_stats()`` does."""
        for name in _POOLED_NAMES:
            pooled: PooledStatistic = getattr(self, name)
            for statistic in (pooled.all, pooled.small_pool, pooled.large_pool):
                statistic.peak = statistic.current
