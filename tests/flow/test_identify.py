"""Which jobs are looked into at all, and which are nobody's business."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbook.model.incident import IncidentState
from runbook.steps import identify
from tests.contract.fakes import ends
from tests.flow.test_resuming import Scene


def _identified(trigger: str, submit_line: str) -> tuple[str, IncidentState]:
    scene = Scene("true")
    job = scene.scheduler.add(
        life=ends("FAILED", 130), script=None, stdout_path="", command="", submit_line=submit_line, environment={}
    )
    scene.clock.sleep(600)
    scene.incident = replace(scene.incident, root_job=job, trigger=trigger, failure=None, original=None)
    result = identify.run(scene.context())
    return str(result.outcome), result.incident.state


@pytest.mark.parametrize("submit_line", ["salloc --gpus=8", "/usr/bin/srun --pty bash", "srun python train.py"])
def test_a_session_at_a_terminal_that_ends_badly_wakes_nobody(submit_line: str) -> None:
    assert _identified("epilog", submit_line) == ("interactive", IncidentState.CLOSED)


@pytest.mark.parametrize(
    ("trigger", "submit_line"), [("person", "salloc --gpus=8"), ("epilog", "sbatch train.sh"), ("epilog", "")]
)
def test_else_a_job_without_a_log_goes_to_a_person(trigger: str, submit_line: str) -> None:
    assert _identified(trigger, submit_line)[0] == "no_logs"
