"""Rules for what no line of the log settles: messages without figures, Slurm's word alone, no failure at all."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.diagnosis.case import Case, Conclusion, Vote, rule, size
from runbook.diagnosis.growth import host_leaks, static_or_grown
from runbook.model.diagnosis import Detail, Died
from runbook.model.job import JobClass
from runbook.model.log import SUSPECTED_RANKS, Collateral, DerivedSignature, Event, Finding, FrameworkRole
from runbook.model.sentences import NOTHING, as_written
from runbook.model.sentences.of_diagnosis import Say

_BY_SIGKILL = "SIGKILL"
_BY_SIGTERM = "SIGTERM"


@rule
def without_figures(case: Case) -> Vote | None:
    """A GPU out-of-memory message whose figures are cut or were never printed."""
    root, figures = case.root, case.figures
    if root is None or not case.meant.by_figures or figures.available_bytes is not None:
        return None
    tried = Say.ASKED_FOR(tried=size(figures.tried)) if figures.tried is not None else NOTHING
    detail, when = static_or_grown(case)
    return Vote(
        "message without figures", Conclusion.TRUE_OOM, root.firmness if root.firmness is not None else 0.5,
        (Say.DEVICE_RAN_OUT_WITHOUT_FIGURES(signature=root.signature, tried=tried),
         Say.SHORTAGE_IS_MORE_COMMON(), when),
        missing=(Say.FIGURES_OF_THE_MESSAGE(),),
        detail=detail,
    )


@rule
def engine_process(case: Case) -> Vote | None:
    """The failing process is the inference engine itself: its share may leave too little for its own work."""
    root = case.root
    folders = [one.folder for one in case.programs(FrameworkRole.ENGINE) if one.folder]
    if root is None or not case.meant.by_figures or not any(f"/{one}/" in root.excerpt for one in folders):
        return None
    return Vote(
        "engine's own process", Conclusion.INFERENCE_RESERVATION, 0.3,
        (Say.TRACEBACK_IS_THE_ENGINES(),), decisive=False, detail=Detail.LOWER_SHARE,
    )


@rule
def by_accounting(case: Case) -> Vote | None:
    """Slurm says that the kernel killed for memory, and the logs say something else, or nothing."""
    steps = case.killed_steps()
    root = case.root
    if not steps or case.meant.died is Died.MAIN_MEMORY:
        return None
    detail = Detail.LEAK if host_leaks(case) else Detail.CGROUP
    told = Say.ACCOUNTING_SAYS_OUT_OF_MEMORY(steps=tuple(steps))
    not_the_card = as_written(case.kinds.of(Conclusion.HOST_OOM).entry.reason)
    helper = Say.VICTIM_MAY_BE_A_HELPER()
    missing = (Say.KERNEL_LOG_OF_NODE_NAMES(),)
    if root is None:
        return Vote(
            "Slurm accounting", Conclusion.HOST_OOM, 0.85, (Say.LOGS_NAME_NO_OTHER_FAILURE(told=told), not_the_card),
            (helper,), missing, detail=detail,
        )
    if case.reports(root, Event.EXCEPTION):
        return Vote(
            "Slurm accounting", Conclusion.HOST_OOM, 0.65,
            (Say.ONLY_EXCEPTION_MAY_BE_AN_ECHO(told=told), not_the_card),
            (helper,), missing, detail=detail,
        )
    return Vote(
        "Slurm accounting", Conclusion.HOST_OOM, 0.3,
        (Say.BUT_ANOTHER_FAILURE_WAS_FIRST(told=told),), (helper,),
        missing, decisive=False, detail=detail,
    )


@rule
def nothing_found(case: Case) -> tuple[Vote, ...]:
    """No cause in the logs: what the consequences and the scheduler's state leave open."""
    if case.root is not None:
        return ()
    state = case.job.state if case.job else None
    followed: tuple[Finding | Collateral, ...] = (*case.story.collateral, *case.story.candidates)
    if state is not None and state.job_class in (JobClass.SUCCEEDED, JobClass.CANCELLED, JobClass.STOPPED):
        return (Vote(
            "scheduler state", Conclusion.NOT_OOM, 0.85,
            (Say.STATE_AND_NO_FAILURE(name=state.name),),
            detail=Detail.FINISHED if state.job_class is JobClass.SUCCEEDED else Detail.STOPPED,
        ),)
    stopped = _stopped(case, followed)
    if stopped is not None:
        return (stopped,)
    if any(case.reports(one, Event.SIGKILL) or _is(one, DerivedSignature.RANK_KILLED) for one in followed) or any(
        one.signal == _BY_SIGKILL for one in case.story.collateral
    ):
        return _killed()
    ended = next((one for one in case.story.candidates if _is(one, DerivedSignature.RANK_ENDED)), None)
    if ended is not None:
        return (Vote(
            "ended without a word", Conclusion.UNDETERMINED, 0.6,
            (Say.ITS_WORDS_ARE_NOT_IN_THE_LOGS(upper=ended.excerpt[:1].upper(), excerpt=ended.excerpt[1:]),),
            missing=(Say.OUTPUT_OF_THE_FIRST_RANK(), Say.ACCOUNTING_OF_EVERY_STEP()),
        ),)
    if any(case.reports(one, Event.WATCHDOG, Event.TRANSFER_BROKE) for one in followed):
        return (_hang(case),)
    lost = any(case.reports(one, Event.CONNECTION_LOST) for one in followed)
    if lost or any(case.reports(one, Event.COLLECTIVE_FAILED) for one in followed):
        return _lost_rank(lost)
    at_its_end = _ran_to_its_end(case, bool(followed))
    if at_its_end is not None:
        return (at_its_end,)
    return (Vote(
        "no failure found", Conclusion.UNDETERMINED, 0.6, (
            Say.ENDED_AND_NOTHING_TELLS_WHY() if followed
            else Say.NO_KNOWN_FAILURE(),
        ),
        missing=(Say.LOGS_OF_ALL_RANKS(), Say.ACCOUNTING_OF_EVERY_STEP()),
    ),)


def _is(one: Finding | Collateral, what: DerivedSignature) -> bool:
    return one.signature == what


def _ran_to_its_end(case: Case, hurt: bool) -> Vote | None:
    """The training did all its steps, by its counter or its trainer's words. `hurt`: somebody lost a peer."""
    progress = case.story.progress
    if progress.last_step is not None and progress.last_step == progress.total_steps:
        told = Say.REACHED_LAST_STEP(last_step=progress.last_step, total_steps=progress.total_steps)
    elif any(one.detail == Detail.FINISHED for one in case.story.harmless):
        told = Say.TRAINER_REACHED_THE_END()
    else:
        return None
    if case.job is not None and case.job.state.job_class is JobClass.FAILED:
        return Vote(
            "failed behind its end", Conclusion.UNDETERMINED, 0.6,
            (told, Say.FAILED_BEHIND_ITS_END(name=case.job.state.name)),
            missing=(Say.LOGS_OF_ALL_RANKS(), Say.ACCOUNTING_OF_EVERY_STEP()),
        )
    return Vote(
        "ran to its end", Conclusion.NOT_OOM, 0.55 if hurt else 0.75, (told,),
        missing=(Say.JOB_STATE_FROM_SLURM(),), detail=Detail.FINISHED,
    )


def _stopped(case: Case, followed: Sequence[Finding | Collateral]) -> Vote | None:
    """Cancelled by somebody: besides Slurm's line there is only what cancelling itself does, to all ranks alike."""
    story = case.story
    if any("KeyboardInterrupt" in one.excerpt for one in story.candidates):
        return Vote(
            "interrupted", Conclusion.NOT_OOM, 0.65,
            (Say.ONLY_KEYBOARD_INTERRUPT(),),
            missing=(Say.WHO_SENT_SIGNAL(),), detail=Detail.STOPPED,
        )
    if all(case.reports(one, Event.CLOSING, Event.BY_CANCELLING) for one in followed) and any(
        "death signal" in one.excerpt for one in story.candidates
    ):
        return Vote(
            "signalled from outside", Conclusion.NOT_OOM, 0.6,
            (Say.SIGNALLED_FROM_OUTSIDE(),),
            (Say.ANOTHER_NODE_FAILING_LOOKS_THE_SAME(),),
            (Say.WHO_SENT_SIGNAL_BY_ACCOUNTING(),), detail=Detail.STOPPED,
        )
    if not any(case.reports(one, Event.STEP_CANCELLED) for one in followed) or not all(
        case.reports(one, Event.BY_CANCELLING) or _is(one, DerivedSignature.RANK_KILLED) for one in followed
    ):
        return None
    ranks = [one for one in story.candidates if _is(one, DerivedSignature.RANK_KILLED)]
    killed = {(one.file, one.offset) for one in ranks}
    signals = [one.signal for one in story.collateral if one.signal]
    all_at_once = len(killed) == 1 and len(ranks) > 1 and len(signals) == len(ranks)
    if not all_at_once and (killed or any(signal != _BY_SIGTERM for signal in signals)):
        return None
    return Vote(
        "cancelled", Conclusion.NOT_OOM, 0.6,
        (Say.ONLY_WHAT_CANCELLING_DOES(),),
        (Say.CANCELLED_AFTER_A_FAILURE_LOOKS_THE_SAME(),),
        (Say.WHO_CANCELLED_IT(),),
        detail=Detail.STOPPED,
    )


def _lost_rank(connection: bool) -> tuple[Vote, ...]:
    """A connection was lost, or else CUDA failed inside NCCL, and no line says why."""
    missing = (Say.LOGS_OF_RANK_WENT_AWAY(), Say.ACCOUNTING_OF_EVERY_STEP(), Say.KERNEL_LOG_OF_ITS_NODE())
    if not connection:
        return (Vote(
            "R-19 no word of memory", Conclusion.NOT_OOM, 0.55,
            (Say.NCCL_REPORTS_FAILURE_OF_CUDA(),),
            missing=missing,
        ),)
    return (
        Vote(
            "only consequences", Conclusion.UNDETERMINED, 0.6,
            (Say.RANKS_LOST_CONNECTION(),), missing=missing,
        ),
        Vote(
            "only consequences", Conclusion.HOST_OOM, 0.2,
            (Say.WENT_AWAY_WITHOUT_A_WORD(),),
            (Say.NOTHING_SPEAKS_OF_MEMORY(),), missing, decisive=False,
        ),
    )


def _killed() -> tuple[Vote, ...]:
    """R-22."""
    missing = (Say.ACCOUNTING_OF_MEMORY(), Say.MEMORY_EVENTS_OF_STEP_CGROUP(),
               Say.KERNEL_LOG_OF_NODE())
    return (
        Vote(
            "R-22 SIGKILL of unknown sender", Conclusion.UNDETERMINED, 0.6,
            (Say.KILLED_BY_SOMEBODY(),), missing=missing,
        ),
        Vote(
            "R-22 SIGKILL of unknown sender", Conclusion.HOST_OOM, 0.3,
            (Say.SIGKILL_WITHOUT_SENDER(),),
            (Say.NOTHING_SPEAKS_OF_MEMORY(),), missing, decisive=False,
        ),
    )


def _hang(case: Case) -> Vote:
    silent = _silent_ranks(case)
    several = len(silent) > 1
    return Vote(
        "only consequences", Conclusion.NOT_OOM, 0.55,
        (Say.ONLY_COLLECTIVE_TIMEOUTS(),
         *((Say.RANKS_PRINTED_NO_TIMEOUT(
             s="s" if several else "", silent=", ".join(map(str, silent[:8])), are="are" if several else "is",
         ),) if silent else ())),
        missing=(Say.LOGS_OF_RANKS_STAY_SILENT(), Say.ACCOUNTING_OF_EVERY_STEP()), detail=Detail.HANG,
    )


def _silent_ranks(case: Case) -> list[int]:
    world = case.story.world_size
    loud = {one.rank for one in case.story.collateral if case.reports(one, Event.NCCL)}
    loud |= {one.rank for one in case.story.candidates if one.signature not in SUSPECTED_RANKS}
    if world is None or world > 4096:
        return []
    silent = [rank for rank in range(world) if rank not in loud]
    return silent if len(silent) <= max(1, world // 4) else []
