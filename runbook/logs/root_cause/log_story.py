"""From what was seen to what happened: the first failure, its company, its consequences, and what was no failure."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from runbook.logs.collect import (
    PASTED_BYTES,
    TEARDOWN_CODES,
    Collection,
    GpuRow,
    LogMatch,
    ProcessPlace,
    RankLocations,
)
from runbook.logs.root_cause import selection
from runbook.logs.root_cause.evidence import LogEvidence
from runbook.logs.root_cause.secondary_failures import confirmed
from runbook.logs.root_cause.selection import RootCause
from runbook.logs.root_cause.suspects import Suspect, victim
from runbook.logs.signatures import CONSEQUENCE, HARMLESS
from runbook.model.diagnosis import Detail, Kind
from runbook.model.job import JobRecord
from runbook.model.log import (
    Collateral,
    Event,
    Finding,
    LogSource,
    LogStory,
    MemoryFields,
    Phase,
    ProcessUse,
)
from runbook.model.sentences import NOTHING, Plain, Sentence, as_written
from runbook.model.sentences.of_logs import Say
from runbook.model.units import Bytes, NodeName

_ENDS = frozenset({
    Event.PROCESS_EXIT, Event.TASK_END, Event.OWN_TASK, Event.OWN_END, Event.FAILURE_ROW, Event.SIGKILL, Event.CLOSING,
    Event.TAKES_DOWN,
})
UNNAMED_KEPT = 20
_OF_A_TEARDOWN = frozenset({"SIGTERM", "SIGKILL", "SIGHUP", "SIGINT"})
RANKS_KEPT = 20_000

_SIGNALS = {-6: "SIGABRT", -9: "SIGKILL", -15: "SIGTERM", -11: "SIGSEGV", -7: "SIGBUS"}
_SIGNALS_SAID = {
    "Killed": "SIGKILL", "Terminated": "SIGTERM", "Aborted": "SIGABRT", "Bus error": "SIGBUS", "Hangup": "SIGHUP",
    "Interrupt": "SIGINT", "Quit": "SIGQUIT", "Segmentation fault": "SIGSEGV",
}
"""By the C library's words, which srun and mpirun print."""


def collateral(
    seen: Sequence[LogMatch], where: RankLocations, root: Finding | None, taken: Set[int | None]
) -> tuple[Collateral, ...]:
    """One entry a rank, the first reason in the log's order; entries without a rank at the end."""
    found: dict[int, Collateral] = {}
    left: set[int] = set()
    unnamed: dict[tuple[str, str | None], Collateral] = {}
    own = root.rank if root else None
    for one in seen:
        if one.means != CONSEQUENCE:
            continue
        identity = one.match.signature.id
        ranks: Sequence[int | None] = [where.rank(one)]
        hosts = one.match.text("hosts")
        if one.match.numbers("tasks"):
            ranks = one.match.numbers("tasks") if where.tasks_are_ranks else [None]
        for rank in ranks:
            if rank is not None and (rank == own or rank in taken or rank in found or len(found) > RANKS_KEPT):
                continue
            if rank is None and (Event.TAKES_DOWN in one.reports or (found and one.match.signature.general)):
                continue
            if rank is None:
                node = one.log_line.node or hosts
                if len(unnamed) < UNNAMED_KEPT:
                    told = Collateral(None, one.log_line.node, _why(one), identity, _signal(one))
                    unnamed.setdefault((identity, node), told)
            else:
                found[rank] = Collateral(rank, where.nodes.get(rank), _why(one), identity, _signal(one))
                if Event.PROCESS_EXIT in one.reports and "tasks" not in one.match.values:
                    left.add(rank)
    for row in where.rows:
        if own is None and root is not None and row.exit_code not in TEARDOWN_CODES:
            continue  # one of these is the failure itself, and the log does not say which
        if row.rank != own and row.rank not in taken and row.rank not in found:
            why = Say.ENDED_WITH(code=_code(row.exit_code))
            found[row.rank] = Collateral(row.rank, row.node, why, row.signature, _SIGNALS.get(row.exit_code, ""))
    if own is None and root is not None:
        # A launcher's agent names whom it saw dead, and one of these is the failure itself.
        found = {rank: one for rank, one in found.items() if rank not in left}
    return (*(found[rank] for rank in sorted(found)), *unnamed.values())


def _why(seen: LogMatch) -> Sentence:
    code, signal = seen.match.integer("exit_code"), seen.match.text("signal")
    if code is not None:
        return Say.ENDED_WITH(code=_code(code))
    if signal is not None:
        return Say.ENDED_BY_SIGNAL(signal=signal.lower())
    signature = seen.match.signature
    return as_written(signature.of_a_rank or signature.title[:1].lower() + signature.title[1:])


def _signal(seen: LogMatch) -> str:
    said = seen.match.text("signal") or ""
    return _SIGNALS.get(seen.match.integer("exit_code") or 0) or _SIGNALS_SAID.get(said, said)


def _code(code: int) -> Sentence:
    return Say.EXIT_CODE_OF_SIGNAL(code=code, signal=_SIGNALS[code]) if code in _SIGNALS else Say.EXIT_CODE(code=code)


_PINNED = "pinned"
"""The detail of a refusal whose traceback pins host memory."""
_TENANT_BYTES = 4 << 30
"""Less than this may be a desktop's or a monitor's, and explains little."""
CANDIDATES_KEPT = 64
HARMLESS_KEPT = 64


def story_of(collection: Collection, sources: Sequence[LogSource], job: JobRecord | None) -> LogStory:
    """The story of one job's logs."""
    evidence = LogEvidence.of(collection, sources, job)
    seen, where = evidence.matches, evidence.where
    choice = selection.select_root_cause(evidence)
    notes = list(choice.notes)
    root = _finding(choice.root, evidence) if choice.root else None
    if root is not None and choice.root is not None and confirmed(choice.root, evidence):
        root = replace(root, quoted=False)
    if root is not None and root.rank is None:
        root, note = _name_rank(root, choice, evidence)
        notes += [note] if note else []
    if root is not None and root.node is not None and root.rank in where.inferred:
        notes.append(Say.NODE_FROM_BLOCK_DISTRIBUTION(rank=root.rank, node=root.node, world_size=where.world_size))
    if root is not None and choice.root is not None and where.inferred_by_device(choice.root):
        notes.append(Say.RANK_FROM_GPU(rank=root.rank, device=root.device))
    if root is not None and choice.root is not None and where.assumed_one_node(choice.root):
        notes.append(Say.RANK_IS_LOCAL_RANK(rank=root.rank))
    if root is not None and choice.root is not None and not root.fields.other_processes:
        listed = _listed(choice.root, root, evidence)
        root = replace(root, fields=replace(root.fields, other_processes=listed)) if listed else root
    if root is not None:
        root = replace(root, fields=_with_rooms(root, collection))
    notes += _notes(collection, root, where)
    notes += [as_written(choice.root.log_line.doubt)] if choice.root is not None and choice.root.log_line.doubt else []
    if root is not None and root.phase is Phase.UNKNOWN:
        copy = _copy_with_phase(choice.root, root.rank, seen, where)
        if copy is not None:
            root = replace(root, phase=copy.phase, frames=root.frames or copy.functions)
    others = [_finding(one, evidence) for one in choice.candidates[:CANDIDATES_KEPT]]
    taken = {finding.rank for finding in others if finding.means not in (CONSEQUENCE, HARMLESS)}
    if root is None:
        others += [_finding(one, evidence) for one in choice.fallout[:CANDIDATES_KEPT]]
    others += [_suspected(one, sources) for one in choice.suspects[:CANDIDATES_KEPT]]
    quiet = [one for one in seen if one.means == HARMLESS] + list(choice.handled)
    version = collection.tables.version or (root.framework_version if root else None)
    return LogStory(
        root_cause=root,
        candidates=tuple(others),
        collateral=collateral(seen, where, root, taken),
        harmless=tuple(
            _finding(one, evidence, handled=True)
            for index, one in enumerate(sorted(quiet, key=lambda one: (one.file, one.offset)))
            if index < HARMLESS_KEPT or one.match.signature.detail is Detail.FINISHED
        ),
        progress=collection.progress.result(collection.last_attempt, root.rank if root is not None else None),
        framework=_framework(collection, choice.root),
        framework_version=version,
        world_size=where.world_size,
        rank_nodes=dict(sorted(where.nodes.items())),
        rank_pids=dict(sorted(collection.tables.pids_of_ranks.items())),
        own_pids=tuple(sorted(collection.tables.pids_seen)),
        engines=tuple(sorted(collection.tables.engines)),
        settings=dict(sorted(collection.tables.settings.items())),
        process_ended=any(
            one.attempt == evidence.last_attempt and not _ENDS.isdisjoint(one.reports) for one in seen
        ),
        sources=tuple(sources),
        notes=tuple(dict.fromkeys(notes)),
    )


def _finding(seen: LogMatch, evidence: LogEvidence, handled: bool = False) -> Finding:
    where, collection = evidence.where, evidence.collection
    rank = where.rank(seen)
    row = where.row(rank)
    # Another rank may print its step after this one failed in the next, so the attempt's last step counts.
    before = collection.progress.step_before(seen.file, seen.offset) if handled else None
    if before is None:
        before = collection.progress.last_step(seen.attempt)
    if before is None:
        before = collection.progress.start_of(seen.attempt)
    device = seen.match.integer("device")
    means, signature, said = selection.meaning(seen), seen.match.signature, seen.log_line
    return Finding(
        signature=signature.id,
        means=means,
        file=evidence.sources[seen.file].path,
        offset=seen.offset,
        line=seen.line,
        excerpt=seen.excerpt,
        rank=rank,
        local_rank=said.local_rank if said.local_rank is not None else row.local_rank if row else None,
        node=_node(seen, rank, where),
        pid=_pid(seen, rank, collection),
        device=device if device is not None else seen.log_line.device,
        node_device=_node_device(seen, rank, where, collection),
        time_s=seen.time_s if seen.time_s is not None else row.time_s if row else None,
        step=before + 1 if before is not None else None,
        phase=seen.phase,
        fields=seen.match.memory_fields(),
        framework_version=collection.tables.version or signature.versions or None,
        detail=signature.detail if means == signature.means else _PINNED if seen.pinning and signature.pinned else "",
        firmness=signature.confidence if means == signature.means else None,
        frames=seen.functions,
        quoted=seen.quoted,
        speaker=seen.said_by,
    )


def _node_device(seen: LogMatch, rank: int | None, where: RankLocations, collection: Collection) -> str | None:
    device, row = seen.match.integer("device"), where.row(rank)
    process = ProcessPlace(
        rank, row.local_rank if row else None, _node(seen, rank, where), _pid(seen, rank, collection),
        device if device is not None else seen.log_line.device,
    )
    return collection.tables.devices.node_device(seen.log_line, process, alone=where.world_size == 1)


def _copy_with_phase(
    root: LogMatch | None, rank: int | None, seen: Sequence[LogMatch], where: RankLocations
) -> LogMatch | None:
    """Another copy of the same failure that shows its phase: torchrun's table and error.json repeat what was said."""
    for one in seen:
        if (
            root is not None and one.phase is not Phase.UNKNOWN and one.match.signature.id == root.match.signature.id
            and one.match.memory_fields() == root.match.memory_fields() and where.rank(one) in (rank, None)
        ):
            return one
    return None


def _pid(seen: LogMatch, rank: int | None, collection: Collection) -> int | None:
    """The process of the rank, else the one that a prefix names as the speaker."""
    known = collection.tables.pids_of_ranks.get(rank) if rank is not None else None
    return known if known is not None else seen.log_line.pid


def _node(seen: LogMatch, rank: int | None, where: RankLocations) -> NodeName | None:
    if seen.log_line.node is not None:
        return seen.log_line.node
    if rank is not None and rank in where.nodes:
        return where.nodes[rank]
    hosts = seen.match.text("hosts") or seen.match.text("node")
    if not hosts or "[" in hosts or "," in hosts:
        return where.only_node
    return NodeName(hosts.partition(".")[0])


def _suspected(suspect: Suspect, sources: Sequence[LogSource]) -> Finding:
    """A rank to look at, as a candidate; the file is where that can be seen."""
    return Finding(
        signature=suspect.signature.value, means=Kind(CONSEQUENCE), file=sources[suspect.file].path,
        offset=suspect.offset, line=suspect.line, excerpt=suspect.why, rank=suspect.rank, node=suspect.node,
        pid=suspect.pid,
        time_s=suspect.time_s,
    )


def _listed(failed: LogMatch, root: Finding, evidence: LogEvidence) -> tuple[ProcessUse, ...]:
    """The process that held the failing card before the job's first step, by the driver's own list in the log, or in a
    paste of a few lines wherever that stands: a program may print the list while it fails, with itself in it. None
    where several could be it."""
    tables, progress = evidence.collection.tables, evidence.collection.progress
    device = root.device if root.device is not None else root.rank if root.rank in {
        row.device for row in tables.listed.values()
    } else None
    pasted, stepped = _pasted(evidence), progress.last_step is not None

    def tells(row: GpuRow) -> bool:
        behind, early = row.offset > failed.offset, progress.step_before(row.file, row.offset) is None
        return behind or early if pasted else stepped and early and not behind

    rows = [
        row for row in tables.listed.values()
        if (row.process.bytes or 0) >= _TENANT_BYTES and row.process.pid not in tables.pids_seen
        and (device is None or row.device in (None, device))
        and tells(row)
    ]
    return (rows[0].process,) if len(rows) == 1 else ()


def _with_rooms(root: Finding, collection: Collection) -> MemoryFields:
    """The message's figures, with those that it leaves out and a table of the log tells without a doubt."""
    told = {
        name: Bytes(next(iter(room))) for (died, name), room in collection.tables.rooms.items()
        if died is root.means.entry.died and len(room) == 1 and getattr(root.fields, name) is None
    }
    return replace(root.fields, **told) if told else root.fields  # type: ignore[arg-type]


def _name_rank(
    root: Finding, choice: RootCause, evidence: LogEvidence
) -> tuple[Finding, Sentence]:
    """A rank for a failure whose own line names none: torchrun's table, else the task that srun saw exit first, else
    the only rank that is named at all. For a report of the OOM killer, the rank that died by SIGKILL."""
    where, every = evidence.where, evidence.matches
    if choice.root is not None and choice.root.match.signature.late:
        found = victim(choice.root, choice.kills, where)
        return replace(root, rank=found.rank, node=found.node or root.node, pid=found.pid or root.pid), found.note
    row = where.first_row(
        {where.rank(one) for one in every if one.hears_of_others and one.means == CONSEQUENCE},
        {one.match.integer("pid") for one in every if Event.CLOSING in one.reports},
    )
    if row is not None:
        named = replace(
            root, rank=row.rank, local_rank=row.local_rank, node=root.node or row.node, pid=row.pid,
            time_s=root.time_s if root.time_s is not None else row.time_s,
        )
        return named, Say.RANK_FROM_TORCHRUN(rank=row.rank)
    if where.tasks_are_ranks:
        for one in every:
            tasks = one.match.numbers("tasks")
            if len(tasks) == 1 and Event.TASK_END in one.reports:
                rank = tasks[0]
                return (
                    replace(root, rank=rank, node=root.node or where.nodes.get(rank)), Say.RANK_FROM_SRUN(rank=rank)
                )
    ended = {where.rank(one): one for one in reversed(every) if _ended_by_itself(one)}
    ranked = [rank for rank in ended if rank is not None]
    if len(ranked) == 1:
        alone = ranked[0]
        return (
            replace(root, rank=alone, node=root.node or _node(ended[alone], alone, where)),
            Plain.SENTENCES(parts=(
                Say.RANK_ALONE_ENDED_WITH_ERROR(rank=alone),
                Say.RANK_IS_LOCAL_RANK(rank=alone) if where.assumed_one_node(ended[alone]) else NOTHING,
            )),
        )
    if where.world_size == 1:
        return replace(root, rank=0, node=root.node or where.nodes.get(0)), NOTHING
    only = _only_rank(choice.root, evidence)
    if only is not None:
        named = replace(root, rank=only, node=root.node or where.nodes.get(only))
        return named, Say.RANK_ALONE_IS_NAMED(rank=only)
    return root, Say.NO_RANK()


def _only_rank(failed: LogMatch | None, evidence: LogEvidence) -> int | None:
    """The one rank that the lines name: any in a paste of a few lines, else one that speaks of a failure and is not
    rank 0, which often speaks for all. Not one that only lost somebody, and none for what a scheduler did."""
    seen, where = evidence.matches, evidence.where
    spoken = {where.rank(one) for one in seen if one.means != HARMLESS and not one.quoted} - {None}
    if failed is None or failed.match.signature.detail is Detail.STOPPED or (
        Event.NCCL not in failed.reports and any(one.hears_of_others and where.rank(one) is not None for one in seen)
    ):
        return None
    named = spoken | evidence.collection.tables.ranks_seen
    if _pasted(evidence):
        named |= evidence.collection.tables.ranks_named - {0}  # which speaks for all
    if failed.log_line.voice or failed.log_line.task is not None or len(named) != 1:
        return None
    only = next(iter(named)) or 0
    elsewhere = any(
        where.rank(one) is None and (one.log_line.local_rank, one.match.integer("local_rank")) != (None, None)
        for one in seen
    )
    if only < 0 or elsewhere or failed.log_line.doubt or (where.world_size is not None and only == 0):
        return None
    return only if _pasted(evidence) or (spoken and only) else None


def _pasted(evidence: LogEvidence) -> bool:
    """Whether the log is a few lines that a person chose."""
    return sum(source.size_bytes for source in evidence.sources) <= PASTED_BYTES


def _ended_by_itself(one: LogMatch) -> bool:
    """Whether a launcher, or the process's own last words, report an end that no signal of a teardown explains."""
    code, signal = one.match.integer("exit_code"), _signal(one)
    return one.means == CONSEQUENCE and not one.quoted and signal not in _OF_A_TEARDOWN and (
        Event.OWN_END in one.reports if code is None else code not in (0, *TEARDOWN_CODES)
    )


def _notes(collection: Collection, root: Finding | None, where: RankLocations) -> list[Sentence]:
    notes: list[Sentence] = []
    if collection.cut_lines:
        notes.append(Say.MESSAGE_PUT_TOGETHER())
    if root is not None:
        for process in root.fields.other_processes:
            rank = where.ranks_of_pids.get(process.pid)
            if rank is not None:
                notes.append(Say.PROCESS_IS_RANK(pid=process.pid, rank=rank))
        if root.time_s is not None:
            notes.append(Say.STAMPS_READ_AS_UTC())
    notes += map(as_written, collection.tables.notes)
    spam = {
        identity: sum(kept.count for (name, _, _), kept in collection.kept.items() if name == identity)
        + collection.like_others.get(identity, 0)
        for identity in {name for name, _, _ in collection.kept}
    }
    often = sorted((identity, count) for identity, count in spam.items() if count > 1000)
    notes += [Say.STANDS_OFTEN(identity=identity, count=count) for identity, count in often]
    return notes


def _framework(collection: Collection, root: LogMatch | None) -> str | None:
    return collection.progress.framework or (root.match.signature.framework or None if root is not None else None)
