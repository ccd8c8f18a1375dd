"""R-17, R-18, R-03: memory of the card that is not in this process's hands, and whose it may be.

A process that a message names is a stranger only where it is not the job's own: another rank, the engine that shares
the card on purpose, or the failing process itself under its host's pid. Where the log cannot tell, nothing here
claims 0.7 or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runbook.diagnosis.case import ORDINARY_CONTEXT_BYTES, Case, Conclusion, Vote, print_error, rule, size
from runbook.model.diagnosis import Detail
from runbook.model.log import ProcessUse
from runbook.model.sentences import NOTHING, Sentence, as_written
from runbook.model.sentences.of_diagnosis import Say
from runbook.model.units import GIB, NodeVerdict, Unknown

if TYPE_CHECKING:
    from runbook.model.node import GpuProcess, NodeJudgement

UNTOLD = 0.65
"""The most that a message alone gives to "somebody else's", where its pids cannot be compared with the job's."""
_SMALL_BYTES = 2 * GIB
_SLIVERS = 16
"""What is reserved and unallocated explains nothing where so many times as much is in other hands."""
_ALIKE = (0.7, 1.4)
"""Ranks of one program at one time hold about as much: another's memory as a share of the failing process's."""
_SETTLE = Say.WHOSE_PROCESSES()


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
    names = tuple(_named(one) for one in tenants[:4]) or (Say.NO_PROCESS_LISTED(),)
    listed = {one.pid for one in case.figures.fields.other_processes} & {one.pid for one in tenants}
    return Vote(
        "R-17 co-tenant", Conclusion.CO_TENANT, 0.95 if listed else 0.9 if short is not None else 0.75,
        (Say.NODE_CHECK_FOUND_TENANTS(
            node=judgement.node, names=names, held=size(held),
            missing=Say.WERE_MISSING(short=size(short)) if short is not None else NOTHING,
        ), *((Say.MESSAGE_NAMES_PROCESS_TOO(listed=min(listed)),) if listed else ()),
         *map(as_written, judgement.reasons[:2])),
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
        (Say.DRIVER_LISTS_PROCESSES(pids=_pids(foreign), held=size(_sum(foreign))),),
        (Say.OWN_PIDS_NOT_ALL_KNOWN(),), (_SETTLE,),
    )


def _covers(case: Case, processes: Sequence[ProcessUse], short: int) -> bool:
    known = _sum(processes)
    return known > 0 and known + print_error(known, case.figures.tried, case.figures.free) >= short


def _sum(processes: Sequence[ProcessUse]) -> int:
    return sum(one.bytes for one in processes if one.bytes is not None)


def _pids(processes: Sequence[ProcessUse]) -> Sentence:
    return Say.PIDS(
        pids=tuple(str(one.pid) for one in processes[:4]),
        more=Say.AND_MORE(count=len(processes) - 4) if len(processes) > 4 else NOTHING,
    )


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


def _alike(case: Case, others: int, held: int, pids: Sentence = NOTHING) -> Vote:
    """The job's own processes, of which each took the same card."""
    named = Say.IN_BRACKETS(pids=pids) if pids else NOTHING
    several = others > 1
    return Vote(
        "R-17 ranks share a GPU", Conclusion.CUDA_CONTEXT_OR_DRIVER, 0.6,
        (Say.OTHERS_HOLD_AS_MUCH(
            others=others, es="es" if several else "", named=named, s="" if several else "s",
            held=size(held), each="each " if several else "", local_processes=case.local_processes,
        ),),
        (Say.PROCESSES_NOT_IN_THE_LOG(),),
        (Say.OWNERS_AND_COMMAND_LINES(),), detail=Detail.RANKS_SHARE_GPU,
    )


def _stranger(
    case: Case, foreign: Sequence[ProcessUse], short: int, confidence: float, told: bool = False, decisive: bool = True
) -> Vote:
    judgement, against = case.judgement(), []
    if judgement is not None and judgement.verdict is NodeVerdict.CLEAN:
        against.append(Say.LATER_CHECK_SAW_NOBODY(node=judgement.node))
    if case.figures.self_pid not in (None, case.root_pid):
        against.append(
            Say.PIDS_ARE_THE_HOSTS(self_pid=case.figures.self_pid)
        )
    elif not told:
        against.append(Say.OWN_PIDS_NOT_ALL_KNOWN())
    own = len(case.figures.fields.other_processes) - len(foreign) - (case.figures.self_pid is not None)
    if own:
        against.append(Say.SOME_ARE_THE_JOBS_OWN(own=own))
    if case.story.progress.resumed_from_step is not None and not case.story.progress.last_step:
        against.append(Say.JUST_STARTED_AGAIN())
    if 20 * _sum(foreign) < (case.figures.fields.capacity_bytes or 0):
        against.append(Say.LITTLE_ON_SUCH_A_CARD(
            held=size(_sum(foreign)), capacity_bytes=size(case.figures.fields.capacity_bytes),
        ))
    many = "es" if len(foreign) > 1 else ""
    listed = Say.MESSAGE_NAMES_PROCESSES(es=many, pids=_pids(foreign), held=size(_sum(foreign)))
    return Vote(
        "R-17 co-tenant", Conclusion.CO_TENANT, round(confidence, 2),
        (Say.WITHOUT_THEM_IT_FITS(listed=listed, short=size(short), them="them" if many else "it"),
         *((Say.NONE_IS_A_RANK(),) if told else ())),
        tuple(against),
        () if judgement is not None and judgement.verdict is NodeVerdict.OCCUPIED else (_SETTLE,), decisive,
    )


def _own_engine(case: Case, processes: Sequence[ProcessUse], short: int, confidence: float) -> Vote:
    known = all(one.pid in case.own_pids for one in processes)
    engines = " and ".join(case.engines) or "an inference engine"
    why = (
        Say.SHOWN_AS_THE_JOBS_OWN() if known
        else Say.RUNS_TRAINER_AND_ENGINE_TOGETHER(framework=case.story.framework or "this job", engines=engines)
    )
    return Vote(
        "R-17 own engine", Conclusion.INFERENCE_RESERVATION, confidence,
        (Say.ENGINE_HOLDS(
            es="es" if len(processes) > 1 else "", pids=_pids(processes),
            s="" if len(processes) > 1 else "s", held=size(_sum(processes)), why=why, short=size(short),
        ),
         Say.TOGETHER_LARGER_THAN_CARD()),
        () if known else (Say.ENGINES_PID_NOT_IN_THE_LOG(),),
        () if known else (_SETTLE,), detail=Detail.LOWER_SHARE,
    )


def _ranks_share(case: Case, processes: Sequence[ProcessUse], certain: bool | None) -> Vote:
    """`certain`: the log gives these pids to ranks; None: it only shows them to be the job's own."""
    several, total = len(processes) > 1, size(_sum(processes))
    remedy = Say.MISSING_SET_DEVICE()
    if certain is False:
        reason = Say.CONTEXTS_ON_ONE_GPU(
            count=len(processes), pids=_pids(processes), total=total, small_bytes=size(_SMALL_BYTES),
            remedy=remedy,
        )
        against = Say.PIDS_NOT_IN_THE_LOG()
    else:
        noun = ("ranks" if several else "rank") if certain else ("processes" if several else "process")
        reason = Say.OWN_RANKS_SHARE(
            count=len(processes), noun=noun, pid="pids" if several else "pid", pids=_pids(processes),
            s="" if several else "s", total=total, remedy=remedy,
        )
        against = NOTHING if certain else Say.OTHER_PROCESS_WITHOUT_PURPOSE()
    return Vote(
        "R-17 ranks share a GPU", Conclusion.CUDA_CONTEXT_OR_DRIVER, 0.85 if certain else 0.6, (reason,),
        (against,) if against else (),
        () if certain else (Say.OWNERS_AND_COMMAND_LINES(),),
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
        (Say.PROCESSES_WITHOUT_SIZE(
            es="es" if len(foreign) > 1 else "", pids=_pids(foreign), rest=size(rest), short=size(short),
        ),),
        (Say.NVML_GIVES_NO_SIZES(),), (_SETTLE,),
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
            (Say.IN_USE_BY_NOBODY_NAMED(hidden=size(hidden), short=size(short)),),
            (Say.CONTAINER_OR_SLICE_LOOKS_THE_SAME(),),
            (Say.WHOSE_IT_IS(),),
        ),)
    rest, available, tried = figures.unexplained_bytes, figures.available_bytes, figures.tried
    if rest is None or available is None or tried is None:
        return ()
    if available >= tried and _SLIVERS * (figures.unallocated_bytes or 0) > rest:
        return ()
    capacity = figures.fields.capacity_bytes or 0
    if rest - ORDINARY_CONTEXT_BYTES < short or rest < max(2 * ORDINARY_CONTEXT_BYTES, capacity // 4):
        return ()
    reason = Say.REST_NOT_RESERVED_AND_NOBODY_LISTED(rest=size(rest), short=size(short))
    own = (figures.reserved_bytes or 0) + ORDINARY_CONTEXT_BYTES // 2
    others = round(rest / own)
    shared = case.colocation >= 0.6
    alike = _ALIKE[0] * own * others <= rest <= _ALIKE[1] * own * others
    if alike and not shared and 0 < others < case.local_processes:
        return (_alike(case, others, rest),)
    missing = (Say.WHICH_PROCESS_HOLDS_THE_REST(),)
    return (
        Vote(
            "R-03 message without processes",
            Conclusion.INFERENCE_RESERVATION if shared else Conclusion.CO_TENANT, 0.5, (reason,),
            (Say.MESSAGE_DOES_NOT_SAY_WHOSE(),), missing,
            detail=Detail.LOWER_SHARE if shared else Detail.NONE,
        ),
        Vote("R-03 message without processes", Conclusion.NCCL_BUFFERS, 0.25, (reason,), (), missing, decisive=False,
             detail=Detail.OUTSIDE),
    )


def _named(process: GpuProcess) -> Sentence:
    owner = "unknown owner" if isinstance(process.owner, Unknown) else process.owner
    return Say.PROCESS(pid=process.pid, name=process.name or "unnamed", owner=owner)
