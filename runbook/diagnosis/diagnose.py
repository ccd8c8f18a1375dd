"""The decision: rules are asked in order, the first decisive answer leads, the others are runners-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runbook.diagnosis import co_tenant_rules, message_rules, signature_rules, undecided_rules
from runbook.diagnosis.case import Case, Vote, build_case
from runbook.diagnosis.growth import host_leak, leak
from runbook.diagnosis.message_rules import fragmentation, not_fragmentation
from runbook.model.diagnosis import Detail, Diagnosis, Hypothesis, Kind
from runbook.model.job import JobRecord
from runbook.model.log import LogStory
from runbook.model.node import NodeFacts, NodeJudgement, NodeVerdict

Rule = Callable[[Case], Vote | tuple[Vote, ...] | None]
"""One vote, none, or several: a reading and what else the same evidence may mean."""

RULES: tuple[Rule, ...] = (
    signature_rules.faulty_node,
    message_rules.absurd_size,
    signature_rules.by_signature,
    signature_rules.engine_capture,
    message_rules.impossible,
    message_rules.limit,
    message_rules.free_enough,
    co_tenant_rules.checked_tenant,
    co_tenant_rules.listed_processes,
    message_rules.private_pools,
    message_rules.outside_allocator,
    co_tenant_rules.unattributed,
    leak,
    message_rules.without_unallocated,
    message_rules.exhausted,
    message_rules.edge_of_free,
    fragmentation,
    not_fragmentation,
    undecided_rules.without_figures,
    undecided_rules.engine_process,
    undecided_rules.by_accounting,
    host_leak,
    undecided_rules.nothing_found,
)
"""In the order of decision. Sanity first, then who else holds memory, then what one message allows to compute."""

_RUNNERS_UP = 4
_QUOTED_AT_MOST = 0.5
"""What words are worth that may be a quotation."""


def diagnose(
    story: LogStory,
    *,
    job: JobRecord | None,
    judgements: Sequence[NodeJudgement] = (),
    facts: Sequence[NodeFacts] = (),
    settings: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Judge one failure. `settings` are the template's parameters in force, with "pytorch_version" where known.

    Confidences of one diagnosis sum to at most 1. What could not be seen is named in `missing`."""
    case = build_case(story, job, judgements, facts, settings or {})
    votes: list[Vote] = []
    for rule in RULES:
        vote = rule(case)
        votes += vote if isinstance(vote, tuple) else (vote,) if vote is not None else ()
    if not votes:
        votes = [Vote("no rule applies", Kind.UNDETERMINED, 0.5, ("The evidence does not decide.",))]
    return _rank(case, votes)


def _rank(case: Case, votes: Sequence[Vote]) -> Diagnosis:
    """The first decisive vote leads; without one, the most confident. The rest share what confidence is left."""
    leading = next((vote for vote in votes if vote.decisive), None)
    if leading is None:
        strongest = max(votes, key=lambda vote: vote.confidence)
        first = next(vote for vote in votes if vote.kind is strongest.kind)
        leading = replace(first, confidence=strongest.confidence, missing=strongest.missing or first.missing)
    others: dict[Kind, Vote] = {}
    for vote in votes:
        if vote.kind is not leading.kind and vote.kind is not Kind.UNDETERMINED:
            known = others.get(vote.kind)
            if known is None or vote.confidence > known.confidence:
                others[vote.kind] = vote
    leading = _perhaps_quoted(case, leading)
    occupied = others.get(Kind.CO_TENANT)
    if leading.kind is Kind.CUDA_CONTEXT_OR_DRIVER and occupied is not None and occupied.confidence >= 0.75:
        others.pop(Kind.CO_TENANT)
        others[leading.kind] = leading
        leading = occupied
    supporting = [vote for vote in votes if vote.kind is leading.kind and vote.rule != leading.rule]
    left = max(0.0, 0.98 - leading.confidence)
    weight = sum(vote.confidence for vote in others.values())
    scale = min(1.0, left / weight) if weight else 0.0
    runners = sorted(
        (
            Hypothesis(
                vote.kind, round(vote.confidence * scale, 3), vote.reasons, vote.against, vote.missing, vote.detail
            )
            for vote in others.values()
        ),
        key=lambda one: -one.confidence,
    )[:_RUNNERS_UP]
    best = Hypothesis(
        leading.kind, round(leading.confidence, 3), leading.reasons,
        (*leading.against, *(runner.as_objection for runner in runners[:1] if runner.reasons)),
        leading.missing, leading.detail or next((vote.detail for vote in supporting if vote.detail), Detail.NONE),
    )
    best = _with_what_is_missing(case, best)
    rules = tuple(dict.fromkeys(vote.rule for vote in votes))
    if supporting and leading.kind is not Kind.UNDETERMINED:
        more = tuple(reason for vote in supporting for reason in vote.reasons if reason not in best.reasons)
        best = replace(best, reasons=(*best.reasons, *more[:2]))
    return Diagnosis(best, tuple(one for one in runners if one.confidence >= 0.005), rules)


def _perhaps_quoted(case: Case, leading: Vote) -> Vote:
    """Words inside a sentence say little, unless Slurm's accounting says the same of the host's memory."""
    root = case.root
    if root is None or not root.quoted or (leading.kind is Kind.HOST_OOM and signature_rules.killed_steps(case)):
        return leading
    if leading.rule == "node check: faulty":
        return leading
    return replace(
        leading, confidence=min(leading.confidence, _QUOTED_AT_MOST),
        against=("The words stand inside a sentence of the job's own text, which may quote them.", *leading.against),
    )


def _with_what_is_missing(case: Case, best: Hypothesis) -> Hypothesis:
    """Name what was not seen: a node that did not answer is never a clean node."""
    missing = list(best.missing)
    judgement = case.judgement()
    if judgement is not None and judgement.verdict is NodeVerdict.UNKNOWN:
        why = "; ".join((*judgement.missing, *judgement.reasons)[:2]) or "it did not answer"
        missing.append(f"the state of {judgement.node}, whose check is unknown: {why}")
    root = case.root
    if root is not None and root.rank is None:
        missing.append("which rank failed")
    if root is not None and root.node is None and case.story.world_size != 1:
        missing.append("on which node the failing rank ran")
    return replace(best, missing=tuple(dict.fromkeys(missing)))
