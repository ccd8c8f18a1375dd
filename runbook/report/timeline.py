"""What happened when, across all attempts: one list of events, oldest first."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.model.incident import Act, Attempt, Incident
from runbook.report.narrative import first_failure, place, root_cause, worked

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
            events.append(Event(finding.time_s, 0, f"Job {job.id} failed", place(finding), "bad"))
        if job.end_time_s is not None:
            events.append(Event(job.end_time_s, 0, f"Job {job.id} ended", job.state.name))
    events += (_act_event(act, incident) for act in incident.acts)
    for attempt in incident.attempts:
        events += _of_attempt(attempt, incident)
    if incident.closed_s is not None:
        events.append(Event(incident.closed_s, _last(incident), "Incident over", incident.state, "mark"))
    return tuple(sorted(events, key=lambda event: event.time_s))


def _act_event(act: Act, incident: Incident) -> Event:
    number = next((attempt.number for attempt in incident.attempts if attempt.job == act.target), 0)
    verb = _VERBS.get(act.what, act.what)
    target = f"job {act.target}" if act.what in ("cancel", "submit") and not act.planned_only else act.target
    who = f"approved by {act.approved_by}" if act.approved_by else ""
    if act.planned_only:
        return Event(act.time_s, number, f"Planned, not done: {act.what} {target}", who)
    return Event(act.time_s, number, f"{verb} {target}", "; ".join(part for part in (act.result, who) if part), "act")


def _of_attempt(attempt: Attempt, incident: Incident) -> list[Event]:
    if worked(attempt):
        seen = [
            visit.ended_s for visit in incident.visits
            if visit.attempt == attempt.number and visit.outcome == "passed" and visit.ended_s is not None
        ]
        told = f"Job {attempt.job} got past the failing step"
        return [Event(time_s, attempt.number, told, tone="good") for time_s in seen[-1:]]
    cause = attempt.story.root_cause if attempt.story else None
    if cause is not None and cause.time_s is not None and worked(attempt) is False:
        return [Event(cause.time_s, attempt.number, f"Job {attempt.job} failed again", place(cause), "bad")]
    return []


def _last(incident: Incident) -> int:
    return incident.attempts[-1].number if incident.attempts else 0
