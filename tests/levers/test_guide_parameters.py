"""Every parameter that the guides name is in the documents: as a parameter, a diagnostic, or with why no template
carries it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from runbook.locations import data_folder
from runbook.remedy import Diagnostic, Ladder, LeverDocument, LeverRule, OutOfReach, Parameter, load_levers

DOCUMENTS = {item.id: item for item in load_levers(data_folder("playbooks") / "oom" / "levers")}
GUIDES: dict[str, Any] = YAML(typ="safe").load(Path(__file__).parent / "guide_parameters.yaml")


def named(document: LeverDocument) -> str:
    """Every spelling of the document, one a line."""
    words = [spelling for item in document.parameters for spelling in item.spellings]
    words += [str(value) for rule in document.levers for edit in rule.edits for value in edit.arguments.values()]
    words += [name for entry in document.out_of_reach for name in entry.names]
    words += [setting for entry in document.diagnostics for setting in entry.settings]
    return "\n".join(words)


@pytest.mark.parametrize(
    ("system", "name"),
    [
        pytest.param(system, name, id=f"{guide}: {name}")
        for guide, entry in GUIDES.items()
        for system in entry["systems"]
        for name in entry["names"]
    ],
)
def test_what_a_guide_names_is_there(system: str, name: str) -> None:
    assert system in DOCUMENTS, f"there is no document for {system}"
    spelt = {word.split("=")[0].split()[0].lstrip("+") for word in named(DOCUMENTS[system]).split("\n") if word.strip()}
    plain = {word.lstrip("-").replace("-", "_") for word in spelt}
    assert name in spelt or name.lstrip("-").replace("-", "_") in plain, f"{name} is nowhere in {system}"


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=lambda item: item.id)
def test_every_entry_names_its_source(document: LeverDocument) -> None:
    entries: list[Parameter | LeverRule | Ladder | OutOfReach | Diagnostic] = [
        *document.parameters, *document.levers, *document.ladders, *document.out_of_reach, *document.diagnostics,
    ]
    assert document.source
    for entry in entries:
        assert entry.source.strip(), f"{document.id}: {entry.id} names no source"
    for lever in document.levers:
        assert lever.cost and lever.relieves and lever.why
    assert document.diagnostics or document.id in ("megatron", "pytorch"), "no diagnostic settings are told"
