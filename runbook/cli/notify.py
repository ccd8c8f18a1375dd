"""`runbook notify`: does a message reach the people whom the inventory names?"""

from __future__ import annotations

import click

from runbook.cli.main import inventory_option
from runbook.errors import BadInput, NotFound, Unavailable


@click.group()
def notify() -> None:
    """Notifications: who is told of what (docs/notifications.md)."""


@notify.command()
@click.option(
    "--severity", type=click.Choice(["info", "warning", "page"]), default="info", show_default=True,
    help="How urgent the message says it is.",
)
@click.option("--target", metavar="NAME", help="Only to this target. Default: to each.")
@click.option("--owner", metavar="USER", default="", help="Whose name stands for {owner} in an address.")
@inventory_option
def test(severity: str, target: str | None, owner: str, inventory: str | None) -> int:
    """Send a message that says that it is a test, and say for each address whether it was taken.

    Filters, quiet hours and limits do not count here, but targets that do not want that severity are named. No address
    is shown. Exit code 6 where one did not take it.
    """
    from runbook.cli.notify_targets import targets_of
    from runbook.cli.wiring import application
    from runbook.config import find_inventory
    from runbook.model.message import About, Message, Severity
    from runbook.report.vocabulary.clean import clean_line

    app = application(inventory)
    targets = {one.name: one for one in targets_of(app.inventory.notify)}
    where = str(find_inventory(inventory))
    if not targets:
        raise NotFound(
            "this inventory names nobody to tell", where=where,
            next_step="add `notify: {urls: [...]}` or targets (docs/notifications.md)",
        )
    if target is not None and target not in targets:
        raise BadInput(f"no target {target!r}", where=where, next_step=f"name one of {', '.join(targets)}")
    urgency = Severity(severity)
    message = Message(
        event="test",
        severity=urgency,
        title=f"test from {app.inventory.cluster}, severity {severity}: nothing has happened",
        body="Somebody ran `runbook notify test`. No job is concerned and nothing is asked.",
        link=app.settings.report_url,
        about=About(owner=owner),
    )
    failed = 0
    for name, one in targets.items():
        if target not in (None, name):
            continue
        if urgency not in one.severities:
            click.echo(f"{name}: hears no {severity}; sent all the same")
        sent = app.notify.test(message, name)
        if not sent:
            click.echo(f"{name}: no address" + ("" if owner else "; `--owner USER` where an address holds {owner}"))
        for number, result in enumerate(sent, start=1):
            delivery = result.delivery
            service = f" ({delivery.service})" if delivery.service else ""
            ended = "delivered" if delivery.delivered else f"not delivered: {clean_line(delivery.reason)}"
            click.echo(f"{name}: address {number}{service}: {ended}")
            failed += not delivery.delivered
    if failed:
        raise Unavailable(
            f"{failed} address{'' if failed == 1 else 'es'} did not take the message", where=where,
            next_step="check the address with its service, and that this machine reaches it",
        )
    return 0
