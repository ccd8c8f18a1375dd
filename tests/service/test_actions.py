"""Acting from the page: only those who may, only from the page itself, only what was shown, and only once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from runbook.adapters.clock import SystemClock
from runbook.adapters.files import OwnerFiles
from runbook.adapters.local import LocalScheduler
from runbook.adapters.offline import NoNodes
from runbook.errors import Unavailable
from runbook.model.incident import BoxVisit, Incident, Policy
from runbook.model.units import IncidentId, NodeName
from runbook.service.auth import Signer
from runbook.service.decisions import question_of
from runbook.service.tokens import Role
from runbook.steps.shared.base import Playbook, Ports, StepContext
from tests.flow.inventory import inventory
from tests.report.sample_incidents import HOSTILE, awaiting, hostile, recovered
from tests.service.signed_in import FORM, HERE, PAGE, Place, hidden

INCIDENT = IncidentId("oom-alpha-7")
PATH = f"/incidents/{INCIDENT}"


def waiting() -> Incident:
    return replace(awaiting(), id=INCIDENT)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.store.save(waiting())
    return made


def next_question(incident: Incident, sentence: str) -> Incident:
    """The incident one box further, where it asks something else."""
    visits = (*incident.visits, BoxVisit("relaunch", 0, incident.updated_s))
    return replace(incident, visits=visits, box="relaunch", awaiting=sentence)


def test_a_yes_reaches_the_engine_with_the_name_of_whoever_said_it(place: Place) -> None:
    client = place.browser(Role.ACT)
    page = client.get(PATH, headers=PAGE).text
    assert waiting().awaiting in page
    answer = client.post(f"{PATH}/answer", data={**hidden(page), "answer": "yes"}, headers=FORM)
    assert answer.status_code == 200, answer.text
    assert "acter said yes" in answer.text
    assert place.answers == [(INCIDENT, True, "acter")]


def test_a_no_is_an_answer_too(place: Place) -> None:
    client = place.browser(Role.ACT)
    fields = hidden(client.get(PATH).text)
    assert client.post(f"{PATH}/answer", data={**fields, "answer": "no"}, headers=FORM).status_code == 200
    assert place.answers == [(INCIDENT, False, "acter")]


def test_two_clicks_are_one_answer_and_the_first_word_counts(place: Place) -> None:
    client = place.browser(Role.ACT)
    fields = hidden(client.get(PATH).text)
    codes = [
        client.post(f"{PATH}/answer", data={**fields, "answer": word}, headers=FORM).status_code
        for word in ("yes", "yes", "no", "yes")
    ]
    assert codes == [200, 200, 409, 200]
    assert place.answers == [(INCIDENT, True, "acter")]


def test_whoever_only_reads_sees_the_question_and_may_not_answer(place: Place) -> None:
    client = place.browser(Role.READ)
    page = client.get(PATH, headers=PAGE).text
    assert waiting().awaiting in page
    assert "reader may look, not act" in page
    assert "<button type=\"submit\" name=\"answer\"" not in page
    question = question_of(waiting())
    form = place.sign_in.signer.form("x", INCIDENT, "answer", question)
    answer = client.post(
        f"{PATH}/answer", data={"question": question, "form": form, "answer": "yes"}, headers=FORM
    )
    assert answer.status_code == 403
    for role in (Role.READ, Role.ALERT):
        assert place.client().post(f"{PATH}/answer", headers=place.bearer(role)).status_code == 403
        assert place.client().get(f"{PATH}/rollback", headers=place.bearer(role)).status_code == 403
    assert place.client().post(f"{PATH}/answer", headers=FORM).status_code == 401
    assert place.answers == []


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"}, {"origin": "null"}, {},
        {"sec-fetch-site": "cross-site", "origin": HERE},
    ],
)
def test_a_form_sent_by_a_page_elsewhere_does_nothing(place: Place, headers: dict[str, str]) -> None:
    client = place.browser(Role.ACT)
    fields = hidden(client.get(PATH).text)
    answer = client.post(f"{PATH}/answer", data={**fields, "answer": "yes"}, headers={**PAGE, **headers})
    assert answer.status_code == 403
    assert place.answers == []


def test_an_older_browser_is_known_by_its_origin_and_the_proxys_address_is_ours(tmp_path: Path) -> None:
    place = Place(tmp_path, site_url="https://runbook.example/")
    place.store.save(waiting())
    for origin in (HERE, "https://runbook.example"):
        client = place.browser(Role.ACT)
        fields = hidden(client.get(PATH).text)
        answer = client.post(f"{PATH}/answer", data={**fields, "answer": "yes"}, headers={**PAGE, "origin": origin})
        assert answer.status_code == 200


def _other_incident(place: Place, fields: dict[str, str]) -> dict[str, str]:
    other = IncidentId("oom-alpha-8")
    place.store.save(replace(waiting(), id=other))
    return {**fields, "form": hidden(place.browser().get(f"/incidents/{other}").text)["form"]}


def _other_session(place: Place, fields: dict[str, str]) -> dict[str, str]:
    return {**fields, "form": hidden(place.browser().get(PATH).text)["form"]}


def _other_key(_place: Place, fields: dict[str, str]) -> dict[str, str]:
    return {**fields, "form": Signer(b"x" * 32, 60).form("s", INCIDENT, "answer", fields["question"])}


def _rollbacks(place: Place, fields: dict[str, str]) -> dict[str, str]:
    return {**fields, "form": place.sign_in.signer.form("s", INCIDENT, "rollback", fields["question"])}


@pytest.mark.parametrize(
    "change",
    [
        lambda _place, fields: {**fields, "form": ""}, lambda _place, fields: {"question": fields["question"]},
        lambda _place, fields: {**fields, "form": fields["form"][:-1]},
        lambda _place, fields: {**fields, "form": "x" * 10_000},
        _other_incident, _other_session, _other_key, _rollbacks,
    ],
)
def test_a_form_of_another_session_incident_or_act_does_nothing(
    place: Place, change: Callable[[Place, dict[str, str]], dict[str, str]]
) -> None:
    client = place.browser(Role.ACT)
    fields = change(place, hidden(client.get(PATH).text))
    answer = client.post(f"{PATH}/answer", data={**fields, "answer": "yes"}, headers=FORM)
    assert answer.status_code == 403
    assert "does not count" in answer.text
    assert place.answers == []


def test_a_stale_page_cannot_approve_a_newer_question(place: Place) -> None:
    client = place.browser(Role.ACT)
    fields = hidden(client.get(PATH).text)
    place.store.save(next_question(waiting(), "submit job again with less"))
    answer = client.post(f"{PATH}/answer", data={**fields, "answer": "yes"}, headers=FORM)
    assert answer.status_code == 409
    assert "The question is another by now" in answer.text
    assert "submit job again with less" in answer.text
    assert place.answers == []
    place.store.save(replace(waiting(), awaiting=""))
    answer = client.post(f"{PATH}/answer", data={**fields, "answer": "yes"}, headers=FORM)
    assert answer.status_code == 409
    assert "Nothing is asked any more" in answer.text


def test_every_word_of_the_question_and_every_visit_makes_another_question() -> None:
    first = waiting()
    others = (
        replace(first, awaiting=first.awaiting + "!"), replace(first, run=first.run + 1),
        next_question(first, first.awaiting), replace(first, id=IncidentId("oom-alpha-8")),
    )
    assert len({question_of(incident) for incident in (first, *others)}) == 5
    assert question_of(replace(first, awaiting="")) == ""


@pytest.mark.parametrize(
    "fields", [{"answer": "maybe"}, {"answer": ""}, {"question": ""}, {"answer": ["yes", "no"]}]
)
def test_what_is_no_answer_is_refused(place: Place, fields: dict[str, str]) -> None:
    client = place.browser(Role.ACT)
    given = {**hidden(client.get(PATH).text), "answer": "yes", **fields}
    assert client.post(f"{PATH}/answer", data=given, headers=FORM).status_code == 400
    large = {"answer": "x" * 20_000}
    assert client.post(f"{PATH}/answer", data=large, headers=FORM).status_code == 413
    assert client.get(f"{PATH}/answer", headers=PAGE).status_code == 405
    assert place.answers == []


def test_a_program_answers_with_its_token_and_the_name_of_the_question(place: Place) -> None:
    client = place.client()
    headers = place.bearer(Role.ACT)
    asked = client.get(f"{PATH}/question", headers=headers).json()
    assert asked == {"incident": INCIDENT, "question": question_of(waiting()), "sentence": waiting().awaiting}
    answer = client.post(f"{PATH}/answer", data={"question": asked["question"], "answer": "yes"}, headers=headers)
    assert answer.json()["ok"] is True
    assert place.answers == [(INCIDENT, True, "acter")]
    stale = client.post(f"{PATH}/answer", data={"question": "0" * 32, "answer": "yes"}, headers=headers)
    assert (stale.status_code, stale.json()["ok"]) == (409, False)


def test_a_cluster_that_only_plans_takes_no_yes(tmp_path: Path) -> None:
    place = Place(tmp_path, policy=Policy.PLAN)
    place.store.save(waiting())
    client = place.browser(Role.ACT)
    fields = hidden(client.get(PATH).text)
    assert client.post(f"{PATH}/answer", data={**fields, "answer": "yes"}, headers=FORM).status_code == 409
    assert place.answers == []


def test_an_engine_that_does_not_answer_is_a_page_and_the_answer_may_be_given_again(place: Place) -> None:
    place.problem = Unavailable("the answer could not be handed over", next_step="try again")
    client = place.browser(Role.ACT)
    fields = hidden(client.get(PATH).text)
    answer = client.post(f"{PATH}/answer", data={**fields, "answer": "yes"}, headers=FORM)
    assert answer.status_code == 503
    assert "could not be handed over" in answer.text
    place.problem = None
    assert client.post(f"{PATH}/answer", data={**fields, "answer": "yes"}, headers=FORM).status_code == 200


@pytest.mark.parametrize("name", ["oom-alpha-99", "x", "..%2f..%2fetc", "%00", "<script>"])
def test_an_incident_that_there_is_not(place: Place, name: str) -> None:
    client = place.browser(Role.ACT)
    for answer in (
        client.post(f"/incidents/{name}/answer", data={"question": "x", "answer": "yes", "form": "x"}, headers=FORM),
        client.get(f"/incidents/{name}/rollback", headers=PAGE),
        client.get(f"/incidents/{name}/question"),
    ):
        assert answer.status_code == 404
        assert "<script>" not in answer.text


def test_the_page_is_another_for_another_visitor(place: Place) -> None:
    act, read = place.browser(Role.ACT), place.browser(Role.READ)
    tag = act.get(PATH).headers["etag"]
    assert act.get(PATH, headers={"if-none-match": tag}).status_code == 304
    assert read.get(PATH, headers={"if-none-match": tag}).status_code == 200


def test_an_open_page_stops_asking_what_was_answered_elsewhere(place: Place) -> None:
    client = place.browser(Role.ACT)
    open_page = client.get(PATH)
    tag, fields = open_page.headers["etag"], hidden(open_page.text)
    assert client.post(f"{PATH}/answer", data={**fields, "answer": "yes"}, headers=FORM).status_code == 200
    again = client.get(PATH, headers={"if-none-match": tag})
    assert again.status_code == 200
    assert "acter said yes" in again.text and "Yes, do this" not in again.text
    assert client.get(PATH, headers={"if-none-match": again.headers["etag"]}).status_code == 304


def test_hostile_words_are_words(tmp_path: Path) -> None:
    place = Place(tmp_path)
    name = "</form><script>alert(1)</script>\x1b[2J"
    place.store.save(replace(hostile(), id=INCIDENT, awaiting=f"cancel {HOSTILE} {name}", state=waiting().state))
    client = place.browser(Role.ACT)
    page = client.get(PATH, headers=PAGE).text
    assert "<script>alert" not in page
    assert "\x1b" not in page
    answer = client.post(f"{PATH}/answer", data={**hidden(page), "answer": "yes"}, headers=FORM)
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
    assert "\x1b" not in answer.text


def test_a_kept_file_has_no_buttons(place: Place) -> None:
    from runbook.report.html import render_html
    from tests.report.sample_incidents import FLOW

    assert "<form" not in render_html(waiting(), FLOW)


# -- rollback --------------------------------------------------------------------------------------------------


def _ports(place: Place) -> Ports:
    scheduler = LocalScheduler(place.folder / "scheduler", cluster="alpha")
    return Ports(scheduler, NoNodes(), OwnerFiles(), place.store, SystemClock())


@pytest.fixture
def drained(tmp_path: Path) -> Place:
    """An incident that has ended and whose node the local scheduler holds drained for it."""
    made = Place(tmp_path)
    ports = _ports(made)
    node = ports.scheduler.nodes()[0].name
    ports.scheduler.drain(node, f"runbook:{INCIDENT} row remap failed")
    # No lever is undone here, so no document is needed.
    nothing = cast(Playbook, None)
    made.context_of = lambda incident: StepContext(incident, ports, nothing, inventory(cluster="alpha"))
    made.store.save(replace(recovered(), id=INCIDENT, promoted="", drained_nodes=(node,), failure=None))
    return made


def _reason(place: Place) -> str:
    return _ports(place).scheduler.nodes()[0].reason


def test_a_drained_node_is_given_back_after_its_evidence_was_shown(drained: Place) -> None:
    client = drained.browser(Role.ACT)
    assert f'href="{PATH}/rollback"' in client.get(PATH, headers=PAGE).text
    page = client.get(f"{PATH}/rollback", headers=PAGE)
    assert page.status_code == 200
    node = _ports(drained).scheduler.nodes()[0].name
    assert f"{node} was drained" in page.text
    assert _reason(drained)
    answer = client.post(f"{PATH}/rollback", data=hidden(page.text), headers=FORM)
    assert answer.status_code == 200, answer.text
    assert f"{node} is back in service" in re.sub(r"<[^>]*>", "", answer.text)
    assert _reason(drained) == ""
    kept = drained.store.load(INCIDENT)
    assert kept.drained_nodes == ()
    assert (kept.acts[-1].what, kept.acts[-1].target, kept.acts[-1].approved_by) == ("undrain", node, "acter")
    again = client.post(f"{PATH}/rollback", data=hidden(page.text), headers=FORM)
    assert again.status_code == 409
    assert len(drained.store.load(INCIDENT).acts) == len(kept.acts)


def test_nodes_that_cannot_be_looked_at_are_no_missing_incident(drained: Place) -> None:
    kept = drained.store.load(INCIDENT)
    drained.store.save(replace(kept, drained_nodes=(NodeName("gone-1"),), failure=recovered().failure))
    answer = drained.browser(Role.ACT).get(f"{PATH}/rollback", headers=PAGE)
    assert answer.status_code == 200
    assert "could not be found out" in answer.text and "gone-1" in answer.text
    assert "Take it back" in answer.text


def test_what_was_done_before_a_fault_is_said(drained: Place) -> None:
    kept = drained.store.load(INCIDENT)
    drained.store.save(replace(kept, drained_nodes=(*kept.drained_nodes, NodeName("gone-1"))))
    client = drained.browser(Role.ACT)
    page = client.get(f"{PATH}/rollback", headers=PAGE).text
    answer = client.post(f"{PATH}/rollback", data=hidden(page), headers=FORM)
    assert answer.status_code == 409
    assert "Not all of it was taken back" in answer.text
    assert f"Done: {kept.drained_nodes[0]} is back in service" in answer.text
    assert "gone-1" in answer.text
    assert drained.store.load(INCIDENT).drained_nodes == ("gone-1",)


def test_somebody_elses_drain_is_left(drained: Place) -> None:
    scheduler = _ports(drained).scheduler
    node = scheduler.nodes()[0].name
    scheduler.undrain(node, f"runbook:{INCIDENT}")
    scheduler.drain(node, "bob: bad fan")
    client = drained.browser(Role.ACT)
    page = client.get(f"{PATH}/rollback", headers=PAGE).text
    answer = client.post(f"{PATH}/rollback", data=hidden(page), headers=FORM)
    assert answer.status_code == 409
    assert "somebody else" in answer.text
    assert _reason(drained) == "bob: bad fan"


def test_a_rollback_counts_only_for_what_was_shown(drained: Place) -> None:
    client = drained.browser(Role.ACT)
    page = client.get(f"{PATH}/rollback", headers=PAGE).text
    incident = drained.store.load(INCIDENT)
    drained.store.save(replace(incident, drained_nodes=(*incident.drained_nodes, NodeName("gpu-99"))))
    answer = client.post(f"{PATH}/rollback", data=hidden(page), headers=FORM)
    assert answer.status_code == 409
    assert "changed since" in answer.text
    for headers in ({"sec-fetch-site": "cross-site"}, {}):
        assert client.post(f"{PATH}/rollback", data=hidden(page), headers=headers).status_code == 403
    assert client.post(f"{PATH}/rollback", data={**hidden(page), "form": "x"}, headers=FORM).status_code == 403
    assert _reason(drained)


def test_what_is_at_work_or_changed_nothing_is_not_rolled_back(place: Place) -> None:
    client = place.browser(Role.ACT)
    assert "still at work" in client.get(f"{PATH}/rollback", headers=PAGE).text
    place.store.save(replace(recovered(), id=INCIDENT, promoted="", drained_nodes=()))
    answer = client.get(f"{PATH}/rollback", headers=PAGE)
    assert answer.status_code == 409
    assert "nothing that can be taken back" in answer.text
    assert "rollback" not in client.get(PATH, headers=PAGE).text
