"""`runbook deploy`: configuration of other programs, filled in from an inventory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from runbook.cli.main import inventory_option
from runbook.errors import BadInput, NotAllowed, Unavailable

if TYPE_CHECKING:
    from runbook.config import Inventory

_ADDRESS = "http://127.0.0.1:8642"
"""In the files of deploy/prometheus, where the address of the reports goes."""
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  (compared, not bound)


@click.group()
def deploy() -> None:
    """Print configuration for other programs, filled in from an inventory."""


@deploy.command()
@click.option("--output", "-o", metavar="DIR", type=click.Path(path_type=Path), help="Write the files there instead.")
@click.option("--force", is_flag=True, help="Replace files that are there already.")
@inventory_option
def prometheus(output: Path | None, force: bool, inventory: str | None) -> int:
    """Print the scrape job, alert rules and an Alertmanager configuration for an inventory.

    With --output they are written as files; none that is there is replaced unless --force says so.
    """
    from runbook.config import load_inventory

    files = prometheus_files(load_inventory(inventory))
    if output is None:
        for name, text in files.items():
            click.echo(f"# ---- {name}\n{text}")
        return 0
    for path in write_files(output, files, force=force):
        click.echo(str(path))
    return 0


def prometheus_files(inventory: Inventory) -> dict[str, str]:
    """Name and content of each file."""
    from runbook.cli.metrics import report_address
    from runbook.locations import data_folder

    folder = data_folder("deploy") / "prometheus"
    address = report_address(inventory)
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in _NAMES}
    rules, absent, alertmanager = (texts[name] for name in _NAMES)
    return {
        "runbook-scrape.yml": _scrape(inventory),
        "runbook.rules.yml": rules.replace(_ADDRESS, address),
        f"runbook-absent-{inventory.cluster}.rules.yml": (
            absent.replace(_ADDRESS, address).replace("CLUSTER", inventory.cluster)
        ),
        "runbook-alertmanager.yml": alertmanager.replace(_ADDRESS, f"http://{_target(inventory)}"),
    }


_NAMES = ("runbook.rules.yml", "runbook-absent.rules.yml", "alertmanager.yml")


def write_files(folder: Path, files: Mapping[str, str], *, force: bool) -> list[Path]:
    """Write all of them, or none where one is there already with other content. Returns those written."""
    changed = {}
    for name, text in files.items():
        path = folder / name
        try:
            there = path.read_bytes() if path.exists() else None
        except OSError as error:
            raise NotAllowed(f"it cannot be read: {error.strerror}", where=str(path)) from error
        if there == text.encode("utf-8"):
            continue
        if there is not None and not force:
            raise BadInput(
                "the file is there already and says something else",
                where=str(path),
                next_step="compare it with what `runbook deploy prometheus` prints; --force replaces it",
            )
        changed[path] = text
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in changed.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Unavailable(
            f"the files cannot be written: {error.strerror}",
            where=str(folder), next_step="name a folder that you may write to",
        ) from error
    return list(changed)


def _target(inventory: Inventory) -> str:
    """Host and port that Prometheus asks. The daemon answers to the names of loopback and of reports.url only."""
    reports = inventory.reports
    host = reports.listen
    if host in _WILDCARDS:
        host = urlsplit(reports.url).hostname or "127.0.0.1"
    return f"{f'[{host}]' if ':' in host else host}:{reports.port}"


def _scrape(inventory: Inventory) -> str:
    sign_in = inventory.sign_in
    token = (
        "    authorization:\n"
        "      # A token of the role `read` (`runbook token`), in a file that only Prometheus reads.\n"
        "      credentials_file: /etc/prometheus/runbook.token\n"
        if sign_in is not None and "metrics" not in sign_in.open
        else ""
    )
    loopback = inventory.reports.listen in ("127.0.0.1", "::1", "localhost")
    where = "  # The daemon listens on loopback: this Prometheus has to run on the same machine.\n" if loopback else ""
    return (
        "# Into prometheus.yml: the scrape job below `scrape_configs`, and the rules by\n"
        "#   rule_files: [runbook.rules.yml, runbook-absent-*.rules.yml]\n"
        "scrape_configs:\n"
        f"{where}"
        "  - job_name: runbook\n"
        "    scrape_interval: 15s\n"
        "    # The metrics name their cluster themselves; the label below gives it to `up`, too.\n"
        "    honor_labels: true\n"
        f"{token}"
        "    static_configs:\n"
        f"      - targets: ['{_target(inventory)}']\n"
        f"        labels: {{cluster: '{inventory.cluster}'}}\n"
    )
