"""Rules for what no line of the log settles: messages without figures, Slurm's word alone, no failure at all."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.diagnosis.case import Case, Conclusion, Vote, rule, size
from runbook.diagnosis.growth import host_leaks, static_or_grown
from runbook.model.diagnosis import Detail, Died
from runbook.model.job import JobClass
from runbook.model.log import SUSPECTED_RANKS, Collateral, DerivedSignature, Event, Finding, FrameworkRole

_BY_SIGKILL = "SIGKILL"
_BY_SIGTERM = "SIGTERM"


@rule
def without_figures(case: Case) -> Vote | None:
    """A GPU out-of-memory message whose figures are cut or were never printed."""
    root, figures = case.root, case.figures
    if root is None or not case.meant.by_figures or figures.available_bytes is not None:
        return None
    tried = f" It asked for {size(figures.tried)}." if figures.tried is not None else ""
    detail, when = static_or_grown(case)
    return Vote(
        "message without figures", Conclusion.TRUE_OOM, root.firmness if root.firmness is not None else 0.5,
        (f"{root.signature} says that the device ran out of memory, but not how much was free or reserved.{tried}",
         "Without these figures a shortage cannot be told from fragmentation or another process; shortage is the more "
         "common.", when),
        missing=("the figures of the message (torchelastic's error.json has the whole text), or a memory snapshot",),
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
        ("The traceback is the inference engine's: its share, most of it cache, counts as allocated, and a smaller "
         "share leaves more for its activations and graphs.",), decisive=False, detail=Detail.LOWER_SHARE,
    )


@rule
def by_accounting(case: Case) -> Vote | None:
    """Slurm says that the kernel killed for memory, and the logs say something else, or nothing."""
    steps = case.killed_steps()
    root = case.root
    if not steps or case.meant.died is Died.MAIN_MEMORY:
        return None
    detail = Detail.LEAK if host_leaks(case) else Detail.CGROUP
    told = f"Slurm's accounting says OUT_OF_MEMORY for {', '.join(steps)}"
    not_the_card = case.kinds.of(Conclusion.HOST_OOM).entry.reason
    helper = "The kernel counts helper processes too: a rank need not have been the victim (R-24)."
    missing = ("the kernel log of the node, which names the process",)
    if root is None:
        return Vote(
            "Slurm accounting", Conclusion.HOST_OOM, 0.85, (f"{told}; the logs name no other failure.", not_the_card),
            (helper,), missing, detail=detail,
        )
    if case.reports(root, Event.EXCEPTION):
        return Vote(
            "Slurm accounting", Conclusion.HOST_OOM, 0.65,
            (f"{told}; the log's only exception may be what a killed process left behind.", not_the_card),
            (helper,), missing, detail=detail,
        )
    return Vote(
        "Slurm accounting", Conclusion.HOST_OOM, 0.3,
        (f"{told}, but the first failure of the log is another: a killed helper, or what followed.",), (helper,),
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
            (f"The job's state is {state.name}, and its logs show no failure of their own.",),
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
            (f"{ended.excerpt[:1].upper()}{ended.excerpt[1:]}; what it said is not in the logs.",),
            missing=("the output of the rank that ended first", "Slurm's accounting of every step"),
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
            "The logs show processes that ended, and no line that any signature knows tells why." if followed
            else "The logs hold no failure that any signature knows.",
        ),
        missing=("the logs of all ranks", "Slurm's accounting of every step"),
    ),)


def _is(one: Finding | Collateral, what: DerivedSignature) -> bool:
    return one.signature == what


def _ran_to_its_end(case: Case, hurt: bool) -> Vote | None:
    """The training did all its steps, by its counter or its trainer's words. `hurt`: somebody lost a peer."""
    progress = case.story.progress
    if progress.last_step is not None and progress.last_step == progress.total_steps:
        told = f"The logs reach the last step ({progress.last_step} of {progress.total_steps}) and show no failure."
    elif any(one.detail == Detail.FINISHED for one in case.story.harmless):
        told = "The trainer says that it reached the end that was set, and the logs show no failure."
    else:
        return None
    if case.job is not None and case.job.state.job_class is JobClass.FAILED:
        return Vote(
            "failed behind its end", Conclusion.UNDETERMINED, 0.6,
            (told, f"Slurm says {case.job.state.name} all the same, so what failed came after the training: saving, a "
             "last evaluation, or a process that ended badly."),
            missing=("the logs of all ranks", "Slurm's accounting of every step"),
        )
    return Vote(
        "ran to its end", Conclusion.NOT_OOM, 0.55 if hurt else 0.75, (told,),
        missing=("the job's state from Slurm",), detail=Detail.FINISHED,
    )


def _stopped(case: Case, followed: Sequence[Finding | Collateral]) -> Vote | None:
    """Cancelled by somebody: besides Slurm's line there is only what cancelling itself does, to all ranks alike."""
    story = case.story
    if any("KeyboardInterrupt" in one.excerpt for one in story.candidates):
        return Vote(
            "interrupted", Conclusion.NOT_OOM, 0.65,
            ("The only exception is KeyboardInterrupt: a person, or the launcher, sent SIGINT.",),
            missing=("who sent the signal",), detail=Detail.STOPPED,
        )
    if all(case.reports(one, Event.CLOSING, Event.BY_CANCELLING) for one in followed) and any(
        "death signal" in one.excerpt for one in story.candidates
    ):
        return Vote(
            "signalled from outside", Conclusion.NOT_OOM, 0.6,
            ("The launcher received a signal from outside and shut its workers down; nothing had failed before.",),
            ("The failure of another node, whose log is not here, ends in the same signal.",),
            ("who sent the signal: Slurm's accounting, and the logs of the job's other nodes",), detail=Detail.STOPPED,
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
        ("Slurm cancelled the step, and the logs hold nothing but what cancelling does to all ranks alike.",),
        ("A step is cancelled in the same words after a failure that the logs do not show.",),
        ("who cancelled it: Slurm's accounting (State) and the controller's log",),
        detail=Detail.STOPPED,
    )


def _lost_rank(connection: bool) -> tuple[Vote, ...]:
    """A connection was lost, or else CUDA failed inside NCCL, and no line says why."""
    missing = ("the logs of the rank that went away", "Slurm's accounting of every step", "the kernel log of its node")
    if not connection:
        return (Vote(
            "R-19 no word of memory", Conclusion.NOT_OOM, 0.55,
            ("NCCL reports a failure of CUDA, and neither its last error nor a warning speaks of memory.",),
            missing=missing,
        ),)
    return (
        Vote(
            "only consequences", Conclusion.UNDETERMINED, 0.6,
            ("Ranks lost the connection to another one, and no line says why that one went away.",), missing=missing,
        ),
        Vote(
            "only consequences", Conclusion.HOST_OOM, 0.2,
            ("A rank that goes away without a word may have been killed, and the OOM killer is one that does so.",),
            ("Nothing in the log speaks of memory.",), missing, decisive=False,
        ),
    )


def _killed() -> tuple[Vote, ...]:
    """R-22."""
    missing = ("Slurm's accounting (State, MaxRSS, ReqMem)", "memory.events of the step's cgroup",
               "the kernel log of the node")
    return (
        Vote(
            "R-22 SIGKILL of unknown sender", Conclusion.UNDETERMINED, 0.6,
            ("A process was killed by SIGKILL, and nothing says by whom: the OOM killer, scancel, --kill-on-bad-exit "
             "and torchrun's teardown send the same signal.",), missing=missing,
        ),
        Vote(
            "R-22 SIGKILL of unknown sender", Conclusion.HOST_OOM, 0.3,
            ("SIGKILL without a sender in the log is what the kernel's OOM killer leaves behind.",),
            ("Nothing in the log speaks of memory.",), missing, decisive=False,
        ),
    )


def _hang(case: Case) -> Vote:
    silent = _silent_ranks(case)
    several = len(silent) > 1
    return Vote(
        "only consequences", Conclusion.NOT_OOM, 0.55,
        ("The logs hold collective timeouts and no word of memory: a hang or a lost rank.",
         *((f"Rank{'s' if several else ''} {', '.join(map(str, silent[:8]))} printed no timeout and "
            f"{'are' if several else 'is'} the first suspect.",) if silent else ())),
        missing=("the logs of the ranks that stay silent", "Slurm's accounting of every step"), detail=Detail.HANG,
    )


def _silent_ranks(case: Case) -> list[int]:
    world = case.story.world_size
    loud = {one.rank for one in case.story.collateral if case.reports(one, Event.NCCL)}
    loud |= {one.rank for one in case.story.candidates if one.signature not in SUSPECTED_RANKS}
    if world is None or world > 4096:
        return []
    silent = [rank for rank in range(world) if rank not in loud]
    return silent if len(silent) <= max(1, world // 4) else []
