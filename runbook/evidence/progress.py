"""How far a job came: steps, their durations, memory figures, checkpoints written and loaded."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from runbook.evidence.signatures import Match
from runbook.model.log import MemorySample, Progress
from runbook.model.units import Bytes

MARKS_A_FILE = 20_000
MEMORY_SAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Mark:
    """A step seen at a place of a file."""

    file: int
    first_attempt: int
    """The file's first attempt; restarts before the place count on top."""
    offset: int
    step: int


@dataclass(slots=True)
class _Steps:
    """What one kind of progress line told."""

    fallback: bool
    first: int | None = None
    last: int | None = None
    total: int | None = None
    by_rank: dict[int, int] = field(default_factory=dict)
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=400))
    marks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    lines: int = 0


class ProgressReader:
    """Collects progress lines of all files; one kind of line is chosen in the end, so that two counters do not mix."""

    def __init__(self) -> None:
        self._steps: dict[str, _Steps] = {}
        self._memory: dict[tuple[int | None, int | None, str], MemorySample] = {}
        self._saved: set[int] = set()
        self._saved_without_step: list[tuple[int, int, int]] = []
        self._resumed: tuple[int, int, int, int] | None = None
        self._sorted: dict[int, list[Mark]] | None = None
        self._restarts: dict[int, list[int]] = {}

    def restart(self, file: int, offset: int) -> None:
        """From here on the file tells of a later attempt. Offsets come in order."""
        self._restarts.setdefault(file, []).append(offset)

    def _attempt(self, mark: Mark) -> int:
        return mark.first_attempt + bisect_left(self._restarts.get(mark.file, []), mark.offset)

    def step(
        self, match: Match, *, file: int, first_attempt: int, offset: int, rank: int | None, time_s: float | None
    ) -> None:
        """One progress line. Lines may come twice; the same place counts once."""
        step = match.integer("step")
        if step is None or step < 0:
            return
        steps = self._steps.setdefault(match.signature.id, _Steps(match.signature.fallback))
        if (file, offset) in steps.marks:
            return
        steps.lines += 1
        if len(steps.marks) < MARKS_A_FILE * 4:
            steps.marks[(file, offset)] = Mark(file, first_attempt, offset, step)
        else:
            oldest = next(iter(steps.marks))
            del steps.marks[oldest]
            steps.marks[(file, offset)] = Mark(file, first_attempt, offset, step)
        steps.first = step if steps.first is None else min(steps.first, step)
        total = match.integer("total_steps")
        steps.total = total if total is not None else steps.total
        if rank is not None:
            steps.by_rank[rank] = max(step, steps.by_rank.get(rank, step))
        duration = match.number("duration_s")
        if duration is not None:
            steps.durations_s.append(duration)
        if time_s is not None and len(steps.times) < 2000:
            steps.times[step] = time_s
        self.memory(match, rank, step)

    def memory(self, match: Match, rank: int | None, step: int | None) -> None:
        """Memory figures of a line, if it has any."""
        fields = match.memory_fields()
        peak_allocated, peak_reserved = match.integer("max_allocated_bytes"), match.integer("max_reserved_bytes")
        if (fields.allocated_bytes, fields.reserved_bytes, peak_allocated, peak_reserved) == (None,) * 4:
            return
        if len(self._memory) < MEMORY_SAMPLES:
            self._memory[(rank, step, match.signature.id)] = MemorySample(
                rank, step, fields.allocated_bytes, fields.reserved_bytes,
                Bytes(peak_allocated) if peak_allocated is not None else None,
                Bytes(peak_reserved) if peak_reserved is not None else None,
            )

    def newest(self, file: int, before: int) -> int | None:
        """The greatest step that a file shows before an offset, since its last restart."""
        start = max(self._restarts.get(file, [0]))
        return max(
            (mark.step for steps in self._steps.values() for mark in steps.marks.values()
             if mark.file == file and start <= mark.offset < before),
            default=None,
        )

    def checkpoint(self, match: Match, *, file: int, attempt: int, offset: int) -> bool:
        """A line about a checkpoint, if it is one."""
        saved, resumed = match.integer("saved_step"), match.integer("resumed_step")
        if saved is not None:
            self._saved.add(saved)
        elif resumed is not None:
            if self._resumed is None or (attempt, file, offset) >= self._resumed[:3]:
                self._resumed = (attempt, file, offset, resumed)
        elif match.signature.id.startswith("CK-SAVED"):
            self._saved_without_step.append((file, attempt, offset))
        else:
            return False
        return True

    def step_before(self, file: int, offset: int) -> int | None:
        """The last step that the file shows before an offset."""
        marks = self._of_file(file)
        index = bisect_left(marks, offset, key=lambda mark: mark.offset)
        return marks[index - 1].step if index else None

    def steps_after(self, file: int, attempt: int, offset: int) -> set[int]:
        """The steps that the file shows after an offset within the same attempt."""
        marks = self._of_file(file)
        index = bisect_right(marks, offset, key=lambda mark: mark.offset)
        return {mark.step for mark in marks[index:] if self._attempt(mark) == attempt}

    def _of_file(self, file: int) -> list[Mark]:
        """Marks of a file in order of place; sorted once, when reading is over."""
        if self._sorted is None:
            steps = self._chosen()
            self._sorted = {}
            for mark in sorted(steps.marks.values(), key=lambda one: one.offset) if steps else ():
                self._sorted.setdefault(mark.file, []).append(mark)
        return self._sorted.get(file, [])

    def start_of(self, attempt: int | None) -> int | None:
        """The step that an attempt resumed from, if the log says so."""
        return self._resumed[3] if self._resumed is not None and self._resumed[0] == attempt else None

    def last_step(self, attempt: int | None) -> int | None:
        steps = self._chosen()
        every = steps.marks.values() if steps else ()
        marks = [mark.step for mark in every if attempt is None or self._attempt(mark) == attempt]
        return max(marks, default=None)

    @property
    def kind(self) -> str | None:
        """Id of the signature whose lines were chosen."""
        chosen = self._chosen()
        return next((name for name, steps in self._steps.items() if steps is chosen), None) if chosen else None

    def _chosen(self) -> _Steps | None:
        return max(self._steps.values(), key=lambda one: (not one.fallback, one.lines), default=None)

    def result(self, attempt: int | None) -> Progress:
        """The progress of an attempt (None: of all)."""
        steps = self._chosen()
        last = self.last_step(attempt)
        if last is None:
            last = self.start_of(attempt) if self.start_of(attempt) is not None else self.last_step(None)
        saved = set(self._saved)
        for file, _, offset in self._saved_without_step:
            before = self.step_before(file, offset)
            if before is not None:
                saved.add(before)
        resumed = self._resumed[3] if self._resumed else None
        memory = tuple(sorted(self._memory.values(), key=lambda one: (one.rank or 0, one.step or 0)))
        if steps is None:
            return Progress(saved_steps=tuple(sorted(saved)), resumed_from_step=resumed, memory=memory)
        return Progress(
            last_step=last, total_steps=steps.total, first_step=steps.first,
            last_step_by_rank=dict(sorted(steps.by_rank.items())), step_duration_s=_duration(steps),
            resumed_from_step=resumed, saved_steps=tuple(sorted(saved)), memory=memory,
        )


def _duration(steps: _Steps) -> float | None:
    """Median seconds a step: as printed, else from the stamps of lines."""
    if steps.durations_s:
        return round(median(steps.durations_s), 6)
    times = sorted(steps.times.items())
    gaps = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in pairwise(times)
        if later[1] > earlier[1] and later[0] > earlier[0]
    ]
    return round(median(gaps), 6) if gaps else None
