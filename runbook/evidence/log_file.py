"""Reading one log file: each line that holds a literal is framed, matched and kept with its surroundings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from runbook.evidence.framing import IS_BAR, FileFrame, Frame, Habits, frame, frames
from runbook.evidence.framing_habits import learn
from runbook.evidence.framing_stamps import read_time
from runbook.evidence.log_clocks import Clocks, End
from runbook.evidence.log_devices import NcclProcess
from runbook.evidence.log_phases import phase_of
from runbook.evidence.log_scan import FEW, FREELY, Search, View, positions_of_lines
from runbook.evidence.log_seen import (
    SPEAKERS_KEPT,
    Kept,
    Row,
    Seen,
    Tables,
    dumped,
    is_chain,
    line_before,
    remote_pid,
    spawned_process,
    traceback_before,
)
from runbook.evidence.log_text import decode, excerpt
from runbook.evidence.progress import ProgressReader
from runbook.evidence.signatures import CONSEQUENCE, FRAMING, HARMLESS, Match, Signature, Signatures
from runbook.model.units import NodeName

_TAIL_BYTES = 64 << 10
_WINDOWS = 8
_WINDOW_BYTES = 16 << 10
_SAMPLE_BYTES = 16 << 10
_SAMPLE_LINES = 120
_FEW_BYTES = 2 << 10
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_MENDED_AT_MOST = 5_000
_LINES_AFTER = 12
_LINES_NEAR = 4
_LINES_FOR_TIME = 60
_END_BYTES = 8 << 10
_SHORT_END_BYTES = 1 << 10
_FRAMES_REMEMBERED = 4_000
_HANDLED = re.compile(
    r"\b(?:retry|retrying|retried|skipp(?:ing|ed)|caught|recover(?:ed|ing)|ignor(?:ing|ed)|fall(?:ing|s)? ?back"
    r"|reduc(?:ing|ed) (?:the )?(?:micro-?)?batch)\b", re.IGNORECASE,
)
_PINNING = re.compile(r"pin_memory|cudaHostAlloc|pinned", re.IGNORECASE)
_CLEAN_START = re.compile(
    r"(?:(?:[a-z_]\w{0,40}\.){0,6}(?:OutOfMemory|Runtime|Accelerator|DistBackend|Value|Memory|Assertion|XlaRuntime"
    r"|JaxRuntime|Type|Index|Key|OS)Error: ?)?$"
)
FOLDED = (
    "Ray folded copies of {name} into one line: the first one stands in full, the last one with a count; which other "
    "processes said it is lost."
)
UNKNOWN_EXCEPTION = "PY-EXC"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,120}(?:Error|Exception|Interrupt|Exit|Warning)\b|[A-Za-z_][\w.]{0,80}: ")


@dataclass(slots=True)
class Reading:
    """Everything that is collected over all files of a job."""

    signatures: Signatures
    events: Search
    steps: Search
    started_s: float | None
    """When the job began (epoch seconds): the year of stamps that carry none."""
    nodes: tuple[NodeName, ...]
    kept: dict[tuple[str, int, tuple[object, ...]], Kept] = field(default_factory=dict)
    tables: Tables = field(default_factory=Tables)
    progress: ProgressReader = field(default_factory=ProgressReader)
    clocks: Clocks = field(default_factory=Clocks)
    known_sets: dict[frozenset[bytes], list[Signature]] = field(default_factory=dict)
    """Candidates by the set of literals that a line holds."""
    habits: dict[bytes, Habits] = field(default_factory=dict)
    """What was learned from a file's first lines, by how they read without their digits: thousands begin alike."""
    cut_lines: int = 0
    last_attempt: int = 0

    def candidates(self, line: bytes) -> list[Signature]:
        """Signatures one of whose literals is in the line, in the documents' order."""
        found = frozenset(self.events.within(line))
        known = self.known_sets.get(found)
        if known is None:
            known = [one for one in self.signatures.events if not found.isdisjoint(one.encoded)]
            self.known_sets[found] = known
        return known


class FileHandler:
    """Handler of one file; see `log_scan.Handler`."""

    def __init__(self, reading: Reading, index: int, named: FileFrame) -> None:
        self._reading = reading
        self._index = index
        self._file = named
        self._attempt = named.attempt or 0
        self._sampled_to = 0
        self._framed: dict[tuple[int, int], tuple[Frame, ...]] = {}
        self._mended = 0
        self._previous: Signature | None = None
        """What matched last: many lines of one kind often stand together, and a line belongs to one signature."""
        self._latest: dict[tuple[str, int, tuple[object, ...]], tuple[Match, Frame, int, int]] = {}
        self.read_to = 0

    def first(self, view: View) -> None:
        """Learn from the first lines how the file is labelled, and the first steps."""
        beginning = bytes(view.buffer[:min(view.end, 256)]).translate(_DIGITS) if view.sample < FEW else b""
        habits = self._reading.habits.get(beginning)
        if habits is not None and (self._file.local_rank, self._file.task, self._file.pid) == (None,) * 3:
            self._file = replace(self._file, habits=habits)
            return
        lines = sampled_lines(view)
        self._file = replace(self._file, habits=habits or learn(lines, self._file.nodes))
        if beginning:
            self._reading.habits[beginning] = self._file.habits
        framed = [frame(line, self._file) for line in lines]
        ranks = {one.rank for one in framed if one.rank is not None}
        if len(ranks) == 1 and (self._file.local_rank, self._file.task, self._file.pid) != (None,) * 3:
            self._file = replace(self._file, rank=next(iter(ranks)))  # a process's own file: what it calls itself
        for one in framed:
            self._reading.tables.note_frame(one)
        if self._reading.started_s is None:
            stamps = (read_time(one.stamp, None) for one in framed)
            self._reading.started_s = next((stamp for stamp in stamps if stamp is not None), None)
        if view.sample >= FREELY:
            self._sample(view, 0, min(view.end, _TAIL_BYTES), last=400)

    def line(self, view: View, start: int, stop: int) -> None:
        raw = bytes(view.buffer[start:stop])
        pieces = frames(decode(raw), self._file)
        if len(pieces) == 1:
            self._piece(view, pieces[0], raw, start, stop)
            return
        for piece in pieces:  # several processes wrote into each other's lines
            self._piece(view, piece, piece.text.encode(), start, stop)

    def _piece(self, view: View, here: Frame, raw: bytes, start: int, stop: int) -> None:
        reading = self._reading
        here = self._in_table(view, here, start)
        if here.unnamed and not here.after_cut:
            mended = self._rest_of_broken(view, here, start)
            if mended is not here:
                here, raw = mended, mended.text.encode()
        reading.tables.note_frame(here)
        match = self._previous.match(here.text) if self._previous and self._previous.held_by(raw) else None
        candidates: Sequence[Signature] = ()
        if match is None:
            candidates = reading.candidates(raw)
            match = self._match(view, here, stop, candidates)
        behind = self._behind_label(view, here, start) if match is None and here.task is not None else None
        if behind is not None:
            here = behind
            match = self._match(view, here, stop, reading.candidates(here.text.encode()))
        if match is None:
            return
        self._previous = match.signature if match.signature.stands_alone else None
        if here.after_cut:
            here = unless_mixed(here, match)
        if match.signature.means == FRAMING:
            self._framing(view, match, here, start, stop)
            for other in candidates:  # a start-up line can tell the version and the world size at once
                if other.means == FRAMING and other is not match.signature and other.lines == 1 and not other.fallback:
                    found = other.match(here.text)
                    if found is not None:
                        self._framing(view, found, here, start, stop)
        else:
            self._keep(view, match, here, start, stop)

    def stretch(self, view: View, start: int, stop: int) -> None:
        """Sample the steps: the stretch's end, a little at even distances; all of it where the end holds none."""
        self.read_to = view.base + stop
        self._keep_latest(view)
        back = _END_BYTES if view.sample >= FREELY else _SHORT_END_BYTES
        for first, end in islice(view.before(stop, back), _LINES_FOR_TIME):
            # The newest may be cut here, so it is not remembered.
            one = frame(decode(view.buffer[first:end]), self._file)
            time_s = read_time(one.stamp, self._reading.started_s)
            if time_s is not None:
                self._reading.clocks.ended(End(self._index, time_s, self._rank(one), one.node))
                break
        if view.sample < FREELY:
            first, end = view.last_steps(start, stop)
            if view.sample:
                self._sample(view, first, end, last=view.sample)
            return
        if stop - start <= 2 * _TAIL_BYTES:
            self._sample(view, start, stop, last=2000)
            return
        for window in range(start, stop - 2 * _TAIL_BYTES, max(_TAIL_BYTES, (stop - start) // _WINDOWS)):
            self._sample(view, window, window + _WINDOW_BYTES, last=16)  # evenly, for what changes over the steps
        if not self._sample(view, stop - _TAIL_BYTES, stop, last=500):
            self._sample(view, start, stop - _TAIL_BYTES, last=400)

    @property
    def attempt(self) -> int:
        """The attempt that the file tells of at the place reached."""
        return self._attempt

    def finish(self) -> None:
        self._reading.last_attempt = max(self._reading.last_attempt, self._attempt)

    def _match(self, view: View, here: Frame, stop: int, candidates: Sequence[Signature]) -> Match | None:
        several = [one for one in candidates if one.lines > 1]
        match = self._reading.signatures.first_match(here.text, [one for one in candidates if one.lines == 1])
        if match is not None and match.signature.whole:
            return match
        if several:
            nearby = islice(self._frames(view, view.after(stop)), 60)
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
        nearby = islice(self._frames(view, view.after(stop)), 60)
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

    def _behind_label(self, view: View, here: Frame, start: int) -> Frame | None:
        """A line that matches nothing by itself, put behind the chunk of the same task from which srun cut it."""
        self._mended += 1
        if not here.unnamed or self._mended > _MENDED_AT_MOST or not self._file.habits.label_widths:
            return None
        nearby = islice(self._frames(view, view.before(start), True), 20)
        first = next((one for one in nearby if (one.task, one.group) == (here.task, here.group)), None)
        if first is None or first.text.endswith((":", ")", ".")):
            return None
        return replace(first, text=first.text + here.text)

    def _rest_of_broken(self, view: View, here: Frame, start: int) -> Frame:
        """A line without a prefix behind one that another process broke: the two are put together again."""
        if not self._reading.tables.ranks_seen:
            return here
        nearby = list(islice(self._frames(view, view.before(start), True), 4))
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

    def _in_table(self, view: View, here: Frame, start: int) -> Frame:
        """An exception inside torchrun's table is that of the row's rank, not of the agent that prints the table."""
        rows = self._reading.tables.rows
        if not rows or rows[-1].file != self._index or not here.text.startswith("  "):
            return here
        stack: list[str] = []
        complete = False
        for one in islice(self._frames(view, view.before(start), True), 600):
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

    def _frames(
        self, view: View, spans: Iterable[tuple[int, int]], nearest_first: bool = False
    ) -> Iterator[Frame]:
        """Lines framed. What is around one failure is around the next, so the newest are remembered."""
        for start, stop in spans:
            # The end counts too: what stands in front of a carriage return is asked for alone and with what follows.
            key = (view.base + start, stop - start)
            known = self._framed.get(key)
            if known is None:
                if len(self._framed) >= _FRAMES_REMEMBERED:
                    self._framed.clear()
                known = self._framed[key] = frames_of_line(decode(view.buffer[start:stop]), self._file)
            yield from reversed(known) if nearest_first else known

    def _keep(self, view: View, match: Match, here: Frame, start: int, stop: int) -> None:
        # One line may speak of several: srun's name tasks, the watchdog's a rank, NVML's a GPU.
        about = (match.integer("rank"), match.integer("pid"), match.integer("device"), match.text("hosts"),
                 match.numbers("tasks")[:1])
        key = (match.signature.id, self._index, (here.speaker, here.pid, about))
        kept = self._reading.kept.get(key)
        if kept is None:
            if len(self._reading.kept) >= SPEAKERS_KEPT:
                return
            kept = self._reading.kept[key] = Kept()
        kept.count += 1 + here.repeats
        if here.repeats:
            self._reading.tables.note(FOLDED.format(name=match.signature.id))
        if kept.room():
            kept.add(self._seen(view, match, here, start, stop))
        elif match.signature.means not in (CONSEQUENCE, HARMLESS):
            # Of many, the last one of each chunk is looked at closely, when the chunk is done.
            self._latest[key] = (match, here, start, stop)

    def _keep_latest(self, view: View) -> None:
        for key, (match, here, start, stop) in self._latest.items():
            self._reading.kept[key].add(self._seen(view, match, here, start, stop))
        self._latest.clear()

    def _seen(self, view: View, match: Match, here: Frame, start: int, stop: int) -> Seen:
        line = decode(view.buffer[start:stop])
        time_s = self._time(here)
        offset, number = (0, 1) if self._file.converted else (view.base + start, view.line_number(start))
        if match.signature.means in (CONSEQUENCE, HARMLESS):
            return Seen(
                match, here, self._index, self._attempt, offset, number, time_s,
                excerpt((), line), time_s is not None,
            )
        if here.stack:
            stack, raised = list(here.stack), True
        else:
            stack, raised = traceback_before(self._frames(view, view.before(start), True), here.speaker)
        near: list[str] = []
        if not stack:
            lines = islice(self._frames(view, view.before(start), True), _LINES_AFTER)
            near = [one.text for one in lines if one.speaker == here.speaker][:_LINES_NEAR]
        remote = remote_pid(stack)
        if remote is not None and here.pid is None:
            here = replace(here, pid=remote)
        following = islice(self._frames(view, view.after(stop)), _LINES_AFTER)
        after = [one.text for one in following if one.speaker == here.speaker]
        exact = time_s is not None
        if time_s is None:
            nearby = islice(self._frames(view, view.before(start), True), _LINES_FOR_TIME)
            stamps = (read_time(one.stamp, self._reading.started_s) for one in nearby if one.speaker == here.speaker)
            time_s = next((stamp for stamp in stamps if stamp is not None), None)
        handled = _HANDLED.search(" ".join([here.text, *after[:4]]))
        self._sample_before(view, start)
        before = line_before(self._frames(view, view.before(start), True), here.speaker) if raised else ""
        return Seen(
            match, here, self._index, self._attempt, offset, number, time_s,
            excerpt(stack, here.text, after[:2]), exact,
            phase_of(self._reading.signatures.phases, stack or dumped(after), here.text, near), raised,
            handled[0] if handled else "", bool(_PINNING.search("\n".join(stack))),
            is_chain(before), spawned_process(before),
        )

    def _time(self, here: Frame) -> float | None:
        time_s = read_time(here.stamp, self._reading.started_s)
        return time_s if time_s is not None else here.time_s

    def _sample_before(self, view: View, position: int) -> None:
        """Read the steps in front of a failure, each stretch once."""
        start = max(0, position - 2 * _TAIL_BYTES, self._sampled_to - view.base)
        if position > start:
            self._sample(view, start, position, last=200)
            self._sampled_to = view.base + position

    def _framing(self, view: View, match: Match, here: Frame, start: int, stop: int) -> None:
        reading, tables = self._reading, self._reading.tables
        identity = match.signature.id
        if identity == "PY-TRACEBACK":
            self._traceback(view, match, here, start, stop)
        elif identity in ("FR-RESTART", "FR-REQUEUE"):
            self._restart(view.base + start)
        elif match.integer("resumed_step") is not None:
            self._sample_before(view, start)
            newest = reading.progress.newest(self._index)
            if newest is not None and newest >= (match.integer("resumed_step") or 0):
                self._restart(view.base + start)  # the file goes on with a later run that starts from a checkpoint
            reading.progress.checkpoint(match, file=self._index, attempt=self._attempt, offset=view.base + start)
        elif identity == "FR-VISIBLE":
            tables.devices.note_visible(here, match.text("detail") or "", match.integer("local_rank"))
        elif identity == "FR-RAY-WORKER":
            tables.speakers.note_worker(
                match.integer("rank") or 0, match.integer("pid") or 0, match.text("detail") or ""
            )
        elif identity == "FR-SET-DEVICE":
            speaker = match.integer("rank") if match.integer("rank") is not None else here.rank
            if speaker is not None:
                tables.devices.of_ranks[speaker] = match.integer("device") or 0
        elif identity == "FR-NCCL-COMM":
            self._communicator(match, here)
        elif identity == "FR-TE-ROW":
            tables.rows.append(replace(self._row(match), offset=view.base + start, line=view.line_number(start)))
        elif not reading.progress.checkpoint(
            match, file=self._index, attempt=self._attempt, offset=view.base + start
        ):
            rank, node, pid = match.integer("rank"), match.text("node"), match.integer("pid")
            if rank is not None and here.rank in (None, rank):
                tables.note_frame(replace(
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
            tables.note_words(match)
            speaker = rank if rank is not None else self._rank(here)
            reading.progress.memory(
                match, speaker, match.integer("step"), file=self._index, first_attempt=self._file.attempt or 0,
                offset=view.base + start,
            )

    def _communicator(self, match: Match, here: Frame) -> None:
        if here.node is not None and here.pid is not None:
            self._reading.tables.devices.note_process(NcclProcess(
                here.node, here.pid, match.integer("rank") or 0, match.integer("count") or 0,
                match.integer("device") or 0, match.text("detail"),
            ))

    def _restart(self, offset: int) -> None:
        self._attempt += 1
        self._reading.progress.restart(self._index, offset)

    def _row(self, match: Match) -> Row:
        rank, pid = match.integer("rank") or 0, match.integer("pid") or 0
        node = NodeName((match.text("node") or "").partition(".")[0])
        time_s = read_time(match.text("time") or "", self._reading.started_s)
        local_rank = match.integer("local_rank") or 0
        self._reading.tables.speakers.note(Frame("", rank=rank, local_rank=local_rank, node=node))
        self._reading.tables.nodes_of_ranks.setdefault(rank, node)
        self._reading.tables.pids_of_ranks.setdefault(rank, pid)
        code = match.integer("exit_code") or 0
        return Row(rank, match.integer("local_rank") or 0, node, pid, code, time_s, self._index)

    def _traceback(self, view: View, match: Match, here: Frame, start: int, stop: int) -> None:
        """A failure that no signature knows: the traceback's last line, if nothing in it is known."""
        nearby = islice(self._frames(view, view.after(stop, 32 << 10)), 600)
        following = (one for one in nearby if one.speaker == here.speaker)
        frames: list[Frame] = []
        for one in following:
            frames.append(one)
            if one.text[:1] not in (" ", "\t", "") and one.text.strip():
                break
        else:
            return
        last = frames.pop()
        if not _EXCEPTION.match(last.text) or last.text.startswith("Traceback"):
            return
        text = last.text.encode()
        known = self._match(view, last, stop, self._reading.candidates(text))
        if known is not None and known.signature.means != FRAMING:
            return
        if known is None and self._known_below(list(islice(following, 7))):
            return
        signature = replace_signature(match.signature)
        key = (signature.id, self._index, (here.speaker, here.pid))
        kept = self._reading.kept.setdefault(key, Kept())
        kept.count += 1
        stack = [here.text, *(one.text for one in frames)]
        found = Match(signature, {"detail": last.text[:200]}, 0.0)
        remote = remote_pid([last.text])
        if remote is not None and here.pid is None:
            here = replace(here, pid=remote)
        before = line_before(self._frames(view, view.before(start), True), here.speaker, at_head=True)
        kept.add(Seen(
            found, here, self._index, self._attempt, 0 if self._file.converted else view.base + start,
            1 if self._file.converted else view.line_number(start), self._time(here), excerpt(stack, last.text),
            phase=phase_of(self._reading.signatures.phases, stack), raised=True,
            chained=is_chain(before), spawned=spawned_process(before),
        ))

    def _known_below(self, frames: Sequence[Frame]) -> bool:
        """Whether the lines after an exception's first line (its message goes on there) match a signature."""
        for one in frames:
            if one.text.startswith(("Traceback (most", "During handling of", "The above exception was")):
                return False  # the next exception's lines, not this one's
            candidates = [known for known in self._reading.candidates(one.text.encode()) if known.means != FRAMING]
            if candidates and self._reading.signatures.first_match(one.text, candidates):
                return True
        return False

    def _rank(self, here: Frame) -> int | None:
        return here.rank if here.rank is not None else here.task

    def _sample(self, view: View, start: int, stop: int, last: int) -> int:
        """Read the steps of a stretch; how many lines were steps."""
        found = 0
        for first, end in positions_of_lines(view, self._reading.steps, start, stop, last):
            line = decode(view.buffer[first:end])
            here = frame(line, self._file)
            raw = bytes(view.buffer[first:end])
            literals = {literal.decode() for literal in self._reading.steps.within(raw)}
            candidates = [one for one in self._reading.signatures.progress if not literals.isdisjoint(one.literals)]
            match = self._reading.signatures.first_match(here.text, candidates)
            if match is None:
                continue
            self._reading.tables.note_frame(here)
            time_s = read_time(here.stamp, self._reading.started_s)
            self._reading.clocks.note(
                match.signature.id, match.integer("step"), (self._index, self._rank(here), here.node), time_s
            )
            found += self._reading.progress.step(
                match, file=self._index, first_attempt=self._file.attempt or 0, offset=view.base + first,
                rank=self._rank(here), time_s=time_s,
            )
        return found


def replace_signature(framing: Signature) -> Signature:
    """The signature of an exception that none of the documents knows."""
    return replace(framing, id=UNKNOWN_EXCEPTION, means="not_oom", weak=True)


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


def frames_of_line(line: str, file: FileFrame) -> tuple[Frame, ...]:
    """A line between newlines: what stands between carriage returns are lines of their own, progress bars are none."""
    found: list[Frame] = []
    for part in line.rstrip("\r").split("\r"):
        found += [one for one in frames(part, file) if not ("%|" in one.text and IS_BAR.match(one.text))]
    return tuple(found)


def named(one: Frame) -> str:
    return f"rank {one.rank}" if one.rank is not None else f"local rank {one.local_rank}"


def unless_mixed(here: Frame, match: Match) -> Frame:
    """A match inside a line that two processes broke: without an owner, unless its message begins behind a prefix."""
    found = match.signature.pattern.search(here.text)
    if found is None or _CLEAN_START.match(here.text[: found.start()]) or match.signature.means == FRAMING:
        return here
    why = f"Two processes wrote into one line; whether {named(here)} or the one before it said this is not certain."
    return replace(here, rank=None, local_rank=None, doubt=why)
