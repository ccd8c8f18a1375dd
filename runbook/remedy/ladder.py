"""The ladder: the next lever for a diagnosis that fits, was not tried, and changes no experiment unasked; and how
much an incident may do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from runbook.model.checkpoint import Checkpoint
from runbook.model.diagnosis import Diagnosis, Kind
from runbook.model.job import JobRecord
from runbook.model.log import LogStory
from runbook.model.remedy import Effect, LeverUse, NoPlan, Plan, RefusedLever
from runbook.model.template import Edit, Setting, TemplateFile, condition_of
from runbook.remedy.constraints import CONSTRAINTS
from runbook.remedy.constraints.failed_job import allocator_could_have_served, request_fits_the_gpu
from runbook.remedy.edits import FUNCTIONS
from runbook.remedy.lever_context import LeverContext, Refusal, releases
from runbook.remedy.lever_document import LeverDocument, LeverRule

# The ladder: the next lever for a diagnosis that fits, was not tried, and changes no experiment unasked.

ELSEWHERE = frozenset({Kind.CO_TENANT, Kind.HARDWARE_FAULT})
"""Kinds that no template change helps: the unchanged job runs on other nodes."""

CHEAP_FIRST_FROM = 0.3
"""From this confidence in fragmentation, an allocator lever that costs no experiment goes before the working set."""
WORTH_TRYING_FROM = 0.1
"""From this confidence in fragmentation, its levers come behind those of the working set."""

_NOTHING_TO_CHANGE: dict[Kind, str] = {
    Kind.NOT_OOM: "the job did not die of memory, so no memory lever is right",
    Kind.UNDETERMINED: "what the job died of is not known, and a lever on a guess would cost a relaunch",
}


def propose(
    diagnosis: Diagnosis,
    story: LogStory,
    job: JobRecord,
    settings: Sequence[Setting],
    system: LeverDocument,
    *,
    tried: Sequence[str] = (),
    allow_training_change: bool = False,
    checkpoints: Sequence[Checkpoint] | None = None,
    templates: Sequence[TemplateFile] = (),
) -> Plan | NoPlan:
    """The next plan. A lever that was tried with the same value, or is refused, is passed over with the reason.

    `tried` holds the keys of lever uses. `templates` tell the version of the system where its spellings do not. A plan
    without uses says: relaunch the unchanged template on other nodes.
    """
    kind = diagnosis.best.kind
    if kind in ELSEWHERE:
        return Plan(uses=(), system=system.id, ladder="elsewhere")
    if kind in _NOTHING_TO_CHANGE:
        return NoPlan(_NOTHING_TO_CHANGE[kind], exhausted=False, question=_missing(diagnosis))
    known = tuple(checkpoints) if checkpoints is not None else None
    context = LeverContext(
        system, tuple(settings), story, job, diagnosis, known, releases=releases(system, settings, templates),
        files=tuple(file.path for file in templates),
    )
    ladder = system.ladder(kind, context.phase, context.role, context.detail)
    if ladder is None:
        return NoPlan(
            f"{system.title} has no ladder for {kind.value.replace('_', ' ')}", exhausted=False,
            question="What may be changed for this kind of failure?",
        )
    if not ladder.levers:
        return NoPlan(ladder.why, exhausted=False, question=ladder.question)
    refused: list[RefusedLever] = []
    for name in _rungs(context, kind, ladder.levers):
        if not _in_this_version(context, system.lever(name)):
            continue
        outcome = use_lever(context, system.lever(name), tried, allow_training_change)
        if isinstance(outcome, LeverUse):
            return Plan(uses=(outcome,), refused=tuple(refused), system=system.id, ladder=ladder.id)
        refused.append(outcome)
    return _nothing_left(refused, ladder.question)


def use_lever(
    context: LeverContext, rule: LeverRule, tried: Sequence[str], allow_training_change: bool
) -> LeverUse | RefusedLever:
    """One lever in this context, with values; or why not."""
    for conflict in rule.conflicts:
        setting = context.setting(conflict.parameter)
        if setting is None or setting.value in conflict.unless:
            continue
        if setting.value is None or not conflict.values or setting.value in conflict.values:
            shown = f"{setting.spelling} {setting.value if setting.value is not None else '(value not known)'}"
            question = f"{shown} is set: {conflict.why} May {rule.title} be used all the same?" if conflict.ask else ""
            return RefusedLever(rule.id, f"not beside {shown}: {conflict.why}", bool(question), question)
    for need in rule.needs:
        unmet = CONSTRAINTS[need.constraint](context, need.arguments)
        if unmet is not None:
            return _refused(rule, unmet)
    edits: list[Edit] = []
    remarks: list[str] = []
    for step in rule.edits:
        made = FUNCTIONS[step.function](context, context.system.parameter(step.parameter), step.arguments)
        if isinstance(made, Refusal):
            return _refused(rule, made)
        edits += made.edits
        remarks += made.remarks
        changed = {edit.parameter: edit.new for edit in made.edits if edit.new is not None}
        context = replace(context, changed={**context.changed, **changed})
    after = context.with_changes({edit.parameter: edit.new for edit in edits})
    for need in rule.holds:
        unmet = CONSTRAINTS[need.constraint](after, need.arguments)
        if unmet is not None:
            return _refused(rule, unmet)
    values = ",".join(f"{edit.parameter}={edit.new}" for edit in edits)
    key = f"{rule.id}:{values}"
    shown = "; ".join(f"{condition_of(edit.spellings[0])[0]} {edit.old or '(not set)'} → {edit.new}" for edit in edits)
    if key in tried:
        return RefusedLever(rule.id, f"tried already in this incident ({shown})")
    question = rule.consent or (
        f"May the experiment be changed ({shown})? {rule.cost}" if rule.effect is Effect.TRAINING else ""
    )
    if question and not (rule.effect is Effect.TRAINING and allow_training_change):
        why = "it changes the experiment" if rule.effect is Effect.TRAINING else "a person has to agree"
        return RefusedLever(rule.id, f"{why} ({shown})", True, question)
    return LeverUse(
        lever=rule.id,
        title=f"{rule.title} ({shown})",
        why=rule.why,
        source=rule.source,
        effect=rule.effect,
        cost=rule.cost,
        edits=tuple(edits),
        key=key,
        expectation="; ".join(part for part in (rule.expectation, *remarks) if part),
        needs_reshard=any(need.constraint == "checkpoint_reshardable" for need in rule.needs),
    )


def _rungs(context: LeverContext, kind: Kind, levers: Sequence[str]) -> tuple[str, ...]:
    """The ladder's levers, and those against fragmentation where it cannot be excluded: in front when likely, for
    they cost no experiment, else behind."""
    if kind is not Kind.TRUE_OOM:
        return tuple(levers)
    possible = allocator_could_have_served(context, {}) is None and request_fits_the_gpu(context, {}) is None
    confidence = context.confidence(Kind.FRAGMENTATION)
    other = context.system.ladder(Kind.FRAGMENTATION, context.phase, context.role)
    if not possible or other is None or confidence < WORTH_TRYING_FROM:
        return tuple(levers)
    cheap = [name for name in other.levers if context.system.lever(name).effect is Effect.NONE and name not in levers]
    if confidence >= CHEAP_FIRST_FROM:
        return tuple(dict.fromkeys((*cheap[:1], *levers, *cheap[1:])))
    return tuple(dict.fromkeys((*levers, *cheap)))


def _in_this_version(context: LeverContext, rule: LeverRule) -> bool:
    """Whether a version that the template can be written for has the lever."""
    return not rule.versions or not context.releases or any(
        item.id in rule.versions for item in context.releases
    )


def _refused(rule: LeverRule, refusal: Refusal) -> RefusedLever:
    return RefusedLever(rule.id, refusal.why, bool(refusal.question), refusal.question)


def _nothing_left(refused: Sequence[RefusedLever], question: str) -> NoPlan:
    asking = [item for item in refused if item.needs_person]
    reasons = "; ".join(f"{item.lever.replace('_', ' ')}: {item.why}" for item in refused)
    return NoPlan(
        f"no lever is left that could be used without asking ({reasons})",
        refused=tuple(refused),
        exhausted=not asking,
        question=asking[0].question if asking else question,
    )


def _missing(diagnosis: Diagnosis) -> str:
    missing = diagnosis.best.missing
    return f"What would settle it: {'; '.join(missing)}." if missing else ""


# How much an incident may do: relaunches, waiting between them, nodes drained. "" means allowed, else why not.

def relaunch_refused(done: int, most: int) -> str:
    """Whether another relaunch is over the policy's number, all attempts of the incident together."""
    if done < most:
        return ""
    return f"the job was relaunched {done} times, as often as the policy allows ({most})"


def cool_off_left_s(last_relaunch_s: float | None, now_s: float, cool_off_s: float) -> float:
    """Seconds to wait before the next relaunch. A clock that went back never makes it longer than the cool-off."""
    if last_relaunch_s is None:
        return 0.0
    passed = max(0.0, now_s - last_relaunch_s)
    return max(0.0, cool_off_s - passed)


def drain_refused(drained_by_us: int, nodes: int | None, share: float, *, may_drain: bool = True) -> str:
    """Whether one more drained node is over the policy's share of the cluster.

    One node is always allowed where draining is; with an unknown number of nodes no second one is.
    """
    if not may_drain:
        return "the policy does not let this tool drain nodes"
    if drained_by_us == 0:
        return ""
    if nodes is None:
        return f"{drained_by_us} drained already, and how many nodes the cluster has is not known"
    most = max(1, math.floor(nodes * share))
    if drained_by_us < most:
        return ""
    return f"{drained_by_us} of {nodes} nodes are drained by this tool already; the policy allows {most}"
