"""R-17, R-18, R-03: memory of the card that is not in this process's hands, and whose it may be.

A process that a message names is a stranger only where it is not the job's own: another rank, the engine that shares
the card on purpose, or the failing process itself under its host's pid. Where the log cannot tell, nothing here
claims 0.7 or more.
"""

from __future__ import annotations

from collections.abc import Sequence

from runbook.diagnosis.case import ORDINARY_CONTEXT_BYTES, Case, Conclusion, Vote, print_error, rule, size
from runbook.model.diagnosis import Detail
from runbook.model.log import ProcessUse
from runbook.model.node import GpuProcess, NodeJudgement, NodeVerdict
from runbook.model.units import GIB, Unknown

UNTOLD = 0.65
"""The most that a message alone gives to "somebody else's", where its pids cannot be compared with the job's."""
_SMALL_BYTES = 2 * GIB
_SLIVERS = 16
"""What is reserved and unallocated explains nothing where so many times as much is in other hands."""
_ALIKE = (0.7, 1.4)
"""Ranks of one program at one time hold about as much: another's memory as a share of the failing process's."""
_SETTLE = (
    "whose processes these are (nvidia-smi and the owner of each pid on the node): pids in a container are the host's, "
    "and a trainer may share its card with its own rollout engine on purpose"
)


@rule
def checked_tenant(case: Case) -> Vote | None:
    """The node check found somebody else's memory on the card, and it is as much as was missing."""
    judgement, short = case.judgement(), case.figures.short_bytes
    if case.root is None or not case.meant.on_the_card:
        return None
    if judgement is None or judgement.verdict is not NodeVerdict.OCCUPIED:
        return None
    tenants = _on_the_failing_gpu(case, judgement)
    if not tenants and not judgement.hidden_bytes:
        return None
    held = int(judgement.hidden_bytes)
    held += sum(one.used_bytes for one in tenants if not isinstance(one.used_bytes, Unknown))
    if short is not None and held + print_error(case.figures.tried, case.figures.free) < short:
        return None
    names = ", ".join(_named(one) for one in tenants[:4]) or "no process that is listed"
    listed = {one.pid for one in case.figures.fields.other_processes} & {one.pid for one in tenants}
    return Vote(
        "R-17 co-tenant", Conclusion.CO_TENANT, 0.95 if listed else 0.9 if short is not None else 0.75,
        (f"The node check of {judgement.node} found memory of the card in other hands: {names} with {size(held)}"
         + (f"; {size(short)} were missing." if short is not None else "."),
         *((f"The message names process {min(listed)} too.",) if listed else ()), *judgement.reasons[:2]),
    )


def _on_the_failing_gpu(case: Case, judgement: NodeJudgement) -> tuple[GpuProcess, ...]:
    """The judgement's tenants on the GPU that ran out of memory, where it is known; else all of them."""
    facts = next((one for one in case.facts if one.node == judgement.node), None)
    if judgement.failing_gpu is None or facts is None or isinstance(facts.gpus, Unknown):
        return judgement.tenants
    gpu = next((one for one in facts.gpus if one.index == judgement.failing_gpu), None)
    if gpu is None or isinstance(gpu.processes, Unknown):
        return judgement.tenants
    there = {process.pid for process in gpu.processes}
    return tuple(one for one in judgement.tenants if one.pid in there)


@rule
def listed_processes(case: Case) -> tuple[Vote, ...]:
    """What the processes that the message lists mean: own ranks, an own engine, or strangers."""
    figures, short = case.figures, case.figures.short_bytes
    if short is None or case.root is None or not case.meant.on_the_card:
        return ()
    ranks = set(case.story.rank_pids.values()) - {case.root.pid}
    others = [one for one in figures.fields.other_processes if one.pid != figures.self_pid]
    own_ranks = [one for one in others if one.pid in ranks]
    own = [one for one in others if one.pid in case.own_pids and one.pid not in ranks]
    foreign = [one for one in others if one.pid not in case.own_pids]
    votes: list[Vote] = []
    if own_ranks and _covers(case, own_ranks, short):
        votes.append(_ranks_share(case, own_ranks, certain=True))
    if own and _covers(case, own, short):
        votes.append(_own_engine(case, own, short, 0.85) if case.colocation else _ranks_share(case, own, certain=None))
    if foreign and _covers(case, foreign, short):
        votes += _foreign(case, foreign, short)
    elif foreign and any(one.bytes is None for one in foreign):
        votes += _of_unknown_size(case, foreign, short)
    return tuple(votes)


@rule
def listed_by_the_driver(case: Case) -> Vote | None:
    """A process in the driver's list that the log prints, where the message has no figures to hold against it."""
    foreign = [one for one in case.figures.fields.other_processes if one.pid not in case.own_pids]
    if not foreign or case.figures.short_bytes is not None or case.root is None or case.colocation >= 0.6:
        return None
    if not case.meant.on_the_card and case.root.means != case.kinds.of(Conclusion.KV_CACHE_SIZING):
        return None
    return Vote(
        "R-17 co-tenant", Conclusion.CO_TENANT, UNTOLD,
        (f"The driver's list of processes in the log names process {_pids(foreign)} with {size(_sum(foreign))} on the "
         "card, before the job's first step or beside its failure.",),
        ("The log does not give the pids of all of the job's own processes, so this may be one of them.",), (_SETTLE,),
    )


def _covers(case: Case, processes: Sequence[ProcessUse], short: int) -> bool:
    known = _sum(processes)
    return known > 0 and known + print_error(known, case.figures.tried, case.figures.free) >= short


def _sum(processes: Sequence[ProcessUse]) -> int:
    return sum(one.bytes for one in processes if one.bytes is not None)


def _pids(processes: Sequence[ProcessUse]) -> str:
    more = f" and {len(processes) - 4} more" if len(processes) > 4 else ""
    return ", ".join(str(one.pid) for one in processes[:4]) + more


def _foreign(case: Case, foreign: Sequence[ProcessUse], short: int) -> tuple[Vote, ...]:
    local = case.job.gpus_per_node if case.job is not None else None
    small = all((one.bytes or 0) < _SMALL_BYTES for one in foreign)
    if small and (len(foreign) >= 3 or (local is not None and len(foreign) >= 2 and len(foreign) + 1 == local)):
        return (_ranks_share(case, foreign, certain=False), _stranger(case, foreign, short, 0.25, decisive=False))
    if case.colocation:
        engine = 0.65 if case.colocation >= 0.8 else 0.55 if case.colocation >= 0.6 else 0.45
        return (_own_engine(case, foreign, short, engine), _stranger(case, foreign, short, 0.3, decisive=False))
    judgement = case.judgement()
    comparable = case.figures.fields.process_bytes is not None or case.figures.self_pid == case.root_pid
    world = case.story.world_size
    all_known = world is not None and len(set(case.story.rank_pids.values())) >= world
    # Where the log names every rank's process, one that it does not name is none of them.
    if not (comparable and all_known) and _as_started(case, [one.bytes for one in foreign]):
        return (_alike(case, len(foreign), _sum(foreign), _pids(foreign)),
                _stranger(case, foreign, short, 0.25, decisive=False))
    if judgement is not None and judgement.verdict is NodeVerdict.CLEAN:
        confidence = 0.5
    elif comparable and all_known:
        confidence = 0.85
    else:
        confidence = UNTOLD if comparable else 0.55
    if 20 * _sum(foreign) < (case.figures.fields.capacity_bytes or 0):
        confidence -= 0.1
    return (_stranger(case, foreign, short, confidence, told=comparable and all_known),)


def _as_started(case: Case, held: Sequence[int | None]) -> bool:
    """Whether others hold as much as the failing process does, each, and are no more than the script starts beside
    it."""
    own = case.figures.process_bytes
    if not own or not held or not 0 < len(held) < case.local_processes:
        return False
    return all(one is not None and _ALIKE[0] * own <= one <= _ALIKE[1] * own for one in held)


def _alike(case: Case, others: int, held: int, pids: str = "") -> Vote:
    """The job's own processes, of which each took the same card."""
    named = f" ({pids})" if pids else ""
    several = others > 1
    return Vote(
        "R-17 ranks share a GPU", Conclusion.CUDA_CONTEXT_OR_DRIVER, 0.6,
        (f"{others} other process{'es' if several else ''}{named} hold{'' if several else 's'} {size(held)} of this "
         f"card, {'each ' if several else ''}about as much as the one that failed, and the launch script starts "
         f"{case.local_processes} on a node: they are its own, and share a GPU (a rank that the program does not read, "
         "a missing set_device or CUDA_VISIBLE_DEVICES).",),
        ("The log does not name these processes: strangers of that size look the same.",),
        ("the owners and command lines of these processes, on the node",), detail=Detail.RANKS_SHARE_GPU,
    )


def _stranger(
    case: Case, foreign: Sequence[ProcessUse], short: int, confidence: float, told: bool = False, decisive: bool = True
) -> Vote:
    judgement, against = case.judgement(), []
    if judgement is not None and judgement.verdict is NodeVerdict.CLEAN:
        against.append(f"The later check of {judgement.node} saw no other process; it may have ended meanwhile.")
    if case.figures.self_pid not in (None, case.root_pid):
        against.append(
            f"Process {case.figures.self_pid} of the message is this process itself, so the message's pids are the "
            "host's and cannot be compared with those of the log: the others may be the job's own."
        )
    elif not told:
        against.append("The log does not give the pids of all of the job's own processes, so this may be one of them.")
    own = len(case.figures.fields.other_processes) - len(foreign) - (case.figures.self_pid is not None)
    if own:
        against.append(f"{own} of the processes in the message are this job's own.")
    if case.story.progress.resumed_from_step is not None and not case.story.progress.last_step:
        against.append("The job had just been started again: a predecessor that is still ending looks the same.")
    if 20 * _sum(foreign) < (case.figures.fields.capacity_bytes or 0):
        against.append(f"{size(_sum(foreign))} are little on a card of {size(case.figures.fields.capacity_bytes)}: "
                       "the job itself all but fills it.")
    many = "es" if len(foreign) > 1 else ""
    listed = f"The message names process{many} {_pids(foreign)} on the same card with {size(_sum(foreign))}"
    return Vote(
        "R-17 co-tenant", Conclusion.CO_TENANT, round(confidence, 2),
        (f"{listed}; {size(short)} were missing, so without {'them' if many else 'it'} the request would have been "
         "served.",
         *(("None of them is a rank of this job: the log gives the pid of every rank.",) if told else ())),
        tuple(against),
        () if judgement is not None and judgement.verdict is NodeVerdict.OCCUPIED else (_SETTLE,), decisive,
    )


def _own_engine(case: Case, processes: Sequence[ProcessUse], short: int, confidence: float) -> Vote:
    known = all(one.pid in case.own_pids for one in processes)
    engines = " and ".join(case.engines) or "an inference engine"
    why = (
        "which the log shows as this job's own" if known
        else f"and {case.story.framework or 'this job'} runs trainer and {engines} on the same cards"
    )
    return Vote(
        "R-17 own engine", Conclusion.INFERENCE_RESERVATION, confidence,
        (f"Process{'es' if len(processes) > 1 else ''} {_pids(processes)} hold{'' if len(processes) > 1 else 's'} "
         f"{size(_sum(processes))} of the card, {why}; {size(short)} were missing.",
         "The engine's share and the trainer's working set together are larger than the card: lower the share."),
        () if known else ("The pid of the engine is not in the log: it may be a stranger's process.",),
        () if known else (_SETTLE,), detail=Detail.LOWER_SHARE,
    )


def _ranks_share(case: Case, processes: Sequence[ProcessUse], certain: bool | None) -> Vote:
    """`certain`: the log gives these pids to ranks; None: it only shows them to be the job's own."""
    several, total = len(processes) > 1, size(_sum(processes))
    remedy = "a missing set_device, map_location or CUDA_VISIBLE_DEVICES"
    if certain is False:
        reason = (
            f"{len(processes)} other processes ({_pids(processes)}) hold {total} together, each less than "
            f"{size(_SMALL_BYTES)}: every local rank made its context on the same GPU ({remedy})."
        )
        against = "The log does not name these pids: strangers of that size look the same."
    else:
        noun = ("ranks" if several else "rank") if certain else ("processes" if several else "process")
        reason = (
            f"{len(processes)} other {noun} of this job (pid{'s' if several else ''} {_pids(processes)}) "
            f"hold{'' if several else 's'} {total} of this card: ranks share a GPU ({remedy})."
        )
        against = "" if certain else "Nothing says what the job's other process is for."
    return Vote(
        "R-17 ranks share a GPU", Conclusion.CUDA_CONTEXT_OR_DRIVER, 0.85 if certain else 0.6, (reason,),
        (against,) if against else (),
        () if certain else ("the owners and command lines of these processes, on the node",),
        detail=Detail.RANKS_SHARE_GPU,
    )


def _of_unknown_size(case: Case, foreign: Sequence[ProcessUse], short: int) -> tuple[Vote, ...]:
    """R-18: NVML could not tell a process's size, but there is one."""
    figures, fields = case.figures, case.figures.fields
    if fields.capacity_bytes is None or fields.free_bytes is None or figures.process_bytes is None:
        return ()
    rest = fields.capacity_bytes - fields.free_bytes - figures.process_bytes - _sum(foreign)
    if rest < max(short, _SMALL_BYTES):
        return ()
    kind = Conclusion.INFERENCE_RESERVATION if case.colocation >= 0.6 else Conclusion.CO_TENANT
    return (Vote(
        "R-18 process of unknown size", kind, 0.5,
        (f"The message names process{'es' if len(foreign) > 1 else ''} {_pids(foreign)} without a size, and "
         f"{size(rest)} of the card are in nobody else's hands; {size(short)} were missing.",),
        ("NVML gives no sizes here (WSL, vGPU or MIG), so the sum is all that is known.",), (_SETTLE,),
        detail=Detail.LOWER_SHARE if kind is Conclusion.INFERENCE_RESERVATION else Detail.NONE,
    ),)


@rule
def unattributed(case: Case) -> tuple[Vote, ...]:
    """R-03: in use, and nobody's that the message names; or the message names nobody at all."""
    figures, short = case.figures, case.figures.short_bytes
    if short is None or case.root is None or not case.meant.on_the_card:
        return ()
    hidden = figures.unattributed_bytes
    if hidden is not None and hidden >= max(short, _SMALL_BYTES):
        return (Vote(
            "R-03 unattributed memory", Conclusion.CO_TENANT, 0.5,
            (f"{size(hidden)} of the card are in use by nobody that the message names; {size(short)} were missing.",),
            ("Another container, MPS or a slice of the card that this process may not use looks the same.",),
            ("nvidia-smi on the node, to see whose it is",),
        ),)
    rest, available, tried = figures.unexplained_bytes, figures.available_bytes, figures.tried
    if rest is None or available is None or tried is None:
        return ()
    if available >= tried and _SLIVERS * (figures.unallocated_bytes or 0) > rest:
        return ()
    capacity = figures.fields.capacity_bytes or 0
    if rest - ORDINARY_CONTEXT_BYTES < short or rest < max(2 * ORDINARY_CONTEXT_BYTES, capacity // 4):
        return ()
    reason = (
        f"{size(rest)} of the card are in use and not reserved by PyTorch, {size(short)} were missing, and this "
        "message lists no processes: another process, or this one outside the allocator."
    )
    own = (figures.reserved_bytes or 0) + ORDINARY_CONTEXT_BYTES // 2
    others = round(rest / own)
    shared = case.colocation >= 0.6
    alike = _ALIKE[0] * own * others <= rest <= _ALIKE[1] * own * others
    if alike and not shared and 0 < others < case.local_processes:
        return (_alike(case, others, rest),)
    missing = ("nvidia-smi on the node: which process holds the rest",)
    return (
        Vote(
            "R-03 message without processes",
            Conclusion.INFERENCE_RESERVATION if shared else Conclusion.CO_TENANT, 0.5, (reason,),
            ("The message does not say whose memory that is.",), missing,
            detail=Detail.LOWER_SHARE if shared else Detail.NONE,
        ),
        Vote("R-03 message without processes", Conclusion.NCCL_BUFFERS, 0.25, (reason,), (), missing, decisive=False,
             detail=Detail.OUTSIDE),
    )


def _named(process: GpuProcess) -> str:
    owner = "unknown owner" if isinstance(process.owner, Unknown) else process.owner
    return f"process {process.pid} ({process.name or 'unnamed'}, {owner})"
