"""What others learn of the tool. `runbook metrics`: the figures of /metrics as text, or as a file for node exporter's
textfile collector; `runbook deploy`: configuration of Prometheus and Alertmanager, filled in from an inventory;
`runbook notify`: does a message reach the people whom the inventory names?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from runbook import __version__
from runbook.adapters.log_watch import LogFollowers
from runbook.adapters.metrics import BoxFigures, IncidentMetrics, Labels, ServiceFigures, StoreFigures
from runbook.adapters.slurm.commands import SlurmRunning
from runbook.adapters.store.keep import load_pruned
from runbook.adapters.whole_file import private_folder, whole_file
from runbook.cli.daemon_seen import at_work_elsewhere, daemon_drives
from runbook.cli.say import echo, hand_on
from runbook.cli.wiring import Application, application, targets_of
from runbook.config import Inventory, find_inventory, load_inventory
from runbook.errors import BadInput, NotAllowed, NotFound, RunbookError, Unavailable
from runbook.locations import data_folder
from runbook.model.incident import About, Message, Severity
from runbook.model.units import GIB
from runbook.report.vocabulary.clean import clean_line
from runbook.service.job_watch import JobWatch, memory_words
from runbook.service.spool import SpoolEvent, SpoolReader, SpoolStatus

if TYPE_CHECKING:
    from runbook.cage import AtWork


def metrics(textfile: Path | None, inventory: str | None) -> int:
    """`runbook metrics`."""
    if textfile is not None and textfile.suffix != ".prom":
        raise BadInput(
            "node exporter reads files that end in .prom only", where=str(textfile), next_step="name it so"
        )
    app = application(inventory)
    text = IncidentMetrics(
        app.read_model, labels_of(app, report_address(app.inventory)), lambda: _figures(app), now=app.clock.now
    ).text()
    if textfile is None:
        hand_on(text.decode("utf-8"))
    else:
        write_readable(textfile, text)
    return 0


def labels_of(app: Application, report_url: str) -> Labels:
    """What the metrics of this installation say of themselves."""
    return Labels(app.inventory.cluster, app.flow.id, tuple(app.flow.boxes), report_url)


def report_address(inventory: Inventory, listen: str | None = None, port: int | None = None) -> str:
    """The address that links begin with, without a slash at its end: the inventory's, else where the daemon listens."""
    if inventory.reports.url:
        return inventory.reports.url.rstrip("/")
    host = listen or inventory.reports.listen
    if host in ("0.0.0.0", "::", ""):  # noqa: S104  (compared, not bound)
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port or inventory.reports.port}"


def write_readable(path: Path, content: bytes) -> None:
    """Put a file in place at once, readable for everybody: a collector must not see half of it. Raises `NotAllowed`,
    `Unavailable`; what was there before is then untouched."""
    try:
        # A collector reads *.prom only, so that the file under work is no metric yet.
        with whole_file(path, 0o644, durable=False) as stream:
            stream.write(content)
    except OSError as error:
        kind = NotAllowed if isinstance(error, PermissionError) else Unavailable
        raise kind(
            f"the file cannot be written: {error.strerror}",
            where=str(path),
            next_step="make its folder, writable for the user that runs this, or name another",
        ) from error


def _figures(app: Application) -> ServiceFigures:
    """What can be known of the daemon from outside: no heartbeat, and no count of its own."""
    readable = True
    try:
        spool = SpoolReader(app.inventory.spool_folder).status()
    except RunbookError:
        spool, readable = SpoolStatus(0, None), False
    return ServiceFigures(
        now_s=app.clock.now(),
        version=__version__,
        driver_alive=daemon_drives(app),
        spool_depth=spool.depth,
        spool_oldest_s=spool.oldest_s,
        spool_readable=readable,
        spool_bad=spool.bad,
        events_opened=None,
        boxes=box_figures(at_work_elsewhere(app)),
        boxes_waiting=None,
        store=store_figures(app),
    )


def box_figures(at_work: Sequence[AtWork]) -> tuple[BoxFigures, ...]:
    """By box of the flow, in the order of their names."""
    names = sorted({one.box for one in at_work})
    return tuple(
        BoxFigures(name, max(one.for_s for one in same), sum(one.late for one in same))
        for name in names
        for same in [[one for one in at_work if one.box == name]]
    )


def store_figures(app: Application) -> StoreFigures:
    """As the last prune left it; the daemon does one each hour."""
    pruned = load_pruned(app.store.root)
    return StoreFigures(pruned.stored_bytes, round(app.inventory.keep.total_gib * GIB), pruned.last_s or 0.0)


_ADDRESS = "http://127.0.0.1:8642"
"""In the files of deploy/prometheus, where the address of the reports goes."""
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  (compared, not bound)


def deploy_prometheus(output: Path | None, force: bool, inventory: str | None) -> int:
    """`runbook deploy prometheus`."""
    files = prometheus_files(load_inventory(inventory))
    if output is None:
        for name, text in files.items():
            echo(f"# ---- {name}\n{text}")
        return 0
    for path in write_files(output, files, force=force):
        echo(str(path))
    return 0


def prometheus_files(inventory: Inventory) -> dict[str, str]:
    """Name and content of each file."""
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
        private_folder(folder, 0o755)
        for path, text in changed.items():
            # Prometheus reads them as a user of its own, and they hold no secret.
            with whole_file(path, 0o644, durable=False) as stream:
                stream.write(text.encode("utf-8"))
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


def notify_test(severity: str, target: str | None, owner: str, inventory: str | None) -> int:
    """`runbook notify test`."""
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
        link=app.settings.reports.url,
        about=About(owner=owner),
    )
    failed = 0
    for name, one in targets.items():
        if target not in (None, name):
            continue
        if urgency not in one.severities:
            echo(f"{name}: hears no {severity}; sent all the same")
        sent = app.notify.test(message, name)
        if not sent:
            echo(f"{name}: no address" + ("" if owner else "; `--owner USER` where an address holds {owner}"))
        for number, result in enumerate(sent, start=1):
            delivery = result.delivery
            service = f" ({delivery.service})" if delivery.service else ""
            ended = "delivered" if delivery.delivered else f"not delivered: {clean_line(delivery.reason)}"
            echo(f"{name}: address {number}{service}: {ended}")
            failed += not delivery.delivered
    if failed:
        raise Unavailable(
            f"{failed} address{'' if failed == 1 else 'es'} did not take the message", where=where,
            next_step="check the address with its service, and that this machine reaches it",
        )
    return 0


def job_watch_of(app: Application, leave: Callable[[SpoolEvent], object]) -> JobWatch | None:
    """What follows running jobs' logs, with where it leaves its events; None where the inventory watches none."""
    rule = app.inventory.watch
    if not rule.is_on:
        return None
    local = app.inventory.scheduler.kind == "local"
    words = memory_words(app.playbook.signatures)
    by_slurm = SlurmRunning(app.slurm_commands, with_words=bool(rule.accounts or rule.opt_in))
    return JobWatch(
        rule, app.local_scheduler.jobs if local else by_slurm, app.scheduler, app.nodes,
        LogFollowers(sorted(words), rule.unknown_step_s, app.clock), leave, app.inventory.cluster, app.flow.id,
        app.clock,
    )
