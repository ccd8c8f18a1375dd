"""The pictures of an incident's page in Chromium: seen by day, by night, on a phone, on paper, and without eyes."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from runbook.model.incident import Incident
from runbook.model.log import MemorySample, Progress, StepTime
from runbook.report.html import render_html
from tests.browser.conftest import Open, Visit
from tests.report.sample_incidents import FLOW, co_tenant, gib, recovered, two_attempts

pytestmark = pytest.mark.browser

SEEN_CHARTS = "svg.chart >> visible=true"
CONTRAST_OF_SHAPES = """(kind) => {
  const bright = text => text.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = bright(getComputedStyle(document.querySelector('main')).backgroundColor);
  const shapes = [...document.querySelectorAll(`svg.chart .${kind}`)];
  return shapes.map(shape => {
    const style = getComputedStyle(shape);
    const paint = bright(style.stroke === 'none' || kind === 'chart-label' ? style.fill : style.stroke);
    return (Math.max(paint, ground) + 0.05) / (Math.min(paint, ground) + 0.05);
  });
}"""


def _progress(first: int, last: int, base: float, growth: float, seconds: float) -> Progress:
    random = Random(1)
    steps = range(first, last, 5)
    return Progress(
        last_step=last - 1,
        memory=tuple(
            MemorySample(
                rank, step, None, gib(base + growth * (step - first) + random.random() + rank - 19), source="line"
            )
            for rank in (18, 19, 20) for step in steps
        ),
        step_times=tuple(StepTime(step, seconds + random.random()) for step in steps),
    )


def whole() -> Incident:
    """Two attempts, with memory and step times along the steps of the first failure and of the relaunch that passed."""
    incident = two_attempts()
    assert incident.original is not None and incident.original.story is not None
    story = replace(incident.original.story, progress=_progress(500, 1200, 55.0, 0.026, 21.4))
    passed = incident.attempts[-1]
    assert passed.verdict is not None
    verdict = replace(passed.verdict, progress=_progress(1000, 1512, 57.0, 0.001, 23.1))
    return replace(
        incident, original=replace(incident.original, story=story),
        attempts=(*incident.attempts[:-1], replace(passed, verdict=verdict, queued_s=1_500.0)),
    )


def _keep(seen: Visit, name: str) -> None:
    """Screenshots for whoever wants to look: RUNBOOK_SCREENSHOTS names the folder."""
    folder = os.environ.get("RUNBOOK_SCREENSHOTS")
    if folder:
        seen.page.screenshot(path=str(Path(folder) / f"pictures-{name}.png"), full_page=True)


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_each_picture_is_seen_once_with_words_that_can_be_read(visit: Open, width: int, dark: bool) -> None:
    seen = visit(render_html(whole(), FLOW), width=width, dark=dark)
    _keep(seen, f"{width}-{'dark' if dark else 'light'}")
    assert seen.console == []
    assert seen.requests == []
    assert seen.page.locator(SEEN_CHARTS).count() == 5
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    heights = seen.page.locator(f"{SEEN_CHARTS} >> .chart-label").evaluate_all(
        "labels => labels.map(label => label.getBoundingClientRect().height)"
    )
    assert min(heights) >= 11
    outside = seen.page.locator(f"{SEEN_CHARTS} >> .chart-label").evaluate_all(
        """labels => labels.filter(label => {
             const [text, all] = [label.getBoundingClientRect(), label.closest('svg').getBoundingClientRect()];
             return text.left < all.left - 1 || text.right > all.right + 1; }).map(label => label.textContent)"""
    )
    assert outside == []
    assert min(seen.page.evaluate(CONTRAST_OF_SHAPES, "chart-label")) >= 4.5
    for kind in ("run-failed", "run-again", "mark-failed", "mark-checkpoint", "chart-major"):
        assert min(seen.page.evaluate(CONTRAST_OF_SHAPES, kind)) >= 3, kind


def test_labels_of_an_axis_do_not_overlap(visit: Open) -> None:
    for width in (390, 1200):
        seen = visit(render_html(whole(), FLOW), width=width)
        overlapping = seen.page.locator(f"{SEEN_CHARTS} >> .chart-axis").evaluate_all(
            """axes => axes.flatMap(axis => {
                 const boxes = [...axis.querySelectorAll('text')].map(text => text.getBoundingClientRect());
                 return boxes.flatMap((one, i) => boxes.slice(i + 1).filter(other =>
                   one.left < other.right && other.left < one.right
                   && one.top + 2 < other.bottom && other.top + 2 < one.bottom)); })"""
        )
        assert overlapping == []


def test_before_and_after_have_one_scale(visit: Open) -> None:
    for width in (390, 1200):
        seen = visit(render_html(recovered(), FLOW), width=width)
        widths = seen.page.locator(f"{SEEN_CHARTS} >> .part-allocated").evaluate_all(
            "parts => parts.map(part => part.getBoundingClientRect()).sort((one, other) => one.y - other.y)"
            ".map(box => box.width)"
        )
        assert len(widths) == 2
        assert widths[0] / widths[1] == pytest.approx(73.61 / 57.80, rel=0.01)


def test_patterns_tell_the_parts_apart_without_colour(visit: Open) -> None:
    seen = visit(render_html(co_tenant(), FLOW))
    fills = seen.page.locator(f"{SEEN_CHARTS} >> rect").evaluate_all(
        "parts => parts.map(part => [part.getAttribute('class'), getComputedStyle(part).fill])"
    )
    by_kind = dict(fills)
    assert len({by_kind[kind] for kind in ("part-unallocated", "part-outside", "part-others")}) == 3
    assert all("hatch" in by_kind[kind] for kind in ("part-unallocated", "part-outside", "part-others"))
    for name in {match for fill in by_kind.values() for match in re.findall(r"#([\w-]+)", fill)}:
        assert seen.page.locator(f"pattern#{name}").count() == 1


def test_on_paper_it_is_light_and_whole(visit: Open) -> None:
    seen = visit(render_html(whole(), FLOW), dark=True)
    seen.page.emulate_media(media="print", color_scheme="dark")
    assert seen.page.locator(SEEN_CHARTS).count() == 5
    free = seen.page.locator(f"{SEEN_CHARTS} >> .part-free").first.evaluate("part => getComputedStyle(part).fill")
    assert min(int(part) for part in re.findall(r"\d+", free)) > 200
    assert min(seen.page.evaluate(CONTRAST_OF_SHAPES, "chart-label")) >= 4.5
    _keep(seen, "paper")


def test_a_reader_without_eyes_is_told_the_figures(visit: Open) -> None:
    seen = visit(render_html(whole(), FLOW), width=390)
    tree = seen.page.locator("#died").aria_snapshot()
    assert 'img "When job 884213 failed: Allocated by PyTorch 73.61 GiB' in tree
    assert 'img "Memory over the steps: reserved by PyTorch, GiB.' in tree
    assert "Failed at step 1200" in tree
    assert tree.count('img "Memory over the steps') == 1
