"""incident.json: it comes back as it went, refuses what it cannot know, and its published schema is current."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.errors import BadInput
from runbook.model.incident import Incident, IncidentState, Policy
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.units import IncidentId, JobId, UserName
from runbook.report.json_documents import (
    dump_incident,
    incident_schema,
    load_contract,
    load_incident,
    pack_incident,
    published_schema,
    unpack_incident,
)
from tests.report.sample_incidents import SAMPLES, recovered

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "incident-schema.json"


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "hostile"])
def test_an_incident_comes_back_as_it_went(name: str) -> None:
    incident = SAMPLES[name]()
    assert load_incident(dump_incident(incident)) == incident
    assert unpack_incident(pack_incident(incident), "here") == incident


@pytest.mark.parametrize("name", SAMPLES)
def test_the_document_is_laid_out_as_json_lays_it_out(name: str) -> None:
    text = dump_incident(SAMPLES[name](), {"empty": [{}, []], "part": 0.1, "true": True}).decode()
    again = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    assert text == re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", again) + "\n"


def test_a_small_figure_comes_back() -> None:
    assert load_contract(dump_incident(recovered(), {"small": 1e-7, "large": 1e22})) == {"small": 1e-7, "large": 1e22}


def test_bytes_that_are_not_utf8_come_back_and_the_rest_stays() -> None:
    incident = replace(recovered(), conclusion="caf\udce9 \u202e ok")
    assert (load_incident(dump_incident(incident)).conclusion == "caf\udce9 \u202e ok") is True
    assert b"caf\\udce9" in dump_incident(incident)
    assert unpack_incident(pack_incident(incident), "here") == incident


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(IncidentState))
@settings(max_examples=50)
def test_any_text_survives(text: str, moment: float, state: IncidentState) -> None:
    incident = Incident(
        IncidentId("oom-a-1"), "a", JobId("1"), Policy.PLAN, text, moment, state=state, notes=(text, text),
    )
    assert load_incident(dump_incident(incident)) == incident


def test_the_contract_travels_beside_the_incident() -> None:
    contract = {"version": 1, "diagnosis": {"kind": "true_oom", "confidence": 0.9}}
    data = dump_incident(recovered(), contract)
    assert load_contract(data) == contract
    assert load_incident(data) == recovered()
    assert load_contract(dump_incident(recovered())) is None


def test_a_key_of_a_later_release_is_passed_over() -> None:
    document = json.loads(dump_incident(recovered()))
    document["tomorrow"] = {"new": True}
    document["failure"]["job"]["tomorrow"] = 1
    assert load_incident(json.dumps(document).encode()) == recovered()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"[1, 2]", "not an incident"),
        (b'{"version": true}', "not an incident"),
        (b'{"version": 2, "id": "oom-a-1"}', "newer runbook"),
        (b'{"version": 1, "id": "oom-a-1"}', "cluster"),
        (b"[" * 100_000, "not JSON"),
        (b'{"version": 1, "id": "\xff"}', "not JSON"),
    ],
)
def test_what_is_no_incident_is_refused_with_the_reason_and_what_to_do(data: bytes, said: str) -> None:
    with pytest.raises(BadInput) as refusal:
        load_incident(data, "/somewhere/incident.json")
    assert said in refusal.value.what
    assert refusal.value.where == "/somewhere/incident.json"
    assert refusal.value.next_step


def test_a_figure_that_is_no_number_is_not_written() -> None:
    job = JobRecord(
        JobId("1"), "a", "n", UserName("u"), JobState("FAILED", JobClass.FAILED), time_limit_s=float("inf")
    )
    failure = recovered().failure
    assert failure is not None
    with pytest.raises(ValueError, match="JSON"):
        dump_incident(replace(recovered(), failure=replace(failure, job=job)))
    with pytest.raises(ValueError, match="JSON compliant"):
        pack_incident(replace(recovered(), failure=replace(failure, job=job)))


def test_a_default_is_of_the_type_that_the_schema_names() -> None:
    parts = [part for each in incident_schema()["$defs"].values() for part in each.get("properties", {}).values()]
    texts = [part["default"] for part in parts if part.get("type") == "string" and "default" in part]
    assert "" in texts and all(isinstance(text, str) for text in texts)


def test_the_published_schema_is_current(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite-golden"):
        SCHEMA_FILE.write_text(published_schema(), encoding="utf-8")
    assert SCHEMA_FILE.read_text(encoding="utf-8") == published_schema(), (
        "the model changed: python -m runbook.report.json_documents > docs/incident-schema.json"
    )


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "hostile"])
def test_every_key_of_an_incident_is_in_the_schema(name: str) -> None:
    definitions = incident_schema()
    unknown = sorted(set(_unknown_keys(json.loads(dump_incident(SAMPLES[name]())), definitions, definitions, "")))
    assert unknown == []


def _unknown_keys(value: Any, part: dict[str, Any], whole: dict[str, Any], path: str) -> list[str]:
    """Keys of the document that no branch of the schema names."""
    if "$ref" in part:
        return _unknown_keys(value, whole["$defs"][part["$ref"].rsplit("/", 1)[1]], whole, path)
    if "anyOf" in part:
        return min((_unknown_keys(value, branch, whole, path) for branch in part["anyOf"]), key=len)
    if isinstance(value, dict):
        if "properties" not in part:
            return [] if "additionalProperties" in part else [path]
        found = [f"{path}.{key}" for key in value if key not in part["properties"]]
        for key in value.keys() & part["properties"].keys():
            found += _unknown_keys(value[key], part["properties"][key], whole, f"{path}.{key}")
        return found
    if isinstance(value, list):
        return [item for entry in value for item in _unknown_keys(entry, part.get("items", {}), whole, f"{path}[]")]
    return [] if "enum" not in part or value in part["enum"] else [path]


def test_the_documents_page_names_keys_that_there_are() -> None:
    page = (SCHEMA_FILE.parent / "incident.md").read_text(encoding="utf-8")
    table = page.split("## What is where")[1].split("## Examples")[0]
    named = {
        key.strip(" `") for row in table.splitlines() if row.startswith("| `") for key in row.split("|")[1].split(",")
    }
    assert named <= incident_schema()["properties"].keys()
    assert len(named) > 15
