"""The probe inside the node check's script, on this machine: when it answers, and when nvidia-smi does instead."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.node_access import LocalNodes
from runbook.model.node import Reach
from runbook.model.units import NodeName, Unknown
from runbook.node import Limits, check_script
from tests.nvml.standin import environment

pytestmark = pytest.mark.needs("gcc")

HERE = NodeName("gpu-21")
ROW = "0, GPU-a, 00000000:19:00.0, NVIDIA H100 80GB HBM3, 570.86.15, 81559, 1, 81090, 0, 0, Disabled, None"
SMI = f"""case "$*" in
*--query-gpu*) echo '{ROW}' ;;
*compute-apps*) ;;
*) printf '<nvidia_smi_log>\\n<gpu id="00000000:19:00.0">\\n<remapped_rows>\\n' &&
  printf '<remapped_row_pending>No</remapped_row_pending>\\n</remapped_rows>\\n</gpu>\\n' ;;
esac"""
LOG = "echo '2026-11-20T06:41:28,000000+00:00 Linux version 6.8.0'"

Node = Callable[..., LocalNodes]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with a Python of the given body, an nvidia-smi and a kernel log."""
    def make(python: str, scenario: str = "h100_570_healthy", shell: str = "") -> LocalNodes:
        if shell:
            (tmp_path / "sh").symlink_to(shutil.which(shell) or shell)
        for name, body in {"python3": python, "nvidia-smi": SMI, "dmesg": LOG, "journalctl": "exit 1"}.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)
        variables = {**environment(scenario), "PATH": f"{tmp_path}:/usr/bin:/bin"}
        return LocalNodes(environment=variables, command_timeout_s=20)

    return make


REAL = f'exec {sys.executable} "$@"'
PRETENDED = 'case "$*" in *version_info*) exit 0 ;; esac; cat >/dev/null; '


@pytest.mark.parametrize(
    "shell", ["dash", "bash", pytest.param("busybox", marks=pytest.mark.needs("busybox"))]
)
def test_where_nvml_answers_nvidia_smi_is_not_needed(node: Node, shell: str) -> None:
    facts = node(REAL, "h100_570_sram_threshold", shell).check(HERE, since_s=None, until_s=None)
    assert "by the probe" in facts.reach_detail
    assert not isinstance(facts.gpus, Unknown)
    assert [gpu.sram_threshold_exceeded for gpu in facts.gpus] == [False, True]
    assert facts.log_covers_since_s == 1795156888.0
    assert facts.xids == ()


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("exit 127", "none"),
        ("case \"$*\" in *version_info*) exit 1 ;; esac; echo '{\"document\": \"runbook-node\"}'", "too old"),
        (f"unset LD_LIBRARY_PATH; {REAL}", "no NVML"),
        (f"{PRETENDED} echo Traceback >&2; exit 1", "fails"),
        (f"{PRETENDED} exit 0", "says nothing"),
        (f"{PRETENDED} echo '{{\"document\": \"other\"}}'", "other words"),
    ],
)
def test_without_python_or_nvml_nvidia_smi_gives_the_same_figures(node: Node, python: str, why: str) -> None:
    facts = node(python).check(HERE, since_s=None, until_s=None)
    assert facts.reach is Reach.OK
    assert "by the probe" not in facts.reach_detail
    assert facts.driver == "570.86.15"
    assert not isinstance(facts.gpus, Unknown)
    assert [(gpu.uuid, gpu.row_remap_pending, gpu.processes) for gpu in facts.gpus] == [("GPU-a", False, ())]
    assert facts.xids == ()


OOM = "Memory cgroup out of memory: Killed process 815 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB"


@pytest.mark.parametrize("python", ["exit 127", REAL])
def test_kills_for_want_of_main_memory_are_read_with_the_probe_and_without(
    node: Node, tmp_path: Path, python: str
) -> None:
    nodes = node(python)
    (tmp_path / "dmesg").write_text(
        f"#!/bin/sh\n{LOG}\necho '2026-11-20T06:50:00,000000+00:00 nvidia: loading'\n"
        f"echo '2026-11-20T07:00:00,000000+00:00 {OOM}'\n"
    )
    facts = nodes.check(HERE, since_s=None, until_s=None)
    assert ("by the probe" in facts.reach_detail) == (python == REAL)
    assert not isinstance(facts.oom_kills, Unknown)
    assert [(kill.pid, kill.time_s, kill.whole_node) for kill in facts.oom_kills] == [(815, 1795158000.0, False)]
    assert facts.xids == ()


def test_the_inventory_can_say_that_no_probe_is_sent(node: Node) -> None:
    nodes = replace(node(REAL), probe=False)
    assert nodes.check(HERE, since_s=None, until_s=None).driver == "570.86.15"


def test_a_gpu_that_hangs_leaves_the_others_and_the_log(node: Node) -> None:
    started = time.monotonic()
    nodes = replace(node(REAL, "h100_570_hung_call"), command_timeout_s=12.0)
    facts = nodes.check(HERE, since_s=None, until_s=None)
    assert time.monotonic() - started < 13
    assert not isinstance(facts.gpus, Unknown)
    assert [isinstance(gpu.row_remap_failed, Unknown) for gpu in facts.gpus] == [True, False]
    assert facts.log_covers_since_s == 1795156888.0


def test_a_program_that_a_shell_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="single quote"):
        check_script("@@0123456789abcdef", "n", None, Limits.within(15), "print('x')")
