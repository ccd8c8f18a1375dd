"""The story of an incident in single sentences: what happened, what was done, how it stands, what a person does; and
as a list of events.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.model.diagnosis import Died, Hypothesis
from runbook.model.incident import Act, Attempt, Failure, Incident, IncidentState, Milestone
from runbook.model.log import Finding, MemorySample
from runbook.model.remedy import AnswerKind, Basis, Fit, Plan, RefusedLever
from runbook.model.units import in_gib, sentence
from runbook.report.vocabulary.sentences import in_words
from runbook.report.vocabulary.titles import PHASE_WORDS, Again

_TERMS = 3
"""Parts of a sum that a sentence names."""

# The story of an incident in single sentences: what happened, what was done, how it stands, what a person does.

def first_failure(incident: Incident) -> Failure | None:
    """The failure that opened the incident, also when the work has moved on to a relaunched job's."""
    return incident.original or incident.failure


def root_cause(incident: Incident) -> Finding | None:
    """The finding that the first failure is put down to."""
    failure = first_failure(incident)
    return failure.story.root_cause if failure and failure.story else None


def cause(incident: Incident) -> Hypothesis | None:
    """The best hypothesis of the first failure."""
    failure = first_failure(incident)
    return failure.diagnosis.best if failure and failure.diagnosis else None


def place_of_finding(finding: Finding) -> str:
    """"rank 3 on gpu-22 (GPU 3)", as far as it is known; "" when nothing is."""
    parts = [f"rank {finding.rank}" if finding.rank is not None else "", finding.node or ""]
    named = " on ".join(part for part in parts if part)
    if finding.device is None:
        return named
    return f"{named} (GPU {finding.device})" if named else f"GPU {finding.device}"


def what_happened(incident: Incident) -> str:
    """One sentence: who died, where, when and of what."""
    found = cause(incident)
    finding = root_cause(incident)
    job = f"Job {incident.root_job}"
    if found is None and finding is None and incident.finished:
        return f"{job} on {incident.cluster}: {incident.conclusion or 'its logs show no memory error.'}"
    if found is None and finding is None:
        return f"{job} on {incident.cluster} failed; what it died of has not been read yet."
    verb = _what_it_did(found, finding)
    told = f"{job} {verb}"
    if finding is not None:
        where = place_of_finding(finding)
        phase = PHASE_WORDS[finding.phase]
        step = f"at step {finding.step}" if finding.step is not None else ""
        told = " ".join(part for part in (told, f"on {where}" if where else "", phase, step) if part)
    if found is not None and found.kind.entry.died not in _SAID_BY_THE_VERB:
        told += f": {found.kind.entry.meaning}"
    return told + "."


def _what_it_did(found: Hypothesis | None, finding: Finding | None) -> str:
    """What the job did, by the diagnosis, or by what the log's line means where there is no diagnosis (yet)."""
    line = finding.means.entry.died if finding is not None else Died.UNKNOWN
    died = found.kind.entry.died if found is not None else line
    if died in _SAID_BY_THE_VERB:
        return _SAID_BY_THE_VERB[died]
    # A fault of a GPU, or no single cause: "memory" is said only where the log itself says so.
    return "ran out of GPU memory" if died.of_memory or line.of_memory else "failed"


_SAID_BY_THE_VERB = {
    Died.PROGRAM: "did not die of memory",
    Died.MAIN_MEMORY: "ran out of main memory",
    Died.SHARED_MEMORY: "ran out of shared memory",
}


def how_it_stands(incident: Incident) -> str:
    """One sentence on the outcome, or on what goes on now."""
    if incident.conclusion:
        return incident.conclusion
    last = incident.attempts[-1] if incident.attempts else None
    match incident.state:
        case IncidentState.RECOVERED:
            return f"Job {last.job} runs past the failing step." if last and last.job else "The job runs again."
        case IncidentState.PLANNED:
            return "A plan was made; nothing was touched."
        case IncidentState.ESCALATED:
            return in_words(incident.no_plan.why) if incident.no_plan else "It could not be settled without a person."
        case IncidentState.CLOSED:
            return "There was nothing to do."
        case IncidentState.AWAITING_APPROVAL:
            return "The next act waits for a person's yes."
        case IncidentState.INTERRUPTED:
            return "The work on this incident was interrupted; nothing is lost."
        case _:
            return f"At work in box “{incident.box}”." if incident.box else "At work."


def to_do(incident: Incident) -> tuple[str, ...]:
    """What a person should do, most urgent first; never empty."""
    if incident.state is IncidentState.AWAITING_APPROVAL and incident.awaiting:
        ask = f"Say yes with `runbook approve {incident.id}`, or no with `--no`: {incident.awaiting.rstrip('.')}."
        return (ask, *incident.to_do)
    if incident.to_do:
        return incident.to_do
    match incident.state:
        case IncidentState.RECOVERED:
            if incident.promoted:
                return ("Nothing.",)
            return (
                "Nothing is urgent. Read the change below and, if it is to stay, keep it: "
                f"`runbook promote {incident.id}`.",
            )
        case IncidentState.PLANNED:
            if incident.trigger == "files":
                return ("Read the plan below and, if you agree, submit the patched template yourself.",)
            return (f"Read the plan below and, if you agree, carry it out: `runbook resume {incident.id}`.",)
        case IncidentState.INTERRUPTED:
            return (f"Go on where it stopped: `runbook resume {incident.id}`.",)
        case IncidentState.ESCALATED:
            question = in_words(incident.no_plan.question) if incident.no_plan else ""
            return (question or "Read the diagnosis below and decide; the job has not been relaunched since.",)
        case IncidentState.CLOSED:
            return ("Nothing.",)
        case _:
            return ("Nothing now: the runbook is at work.",)


def answer(incident: Incident) -> str:
    """How the question that stops the first lever is answered; "" where none is asked so."""
    ask = incident.no_plan.ask if incident.no_plan is not None else None
    if ask is None:
        return ""
    shown = "yes or no" if ask.kind is AnswerKind.OPTION else " or ".join(ask.choices[:8]) or "VALUE"
    value = {
        AnswerKind.OPTION: f"--option={ask.name} (or --option={ask.name}=no)",
        AnswerKind.VERSION: f"--version {ask.name}=V",
        AnswerKind.VALUE: f"--set {ask.name}={shown}",
        AnswerKind.AGREE: f"--agree {shlex.quote(ask.name)}",
    }[ask.kind]
    if incident.trigger == "files":
        return f"Answer: the same command with {value}."
    return f"Answer: runbook oom --job {incident.root_job} {value}."


def passed_over(incident: Incident) -> tuple[str, ...]:
    """The levers that were not used, each with its reason, in the ladder's order."""
    refused = incident.no_plan.refused if incident.no_plan is not None else ()
    return tuple(f"{item.lever.replace('_', ' ')}: {why_passed_over(item)}" for item in refused)


def why_passed_over(item: RefusedLever) -> str:
    """Why a lever was not used, with the sum where the job would not fit with it."""
    told = item.foreseen
    if told is None:
        return in_words(item.why)
    parts = sorted(told.terms.items(), key=lambda term: -term[1])
    shown = " + ".join(f"{name} {in_gib(size, 1)}" for name, size in parts[:_TERMS])
    likely = told.peaks[Basis.DEVICE].likely_bytes if Basis.DEVICE in told.peaks else 0
    if told.fit is not Fit.DOES_NOT_FIT:
        chance = "" if told.chance is None else f"fits with a chance of {told.chance:.0%}, "
        return (
            f"{chance}likely {in_gib(likely, 1)} of the card's {in_gib(told.card_bytes, 1)} ({shown} + …), and costs "
            "more in all than what is used"
        )
    return (
        f"at the least {in_gib(told.least_bytes, 1)} are needed with it, and the card has {in_gib(told.card_bytes, 1)} "
        f"(likely {in_gib(likely, 1)}: {shown} + …)"
    )


def foreseen_too_small(plan: Plan | None) -> tuple[str, ...]:
    """Levers that come before those of a plan, and were passed over for what is foreseen with them."""
    return tuple(
        f"Passed over: {item.lever.replace('_', ' ')}: {why_passed_over(item)}."
        for item in (plan.refused if plan is not None else ()) if item.foreseen is not None
    )


def what_is_foreseen(plan: Plan | None) -> str:
    """What the job should need with a plan's levers; "" where nothing is foreseen."""
    told = plan.foreseen if plan is not None else None
    if told is None or Basis.DEVICE not in told.peaks:
        return ""
    device = told.peaks[Basis.DEVICE]
    verdict = {
        Fit.FITS: "it should fit", Fit.DOES_NOT_FIT: "it will hardly fit", Fit.CANNOT_SAY: "whether it fits is open",
    }[told.fit]
    if told.distrusted:
        verdict = "by the sum it fits, which was wrong before for this framework and model, so nothing is built on it"
    elif told.fit is Fit.CANNOT_SAY and told.chance is not None:
        verdict = f"it fits with a chance of {told.chance:.0%}"
    bounds = f"{in_gib(device.low_bytes, 1)} to {in_gib(device.high_bytes, 1)}"
    return f"Foreseen: {bounds} of the card's {in_gib(told.card_bytes, 1)}, so {verdict}."


def forecast_held(attempt: Attempt) -> bool | None:
    """Whether what was foreseen of a relaunch came true: every measured peak lies within its bounds, or it was said to
    fit and ran out again. None where nothing was foreseen, or nothing can be told."""
    told, verdict = attempt.plan.foreseen if attempt.plan else None, attempt.verdict
    if told is None or verdict is None or verdict.passed is None:
        return None
    if not verdict.passed:
        entry = attempt.diagnosis.best.kind.entry if attempt.diagnosis is not None else None
        ran_out = entry is not None and entry.on_the_card and entry.in_the_allocator
        return False if ran_out and told.fit is Fit.FITS else None
    pairs = [(item.bytes, told.peaks[item.basis]) for item in verdict.measured if item.basis in told.peaks]
    if any(seen > bounds.high_bytes for seen, bounds in pairs):
        return False
    return True if pairs and all(seen >= bounds.low_bytes for seen, bounds in pairs) else None


def newest_forecast(incident: Incident) -> bool | None:
    """Whether the newest forecast that can be judged was right."""
    judged = (forecast_held(attempt) for attempt in reversed(incident.attempts))
    return next((held for held in judged if held is not None), None)


def fits_told(attempts: Sequence[Attempt]) -> tuple[int, int]:
    """How many relaunches were said to fit, and how many of them ran out again."""
    said = [one for one in attempts if one.plan and one.plan.foreseen and one.plan.foreseen.fit is Fit.FITS]
    return len(said), sum(forecast_held(one) is False and worked(one) is False for one in said)


def foreseen_and_measured(attempt: Attempt) -> str:
    """What a relaunched job needed beside what was foreseen; "" where nothing was, or it is not known yet."""
    told, verdict = attempt.plan.foreseen if attempt.plan else None, attempt.verdict
    if told is None or verdict is None or verdict.passed is None:
        return ""
    if not verdict.passed:
        wrong = forecast_held(attempt) is False
        return "It was foreseen to fit and ran out again: the forecast was wrong." if wrong else ""
    parts = [
        f"{in_gib(item.bytes, 1)} {item.basis} measured, {in_gib(bounds.low_bytes, 1)} to "
        f"{in_gib(bounds.high_bytes, 1)} foreseen (likely {in_gib(bounds.likely_bytes, 1)})"
        for item in verdict.measured for bounds in [told.peaks.get(item.basis)] if bounds is not None
    ]
    return f"Peak: {'; '.join(parts)}." if parts else "Peak: not measured, for the log prints none."


def runs_again(incident: Incident) -> Again:
    """Whether the job runs again, as far as that was seen. Work that was closed leaves a job as it was found."""
    last = next((attempt for attempt in reversed(incident.attempts) if attempt.job), None)
    match incident.state:
        case IncidentState.RECOVERED:
            return Again.YES
        case IncidentState.PLANNED:
            return Again.PLANNED
        case IncidentState.CLOSED:
            return Again.NOT_NEEDED if last is None or worked(last) else Again.NOT_PROVEN
    if last is not None and worked(last) is None:
        return Again.NOT_PROVEN
    return Again.NO if incident.state is IncidentState.ESCALATED else Again.NOT_YET


def again_sentence(incident: Incident) -> str:
    """What stands behind `runs_again`, with the job's number; "" where the word says all."""
    last = next((attempt for attempt in reversed(incident.attempts) if attempt.job), None)
    step = f"step {last.failed_step}" if last and last.failed_step is not None else "the failing step"
    match runs_again(incident):
        case Again.YES:
            proven = proven_attempt(incident) or last
            return f"Job {proven.job} got past the failing step." if proven and proven.job else ""
        case Again.NOT_PROVEN if last is not None:
            watched = "has not been seen past" if incident.state.ended else "has not passed"
            return f"Job {last.job} was submitted and {watched} {step} yet."
        case Again.NO:
            return f"Job {last.job} failed again." if last is not None else "It was not relaunched."
        case Again.PLANNED:
            return "Nothing was submitted."
        case Again.NOT_YET:
            return f"Job {last.job} failed again; the next lever is being tried." if last is not None else ""
    return ""


def what_was_done(incident: Incident) -> str:
    """The acts on the cluster in one line, oldest first; "Nothing on the cluster." when there were none."""
    parts = []
    submitted = {str(attempt.job): attempt for attempt in incident.attempts if attempt.job}
    for act in incident.acts:
        if act.planned_only:
            continue
        attempt = submitted.get(act.target)
        match act.what:
            case "submit" if attempt is not None:
                parts.append(_relaunched(attempt))
            case "submit":
                parts.append(f"submitted {act.target}")
            case "cancel":
                parts.append(f"cancelled job {act.target}")
            case "drain":
                parts.append(f"drained {act.target}")
            case "end_process":
                parts.append(f"ended the leaked process {act.target}")
            case "undrain":
                parts.append(f"gave {act.target} back")
            case "promote":
                parts.append("wrote the change into the owner's template")
            case "rollback":
                parts.append("put the owner's template back")
            case _:
                parts.append(f"{act.what} {act.target}")
    told = "; ".join(dict.fromkeys(parts))
    return sentence(told) if told else "Nothing on the cluster."


def _relaunched(attempt: Attempt) -> str:
    levers = ", ".join(use.lever.replace("_", " ") for use in attempt.plan.uses) if attempt.plan else ""
    start = ""
    if attempt.checkpoint is not None:
        step = attempt.checkpoint.step
        start = f" from step {step}" if step is not None else " from a checkpoint"
    return f"relaunched as job {attempt.job}{start}" + (f" ({levers})" if levers else "")


def asked_of_a_person(incident: Incident) -> str:
    """What the incident asks for first; "" when it waits for nobody and left nothing to do."""
    waits = incident.state in (
        IncidentState.ESCALATED, IncidentState.AWAITING_APPROVAL, IncidentState.INTERRUPTED, IncidentState.PLANNED
    )
    return to_do(incident)[0] if waits or incident.to_do else ""


def worked(attempt: Attempt) -> bool | None:
    """Whether the relaunch got past the failing step; None while that is not known."""
    return attempt.verdict.passed if attempt.verdict else None


def proven_attempt(incident: Incident) -> Attempt | None:
    """The relaunch that passed, the last one if several did."""
    return next((attempt for attempt in reversed(incident.attempts) if worked(attempt)), None)


def peak_sample(attempt: Attempt, rank: int | None) -> MemorySample | None:
    """The relaunched job's highest reported reserve, on the failing rank if it reported, else over all ranks."""
    samples = attempt.verdict.progress.memory if attempt.verdict and attempt.verdict.progress else ()
    known = [sample for sample in samples if _reserve(sample) is not None]
    same_rank = [sample for sample in known if sample.rank == rank and rank is not None]
    return max(same_rank or known, key=lambda sample: _reserve(sample) or 0, default=None)


def _reserve(sample: MemorySample) -> int | None:
    return sample.max_reserved_bytes if sample.max_reserved_bytes is not None else sample.reserved_bytes


def is_simulated(incident: Incident) -> bool:
    """Facts of a node that say of themselves that they come from the simulator."""
    failures = [failure for failure in (incident.original, incident.failure) if failure is not None]
    return any(facts.simulated for failure in failures for facts in failure.nodes)


# What happened when, across all attempts: one list of events, oldest first.

_VERBS = {
    "cancel": "Cancelled",
    "drain": "Drained",
    "undrain": "Gave back",
    "submit": "Submitted",
    "end_process": "Ended the leaked process",
    "promote": "Wrote the change into the owner's template",
    "rollback": "Put the owner's template back",
}


@dataclass(frozen=True, slots=True)
class Event:
    """`attempt` 0 is the job that died first; `tone` is a class of the style sheet, "" for none."""

    time_s: float
    attempt: int
    what: str
    detail: str = ""
    tone: str = ""


def timeline(incident: Incident) -> tuple[Event, ...]:
    """Start and failure of each job, every act, and the end. What has no known time is not in it."""
    events: list[Event] = [Event(incident.opened_s, 0, "Incident opened", f"by {incident.trigger}", "mark")]
    failure = first_failure(incident)
    finding = root_cause(incident)
    if failure is not None:
        job = failure.job
        if job.start_time_s is not None:
            events.append(Event(job.start_time_s, 0, f"Job {job.id} started"))
        if finding is not None and finding.time_s is not None:
            events.append(Event(finding.time_s, 0, f"Job {job.id} failed", place_of_finding(finding), "bad"))
        if job.end_time_s is not None:
            events.append(Event(job.end_time_s, 0, f"Job {job.id} ended", job.state.name))
    events += (_act_event(act, incident) for act in incident.acts)
    for attempt in incident.attempts:
        events += _attempt_events(attempt, incident)
    if incident.closed_s is not None:
        events.append(Event(incident.closed_s, _last_attempt(incident), "Incident over", incident.state, "mark"))
    return tuple(sorted(events, key=lambda event: event.time_s))


def _act_event(act: Act, incident: Incident) -> Event:
    number = next((attempt.number for attempt in incident.attempts if attempt.job == act.target), 0)
    verb = _VERBS.get(act.what, act.what)
    target = f"job {act.target}" if act.what in ("cancel", "submit") and not act.planned_only else act.target
    who = f"approved by {act.approved_by}" if act.approved_by else ""
    if act.planned_only:
        return Event(act.time_s, number, f"Planned, not done: {act.what} {target}", who)
    return Event(act.time_s, number, f"{verb} {target}", "; ".join(part for part in (act.result, who) if part), "act")


def _attempt_events(attempt: Attempt, incident: Incident) -> list[Event]:
    if worked(attempt):
        seen = [
            visit.ended_s for visit in incident.visits
            if visit.attempt == attempt.number and visit.outcome == Milestone.PASSED and visit.ended_s is not None
        ]
        told = f"Job {attempt.job} got past the failing step"
        return [Event(time_s, attempt.number, told, tone="good") for time_s in seen[-1:]]
    cause = attempt.story.root_cause if attempt.story else None
    if cause is not None and cause.time_s is not None and worked(attempt) is False:
        return [Event(cause.time_s, attempt.number, f"Job {attempt.job} failed again", place_of_finding(cause), "bad")]
    return []


def _last_attempt(incident: Incident) -> int:
    return incident.attempts[-1].number if incident.attempts else 0
