"""Memory in other hands: whom it is worth to wait for, and whether a later look finds it free."""

from __future__ import annotations

from runbook.diagnosis.nodes.signs import Rule
from runbook.model.incident import Failure
from runbook.model.node import LEFT_BY_EPILOG, NodeAction, NodeFacts, NodeJudgement, NodeVerdict, Reach
from runbook.model.units import JobId, NodeName, Unknown
from runbook.steps.base import StepContext


def tenants_of(failure: Failure) -> dict[NodeName, tuple[JobId, ...]]:
    """Nodes that are to be waited for, by the node check, and the jobs that were found there."""
    return {
        judgement.node: jobs_of(judgement) for judgement in failure.judgements
        if judgement.verdict is NodeVerdict.OCCUPIED and judgement.node not in failure.freed_nodes
        and any(finding.action is NodeAction.WAIT_FOR_TENANT for finding in judgement.findings)
    }


def jobs_of(judgement: NodeJudgement) -> tuple[JobId, ...]:
    """The Slurm jobs of the tenants."""
    return tuple(dict.fromkeys(tenant.job for tenant in judgement.tenants if isinstance(tenant.job, str)))


def is_free(judgement: NodeJudgement, facts: NodeFacts | None, context: StepContext) -> bool:
    """Whether a look found the memory of the job's GPUs in nobody's hands. What it could not read must not be more
    than what the check could not read either."""
    if facts is not None and facts.reach_detail.startswith(LEFT_BY_EPILOG):
        return False  # the node does not answer: how it was when the job ended tells nothing of now
    if judgement.verdict in (NodeVerdict.OCCUPIED, NodeVerdict.FAULTY):
        return False
    if facts is None or facts.reach is not Reach.OK or isinstance(facts.gpus, Unknown) or judgement.hidden_bytes:
        return False
    before = next((one for one in context.failure.judgements if one.node == judgement.node), None)
    known = {(one.rule, one.gpu) for one in before.findings} if before is not None else set()
    doubts = (Rule.HIDDEN_MEMORY, Rule.PROCESS_UNKNOWN, Rule.NOT_READ)
    return not any(one.rule in doubts and (one.rule, one.gpu) not in known for one in judgement.findings)
