"""Which signature a line matches, also where its message goes on below, was cut, or was broken by another process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from runbook.evidence.framing_values import Frame
from runbook.evidence.log_reading import FileState
from runbook.evidence.log_scan import View
from runbook.evidence.signatures import FRAMING, Match, Signature

_MENDED_AT_MOST = 5_000
_CLEAN_START = re.compile(
    r"(?:(?:[a-z_]\w{0,40}\.){0,6}(?:OutOfMemory|Runtime|Accelerator|DistBackend|Value|Memory|Assertion|XlaRuntime"
    r"|JaxRuntime|Type|Index|Key|OS)Error: ?)?$"
)


class Matcher:
    """Matches framed lines of one file, and puts messages together again that stand on several lines."""

    def __init__(self, state: FileState) -> None:
        self._state = state
        self._reading = state.reading
        self._index = state.index
        self._mended = 0

    def match(self, view: View, here: Frame, stop: int, candidates: Sequence[Signature]) -> Match | None:
        several = [one for one in candidates if one.lines > 1]
        match = self._reading.signatures.first_match(here.text, [one for one in candidates if one.lines == 1])
        if match is not None and match.signature.whole:
            return match
        if several:
            nearby = islice(self._state.below(view, here, stop), 60)
            own = [line.text for line in nearby if line.speaker == here.speaker]
            for signature in several:
                longer = signature.match("\n".join([here.text, *own[: signature.lines - 1]]))
                if longer is not None:
                    return longer
        if here.cut or (here.task is not None and match is not None):
            return self._with_rest(view, here, stop) or match
        return match

    def _with_rest(self, view: View, here: Frame, stop: int) -> Match | None:
        """A message that srun --label or another process's line cut: its rest stands on the next lines."""
        self._mended += 1
        if self._mended > _MENDED_AT_MOST:
            return None
        nearby = islice(self._state.below(view, here, stop), 60)
        own = [
            line.text for line in nearby
            if (line.task, line.group) == (here.task, here.group) and (line.unnamed or line.speaker == here.speaker)
        ][:3]
        for rest in ("".join(own[:1]), "".join(own[:2]), "".join(own[:3]), "".join(own[1:2])):
            text = here.text + rest
            whole = self._reading.signatures.first_match(text, self._reading.candidates(text.encode()))
            if rest and whole is not None and whole.signature.whole and whole.signature.means != FRAMING:
                self._reading.cut_lines += 1
                return whole
        return None

    def behind_label(self, view: View, here: Frame, start: int) -> Frame | None:
        """A line that matches nothing by itself, put behind the chunk of the same task from which srun cut it."""
        self._mended += 1
        if not here.unnamed or self._mended > _MENDED_AT_MOST or not self._state.named.habits.label_widths:
            return None
        nearby = islice(self._state.frames(view, view.before(start), True), 20)
        first = next((one for one in nearby if (one.task, one.group) == (here.task, here.group)), None)
        if first is None or first.text.endswith((":", ")", ".")):
            return None
        return replace(first, text=first.text + here.text)

    def rest_of_broken(self, view: View, here: Frame, start: int) -> Frame:
        """A line without a prefix behind one that another process broke: the two are put together again."""
        if not self._reading.tables.ranks_seen:
            return here
        nearby = list(islice(self._state.frames(view, view.before(start), True), 4))
        broken = [one for one in nearby if one.cut and not one.unnamed and one.task == here.task]
        if len(broken) != 1:
            return here
        text = broken[0].text + here.text
        whole = self._reading.signatures.first_match(text, self._reading.candidates(text.encode()))
        if whole is None or whole.signature.means == FRAMING:
            return here
        self._reading.tables.note(
            "Two processes wrote into each other's lines; the message of "
            f"{named(broken[0])} was put together from two of them."
        )
        return replace(broken[0], text=text, cut=False)

    def in_table(self, view: View, here: Frame, start: int) -> Frame:
        """An exception inside torchrun's table is that of the row's rank, not of the agent that prints the table."""
        rows = self._reading.tables.rows
        if not rows or rows[-1].file != self._index or not here.text.startswith("  "):
            return here
        stack: list[str] = []
        complete = False
        for one in islice(self._state.frames(view, view.before(start), True), 600):
            if one.speaker != here.speaker:
                continue
            if not complete:
                complete = one.text.startswith("  traceback : ")
                stack.append(one.text.removeprefix("  traceback : ") if complete else one.text[2:])
            if one.text.startswith("  time      : "):
                row = rows[-1]
                return replace(
                    here, text=here.text[2:], rank=row.rank, local_rank=row.local_rank, node=row.node, pid=row.pid,
                    time_s=row.time_s, stack=tuple(reversed(stack)) if complete else (),
                )
            if not one.text.startswith("  "):
                break
        return here


def named(one: Frame) -> str:
    return f"rank {one.rank}" if one.rank is not None else f"local rank {one.local_rank}"


def unless_mixed(here: Frame, match: Match) -> Frame:
    """A match inside a line that two processes broke: without an owner, unless its message begins behind a prefix."""
    found = match.signature.pattern.search(here.text)
    if found is None or _CLEAN_START.match(here.text[: found.start()]) or match.signature.means == FRAMING:
        return here
    why = f"Two processes wrote into one line; whether {named(here)} or the one before it said this is not certain."
    return replace(here, rank=None, local_rank=None, doubt=why)
