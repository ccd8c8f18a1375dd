"""The Ansible role as it is written: Ansible parses it, and its linter finds nothing. tests/cluster/test_ansible.py
applies it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ROLE = REPOSITORY / "deploy" / "ansible"


def _said(folder: Path, *argv: str) -> tuple[int, str]:
    # Its temporary files stay out of the home, and a virtual environment's Python is not Ansible's.
    environment = {**os.environ, "ANSIBLE_LOCAL_TEMP": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        argv, cwd=ROLE, capture_output=True, text=True, timeout=170, check=False, env=environment
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.needs("ansible-playbook")
def test_ansible_reads_the_play_and_the_example_of_hosts(tmp_path: Path) -> None:
    status, said = _said(tmp_path, "ansible-playbook", "-i", "hosts.example.yml", "--syntax-check", "site.yml")
    assert status == 0, said
    status, said = _said(tmp_path, "ansible-playbook", "-i", "hosts.example.yml", "--list-tasks", "site.yml")
    for task in ("Look at the cluster", "Copy the node's epilog", "Copy the rules"):
        assert task in said, said


@pytest.mark.needs("ansible-lint")
def test_the_linter_finds_nothing(tmp_path: Path) -> None:
    profile = ("--profile", "production")
    argv = ("ansible-lint", "--offline", "--nocolor", "--strict", *profile, "roles/runbook", "site.yml",
            "hosts.example.yml")
    status, said = _said(tmp_path, *argv)
    assert status == 0, said
