"""Keeping what matched, with its surroundings: the traceback, the lines near it, its phase, whether it was handled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from runbook.logs.collect.collection import FileState, rank_of
from runbook.logs.collect.matches import (
    SPEAKERS_KEPT,
    LogMatch,
    MatchGroup,
    NcclProcess,
    Row,
    dumped,
    is_chain,
    line_before,
    remote_pid,
    spawned_process,
    traceback_before,
)
from runbook.logs.collect.matching import Matcher, is_quoted
from runbook.logs.lines import LogLine, named_file, parse_line, read_time
from runbook.logs.search import FEW, FREELY, View, decode, excerpt, positions_of_lines
from runbook.logs.signatures import CONSEQUENCE, FRAMING, HARMLESS, Match
from runbook.logs.tracebacks import functions_of, opens_timer, phase_of, speaker_of
from runbook.model.diagnosis import Died
from runbook.model.log import Event, Phase
from runbook.model.units import NodeName

# Reading the steps of one file: samples at even distances, and what stands in front of a failure.

TAIL_BYTES = 64 << 10
_THINLY = 40
_LEAST = 2
_SHARE_OF_A_REMARK = 16
"""A log may hold hundreds of remarks, and the end of each stretch is read anyway."""


class StepSampler:
    """Reads progress lines of one file into the job's progress and clocks."""

    def __init__(self, state: FileState) -> None:
        self._state = state
        self._collection = state.collection
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
        for first, end in positions_of_lines(view, self._collection.steps, start, stop, last):
            line = decode(view.buffer[first:end])
            here = parse_line(line, self._state.named)
            raw = bytes(view.buffer[first:end])
            candidates = self._collection.step_candidates(raw)
            several = here.text.count("%|") > 1  # bars that a page put on one line: the newest stands last
            newest = here.text.rfind("]", 0, here.text.rfind("%|")) + 1 if several else 0
            match = self._collection.signatures.first_match(here.text[newest:], candidates)
            if match is None and here.text[:1] != "{" and "{" in line:  # the step stands beside a record's message
                match = self._collection.signatures.first_match(line[line.index("{"):], candidates)
            if match is None:
                continue
            self._collection.tables.note_line(here)
            time_s = read_time(here.stamp, self._collection.started_s)
            self._collection.clocks.note(
                match.signature.id, match.integer("step"), (self._index, rank_of(here), here.node), time_s
            )
            found += self._collection.progress.step(
                match, file=self._index, first_attempt=self._state.named.attempt or 0, offset=view.base + first,
                rank=rank_of(here), time_s=time_s,
            )
        return found


_LINES_AFTER = 12
_ROWS_AFTER = 200
_OF_A_ROW = ("Bin (", "InUse at ", "Free  at ", "Next region of size ", " Chunks of size ")
"""A row of an allocator's dump: it tells of one of its parts, and thousands may stand in front of the sums."""
_LINES_NEAR = 4
_LINES_FOR_A_REMARK = 4
_LOOKED_AT_COSTS = 16
_NEAR_THE_END_BYTES = 64 << 20
LINES_FOR_TIME = 60
_PINNING = re.compile(r"pin_memory|cudaHostAlloc|pinned", re.IGNORECASE)
_NAMES_WITHIN = 300
_BEGINS_WITHIN = 512
"""What is of several files begins with the name of the first, perhaps behind the command."""
_LINE_OF_FIGURES = 250
_FOLDED = (
    "Ray folded copies of {name} into one line: the first one stands in full, the last one with a count; which other "
    "processes said it is lost."
)
_OF_PEERS = (Event.NCCL, Event.PEER)
_INFORMS = frozenset({"TRACE", "DEBUG", "INFO", "INFORMATION", "NOTICE"})
"""Levels of a logger's record in which a failure of many lines is what somebody else said: a tool, a sandbox."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,80}(?:\([\w.]{1,80}\))?(?:: |$)")


class MatchRecorder:
    """Keeps the failures, consequences and harmless lines of one file."""

    def __init__(self, state: FileState, matcher: Matcher, steps: StepSampler) -> None:
        self._state = state
        self._collection = state.collection
        self._index = state.index
        self._matcher = matcher
        self._steps = steps
        self._latest: dict[tuple[str, int, tuple[object, ...]], tuple[Match, LogLine, int, int]] = {}
        self._in_front: dict[tuple[object, ...], Mapping[str, object]] = {}
        """Who the newest traceback of a speaker without a name was, by the words in front of it."""

    def keep(self, view: View, match: Match, here: LogLine, start: int, stop: int) -> None:
        if here.text.startswith("    ") and self._said_below(view, match, here, stop):
            return
        if Event.EXCEPTION in match.signature.reports and self._known_below(view, here, stop):
            return
        if match.signature.means.entry.by_figures:
            self._collection.progress.failed(self._index, view.base + start)
        # One line may speak of several: srun's name tasks, the watchdog's a rank, NVML's a GPU.
        about = (match.integer("rank"), match.integer("pid"), match.integer("device"), match.text("hosts"),
                 match.numbers("tasks")[:1], here.rank, here.local_rank, here.voice)
        key = (match.signature.id, self._index, (here.speaker, here.pid, about))
        kept = self._collection.kept.get(key)
        if kept is None:
            most = SPEAKERS_KEPT if match.signature.means in (CONSEQUENCE, HARMLESS) else 2 * SPEAKERS_KEPT
            if len(self._collection.kept) >= most:
                return
            kept = self._collection.kept[key] = MatchGroup()
        kept.count += 1 + here.repeats
        if here.repeats:
            self._collection.tables.note(_FOLDED.format(name=match.signature.id))
        # A list that is only looked at costs less than one that is remembered.
        self._collection.count_tasks(len(match.numbers("tasks")) // (1 if kept.room() else _LOOKED_AT_COSTS))
        if kept.room():
            kept.add(self._seen(view, match, here, start, stop))
        elif match.signature.means not in (CONSEQUENCE, HARMLESS):
            # Of many, the last one of each chunk is looked at closely, when the chunk is done.
            self._latest[key] = (match, here, start, stop)

    def _said_below(self, view: View, match: Match, here: LogLine, stop: int) -> bool:
        """Whether an indented line is the source of a traceback that holds the message's words; the exception itself,
        a few lines below, says them and is kept instead."""
        following = islice(self._state.below(view, here, stop), LINES_FOR_TIME)
        for one in (line for line in following if line.speaker == here.speaker):
            if one.text[:1] not in (" ", "\t", ""):
                return match.signature.match(one.text) is not None
        return False

    def keep_latest(self, view: View) -> None:
        """Look at the last one of each kind of this chunk. Far from the end of a log, what is no memory failure and
        ends no traceback is looked at each time that it has been said twice as often: it is said all along."""
        for key, (match, here, start, stop) in self._latest.items():
            kept = self._collection.kept[key]
            if (
                view.left > _NEAR_THE_END_BYTES and match.signature.means.entry.died is Died.PROGRAM
                and kept.count < 2 * kept.looked_at and not view.traceback_before(start)
            ):
                continue
            kept.looked_at = kept.count
            kept.add(self._seen(view, match, here, start, stop))
        self._latest.clear()

    def _seen(self, view: View, match: Match, here: LogLine, start: int, stop: int) -> LogMatch:
        line = here.text if here.record else decode(view.buffer[start:stop])
        time_s = self._state.time_of(here)
        offset, number = self._place(view, start)
        if match.signature.means in (CONSEQUENCE, HARMLESS):
            return LogMatch(
                match, here, self._index, self._state.attempt, offset, number, time_s,
                excerpt((), line), time_s is not None,
                said_by=speaker_of(here.name, here.text, (), self._state.named.role),
            )
        if here.stack:
            stack, raised = list(here.stack), True
        elif here.at or view.traceback_before(start):
            stack, raised = traceback_before(self._state.above(view, here, start), here.speaker)
        else:
            stack, raised = [], False
        near: list[str] = []
        # Every rank of thousands warns of the same: those that come later are not looked at as closely.
        mild = view.sample < FEW and not raised and here.mild and self._collection.known_well(match.signature)
        exact = time_s is not None
        looks_near = not stack and not mild
        most = max(_LINES_AFTER if looks_near else 0, 0 if exact else LINES_FOR_TIME)
        around = list(islice(self._state.above(view, here, start), most)) if most else []
        if looks_near:
            near = [one.text for one in around[:_LINES_AFTER] if one.speaker == here.speaker][:_LINES_NEAR]
        remote = remote_pid(stack)
        if remote is not None and here.pid is None:
            here = replace(here, pid=remote)
        below_it = islice(self._state.below(view, here, stop), _ROWS_AFTER)
        following = islice((one for one in below_it if not any(words in one.text for words in _OF_A_ROW)), _LINES_AFTER)
        after = [] if mild else [one.text for one in following if one.speaker == here.speaker]
        own = here.text[max(0, match.start - _LINE_OF_FIGURES):]
        for text in (own, *("\n".join(one[:_LINE_OF_FIGURES] for one in some) for some in (after, reversed(near)))):
            match = self._collection.signatures.with_figures(match, text)
        if time_s is None:
            nearby = [one for one in around[:LINES_FOR_TIME] if one.speaker == here.speaker]
            stamps = (read_time(one.stamp, self._collection.started_s) for one in nearby)
            time_s = next((stamp for stamp in stamps if stamp is not None), None)
        spans = islice(view.after(stop), _LINES_FOR_A_REMARK)
        below = [decode(view.buffer[first:end]) for first, end in spans] if mild else after[:_LINES_FOR_A_REMARK]
        handled = self._collection.signatures.went_on.search(" ".join([here.text, *self._until_an_end(below)]))
        if not mild:
            self._steps.before(view, start, closely=raised)
        above = self._state.above(view, here, start)
        before = line_before(above, here.speaker, at_head=bool(here.stack)) if raised else ""
        frames = stack or list(reversed(dumped(after)))
        rules = self._collection.signatures.phases
        phase = phase_of(rules, frames, here.text, near)
        if phase is Phase.UNKNOWN and opens_timer(before):
            phase = phase_of(rules, (), before)
        chained, spawned = is_chain(before), spawned_process(before)
        said_by = speaker_of(here.name, here.text, stack, self._state.named.role)
        if stack:
            here = self._named_in_front(here, stack[0], chained)
        return LogMatch(
            match, here, self._index, self._state.attempt, offset, number, time_s,
            excerpt(stack, here.text, after[:2]), exact,
            phase, raised,
            handled[0] if handled else "", bool(_PINNING.search("\n".join(stack))),
            chained, spawned, functions_of(frames), said_by,
            is_quoted(match, here.text, raised) or (bool(here.record) and here.level in _INFORMS),
        )

    def _until_an_end(self, below: Sequence[str]) -> Iterator[str]:
        """The lines up to one by which a process ended: what stands behind that is not about the failure."""
        for text in below:
            yield text
            found = self._collection.signatures.first_match(text, self._collection.candidates(text.encode()))
            ended = found is not None and found.signature.means == CONSEQUENCE
            if found is not None and ended and {"signal", "exit_code"} & found.values.keys():
                return

    def _named_in_front(self, here: LogLine, head: str, chained: bool) -> LogLine:
        """The last line of a traceback with who says it by the words in front of its head: engines and actors name
        themselves there alone. What is raised in handling another exception is raised by whom raised that."""
        if not here.unnamed or here.task is not None or here.doubt:
            return here
        said: Mapping[str, object] = self._collection.signatures.speaker(f" {head[:_NAMES_WITHIN]}")
        if not said and chained:
            said = self._in_front.get(here.speaker, {})
        self._in_front[here.speaker] = said
        return replace(here, rank=_number(said.get("rank")), local_rank=_number(said.get("local_rank")))

    def _place(self, view: View, start: int) -> tuple[int, int]:
        """Offset and line in the file."""
        return (0, 1) if self._state.named.converted else (view.base + start, view.line_number(start))

    def traceback(self, view: View, here: LogLine, start: int, stop: int) -> None:
        """An exception that no line of its own tells: its class is none that looks like one, or its process only
        passes on what another one raised, whose words are not there."""
        nearby = islice(self._state.below(view, here, stop, 32 << 10), 600)
        stack, last = [here.text], None
        for one in (one for one in nearby if one.speaker == here.speaker):
            if one.text[:1] in (" ", "\t", ""):
                stack.append(one.text)
                continue
            if spawned_process(one.text) is not None:
                return  # what it passes on stands behind it in full
            match = self._matcher.match(view, one, stop, self._collection.candidates(one.text.encode()))
            if match is not None and not (match.signature.general and match.signature.means == FRAMING):
                return
            if not _EXCEPTION.match(one.text) or one.text.startswith("Traceback"):
                break
            last = one
            if match is None and not one.text.rstrip().endswith(":"):
                break
            stack = [one.text]
        exception = self._collection.signatures.exception
        if last is not None and exception is not None:
            raised = Match(exception, {"detail": last.text[:200]}, 0.0)
            self.keep(view, raised, replace(here, text=last.text, stack=tuple(stack)), start, stop)

    def _known_below(self, view: View, here: LogLine, stop: int) -> bool:
        """Whether the lines after an exception's first line (its message goes on there) match a signature."""
        for one in islice((one for one in self._state.below(view, here, stop) if one.speaker == here.speaker), 7):
            if one.text.startswith(("Traceback (most", "During handling of", "The above exception was")):
                return False  # the next exception's lines, not this one's
            found = self._collection.signatures.first_match(one.text, self._collection.candidates(one.text.encode()))
            if found is None or found.signature.general or found.signature.means in (FRAMING, HARMLESS):
                continue
            if found.signature.means != CONSEQUENCE or not found.signature.reports.isdisjoint(_OF_PEERS):
                return True
        return False


# What framing lines tell: ranks, nodes and processes, restarts, checkpoints, devices, torchrun's table.

class LauncherLines:
    """Takes one file's framing lines into the job's tables."""

    def __init__(self, state: FileState, recorder: MatchRecorder, steps: StepSampler) -> None:
        self._state = state
        self._collection = state.collection
        self._index = state.index
        self._recorder = recorder
        self._steps = steps

    def note(self, view: View, match: Match, here: LogLine, start: int, stop: int) -> None:
        collection, tables = self._collection, self._collection.tables
        reports = match.signature.reports
        if Event.TRACEBACK in reports:
            self._recorder.traceback(view, here, start, stop)
        elif Event.OTHER_FILE in reports:
            self._state.several = self._state.several or view.base + start < _BEGINS_WITHIN
            if not self._state.several:
                return  # a log that only quotes such a line
            self._steps.before(view, start)  # those in front are the other file's
            named = self._state.named
            own = named_file(match.text("where") or "", tuple(map(NodeName, named.nodes)))
            self._state.named = replace(own, habits=named.habits, forms=named.forms, prefixes=named.prefixes)
        elif Event.RESTART in reports:
            self._state.restart(view.base + start)
        elif match.integer("resumed_step") is not None:
            self._steps.before(view, start)
            newest = collection.progress.newest(self._index)
            if newest is not None and newest >= (match.integer("resumed_step") or 0):
                self._state.restart(view.base + start)  # a later run goes on from a checkpoint in the same file
            collection.progress.checkpoint(
                match, file=self._index, attempt=self._state.attempt, offset=view.base + start
            )
        elif Event.VISIBLE_DEVICES in reports:
            tables.devices.note_visible(here, match.text("detail") or "", match.integer("local_rank"))
        elif Event.WORKER in reports:
            worker, process = match.integer("rank") or 0, match.integer("pid") or 0
            tables.speakers.note_worker(worker, process, match.text("detail") or "")
            tables.pids_of_ranks.setdefault(worker, process)
        elif Event.DEVICE_SET in reports:
            speaker = match.integer("rank") if match.integer("rank") is not None else here.rank
            if speaker is not None:
                tables.devices.of_ranks[speaker] = match.integer("device") or 0
        elif Event.COMMUNICATOR in reports:
            self._communicator(match, here)
        elif reports & {Event.SHM_ROOM, Event.GROUP_ROOM, Event.CARD_ROOM}:
            tables.note_room(match)
        elif Event.GPU_PROCESS in reports:
            tables.note_gpu_process(match, self._index, view.base + start)
        elif Event.FAILURE_ROW in reports:
            row = replace(self._row(match), offset=view.base + start, line=view.line_number(start))
            if not tables.rows or (tables.rows[-1].rank, tables.rows[-1].pid) != (row.rank, row.pid):
                tables.rows.append(row)  # the lines of a row match from its first, and from where a paste begins
        elif not collection.progress.checkpoint(
            match, file=self._index, attempt=self._state.attempt, offset=view.base + start
        ):
            rank, node, pid = match.integer("rank"), match.text("node"), match.integer("pid")
            if rank is not None and here.rank in (None, rank):
                tables.note_line(replace(
                    here, rank=rank, pid=pid if pid is not None else here.pid,
                    local_rank=match.integer("local_rank") if here.local_rank is None else here.local_rank,
                    node=NodeName(node.partition(".")[0]) if node else here.node,
                ))
            if rank is not None and node:
                tables.nodes_of_ranks[rank] = NodeName(node.partition(".")[0])
            if rank is not None and pid is not None:
                tables.pids_of_ranks[rank] = pid
            tables.world_size = match.integer("world_size") or tables.world_size
            tables.version = match.text("version") or tables.version
            tables.note_words(match, here.node)
            speaker = rank if rank is not None else rank_of(here)
            collection.progress.memory(
                match, speaker, match.integer("step"), file=self._index, first_attempt=self._state.named.attempt or 0,
                offset=view.base + start,
            )

    def _communicator(self, match: Match, here: LogLine) -> None:
        if here.node is not None and here.pid is not None:
            self._collection.tables.devices.note_process(NcclProcess(
                here.node, here.pid, match.integer("rank") or 0, match.integer("count") or 0,
                match.integer("device") or 0, match.text("detail"),
            ))

    def _row(self, match: Match) -> Row:
        rank, pid = match.integer("rank") or 0, match.integer("pid") or 0
        host = match.text("node")
        node = NodeName(host.partition(".")[0]) if host else None
        time_s = read_time(match.text("time") or "", self._collection.started_s)
        local_rank = match.integer("local_rank") or 0
        self._collection.tables.speakers.note(LogLine("", rank=rank, local_rank=local_rank, node=node))
        if node is not None:
            self._collection.tables.nodes_of_ranks.setdefault(rank, node)
        self._collection.tables.pids_of_ranks.setdefault(rank, pid)
        code = match.integer("exit_code") or 0
        return Row(rank, local_rank, node, pid, code, time_s, self._index, signature=match.signature.id)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
