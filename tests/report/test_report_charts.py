"""What the pictures of an incident show: read out of the SVG as a browser gets it."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.model.incident import Incident
from runbook.model.log import MemorySample, Progress, StepTime
from runbook.model.units import Bytes
from runbook.report.charts import memory_bars
from runbook.report.charts.plots import BarPart, Bars, Line, Lines, draw_bars, draw_lines, nice_ticks
from runbook.report.charts.steps_chart import POINTS, Marks, Run, StepsFigure, memory_over_steps, time_over_steps
from runbook.report.charts.timeline_chart import timeline_figures
from runbook.report.html import render_html
from runbook.report.memory_picture import memory_after, memory_at_failure
from tests.report.sample_incidents import (
    FLOW,
    HOSTILE,
    OPENED_S,
    awaiting,
    co_tenant,
    escalated,
    gib,
    hostile,
    just_opened,
    planned,
    recovered,
    two_attempts,
)


def sample(step: int | None, value: float, rank: int | None = 3, **more: object) -> MemorySample:
    return replace(MemorySample(rank, step, None, gib(value), source="line"), **more)  # type: ignore[arg-type]


def failing(*samples: MemorySample, rank: int | None = 3) -> Run:
    return Run("Job 1", "run-failed", Progress(memory=samples), rank)


def again(*samples: MemorySample) -> Run:
    return Run("Job 2", "run-again", Progress(memory=samples), 3)


def drawn(runs: list[Run], marks: Marks = Marks()) -> StepsFigure:  # noqa: B008  (frozen)
    figure = memory_over_steps(runs, marks)
    assert isinstance(figure, StepsFigure), figure
    return figure


def svgs(markup: str) -> list[ET.Element]:
    return list(ET.fromstring(f"<div>{markup}</div>"))


def points(svg: ET.Element, kind: str) -> list[list[tuple[float, float]]]:
    """The lines of a kind, in the picture's own coordinates."""
    paths = [path.attrib["d"] for path in svg.iter("path") if path.attrib.get("class") == kind]
    return [
        [(float(x), float(y)) for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", path)] for path in paths
    ]


def labels(svg: ET.Element) -> list[str]:
    return [text.text or "" for text in svg.iter("text")]


def test_one_scale_for_before_and_after_and_the_card_marked() -> None:
    finding = recovered().failure.story.root_cause  # type: ignore[union-attr]
    assert finding is not None
    before = memory_at_failure(finding.fields)
    after = memory_after(MemorySample(19, 1500, None, None, gib(57.8), gib(61.2)), gib(79.1))
    assert before is not None and after is not None
    bars = memory_bars((("Job 1", "before", before), ("Job 2", "after", after)))
    assert bars.rows == ("Job 1", "asked for", "Job 2")
    for svg in svgs(draw_bars(bars)):
        widths = {
            (rect.attrib["class"], float(rect.attrib["y"])): float(rect.attrib["width"]) for rect in svg.iter("rect")
        }
        allocated = [width for (kind, _), width in sorted(widths.items()) if kind == "part-allocated"]
        assert allocated[0] / allocated[1] == pytest.approx(73.61 / 57.8, rel=0.01)
        assert "79.1 GiB" in labels(svg)
        assert {"tried", "tried-beyond"} <= {kind for kind, _ in widths}


def test_the_limit_of_a_process_is_marked() -> None:
    finding = recovered().failure.story.root_cause  # type: ignore[union-attr]
    assert finding is not None
    limited = memory_at_failure(replace(finding.fields, limit_bytes=gib(40)))
    assert limited is not None
    for svg in svgs(draw_bars(memory_bars((("Job 1", "before", limited),)))):
        assert {"79.1 GiB", "limit 40.0"} <= set(labels(svg))


def test_a_card_of_unknown_size_has_no_mark() -> None:
    finding = recovered().failure.story.root_cause  # type: ignore[union-attr]
    assert finding is not None
    unknown = memory_at_failure(replace(finding.fields, capacity_bytes=None))
    assert unknown is not None
    assert "chart-major" not in draw_bars(memory_bars((("Job 1", "before", unknown),)))


def test_failing_and_relaunched_run_with_the_steps_marked() -> None:
    runs = [
        failing(*(sample(step, 50 + step / 100) for step in range(500, 1200, 10))),
        again(*(sample(step, 40) for step in range(1000, 1500, 10))),
    ]
    figure = drawn(runs, Marks(1200, 1000, gib(79.1)))
    kinds = [kind for kind, _ in figure.legend]
    assert kinds == ["run-failed", "run-again", "mark-card", "mark-failed", "mark-checkpoint"]
    for svg in svgs(figure.chart):
        [died], [ran] = points(svg, "run-failed"), points(svg, "run-again")
        [[failed_at, _]], [[resumed_at, _]] = points(svg, "mark-failed"), points(svg, "mark-checkpoint")
        assert died[-1][0] < failed_at[0] < ran[-1][0]
        assert resumed_at[0] == pytest.approx(ran[0][0], abs=0.2)
        assert {"1000", "1200", "79.1", "0"} <= set(labels(svg))
    assert figure.rows[0].highest == "61.9 GiB at step 1190"
    assert "failed" in svgs(figure.chart)[0].findtext("title", "").lower()


def test_the_axis_of_memory_begins_at_zero() -> None:
    figure = drawn([failing(*(sample(step, 70 + step % 2) for step in range(10)))])
    [line] = points(svgs(figure.chart)[0], "run-failed")
    heights = [y for _, y in line]
    assert max(heights) - min(heights) < 5


def test_the_failing_rank_and_the_range_of_the_others() -> None:
    samples = [sample(step, 40 + rank, rank) for rank in (1, 2, 3, 8) for step in range(20)]
    figure = drawn([failing(*samples)])
    assert ("run-others", "Job 1, the other ranks: from the lowest to the highest") in figure.legend
    [band], [own] = points(svgs(figure.chart)[0], "run-others"), points(svgs(figure.chart)[0], "run-failed")
    assert min(y for _, y in band) < own[0][1] < max(y for _, y in band)


def test_a_rank_that_is_silent_is_said_to_be() -> None:
    figure = drawn([failing(sample(1, 30, 0), sample(1, 44, 5), sample(2, 43, 5), rank=3)])
    assert figure.rows[0].name == "Job 1, rank 5, the highest; rank 3 prints none"


def test_a_hundred_thousand_samples_keep_their_peak() -> None:
    samples = [sample(step, 79 if step == 61_803 else 30 + step % 7) for step in range(100_000)]
    figure = drawn([failing(*samples)])
    assert len(figure.chart) < 20_000
    assert figure.rows[0].samples <= POINTS
    assert figure.rows[0].highest == "79 GiB at step 61803"


def test_missing_steps_interrupt_the_line() -> None:
    steps = [*range(100), *range(5_000, 5_100)]
    figure = drawn([failing(*(sample(step, 40) for step in steps))])
    assert len(points(svgs(figure.chart)[0], "run-failed")) == 2


def test_one_sample_of_each_run_is_a_dot() -> None:
    figure = drawn([failing(sample(7, 40)), again(sample(9, 30))], Marks(8, None, gib(80)))
    assert 'class="run-failed chart-dot"' in figure.chart
    assert 'class="run-again chart-dot"' in figure.chart


def test_a_single_figure_is_told_and_not_drawn() -> None:
    told = memory_over_steps([failing(sample(7, 40))], Marks())
    assert told == "The logs print one memory figure only: reserved by PyTorch, Job 1, rank 3, 40 GiB at step 7."


def test_a_peak_since_the_start_is_called_that() -> None:
    figure = drawn([failing(*(sample(step, 40, peaks="running") for step in range(5)))])
    assert figure.notes == ("The log prints the highest since the start, which never falls.",)


def test_a_mark_far_away_is_told_and_does_not_squeeze_the_picture() -> None:
    figure = drawn([failing(*(sample(step, 40) for step in range(5)))], Marks(90_000, None))
    assert figure.notes == ("Failed at step 90000: outside the picture.",)
    assert points(svgs(figure.chart)[0], "mark-failed") == []


def test_a_step_that_was_printed_twice_shows_its_highest() -> None:
    figure = drawn([failing(sample(1, 40), sample(2, 41), sample(2, 60), sample(3, 41))])
    assert figure.rows[0].highest == "60 GiB at step 2"


def test_figures_that_cannot_be_are_left_out_and_counted() -> None:
    samples = [
        sample(1, 40), sample(2, 41), sample(None, 42), sample(-5, 42), sample(10**15, 42),
        sample(3, 42, reserved_bytes=Bytes(1 << 60)), sample(4, 42, reserved_bytes=Bytes(-1)),
    ]
    figure = drawn([failing(*samples)])
    assert figure.rows[0].samples == 2
    assert any(note.startswith("5 figures without a step") for note in figure.notes)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ((), "print no memory figures"),
        ((sample(None, 40),), "cannot be put to steps"),
        ((sample(1, 40, reserved_bytes=None, tokens=512),), "cannot be put to steps"),
    ],
)
def test_no_picture_and_why(samples: tuple[MemorySample, ...], why: str) -> None:
    told = memory_over_steps([failing(*samples)], Marks())
    assert isinstance(told, str)
    assert why in told


def test_figures_of_different_lines_are_not_mixed() -> None:
    one = [sample(step, 40) for step in range(10)]
    other = [sample(step, 70, source="another") for step in range(5)]
    figure = drawn([failing(*one, *other), again(*(sample(step, 40) for step in range(10)))])
    assert {row.highest.split()[0] for row in figure.rows} == {"40"}


def test_time_over_steps_drops_what_is_no_time() -> None:
    times = [StepTime(step, 20.0 + step % 3) for step in range(50)]
    broken = [StepTime(60, float("nan")), StepTime(61, float("inf")), StepTime(62, -1.0), StepTime(-4, 1.0)]
    figure = time_over_steps([Run("Job 1", "run-failed", Progress(step_times=(*times, *broken)))], Marks(49))
    assert isinstance(figure, StepsFigure)
    assert (figure.rows[0].samples, figure.rows[0].highest) == (50, "22 s at step 2")
    assert isinstance(time_over_steps([Run("Job 1", "run-failed", Progress())], Marks()), str)


def test_a_step_of_longer_than_anybody_waits_is_not_drawn() -> None:
    for longest in (1.7e308, 1.6e308, 8.8e305, 1e30):
        progress = Progress(step_times=(StepTime(0, 1.0), StepTime(1, longest)))
        assert isinstance(time_over_steps([Run("Job 1", "run-failed", progress)], Marks()), str)


_ANY_INTEGER = st.none() | st.integers(-(1 << 70), 1 << 70) | st.integers(0, 2_000)
_SAMPLES = st.lists(
    st.builds(
        MemorySample, st.none() | st.integers(-3, 9), _ANY_INTEGER, st.none(), _ANY_INTEGER,
        source=st.sampled_from(["one", "other"]), where=st.sampled_from(["", HOSTILE]),
    ),
    max_size=12,
).map(tuple)
_TIMES = st.lists(st.builds(StepTime, st.integers(-(1 << 70), 1 << 70), st.floats()), max_size=8).map(tuple)
_RUNS = st.lists(
    st.builds(
        Run, st.just("Job 1"), st.sampled_from(["run-failed", "run-again"]),
        st.builds(Progress, memory=_SAMPLES, step_times=_TIMES), st.none() | st.integers(0, 9),
    ),
    min_size=1, max_size=2,
)


@given(_RUNS, st.builds(Marks, _ANY_INTEGER, _ANY_INTEGER, _ANY_INTEGER))
@settings(max_examples=60, deadline=None)
def test_whatever_a_log_prints_is_drawn_inside_the_picture_or_not_at_all(runs: list[Run], marks: Marks) -> None:
    for figure in (memory_over_steps(runs, marks), time_over_steps(runs, marks)):
        if isinstance(figure, str):
            assert figure
            continue
        for svg in svgs(figure.chart):
            _, _, width, height = map(float, svg.attrib["viewBox"].split())
            for kind in ("run-failed", "run-again", "run-others", "mark-failed", "mark-checkpoint"):
                for x, y in (point for line in points(svg, kind) for point in line):
                    assert 0 <= x <= width
                    assert -1 <= y <= height
        assert not re.search(r"\b(nan|inf)\b", figure.chart)


def test_the_way_from_failure_to_relaunch_in_seconds() -> None:
    work, runs = timeline_figures(two_attempts(), FLOW)
    assert work.columns == ("Job 884213", "Job 884301")
    told = {words: lengths for _, words, lengths in work.rows}
    assert told["Until it was noticed"] == ("55 s", "")
    assert told["Cancel"] == ("2.1 s", "0.2 s")
    assert told["Node check"] == ("1.6 s", "1.4 s")
    assert told["Relaunch"] == ("0.7 s", "0.8 s")
    told = {words: lengths for _, words, lengths in runs.rows}
    assert told["Ran until it failed again"][1] == "1 h 23 min"
    assert told["Ran until proven past the failing step"][2] == "1 h 50 min"


def test_a_failure_that_was_noticed_late_does_not_hide_the_work() -> None:
    incident = planned()
    work = timeline_figures(replace(incident, opened_s=incident.opened_s + 40_000), FLOW)[0]
    assert work.name == "From failure to the plan"
    assert work.rows[0][1:] == ("Until it was noticed (too long to be drawn)", ("11 h 07 min",))
    assert "phase-noticed" not in work.chart
    assert "phase-node" in work.chart


def test_the_wait_for_a_yes_is_not_taken_for_work() -> None:
    work = timeline_figures(replace(awaiting(), updated_s=OPENED_S + 7_200), FLOW)[0]
    assert {words for _, words, _ in work.rows} >= {"Relaunch, with the wait for a yes", "Node check"}


def test_the_queue_wait_is_apart_from_the_run() -> None:
    incident = recovered()
    waiting = replace(incident.attempts[0], queued_s=3_600.0)
    told = {
        words: lengths[-1]
        for _, words, lengths in timeline_figures(replace(incident, attempts=(waiting,)), FLOW)[1].rows
    }
    assert told["In the queue"] == "1 h 00 min"
    assert told["Ran until proven past the failing step"] == "2 h 14 min"


def test_times_that_cannot_be_draw_nothing() -> None:
    incident = two_attempts()
    broken = tuple(
        replace(visit, started_s=OPENED_S, ended_s=[float("nan"), float("inf"), -1e18, 1e300][index % 4])
        for index, visit in enumerate(incident.visits)
    )
    late = tuple(replace(attempt, submitted_s=1e300, queued_s=0.0) for attempt in incident.attempts)
    for figure in timeline_figures(replace(incident, visits=broken, attempts=late, updated_s=OPENED_S), FLOW):
        assert "nan" not in figure.chart and "inf" not in figure.chart
    assert timeline_figures(just_opened(), FLOW) == ()


def _with_series(incident: Incident) -> Incident:
    assert incident.failure is not None and incident.failure.story is not None
    ranks = tuple(
        sample(step, 40 + rank % 3, rank, where=HOSTILE[:60]) for rank in range(16, 24) for step in range(240)
    )
    progress = Progress(memory=ranks, step_times=tuple(StepTime(step, 2.0) for step in range(256)))
    story = replace(incident.failure.story, progress=progress)
    return replace(incident, failure=replace(incident.failure, story=story), original=None)


def test_hostile_words_stay_words_and_the_page_stays_small() -> None:
    page = render_html(_with_series(hostile()), FLOW)
    assert len(page.encode()) < 300_000
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        inside = {element.tag for element in ET.fromstring(svg).iter()}
        assert inside <= {"svg", "g", "rect", "path", "circle", "line", "text", "title", "defs", "marker", "pattern"}
    chart = draw_bars(Bars(HOSTILE, (HOSTILE,), (BarPart("tried", (1.0,), (HOSTILE,)),), 2.0, ((1.0, HOSTILE[:9]),)))
    assert "<script" not in chart
    assert "\x1b" not in chart and "\u202e" not in chart


def test_no_style_no_script_no_date_in_a_picture() -> None:
    page = render_html(_with_series(recovered()), FLOW)
    for chart in re.findall(r'<svg class="chart .*?</svg>', page, re.DOTALL):
        assert not re.search(r"style=|<style|<script|<!--|\sid=|href=", chart)


def test_the_same_figures_are_the_same_bytes() -> None:
    """In another process, too: with another hash seed."""
    program = (
        "from runbook.report.html import render_html\n"
        "from tests.report.sample_incidents import FLOW, two_attempts\n"
        "import hashlib; print(hashlib.sha256(render_html(two_attempts(), FLOW).encode()).hexdigest())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_a_simulation_is_called_one_beside_each_picture() -> None:
    page = render_html(_with_series(co_tenant()), FLOW)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert len(captions) >= 4
    assert all("(simulated)" in caption for caption in captions)
    assert "(simulated)" not in render_html(recovered(), FLOW)


def test_a_run_that_is_watched_is_not_called_proven() -> None:
    incident = escalated()
    watched = replace(incident.attempts[0], verdict=None, story=None)
    told = [words for _, words, _ in timeline_figures(replace(incident, attempts=(watched,)), FLOW)[1].rows]
    assert "Runs, not proven yet" in told


def test_ticks_are_round_and_few() -> None:
    assert nice_ticks(0, 79.1, 5) == (0, 20, 40, 60)
    assert nice_ticks(3, 5, 7, whole=True) == (3, 4, 5)
    assert len(nice_ticks(0, 1e12, 6)) <= 8
    assert nice_ticks(5, 5, 4) == (5,)


def test_labels_do_not_run_into_each_other() -> None:
    marks = ((1_000_000_000.0, "1000000000"), (1_000_000_001.0, "1000000001"))
    line = Line("run-failed", ((0.0, 1.0), (1_000_000_100.0, 2.0)))
    for svg in svgs(draw_lines(Lines("", (line,), 0.0, 1_000_000_100.0, 3.0, marks))):
        placed = sorted(
            (float(text.attrib["x"]), len(text.text or "") * 7.0) for text in svg.iter("text")
            if float(text.attrib["y"]) > 190 and float(text.attrib["x"]) > 0
        )
        for (x, width), (after, next_width) in pairwise(placed):
            assert after - x >= (width + next_width) / 2
