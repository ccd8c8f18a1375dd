"""End leaked processes that hold the job's GPUs: only where the inventory allows it and two looks agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from runbook.diagnosis.nodes import SECOND_LOOK_S, LeakContext, end_refused, node_in_use, second_look_refused
from runbook.errors import NotFound
from runbook.model.incident import Act
from runbook.model.job import MARK, NodeState
from runbook.model.node import EndedHow, GpuProcess, NodeFacts, NodeJudgement, NodeVerdict, ProcessEnd, Reach, Reports
from runbook.model.units import JobId, NodeName, Unknown, in_gib
from runbook.steps.check_node import SETTLE_S, look
from runbook.steps.shared.base import Proposal, StepContext, StepResult, with_act, with_notes
from runbook.steps.shared.nodes import found_jobs, is_free, live_jobs

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL. A training program that is asked to end does so at once, or never."""
_RELEASE_S = 1.0
"""The driver takes an ended process's memory back within moments."""


class Outcome(StrEnum):
    FREED = "freed"
    LEFT = "left"
    STILL_THERE = "still_there"
    PLANNED = "planned"
    DECLINED = "declined"


@dataclass(frozen=True, slots=True)
class _Leak:
    """A process that may be ended as far as the first look goes."""

    node: NodeName
    process: GpuProcess
    seen_s: float | None

    @property
    def key(self) -> str:
        """Names this process and no later one of its number."""
        return f"{self.node}:{self.process.pid}:{self.process.start_ticks}"

    @property
    def named(self) -> str:
        return f"process {self.process.pid} on {self.node}"

    @property
    def described(self) -> str:
        held = self.process.used_bytes
        parts = (
            self.process.name[:60] or "unnamed",
            f"of {self.process.owner}",
            f"{in_gib(held, 1)} of GPU memory" if not isinstance(held, Unknown) else "",
            f"{self.process.age_s / 3600:.1f} h old" if not isinstance(self.process.age_s, Unknown) else "",
        )
        told = ", ".join(part for part in parts if part)
        return f"{self.named} ({told}), which Slurm job {self.process.job} left behind when it ended"


def token_of(incident: str, leak: _Leak) -> str:
    """The mark of one act: which process of which node, by its start."""
    return f"{MARK}{incident}:end:{leak.key}"


def propose(context: StepContext) -> Proposal | None:
    """The processes that two looks would have to agree on. Nothing to approve where none may be ended."""
    leaks, _ = _leaks(context)
    if not leaks:
        return None
    return Proposal(
        "end_process", ", ".join(leak.named for leak in leaks), "end " + "; ".join(leak.described for leak in leaks),
        token=", ".join(token_of(context.incident.id, leak) for leak in leaks),
    )


def run(context: StepContext) -> StepResult:
    """Look a second time, end what is still just as it was, and look whether the memory is free. Safe to repeat: a
    process that is gone is not ended, and one that an earlier, killed run signalled is told as such."""
    leaks, why_not = _leaks(context)
    if not leaks:
        return StepResult(
            Outcome.LEFT, with_notes(context.incident, *why_not),
            "; ".join(why_not) or "no process of an ended job holds the memory",
        )
    clock = context.ports.clock
    names = tuple(dict.fromkeys(leak.node for leak in leaks))
    since_s = min((clock.now() - leak.seen_s for leak in leaks if leak.seen_s is not None), default=0.0)
    if since_s <= SECOND_LOOK_S:
        context.tell(f"looks again at {', '.join(names)} before anything is ended")
        clock.sleep(SECOND_LOOK_S + 1 - max(0.0, since_s))
    second = _Look.take(context, names)
    done = [_once(context, leak, second) for leak in leaks]
    signalled = any(one.signalled for one in done)
    if signalled:
        clock.sleep(_RELEASE_S)
    last = _Look.take(context, names) if signalled else second
    freed = tuple(one.node for one in last.judgements if is_free(one, _fact(last.facts, one.node), context))
    failure = replace(context.failure, freed_nodes=tuple(dict.fromkeys((*context.failure.freed_nodes, *freed))))
    left = [*why_not, *(one.left for one in done if one.left)]
    stuck = [one.stuck for one in done if one.stuck]
    incident = with_notes(replace(context.incident, failure=failure), *left, *stuck)
    for one in done:
        incident = with_act(incident, one.act) if one.act is not None else incident
    taken = [one for one in last.judgements if one.node not in freed]
    held = [f"{one.node}: {(one.reasons or one.missing or ('',))[0]}" for one in taken]
    if not held:
        return StepResult(
            Outcome.FREED, incident, "; ".join((f"the memory of {', '.join(freed)} is free again", *left))
        )
    if not signalled:
        return StepResult(Outcome.LEFT, incident, "; ".join(left) or "nothing was ended")
    why = "; ".join(dict.fromkeys((*stuck, *held)))
    return StepResult(Outcome.STILL_THERE, incident, f"the memory is not free: {why}")


@dataclass(frozen=True, slots=True)
class _Look:
    """What the nodes and the scheduler say at one moment."""

    taken_s: float
    states: tuple[NodeState, ...]
    facts: tuple[NodeFacts, ...]
    judgements: tuple[NodeJudgement, ...]
    live: frozenset[JobId] | None

    @staticmethod
    def take(context: StepContext, names: Sequence[NodeName]) -> _Look:
        states, facts, judgements = look(context, names)
        live = live_jobs(found_jobs(context.ports.scheduler, facts))
        return _Look(context.ports.clock.now(), states, facts, judgements, live)


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of one process: an act, or why it was left; and what keeps it there all the same."""

    act: Act | None = None
    left: str = ""
    stuck: str = ""
    signalled: bool = False


def _once(context: StepContext, leak: _Leak, second: _Look) -> _Done:
    """End the process if the second look finds it just as the first did."""
    clock = context.ports.clock
    here = _fact(second.facts, leak.node)
    if here is None or here.reach is not Reach.OK or isinstance(here.gpus, Unknown):
        return _Done(left=f"{leak.named} was left: the second look did not see the node's GPUs")
    found = _process(here, leak.process.pid)
    if found is None:
        if not _begun(context, leak):
            return _Done(left=f"{leak.named} had ended by itself before the second look")
        result = "gone: a run of this tool that was killed had signalled it, or was about to"
        return _Done(_act(context, leak, clock.now(), result))
    looked_s = here.checked_at_s if here.checked_at_s is not None else second.taken_s
    reasons = second_look_refused(leak.process, found, looked_s - (leak.seen_s or looked_s))
    reasons += end_refused(found, _around(context, second.live, second.states, here))
    if reasons:
        return _Done(left=f"{leak.named} was left: {'; '.join(dict.fromkeys(reasons))}")
    ended = _end(context, leak)
    if ended.how is EndedHow.REFUSED:
        return _Done(left=f"{leak.named} was left: {ended.detail}")
    stays = ended.how in (EndedHow.STILL_THERE, EndedHow.UNKNOWN)
    act = _act(context, leak, clock.now(), f"{ended.how.value.replace('_', ' ')}: {ended.detail}")
    return _Done(act, stuck=f"{leak.named}: {ended.detail}" if stays else "", signalled=True)


def _around(
    context: StepContext, live: frozenset[JobId] | None, states: Sequence[NodeState], facts: NodeFacts
) -> LeakContext:
    state = next((one for one in states if one.name == facts.node), None)
    return LeakContext(
        context.settings.policy.may_end_leaked_processes, live, state, facts.partial_view,
        context.playbook.node.rules.helpers,
    )


def _leaks(context: StepContext) -> tuple[list[_Leak], list[str]]:
    """What the check found that may be ended, by what the scheduler says now; and why other leaked processes stay."""
    failure = context.failure
    occupied = [one for one in failure.judgements if one.verdict is NodeVerdict.OCCUPIED and _has_leak(context, one)]
    if not occupied:
        return [], []
    scheduler = context.ports.scheduler
    _settle(context, tuple(judgement.node for judgement in occupied))
    live = live_jobs(found_jobs(scheduler, failure.nodes))
    leaks: list[_Leak] = []
    why_not: list[str] = []
    for judgement in occupied:
        facts = _fact(failure.nodes, judgement.node)
        if facts is None:
            continue
        around = _around(context, live, scheduler.nodes((judgement.node,)), facts)
        for process in {tenant.pid: tenant for tenant in judgement.tenants}.values():
            leak = _Leak(judgement.node, process, facts.checked_at_s)
            reasons = end_refused(process, around)
            if not reasons:
                leaks.append(leak)
            elif isinstance(process.job, str) and (live is None or process.job not in live):
                why_not.append(f"{leak.described}, was left: {'; '.join(reasons)}")
    return leaks, why_not


def _settle(context: StepContext, names: tuple[NodeName, ...]) -> None:
    """For moments after its end the cancelled job still counts on its nodes: that is waited for, other jobs are not."""
    clock, job = context.ports.clock, context.failure.job
    now_s, began_s = clock.now(), clock.elapsed()
    if not context.settings.policy.may_end_leaked_processes or now_s - (job.end_time_s or now_s) > SETTLE_S:
        return
    while any(node_in_use(state) for state in context.ports.scheduler.nodes(names)):
        if clock.elapsed() - began_s >= SETTLE_S:
            return
        context.tell(f"waits until Slurm has cleaned up after job {job.id}")
        clock.sleep(1.0)


def _has_leak(context: StepContext, judgement: NodeJudgement) -> bool:
    return any(Reports.LEAK in context.playbook.node.rules.reports(finding.rule) for finding in judgement.findings)


def _fact(facts: Sequence[NodeFacts], node: NodeName) -> NodeFacts | None:
    return next((fact for fact in facts if fact.node == node), None)


def _process(facts: NodeFacts, pid: int) -> GpuProcess | None:
    gpus = () if isinstance(facts.gpus, Unknown) else facts.gpus
    listed = (gpu.processes for gpu in gpus if not isinstance(gpu.processes, Unknown))
    return next((process for processes in listed for process in processes if process.pid == pid), None)


def _end(context: StepContext, leak: _Leak) -> ProcessEnd:
    token = token_of(context.incident.id, leak)
    context.tell(f"ends {leak.named}: SIGTERM, and SIGKILL after {GRACE_S:.0f} s")
    # A process carries no token of ours: what is about to be done is written down first, for a run that is killed.
    context.ports.folder.write_file(context.incident.id, _intent(leak), f"{token}\n".encode())
    return context.ports.nodes.end_process(
        leak.node, leak.process, spared=context.playbook.node.rules.helpers, grace_s=GRACE_S
    )


def _begun(context: StepContext, leak: _Leak) -> bool:
    try:
        written = context.ports.folder.read_file(context.incident.id, _intent(leak))
    except NotFound:
        return False
    return written.decode("utf-8", "replace").strip() == token_of(context.incident.id, leak)


def _intent(leak: _Leak) -> str:
    return f"acts/end-{leak.key.replace(':', '-')}"


def _act(context: StepContext, leak: _Leak, time_s: float, result: str) -> Act:
    process = leak.process
    target = f"{process.pid} on {leak.node} ({process.name[:60]}, {process.owner}, job {process.job})"
    return Act("end_process", target, time_s, token=token_of(context.incident.id, leak), result=result)
