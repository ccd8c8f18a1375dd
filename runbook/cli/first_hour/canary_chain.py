"""Which part of the chain works, judged by what the canary's jobs and their incidents show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from runbook.cli.first_hour.canary_jobs import Trial
from runbook.model.incident import Incident
from runbook.model.job import JobClass
from runbook.model.node import Reach
from runbook.model.units import JobId
from runbook.report.vocabulary.clean import clean_line, shorten


class Works(StrEnum):
    YES = "works"
    PLANNED = "planned"
    """Decided, and not done: the policy is `plan`."""
    WAITS = "waits"
    """For a person's yes: the policy is `approve`."""
    UNTRIED = "not tried"
    NO = "does not"


@dataclass(frozen=True, slots=True)
class Link:
    part: str
    works: Works
    what: str
    next_step: str = ""


@dataclass(slots=True)
class Seen:
    """What was seen of one job."""

    trial: Trial
    job: JobId | None = None
    state: str = ""
    job_class: JobClass | None = None
    event: str = ""
    """The epilog's file; "" where none came."""
    incident: Incident | None = None
    report: str = ""
    problem: str = ""
    next_step: str = ""
    skipped: str = ""

    @property
    def ended(self) -> bool:
        """Whether the scheduler says so; what hangs has failed without."""
        return self.job_class is not None and self.job_class.ended


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the site has."""

    slurm: bool
    plans: bool
    watched: bool
    epilog: str
    spool: str
    spool_there: bool
    targets: int
    reaches_nodes: bool = True


def sentence(seen: Seen) -> str:
    """How it went, for one job."""
    if seen.problem:
        return f"{seen.state or 'submitted'}; {seen.problem}"
    if seen.incident is None:
        return f"{seen.state}, no incident" + ("" if seen.trial.fails else ", as it should be")
    found = seen.incident
    relaunched = [str(one.job) for one in found.attempts if one.job is not None]
    by = f" by job {relaunched[-1]}" if relaunched else ""
    how = "" if seen.ended else " (hanging)"
    return f"{seen.state}{how}; {found.state.value}{by}: {shorten(clean_line(found.conclusion), 110)}"


def document(seen: Seen) -> dict[str, Any]:
    """One job for `--json`."""
    found = seen.incident
    return {
        "name": seen.trial.name, "what": seen.trial.what, "job": seen.job, "state": seen.state, "event": seen.event,
        "skipped": seen.skipped, "problem": seen.problem, "report": seen.report,
        "incident": found.id if found else None, "ended": found.state.value if found else None,
        "relaunched": [one.job for one in found.attempts if one.job is not None] if found else [],
    }  # fmt: skip


def links(seen: list[Seen], site: Surroundings) -> list[Link]:
    """Each part once, by the job that shows it best."""
    failed = [one for one in seen if one.trial.fails and not one.skipped]
    incidents = [one for one in failed if one.incident is not None]
    # What can be cured shows the most of the chain.
    best = next((one for one in incidents if _patched(one)), incidents[0] if incidents else None)
    made = [
        _submitted(failed), *_epilog(failed, site), _healthy(seen),
        *(_missing(one, site) for one in failed if one.state and one.incident is None),
    ]  # fmt: skip
    if best is None or best.incident is None:
        return [*made, Link("log", Works.UNTRIED, "there is no incident to judge by")]
    found = best.incident
    return [
        *made, _log(found), _node(found, site), _patch(best, site), _relaunch(found, site), _proof(found, site),
        Link("report", Works.YES, best.report) if best.report
        else Link("report", Works.WAITS, "is drawn when the incident ends") if found.awaiting
        else Link("report", Works.NO, "no page was drawn", "see whether the state folder has room"),
        _alert(site), _notification(site),
    ]  # fmt: skip


def _patched(one: Seen) -> bool:
    return one.incident is not None and (one.incident.patch is not None or bool(one.incident.attempts))


def _submitted(failed: list[Seen]) -> Link:
    if not failed:
        return Link("jobs", Works.UNTRIED, "none that fails was tried")
    unknown = next((one for one in failed if not one.state), None)
    if unknown is not None:
        return Link("jobs", Works.NO, unknown.problem, unknown.next_step)
    wrong = next((one for one in failed if one.ended and one.job_class is not JobClass.FAILED), None)
    if wrong is not None:
        what = f"{wrong.trial.name}: job {wrong.job} should have failed, and ended as {wrong.state}"
        return Link("jobs", Works.NO, what, "see who or what ended it: sacct --jobs " + str(wrong.job))
    return Link("jobs", Works.YES, f"{len(failed)} failed as they should: {', '.join(str(one.job) for one in failed)}")


def _missing(one: Seen, site: Surroundings) -> Link:
    """A failure of which nothing came."""
    what = f"{one.trial.name}: no incident came of job {one.job}" + (f": {one.problem}" if one.problem else "")
    after = "see whether the daemon takes the spool's events: runbook doctor" if site.watched else ""
    return Link("incident", Works.NO, what, one.next_step or after)


def _epilog(failed: list[Seen], site: Surroundings) -> list[Link]:
    if not site.slurm:
        return [Link("epilog", Works.UNTRIED, "local jobs have none")]
    ended = [one for one in failed if one.ended]
    left = [one for one in ended if one.event]
    if not ended:
        return [Link("epilog", Works.UNTRIED, "no job came to its own end")]
    if not site.epilog:
        return [Link(
            "epilog", Works.NO, "slurm.conf has no EpilogSlurmctld: no failure is noticed by itself",
            "`runbook setup` prints the lines",
        )]  # fmt: skip
    if not site.spool_there:
        return [Link(
            "spool", Works.NO, f"{site.spool} cannot be read by this user", "run as the service's user or root"
        )]  # fmt: skip
    if not left:
        return [Link(
            "epilog", Works.NO, f"{site.epilog} left nothing in {site.spool} for {len(ended)} failed jobs",
            "see whether it runs runbook-epilog, and writes there as Slurm's user (deploy/slurm/README.md)",
        )]  # fmt: skip
    return [
        Link("epilog", Works.YES, f"{site.epilog} told of {len(left)} of {len(ended)} failed jobs"),
        Link("spool", Works.YES, f"{site.spool}: {left[0].event}"),
    ]


def _healthy(seen: list[Seen]) -> Link:
    for one in seen:
        if not one.trial.fails:
            if one.ended and one.job_class is not JobClass.SUCCEEDED:
                return Link(
                    "healthy jobs", Works.NO, f"job {one.job} should have completed, and ended as {one.state}",
                    "the nodes need python3 (3.10 or later), and have to see the folder (--folder)",
                )
            if one.event or one.incident is not None:
                return Link("healthy jobs", Works.NO, f"job {one.job} completed, and was told of")
            if one.problem or not one.ended:
                return Link("healthy jobs", Works.UNTRIED, one.problem or "it did not end", one.next_step)
            return Link("healthy jobs", Works.YES, f"job {one.job} completed and was left alone")
    return Link("healthy jobs", Works.UNTRIED, "left out")


def _log(found: Incident) -> Link:
    failure = found.original or found.failure
    cause = failure.story.root_cause if failure is not None and failure.story is not None else None
    if cause is None:
        return Link("log", Works.NO, "the cause was not found in the log", "the report says which files were read")
    last = next((line for line in reversed(cause.excerpt.splitlines()) if line.strip()), cause.excerpt)
    return Link("log", Works.YES, f"the first failure is found: {shorten(clean_line(last), 130)}")


def _node(found: Incident, site: Surroundings) -> Link:
    failure = found.original or found.failure
    facts = failure.nodes if failure is not None else ()
    if not site.reaches_nodes:
        return Link("node check", Works.UNTRIED, "the inventory reaches no nodes", "set nodes.kind: ssh")
    reached = [one for one in facts if one.reach is Reach.OK]
    if reached:
        return Link("node check", Works.YES, f"{', '.join(one.node for one in reached)} answered")
    why = next((f"{one.node}: {one.reach.value}: {one.reach_detail}" for one in facts), "no node was asked")
    return Link("node check", Works.NO, clean_line(why), "runbook doctor --node NODE says what to mend")


def _patch(best: Seen, site: Surroundings) -> Link:
    found = best.incident
    assert found is not None
    patch = found.attempts[-1].patch if found.attempts and found.attempts[-1].patch else found.patch
    if (patch is None or not patch.diff) and found.awaiting:
        return Link("patch", Works.WAITS, "is decided after the yes")
    if patch is None or not patch.diff:
        return Link("patch", Works.NO, "no change of the script was found", "the report says why")
    lines = [line for line in patch.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    shown = "; ".join(" ".join(line.split()) for line in lines[:4])
    return Link("patch", Works.PLANNED if site.plans else Works.YES, clean_line(shown))


def _relaunch(found: Incident, site: Surroundings) -> Link:
    jobs = [str(one.job) for one in found.attempts if one.job is not None]
    if jobs:
        return Link("relaunch", Works.YES, f"job {jobs[-1]}, as its owner")
    if found.awaiting:
        what = f"waits for a yes: {shorten(clean_line(found.awaiting), 160)}"
        return Link("relaunch", Works.WAITS, what, "runbook approve INCIDENT says yes; canary said no")
    if site.plans:
        return Link("relaunch", Works.PLANNED, "would be submitted as its owner", "policy.mode: approve or apply")
    why = shorten(clean_line(found.conclusion), 160) or "nothing was submitted"
    return Link("relaunch", Works.NO, why, "the report says why")


def _proof(found: Incident, site: Surroundings) -> Link:
    verdicts = [one.verdict for one in found.attempts if one.verdict is not None]
    if verdicts and verdicts[-1].passed:
        return Link("proof", Works.YES, clean_line(verdicts[-1].why) or "past the step where it died")
    if found.awaiting:
        return Link("proof", Works.WAITS, "comes after the yes")
    if site.plans:
        return Link("proof", Works.PLANNED, "would be watched until it is past the step where it died")
    why = verdicts[-1].why if verdicts else "nothing was relaunched"
    return Link("proof", Works.NO, clean_line(why), "the report has the relaunched job's log")


def _alert(site: Surroundings) -> Link:
    if site.watched:
        what = "the daemon's /metrics has the figures; whether Prometheus asks is not seen here"
        return Link("alert", Works.UNTRIED, what, "runbook deploy prometheus prints its rules")
    return Link("alert", Works.UNTRIED, "no daemon runs, so Prometheus has nothing to ask", "runbook serve")


def _notification(site: Surroundings) -> Link:
    if not site.targets:
        return Link("notification", Works.UNTRIED, "the inventory names nobody (notify)", "docs/notifications.md")
    if site.watched:
        return Link("notification", Works.UNTRIED, "the daemon tells, not this command", "runbook doctor --send")
    return Link("notification", Works.UNTRIED, "nobody is told of the canary's own incidents", "runbook doctor --send")
