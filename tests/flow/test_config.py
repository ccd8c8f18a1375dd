"""Inventories: what ships is sound; what is wrong is said with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.config import Inventory, find_inventory, load_inventory
from runbook.documents import DocumentsInvalid, load_folder
from runbook.errors import BadInput
from runbook.locations import data_folder
from runbook.model.incident import Policy

GOOD = """\
version: 1
id: mine
title: Mine
cluster: c1
scheduler: {kind: slurm}
nodes: {kind: ssh, user: probe}
policy: {mode: plan}
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_shipped_inventories_are_sound() -> None:
    assert {document.id for _, document in load_folder(data_folder("inventories"), Inventory)} >= {"local", "sandbox"}


def test_the_default_is_local_unless_the_environment_names_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RUNBOOK_INVENTORY", raising=False)
    assert find_inventory(None).name == "local.yaml"
    monkeypatch.setenv("RUNBOOK_INVENTORY", write(tmp_path, GOOD))
    assert load_inventory(None).cluster == "c1"


def test_the_commands_line_policy_goes_before_the_inventorys(tmp_path: Path) -> None:
    inventory = load_inventory(write(tmp_path, GOOD))
    assert inventory.with_mode(None).policy.mode is Policy.PLAN
    assert inventory.with_mode(Policy.APPROVE).policy.mode is Policy.APPROVE


def test_every_problem_is_named_with_its_line(tmp_path: Path) -> None:
    text = GOOD.replace("kind: slurm", "kind: sulrm").replace(
        "policy: {mode: plan}", "policy:\n  mode: plan\n  max_relaunch: 3"
    )
    with pytest.raises(DocumentsInvalid) as caught:
        load_inventory(write(tmp_path, text))
    message = str(caught.value)
    assert "mine.yaml:5" in message
    assert "'slurm' or 'local'" in message
    assert "mine.yaml:9" in message
    assert "unknown key" in message


def test_broken_yaml_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DocumentsInvalid, match=r"mine\.yaml:\d+: not valid YAML"):
        load_inventory(write(tmp_path, GOOD + "notify: [unclosed\n"))


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentsInvalid, match="duplicate"):
        load_inventory(write(tmp_path, GOOD + "cluster: c2\n"))


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(BadInput) as caught:
        find_inventory("nowhere")
    assert "local" in str(caught.value)


@pytest.mark.parametrize("spool", ["/var/lib/x", "/var/lib", "/var/lib/x/incidents", "/var/lib/x/../x"])
def test_a_spool_that_would_sweep_up_the_incidents_is_refused(tmp_path: Path, spool: str) -> None:
    with pytest.raises(DocumentsInvalid, match="folder of its own"):
        load_inventory(write(tmp_path, GOOD + f"paths: {{state: /var/lib/x, spool: {spool}}}\n"))
    load_inventory(write(tmp_path, GOOD + "paths: {state: /var/lib/x, spool: /var/lib/x/spool}\n"))
