"""After a restore the controller alone knows what was submitted since: which job may be taken for it, and which not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runbook.errors import NotAllowed
from runbook.model.units import IncidentId, UserName
from runbook.slurm.ownership import attempt_mark, lost_claim, new_claim, submitted_under
from tests.report.sample_incidents import OPENED_S, recovered

FAILURE = recovered().failure
assert FAILURE is not None
ORIGINAL = replace(FAILURE.job, owner=UserName("alice"), uid=1001, cluster="alpha")
INCIDENT = IncidentId("oom-alpha-884213")
MARK = attempt_mark(INCIDENT, 1)
TOKEN = f"{MARK}:{'0f' * 16}"
MADE_S = OPENED_S
OURS = replace(ORIGINAL, comment=f"{TOKEN} nightly", submit_time_s=MADE_S + 600)


def test_the_job_that_was_submitted_since_is_found_with_its_own_token() -> None:
    claim = lost_claim(new_claim(INCIDENT, 1, ORIGINAL, MADE_S + 7200), MARK, [OURS], MADE_S)
    assert claim is not None
    assert (claim.token, claim.written_s, claim.owner) == (TOKEN, MADE_S, "alice")


@pytest.mark.parametrize(
    "other",
    [
        {"owner": UserName("mallory"), "uid": 1002}, {"cluster": "beta"}, {"submit_time_s": MADE_S - 3600},
        {"submit_time_s": None}, {"comment": f"{MARK}:"}, {"comment": MARK}, {"comment": f"x{TOKEN}"},
        {"comment": TOKEN.replace(":1:", ":2:")}, {"comment": f"{TOKEN}0"}, {"comment": f"{MARK}:{'0F' * 16}"},
    ],
    ids=str,
)
def test_a_job_of_another_owner_cluster_time_or_attempt_is_not(other: dict[str, Any]) -> None:
    assert lost_claim(new_claim(INCIDENT, 1, ORIGINAL, MADE_S + 7200), MARK, [replace(OURS, **other)], MADE_S) is None


@pytest.mark.parametrize(
    ("other", "whose"),
    [
        ({}, True), ({"owner": UserName("mallory"), "uid": 1002}, False),
        ({"comment": "mine", "submit_time_s": MADE_S - 3600}, False), ({"comment": "mine"}, None),
        ({"submit_time_s": MADE_S - 3600}, None), ({"submit_time_s": None}, None), ({"cluster": "beta"}, None),
    ],
    ids=str,
)
def test_a_job_of_which_only_a_part_fits_is_for_a_person(other: dict[str, Any], whose: bool | None) -> None:
    claim = replace(new_claim(INCIDENT, 1, ORIGINAL, MADE_S), token=TOKEN)
    if whose is None:
        with pytest.raises(NotAllowed, match="seems to be this attempt's"):
            submitted_under(replace(OURS, **other), claim)
    else:
        assert submitted_under(replace(OURS, **other), claim) is whose
