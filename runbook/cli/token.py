"""`runbook token`: make, list and take back what people and programs sign in to `runbook serve` with."""

from __future__ import annotations

import time
from pathlib import Path

import click

from runbook.cli.main import inventory_option
from runbook.errors import BadInput

_ROLES = ("read", "act", "alert")


@click.group()
def token() -> None:
    """Tokens for `runbook serve`: a name and a role each. Only their hashes are kept (sign_in.tokens_file)."""


@token.command()
@click.argument("name")
@click.option(
    "--role", type=click.Choice(_ROLES), required=True,
    help="read: look · act: also say yes and no, and roll back · alert: Alertmanager's, tells of alerts only.",
)
@click.option("--days", type=click.IntRange(1, 3650), help="Void after so many days. Default: until it is removed.")
@inventory_option
def new(name: str, role: str, days: int | None, inventory: str | None) -> int:
    """Make a token and print it, once: it cannot be shown again."""
    from runbook.service.tokens import Role, add_token

    path = _file(inventory)
    made = add_token(path, name, Role(role), time.time() + days * 86_400 if days else None)
    click.echo(f"the token of {name}, role {role}; it is shown this once, and only its hash is in {path}:", err=True)
    click.echo(made)
    return 0


@token.command("list")
@inventory_option
def list_tokens(inventory: str | None) -> int:
    """Names, roles and ends of the tokens that there are."""
    from runbook.service.tokens import load_tokens

    now_s = time.time()
    for known in load_tokens(_file(inventory)).tokens:
        until = ""
        if known.until_s is not None:
            day = time.strftime("%Y-%m-%d", time.gmtime(known.until_s))
            until = f"void since {day}" if now_s >= known.until_s else f"until {day}"
        click.echo(f"{known.name:<24} {known.role.value:<6} {until}".rstrip())
    return 0


@token.command()
@click.argument("name")
@inventory_option
def remove(name: str, inventory: str | None) -> int:
    """Take a token back; every session that was begun with it ends at once."""
    from runbook.service.tokens import remove_token

    path = _file(inventory)
    remove_token(path, name)
    click.echo(f"{name} is gone from {path}")
    return 0


def _file(inventory: str | None) -> Path:
    from runbook.config import find_inventory, load_inventory

    document = load_inventory(inventory)
    if document.sign_in is None or not document.sign_in.tokens_file:
        raise BadInput(
            "this inventory has no file of tokens",
            where=str(find_inventory(inventory)),
            next_step="name one: `sign_in: {tokens_file: /var/lib/runbook/tokens.yaml}` (docs/site.md)",
        )
    return Path(document.sign_in.tokens_file).expanduser()
