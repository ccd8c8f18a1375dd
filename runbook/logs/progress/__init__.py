"""How far a job came: steps, their durations, memory figures, checkpoints written and loaded."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from itertools import pairwise

from runbook.logs.progress.memory_series import MemorySeries, Place, nearest_step
from runbook.logs.progress.step_counters import Counter, Mark, choose, duration_s, step_times
from runbook.logs.signatures import Match
from runbook.model.log import Event, Progress

COUNTERS_KEPT = 64
FAILURES_KEPT = 64
_NUMBERS = re.compile(r"\d+")


class ProgressReader:
    """Collects progress lines of all files; one counter is chosen in the end, so that two counters do not mix."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str, int | None], Counter] = {}
        self._memory = MemorySeries()
        self._saved: set[int] = set()
        self._saved_without_step: list[tuple[int, int, int]] = []
        self._resumed: tuple[int, int, int, int] | None = None
        self._scratch: int | None = None
        """The last attempt that says that it begins anew."""
        self._restarts: dict[int, list[int]] = {}
        self._failed: dict[int, list[int]] = {}
        self._top: dict[tuple[int, int], int] = {}
        """By file and number of the counter: its greatest step since the file's last restart."""
        self._choice: tuple[Counter, Counter] | None = None
        self._sorted: dict[int, tuple[list[int], list[int]]] = {}
        """By file: offsets and steps of the chosen counter, in order of place."""
        self._begun: dict[int, int] = {}
        """By file: the attempt that its first mark of the chosen counter tells of."""
        self._current: bool = False
        """Whether the choice above is that of all lines so far."""
        self._framework = ""
        """The program that the first line shows that names one."""

    def restart(self, file: int, offset: int) -> None:
        """From here on the file tells of a later attempt. Offsets come in order."""
        self._restarts.setdefault(file, []).append(offset)
        self._top = {key: step for key, step in self._top.items() if key[0] != file}
        self._current = False

    def failed(self, file: int, offset: int) -> None:
        """Memory ran out here. A program that catches it may begin to count anew."""
        places = self._failed.setdefault(file, [])
        if len(places) < FAILURES_KEPT:
            places.append(offset)
            self._current = False

    def _attempt_at(self, file: int, offset: int, first_attempt: int) -> int:
        return first_attempt + bisect_left(self._restarts.get(file, []), offset)

    def _attempt(self, mark: Mark) -> int:
        return self._attempt_at(mark.file, mark.offset, mark.first_attempt)

    def step(
        self, match: Match, *, file: int, first_attempt: int, offset: int, rank: int | None, time_s: float | None
    ) -> bool:
        """One progress line; whether it told a step. Lines may come twice; the same place counts once."""
        signature = match.signature
        named = match.integer("rank")
        rank = named if named is not None else rank
        step = match.integer("step")
        self._framework = self._framework or signature.framework
        if step is not None and step >= 0:
            name = _NUMBERS.sub("#", match.text("where") or "")[:60]  # "Epoch 3" goes on from "Epoch 2"
            key = (signature.id, name, match.integer("total_steps") if signature.bar else 0)
            counter = self._counters.get(key)
            if counter is None:
                if len(self._counters) >= COUNTERS_KEPT:
                    return False
                counter = Counter(
                    signature.id, signature.bar, signature.fallback, signature.framework, signature.first_number,
                    name=name,
                )
                self._counters[key] = counter
            mark = Mark(
                file, first_attempt, offset, step, rank, match.integer("epoch"), time_s, _made(match),
                match.number("duration_s"),
            )
            if not counter.add(mark, match):
                return True
            top = (file, id(counter))
            self._top[top] = max(step, self._top.get(top, step))
            self._current = False
        self._memory.add(match, rank, step, Place(file, offset, first_attempt), time_s)
        return step is not None

    def memory(
        self, match: Match, rank: int | None, step: int | None, *, file: int = 0, first_attempt: int = 0, offset: int
    ) -> None:
        """Memory figures of a line that is no progress line, if it has any."""
        self._memory.add(match, rank, step, Place(file, offset, first_attempt))

    def newest(self, file: int) -> int | None:
        """The greatest step that the file has shown since its last restart, by what is most surely a step."""
        counters = sorted(self._counters.values(), key=lambda one: (one.fallback, one.bar))
        tops = (self._top.get((file, id(one))) for one in counters)
        return next((top for top in tops if top is not None), None)

    def checkpoint(self, match: Match, *, file: int, attempt: int, offset: int) -> bool:
        """A line about a checkpoint, if it is one."""
        saved, resumed = match.integer("saved_step"), match.integer("resumed_step")
        if saved is not None:
            self._saved.add(saved)
        elif resumed is not None:
            # A reference model is loaded beside the trained one, from its own step 0: an attempt's furthest counts.
            if self._resumed is None or attempt > self._resumed[0] or (
                attempt == self._resumed[0] and resumed >= self._resumed[3]
            ):
                self._resumed = (attempt, file, offset, resumed)
        elif Event.FROM_SCRATCH in match.signature.reports:
            self._scratch = max(attempt, self._scratch) if self._scratch is not None else attempt
        elif Event.CHECKPOINT_SAVED in match.signature.reports:
            self._saved_without_step.append((file, attempt, offset))
        else:
            return False
        return True

    def step_before(self, file: int, offset: int) -> int | None:
        """The last step that the file shows before an offset, or in front of it: a bar has no line end of its own."""
        offsets, steps = self._of_file(file)
        index = bisect_right(offsets, offset)
        return steps[index - 1] if index else None

    def steps_after(self, file: int, attempt: int, offset: int) -> set[int]:
        """The steps that the file shows after an offset within the same attempt.

        A bar is drawn once more when it is closed, with the steps that were done and not drawn yet: that is none."""
        offsets, steps = self._of_file(file)
        first = bisect_right(offsets, offset)
        begun = attempt - self._first_attempt_of(file)
        restarts = self._restarts.get(file, [])
        if not 0 <= begun <= len(restarts):
            return set()
        low = restarts[begun - 1] if begun else 0
        high = restarts[begun] if begun < len(restarts) else None
        found = {
            steps[index] for index in range(first, len(offsets))
            if low <= offsets[index] and (high is None or offsets[index] <= high)
        }
        chosen = self._chosen()
        drawn_again = chosen is not None and chosen.bar and len(found) == 1
        return set() if drawn_again and min(found) >= (self.step_before(file, offset) or 0) else found

    def _first_attempt_of(self, file: int) -> int:
        self._chosen()
        return self._begun.get(file, 0)

    def start_of(self, attempt: int | None) -> int | None:
        """The step that an attempt resumed from, if the log says so."""
        return self._resumed[3] if self._resumed is not None and self._resumed[0] == attempt else None

    def last_step(self, attempt: int | None) -> int | None:
        return max((mark.step for mark in self._marks(attempt)), default=None)

    @property
    def framework(self) -> str | None:
        """The program that printed the step lines, else the one that another progress line shows."""
        self._chosen()
        return (self._choice[1].framework if self._choice else "") or self._framework or None

    def _chosen(self) -> Counter | None:
        if not self._current:
            self._choice = choose(self._counters.values(), self._attempt, self._failed)
            self._sorted, self._begun = {}, {}
            for mark in self._choice[0].marks.values() if self._choice else ():
                self._begun.setdefault(mark.file, mark.first_attempt)
            for mark in self._choice[0].everyone() if self._choice else ():
                offsets, steps = self._sorted.setdefault(mark.file, ([], []))
                offsets.append(mark.offset)
                steps.append(mark.step)
            self._current = True
        return self._choice[0] if self._choice else None

    def _of_file(self, file: int) -> tuple[list[int], list[int]]:
        self._chosen()
        return self._sorted.get(file, ([], []))

    def _marks(self, attempt: int | None) -> list[Mark]:
        """Marks of an attempt (None: of all). Where a log goes on with another run and no line says so, the last one's.

        That is told by a step line that goes back and is later by its stamp; without stamps it may be buffered output
        of another rank."""
        chosen = self._chosen()
        if chosen is None:
            return []
        marks = [mark for mark in chosen.everyone() if attempt is None or self._attempt(mark) == attempt]
        if chosen.bar:
            return marks
        begun: dict[int, int] = {}
        ordered = sorted(marks, key=lambda mark: (mark.file, str(mark.rank), mark.offset))
        for before, after in pairwise(ordered):
            if (before.file, before.rank) == (after.file, after.rank) and after.step < before.step - 1 \
                    and before.time_s is not None and after.time_s is not None and after.time_s > before.time_s:
                begun[after.file] = max(after.offset, begun.get(after.file, 0))
        return [mark for mark in marks if mark.offset >= begun.get(mark.file, 0)]

    def _running_at(self, place: Place) -> int | None:
        """The step that was running at a place of a file."""
        offsets, steps = self._of_file(place.file)
        return nearest_step(offsets, steps, place.offset)

    def result(self, attempt: int | None, failing_rank: int | None = None) -> Progress:
        """The progress of an attempt (None: of all). The failing rank's memory figures are told in more detail."""
        chosen = self._chosen()
        marks = self._marks(attempt)
        last = max((mark.step for mark in marks), default=None)
        if last is None:
            last = self.start_of(attempt) if self.start_of(attempt) is not None else self.last_step(None)
        saved = set(self._saved)
        for file, _, offset in self._saved_without_step:
            before = self.step_before(file, offset)
            if before is not None:
                saved.add(before)
        resumed = self._resumed[3] if self._resumed else None
        # A line about a model that is loaded beside it does not undo the step that the trained one goes on from.
        went_on = self._resumed is not None and self._scratch is not None and self._resumed[0] >= self._scratch
        scratch = self._scratch is not None and not (went_on and resumed)
        memory = self._memory.told(
            self._running_at, lambda place: attempt is None or self._attempt_at(*place) == attempt, failing_rank
        )
        if chosen is None:
            return Progress(
                saved_steps=tuple(sorted(saved)), resumed_from_step=resumed, from_scratch=scratch, memory=memory
            )
        every = marks or chosen.everyone()
        numbers = [mark.step for mark in every if mark.step or not chosen.bar]
        newest = max(every, key=lambda mark: mark.step)
        if numbers and newest.made is not None:
            numbers.append(max(chosen.first_number, newest.step - newest.made + 1))
        by_rank: dict[int, int] = {}
        begun = {(mark.file, mark.offset) for mark in marks}
        for mark in chosen.newest.values():
            if mark.rank is not None and mark.place in begun:
                by_rank[mark.rank] = max(mark.step, by_rank.get(mark.rank, mark.step))
        total = chosen.total if chosen.total is None or last is None or last <= chosen.total else None
        return Progress(
            last_step=last, total_steps=total, first_step=min(numbers, default=None),
            last_step_by_rank=dict(sorted(by_rank.items())), step_duration_s=duration_s(chosen, self._attempt),
            step_times=step_times(every),
            resumed_from_step=resumed, from_scratch=scratch, saved_steps=tuple(sorted(saved)), memory=memory,
            numbered_from=0 if chosen.fallback and 0 in numbers else chosen.first_number,
        )


def _made(match: Match) -> int | None:
    """Steps that a bar has counted since the program began, by how long it ran and what a step takes. The number that
    it shows is greater where the run went on from a checkpoint."""
    elapsed_s, each_s, step = match.number("elapsed_s"), match.number("duration_s"), match.integer("step")
    if elapsed_s is None or not each_s or step is None:
        return None
    return max(1, min(step, round(elapsed_s / each_s)))
