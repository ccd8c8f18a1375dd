"""Reading the steps of one file: samples at even distances, and what stands in front of a failure."""

from __future__ import annotations

from runbook.evidence.framing import frame
from runbook.evidence.framing_stamps import read_time
from runbook.evidence.log_reading import FileState, rank_of
from runbook.evidence.log_scan import FREELY, View, positions_of_lines
from runbook.evidence.log_text import decode

TAIL_BYTES = 64 << 10
_THINLY = 40
_LEAST = 2
_SHARE_OF_A_REMARK = 16
"""A log may hold hundreds of remarks, and the end of each stretch is read anyway."""


class StepSampler:
    """Reads progress lines of one file into the job's progress and clocks."""

    def __init__(self, state: FileState) -> None:
        self._state = state
        self._reading = state.reading
        self._index = state.index
        self._sampled_to = 0

    def before(self, view: View, position: int, closely: bool = True) -> None:
        """Read the steps in front of a failure, each stretch once; of a large set fewer, and in front of what may be
        a remark (not `closely`) only a few."""
        start = max(0, position - 2 * TAIL_BYTES, self._sampled_to - view.base)
        if position > start:
            few = _THINLY if closely else max(_LEAST, min(view.sample // _SHARE_OF_A_REMARK, _THINLY))
            self.sample(view, start, position, last=200 if view.sample >= FREELY else few)
            self._sampled_to = view.base + position

    def sample(self, view: View, start: int, stop: int, last: int) -> int:
        """Read the steps of a stretch; how many lines were steps."""
        found = 0
        for first, end in positions_of_lines(view, self._reading.steps, start, stop, last):
            line = decode(view.buffer[first:end])
            here = frame(line, self._state.named)
            raw = bytes(view.buffer[first:end])
            candidates = self._reading.step_candidates(raw)
            match = self._reading.signatures.first_match(here.text, candidates)
            if match is None and here.text[:1] != "{" and "{" in line:  # the step stands beside a record's message
                match = self._reading.signatures.first_match(line[line.index("{"):], candidates)
            if match is None:
                continue
            self._reading.tables.note_frame(here)
            time_s = read_time(here.stamp, self._reading.started_s)
            self._reading.clocks.note(
                match.signature.id, match.integer("step"), (self._index, rank_of(here), here.node), time_s
            )
            found += self._reading.progress.step(
                match, file=self._index, first_attempt=self._state.named.attempt or 0, offset=view.base + first,
                rank=rank_of(here), time_s=time_s,
            )
        return found
