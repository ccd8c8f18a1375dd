"""The report page in Chromium: quiet, self-contained, readable on a phone and at night, and never fooled."""

from __future__ import annotations

import re

import pytest

from runbook.report.html import render_html
from tests.browser.conftest import CONTRAST, Open
from tests.report.sample_incidents import (
    FLOW,
    SAMPLES,
    awaiting,
    hardware_fault,
    hostile,
    just_opened,
    recovered,
    two_attempts,
    unreachable_node,
)

pytestmark = pytest.mark.browser

@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_is_quiet_fits_a_phone_and_can_be_read(visit: Open, name: str, dark: bool) -> None:
    seen = visit(render_html(SAMPLES[name](), FLOW), width=390, dark=dark)
    assert seen.console == []
    assert seen.requests == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert seen.page.evaluate(CONTRAST) == []
    smallest = seen.page.evaluate(
        "Math.min(...[...document.querySelectorAll('p, li, td, th, dd, dt, code')]"
        ".filter(e => e.innerText.trim()).map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 11


def test_what_to_do_what_was_done_and_whether_it_runs_again_are_on_the_first_screen_of_a_phone(visit: Open) -> None:
    for make in (recovered, two_attempts, awaiting, hardware_fault, unreachable_node):
        seen = visit(render_html(make(), FLOW), width=390)
        box = seen.page.locator(".first .act").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 600
        answers = seen.page.locator(".answers").bounding_box()
        assert answers is not None
        assert answers["y"] + answers["height"] < 844


def test_dark_is_dark_and_light_is_light(visit: Open) -> None:
    page = render_html(recovered(), FLOW)
    shades = []
    for dark in (False, True):
        color = visit(page, dark=dark).page.evaluate("getComputedStyle(document.body).backgroundColor")
        shades.append(sum(int(part) for part in re.findall(r"\d+", color)[:3]))
    assert shades[0] > 700
    assert shades[1] < 100


def test_everything_is_there_without_javascript(visit: Open) -> None:
    seen = visit(render_html(recovered(), FLOW), script=False)
    assert "runbook promote oom-alpha-884213" in seen.page.inner_text("body")


def test_hostile_text_stays_text(visit: Open) -> None:
    seen = visit(render_html(hostile(), FLOW, {"text": "</script><script>document.title='owned'</script>"}))
    assert "<script>document.title='owned'</script>" in seen.page.title()
    assert "\u202e" not in seen.page.title()
    assert seen.page.locator("script, img, iframe, form").count() == 0
    assert "<script>document.title='owned'</script>" in seen.page.inner_text("body")


def test_a_script_that_got_in_would_not_run(visit: Open) -> None:
    page = render_html(recovered(), FLOW).replace("</main>", "<script>document.title='owned'</script></main>")
    seen = visit(page)
    assert "owned" not in seen.page.title()
    assert any("Content Security Policy" in line for line in seen.console)


def test_the_chart_shows_the_path_and_where_it_stands(visit: Open) -> None:
    seen = visit(render_html(two_attempts(), FLOW))
    chart = seen.page.locator(".flow-chart")
    assert chart.locator(".box-visited").count() == 12
    assert chart.locator(".box-pale").count() == 3
    assert "2, 11" in (chart.text_content() or "")
    now = visit(render_html(just_opened(), FLOW))
    assert now.page.locator(".box-running").count() == 1


def test_printing_shows_everything_on_white(visit: Open) -> None:
    seen = visit(render_html(recovered(), FLOW), dark=True)
    seen.page.emulate_media(media="print", color_scheme="light")
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(seen.page.pdf()) > 10_000
