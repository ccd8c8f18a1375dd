"""What people and programs may do over HTTP: what `runbook serve` wires from the inventory, and `runbook token`,
what they sign in with.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook.cli.main import inventory_option
from runbook.cli.wiring import Application
from runbook.config import find_inventory, load_inventory
from runbook.errors import BadInput
from runbook.model.incident import Incident
from runbook.model.units import IncidentId

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from runbook.config import ProxyDocument
    from runbook.service.app import People
    from runbook.service.auth import Proxy, SignIn
    from runbook.service.daemon import Opener
    from runbook.service.spool import SpoolReader
    from runbook.service.tokens import TokenFile


_ROLLBACK_WAIT_S = 60.0


def sign_in_of(app: Application) -> SignIn | None:
    """How people sign in; None where the inventory has no `sign_in`. Raises what is wrong with its files."""
    from runbook.service.auth import Signer, SignIn, session_key

    document = app.inventory.sign_in
    if document is None:
        return None
    tokens, proxy = ways_in(app)
    return SignIn(
        signer=Signer(session_key(app.state), document.session_hours * 3600),
        tokens=tokens,
        proxy=proxy,
        open_paths=frozenset(f"/{name}" for name in document.open),
        site_url=app.inventory.reports.url,
    )


def ways_in(app: Application) -> tuple[TokenFile | None, Proxy | None]:
    """The tokens and the proxy of the inventory. Raises what is wrong with their files; makes none."""
    from runbook.service.tokens import TokenFile

    document = app.inventory.sign_in
    tokens = None
    if document is not None and document.tokens_file:
        tokens = TokenFile(Path(document.tokens_file).expanduser())
        tokens.check()
    return tokens, _proxy(document.proxy) if document is not None and document.proxy else None


def shown_to_anybody(app: Application, listen: str) -> str:
    """A warning where pages are shown beyond this machine to whoever asks; "" else."""
    if app.inventory.sign_in is not None or listen in ("localhost", "::1") or listen.startswith("127."):
        return ""
    return f"the pages are shown to whoever reaches {listen}: the inventory has no sign_in (docs/site.md)"


def people_of(app: Application, sign_in: SignIn) -> People:
    """The gate, and the acts behind it. The engine of this process has to be launched."""
    from runbook.adapters.process import process_lock
    from runbook.service.actions import Actions
    from runbook.service.app import People
    from runbook.service.decisions import answer_here

    def save(incident: Incident) -> None:
        app.store.save(incident)
        app.draw(incident)

    def one_at_a_time(incident: IncidentId) -> AbstractContextManager[object]:
        return process_lock(app.state / "locks", f"rollback of {incident}", _ROLLBACK_WAIT_S)

    acts = Actions(
        store=app.store,
        sign_in=sign_in,
        policy=app.settings.policy.mode,
        answer=answer_here,
        context_of=app.context,
        save=save,
        alone=one_at_a_time,
    )
    return People(sign_in, acts)


def webhook_routes(app: Application, sign_in: SignIn | None, spool: SpoolReader) -> Sequence[BaseRoute]:
    """The alert webhook, where there are tokens to know its caller by."""
    from runbook.service.webhook import Webhook

    if sign_in is None or sign_in.tokens is None:
        return ()
    return Webhook(app.flow.id, app.inventory.cluster, app.inventory.webhook, spool, app.store).routes()


def opener_of(app: Application) -> Opener:
    """Which incident an event belongs to."""
    from runbook.adapters.slurm.commands import SlurmOnNode
    from runbook.service.daemon import Opener

    document = app.inventory.scheduler
    on_node = None
    if document.kind == "slurm":
        on_node = SlurmOnNode(app.slurm_commands, app.clock)
    return Opener(
        app.scheduler, app.store, app.clock, app.flow.id, app.inventory.cluster, app.settings.policy.mode,
        jobs_on_node=on_node,
        files=app.files, quiet_s=app.inventory.webhook.quiet_s,
    )


def _proxy(document: ProxyDocument) -> Proxy:
    from runbook.service.auth import Proxy, networks
    from runbook.service.tokens import read_private

    secret = ""
    if document.secret_file:
        path = Path(document.secret_file).expanduser()
        made = "openssl rand -hex 32 > FILE; chmod 600 FILE"
        secret = read_private(path, "file with the proxy's secret", made).decode("utf-8", "replace").strip()
        if len(secret) < 16:
            raise BadInput(
                "the proxy's secret is shorter than 16 characters",
                where=str(path),
                next_step="openssl rand -hex 32 > FILE",
            )
    return Proxy(
        networks=networks(document.addresses),
        secret=secret,
        user_header=document.user_header,
        groups_header=document.groups_header,
        act_users=frozenset(document.act_users),
        act_groups=frozenset(document.act_groups),
    )


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
    document = load_inventory(inventory)
    if document.sign_in is None or not document.sign_in.tokens_file:
        raise BadInput(
            "this inventory has no file of tokens",
            where=str(find_inventory(inventory)),
            next_step="name one: `sign_in: {tokens_file: /var/lib/runbook/tokens.yaml}` (docs/site.md)",
        )
    return Path(document.sign_in.tokens_file).expanduser()
