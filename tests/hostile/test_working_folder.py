"""An administrator stands in a user's folder, as one does who looks at his job: nothing that lies there is taken for
the inventory, for one of Slurm's commands or for a library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = 65534
RUNBOOK = Path(sys.executable).with_name("runbook")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act for two users")


@pytest.fixture
def his(tmp_path: Path) -> Path:
    """A user's folder with commands, inventories and modules of his own making; `ran` is there once one of them ran."""
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    folder = tmp_path / "his"
    (folder / "bin").mkdir(parents=True)
    planted = f"#!/bin/sh\ntouch {tmp_path}/ran\necho slurm 23.11.4\n"
    for name in ("squeue", "scontrol", "sacct", "sinfo", "ssh", "sudo"):
        for place in (folder, folder / "bin"):
            (place / name).write_text(planted)
            (place / name).chmod(0o755)
    inventory = (
        "version: 1\nid: local\ntitle: x\ncluster: training\nnodes: {kind: none}\n"
        f"scheduler: {{kind: slurm, adapter: commands, commands_folder: {folder}/bin}}\n"
        f"paths: {{state: {tmp_path}/state, spool: {tmp_path}/spool}}\n"
    )
    for name in ("local", "sandbox", "site.yaml"):
        (folder / name).write_text(inventory)
    for name in ("json", "pyslurm", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    return folder


def _run(his: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(his.parent), "PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(
        (RUNBOOK, *arguments), cwd=his, env=environment, capture_output=True, text=True, timeout=90, check=False
    )


def _nothing_of_his_ran(his: Path) -> bool:
    return not (his.parent / "ran").exists()


def test_a_name_is_never_a_file_of_the_working_folder(his: Path) -> None:
    done = _run(his, "oom", "--job", "12", "--plan", "--inventory", "local")
    assert "has no job '12'" in done.stderr, done.stderr  # said by the `local` that is installed
    assert _nothing_of_his_ran(his)


@pytest.mark.parametrize("named", ["./site.yaml", "../his/site.yaml", "../link/site.yaml"])
def test_an_inventory_that_somebody_else_may_write_is_not_used(his: Path, named: str) -> None:
    (his.parent / "link").symlink_to(his)
    done = _run(his, "oom", "--job", "12", "--plan", RUNBOOK_INVENTORY=named)
    assert done.returncode == 3
    assert "may write it" in done.stderr and "owner nobody" in done.stderr and "next:" in done.stderr
    assert _nothing_of_his_ran(his)


def test_a_file_of_roots_in_a_users_folder_is_not_used_either(his: Path) -> None:
    """He may put another in its place."""
    os.chown(his / "site.yaml", 0, 0)
    done = _run(his, "doctor", "--inventory", str(his / "site.yaml"))
    assert done.returncode == 3 and "owner nobody" in done.stderr
    assert _nothing_of_his_ran(his)


@pytest.mark.parametrize("path", ["", ":/usr/bin:/bin", "/usr/bin:/bin:.", "bin:/usr/bin:/bin", "/none"])
def test_slurms_commands_are_not_looked_for_in_the_working_folder(his: Path, path: str) -> None:
    own = his.parent / "own.yaml"
    own.write_text(
        "version: 1\nid: own\ntitle: x\ncluster: training\nnodes: {kind: none}\nscheduler: {kind: slurm}\n"
        f"paths: {{state: {his.parent}/state, spool: {his.parent}/spool}}\n"
    )
    _run(his, "oom", "--job", "12", "--plan", "--inventory", str(own), PATH=path)
    _run(his, "setup", "--yes", "--output", str(his.parent / "made.yaml"), PATH=path)
    assert _nothing_of_his_ran(his)
