"""Escalate: tell a person what is known, what is not, and what is asked of them."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from runbook.model.incident import Incident, IncidentState, Milestone
from runbook.model.node import GpuProcess, NodeAction, NodeVerdict
from runbook.model.units import in_gib
from runbook.report.vocabulary.sentences import in_words
from runbook.steps.shared.base import StepContext, StepResult


class Outcome(StrEnum):
    TOLD = Milestone.TOLD.value


_ADVICE = {
    NodeAction.WAIT_FOR_TENANT: "Wait for the tenant, or talk to its owner,",
    NodeAction.REPORT_TO_OWNER: "Tell the owner of the process",
    NodeAction.END_LEAKED_PROCESS: "Look again, and end the leaked process",
    NodeAction.RESET_WHEN_IDLE: "Reset the GPU once it is idle",
}
"""For a person, by what is to be done about a finding."""


def run(context: StepContext) -> StepResult:
    """Set the state and the list of things to do; the engine tells people of the state (notifications.py)."""
    incident = context.incident
    conclusion = incident.conclusion or _conclusion(incident)
    to_do = tuple(dict.fromkeys((*incident.to_do, *_to_do(incident))))
    incident = replace(incident, state=IncidentState.ESCALATED, conclusion=conclusion, to_do=to_do)
    return StepResult(Outcome.TOLD, incident, "a person is needed")


def _tenant(tenant: GpuProcess) -> str:
    owner = f" of {tenant.owner}" if isinstance(tenant.owner, str) else ""
    held = f", {in_gib(tenant.used_bytes, 1)}" if isinstance(tenant.used_bytes, int) else ""
    job = f", Slurm job {tenant.job}" if isinstance(tenant.job, str) else ""
    return f"pid {tenant.pid} ({tenant.name or 'unnamed'}){owner}{held}{job}"


def _conclusion(incident: Incident) -> str:
    last = incident.visits[-2] if len(incident.visits) > 1 else None
    if last is not None and last.outcome == "declined":
        return f"A person declined: {last.summary or last.box}."
    return f"The tool stopped at {last.box if last else 'the start'}: {last.summary if last else 'nothing is known'}."


def _to_do(incident: Incident) -> list[str]:
    failure = incident.failure
    to_do: list[str] = []
    if failure is None:
        return to_do
    for judgement in failure.judgements:
        if judgement.node in failure.freed_nodes:
            continue
        to_do += [
            f"{_ADVICE[finding.action]} on {judgement.node}: {finding.text}."
            for finding in judgement.findings if finding.action in _ADVICE and not judgement.drain
        ]
        told = judgement.findings and not any(one.action is NodeAction.EXCLUDE for one in judgement.findings)
        if judgement.verdict is NodeVerdict.OCCUPIED and judgement.tenants and not told:
            who = "; ".join(_tenant(tenant) for tenant in judgement.tenants)
            to_do.append(f"See to the co-tenant on {judgement.node}: {who}.")
        if judgement.verdict is NodeVerdict.UNKNOWN:
            reason = (judgement.missing or judgement.reasons or ("no reason given",))[0]
            to_do.append(f"Check {judgement.node} by hand: {reason}.")
    unseen = any(judgement.verdict is NodeVerdict.UNKNOWN for judgement in failure.judgements)
    if failure.diagnosis and failure.diagnosis.best.missing and not unseen:
        to_do.append("Get what is missing: " + "; ".join(map(in_words, failure.diagnosis.best.missing)) + ".")
    if not failure.job.state.job_class.ended:
        to_do.append(f"Job {failure.job.id} still holds its nodes: `scancel {failure.job.id}` when it is not needed.")
    if incident.trigger != "files":
        to_do.append(f"When the cause is mended: `runbook resume {incident.id}` looks again and goes on.")
    return to_do
