"""One incident says one thing everywhere: what died, of what, on which rank and node, at which step, how it ended and
whether the job runs again are the same in the report's text, on its page, in lists, in the history, in metrics and in
messages."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from runbook.model.incident import Incident
from runbook.report import narrative
from runbook.report.json_documents import dump_incident
from runbook.report.summary import summarize
from runbook.report.text.incident_text import one_line, render_text
from runbook.report.text.notifications import messages
from runbook.report.vocabulary import titles
from tests.frozen import faces

NAMES = sorted(set(faces.sample_incidents()) - {"hostile"})


@dataclass(frozen=True)
class Told:
    """Everything that is said of one incident, markup and breaks of lines taken away."""

    text: str
    page: str
    listed: str
    history: str
    metrics: str
    message: str


@pytest.fixture(params=NAMES)
def incident(request: pytest.FixtureRequest) -> Incident:
    name: str = request.param
    return faces.sample_incidents()[name]


@pytest.fixture
def told(incident: Incident, tmp_path: Path) -> Told:
    faces.store(tmp_path, [incident])
    page, listed, history = (
        _words(faces.page(tmp_path, place)) for place in (f"/incidents/{incident.id}", "/", "/history")
    )
    said = "\n".join(f"{one.title} {one.body} {one.about}" for one in messages(None, incident, faces.URL))
    return Told(
        _plain(render_text(incident)), page, listed, history, metrics=faces.page(tmp_path, "/metrics"),
        message=_plain(said),
    )


def _words(page: str) -> str:
    shown = re.sub(r"(?s)<(style|script)\b.*?</\1>", " ", page)
    return _plain(html.unescape(re.sub(r"<[^>]*>", " ", shown)))


def _plain(text: str) -> str:
    return " ".join(text.split())


def test_how_it_ended(incident: Incident, told: Told) -> None:
    title = titles.STATE_TITLES[incident.state]
    assert f"[{title}]" in told.text and title in one_line(incident)
    assert title in told.page and title in told.listed
    assert json.loads(dump_incident(incident))["state"] == summarize(incident).state.value == incident.state.value
    assert _counted(told)["outcome"] == (incident.state.value if incident.state.ended else "open")


def _counted(told: Told) -> dict[str, str]:
    """The labels under which the metrics count it."""
    (labels,) = re.findall(r"(?m)^runbook_incidents\{([^}]*)\} 1\.0$", told.metrics)
    return dict(re.findall(r'(\w+)="([^"]*)"', labels))


def test_what_it_died_of(incident: Incident, told: Told) -> None:
    best = narrative.cause(incident)
    assert summarize(incident).kind == (best.kind if best else None)
    assert _counted(told)["diagnosis"] == (best.kind if best else "none")
    if best is None:
        assert incident.id not in told.history
        return
    named = titles.diagnosis_title(best)
    for place in (told.text, told.page):
        assert named in place
    for place in (told.listed, told.history):
        assert best.kind.entry.title in place


def test_who_failed_first_and_at_which_step(incident: Incident, told: Told) -> None:
    finding, row = narrative.root_cause(incident), summarize(incident)
    if finding is None:
        assert row.rank is None and not row.node
        return
    assert (row.rank, row.node) == (finding.rank, finding.node or "")
    headline = _plain(row.headline)
    for place in (told.text, told.page, *([told.message] if told.message else [])):
        assert headline in place
    if finding.rank is not None:
        assert set(re.findall(r"\brank (\d+)", headline)) <= {str(finding.rank)}
        for place in (told.text, told.page, told.listed):
            assert re.search(rf"\brank {finding.rank}\b", place)
    if finding.node:
        assert all(finding.node in place for place in (told.text, told.page, told.listed, told.history))
    if finding.step is not None:
        assert all(re.search(rf"\bstep {finding.step:,}\b|\bstep {finding.step}\b", place)
                   for place in (told.text, told.page))


def test_whether_it_runs_again_and_what_was_done(incident: Incident, told: Told) -> None:
    row = summarize(incident)
    assert f"Runs again: {titles.AGAIN_TITLES[row.again]}." in told.text
    assert titles.AGAIN_TITLES[row.again] in told.page and titles.AGAIN_TITLES[row.again] in told.listed
    done = _plain(narrative.what_was_done(incident))
    assert done in told.text and done in told.page
    jobs = {attempt.job for attempt in incident.attempts if attempt.job}
    assert row.relaunches == len(jobs) and set(row.jobs) == {incident.root_job, *jobs}
    for job in jobs:
        assert job in told.text and job in told.page


def test_which_system_it_was(incident: Incident, told: Told) -> None:
    """The history groups by the system whose levers were weighed; no other is named as the job's framework."""
    failure = narrative.first_failure(incident)
    plan = next((attempt.plan for attempt in incident.attempts if attempt.plan is not None), None)
    if plan is None or not plan.system or failure is None or failure.diagnosis is None:
        return
    assert plan.system in told.history
