"""Reading one log file: each line that holds a literal is framed, matched and kept with its surroundings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from runbook.logs.collect.collection import PASTED_BYTES, Collection, End, FileState, rank_of
from runbook.logs.collect.matches import SPEAKERS_KEPT, LogMatch, MatchGroup
from runbook.logs.collect.matching import Matcher, is_quoted, literal_at, unless_mixed
from runbook.logs.collect.recorder import LINES_FOR_TIME, TAIL_BYTES, LauncherLines, MatchRecorder, StepSampler
from runbook.logs.lines import IS_BAR, FileProfile, LogLine, learn_prefixes, parse_line, parse_lines, read_time
from runbook.logs.search import FEW, FREELY, RepeatedTail, View, decode, excerpt
from runbook.logs.signatures import CONSEQUENCE, FRAMING, HARMLESS, Match, Signature
from runbook.logs.tracebacks import speaker_of

_WINDOWS = 8
_WINDOW_BYTES = 16 << 10
_SAMPLE_BYTES = 16 << 10
_SAMPLE_LINES = 120
_FEW_BYTES = 2 << 10
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_LONG_CHARACTERS = 4096
_LONG_MISSES = 16
_LONG_NOTE = (
    f"More than {_LONG_MISSES} lines of over {_LONG_CHARACTERS} characters hold words of a failure and match no "
    f"signature of a whole message; of long lines behind them only the first {_LONG_CHARACTERS} characters were looked "
    f"at."
)
_TASKS = re.compile(r"\btasks (\d{1,7})[-,\d]{1,2000}")
_NAMES_WITHIN = 300
_NAMES_BEHIND = 600
_LINES_OF_A_PASTE = 60
_LAST_WORDS_LINES = 12
_LAST_WORDS_BYTES = 6 << 10
_END_BYTES = 8 << 10
_SHORT_END_BYTES = 1 << 10


class FileReader:
    """Handler of one file; see `scan.Handler`."""

    def __init__(self, collection: Collection, index: int, named: FileProfile) -> None:
        self._collection = collection
        self._index = index
        self._state = FileState(collection, index, named, named.attempt or 0)
        self._matcher = Matcher(self._state)
        self._steps = StepSampler(self._state)
        self._recorder = MatchRecorder(self._state, self._matcher, self._steps)
        self._launcher = LauncherLines(self._state, self._recorder, self._steps)
        self._previous: Signature | None = None
        """What matched last: many lines of one kind often stand together, and a line belongs to one signature."""
        self._pasted = False
        """It holds a few lines alone."""
        self.read_to = 0

    def first(self, view: View) -> None:
        """Learn from the first lines how the file is labelled, and the first steps."""
        beginning = bytes(view.buffer[:min(view.end, 256)]).translate(_DIGITS) if view.sample < FEW else b""
        habits = self._collection.habits.get(beginning)
        named = self._state.named
        of_a_process = (named.local_rank, named.task, named.pid) != (None,) * 3
        if habits is not None and not of_a_process:
            self._state.named = replace(named, habits=habits)
            return
        lines = sampled_lines(view)
        self._pasted = len(lines) <= _LAST_WORDS_LINES
        named = replace(named, habits=habits or learn_prefixes(lines, named.nodes, named.forms))
        if beginning:
            self._collection.habits[beginning] = named.habits
        framed = [parse_line(line, named) for line in lines]
        ranks = {one.rank for one in framed if one.rank is not None}
        if len(ranks) == 1 and of_a_process:
            named = replace(named, rank=next(iter(ranks)))  # a process's own file: what it calls itself
        self._state.named = named
        for one in framed:
            self._collection.tables.note_line(one)
        if view.end <= PASTED_BYTES and not view.left:
            for one in framed[:_LINES_OF_A_PASTE]:
                self._collection.tables.ranks_named |= self._collection.signatures.ranks_named(one.text[:_NAMES_BEHIND])
        if self._collection.started_s is None:
            stamps = (read_time(one.stamp, None) for one in framed)
            self._collection.started_s = next((stamp for stamp in stamps if stamp is not None), None)
        if view.sample >= FREELY:
            self._steps.sample(view, 0, min(view.end, TAIL_BYTES), last=400)

    def line(self, view: View, start: int, stop: int) -> None:
        raw = bytes(view.buffer[start:stop])
        pieces = parse_lines(decode(raw), self._state.named)
        if len(pieces) == 1:
            self._piece(view, pieces[0], raw, start, stop)
            return
        for piece in pieces:  # several processes wrote into each other's lines, or a record holds several
            if piece.record and not self._collection.events.within(piece.text.encode()):
                continue
            self._piece(view, piece, piece.text.encode(), start, stop)

    def _piece(self, view: View, here: LogLine, raw: bytes, start: int, stop: int) -> None:
        collection = self._collection
        here = self._matcher.in_table(view, here, start)
        if here.unnamed and not here.after_cut:
            mended = self._matcher.rest_of_broken(view, here, start)
            if mended is not here:
                here, raw = mended, mended.text.encode()
        collection.tables.note_line(here)
        if collection.long_misses >= _LONG_MISSES and len(here.text) > _LONG_CHARACTERS:
            here = replace(here, text=here.text[:_LONG_CHARACTERS])
            raw = here.text.encode()
            collection.tables.note(_LONG_NOTE)
        if collection.tasks_left <= 0 and "tasks " in here.text:
            here = replace(here, text=_TASKS.sub(r"tasks \1", here.text))
        match = self._previous.match(here.text) if self._previous and self._previous.held_by(raw) else None
        candidates: Sequence[Signature] = ()
        if match is None:
            candidates = collection.candidates(raw)
            match = self._matcher.match(view, here, stop, candidates)
        behind = self._matcher.behind_label(view, here, start) if match is None and here.task is not None else None
        if behind is not None:
            here = behind
            match = self._matcher.match(view, here, stop, collection.candidates(here.text.encode()))
        if match is None or match.signature.fallback:
            collection.long_misses += len(here.text) > _LONG_CHARACTERS
        if match is None:
            return
        self._previous = match.signature if match.signature.stands_alone else None
        if here.after_cut:
            here = unless_mixed(here, match)
        if match.signature.means == FRAMING:
            self._launcher.note(view, match, here, start, stop)
            for other in candidates:  # a start-up line can tell the version and the world size at once
                if other.means == FRAMING and other is not match.signature and other.lines == 1 and not other.fallback:
                    found = other.match(here.text)
                    if found is not None:
                        self._launcher.note(view, found, here, start, stop)
            said = [one for one in candidates if one.means != FRAMING and one.lines == 1]
            failed = collection.signatures.first_match(here.text, said) if match.signature.lines == 1 else None
            if failed is not None and failed.signature.means not in (CONSEQUENCE, HARMLESS):
                # who speaks may stand in front of the failure itself
                self._recorder.keep(view, failed, self._named_by_words(view, here, failed, start), start, stop)
        else:
            self._recorder.keep(view, match, self._named_by_words(view, here, match, start), start, stop)

    def _named_by_words(self, view: View, here: LogLine, match: Match, start: int) -> LogLine:
        """The line with who says it by its words in front of the message, where no prefix tells."""
        means = match.signature.means
        if not here.unnamed or here.task is not None or here.doubt or means in (CONSEQUENCE, HARMLESS):
            return here
        words = match.text("detail")
        end = here.text.find(words) if words else (match.start or literal_at(match, here.text)) + len(": ")
        before = here.text[: max(end, 0)][:_NAMES_WITHIN]
        if not self._pasted and not match.signature.general and here.text[:1].isdecimal():
            before = f" {before}"  # a number alone may count the lines
        signatures = self._collection.signatures
        said = (
            signatures.speaker(before) or signatures.speaker_within(here.text[max(end, 0):][:_NAMES_BEHIND])
            or self._heading(view, match, here, start)
        )
        rank, local_rank, pod = said.get("rank"), said.get("local_rank"), said.get("voice")
        return replace(
            here, rank=rank if isinstance(rank, int) else None,
            local_rank=local_rank if isinstance(local_rank, int) else None, voice=pod if isinstance(pod, str) else "",
            by_words=True,
        )

    def _heading(self, view: View, match: Match, here: LogLine, start: int) -> Mapping[str, object]:
        """Whom a block of keys and values is about that holds an indented line: kubectl's description of a pod."""
        if not (match.signature.general and here.text.startswith("  ")):
            return {}
        above = (one.text for one in islice(self._state.above(view, here, start), LINES_FOR_TIME))
        head = next((text for text in above if text.startswith("Name: ")), "")
        return self._collection.signatures.speaker(f"pod {head.removeprefix('Name:').strip()} ") if head else {}

    def stretch(self, view: View, start: int, stop: int) -> None:
        """Sample the steps: the stretch's end, a little at even distances; all of it where the end holds none."""
        self.read_to = view.base + stop
        self._recorder.keep_latest(view)
        if not view.left and view.sample >= FREELY:
            self._last_words(view, stop)
        if view.sample < FEW and view.left:
            self._few_steps(view, start, stop)
            return  # the beginning of one of thousands: its end tells its last stamp
        back = _END_BYTES if view.sample >= FREELY else _SHORT_END_BYTES
        for first, end in islice(view.before(stop, back), LINES_FOR_TIME):
            # The newest may be cut here, so it is not remembered.
            one = parse_line(decode(view.buffer[first:end]), self._state.named)
            time_s = read_time(one.stamp, self._collection.started_s)
            if time_s is not None:
                self._collection.clocks.ended(End(self._index, time_s, rank_of(one), one.node))
                break
        if view.sample < FREELY:
            self._few_steps(view, start, stop)
            return
        if stop - start <= 2 * TAIL_BYTES:
            self._steps.sample(view, start, stop, last=2000)
            return
        for window in range(start, stop - 2 * TAIL_BYTES, max(TAIL_BYTES, (stop - start) // _WINDOWS)):
            self._steps.sample(view, window, window + _WINDOW_BYTES, last=16)  # evenly, for what changes over the steps
        if not self._steps.sample(view, stop - TAIL_BYTES, stop, last=500):
            self._steps.sample(view, start, stop - TAIL_BYTES, last=400)

    def _last_words(self, view: View, stop: int) -> None:
        """The last error that a program reports among its last lines, where no signature knows the line."""
        signatures = self._collection.signatures
        stop += view.buffer[stop - 1:stop] != b"\n"  # the last line may lack its end
        for start, end in islice(view.before(stop, _LAST_WORDS_BYTES), _LAST_WORDS_LINES):
            raw = bytes(view.buffer[start:end])
            here = parse_line(decode(raw), self._state.named)
            match = signatures.first_match(here.text, signatures.last_words)
            if match is None or is_quoted(match, here.text, False):
                continue
            if signatures.first_match(here.text, self._collection.candidates(raw)) is None:
                self._recorder.keep(view, match, self._named_by_words(view, here, match, start), start, end)
                return

    def _few_steps(self, view: View, start: int, stop: int) -> None:
        first, end = view.last_steps(start, stop)
        if view.sample:
            self._steps.sample(view, first, end, last=view.sample)

    def like_others(self, twin: RepeatedTail) -> None:
        """Take over what is known of the end of a file that ends as others do, without reading it again."""
        collection, index = self._collection, self._index
        here, line, step = twin.log_line, twin.match, twin.step
        collection.tables.note_line(here)
        key = (line.signature.id, index, (here.speaker, here.pid, ()))
        if len(collection.kept) < SPEAKERS_KEPT:
            time_s = self._state.time_of(here)
            kept = collection.kept[key] = MatchGroup(count=1)
            kept.add(LogMatch(
                line, here, index, self._state.attempt, twin.offset, 0, time_s, excerpt((), here.text),
                time_s is not None, said_by=speaker_of(here.name, here.text, (), self._state.named.role),
            ))
        for signature in twin.also:
            collection.like_others[signature] = collection.like_others.get(signature, 0) + 1
        time_s = self._state.time_of(twin.step_line)
        rank = rank_of(twin.step_line)
        collection.clocks.note(step.signature.id, step.integer("step"), (index, rank, twin.step_line.node), time_s)
        collection.progress.step(
            step, file=index, first_attempt=self._state.named.attempt or 0, offset=twin.step_offset, rank=rank,
            time_s=time_s,
        )

    @property
    def attempt(self) -> int:
        """The attempt that the file tells of at the place reached."""
        return self._state.attempt

    def finish(self) -> None:
        self._collection.last_attempt = max(self._collection.last_attempt, self._state.attempt)


def sampled_lines(view: View) -> list[str]:
    """Lines from the beginning, the middle and the end of what is at hand, for learning how they begin."""
    size = _SAMPLE_BYTES
    if view.sample < FEW:  # one of very many files
        spans = [(0, min(view.end, _FEW_BYTES))]
    elif view.end <= 3 * size:
        spans = [(0, view.end)]
    else:
        middle = view.end // 2
        spans = [(0, size), (middle, middle + size), (view.end - size, view.end)]
    lines: list[str] = []
    for start, stop in spans:
        pieces = view.buffer[start:stop].splitlines()
        pieces = pieces[1 if start else 0:]
        for piece in pieces[: _SAMPLE_LINES * (3 if len(spans) == 1 else 1)]:
            line = decode(piece[:400])
            if not IS_BAR.match(line):
                lines.append(line)
    return lines
