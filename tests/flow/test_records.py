"""What the durable run records of an incident: it comes back as it went, and no text is there twice."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.adapters.store.records import Packed, _applied, _difference, changed, changes, packed, repacked, unpacked
from runbook.errors import BadInput
from runbook.model.template import Companion, TemplateFile
from runbook.report.json_documents import pack_incident
from tests.report.sample_incidents import SAMPLES, recovered

_NAMES = [name for name in SAMPLES if name != "hostile"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(("before", "after"), tuple(pairwise((*_NAMES, *reversed(_NAMES)))))
def test_what_a_box_changed_makes_the_one_of_the_other(before: str, after: str) -> None:
    one, other = SAMPLES[before](), SAMPLES[after]()
    assert pack_incident(unpacked(packed(one))) == pack_incident(one)
    made = changed(packed(one), changes(packed(one), other))
    assert pack_incident(unpacked(made)) == pack_incident(other)


@given(VALUES, VALUES)
@settings(max_examples=200)
def test_any_difference_is_told(before: object, after: object) -> None:
    made = _applied(before, _difference(before, after))
    assert repr(made) == repr(after) or made == after


@pytest.mark.parametrize(("before", "after"), [([1], [True]), ({"a": 1}, {"a": 1.0}), ([[0, 1]], [[False]])])
def test_what_python_takes_for_the_same_is_told(before: object, after: object) -> None:
    assert repr(_applied(before, _difference(before, after))) == repr(after)


TEXTS = ["\0", "\0" + "a" * 32, "\0\0x", "é\udce9" * 200, "\0" + "x" * 300, "\U0001f4a5" * 256]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back(text: str) -> None:
    incident = replace(recovered(), conclusion=text, notes=(text, text))
    assert pack_incident(unpacked(packed(incident))) == pack_incident(incident)
    made = changed(packed(recovered()), changes(packed(recovered()), incident))
    assert pack_incident(unpacked(made)) == pack_incident(incident)


def test_earlier_versions_recorded_the_whole_as_text() -> None:
    one, other = recovered(), SAMPLES["two_attempts"]()
    assert unpacked(pack_incident(one)) == one
    assert unpacked(changed(packed(one), pack_incident(other))) == other
    assert unpacked(changed(repacked(pack_incident(one)), changes(packed(one), other))) == other


def test_a_text_is_recorded_once_and_held_once() -> None:
    text = "".join(f"# {number ** 7}\n" for number in range(60_000))
    companion = Companion(TemplateFile("/data/a.yaml", text), "/data/a.yaml", "job.sh:3")
    incident = replace(recovered(), companions=(companion,))
    once = len(packed(incident))
    assert once < len(text)
    incident = replace(incident, templates=(TemplateFile("job.sh", "x"), companion.file))
    assert len(packed(incident)) < once + 1000
    unchanged = changes(packed(incident), replace(incident, conclusion="done", templates=incident.templates[1:]))
    assert len(unchanged) < 2000
    back = unpacked(packed(incident))
    assert back.companions[0].file.text is back.templates[1].text


@pytest.mark.parametrize("damaged", [b"", b"x", packed(recovered())[:-9], "{", "[]"])
def test_a_row_that_is_damaged_says_so(damaged: bytes | str) -> None:
    with pytest.raises(BadInput, match=r"recorded of an incident cannot be read|no version"):
        unpacked(Packed(damaged) if isinstance(damaged, bytes) else damaged)
