"""`runbook playbooks check`: every document read, every problem shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from runbook.config import Inventory
from runbook.documents import DocumentsInvalid, Problem, load_folder
from runbook.flow import load_flow
from runbook.locations import data_folder, playbook_folder
from runbook.logs.signatures.signature import load_signatures
from runbook.node.catalogues import load_gpu_models, load_node_rules, load_xids
from runbook.remedy import load_levers, load_restarters


@click.group()
def playbooks() -> None:
    """Check the documents that the tool decides by."""


@playbooks.command()
@click.option(
    "--folder", type=click.Path(path_type=Path), help="A playbook folder. Default: the one that is installed."
)
def check(folder: Path | None) -> int:
    """Read flow, signatures, levers, XIDs and inventories; show every problem with file and line."""
    base = playbook_folder(folder)
    problems: list[Problem] = []
    click.echo(f"playbook: {base}")
    readers: tuple[tuple[str, Callable[[], str]], ...] = (
        ("flow", lambda: f"{len(load_flow(base / 'flow.yaml').boxes)} boxes"),
        ("signatures", lambda: f"{len(load_signatures(base / 'signatures').all)} signatures"),
        ("levers", lambda: f"{len(load_levers(base / 'levers'))} systems"),
        ("restarters", lambda: f"{len(load_restarters(base / 'restarters.yaml'))} of every system"),
        ("xids", lambda: f"{len(load_xids(base / 'xid.yaml').meanings)} codes"),
        ("gpu models", lambda: f"{len(load_gpu_models(base / 'gpu_models.yaml').least_bytes)} models"),
        ("node rules", lambda: f"{len(load_node_rules(base / 'node_rules.yaml').rules)} rules"),
        ("inventories", lambda: f"{len(load_folder(data_folder('inventories'), Inventory))} inventories"),
    )
    for what, read in readers:
        try:
            click.echo(f"  {what:<12} {read()}")
        except DocumentsInvalid as error:
            problems.extend(error.problems)
            click.echo(f"  {what:<12} {len(error.problems)} problems")
    if problems:
        raise DocumentsInvalid(problems)
    return 0
