"""The terminal's report, as whole texts; rewritten with `--rewrite-golden`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runbook.report.text.incident_text import one_line, render_text
from tests.kinds import KINDS
from tests.report.sample_incidents import SAMPLES, hostile, recovered

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "hostile"])
def test_the_text_is_as_agreed(name: str, request: pytest.FixtureRequest) -> None:
    incident = SAMPLES[name]()
    text = one_line(incident) + "\n\n" + render_text(incident)
    golden = GOLDEN / f"{name}.txt"
    if request.config.getoption("--rewrite-golden"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_no_line_is_wider_than_a_terminal_and_nothing_moves_the_cursor(name: str) -> None:
    text = render_text(SAMPLES[name]())
    wide = [line for line in text.splitlines() if len(line) > 100]
    assert wide == []
    assert {character for character in text if not character.isprintable()} <= {"\n"}


def test_a_hostile_incident_stays_short_and_one_line() -> None:
    assert len(render_text(hostile())) < 70_000
    line = one_line(hostile())
    assert len(line) <= 200
    assert line.isprintable()


@pytest.mark.parametrize(
    ("means", "said"),
    [
        ("not_oom", "did not die of memory on"),
        ("host_oom", "ran out of main memory on"),
        ("shm", "ran out of shared memory on"),
        ("hardware_fault", "failed on"),
        ("true_oom", "ran out of GPU memory on"),
    ],
)
def test_before_a_diagnosis_the_first_sentence_says_what_the_log_says(means: str, said: str) -> None:
    died = recovered()
    failure = died.original or died.failure
    assert failure is not None and failure.story is not None and failure.story.root_cause is not None
    story = replace(failure.story, root_cause=replace(failure.story.root_cause, means=KINDS.of(means)))
    read = replace(died, original=None, failure=replace(failure, story=story, diagnosis=None))
    assert said in render_text(read).splitlines()[2] + one_line(read)
