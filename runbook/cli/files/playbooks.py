"""`runbook playbooks check`: every document read, every problem shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runbook.cli.say import echo
from runbook.config import Inventory
from runbook.diagnosis import unknown_names
from runbook.documents import DocumentsInvalid, Problem, load_folder
from runbook.flow import load_flow
from runbook.foresight import load_memory
from runbook.kinds import kinds_file, load_kinds
from runbook.kinds.kinds_document import read_kinds
from runbook.locations import data_folder, playbook_folder
from runbook.logs.signatures import load_signatures
from runbook.model.diagnosis import Kinds
from runbook.node.catalogues import load_gpu_models, load_node_rules, load_xids
from runbook.remedy import load_levers, load_restarters


def playbooks_check(folder: Path | None) -> int:
    """`runbook playbooks check`."""
    base = playbook_folder(folder)
    problems: list[Problem] = []
    echo(f"playbook: {base}")
    readers: tuple[tuple[str, Callable[[], str]], ...] = (
        ("flow", lambda: f"{len(load_flow(base / 'flow.yaml').boxes)} boxes"),
        ("kinds", lambda: f"{len(_checked_kinds(folder))} kinds"),
        ("signatures", lambda: f"{len(load_signatures(base / 'signatures', load_kinds(folder)).all)} signatures"),
        ("levers", lambda: f"{len(load_levers(base / 'levers', load_kinds(folder)))} systems"),
        ("restarters", lambda: f"{len(load_restarters(base / 'restarters.yaml'))} of every system"),
        ("xids", lambda: f"{len(load_xids(base / 'xid.yaml').meanings)} codes"),
        ("gpu models", lambda: f"{len(load_gpu_models(base / 'gpu_models.yaml').least_bytes)} models"),
        ("memory", lambda: f"{len(load_memory(base / 'memory.yaml').systems)} systems"),
        ("node rules", lambda: f"{len(load_node_rules(base / 'node_rules.yaml').rules)} rules"),
        ("inventories", lambda: f"{len(load_folder(data_folder('inventories'), Inventory))} inventories"),
    )
    for what, read in readers:
        try:
            echo(f"  {what:<12} {read()}")
        except DocumentsInvalid as error:
            problems.extend(error.problems)
            echo(f"  {what:<12} {len(error.problems)} problems")
    if problems:
        raise DocumentsInvalid(tuple(dict.fromkeys(problems)))
    return 0


def _checked_kinds(playbook: Path | None) -> Kinds:
    """The kinds of a playbook, whose names for rules are those of rules that there are."""
    file = kinds_file(playbook)
    kinds = read_kinds(file)
    lines = list(enumerate(file.read_text(encoding="utf-8").splitlines(), start=1))
    problems = [
        Problem(str(file), max((number for number, line in lines if line.endswith(f" {name}")), default=1), "", what)
        for name, what in unknown_names(kinds)
    ]
    if problems:
        raise DocumentsInvalid(problems)
    return kinds
