"""Which GPUs the PCI bus of a node has, by the probe and by the shell alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runbook.node import Limits, check_script
from runbook.node.sections import read_answers
from runbook.probe.host import pci_gpus
from tests.programs import find

MARKER = "@@0123456789abcdef"
DEVICES = {
    "0000:18:00.0": ("0x10de", "0x030200"),
    "0000:19:00.0": ("0x10de", "0x030000"),
    "0000:1a:00.0": ("0x10de", "0x068000"),
    "0000:02:00.0": ("0x1a03", "0x030000"),
    "0000:03:00.0": ("0x10de", None),
}
"""Vendor and class: two cards, an NVSwitch, the screen of a board's controller, a device that is being taken out."""


@pytest.fixture
def bus(tmp_path: Path) -> Path:
    folder = tmp_path / "sys/bus/pci/devices"
    for name, (vendor, kind) in DEVICES.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "vendor").write_text(f"{vendor}\n")
        if kind is not None:
            (folder / name / "class").write_text(f"{kind}\n")
    return folder


def test_the_probe_lists_the_vendors_cards(bus: Path) -> None:
    assert pci_gpus(str(bus.parents[3])) == ["0000:18:00.0", "0000:19:00.0"]
    assert pci_gpus(str(bus)) == []


@pytest.mark.parametrize("shell", ["dash", "bash", pytest.param("busybox", marks=pytest.mark.needs("busybox"))])
def test_the_shell_lists_the_same(bus: Path, shell: str) -> None:
    script = check_script(MARKER, "gpu-21", None, Limits.within(15.0)).replace("/sys/bus/pci/devices", str(bus))
    program = find(shell)
    assert program
    done = subprocess.run(
        (program, *(["sh"] if shell == "busybox" else []), "-s", "plain"), input=script, capture_output=True, text=True,
        timeout=60, check=True, env={"PATH": "/usr/bin:/bin", "RUNBOOK_KMSG": "/nonexistent/kmsg"},
    )
    answers = read_answers(done.stdout, MARKER)
    assert answers.values("node", "pci") == ("0000:18:00.0", "0000:19:00.0")
