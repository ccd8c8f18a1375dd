"""Loading the flow proves that every outcome leads somewhere; what is wrong is said with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.documents import DocumentsInvalid
from runbook.flow import END, load_flow
from runbook.locations import data_folder

SHIPPED = data_folder("playbooks") / "oom" / "flow.yaml"


def broken(tmp_path: Path, before: str, after: str) -> str:
    text = SHIPPED.read_text(encoding="utf-8")
    assert before in text
    path = tmp_path / "flow.yaml"
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(DocumentsInvalid) as caught:
        load_flow(path)
    return str(caught.value)


def test_the_shipped_flow_is_sound_and_every_box_can_reach_the_end() -> None:
    flow = load_flow(SHIPPED)
    reaches_end = {name for name, box in flow.boxes.items() if END in box.next.values()}
    while True:
        more = {name for name, box in flow.boxes.items() if reaches_end & set(box.next.values())} - reaches_end
        if not more:
            break
        reaches_end |= more
    assert reaches_end == set(flow.boxes)


def test_every_box_that_acts_can_be_planned_and_declined() -> None:
    acting = [box for box in load_flow(SHIPPED).boxes.values() if box.acts]
    assert {box.name for box in acting} == {
        "cancel_job", "free_gpu", "drain_node", "relaunch", "stop_relaunch", "promote"
    }
    for box in acting:
        assert {"planned", "declined"} <= set(box.next)
        assert box.propose is not None


def test_an_outcome_that_leads_nowhere(tmp_path: Path) -> None:
    message = broken(tmp_path, "      faulty: drain_node\n", "")
    assert "'faulty' leads nowhere" in message
    assert "flow.yaml:" in message


def test_an_outcome_that_no_step_has(tmp_path: Path) -> None:
    assert "has no outcome 'sunny'" in broken(
        tmp_path, "      clean: classify\n", "      clean: classify\n      sunny: report\n"
    )


def test_a_box_that_does_not_exist(tmp_path: Path) -> None:
    assert "'nowhere', which is no box" in broken(tmp_path, "clean: classify", "clean: nowhere")


def test_a_box_without_a_step(tmp_path: Path) -> None:
    message = broken(tmp_path, "  report:\n    title", "  report:\n    step: sing\n    title")
    assert "no step runbook/steps/sing.py" in message


def test_an_unreachable_box(tmp_path: Path) -> None:
    message = broken(tmp_path, "      faulty: drain_node\n", "      faulty: classify\n")
    assert "no outcome leads here" in message


def test_several_faults_are_reported_at_once(tmp_path: Path) -> None:
    text = SHIPPED.read_text(encoding="utf-8").replace("clean: classify", "clean: nowhere")
    path = tmp_path / "flow.yaml"
    path.write_text(text.replace("start: identify", "start: begin"), encoding="utf-8")
    with pytest.raises(DocumentsInvalid) as caught:
        load_flow(path)
    assert len(caught.value.problems) >= 2
