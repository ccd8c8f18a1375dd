"""What people and programs sign in with: the tokens and the proxy of an inventory, and `runbook token`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from runbook.cli.say import echo
from runbook.cli.wiring import Application
from runbook.config import ProxyDocument, find_inventory, load_inventory
from runbook.errors import BadInput
from runbook.service.tokens import Role, TokenFile, add_token, load_tokens, read_private, remove_token

if TYPE_CHECKING:
    from runbook.service.auth import Proxy


def ways_in(app: Application) -> tuple[TokenFile | None, Proxy | None]:
    """The tokens and the proxy of the inventory. Raises what is wrong with their files; makes none."""
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


def _proxy(document: ProxyDocument) -> Proxy:
    from runbook.service.auth import Proxy, networks

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


def token_new(name: str, role: str, days: int | None, inventory: str | None) -> int:
    """`runbook token new`."""
    path = _file(inventory)
    made = add_token(path, name, Role(role), time.time() + days * 86_400 if days else None)
    echo(f"the token of {name}, role {role}; it is shown this once, and only its hash is in {path}:", err=True)
    echo(made)
    return 0


def token_list(inventory: str | None) -> int:
    """`runbook token list`."""
    now_s = time.time()
    for known in load_tokens(_file(inventory)).tokens:
        until = ""
        if known.until_s is not None:
            day = time.strftime("%Y-%m-%d", time.gmtime(known.until_s))
            until = f"void since {day}" if now_s >= known.until_s else f"until {day}"
        echo(f"{known.name:<24} {known.role.value:<6} {until}".rstrip())
    return 0


def token_remove(name: str, inventory: str | None) -> int:
    """`runbook token remove`."""
    path = _file(inventory)
    remove_token(path, name)
    echo(f"{name} is gone from {path}")
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
