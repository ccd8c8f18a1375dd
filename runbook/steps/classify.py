"""Classify: the log's story, the node's facts and the template together give a ranked diagnosis."""

from __future__ import annotations

from dataclasses import replace

from runbook.diagnosis import LOCAL_PROCESSES, diagnose
from runbook.model.diagnosis import Diagnosis, Hypothesis
from runbook.model.diagnosis import DiagnosisOutcome as Outcome
from runbook.model.incident import Failure
from runbook.model.log import LogStory
from runbook.model.node import NodeVerdict
from runbook.model.units import NodeName
from runbook.report.vocabulary.sentences import in_words
from runbook.steps.shared.base import StepContext, StepResult


def run(context: StepContext) -> StepResult:
    """Fill `failure.diagnosis`, and name the nodes that the next attempt must avoid."""
    failure = context.failure
    story = failure.story or LogStory(root_cause=None)
    diagnosis = diagnose(
        story, job=failure.job, meanings=context.playbook.signatures.meanings, judgements=failure.judgements,
        facts=failure.nodes,
        settings={**context.template.values, LOCAL_PROCESSES: str(context.template.local_processes)},
    )
    failure = replace(failure, diagnosis=diagnosis)
    avoid = (*context.incident.excluded_nodes, *_nodes_to_avoid(failure, diagnosis.best))
    incident = replace(context.incident, failure=failure, excluded_nodes=tuple(dict.fromkeys(avoid)))
    if incident.original is not None and incident.original.job.id == failure.job.id:
        incident = replace(incident, original=failure)
    if incident.attempts and incident.attempts[-1].job == failure.job.id:
        last = replace(incident.attempts[-1], diagnosis=diagnosis, story=failure.story)
        incident = replace(incident, attempts=(*incident.attempts[:-1], last))
    best = diagnosis.best
    outcome = best.kind.entry.outcome
    if outcome in (Outcome.NOT_OOM, Outcome.UNDETERMINED):
        incident = replace(incident, conclusion=_why_no_further(diagnosis))
    return StepResult(outcome, incident, f"{best.kind.entry.named}, confidence {best.confidence:.2f}")


def _nodes_to_avoid(failure: Failure, best: Hypothesis) -> list[NodeName]:
    avoid = [judgement.node for judgement in failure.judgements if judgement.verdict is NodeVerdict.FAULTY]
    if best.kind.entry.outcome is Outcome.CO_TENANT:
        avoid += [
            judgement.node for judgement in failure.judgements
            if judgement.verdict is NodeVerdict.OCCUPIED and judgement.node not in failure.freed_nodes
        ]
        cause = failure.story.root_cause if failure.story else None
        own = failure.job.own_node(cause.node) if cause is not None and cause.node else None
        if not avoid and own is not None and own not in failure.freed_nodes:
            # The message itself named the other process; the node check did not see it any more.
            avoid.append(own)
    return avoid


def _why_no_further(diagnosis: Diagnosis) -> str:
    best = diagnosis.best
    reason = in_words(best.reasons[0]) if best.reasons else "the evidence does not decide"
    missing = f" What would settle it: {'; '.join(map(in_words, best.missing))}." if best.missing else ""
    return f"The cause is {best.kind.entry.named}: {reason}.{missing}".replace("..", ".")
