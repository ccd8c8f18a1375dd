"""Signing in: nobody without a token, a session that ends when it should, no header believed from the wrong place."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from runbook.config import Inventory, load_inventory
from runbook.documents import DocumentsInvalid
from runbook.errors import BadInput, NotAllowed, NotFound
from runbook.model.units import IncidentId
from runbook.service.auth import Signer, networks, session_key
from runbook.service.tokens import Role, TokenFile, add_token, remove_token
from tests.report.sample_incidents import awaiting, recovered
from tests.service.signed_in import FORM, HERE, PAGE, SECRET, Place

INCIDENT = IncidentId("oom-alpha-1")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.store.save(replace(recovered(), id=INCIDENT))
    return made


def test_without_a_token_nothing_is_shown(place: Place) -> None:
    client = place.client()
    page = f"/incidents/{INCIDENT}"
    for path in ("/", page, f"{page}/incident.json", f"{page}/question", f"{page}/rollback"):
        program = client.get(path)
        assert (program.status_code, program.headers["www-authenticate"]) == (401, "Bearer")
        browser = client.get(path, headers=PAGE)
        assert browser.status_code == 303
        assert browser.headers["location"].startswith("/sign-in?next=%2F")
        assert "alpha" not in program.text


def test_health_and_metrics_stay_reachable_and_say_no_names(place: Place) -> None:
    client = place.client()
    assert client.get("/metrics").text == "runbook_up 1\n"
    assert client.get("/healthz").json() == {"ok": True, "spool_depth": 1}
    assert "alice" in client.get("/healthz", headers=place.bearer(Role.READ)).text
    place.sign_in.open_paths = frozenset()
    assert client.get("/metrics").status_code == client.get("/healthz").status_code == 401
    assert client.get("/metrics", headers=place.bearer(Role.READ)).status_code == 200


@pytest.mark.parametrize("role", [Role.READ, Role.ACT])
def test_a_bearer_token_reads(place: Place, role: Role) -> None:
    assert place.client().get("/", headers=place.bearer(role)).status_code == 200


def test_the_alert_token_reads_nothing(place: Place) -> None:
    assert place.client().get("/", headers=place.bearer(Role.ALERT)).status_code == 403
    answer = place.client().post("/sign-in", data={"token": place.token[Role.ALERT]}, headers=FORM)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("value", ["Bearer ", "Bearer x", "Bearer rbk_" + "x" * 43, "bearer \xff", "Bearer a b"])
def test_a_wrong_bearer_token_is_nobody_whatever_else_is_there(place: Place, value: str) -> None:
    client = place.browser()
    assert client.get("/", headers=[(b"authorization", value.encode("latin-1"))]).status_code == 401


def test_another_scheme_is_the_proxys_affair(place: Place) -> None:
    assert place.browser().get("/", headers={"authorization": "Basic YTpi"}).status_code == 200


def test_many_wrong_tokens_are_slowed_and_a_right_one_still_passes(place: Place) -> None:
    client = place.client()
    codes = [client.get("/", headers={"authorization": f"Bearer wrong{number}"}).status_code for number in range(15)]
    assert codes == [401] * 10 + [429] * 5
    assert client.post("/sign-in", data={"token": "wrong"}, headers=FORM).status_code == 429
    assert client.get("/", headers=place.bearer(Role.READ)).status_code == 200
    later = place.sign_in.now() + 61
    place.sign_in.now = lambda: later
    assert client.get("/", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_a_session_opens_the_page_that_was_asked_for(place: Place) -> None:
    client = place.client()
    asked = client.get(f"/incidents/{INCIDENT}", headers=PAGE)
    form = client.get(asked.headers["location"], headers=PAGE)
    assert form.status_code == 200
    assert f'value="/incidents/{INCIDENT}"' in form.text
    answer = client.post(
        "/sign-in", data={"token": f" {place.token[Role.READ]} ", "next": f"/incidents/{INCIDENT}"}, headers=FORM
    )
    assert (answer.status_code, answer.headers["location"]) == (303, f"/incidents/{INCIDENT}")
    page = client.get(f"/incidents/{INCIDENT}", headers=PAGE)
    assert page.status_code == 200
    assert "reader, may read" in page.text


@pytest.mark.parametrize(
    "next_place",
    ["//evil.example/", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/a\r\nb: c", ""],
)
def test_the_way_back_leads_nowhere_else(place: Place, next_place: str) -> None:
    answer = place.client().post(
        "/sign-in", data={"token": place.token[Role.READ], "next": next_place}, headers=FORM
    )
    assert answer.headers["location"] == "/"
    assert "evil" not in place.client().get("/sign-in", params={"next": next_place}, headers=PAGE).text


def test_the_cookie_is_for_this_site_alone(place: Place) -> None:
    def cookie(address: str) -> str:
        answer = place.client(address).post("/sign-in", data={"token": place.token[Role.READ]}, headers=FORM)
        return str(answer.headers["set-cookie"])

    here, elsewhere = cookie(HERE), cookie("https://runbook.example")
    for flag in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=3600"):
        assert flag in here
        assert flag in elsewhere
    assert here.startswith("runbook_session=")
    assert "Secure" not in here
    assert elsewhere.startswith("__Host-runbook_session=")
    assert "Secure" in elsewhere
    assert place.token[Role.READ] not in here


def test_a_token_is_not_taken_over_plain_http_from_afar(place: Place) -> None:
    answer = place.client("http://runbook.example").post(
        "/sign-in", data={"token": place.token[Role.READ]},
        headers={"origin": "http://runbook.example", "accept": "text/html"},
    )
    assert answer.status_code == 403
    assert "https" in answer.text


def test_a_session_ends_when_its_token_is_taken_back(place: Place) -> None:
    client = place.browser(Role.ACT)
    assert client.get("/").status_code == 200
    remove_token(place.tokens, "acter")
    assert client.get("/").status_code == 401


def test_a_session_ends_with_its_time_with_signing_out_and_with_any_change_to_its_cookie(tmp_path: Path) -> None:
    place = Place(tmp_path, session_s=-2)
    assert place.browser().get("/").status_code == 401
    place.sign_in.signer = Signer(b"k" * 32, 3600)
    client = place.browser()
    cookie = client.cookies["runbook_session"]
    assert client.get("/").status_code == 200
    assert client.post("/sign-out", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.get("/").status_code == 200
    out = client.post("/sign-out", headers=FORM)
    assert out.status_code == 303
    again = place.client()
    for value in (cookie, cookie[:-1] + ("A" if cookie[-1] != "A" else "B"), "x" * 5000, "", "a.b.c"):
        again.cookies.set("runbook_session", value)
        assert again.get("/").status_code == 401
    other = place.client()
    other.cookies.set("runbook_session", Signer(b"other" * 8, 3600).begin("0" * 64))
    assert other.get("/").status_code == 401


def test_signing_in_from_a_page_elsewhere_is_refused(place: Place) -> None:
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}, {"origin": "null"}, {}):
        answer = place.client().post("/sign-in", data={"token": place.token[Role.READ]}, headers=headers)
        assert answer.status_code == 403


def test_a_link_from_a_chat_needs_no_second_signing_in(place: Place) -> None:
    answer = place.client().get(f"/incidents/{INCIDENT}", headers={**PAGE, "sec-fetch-site": "cross-site"})
    assert answer.status_code == 200
    assert f'content="0; url=/incidents/{INCIDENT}"' in answer.text
    assert "recovered" not in answer.text.lower()


# -- the proxy -------------------------------------------------------------------------------------------------


def _named(user: str, **more: str) -> dict[str, str]:
    return {"x-forwarded-user": user, "x-runbook-proxy-secret": SECRET, **more}


def test_whom_the_proxy_names_may_read_and_those_listed_may_act(place: Place) -> None:
    client = place.client(peer="10.0.0.5")
    place.store.save(replace(awaiting(), id=IncidentId("oom-alpha-2")))
    page = "/incidents/oom-alpha-2"
    assert "carol may look, not act" in client.get(page, headers=_named("carol")).text
    for headers in (_named("bob"), _named("carol", **{"x-forwarded-groups": "staff, oncall"})):
        assert "Yes, do this" in client.get(page, headers=headers).text


@pytest.mark.parametrize("peer", ["10.0.0.6", "127.0.0.1", "::1", "testclient", "::ffff:10.0.0.6"])
def test_a_header_from_elsewhere_is_not_believed(place: Place, peer: str) -> None:
    headers = _named("bob", **{"x-forwarded-for": "10.0.0.5", "forwarded": "for=10.0.0.5"})
    assert place.client(peer=peer).get("/", headers=headers).status_code == 401


@pytest.mark.parametrize("secret", ["", "wrong", SECRET + "x"])
def test_a_header_without_the_proxys_secret_is_not_believed(place: Place, secret: str) -> None:
    headers = {"x-forwarded-user": "bob", "x-runbook-proxy-secret": secret}
    assert place.client(peer="10.0.0.5").get("/", headers=headers).status_code == 401


@pytest.mark.parametrize("name", ["", "<script>", "bob\x1b[2J", "x" * 65, "bob, root", "../bob", "bob "])
def test_a_name_that_is_none_is_nobody(place: Place, name: str) -> None:
    assert place.client(peer="10.0.0.5").get("/", headers=_named(name)).status_code == 401


def test_two_names_are_nobody(place: Place) -> None:
    client = place.client(peer="10.0.0.5")
    headers = [("x-forwarded-user", "carol"), ("x-forwarded-user", "bob"), ("x-runbook-proxy-secret", SECRET)]
    assert client.get("/", headers=headers).status_code == 401


# -- files and settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602, 0o666])
def test_a_file_of_tokens_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens.yaml"
    add_token(path, "a", Role.READ)
    TokenFile(path).check()
    path.chmod(mode)
    with pytest.raises(NotAllowed, match="others"):
        TokenFile(path).check()
    path.chmod(0o640)
    TokenFile(path).check()


def test_a_file_of_tokens_that_is_not_there_or_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens.yaml"
    with pytest.raises(NotFound):
        TokenFile(path).check()
    made = add_token(path, "a", Role.READ)
    tokens = TokenFile(path)
    assert tokens.holder(made, 0.0) is not None
    path.write_text("version: 1\ntokens: {", encoding="utf-8")
    with caplog.at_level(logging.ERROR):
        assert tokens.holder(made, 0.0) is None
    assert "nobody can sign in" in caplog.text
    with pytest.raises(BadInput):
        tokens.check()


def test_a_token_is_kept_as_a_hash_and_once_a_name(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    made = add_token(path, "alice@site", Role.ACT, until_s=1000.0)
    assert re.fullmatch(r"rbk_[\w-]{43}", made)
    assert made not in path.read_text(encoding="utf-8")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadInput, match="already"):
        add_token(path, "alice@site", Role.READ)
    for name in ("", "a b", '"', "-x", "x" * 65, "a\nb: c"):
        with pytest.raises(BadInput):
            add_token(path, name, Role.READ)
    holder = TokenFile(path).holder(made, 999.0)
    assert holder is not None
    assert (holder.name, holder.role) == ("alice@site", Role.ACT)
    assert TokenFile(path).holder(made, 1000.0) is None
    path.chmod(0o640)
    add_token(path, "b", Role.READ)
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(NotFound):
        remove_token(path, "c")


def test_the_key_of_sessions_is_made_once_and_is_nobody_elses(tmp_path: Path) -> None:
    key = session_key(tmp_path)
    assert len(key) == 32
    assert session_key(tmp_path) == key
    (tmp_path / "session.key").chmod(0o644)
    with pytest.raises(NotAllowed):
        session_key(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
def test_a_file_of_tokens_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    add_token(path, "a", Role.READ)
    os.chown(path, 12345, 12345)
    with pytest.raises(NotAllowed, match="another user"):
        TokenFile(path).check()


BASE = """\
version: 1
id: mine
title: Mine
cluster: c1
scheduler: {kind: local}
nodes: {kind: none}
"""


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("sign_in: {}", "tokens_file or proxy is needed"),
        ("sign_in: {proxy: {addresses: []}}", "at least 1"),
        ("sign_in: {proxy: {addresses: [nowhere]}}", "IPv4 or IPv6"),
        ("sign_in: {proxy: {addresses: [127.0.0.1]}}", "secret_file is needed"),
        ("sign_in: {proxy: {addresses: ['::/0']}}", "secret_file is needed"),
        ("sign_in: {proxy: {addresses: [10.0.0.1], act_groups: [oncall]}}", "needs groups_header"),
        ("sign_in: {proxy: {addresses: [10.0.0.1], user_header: 'a b'}}", "pattern"),
        ("sign_in: {tokens_file: /t, session_hours: 0}", "greater than 0"),
        ("webhook: {job_labels: [job]}", "never a Slurm job's id"),
    ],
)
def test_a_sign_in_that_would_let_anybody_in_is_refused(tmp_path: Path, section: str, problem: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BASE + section + "\n", encoding="utf-8")
    with pytest.raises(DocumentsInvalid, match=re.escape(problem)):
        load_inventory(str(path))


def test_without_the_section_there_is_no_sign_in(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BASE, encoding="utf-8")
    inventory: Inventory = load_inventory(str(path))
    assert inventory.sign_in is None
    assert networks(("10.0.0.0/8",))[0].num_addresses == 1 << 24


def test_behind_a_proxy_that_hides_its_name_the_cookie_is_still_for_tls_alone(place: Place) -> None:
    client = place.client()
    answer = client.post(
        "/sign-in", data={"token": place.token[Role.READ]}, headers={**FORM, "x-forwarded-proto": "https"}
    )
    assert answer.headers["set-cookie"].startswith("__Host-runbook_session=")
    assert "Secure" in answer.headers["set-cookie"]
    value = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
    assert client.get("/", headers={"cookie": f"__Host-runbook_session={value}"}).status_code == 200
    # Without the prefix it is no cookie away from loopback: any neighbour's site could have set it.
    afar = place.client("https://runbook.example")
    assert afar.get("/", headers={"cookie": f"runbook_session={value}"}).status_code == 401


@pytest.mark.parametrize("tail", ["/assets/", "/assets/x?", "/healthz?", "/metrics#", "/sign-in?"])
def test_no_host_header_opens_another_door(place: Place, tail: str) -> None:
    client = place.client()
    for host in (f"localhost:80{tail}", f"localhost{tail}", f"x@localhost:80{tail}"):
        for path in ("/", f"/incidents/{INCIDENT}", f"/incidents/{INCIDENT}/incident.json"):
            answer = client.get(path, headers={"host": host})
            assert answer.status_code in (400, 401)
            assert "alpha" not in answer.text


@pytest.mark.parametrize(
    "path", ["/assets/../incidents/oom-alpha-1", "/assets/%2e%2e/x", "//", "/metrics/../", "/METRICS"]
)
def test_no_path_opens_another_door(place: Place, path: str) -> None:
    client = place.client()
    answer = client.send(client.build_request("GET", httpx2.URL(HERE, raw_path=path.encode())))
    assert answer.status_code in (401, 404)
    assert "Incidents, newest first" not in answer.text
