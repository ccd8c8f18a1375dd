"""What framing lines tell: ranks, nodes and processes, restarts, checkpoints, devices, torchrun's table."""

from __future__ import annotations

from dataclasses import replace

from runbook.evidence.framing_stamps import read_time
from runbook.evidence.framing_values import Frame
from runbook.evidence.log_devices import NcclProcess
from runbook.evidence.log_keep import Keeper
from runbook.evidence.log_reading import FileState, rank_of
from runbook.evidence.log_scan import View
from runbook.evidence.log_seen import Row
from runbook.evidence.log_steps import StepSampler
from runbook.evidence.signatures import Match
from runbook.model.units import NodeName


class LauncherLines:
    """Takes one file's framing lines into the job's tables."""

    def __init__(self, state: FileState, keeper: Keeper, steps: StepSampler) -> None:
        self._state = state
        self._reading = state.reading
        self._index = state.index
        self._keeper = keeper
        self._steps = steps

    def note(self, view: View, match: Match, here: Frame, start: int, stop: int) -> None:
        reading, tables = self._reading, self._reading.tables
        identity = match.signature.id
        if identity == "PY-TRACEBACK":
            self._keeper.traceback(view, match, here, start, stop)
        elif identity in ("FR-RESTART", "FR-REQUEUE"):
            self._state.restart(view.base + start)
        elif match.integer("resumed_step") is not None:
            self._steps.before(view, start)
            newest = reading.progress.newest(self._index)
            if newest is not None and newest >= (match.integer("resumed_step") or 0):
                self._state.restart(view.base + start)  # a later run goes on from a checkpoint in the same file
            reading.progress.checkpoint(match, file=self._index, attempt=self._state.attempt, offset=view.base + start)
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
            match, file=self._index, attempt=self._state.attempt, offset=view.base + start
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
            speaker = rank if rank is not None else rank_of(here)
            reading.progress.memory(
                match, speaker, match.integer("step"), file=self._index, first_attempt=self._state.named.attempt or 0,
                offset=view.base + start,
            )

    def _communicator(self, match: Match, here: Frame) -> None:
        if here.node is not None and here.pid is not None:
            self._reading.tables.devices.note_process(NcclProcess(
                here.node, here.pid, match.integer("rank") or 0, match.integer("count") or 0,
                match.integer("device") or 0, match.text("detail"),
            ))

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
