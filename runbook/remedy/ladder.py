"""The ladder: the next lever for a diagnosis that fits, was not tried, and changes no experiment unasked; and how
much an incident may do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from runbook.model.diagnosis import Diagnosis, Kind, Remedy
from runbook.model.remedy import AnswerKind, Ask, Effect, Fit, Foreseen, LeverUse, NoPlan, Plan, RefusedLever
from runbook.model.sentences import NOTHING, Plain, Sentence, as_written, joined
from runbook.model.sentences.of_levers import Say
from runbook.model.template import Edit, condition_of
from runbook.remedy.constraints import CONSTRAINTS, require
from runbook.remedy.constraints.failed_job import (
    allocator_could_have_served,
    checkpoint_reshardable,
    much_lies_unallocated,
    request_fits_the_gpu,
)
from runbook.remedy.edits import FUNCTIONS, SIZED
from runbook.remedy.lever_context import LeverContext, refusal_of
from runbook.remedy.lever_document import LeverRule
from runbook.remedy.template_settings import Refusal, RefusalReason, Refused, TemplateSettings

# The ladder: the next lever for a diagnosis that fits, was not tried, and changes no experiment unasked.

WORTH_TRYING_FROM = 0.3
"""From this confidence in what else it may be (fragmentation), its levers that cost no experiment are rungs, too: the
first before the working set's, the others behind. Below it the working set's alone are tried and asked for: a setting
of the allocator that frees next to nothing would take the place of a question."""
_MOST_SIZES = 128
_MOST_PAIRS = 30

_INDIVISIBLE = frozenset({Say.SMALL_AS_IT_GETS, Say.BATCH_COUNTS_PASSES})

Foresee = Callable[[Sequence[LeverUse]], Foreseen | None]
"""What a job is foreseen to need with these levers together; None where figures of the job do not carry so far."""


_SURE = 0.95
"""From this chance on no other lever is added to one."""
_COST = {Fit.FITS: 0.0, Fit.CANNOT_SAY: 0.5, Fit.DOES_NOT_FIT: 1.0}
"""Where nobody reckoned what a change costs."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """Levers with what is foreseen of them."""

    uses: tuple[LeverUse, ...]
    foreseen: Foreseen
    rung: int = 0
    """How many levers before it were refused or judged, in the ladder's order."""

    @property
    def cost(self) -> float:
        told = self.foreseen
        return _COST[told.fit] if told.expected_cost is None else told.expected_cost

    @property
    def may_do(self) -> bool:
        return self.foreseen.fit is not Fit.DOES_NOT_FIT


@dataclass(slots=True)
class _Foresight:
    """How levers are judged by what is foreseen: each rung with the size that costs least."""

    foresee: Foresee
    rungs: list[_Judged] = field(default_factory=list)

    def judged(self, uses: Iterable[tuple[LeverUse, ...]], rung: int = 0) -> _Judged | None:
        """Of these the one that costs least, the first where several do: among those with which the job may fit, where
        there are any."""
        told = [(each, self.foresee(each)) for each in uses]
        found = [_Judged(each, foreseen, rung) for each, foreseen in told if foreseen is not None]
        return min(found, key=lambda item: (not item.may_do, item.cost), default=None)

    @property
    def best(self) -> _Judged | None:
        return min((item for item in self.rungs if item.may_do), key=lambda item: item.cost, default=None)


def propose(
    context: LeverContext, *, tried: Mapping[str, str] = MappingProxyType({}),
    allow_training_change: bool = False, foresee: Foresee | None = None,
) -> Plan | NoPlan:
    """The next plan for a failure. A lever that was tried with the same value, or is refused, is passed over with the
    reason.

    `tried` holds the keys of lever uses, each with the reason why it is not used again. A plan without uses says:
    relaunch the unchanged template on other nodes. With `foresee` every rung is judged, with each size that it can
    have, and the one is used that costs least, a relaunch that would run out again counted with it; two levers in one
    relaunch where that costs less. Where none may do, the ladder is gone down as if nothing had been foreseen, for a
    forecast may be wrong, and a relaunch costs less than a person.
    """
    if foresee is None:
        return _down_the_ladder(context, tried, allow_training_change, None)
    foresight = _Foresight(foresee)
    plan = _down_the_ladder(context, tried, allow_training_change, foresight)
    best = foresight.best
    if not foresight.rungs or (best is not None and (best.foreseen.chance or 0.0) >= _SURE):
        return plan
    together = _two_together(context, foresight, tried, allow_training_change)
    if together is not None and together.may_do and (best is None or together.cost < best.cost):
        unchanged = _down_the_ladder(context, tried, allow_training_change, None)
        ladder = unchanged.ladder if isinstance(unchanged, Plan) else ""
        used = {use.lever for use in together.uses}
        refused = tuple(item for item in plan.refused if item.lever not in used)
        return Plan(together.uses, refused, context.template.system.id, ladder)
    return plan if best is not None else _down_the_ladder(context, tried, allow_training_change, None)


def _down_the_ladder(
    context: LeverContext, tried: Mapping[str, str], allow_training_change: bool, foresight: _Foresight | None
) -> Plan | NoPlan:
    system = context.template.system
    assert context.diagnosis is not None
    kind = _worked_on(context, context.diagnosis)
    if kind.entry.remedy is Remedy.OTHER_NODES:
        return Plan(uses=(), system=system.id, ladder="elsewhere")
    if kind.entry.remedy is Remedy.PERSON:
        return NoPlan(as_written(kind.entry.no_plan), exhausted=False, question=_missing(context.diagnosis))
    ladder = system.ladder(kind, context.phase, context.role, context.detail)
    if ladder is None:
        return NoPlan(
            Say.NO_LADDER_FOR(title=system.title, kind=kind.replace("_", " ")), exhausted=False,
            question=Say.WHAT_MAY_BE_CHANGED()
        )
    if not ladder.levers:
        return NoPlan(as_written(ladder.why), exhausted=False, question=as_written(ladder.question))
    refused: list[RefusedLever] = []
    asked: NoPlan | None = None
    another: NoPlan | None = None
    skipped = False
    for name in _rungs(context, kind, ladder.levers):
        if not in_this_version(context.template, system.lever(name)):
            continue
        try:
            use = use_lever(context, system.lever(name), tried, allow_training_change)
        except Refused as error:
            why = error.refusal
            rule = system.lever(name)
            question = why.question if _matters(rule, why) else NOTHING
            refused.append(RefusedLever(name, why.why, bool(question), question, why.ask if question else None))
            waits = rule.may_wait or rule.effect is Effect.TRAINING
            if asked is None and why.unknown and why.ask is not None and not waits:
                asked = _asked(rule, why)
            if another is None and rule.effect is Effect.TRAINING and why.unknown and why.ask is not None:
                another = _another_experiment(rule, why)
        else:
            if asked is not None:
                break  # a weaker lever than the one that is asked for
            if foresight is not None:
                if system.lever(name).effect is Effect.TRAINING and (skipped or foresight.best is not None):
                    break  # another experiment takes no place before what keeps this one
                sizes = _sizes(context, system.lever(name), tried, allow_training_change)
                judged = foresight.judged(((each,) for each in (use, *sizes)), len(refused))
                if judged is not None:
                    foresight.rungs.append(judged)
                    refused.append(RefusedLever(name, NOTHING, foreseen=judged.foreseen))
                    continue
                if foresight.rungs:
                    skipped = True
                    continue  # what nothing is known of takes no place before what is known to free something
            return Plan(uses=(use,), refused=tuple(refused), system=system.id, ladder=ladder.id)
    best = foresight.best if foresight is not None else None
    if best is not None:
        return Plan(uses=best.uses, refused=tuple(refused[: best.rung]), system=system.id, ladder=ladder.id)
    if asked is None:
        closing = ladder.indivisible if any(item.why.code in _INDIVISIBLE for item in refused) else ""
        asked = _nothing_left(refused, as_written(closing or ladder.question), context)
        if ladder.told:
            asked = replace(asked, why=Say.LADDER_AND(ladder=as_written(ladder.why), why=asked.why))
    if asked.exhausted and another is not None:
        asked = another
    return replace(asked, refused=tuple(refused))


def _sizes(
    context: LeverContext, rule: LeverRule, tried: Mapping[str, str], allow_training_change: bool
) -> Iterator[LeverUse]:
    """A lever of the micro-batch with every smaller one that keeps the global batch, the largest first."""
    batch = context.template.system.batch
    if batch is None or not any(step.function in SIZED and step.parameter == batch.micro for step in rule.edits):
        return
    most = (context.template.number(batch.micro) or 1) - 1
    for _ in range(_MOST_SIZES):
        if most < 1:
            return
        try:
            use = use_lever(replace(context, most=most), rule, tried, allow_training_change)
        except Refused:
            most -= 1
            continue
        yield use
        most = min(most, *(int(edit.new or 1) for edit in use.edits if edit.parameter == batch.micro)) - 1


def _two_together(
    context: LeverContext, foresight: _Foresight, tried: Mapping[str, str], allow_training_change: bool
) -> _Judged | None:
    """Of all pairs of rungs that were judged, with every size of one beside the other, the one that costs least."""
    rungs = [item.uses[0] for item in foresight.rungs]
    pairs = [(first, second) for at, first in enumerate(rungs) for second in rungs[at + 1:]]
    found = []
    for first, second in pairs[:_MOST_PAIRS]:
        for fixed, varied in ((first, second), (second, first)):
            sizes = _beside(context, fixed, varied, tried, allow_training_change)
            found.append(foresight.judged((fixed, use) if fixed is first else (use, fixed) for use in sizes))
    return min((one for one in found if one is not None), key=lambda one: (not one.may_do, one.cost), default=None)


def _beside(
    context: LeverContext, fixed: LeverUse, varied: LeverUse, tried: Mapping[str, str], allow_training_change: bool
) -> Iterator[LeverUse]:
    """A lever beside another one, with every size that it can have; nothing where both change the same."""
    after = context.with_changes({edit.parameter: edit.new for edit in fixed.edits})
    changed = {edit.parameter for edit in fixed.edits}
    rule = context.template.system.lever(varied.lever)
    try:
        half = use_lever(after, rule, tried, allow_training_change)
    except Refused:
        return
    sizes = [*_sizes(after, rule, tried, allow_training_change)] or [half]
    yield from (use for use in sizes if changed.isdisjoint(edit.parameter for edit in use.edits))


def _worked_on(context: LeverContext, diagnosis: Diagnosis) -> Kind:
    """The kind whose levers are tried: the first reading, but where next to nothing of a full card is unallocated that
    which would else be taken for it. A setting of the allocator frees no more than what it holds back."""
    best = diagnosis.best.kind
    if refusal_of(partial(much_lies_unallocated, context, {})) is None:
        return best
    return next((item.kind for item in diagnosis.runners_up if item.kind.entry.perhaps == best), best)


def use_lever(
    context: LeverContext, rule: LeverRule, tried: Mapping[str, str], allow_training_change: bool
) -> LeverUse:
    """One lever in this context, with values. Raises `Refused`."""
    for conflict in rule.conflicts:
        setting = context.template.setting(conflict.parameter)
        if setting is None or setting.only_possible or context.template.holds(conflict) is False:
            continue
        shown = f"{setting.spelling} {setting.value if setting.value is not None else '(value not known)'}"
        may = Say.MAY_IT_BE_USED_ALL_THE_SAME(shown=shown, why=conflict.why, title=rule.title)
        question = may if conflict.ask else NOTHING
        raise Refused(Say.NOT_BESIDE(shown=shown, why=conflict.why), question, RefusalReason.CONFLICT)
    unknown, against = _first_unknown(context, rule)
    edits: list[Edit] = []
    remarks: list[Sentence] = []
    for step in rule.edits:
        try:
            made = FUNCTIONS[step.function](context, context.template.system.parameter(step.parameter), step.arguments)
        except Refused as error:
            if unknown is not None and error.refusal.unknown:
                raise unknown from error
            if against is not None and error.refusal.question:
                both = Say.IF_SO(first=against.refusal.question, second=error.refusal.question)
                raise Refused(Plain.LIST(parts=(against.refusal.why, error.refusal.why)), both) from error
            raise
        edits += made.edits
        remarks += made.remarks
        changed = {edit.parameter: edit.new for edit in made.edits if edit.new is not None}
        context = replace(context, changed={**context.changed, **changed})
    if unknown is not None:
        raise unknown
    after = context.with_changes({edit.parameter: edit.new for edit in edits})
    for need in rule.holds:
        require(after, need)
    if any(edit.by_hand for edit in edits):
        raise _by_a_person(edits, remarks)
    values = ",".join(f"{edit.parameter}={edit.new}" for edit in edits)
    key = f"{rule.id}:{values}"
    shown = "; ".join(f"{condition_of(edit.spellings[0])[0]} {edit.old or '(not set)'} → {edit.new}" for edit in edits)
    if key in tried:
        raise Refused(Say.TRIED(why=tried[key], shown=shown))
    told = [item.says for item in rule.cautions if refusal_of(partial(require, context, item)) is not None]
    shown = "; ".join((shown, *told))
    question = as_written(rule.consent)
    if not question and rule.effect is Effect.TRAINING:
        question = Say.MAY_EXPERIMENT_BE_CHANGED(shown=shown, cost=rule.cost)
    # A yes is to these values: with others, or after the next failure, it is asked again.
    agreed = key in context.template.answers.agreed
    allowed = agreed or (rule.effect is Effect.TRAINING and allow_training_change)
    ask = Ask(AnswerKind.AGREE, key)
    if against is not None and not allowed:
        asked = Say.ASKED_OF(question=against.refusal.question, shown=shown)
        question = Plain.SENTENCES(parts=(asked, as_written(rule.consent), as_written(rule.cost)))
        raise Refused(against.refusal.why, question, against.refusal.reason, ask)
    if question and not allowed:
        if rule.effect is Effect.TRAINING:
            raise Refused(Say.CHANGES_EXPERIMENT(shown=shown), question, RefusalReason.EXPERIMENT, ask)
        raise Refused(Say.PERSON_HAS_TO_AGREE(shown=shown), question, RefusalReason.CONSENT, ask)
    return LeverUse(
        lever=rule.id,
        title=f"{rule.title} ({shown})",
        why=rule.why,
        source=rule.source,
        effect=rule.effect,
        cost=rule.cost,
        edits=tuple(edits),
        key=key,
        expectation=joined((as_written(rule.expectation), *remarks)),
        needs_reshard=any(CONSTRAINTS[need.constraint] is checkpoint_reshardable for need in rule.needs),
    )


def _by_a_person(edits: Sequence[Edit], remarks: Sequence[Sentence]) -> Refused:
    """For values that stand in the program's own text, with all that has to be changed together."""
    values = [
        Say.STANDS_AT(spelling=edit.spellings[0], value=edit.old, where=edit.by_hand)
        for edit in edits if edit.by_hand and edit.old
    ]
    changes = []
    for edit in edits:
        wording = Say.CHANGE_OF_OPTION
        if edit.by_hand:
            wording = Say.CHANGE_IN_PROGRAM if edit.old else Say.CHANGE_IN_PROGRAM_BESIDE
        spelling = condition_of(edit.spellings[0])[0]
        changes.append(wording(spelling=spelling, new=edit.new, where=edit.by_hand))
    asked = Say.MAY_PERSON_MAKE_CHANGES(changes=tuple(changes))
    why = Say.STAND_IN_PROGRAM(values=tuple(values)) if values else Say.PROGRAM_ITSELF_NOT_EDITED()
    return Refused(why, Plain.SENTENCES(parts=(asked, *remarks[-1:])))


def _first_unknown(context: LeverContext, rule: LeverRule) -> tuple[Refused | None, Refused | None]:
    """The first need of which it is not known whether it is met, and the first that only a person can settle (it makes
    another experiment, or nothing else can tell), where all others are met. Raises `Refused` for one that is certainly
    not met: then nothing is to be asked."""
    found: Refused | None = None
    against: Refused | None = None
    for need in rule.needs:
        try:
            require(context, need)
        except Refused as error:
            if error.refusal.reason in (RefusalReason.EXPERIMENT, RefusalReason.CONSENT):
                against = against or error
            elif error.refusal.unknown:
                found = found or error
            else:
                raise
    return found, against


def _rungs(context: LeverContext, kind: Kind, levers: Sequence[str]) -> tuple[str, ...]:
    """The ladder's levers, and where it may well be something else (fragmentation) those against it that cost no
    experiment."""
    if not kind.entry.perhaps:
        return tuple(levers)
    excluded = any(
        refusal_of(partial(constraint, context, {}))
        for constraint in (allocator_could_have_served, request_fits_the_gpu, much_lies_unallocated)
    )
    confidence = context.confidence(kind.entry.perhaps)
    system = context.template.system
    other = system.ladder(kind.entry.perhaps, context.phase, context.role)
    if excluded or other is None or confidence < WORTH_TRYING_FROM:
        return tuple(levers)
    cheap = [name for name in other.levers if system.lever(name).effect is Effect.NONE and name not in levers]
    return tuple(dict.fromkeys((*cheap[:1], *levers, *cheap[1:])))


def in_this_version(template: TemplateSettings, rule: LeverRule) -> bool:
    """Whether a version that the template can be written for has the lever."""
    return not rule.versions or not template.releases or any(
        item.id in rule.versions for item in template.releases
    )


def _matters(rule: LeverRule, why: Refusal) -> bool:
    """Whether a person is to be asked: of a lever that changes the experiment no value, but whether it may."""
    missing = why.reason in (RefusalReason.NOT_MET, RefusalReason.UNKNOWN)
    version = why.ask is not None and why.ask.kind is AnswerKind.VERSION
    return rule.effect is not Effect.TRAINING or not missing or version


def _asked(rule: LeverRule, why: Refusal) -> NoPlan:
    """The lever comes first and only something that is not known stands in its way: that is asked, and no weaker lever
    takes its place."""
    return NoPlan(
        Say.COMES_FIRST_AND(title=rule.title, why=why.why), exhausted=False, question=why.question, ask=why.ask
    )


def _another_experiment(rule: LeverRule, why: Refusal) -> NoPlan:
    """Where nothing else is left: whether the experiment may be changed, and the value that is not known."""
    may = as_written(rule.consent) or Say.MAY_IT_CHANGE_EXPERIMENT(cost=rule.cost)
    return NoPlan(
        Say.ONLY_ANOTHER_EXPERIMENT_LEFT(title=rule.title, why=why.why), exhausted=False,
        question=Say.MAY_IT_AND_IF_SO(title=rule.title, may=may, question=why.question), ask=why.ask
    )


def _nothing_left(refused: Sequence[RefusedLever], question: Sentence, context: LeverContext) -> NoPlan:
    """What a person may decide is asked; where only another experiment is left, so is what would keep this one."""
    asking = [item for item in refused if item.needs_person]
    likely = [item for item in refused if item.why.code is not Say.PROGRAM_CODE_DOES_NOT_SHOW]
    first = next(iter(asking or likely or refused), None)
    title = context.template.system.lever(first.lever).title if first is not None else ""
    reason = Say.FIRST_REFUSED(title=title, why=first.why) if first is not None else NOTHING
    if asking and context.template.system.lever(asking[0].lever).effect is Effect.TRAINING and question:
        question = Say.OR_ELSE(question=asking[0].question, other=question)
    elif asking:
        question = asking[0].question
    return NoPlan(
        Say.NO_LEVER_LEFT(reason=reason), refused=tuple(refused), exhausted=not asking, question=question,
        ask=asking[0].ask if asking else None
    )


def _missing(diagnosis: Diagnosis) -> Sentence:
    missing = diagnosis.best.missing
    return Say.WHAT_WOULD_SETTLE_IT(missing=missing) if missing else NOTHING


# How much an incident may do: relaunches, nodes drained. `NOTHING` means allowed, else why not.

def relaunch_refused(done: int, most: int) -> Sentence:
    """Whether another relaunch is over the policy's number, all attempts of the incident together."""
    if done < most:
        return NOTHING
    return Say.RELAUNCHED_AS_OFTEN_AS_ALLOWED(done=done, most=most)


def drain_refused(drained_by_us: int, nodes: int | None, share: float, *, may_drain: bool = True) -> Sentence:
    """Whether one more drained node is over the policy's share of the cluster.

    One node is always allowed where draining is; with an unknown number of nodes no second one is.
    """
    if not may_drain:
        return Say.POLICY_LETS_DRAIN_NOTHING()
    if drained_by_us == 0:
        return NOTHING
    if nodes is None:
        return Say.DRAINED_AND_NODES_NOT_KNOWN(drained_by_us=drained_by_us)
    most = max(1, math.floor(nodes * share))
    if drained_by_us < most:
        return NOTHING
    return Say.DRAINED_AS_MANY_AS_ALLOWED(drained_by_us=drained_by_us, nodes=nodes, most=most)
