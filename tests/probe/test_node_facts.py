"""What the probe says beyond the GPUs' health, as the facts of the node check carry it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runbook.model.node import DaemonProcess, NodeFacts
from runbook.model.units import MIB, NodeName, Unknown
from runbook.node import Window, read_left_document
from tests.nvml.standin import document_of

pytestmark = pytest.mark.needs("gcc")


def facts_of(document: dict[str, Any]) -> NodeFacts:
    return read_left_document(json.dumps(document), NodeName("gpu-21"), Window(900.0, 1100.0))


def test_a_gpu_in_mig_mode_has_its_instances_and_its_processes_know_theirs() -> None:
    facts = facts_of(document_of("h100_590_mig"))
    assert not isinstance(facts.gpus, Unknown)
    (gpu,) = facts.gpus
    assert not isinstance(gpu.mig_instances, Unknown) and not isinstance(gpu.processes, Unknown)
    assert [(one.name[-9:], one.gpu_instance, one.total_bytes, one.used_bytes) for one in gpu.mig_instances] == [
        ("G 3g.40gb", 1, 40320 * MIB, 20512 * MIB), ("G 1g.10gb", 9, 9984 * MIB, 16 * MIB),
    ]
    assert [(one.pid, one.gpu_instance, one.compute_instance) for one in gpu.processes] == [(4204711, 1, 0)]


def test_clients_of_mps_are_known_from_its_server() -> None:
    facts = facts_of(document_of("h100_570_mps"))
    assert not isinstance(facts.gpus, Unknown)
    (gpu,) = facts.gpus
    assert not isinstance(gpu.processes, Unknown)
    assert [(one.pid, one.mps_client) for one in gpu.processes] == [(4204711, False), (4204712, True), (4204713, True)]
    assert gpu.compute_mode == "exclusive_process"


def test_mps_cgroups_and_oom_kills_come_with_the_facts() -> None:
    document = {**document_of("h100_570_healthy")}
    document["mps"] = {"daemons": [{"pid": 40, "name": "nvidia-cuda-mps-server"}, {"pid": "x"}]}
    document["slurm"] = {"jobs": [
        {"job": "4711", "sluid": None, "limit_bytes": 100, "used_bytes": 90, "peak_bytes": 100, "oom_kills": 1},
        {"job": None, "sluid": "sEKNKTV3WPV500", "limit_bytes": None, "used_bytes": {"unknown": "no"}},
    ]}
    line = "Memory cgroup out of memory: Killed process 815 (python) total-vm:1kB, anon-rss:1kB"
    document["kernel_log"] = {"sources": [{"source": "dmesg", "any_user_can_write": False, "covers_since_s": 0.0,
                                           "lines": [{"time_s": 1000.0, "line": line}]}]}
    facts = facts_of(document)
    assert facts.mps == (DaemonProcess(40, "nvidia-cuda-mps-server"),)
    assert not isinstance(facts.job_memory, Unknown) and not isinstance(facts.oom_kills, Unknown)
    first, second = facts.job_memory
    assert (first.job, first.limit_bytes, first.peak_bytes, first.oom_kills) == ("4711", 100, 100, 1)
    assert second.job == Unknown("its Slurm job is known by the SLUID sEKNKTV3WPV500 only")
    assert second.limit_bytes is None and second.used_bytes == Unknown("no")
    assert [(kill.pid, kill.in_window) for kill in facts.oom_kills] == [(815, True)]


def test_a_driver_that_was_updated_without_a_reboot_is_a_fault_of_the_software() -> None:
    facts = facts_of(document_of("driver_mismatch"))
    assert "not loaded anew" in facts.software_fault and "not a hardware fault" in facts.software_fault
    assert facts_of(document_of("driver_not_loaded")).software_fault == ""
    assert facts_of(document_of("h100_570_lost")).software_fault == ""
