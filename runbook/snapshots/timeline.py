"""What was alive when, why it was there, and what each step leaves behind: from a device's trace.

A trace is a ring: it may begin in the middle. What is freed in it and was not allocated in it, or is alive at its end
and was not allocated in it, was there before.

The phase of an allocation is told from the calls that led to it: `torch/optim` (the step of every optimizer passes
through its `optimizer.py`), the autograd engine or recomputation under `torch/utils/checkpoint.py`, a module's
`forward`. The category is told from phase and life:

- optimizer states: allocated in an optimizer's step and alive beyond it;
- gradients: allocated in a backward pass and alive beyond it;
- activations: allocated in a forward pass and not given back within it;
- temporary: given back within the phase that allocated it, as a rule, by the other allocations of the same calls;
- weights: allocated before the first forward pass, under a module's `to`, `cuda`, `_apply` or `__init__`, or while a
  checkpoint was loaded.

Whatever these do not tell is not known."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.model.snapshots import Action, Category, Growth, Holder, Moment, Phase, Snapshot, Stack

_ROUNDED = 512
_HOLDERS = 200
_FRAMES = 60
_NOT_RECORDED = -1
"""The stack of what was there before the trace and is gone, or was allocated before anything was recorded."""
_LEAST_GROWTH = 1 << 20
_FEWEST_STEPS = 4
"""Before growth is called that: the first step leaves optimizer states, the second may leave buffers."""
_OPTIMIZERS = (
    "/torch/optim/", "/apex/optimizers/", "/bitsandbytes/optim/", "/torchao/optim/", "/deepspeed/ops/",
    "/megatron/core/optimizer/", "/transformer_engine/pytorch/optimizers/",
)
_LOADING = frozenset({"to", "cuda", "_apply", "to_empty", "__init__", "load_state_dict", "from_pretrained"})


def phase_of(stack: Stack) -> Phase:
    """By the calls; the backward pass runs on threads of its own, where C++ frames alone tell it."""
    found = Phase.UNKNOWN
    for frame in stack:
        if any(part in frame.file for part in _OPTIMIZERS) or frame.name == "_init_group":
            return Phase.OPTIMIZER
        if frame.name.startswith("torch::autograd::Engine::") or frame.file.endswith("torch/autograd/graph.py"):
            return Phase.BACKWARD
        if frame.file.endswith("torch/utils/checkpoint.py") and frame.name in ("recompute_fn", "unpack_hook"):
            return Phase.BACKWARD
        if frame.name == "forward" or frame.name == "_call_impl":
            found = Phase.FORWARD
        elif found is Phase.UNKNOWN and frame.file.endswith(".py"):
            found = Phase.SETUP
    return found


@dataclass(slots=True)
class _Lives:
    """How allocations from one stack ended."""

    within: int = 0
    """In the phase in which they were made."""
    beyond: int = 0


@dataclass(slots=True)
class Timeline:
    """What one pass over a device's trace has found."""

    highest: int = 0
    highest_at: int = -1
    failed_at: int = -1
    """The last out-of-memory entry."""
    before: dict[int, int] = field(default_factory=dict)
    """What was there before the trace: rounded sizes by address."""
    floors: list[int] = field(default_factory=list)
    """Bytes allocated when each step begins."""


class _Device:
    """One device of a snapshot."""

    def __init__(
        self, snapshot: Snapshot, device: int, phases: Mapping[int, Phase], loading: frozenset[int]
    ) -> None:
        self._loading = loading
        self._events, self._run = snapshot.events, snapshot.traces.get(device, range(0))
        self._phases, self._stacks = phases, snapshot.stacks
        self._blocks = [
            block for segment in snapshot.segments if segment.device == device for block in segment.blocks
            if block.allocated or block.pending
        ]
        self._lives: dict[int, _Lives] = {}
        self._changes: list[int] = []
        """Entries at which another phase begins."""
        self._steps: list[int] = []
        """Entries at which a step begins."""
        self._first_forward = -1

    def pass_over(self) -> Timeline:
        """Find the highest use, the failure, the steps, and how long what lives."""
        events, found = self._events, Timeline()
        failures = events.actions[self._run.start : self._run.stop].tobytes().rfind(bytes([Action.OOM]))
        failed_at = found.failed_at = self._run.start + failures if failures >= 0 else -1
        now = highest = 0
        live: dict[int, tuple[int, int, int]] = {}
        number, current, seen_step = 0, Phase.SETUP, False
        floors: list[int] = []
        for at in self._run:
            action = events.actions[at]
            if action == Action.ALLOC:
                stack = events.stacks[at]
                phase = self._phases[stack]
                if phase is not current and phase is not Phase.UNKNOWN and phase is not Phase.SETUP:
                    if phase is Phase.FORWARD:
                        if self._first_forward < 0:
                            self._first_forward = at
                        if seen_step or (current is Phase.BACKWARD and not self._any_optimizer):
                            self._steps.append(at)
                            floors.append(now)
                            seen_step = False
                    elif phase is Phase.OPTIMIZER:
                        seen_step = True
                    current = phase
                    number += 1
                    self._changes.append(at)
                size = -(-events.sizes[at] // _ROUNDED) * _ROUNDED
                live[events.addresses[at]] = (size, stack, number)
                now += size
                if now > highest:
                    highest, found.highest_at = now, at
            elif action == Action.FREE_COMPLETED:
                was = live.pop(events.addresses[at], None)
                if was is None:
                    size = -(-events.sizes[at] // _ROUNDED) * _ROUNDED
                    found.before[events.addresses[at]] = size
                    now -= size
                    continue
                now -= was[0]
                lives = self._lives.setdefault(was[1], _Lives())
                if at > failed_at >= 0:
                    continue  # the failure itself took it down
                if was[2] == number:
                    lives.within += 1
                else:
                    lives.beyond += 1
        for block in self._blocks:
            if block.address not in live:
                found.before[block.address] = block.size
        base = sum(found.before.values())
        found.highest = highest + base
        found.floors = [floor + base for floor in floors]
        return found

    @property
    def _any_optimizer(self) -> bool:
        return Phase.OPTIMIZER in self._phases.values()

    def moment(self, found: Timeline) -> Moment:
        """What is alive at the failure, else at the highest use."""
        until = found.failed_at if found.failed_at >= 0 else found.highest_at
        events = self._events
        before, live = dict(found.before), dict[int, int]()
        for at in range(self._run.start, until + 1):
            action = events.actions[at]
            if action == Action.ALLOC:
                live[events.addresses[at]] = at
            elif action == Action.FREE_COMPLETED and live.pop(events.addresses[at], None) is None:
                before.pop(events.addresses[at], None)
        holders: dict[tuple[int, Category], _Held] = {}
        exact = {block.address: block for block in self._blocks}
        for address, size in before.items():
            block = exact.get(address)
            stack = (block.stack if block is not None else 0) or _NOT_RECORDED
            over = bool(self._changes) and self._changes[0] <= until
            _hold(holders, stack, self._category(stack, -1, over=over), size, -1)
        change = step = 0
        for at in live.values():
            while change < len(self._changes) and self._changes[change] <= at:
                change += 1
            while step < len(self._steps) and self._steps[step] <= at:
                step += 1
            size = -(-events.sizes[at] // _ROUNDED) * _ROUNDED
            stack = events.stacks[at]
            over = change < len(self._changes) and self._changes[change] <= until
            _hold(holders, stack, self._category(stack, at, over=over), size, step)
        told = sorted(holders.items(), key=lambda item: -item[1].size)
        categories: Counter[Category] = Counter()
        phases: Counter[Phase] = Counter()
        for (stack, category), held in told:
            categories[category] += held.size
            phases[self._phases.get(stack, Phase.UNKNOWN)] += held.size
        return Moment(
            found.failed_at >= 0, categories.total(),
            tuple(
                Holder(
                    self._stacks[stack][:_FRAMES] if stack >= 0 else (), held.size, held.count,
                    self._phases.get(stack, Phase.UNKNOWN), category,
                    len(held.steps - {-1}),
                )
                for (stack, category), held in told[:_HOLDERS]
            ),
            dict(categories.most_common()), dict(phases.most_common()), sum(before.values()),
        )

    def growth(self, found: Timeline, moment: Moment) -> Growth:
        """A leak has a size: the least that any step of the later ones leaves behind."""
        later = found.floors[1:]
        rises = [after - before for before, after in itertools.pairwise(later)]
        per_step = min(rises) if len(found.floors) >= _FEWEST_STEPS and rises else 0
        if per_step < _LEAST_GROWTH:
            return Growth(tuple(found.floors), 0, ())
        suspects = tuple(one for one in moment.holders if one.steps > 2)
        return Growth(tuple(found.floors), per_step, suspects)

    def _category(self, stack: int, at: int, *, over: bool) -> Category:
        """`over`: the phase in which it was allocated has ended by the moment that is looked at."""
        phase, lives = self._phases.get(stack, Phase.UNKNOWN), self._lives.get(stack, _Lives())
        short = lives.within > lives.beyond
        if phase is Phase.OPTIMIZER:
            return Category.OPTIMIZER if over else Category.TEMPORARY if short else Category.OPTIMIZER
        if phase is Phase.BACKWARD:
            if over:
                return Category.GRADIENTS
            return Category.TEMPORARY if short else Category.GRADIENTS if lives.beyond else Category.UNKNOWN
        if phase is Phase.FORWARD:
            return Category.TEMPORARY if short and not over else Category.ACTIVATIONS
        if (self._first_forward < 0 or at < self._first_forward) and stack in self._loading:
            return Category.WEIGHTS
        return Category.TEMPORARY if short and not over else Category.UNKNOWN


@dataclass(slots=True)
class _Held:
    size: int = 0
    count: int = 0
    steps: set[int] = field(default_factory=set)


def _hold(holders: dict[tuple[int, Category], _Held], stack: int, category: Category, size: int, step: int) -> None:
    held = holders.setdefault((stack, category), _Held())
    held.size += size
    held.count += 1
    held.steps.add(step)


def look_at(snapshot: Snapshot, device: int, phases: Mapping[int, Phase]) -> tuple[Timeline, Moment, Growth]:
    """`phases`: of every stack, by its place."""
    loading = frozenset(
        number for number, phase in phases.items() if phase is Phase.SETUP
        and any(frame.name in _LOADING for frame in snapshot.stacks[number])
    )
    one = _Device(snapshot, device, phases, loading)
    found = one.pass_over()
    moment = one.moment(found)
    return found, moment, one.growth(found, moment)
