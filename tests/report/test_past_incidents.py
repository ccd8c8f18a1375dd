"""Incidents that earlier versions stored are opened: some of each form that the document ever had, never changed.

`past_incidents/forms.jsonl.zst` holds two of each form from the first on, the oldest first. A form that is new is put
behind them: python -m tests.report.test_past_incidents
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from runbook.model.incident import SCHEMA_VERSION, IncidentState
from runbook.report.json_documents import dump_incident, load_incident
from tests.report.sample_incidents import hardware_fault, recovered

FOLDER = Path(__file__).parent / "past_incidents"
FORMS = FOLDER / "forms.jsonl.zst"
PAST = sorted(FOLDER.glob("*.json"))


def kept() -> list[bytes]:
    return zstandard.ZstdDecompressor().decompress(FORMS.read_bytes()).splitlines()


def today() -> list[bytes]:
    return [dump_incident(incident, None) for incident in (recovered(), hardware_fault())]


def fields(value: Any, place: str = "") -> Iterator[str]:
    """Every field of a document with its place, whatever it holds."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{place}.{name}"
            yield from fields(inner, f"{place}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner, f"{place}[]")


def opens(data: bytes, where: str) -> None:
    document = json.loads(data)
    incident = load_incident(data, where)
    assert incident.id == document["id"] and incident.state is IncidentState(document["state"])
    assert len(incident.attempts) == len(document["attempts"])
    assert [visit.box for visit in incident.visits] == [visit["box"] for visit in document["visits"]]
    assert load_incident(dump_incident(incident, None), where) == incident


@pytest.mark.parametrize("path", PAST, ids=lambda path: path.stem)
def test_a_stored_incident_of_an_earlier_version_is_opened_and_kept(path: Path) -> None:
    opens(path.read_bytes(), str(path))


@pytest.mark.parametrize("number", range(len(kept())))
def test_one_of_every_form_since_the_first_is_opened_and_kept(number: int) -> None:
    opens(kept()[number], f"line {number + 1} of {FORMS.name}")


def test_every_version_that_is_read_has_one() -> None:
    assert {json.loads(data)["version"] for data in kept()} == set(range(1, SCHEMA_VERSION + 1))


def test_the_form_of_today_is_kept() -> None:
    known = {field for data in kept() for field in fields(json.loads(data))}
    new = {field for data in today() for field in fields(json.loads(data))} - known
    assert not new, "a new form: keep it with `python -m tests.report.test_past_incidents`"


if __name__ == "__main__":
    lines = [json.dumps(json.loads(data), separators=(",", ":")).encode() for data in today()]
    FORMS.write_bytes(zstandard.ZstdCompressor(level=19).compress(b"\n".join([*dict.fromkeys((*kept(), *lines)), b""])))
