"""The inventory's people to tell, as the notifier needs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runbook.adapters.delivery import Target
from runbook.config import NotifyDocument, NotifyTargetDocument


def targets_of(document: NotifyDocument) -> tuple[Target, ...]:
    """One target each. Files of addresses are read when there is something to send."""
    return tuple(
        Target(
            name=target.name,
            addresses=_addresses_of(target),
            severities=target.severities,
            partitions=target.partitions,
            accounts=target.accounts,
            users=target.users,
            per_hour=target.per_hour,
            quiet_hours=target.quiet_hours,
        )
        for target in document.all_targets
    )


def _addresses_of(target: NotifyTargetDocument) -> Callable[[], tuple[str, ...]]:
    here = tuple(address.get_secret_value() for address in target.urls)
    path = Path(target.urls_file).expanduser() if target.urls_file else None

    def addresses() -> tuple[str, ...]:
        if path is None:
            return here
        from runbook.service.tokens import read_private

        text = read_private(path, "file of notification addresses", "one address a line, chmod 600")
        lines = (line.strip() for line in text.decode("utf-8", "replace").splitlines())
        return (*here, *(line for line in lines if line and not line.startswith("#")))

    return addresses
