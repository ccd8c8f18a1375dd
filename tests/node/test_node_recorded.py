"""Recorded and written answers of nvidia-smi and of the kernel log, read as a node's document of answers.

`tests/recorded/nvidia_smi/*.yaml` and `tests/recorded/kernel_log/*.yaml` hold the texts with their origin."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from runbook.model.node import NodeFacts, Reach
from runbook.model.units import MIB, NodeName, Unknown
from runbook.node import Window, read_node

RECORDED = Path(__file__).parents[1] / "recorded"
ORIGINS = {"written-after-documentation", "simulated", "captured"}
MARKER = "@@0123456789abcdef"
KEYS: dict[str, str] = {"bus": "bus_id", "time": "time_s"}


def load(kind: str) -> list[Any]:
    found = []
    for path in sorted((RECORDED / kind).glob("*.yaml")):
        case = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
        assert case["origin"] in ORIGINS, path
        found.append(pytest.param(case, id=path.stem))
    assert found
    return found


def document(case: dict[str, Any]) -> str:
    sections = {"node": {"status": 0, "text": "user=root"}, **case["sections"]}
    parts = []
    for name, section in sections.items():
        parts.append(f"{MARKER} begin {name}\n{section['text']}\n")
        if section["status"] is not None:
            parts.append(f"{MARKER} end {name} {section['status']}\n")
    return "motd\n" + "".join(parts) + f"{MARKER} done\n"


def facts_of(case: dict[str, Any]) -> NodeFacts:
    since_s, until_s = case.get("window", (None, None))
    facts = read_node(
        document(case), MARKER, NodeName("gpu-21"), Window(since_s, until_s),
        case.get("asked_at_s"),
    )
    assert facts.reach is Reach.OK
    return facts


def compare(what: str, wanted: Any, found: Any) -> None:
    """Every key of the expectation, nothing more; `{unknown: words}` wants an Unknown whose reason has the words."""
    if isinstance(wanted, dict) and set(wanted) == {"unknown"}:
        assert isinstance(found, Unknown), f"{what}: {found!r} is known"
        assert wanted["unknown"] in found.unknown, f"{what}: {found.unknown}"
    elif isinstance(wanted, list):
        assert not isinstance(found, Unknown), f"{what}: {found}"
        assert len(found) == len(wanted), f"{what}: {found}"
        for number, (item, value) in enumerate(zip(wanted, found, strict=True)):
            compare(f"{what}.{number}", item, value)
    elif isinstance(wanted, dict):
        for key, value in wanted.items():
            name = KEYS[key] if key in KEYS else str(key)
            if key.endswith("_mib"):
                name, value = key.removesuffix("_mib") + "_bytes", value * MIB if isinstance(value, int) else value
            compare(f"{what}.{key}", value, getattr(found, name))
    elif isinstance(wanted, float) or (isinstance(wanted, int) and isinstance(found, float)):
        assert found == pytest.approx(wanted, abs=1e-3, rel=0), what
    else:
        assert found == wanted and type(found) is type(wanted), f"{what}: {found!r}, not {wanted!r}"


@pytest.mark.parametrize("case", load("nvidia_smi"))
def test_nvidia_smi(case: dict[str, Any]) -> None:
    facts = facts_of(case)
    compare("driver", case["expect"]["driver"], facts.driver)
    compare("gpus", case["expect"]["gpus"], facts.gpus)


XML_ONLY = {"mig_instances", "compute_mode", "ecc_enabled"}
"""The texts of `-q` leave their parts out."""


@pytest.mark.parametrize("name", [path.stem for path in sorted((RECORDED / "nvidia_smi").glob("*_xml.yaml"))])
def test_a_driver_says_the_same_in_xml_as_in_text(name: str) -> None:
    """Figures agree, and what is unknown in one is unknown in the other."""
    def known(stem: str) -> Any:
        case = YAML(typ="safe").load((RECORDED / "nvidia_smi" / f"{stem}.yaml").read_text(encoding="utf-8"))
        gpus = facts_of(case).gpus
        assert not isinstance(gpus, Unknown)
        return [
            {field.name: None if isinstance(value := getattr(gpu, field.name), Unknown) else value
             for field in fields(gpu) if field.name not in XML_ONLY}
            for gpu in gpus
        ]

    assert known(name) == known(name.removesuffix("_xml"))


@pytest.mark.parametrize("case", load("kernel_log"))
def test_kernel_log(case: dict[str, Any]) -> None:
    facts = facts_of(case)
    compare("events", case["expect"]["events"], facts.xids)
    compare("covers", case["expect"]["covers"], facts.log_covers_since_s)
