"""The decision: rules are asked in order, the first decisive answer leads, the others are runners-up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from runbook.diagnosis import co_tenant_rules, growth, message_rules, signature_rules, undecided_rules
from runbook.diagnosis.case import LINE_RULES, RULES, Case, Conclusion, Vote, build_case
from runbook.model.diagnosis import Detail, Diagnosis, Hypothesis, Kinds
from runbook.model.job import JobRecord
from runbook.model.log import LogStory, Meanings
from runbook.model.sentences.of_diagnosis import Say
from runbook.model.units import NodeVerdict

if TYPE_CHECKING:
    from runbook.model.node import NodeFacts, NodeJudgement

_RULES_STAND_IN = (co_tenant_rules, growth, message_rules, signature_rules, undecided_rules)
"""Importing them registers the rules, which kinds.yaml puts in order."""
_RUNNERS_UP = 4
_QUOTED_AT_MOST = 0.5
"""What words are worth that may be a quotation."""
_BY_SHAPE_AT_MOST = 0.7
"""What figures are worth whose roles only the words around them give: no release's format is known for them."""


def diagnose(
    story: LogStory,
    *,
    job: JobRecord | None,
    meanings: Meanings,
    judgements: Sequence[NodeJudgement] = (),
    facts: Sequence[NodeFacts] = (),
    settings: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Judge one failure. `meanings` are of the playbook by whose documents the logs were read; `settings` are the
    template's parameters in force, with "pytorch_version" and `LOCAL_PROCESSES` where known.

    Confidences of one diagnosis sum to at most 1. What could not be seen is named in `missing`."""
    case = build_case(story, job, judgements, facts, settings or {}, meanings)
    votes: list[Vote] = []
    for name in meanings.kinds.rules:
        vote = RULES[name](case)
        votes += vote if isinstance(vote, tuple) else (vote,) if vote is not None else ()
    if not votes:
        votes = [Vote("no rule applies", Conclusion.UNDETERMINED, 0.5, (Say.EVIDENCE_DOES_NOT_DECIDE(),))]
    return _rank(case, votes)


def unknown_names(kinds: Kinds) -> Iterator[tuple[str, str]]:
    """Names on which a playbook's kinds.yaml and this room do not agree, each with what is wrong with it."""
    for name in kinds.rules:
        if name not in RULES:
            yield name, f"rules: there is no rule {name!r}; known are: {', '.join(RULES)}"
    for name in RULES:
        if name not in kinds.rules:
            yield name, f"rules: {name!r} is missing, so it would never be asked"
    for kind in kinds.values():
        if kind.entry.rule and kind.entry.rule not in LINE_RULES:
            yield kind.entry.rule, f"{kind}.rule: there is no rule {kind.entry.rule!r} for a line"
    for found in Conclusion:
        if found not in kinds:
            yield found, f"kinds: {found.value!r} is not described, and a rule finds it"


def _rank(case: Case, votes: Sequence[Vote]) -> Diagnosis:
    """The first decisive vote leads; without one, the most confident. The rest share what confidence is left."""
    leading = next((vote for vote in votes if vote.decisive), None)
    if leading is None:
        strongest = max(votes, key=lambda vote: vote.confidence)
        first = next(vote for vote in votes if vote.kind == strongest.kind)
        leading = replace(first, confidence=strongest.confidence, missing=strongest.missing or first.missing)
    others: dict[str, Vote] = {}
    for vote in votes:
        if vote.kind != leading.kind and vote.kind != Conclusion.UNDETERMINED:
            known = others.get(vote.kind)
            if known is None or vote.confidence > known.confidence:
                others[vote.kind] = vote
    leading = _perhaps_quoted(case, leading)
    if case.root is not None and case.meant.by_figures and case.meanings.of(case.root.signature).general:
        leading = replace(leading, confidence=min(leading.confidence, _BY_SHAPE_AT_MOST))
    occupied = others.get(Conclusion.CO_TENANT)
    if leading.kind == Conclusion.CUDA_CONTEXT_OR_DRIVER and occupied is not None and occupied.confidence >= 0.75:
        others.pop(Conclusion.CO_TENANT)
        others[leading.kind] = leading
        leading = occupied
    supporting = [vote for vote in votes if vote.kind == leading.kind and vote.rule != leading.rule]
    left = max(0.0, 0.98 - leading.confidence)
    weight = sum(vote.confidence for vote in others.values())
    scale = min(1.0, left / weight) if weight else 0.0
    runners = sorted(
        (
            Hypothesis(
                case.kinds.of(vote.kind), round(vote.confidence * scale, 3), vote.reasons, vote.against, vote.missing,
                vote.detail,
            )
            for vote in others.values()
        ),
        key=lambda one: -one.confidence,
    )[:_RUNNERS_UP]
    best = Hypothesis(
        case.kinds.of(leading.kind), round(leading.confidence, 3), leading.reasons,
        (*leading.against, *(runner.as_objection for runner in runners[:1] if runner.reasons)),
        leading.missing, leading.detail or next((vote.detail for vote in supporting if vote.detail), Detail.NONE),
    )
    best = _with_what_is_missing(case, best)
    rules = tuple(dict.fromkeys(vote.rule for vote in votes))
    if supporting and leading.kind != Conclusion.UNDETERMINED:
        more = tuple(reason for vote in supporting for reason in vote.reasons if reason not in best.reasons)
        best = replace(best, reasons=(*best.reasons, *more[:2]))
    return Diagnosis(best, tuple(one for one in runners if one.confidence >= 0.005), rules)


def _perhaps_quoted(case: Case, leading: Vote) -> Vote:
    """Words inside a sentence say little, unless Slurm's accounting says the same of the host's memory."""
    root = case.root
    if root is None or not root.quoted or (leading.kind == Conclusion.HOST_OOM and case.killed_steps()):
        return leading
    if leading.rule == "node check: faulty":
        return leading
    return replace(
        leading, confidence=min(leading.confidence, _QUOTED_AT_MOST),
        against=(Say.WORDS_INSIDE_A_SENTENCE(), *leading.against),
    )


def _with_what_is_missing(case: Case, best: Hypothesis) -> Hypothesis:
    """Name what was not seen: a node that did not answer is never a clean node."""
    missing = list(best.missing)
    judgement = case.judgement()
    if judgement is not None and judgement.verdict is NodeVerdict.UNKNOWN:
        why = "; ".join((*judgement.missing, *judgement.reasons)[:2]) or Say.IT_DID_NOT_ANSWER()
        missing.append(Say.STATE_OF_UNCHECKED_NODE(node=judgement.node, why=why))
    root = case.root
    if root is not None and root.rank is None:
        missing.append(Say.WHICH_RANK_FAILED())
    if root is not None and root.node is None and case.story.world_size != 1:
        missing.append(Say.ON_WHICH_NODE())
    return replace(best, missing=tuple(dict.fromkeys(missing)))
