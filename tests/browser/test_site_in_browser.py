"""The report site in Chromium: the list with its search, and an incident's page that follows what is stored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Page, expect

from runbook.adapters.store import IncidentStore
from runbook.model.incident import Act, BoxVisit, Incident, IncidentState
from runbook.model.units import IncidentId, JobId
from runbook.service.app import create_app
from tests.browser.conftest import CONTRAST, Open
from tests.report.sample_incidents import (
    HOSTILE,
    OPENED_S,
    awaiting,
    co_tenant,
    hardware_fault,
    hostile,
    just_opened,
    recovered,
    unreachable_node,
)
from tests.service.shown import shown

pytestmark = pytest.mark.browser


class Service:
    """The pages over a real store, on one port for as long as the test lasts, whether the server is up or not."""

    def __init__(self, store: IncidentStore) -> None:
        self.store = store
        self._app = create_app(
            shown(store), now=lambda: OPENED_S + 3_600, look_again_s=(1, 1),
        )
        self.port = 0
        self.start()

    def start(self) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(self._app, port=self.port, log_config=None, lifespan="off", ws="none")
        )
        self._socket = self._server.config.bind_socket()
        self._socket.listen()
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def address(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    running = Service(IncidentStore(tmp_path / "state"))
    yield running
    running.stop()


def save_many(service: Service, *made: Incident) -> None:
    for number, incident in enumerate(made):
        service.store.save(replace(
            incident, id=IncidentId(f"oom-alpha-{number}"), root_job=JobId(f"7{number}"), opened_s=OPENED_S + number
        ))


def narrow(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]  # type: ignore[index]


@pytest.mark.parametrize("width", [390, 1200])
def test_from_the_list_to_a_page_and_back(visit: Open, service: Service, width: int) -> None:
    service.store.save(recovered())
    service.store.save(just_opened())
    seen = visit(service.address(), width=width)
    narrow(seen.page)
    seen.page.get_by_role("link", name="Recovered 1").click()
    assert seen.page.locator("tbody tr").count() == 1
    seen.page.get_by_role("link", name="884213").click()
    assert seen.page.inner_text("h1").startswith("Job 884213 ran out of GPU memory")
    seen.page.go_back()
    assert seen.page.locator("tbody tr").count() == 1
    seen.page.get_by_role("navigation", name="Pages").get_by_role("link", name="Incidents").click()
    assert seen.page.locator("tbody tr").count() == 2
    assert seen.console == []
    assert all(address.startswith(service.address()) for address in seen.requests)


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1200, False)], ids=["phone, dark", "desk, light"])
def test_what_happened_before_and_back_to_its_incidents(visit: Open, service: Service, width: int, dark: bool) -> None:
    save_many(service, recovered(), recovered(), hardware_fault(), co_tenant(), hostile())
    seen = visit(service.address(), width=width, dark=dark, script=False)
    seen.page.get_by_role("link", name="History").click()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("What died of what, and what worked")
    narrow(seen.page)
    assert seen.page.evaluate(CONTRAST) == []
    seen.page.get_by_label("User").fill("ana")
    seen.page.get_by_role("button", name="Show").click()
    expect(seen.page).to_have_url(service.address("/history?user=ana"))
    seen.page.get_by_role("row", name="True out of memory").get_by_role("link").click()
    assert seen.page.locator("tbody tr").count() == 2
    assert seen.console == []


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_searching_and_widening_again(visit: Open, service: Service, script: bool) -> None:
    save_many(service, recovered(), hardware_fault(), co_tenant(), just_opened())
    seen = visit(service.address(), script=script)
    seen.page.get_by_label("Search", exact=True).fill("llama gpu-22")
    seen.page.keyboard.press("Enter")
    expect(seen.page).to_have_url(service.address("/?q=llama+gpu-22"))
    assert seen.page.locator("tbody tr").count() == 3
    seen.page.get_by_text("Filters").click()
    seen.page.get_by_label("Died of").select_option(label="GPU hardware fault (1)")
    seen.page.get_by_role("button", name="Apply").click()
    expect(seen.page).to_have_url(service.address("/?q=llama+gpu-22&diagnosis=hardware_fault"))
    assert seen.page.locator("tbody tr").count() == 1
    assert seen.page.title() == "1: “llama gpu-22”, gpu hardware fault · Incidents"
    seen.page.get_by_label("User").fill("nobody")
    seen.page.get_by_role("button", name="Apply").click()
    assert "No incident fits." in seen.page.inner_text("main")
    seen.page.get_by_role("link", name="without user nobody").click()
    assert seen.page.locator("tbody tr").count() == 1
    seen.page.go_back()
    assert "No incident fits." in seen.page.inner_text("main")
    seen.page.get_by_role("link", name="Clear all").click()
    expect(seen.page).to_have_url(service.address("/"))
    assert seen.page.locator("tbody tr").count() == 4


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_list_with_hostile_rows_fits_a_phone_and_can_be_read(visit: Open, service: Service, dark: bool) -> None:
    save_many(service, recovered(), hostile(), awaiting(), hardware_fault(), co_tenant())
    for path in ("/", "/?q=" + "x" * 150 + "&user=" + "y" * 150, "/?q=<script>document.title='owned'</script>"):
        seen = visit(service.address(path), width=390, dark=dark)
        narrow(seen.page)
        assert seen.page.evaluate(CONTRAST) == []
        assert seen.page.title() != "owned"
        assert seen.console == []
        assert seen.page.locator("script").count() == 1


def test_a_new_incident_appears_in_an_open_list_and_what_is_typed_stays(visit: Open, service: Service) -> None:
    save_many(service, recovered(), hardware_fault())
    page = visit(service.address()).page
    page.get_by_label("Search", exact=True).fill("half a wo")
    link = page.get_by_role("link", name="70", exact=True)
    link.focus()
    save_many(service, recovered(), hardware_fault(), co_tenant())
    expect(page.locator("tbody tr")).to_have_count(3)
    assert page.evaluate("document.activeElement.textContent") == "70"
    assert page.get_by_label("Search", exact=True).input_value() == "half a wo"
    expect(page.locator("#news")).to_have_text("Incidents: 3.")


def at_work() -> Incident:
    return unreachable_node()


def address_of(incident: Incident) -> str:
    return f"/incidents/{incident.id}"


def test_an_open_page_follows_the_incident_to_its_end(visit: Open, service: Service) -> None:
    first = at_work()
    service.store.save(first)
    seen = visit(service.address(address_of(first)), width=390)
    page = seen.page
    page.evaluate("window.same = true")
    page.locator("#evidence summary, #acts-title").first.scroll_into_view_if_needed()
    page.get_by_role("link", name="Evidence").focus()
    page.evaluate("document.querySelector('#acts').scrollIntoView()")
    before = page.evaluate("document.querySelector('#acts').getBoundingClientRect().top")
    looked = (*first.visits[:-1], replace(first.visits[-1], summary="step 1150 of 1200 passed"))
    service.store.save(replace(
        first, visits=looked, acts=(*first.acts, Act("drain", "gpu-22", OPENED_S + 60, result="drained"))
    ))
    expect(page.locator("#acts")).to_contain_text("gpu-22")
    expect(page.locator(".answers")).to_contain_text("step 1150 of 1200 passed")
    assert page.evaluate("window.same") is True
    assert page.evaluate("document.activeElement.textContent") == "Evidence"
    assert abs(page.evaluate("document.querySelector('#acts').getBoundingClientRect().top") - before) < 60
    expect(page.locator("#news")).to_contain_text("step 1150 of 1200 passed")

    service.store.save(awaiting())
    expect(page.locator("#first .act")).to_contain_text("runbook approve oom-alpha-884213")
    assert page.title().startswith("Waits for approval: job 884213")
    expect(page.locator("#news")).to_contain_text("Waits for approval")

    service.store.save(recovered())
    expect(page.locator(".badge").first).to_have_text("Recovered")
    expect(page.locator(".box-running")).to_have_count(0)
    asked = len(seen.requests)
    page.wait_for_timeout(2_500)
    assert len(seen.requests) == asked
    assert seen.console == []


def test_details_that_were_opened_stay_open(visit: Open, service: Service) -> None:
    first = at_work()
    service.store.save(first, {"version": 1})
    page = visit(service.address(address_of(first))).page
    page.locator("summary").click()
    service.store.save(replace(first, notes=("a new note",)), {"version": 1})
    expect(page.locator("#evidence")).to_contain_text("a new note")
    assert page.locator("details[open]").count() == 1


def test_a_service_that_is_away_is_said_and_found_again(visit: Open, service: Service) -> None:
    first = at_work()
    service.store.save(first)
    page = visit(service.address(address_of(first))).page
    expect(page.locator("#connection")).to_be_hidden()
    service.stop()
    expect(page.locator("#connection")).to_contain_text("Not connected since ")
    expect(page.locator("#news")).to_contain_text("Not connected since ")
    assert page.evaluate(CONTRAST) == []
    service.store.save(replace(first, visits=(*first.visits, BoxVisit("promote", 1, OPENED_S + 90))))
    service.start()
    expect(page.locator(".answers")).to_contain_text("Promote the change", timeout=15_000)
    expect(page.locator("#connection")).to_be_hidden()


def test_hostile_text_stays_text_when_it_comes_while_the_page_is_open(visit: Open, service: Service) -> None:
    first = at_work()
    service.store.save(first)
    seen = visit(service.address(address_of(first)))
    failed = replace(first.visits[-1], summary=HOSTILE)
    service.store.save(replace(first, visits=(*first.visits[:-1], failed), notes=(HOSTILE,)))
    expect(seen.page.locator(".answers")).to_contain_text("<script>document.title='owned'</script>")
    assert seen.page.title() != "owned"
    assert seen.page.locator("img").count() == 0
    assert "\u202e" not in seen.page.inner_text("body")
    assert seen.console == []


def test_without_a_script_an_open_incident_is_loaded_again(visit: Open, service: Service) -> None:
    first = at_work()
    service.store.save(first)
    page = visit(service.address(address_of(first)), script=False).page
    service.store.save(recovered())
    expect(page.locator(".badge").first).to_have_text("Recovered", timeout=10_000)
    assert page.locator("meta[http-equiv=refresh]").count() == 0


def test_the_keyboard_alone_leads_to_the_content_and_through_it(visit: Open, service: Service) -> None:
    service.store.save(recovered())
    page = visit(service.address()).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    box = page.locator(".skip").bounding_box()
    assert box is not None and box["width"] > 100
    page.keyboard.press("Enter")
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", reached[-1]
        if reached[-1] == "884213":
            break
    assert reached[0] == "q"
    assert reached[-1] == "884213"
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("Job 884213 ran out of GPU memory")


STRUCTURE = """() => {
  const poor = [];
  let before = 0;
  for (const one of document.querySelectorAll('h1, h2, h3, h4')) {
    const level = Number(one.tagName[1]);
    if (level > before + 1) poor.push('heading ' + one.textContent);
    before = level;
  }
  if (document.querySelectorAll('h1').length !== 1) poor.push('h1');
  if (document.querySelectorAll('main').length !== 1) poor.push('main');
  for (const one of document.querySelectorAll('main th')) if (!one.scope) poor.push('th ' + one.textContent);
  for (const one of document.querySelectorAll('input:not([type=hidden]), select'))
    if (!one.labels.length) poor.push('label ' + one.name);
  for (const one of document.querySelectorAll('section')) {
    const name = one.getAttribute('aria-labelledby');
    if (!name || !document.getElementById(name)) poor.push('section ' + one.id);
  }
  const ids = [...document.querySelectorAll('[id]')].map(one => one.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) poor.push('id ' + id);
  for (const one of document.querySelectorAll('a:not(.skip), button')) {
    const box = one.getBoundingClientRect();
    if (box.width && box.height < 20 && !one.closest('p, li, td, dd, footer')) poor.push('small ' + one.textContent);
  }
  return poor;
}"""


@pytest.mark.parametrize("width", [390, 1200])
def test_headings_landmarks_labels_and_tables_are_in_order(visit: Open, service: Service, width: int) -> None:
    save_many(service, recovered(), hardware_fault(), co_tenant(), awaiting())
    paths = ["/", "/?q=nothing", "/nothing", *(f"/incidents/oom-alpha-{number}" for number in range(4))]
    for path in paths:
        page = visit(service.address(path), width=width).page
        assert page.evaluate(STRUCTURE) == [], path
        narrow(page)


def test_a_link_to_a_part_of_the_page_leads_there(visit: Open, service: Service) -> None:
    service.store.save(recovered())
    page = visit(service.address(address_of(recovered()) + "#timeline")).page
    assert page.evaluate("document.querySelector('#timeline').getBoundingClientRect().top") < 200
    assert page.evaluate("window.scrollY") > 500


def test_a_closed_incident_says_that_nothing_is_asked(visit: Open, service: Service) -> None:
    closed = replace(just_opened(), state=IncidentState.CLOSED, closed_s=OPENED_S + 5, conclusion="The job is healthy.")
    service.store.save(closed)
    seen = visit(service.address(address_of(closed)), width=390)
    assert seen.page.locator("#first .act").inner_text() == "Nothing."
    assert seen.page.locator("[data-live]").count() == 0
