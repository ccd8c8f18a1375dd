"""Signing in, saying yes and taking back in a real browser, with and without script: the browser's own word counts."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import expect

from runbook.model.incident import Act
from runbook.model.units import IncidentId
from runbook.service.tokens import Role, remove_token
from runbook.steps.shared.base import with_act
from tests.browser.conftest import Open
from tests.report.sample_incidents import awaiting, recovered
from tests.service.signed_in import Place

pytestmark = pytest.mark.browser

INCIDENT = IncidentId("oom-alpha-7")


class Service:
    """The whole application on a port."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._server = uvicorn.Server(
            uvicorn.Config(place.app(), port=0, log_config=None, lifespan="off", ws="none", proxy_headers=False)
        )
        socket = self._server.config.bind_socket()
        socket.listen()
        self.port = socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [socket]})
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    def address(self, path: str = "/") -> str:
        return f"http://localhost:{self.port}{path}"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    place = Place(tmp_path)
    place.store.save(replace(awaiting(), id=INCIDENT))
    running = Service(place)
    yield running
    running.stop()


@pytest.mark.parametrize("script", [True, False])
def test_from_the_link_in_the_alert_to_a_yes(service: Service, visit: Open, script: bool) -> None:
    seen = visit(service.address(f"/incidents/{INCIDENT}"), script=script, width=390)
    page = seen.page
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("Your token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    page.get_by_label("Your token").fill(service.place.token[Role.ACT])
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(service.address(f"/incidents/{INCIDENT}"))
    (cookie,) = page.context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    asked = page.locator(".actions")
    expect(asked).to_contain_text(awaiting().awaiting)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390 if script else True
    # Whoever answers sees on a phone's first screen whose job it is, what was done and that it does not run.
    answers = page.locator(".answers").bounding_box()
    assert answers is not None and answers["y"] + answers["height"] < 844
    page.get_by_role("button", name="Yes, do this").click()
    expect(page.get_by_role("heading", name="acter said yes")).to_be_visible()
    assert service.place.answers == [(INCIDENT, True, "acter")]
    page.get_by_role("link", name="To the incident's page").click()
    expect(page.locator(".actions")).to_contain_text("it is being handed over")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.context.cookies() == []
    wrong = [line for line in seen.console if "401" not in line]
    assert wrong == []


def test_the_keyboard_alone_answers(service: Service, visit: Open) -> None:
    page = visit(service.address("/sign-in")).page
    # What is typed before the page has given the field the focus is lost, and half a token is a wrong one.
    expect(page.get_by_label("Your token")).to_be_focused()
    page.keyboard.type(service.place.token[Role.ACT])
    page.keyboard.press("Enter")
    expect(page).to_have_url(service.address("/"))
    page.goto(service.address(f"/incidents/{INCIDENT}"))
    page.get_by_role("button", name="No, leave it").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="acter said no")).to_be_visible()
    assert service.place.answers == [(INCIDENT, False, "acter")]


def test_a_page_elsewhere_cannot_answer_for_its_reader(service: Service, visit: Open) -> None:
    page = visit(service.address("/sign-in")).page
    page.get_by_label("Your token").fill(service.place.token[Role.ACT])
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(service.address("/"))
    page.goto(service.address(f"/incidents/{INCIDENT}"))
    fields = "".join(
        f"<input name={name} value='{page.locator(f'.actions input[name={name}]').input_value()}'>"
        for name in ("question", "form")
    )
    action = service.address(f"/incidents/{INCIDENT}/answer")
    page.goto("about:blank")
    page.set_content(f"<form method=post action={action}>{fields}<button name=answer value=yes>x</button></form>")
    page.get_by_role("button", name="x").click()
    expect(page.locator("body")).to_contain_text(re.compile("does not count|Nobody is signed in"))
    assert service.place.answers == []


def test_a_link_from_another_site_opens_the_page_at_once(service: Service, visit: Open) -> None:
    page = visit(service.address("/sign-in")).page
    page.get_by_label("Your token").fill(service.place.token[Role.READ])
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(service.address("/"))
    page.goto(f"http://127.0.0.1:{service.port}/sign-in")
    page.evaluate(
        "address => { const link = document.createElement('a'); link.href = address; link.id = 'go';"
        " link.textContent = 'go'; document.body.append(link); }", service.address(f"/incidents/{INCIDENT}"),
    )
    page.locator("#go").click()
    expect(page.locator(".actions")).to_contain_text("reader may look, not act")
    remove_token(service.place.tokens, "reader")
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_click_meant_for_one_question_does_not_answer_the_next(service: Service, visit: Open) -> None:
    page = visit(service.address("/sign-in")).page
    page.get_by_label("Your token").fill(service.place.token[Role.ACT])
    page.get_by_role("button", name="Sign in").click()
    page.goto(service.address(f"/incidents/{INCIDENT}"))
    expect(page.get_by_role("button", name="Yes, do this")).to_be_enabled()
    page.evaluate(
        "() => { window.came = []; new MutationObserver(() => window.came.push("
        "[...document.querySelectorAll('.actions button')].map((one) => one.disabled)))"
        ".observe(document.getElementById('first'), {childList: true}); }"
    )
    service.place.store.save(replace(awaiting(), id=INCIDENT, awaiting="cancel another job"))
    expect(page.locator(".actions")).to_contain_text("cancel another job")
    assert page.evaluate("window.came") == [[True, True]]
    expect(page.locator("#news")).to_contain_text("Asked of you: cancel another job")
    page.get_by_role("button", name="Yes, do this").click()  # waits until it can be clicked
    expect(page.get_by_role("heading", name="acter said yes")).to_be_visible()
    expect(page.locator("main")).to_contain_text("To: cancel another job")


def test_taking_back_shows_first_what_it_is(service: Service, visit: Open) -> None:
    made = recovered()
    done = replace(made, id=IncidentId("oom-alpha-8"), promoted="/home/ana/train.sh.bak", original=made.failure)
    done = with_act(done, Act("promote", "/home/ana/train.sh", done.updated_s, result="backup /home/ana/train.sh.bak"))
    service.place.store.save(done)
    page = visit(service.address("/incidents/oom-alpha-8"), width=390, dark=True).page
    page.get_by_label("Your token").fill(service.place.token[Role.ACT])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Take back what was changed").click()
    expect(page.locator("main")).to_contain_text("put the old template back over /home/ana/train.sh")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("link", name="Leave it as it is").click()
    expect(page).to_have_url(service.address("/incidents/oom-alpha-8"))
