"""NVML, `nvidia-smi -q -x` and `-q` of one state of a GPU say the same of its memory's health."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from runbook.model.node import NodeFacts
from runbook.model.units import NodeName, Unknown
from runbook.node import Window, read_left_document, read_node
from tests.nvml.standin import document_of

pytestmark = pytest.mark.needs("gcc")

RECORDED = Path(__file__).parents[1] / "recorded" / "nvidia_smi"
MARKER = "@@0123456789abcdef"
NODE = NodeName("n")
HEALTH = (
    "row_remap_pending", "row_remap_failed", "sram_threshold_exceeded", "recovery_action", "mig_enabled", "lost",
    "repair_pending", "unrepairable_memory",
)


def health(facts: NodeFacts, index: int) -> dict[str, Any]:
    """The figures above of one GPU; None where it is unknown."""
    assert not isinstance(facts.gpus, Unknown)
    found = {name: getattr(facts.gpus[index], name) for name in HEALTH}
    return {name: None if isinstance(value, Unknown) else value for name, value in found.items()}


def recorded(name: str) -> NodeFacts:
    case = YAML(typ="safe").load((RECORDED / f"{name}.yaml").read_text(encoding="utf-8"))
    sections = {"node": {"status": 0, "text": "user=root"}, **case["sections"]}
    text = "".join(
        f"{MARKER} begin {each}\n{section['text']}\n{MARKER} end {each} {section['status']}\n"
        for each, section in sections.items()
    )
    return read_node(f"{text}{MARKER} done\n", MARKER, NODE, Window(), None)


@pytest.mark.parametrize("ending", ["", "_xml"])
@pytest.mark.parametrize(
    ("scenario", "index", "name"),
    [
        ("h100_570_healthy", 0, "h100_565_healthy"),
        ("a100_535_pending_remap", 1, "a100_535_pending_remap"),
        ("h100_590_mig", 0, "h100_590_mig"),
    ],
)
def test_the_roads_agree(scenario: str, index: int, name: str, ending: str) -> None:
    by_nvml = read_left_document(json.dumps(document_of(scenario)), NODE)
    assert health(by_nvml, index) == health(recorded(name + ending), 0)
