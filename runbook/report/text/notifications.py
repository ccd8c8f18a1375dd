"""Which messages an incident gives rise to, and their text: from how it was and how it is now. Decided here alone.

A title fits a phone's lock screen: the job, what is new, what it died of. A body says in at most six lines what died,
what was done, how it stands, what is asked, and where to read on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runbook.model.incident import NOBODY, About, Act, Attempt, Incident, IncidentState, Message, Severity, declined
from runbook.model.units import rough_duration, sentence
from runbook.report import narrative
from runbook.report.vocabulary.clean import clean_line

TITLE_LIMIT = 80
_LINE_LIMIT = 320
_NAME_LIMIT = 24
ANCHOR = "#first-title"
"""Where a report says what is to be done first."""

_CALL = re.compile("[@\N{FULLWIDTH COMMERCIAL AT}\N{SMALL COMMERCIAL AT}]")
_WEB = re.compile(r"(?i)\bhttp(s?)://")
_LINK = re.compile(r"(?i)(?<!hxxp)(?<!hxxps)://|\bwww\.|\]\(")
_MARKUP = re.compile(r"[][(){}*`~|\\]|(?<![^\W_])_|_(?![^\W_])")


@dataclass(frozen=True, slots=True)
class _News:
    """What is new, and what is said of it in place of what the incident says by itself."""

    event: str
    severity: Severity
    headline: str
    now: str = ""
    asked: str = ""
    question: bool = False


def messages(before: Incident | None, after: Incident, report_url: str = "") -> tuple[Message, ...]:
    """What a person is told of the step from `before` (None: nothing was known) to `after`, most urgent first.

    Pure, so that a step that runs again after a crash gives the same messages with the same `event`. An incident of
    log files alone (`files`) tells nobody: whoever asked reads the answer. Nor does one that is
    closed with nothing to do.
    """
    if after.trigger == "files":
        return ()
    news = (
        *_question(before, after), *_ended(before, after), *_waits(before, after), *_drained(before, after),
        *_held_back(before, after),
        *_attempts(before, after),
    )
    urgent = list(Severity)
    told = (_message(after, one, report_url) for one in news)
    return tuple(sorted(told, key=lambda message: -urgent.index(message.severity)))


def reminder(
    incident: Incident, now_s: float, approval_limit_s: float, report_url: str = ""
) -> Message | None:
    """Once before a question lapses: with a quarter of its time left, at most two hours. None when it is not time."""
    if incident.state is not IncidentState.AWAITING_APPROVAL or not incident.awaiting:
        return None
    left_s = incident.updated_s + approval_limit_s - now_s
    if not 0 < left_s <= min(approval_limit_s / 4, 7200.0):
        return None
    severity = Severity.WARNING if narrative.proven_attempt(incident) else Severity.PAGE
    left = rough_duration(left_s, hours_from_s=5400.0)
    lapses = f"It counts as declined in {left}."
    news = _News(
        f"reminded:{_question_mark(incident)}", severity, f"{left} left for your yes to {incident.awaiting}",
        now=lapses, question=True,
    )
    return _message(incident, news, report_url)


def _question(before: Incident | None, after: Incident) -> tuple[_News, ...]:
    if after.state is not IncidentState.AWAITING_APPROVAL or not after.awaiting:
        return ()
    if before is not None and before.state is IncidentState.AWAITING_APPROVAL and before.awaiting == after.awaiting:
        return ()
    # What is asked once the job runs again (to keep the change) can wait for the morning.
    severity = Severity.WARNING if before is not None and before.state.ended else Severity.PAGE
    return (
        _News(
            f"asked:{_question_mark(after)}", severity, f"waits for your yes to {after.awaiting}", question=True
        ),
    )


def _question_mark(incident: Incident) -> str:
    return f"{incident.run}:{incident.box}:{len(incident.visits)}"


def _ended(before: Incident | None, after: Incident) -> tuple[_News, ...]:
    state = after.state
    if before is not None and before.state is state:
        return ()
    event = f"{state.value}:{after.run}"
    match state:
        case IncidentState.RECOVERED:
            return (_News(f"{event}:{len(after.attempts)}", Severity.INFO, "runs again"),)
        case IncidentState.ESCALATED:
            said_no = any(
                visit.outcome == "declined" and visit.summary != declined(NOBODY) for visit in after.visits[-2:-1]
            )
            headline = f"a person is needed: {after.conclusion}" if after.conclusion else "a person is needed"
            severity = Severity.WARNING if said_no else Severity.PAGE
            return (_News(event, severity, headline, now=after.conclusion),)
        case IncidentState.INTERRUPTED:
            event = f"{event}:{len(after.visits)}"
            return (_News(event, Severity.PAGE, after.conclusion, now=after.conclusion),)
        case IncidentState.PLANNED:
            headline = "a plan, nothing was touched"
            asked = f"Read the plan; `runbook resume {after.id}` carries it out."
            return (_News(event, Severity.WARNING, headline, asked=asked),)
    return ()


def _waits(before: Incident | None, after: Incident) -> tuple[_News, ...]:
    """For somebody else's job, where there is no other node: what the box that waits for it notes."""
    into = after.visits[-2].outcome if len(after.visits) > 1 and not after.visits[-1].outcome else ""
    known = before.notes if before is not None else ()
    return tuple(
        _News(
            f"{note}:{after.run}", Severity.WARNING, note, now=sentence(note),
            asked="nothing, or talk to the job's owner",
        )
        for note in after.notes if into == "tenant" and note not in known
    )


def _held_back(before: Incident | None, after: Incident) -> tuple[_News, ...]:
    """One page for the faulty nodes that a limit on drains has left in service: what the box that drains notes."""
    into = after.visits[-2].outcome if len(after.visits) > 1 and not after.visits[-1].outcome else ""
    known = before.notes if before is not None else ()
    notes = [note for note in after.notes if into == "held_back" and note not in known]
    if not notes:
        return ()
    return (
        _News(
            f"held_back:{after.run}:{len(after.visits)}", Severity.PAGE,
            "a faulty node was left in service: as many are drained as the policy allows",
            now="; ".join(notes), asked="look whether so many nodes fail at once, and drain by hand what does",
        ),
    )


def _drained(before: Incident | None, after: Incident) -> tuple[_News, ...]:
    """One message for the nodes that were drained together."""
    known = len(before.acts) if before is not None else 0
    acts = [act for act in after.acts[known:] if act.what == "drain" and not act.planned_only]
    if not acts:
        return ()
    names = ", ".join(dict.fromkeys(act.target for act in acts))
    why = "; ".join(dict.fromkeys(_drain_reason(act, after) for act in acts))
    asked = f"Reset or repair, then `runbook rollback {after.id} --undrain` looks again and gives back."
    return (_News(f"drained:{after.run}:{names}", Severity.WARNING, f"drained {names}", now=why, asked=asked),)


def _drain_reason(act: Act, incident: Incident) -> str:
    return f"{act.target}: {act.result.removeprefix(f'runbook:{incident.id}').strip() or 'GPU fault'}"


def _attempts(before: Incident | None, after: Incident) -> tuple[_News, ...]:
    known = {attempt.number: attempt for attempt in before.attempts} if before is not None else {}
    told: list[_News] = []
    for attempt in after.attempts:
        old = known.get(attempt.number)
        if attempt.job and (old is None or not old.job):
            told.append(
                _News(
                    f"relaunched:{attempt.number}", Severity.INFO, f"relaunched as {attempt.job}", asked="nothing"
                )
            )
        if _failed(attempt) and (old is None or not _failed(old)):
            why = attempt.verdict.why.rstrip(".") if attempt.verdict else ""
            told.append(
                _News(
                    f"failed_again:{attempt.number}", Severity.WARNING, f"relaunch {attempt.job} failed again",
                    now=f"{sentence(why)} Its logs are read next.", asked="nothing",
                )
            )
    return tuple(told)


def _failed(attempt: Attempt) -> bool:
    return attempt.verdict is not None and attempt.verdict.passed is False


def _message(incident: Incident, news: _News, report_url: str) -> Message:
    failure = narrative.first_failure(incident)
    job = failure.job if failure is not None else None
    page = f"{report_url.rstrip('/')}/incidents/{incident.id}" if report_url else ""
    asked = news.asked or narrative.asked_of_a_person(incident) or "nothing"
    # That a question waits for an answer is said by the question.
    now = news.now or (
        "" if news.question else narrative.again_sentence(incident) or narrative.how_it_stands(incident)
    )
    lines = (
        narrative.what_happened(incident),
        f"Done: {narrative.what_was_done(incident)}",
        f"Now: {now}" if now else "",
        f"Asked: {asked}",
        "" if report_url else f"Read on: `runbook show {incident.id}`",
    )
    return Message(
        event=news.event,
        severity=news.severity,
        title=_title(incident, news.headline),
        body="\n".join(_cut(_calls_nobody(line), _LINE_LIMIT) for line in lines if line),
        link=page if news.question or not page else f"{page}{ANCHOR}",
        answer=f"{page}{ANCHOR}" if news.question and page else "",
        about=About(
            str(incident.id),
            str(job.owner) if job else "",
            job.partition if job else "",
            job.account if job else "",
        ),
        question=news.question,
    )


def _title(incident: Incident, headline: str) -> str:
    failure = narrative.first_failure(incident)
    name = _calls_nobody(_MARKUP.sub("", clean_line(failure.job.name))) if failure is not None else ""
    job = f"job {_calls_nobody(incident.root_job)}" + (f" ({_cut(name, _NAME_LIMIT)})" if name else "")
    start = f"{job}: {_calls_nobody(headline).rstrip('.')}"
    wholes = (f"{start} — {died}" for died in _ways_to_say_died(incident))
    return next((whole for whole in wholes if len(whole) <= TITLE_LIMIT), _cut(start, TITLE_LIMIT))


def _ways_to_say_died(incident: Incident) -> tuple[str, ...]:
    """"GPU out of memory on gpu-22 rank 3", as far as it is known, and shorter ways to say it."""
    found, finding = narrative.cause(incident), narrative.root_cause(incident)
    if found is None:
        return ()
    died = found.kind.entry.short
    if finding is None or not finding.node:
        return (died,)
    on_node = f"{died} on {_calls_nobody(finding.node)}"
    return (f"{on_node} rank {finding.rank}", on_node, died) if finding.rank is not None else (on_node, died)


def _calls_nobody(text: str) -> str:
    """One line in which nothing calls a channel together, and only our own link is one: chats read markup and addresses
    out of what a job's owner or a log wrote."""
    text = _CALL.sub("(at)", clean_line(text).replace("<", "‹").replace(">", "›"))
    return _LINK.sub(_no_link, _WEB.sub(r"hxxp\1://", text))


def _no_link(found: re.Match[str]) -> str:
    """"ftp[:]//x", "www[.]x", "[x] (y)"."""
    match found[0]:
        case "://":
            return "[:]//"
        case "](":
            return "] ("
    return f"{found[0][:3]}[.]"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
