"""`runbook probe`: the document of this machine, and the file for a bare node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from runbook.probe import build
from tests.cli import warm


def runbook(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*warm.runbook(), "probe", *arguments), capture_output=True, text=True, timeout=60, check=False
    )


def test_this_machine_is_one_document() -> None:
    done = runbook("--deadline", "5")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["document"], document["version"]) == ("runbook-node", 1)
    assert {"node", "nvml", "kernel_log", "processes", "slurm", "mps", "device_holders"} <= set(document)


def test_the_file_for_a_bare_node(tmp_path: Path) -> None:
    target = tmp_path / "runbook-probe.pyz"
    done = runbook("--build", str(target))
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == build.archive()
    again = subprocess.run((str(target), "--help"), capture_output=True, text=True, check=True)
    assert "--deadline" in again.stdout


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    done = runbook("--build", str(tmp_path / "missing" / "probe.pyz"))
    assert done.returncode not in (0, 70)
    assert "No such file or directory" in done.stderr
