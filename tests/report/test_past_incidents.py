"""Incidents that earlier versions stored are opened: one of each form that the document ever had, never changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runbook.model.incident import SCHEMA_VERSION, IncidentState
from runbook.report.json_documents import dump_incident, load_incident

PAST = sorted((Path(__file__).parent / "past_incidents").glob("*.json"))


@pytest.mark.parametrize("path", PAST, ids=lambda path: path.stem)
def test_a_stored_incident_of_an_earlier_version_is_opened_and_kept(path: Path) -> None:
    data = path.read_bytes()
    document = json.loads(data)
    incident = load_incident(data, str(path))
    assert incident.id == document["id"] and incident.state is IncidentState(document["state"])
    assert len(incident.attempts) == len(document["attempts"])
    assert [visit.box for visit in incident.visits] == [visit["box"] for visit in document["visits"]]
    assert load_incident(dump_incident(incident, None), str(path)) == incident


def test_every_version_that_is_read_has_one() -> None:
    assert {int(path.stem.partition("-")[0]) for path in PAST} == set(range(1, SCHEMA_VERSION + 1))
