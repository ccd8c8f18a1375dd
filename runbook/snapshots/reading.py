"""A snapshot from its pickle: entries of the trace go into columns as they come, stacks are kept once.

Keys as `torch/csrc/cuda/memory_snapshot.cpp` and `torch/cuda/memory.py` write them since PyTorch 2.0; keys that are not
known are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from runbook.errors import BadInput
from runbook.model.snapshots import Action, Block, Events, Frame, Segment, Settings, Snapshot, Stack
from runbook.snapshots.instructions import KEEP, Maker
from runbook.snapshots.plain_pickle import read_plain_pickle

_ACTIONS = {action.name.lower(): int(action) for action in Action if action is not Action.OTHER}
_NO_SNAPSHOT = "it is a pickle, but no memory snapshot of PyTorch"
_NAME_ANOTHER = "name what torch.cuda.memory._dump_snapshot has written"
_MOST_ADDRESS = (1 << 64) - 1
_LONGEST_NAME = 500
_MOST_DEVICES = 256
"""A process sees those of one node."""


def read_snapshot(stream: BinaryIO, progress: Callable[[int], None] = lambda _bytes: None) -> Snapshot:
    """`progress` is called with bytes read. Raises `BadInput`, and whatever the stream raises."""
    gathering = _Gathering()
    found = read_plain_pickle(stream, gathering, progress)
    if isinstance(found, list | _Run):
        found = {"segments": found}
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise BadInput(_NO_SNAPSHOT, next_step=_NAME_ANOTHER)
    segments, traces = found["segments"], found.get("device_traces", [])
    if not all(isinstance(one, Segment) for one in segments) or not isinstance(traces, list):
        raise BadInput(_NO_SNAPSHOT, next_step=_NAME_ANOTHER)
    if len({one.device for one in segments}) > _MOST_DEVICES or len(traces) > _MOST_DEVICES:
        raise BadInput(f"more than {_MOST_DEVICES} devices")
    return Snapshot(
        tuple(segments), gathering.events, _traces(traces, gathering.claimed),
        gathering.stacks, _settings(found.get("allocator_settings")),
    )


class _Entry:
    """Stands for a dictionary that has become a row of the columns."""


_ENTRY = _Entry()


@dataclass(slots=True)
class _Run:
    """Stands for a list of entries: rows from `start` up to `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _StackNumber:
    """Stands for a list of frames: its place among the stacks."""

    number: int


class _Gathering:
    """The sink: rows, frames, stacks, blocks and segments are taken out of the pickle as they are finished.

    Values are looked at by their class before anything else is done with them: a file may have anything anywhere."""

    def __init__(self) -> None:
        self.events = Events()
        self.stacks: list[Stack] = [()]
        self.claimed = 0
        self._frames: dict[Frame, Frame] = {}
        self._numbers: dict[Stack, _StackNumber] = {(): _StackNumber(0)}
        self._makers: dict[str, Maker | None] = {}

    known = frozenset({
        "action", "addr", "address", "device_free", "size", "stream", "time_us", "frames", "name", "filename", "line",
        "real_size", "state", "requested_size", "history", "total_size", "device", "segment_type", "segment_pool_id",
        "is_expandable", "blocks",
    })

    def maker(self, keys: Sequence[Any]) -> Maker | None:
        """See `Sink`."""
        layout = "\n".join(keys)  # nothing but text passes
        try:
            return self._makers[layout]
        except KeyError:
            make = self._maker(keys)
            if len(self._makers) < 1000:
                self._makers[layout] = make
            return make

    def items(self, before: Any, new: list[Any]) -> Any:
        """See `Sink`."""
        first = new[0] if new else None
        if first is _ENTRY:
            return self._claim(before, new)
        if first.__class__ is Frame:
            if not all(one.__class__ is Frame for one in new):
                raise BadInput("a stack with something else in it than frames")
            if before.__class__ is _StackNumber:
                return self._stack((*self.stacks[before.number], *new))
            return self._stack(tuple(new)) if before == [] else KEEP
        return KEEP

    def _claim(self, before: Any, new: list[Any]) -> _Run:
        start, count = self.claimed, len(new)
        if new.count(_ENTRY) != count or start + count > len(self.events):
            raise BadInput("a trace with something else in it than entries, or an entry in two places")
        self.claimed += count
        if before.__class__ is _Run and before.stop == start:
            return _Run(before.start, start + count)
        if before.__class__ is list and not before:
            return _Run(start, start + count)
        raise BadInput("the entries of a trace are not in one run")

    def _stack(self, frames: Stack) -> _StackNumber:
        number = self._numbers.get(frames)
        if number is None:
            number = self._numbers[frames] = _StackNumber(len(self.stacks))
            self.stacks.append(frames)
        return number

    def _maker(self, keys: Sequence[Any]) -> Maker | None:
        """What makes of the values of a dictionary with these keys what stands for it."""
        places = {key: place for place, key in enumerate(keys)}
        if "action" in places:
            return self._entry_maker(places)
        if "filename" in places and "line" in places:
            return lambda values: self._frame(places, values)
        if "real_size" in places:
            return lambda values: _History(self._stack_number(_at(values, places, "frames")))
        if "state" in places and "size" in places:
            return lambda values: self._block(places, values)
        if "total_size" in places:
            return lambda values: self._segment(places, values)
        return None

    def _entry_maker(self, places: Mapping[str, int]) -> Maker:
        events = self.events
        action, size = places["action"], places.get("size", -1)
        # An out-of-memory entry has what the device had free in the place of an address.
        address = places.get("addr", places.get("device_free", places.get("address", -1)))
        stream, time, frames = places.get("stream", -1), places.get("time_us", -1), places.get("frames", -1)
        put_action, put_address, put_size = events.actions.append, events.addresses.append, events.sizes.append
        put_stream, put_time, put_stack = events.streams.append, events.times.append, events.stacks.append
        number_of = self._stack_number
        known, other = _ACTIONS.get, int(Action.OTHER)
        mask = _MOST_ADDRESS

        def make(values: Sequence[Any]) -> _Entry:
            what = values[action]
            if what.__class__ is not str:
                raise BadInput("an entry of a trace whose action is no text")
            stack = values[frames] if frames >= 0 else None
            # All or none: a value that is no number raises here, before a column has it.
            put_address((values[address] if address >= 0 else 0) & mask)
            put_size((values[size] if size >= 0 else 0) & mask)
            put_stream((values[stream] if stream >= 0 else 0) & mask)
            put_time(values[time] if time >= 0 else 0)
            put_stack(stack.number if stack.__class__ is _StackNumber else number_of(stack))
            put_action(known(what, other))
            return _ENTRY

        return make

    def _frame(self, places: Mapping[str, int], values: Sequence[Any]) -> Frame:
        name, file, line = _at(values, places, "name"), _at(values, places, "filename"), _at(values, places, "line")
        frame = Frame(
            name[:_LONGEST_NAME] if name.__class__ is str else "?",
            file[:_LONGEST_NAME] if file.__class__ is str else "?",
            line if line.__class__ is int and 0 <= line < 1 << 31 else 0,
        )
        return self._frames.setdefault(frame, frame)

    def _stack_number(self, frames: Any) -> int:
        if frames.__class__ is _StackNumber:
            return int(frames.number)
        return 0  # no list of frames, or an empty one

    def _block(self, places: Mapping[str, int], values: Sequence[Any]) -> Block:
        state = _at(values, places, "state")
        history = _at(values, places, "history")
        stack = self._stack_number(_at(values, places, "frames"))
        address = _at(values, places, "address")
        if history.__class__ is list and history and history[0].__class__ is _History:
            stack = history[0].stack
        size = _whole(_at(values, places, "size"))
        requested = _at(values, places, "requested_size")
        return Block(
            _whole(address) if address is not None else 0, size,
            _whole(requested) if requested is not None else size, state if state.__class__ is str else "?", stack,
        )

    def _segment(self, places: Mapping[str, int], values: Sequence[Any]) -> Segment:
        blocks = _at(values, places, "blocks")
        if blocks.__class__ is not list or not all(one.__class__ is Block for one in blocks):
            raise BadInput("a segment without its blocks")
        address, pool = _whole(_at(values, places, "address")), _at(values, places, "segment_pool_id")
        if pool.__class__ not in (tuple, list) or not all(one.__class__ is int for one in pool):
            pool = (0, 0)
        placed, at = [], address
        for block in blocks:
            placed.append(block if block.address else block._replace(address=at))
            at = placed[-1].address + block.size
        return Segment(
            _whole(_at(values, places, "device") or 0), address, _whole(_at(values, places, "total_size")),
            _whole(_at(values, places, "stream") or 0), _at(values, places, "segment_type") == "small", tuple(pool[:2]),
            _at(values, places, "is_expandable") is True, tuple(placed),
        )


@dataclass(frozen=True, slots=True)
class _History:
    """Of a block, as PyTorch 2.0 wrote it."""

    stack: int


def _at(values: Sequence[Any], places: Mapping[str, int], key: str) -> Any:
    place = places.get(key)
    return None if place is None else values[place]


def _whole(value: Any) -> int:
    if value.__class__ is not int or not 0 <= value <= _MOST_ADDRESS:
        raise BadInput("a size or an address that is none")
    return int(value)


def _traces(lists: Any, claimed: int) -> Mapping[int, range]:
    if not isinstance(lists, list):
        raise BadInput(_NO_SNAPSHOT, next_step=_NAME_ANOTHER)
    found: dict[int, range] = {}
    rows = 0
    for device, one in enumerate(lists):
        if isinstance(one, _Run):
            found[device] = range(one.start, one.stop)
            rows += one.stop - one.start
        elif one != []:
            raise BadInput("a trace with something else in it than entries")
    if rows != claimed:
        raise BadInput("a trace that stands in two places, or in none")
    return found


def _settings(found: Any) -> Settings:
    if not isinstance(found, dict):
        return Settings()
    split, threshold = found.get("max_split_size"), found.get("garbage_collection_threshold")
    text = found.get("PYTORCH_CUDA_ALLOC_CONF", found.get("PYTORCH_ALLOC_CONF", ""))
    expandable, divisions = found.get("expandable_segments"), found.get("roundup_power2_divisions")
    every = {one for one in divisions.values() if isinstance(one, int)} if isinstance(divisions, dict) else {0}
    return Settings(
        expandable if isinstance(expandable, bool) else None,
        split if isinstance(split, int) and split > 0 else None,
        float(threshold) if isinstance(threshold, int | float) and 0 < threshold < 1 else None,
        every.pop() if len(every) == 1 else 0,
        text[:_LONGEST_NAME] if isinstance(text, str) else "",
    )
