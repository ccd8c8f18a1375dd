"""Choose the lever: the next rung of the ladder for this diagnosis, never one that was tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

from runbook.config import Foresight
from runbook.errors import RunbookError
from runbook.model.diagnosis import Died
from runbook.model.incident import Incident
from runbook.model.log import LogStory
from runbook.model.remedy import NoPlan, Plan, Remembered
from runbook.model.sentences import as_written
from runbook.model.sentences.of_levers import Say
from runbook.model.units import Bytes, sentence
from runbook.remedy import (
    LeverContext,
    SimilarIncident,
    circumstances,
    propose,
    similar_incidents,
    what_worked,
    with_reasons,
)
from runbook.report.narrative import newest_forecast
from runbook.report.past_incidents import remember
from runbook.report.vocabulary.sentences import in_words
from runbook.steps.cancel_job import of_another
from runbook.steps.find_checkpoint import list_checkpoints
from runbook.steps.shared.base import StepContext, StepResult, with_notes
from runbook.steps.shared.foresight import prospect_of

_OTHERS_BELIEVED = 2


class Outcome(StrEnum):
    LEVER = "lever"
    NEEDS_PERSON = "needs_person"
    EXHAUSTED = "exhausted"


def run(context: StepContext) -> StepResult:
    """Fill `incident.plan`, or `no_plan` with the reason and the question to ask."""
    incident = context.incident
    failure = context.failure
    if not incident.templates:
        return _without(
            incident, NoPlan(Say.SCRIPT_NOT_KNOWN(notes=_notes(incident)), exhausted=False)
        )
    theirs = of_another(context)
    if theirs is not None:
        why, question = as_written(theirs.what), as_written(theirs.next_step)
        return _without(incident, NoPlan(why, exhausted=False, question=question))
    reading = context.template
    template = reading.told
    if template is None:
        return _without(
            incident,
            NoPlan(
                Say.NO_FRAMEWORK_DESCRIBED(), exhausted=False, question=Say.WHICH_FRAMEWORK(),
            ),
        )
    if failure.diagnosis is None:
        return _without(incident, NoPlan(Say.NO_DIAGNOSIS(), exhausted=False))
    story = failure.story or LogStory(root_cause=None)
    if incident.circumstances is None and not incident.attempts:
        incident = replace(incident, circumstances=circumstances(template, reading.everything))
    checkpoints, memory = tuple(list_checkpoints(context)[0]), _memory_to_have(context)
    levers = LeverContext(template, story, failure.job, failure.diagnosis, checkpoints, memory_to_have=memory)
    use_of_it = context.settings.policy.foresight
    prospect = None if use_of_it is Foresight.OFF else prospect_of(context, levers)
    if prospect is not None and not _trusted(context, incident):
        prospect = replace(prospect, trusted=False)
    plan = propose(
        levers, tried=tried(incident), allow_training_change=context.settings.policy.may_change_training,
        foresee=prospect.foresee if prospect is not None and use_of_it is Foresight.CHOOSE else None,
    )
    if isinstance(plan, Plan) and prospect is not None and plan.uses:
        plan = replace(plan, foreseen=prospect.foresee(plan.uses))
    if isinstance(plan, NoPlan):
        incident, found = _witnesses(context, incident)
        worked = what_worked(found)
        return _without(with_notes(incident, sentence(worked) if worked else ""), plan)
    incident, found = _witnesses(context, incident)
    version = story.framework_version or (story.root_cause.framework_version if story.root_cause else None)
    plan = with_reasons(plan, found, version or "")
    incident = replace(incident, plan=plan, no_plan=None)
    titles = [f"{use.title}; {use.seen_before[0]}" if use.seen_before else use.title for use in plan.uses]
    return StepResult(Outcome.LEVER, incident, "; ".join(titles) or "unchanged, elsewhere")


def _trusted(context: StepContext, incident: Incident) -> bool:
    """Whether "fits" is believed: not where the newest word on this framework and model that can be judged was wrong.
    What became of a relaunch is its owner's word: each owner has one, and another's counts as two owners say it."""
    held = newest_forecast(incident)
    now = remember(incident)
    if held is not None or now is None or context.ports.history is None:
        return held is not False
    told = now.circumstances
    try:
        earlier = context.ports.history.like(now)
    except RunbookError:
        return True
    judged = [
        past for past in earlier
        if past.incident != now.incident and past.simulated == now.simulated and past.forecast_held is not None
        and past.circumstances.system == told.system
        and (past.circumstances.model == told.model if told.model else past.script == now.script)
    ]
    return _newest_word(judged, now.owner)


def _newest_word(judged: Iterable[Remembered], owner: str) -> bool:
    heard: set[str] = set()
    saying: Counter[bool] = Counter()
    for past in sorted(judged, key=lambda past: past.opened_s, reverse=True):
        held = past.forecast_held is True
        if not past.owner or past.owner in heard:
            continue
        heard.add(past.owner)
        saying[held] += 1
        if past.owner == owner or saying[held] == _OTHERS_BELIEVED:
            return held
    return True


def _memory_to_have(context: StepContext) -> Bytes | None:
    """What the controller says, where main memory ran out; a lever that needs it asks where it does not."""
    diagnosis = context.failure.diagnosis
    if diagnosis is None or diagnosis.best.kind.entry.died is not Died.MAIN_MEMORY:
        return None
    try:
        return context.ports.scheduler.memory_to_have(context.failure.job)
    except RunbookError:
        return None


def _witnesses(context: StepContext, incident: Incident) -> tuple[Incident, tuple[SimilarIncident, ...]]:
    """Earlier incidents like this one. Where they cannot be read there are none, and a note says so."""
    history, diagnosis = context.ports.history, context.failure.diagnosis
    now = remember(incident)
    if history is None or now is None or diagnosis is None:
        return incident, ()
    # What is compared is the failure under work: a relaunch can have died of another kind than the first job.
    cause = context.failure.story.root_cause if context.failure.story else None
    now = replace(
        now, kind=diagnosis.best.kind, detail=diagnosis.best.detail, phase=cause.phase if cause else now.phase
    )
    try:
        return incident, similar_incidents(now, history.like(now))
    except RunbookError as error:
        return with_notes(incident, f"earlier incidents could not be read, so none is named: {error.what}"), ()


def tried(incident: Incident) -> dict[str, str]:
    """Keys of the levers that are not used again, each with the reason: an attempt ran with it, or it could not be
    written."""
    used = [use.key for attempt in incident.attempts if attempt.plan for use in attempt.plan.uses]
    return {**incident.not_written, **dict.fromkeys(used, "tried already in this incident")}


def _without(incident: Incident, no_plan: NoPlan) -> StepResult:
    outcome = Outcome.EXHAUSTED if no_plan.exhausted else Outcome.NEEDS_PERSON
    why, question = in_words(no_plan.why), in_words(no_plan.question)
    to_do = (*((question,) if question else ()), *incident.to_do)
    empty: Plan | None = None
    incident = replace(
        incident, plan=empty, no_plan=no_plan, conclusion=sentence(why), to_do=tuple(dict.fromkeys(to_do))
    )
    return StepResult(outcome, incident, f"{why} {question}".rstrip())


def _notes(incident: Incident) -> str:
    return incident.notes[0] if incident.notes else "the scheduler kept none"
