"""The probe under the stand-in NVML: each scenario's facts, through the real nvidia-ml-py, into `NodeFacts`."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runbook.model.node import GpuFacts, NodeFacts
from runbook.model.units import MIB, NodeName, Unknown
from runbook.node import read_left_document
from runbook.probe import build, nvml
from tests.nvml.standin import SCENARIOS, document_of, environment, oldest_python, probe_file, run_probe

pytestmark = pytest.mark.needs("gcc")

CLEAN = {
    "lost": False, "row_remap_pending": False, "row_remap_failed": False, "sram_threshold_exceeded": False,
    "recovery_action": "None", "ecc_uncorrectable_volatile": 0, "ecc_uncorrectable_aggregate": 0,
    "mig_enabled": False, "processes": (),
}
OLD = "too old"
NONE = "no such figure"
LOST = "the GPU is lost"


def facts_of(scenario: str) -> NodeFacts:
    return read_left_document(json.dumps(document_of(scenario)), NodeName("gpu-21"))


def gpus_of(scenario: str) -> tuple[GpuFacts, ...]:
    facts = facts_of(scenario)
    assert facts.simulated
    assert not isinstance(facts.gpus, Unknown), facts.gpus
    return facts.gpus


# Figure → value; words stand for an unknown whose reason has them.
EXPECTED: dict[str, list[dict[str, Any]]] = {
    "h100_570_healthy": [
        {**CLEAN, "bus_id": "0000:19:00", "name": "NVIDIA H100 80GB HBM3", "total_bytes": 81559 * MIB,
         "used_bytes": MIB, "free_bytes": 81090 * MIB, "repair_pending": (NONE,), "unrepairable_memory": (NONE,)},
        {**CLEAN, "index": 1, "bus_id": "0000:3b:00"},
    ],
    "h200_590_healthy": [{**CLEAN, "name": "NVIDIA H200", "repair_pending": False, "unrepairable_memory": False}],
    "b200_590_repair_pending": [{"name": "NVIDIA B200", "repair_pending": True, "recovery_action": "Reset"}],
    "a100_535_pending_remap": [
        {"row_remap_pending": False, "recovery_action": ("565",), "sram_threshold_exceeded": (OLD,)},
        {"row_remap_pending": True, "row_remap_failed": False},
    ],
    "h100_550_failed_remap": [
        CLEAN,
        {"row_remap_pending": True, "row_remap_failed": True, "ecc_uncorrectable_volatile": 2,
         "ecc_uncorrectable_aggregate": 9},
    ],
    "h100_570_sram_threshold": [CLEAN, {"sram_threshold_exceeded": True, "ecc_uncorrectable_aggregate": 5}],
    "h100_570_lost": [CLEAN, {"index": 1, "lost": True, "total_bytes": (LOST,), "processes": (LOST,)}],
    "h100_570_fell_off": [CLEAN, {"lost": True, "total_bytes": ("unknown error (NVML error 999)",)}],
    "h100_570_lost_in_a_row": [
        {"lost": True, "bus_id": "0000:19:00", "total_bytes": (LOST,), "row_remap_failed": (LOST,)}, CLEAN,
    ],
    "h100_570_reset_required": [CLEAN, {"lost": True, "total_bytes": ("needs a reset",)}],
    "h100_590_mig": [{"mig_enabled": True, "row_remap_pending": (NONE,), "row_remap_failed": (NONE,)}],
    "h100_570_no_permission": [
        {"sram_threshold_exceeded": ("may not read it",), "processes": ("may not read it",), "row_remap_failed": False},
        {},
    ],
    "v100_418_healthy": [
        {"name": "Tesla V100-SXM2-16GB", "total_bytes": 16160 * MIB, "used_bytes": 11 * MIB,
         "row_remap_pending": True, "row_remap_failed": (OLD,), "mig_enabled": (OLD,),
         "ecc_uncorrectable_aggregate": 2, "retired_pages": 2},
    ],
}


@pytest.mark.parametrize(("scenario", "expected"), EXPECTED.items(), ids=EXPECTED)
def test_the_facts_of_a_scenario(scenario: str, expected: list[dict[str, Any]]) -> None:
    gpus = gpus_of(scenario)
    assert len(gpus) == len(expected)
    for gpu, wanted in zip(gpus, expected, strict=True):
        for name, value in wanted.items():
            found = getattr(gpu, name)
            if isinstance(value, tuple) and value:
                assert isinstance(found, Unknown) and value[0] in found.unknown, f"{scenario} {name}: {found}"
            else:
                assert found == value and type(found) is type(value), f"{scenario} {name}: {found}"


@pytest.mark.parametrize(
    ("scenario", "words"),
    [("driver_mismatch", "a software matter, not a hardware fault"), ("driver_not_loaded", "driver is not loaded")],
)
def test_a_driver_that_does_not_start_makes_every_figure_unknown_and_no_gpu_lost(scenario: str, words: str) -> None:
    facts = facts_of(scenario)
    for value in (facts.driver, facts.gpus):
        assert isinstance(value, Unknown)
        assert words in value.unknown


def test_every_scenario_is_expected_somewhere() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for path in SCENARIOS.glob("*.txt"):
        assert f'"{path.stem}"' in text, path.stem


@pytest.mark.parametrize(("scenario", "deadline_s"), [("h100_570_hung_call", 8), ("h100_570_hung_init", 3)])
def test_a_call_that_hangs_is_named_and_the_deadline_holds(scenario: str, deadline_s: int) -> None:
    started = time.monotonic()
    document = run_probe(scenario, "--deadline", str(deadline_s))
    assert document["took_s"] <= deadline_s
    assert time.monotonic() - started < deadline_s + 5  # Python's own start on a busy machine
    facts = read_left_document(json.dumps(document), NodeName("n"))
    if scenario == "h100_570_hung_init":
        assert isinstance(facts.gpus, Unknown)
        assert "asked for nvmlInit" in facts.gpus.unknown
        return
    assert not isinstance(facts.gpus, Unknown)
    hung, other = facts.gpus
    assert hung.total_bytes == 81559 * MIB
    assert isinstance(hung.row_remap_pending, Unknown)
    assert "asked for row_remap_correctable" in hung.row_remap_pending.unknown
    assert not hung.lost
    assert (other.index, other.row_remap_pending, other.processes) == (1, False, ())


def test_the_hung_child_does_not_outlive_the_probe() -> None:
    mark = "hung-child-of-this-test"
    run_probe("h100_570_hung_call", "--deadline", "2", extra={"MARK": mark})
    alive = [
        path for path in Path("/proc").glob("[0-9]*/environ")
        if path.stat().st_uid == Path("/proc/self").stat().st_uid and f"MARK={mark}".encode() in _read(path)
    ]
    assert alive == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_mig_instances_come_with_their_own_memory_and_processes_with_their_instance() -> None:
    (gpu,) = document_of("h100_590_mig")["nvml"]["gpus"]
    sizes = [(each["gpu_instance"], each["total_bytes"] // MIB) for each in gpu["mig_devices"]]
    assert sizes == [(1, 40320), (9, 9984)]
    (process,) = gpu["processes"]
    assert (process["pid"], process["gpu_instance"], process["compute_instance"]) == (4204711, 1, 0)
    assert gpu["row_remap_histogram"]["max"] == 2560


def test_a_user_who_may_not_ask_the_gpu_in_mig_mode_asks_its_instances() -> None:
    (gpu,) = document_of("h100_590_mig_no_permission")["nvml"]["gpus"]
    assert [(each["pid"], each["gpu_instance"]) for each in gpu["processes"]] == [(4204711, 1)]


def test_an_old_drivers_list_of_processes_is_read_in_its_first_form() -> None:
    (gpu,) = document_of("v100_418_healthy")["nvml"]["gpus"]
    first, second = gpu["processes"]
    assert (first["pid"], first["used_bytes"], first["kinds"]) == (4204711, 10 * MIB, ["compute"])
    assert first["gpu_instance"] is None
    assert (second["pid"], second["used_bytes"]) == (4204712, {"unknown": "NVML has no figure for this process"})


def test_clients_of_mps_are_processes_of_the_gpu() -> None:
    (gpu,) = document_of("h100_570_mps")["nvml"]["gpus"]
    assert gpu["compute_mode"] == "exclusive_process"
    assert [(each["pid"], each["kinds"]) for each in gpu["processes"]] == [
        (4204711, ["compute"]), (4204712, ["mps"]), (4204713, ["mps"])
    ]


def test_the_oldest_python_here_gives_the_same_answer() -> None:
    def figures(python: str) -> Any:
        return run_probe("h100_550_failed_remap", python=python)["nvml"]

    assert figures(oldest_python()) == figures(sys.executable)


def test_every_module_is_of_python_3_6_and_nothing_of_runbook_is_imported() -> None:
    folder = Path(build.__file__).parent
    shipped = {f"{name}.py" for name in build.MODULES}
    assert shipped | {"build.py", "end_process.py"} == {path.name for path in folder.glob("*.py")}
    for name in shipped:
        text = (folder / name).read_text()
        ast.parse(text, feature_version=(3, 6))
        assert not re.search(r"^\s*(?:from|import) runbook\b", text, re.M), name
        assert "from __future__ import annotations" not in text, "3.6 does not know it"


def test_the_same_modules_give_the_same_file() -> None:
    assert build.archive() == probe_file().read_bytes()
    assert "'" not in build.program()


@pytest.mark.parametrize("python", [sys.executable, oldest_python()])
def test_from_standard_input_it_answers_the_same_and_writes_nothing(tmp_path: Path, python: str) -> None:
    done = subprocess.run(
        (python, "-I", "-S", "-B", "-", "--need-nvml"), input=build.program().encode(), cwd=tmp_path,
        env={**environment("h100_570_sram_threshold"), "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True, check=True,
    )
    assert json.loads(done.stdout)["nvml"] == document_of("h100_570_sram_threshold")["nvml"]
    assert list(tmp_path.iterdir()) == []


def test_without_a_library_it_answers_the_rest_or_ends_with_status_3() -> None:
    document = run_probe(None)
    assert document["nvml"]["gpus"] == {"unknown": nvml.REASONS[12]}
    assert document["node"]["memory"]["total_bytes"] > 0
    done = subprocess.run(
        (sys.executable, "-I", str(probe_file()), "--need-nvml"), env=environment(None), capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, b"")


def test_it_lets_go_of_its_output_when_it_ends() -> None:
    """A child that hangs must not hold the stream that the SSH session waits for."""
    started = time.monotonic()
    with subprocess.Popen(
        (sys.executable, "-I", str(probe_file()), "--deadline", "2"), env=environment("h100_570_hung_init"),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.read()
    assert time.monotonic() - started < 10
