"""`runbook backup` and `runbook restore`: the stored incidents and what the engine recorded of them, in one file."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from runbook import __version__
from runbook.adapters.driver import DriverLock
from runbook.adapters.driver.lease import DriverLease
from runbook.adapters.store.archive import PRUNED, ROWS, Manifest, give_modes, unpack, write_archive
from runbook.adapters.store.workflow_database import dbos_config
from runbook.adapters.store.workflow_rows import dump_rows, holds_workflows, load_rows, make_tables
from runbook.adapters.whole_file import private_file, private_folder, sync_folder, whole_file
from runbook.cli.prune import PRUNING, check_owner
from runbook.cli.say import echo
from runbook.cli.wiring import UNFINISHED_RESTORE, Application, application
from runbook.errors import BadInput, NotAllowed, NotFound, RunbookError, Unavailable
from runbook.model.incident import RESTORED
from runbook.model.units import moment, size
from runbook.report.vocabulary.clean import clean_line
from runbook.report.vocabulary.titles import counted

_PRUNE_WAIT_S = 60.0
_DATABASE = "workflows.sqlite"


def backup(file: Path, inventory: str | None) -> int:
    """`runbook backup`."""
    app = application(inventory)
    check_owner(app)
    if file.exists() or file.is_symlink():
        raise BadInput("there is a file of that name", where=str(file), next_step="name one that is not there yet")
    manifest = Manifest(app.clock.now(), __version__, app.inventory.cluster)
    # Nothing is removed meanwhile. All else goes on: what the engine has recorded is read first, so that everything it
    # tells of is in the incidents' folders; what those have beyond it is done again, by looking for it first.
    with app.alone("prune", _PRUNE_WAIT_S, PRUNING), _scratch(app.state) as scratch:
        count = dump_rows(app.inventory.database_url, _prefix(app), scratch / ROWS)
        # What decides whether an act is repeated is in PostgreSQL; the file beside it is a copy that may be missing.
        kept = app.lease.kept_of(_prefix(app)) if app.inventory.database else {}
        left = write_archive(file, app.store, scratch / ROWS, manifest, kept)
    echo(
        f"{file}: {counted(len(manifest.incidents), 'incident')}, {counted(count, 'row')} of the engine's, "
        f"{size(file.stat().st_size)}"
    )
    for path in left:
        echo(f"left out: no plain file, or larger than a patched copy can be: {clean_line(path)}", err=True)
    return 0


def restore(file: Path, into: Path | None, inventory: str | None) -> int:
    """`runbook restore`."""
    app = application(inventory)
    target = into.expanduser().absolute() if into else app.inventory.state_folder
    url = app.inventory.database_url if into is None else f"sqlite:///{target / _DATABASE}"
    if not file.is_file():
        raise NotFound("there is no such file", where=str(file), next_step="name one that `runbook backup` wrote")
    try:
        private_folder(target)
    except OSError as error:
        raise Unavailable(f"the folder cannot be made: {error.strerror}", where=str(target)) from error
    if target.stat().st_uid != os.geteuid():
        raise NotAllowed(
            "the folder belongs to another user", where=str(target), next_step="run it as that user"
        )
    with DriverLock(target, "command") as lock:
        if not lock.take():
            raise Unavailable("a runbook works on that folder", where=str(target), next_step="stop it first")
        if not url.startswith("sqlite:"):
            # A server that has no such database yet is given one, as a daemon's first start would.
            make_tables(dbos_config(url, "restore"))
        with _turn(app, target, url), _scratch(target) as scratch:
            _check_empty(app, target, url)
            manifest = unpack(file, scratch)
            if manifest.cluster != app.inventory.cluster:
                raise NotAllowed(
                    f"the backup is of cluster {manifest.cluster[:80]!r}, not of {app.inventory.cluster!r}",
                    where=str(file), next_step="name the inventory of its cluster with --inventory",
                )
            rows = _put_in_place(app, target, url, scratch, manifest)
    echo(
        f"{target}: {counted(len(manifest.incidents), 'incident')}, {counted(rows, 'row')} of the engine's, as of "
        f"{moment(manifest.made_s)}"
    )
    echo("next: `runbook serve` takes up what is open, or `runbook resume INCIDENT`", err=True)
    return 0


@contextlib.contextmanager
def _turn(app: Application, target: Path, url: str) -> Iterator[None]:
    """While nobody drives over a PostgreSQL database, from whichever host. A process that was killed is waited for
    until its turn has lapsed; raises `Unavailable` where one goes on renewing its own."""
    if url.startswith("sqlite:"):
        yield
        return
    with DriverLease(url, "command", app.inventory.cluster, target) as lease:
        left_s = math.inf
        while (seen := lease.seen()).holder is not None or not lease.take():
            if seen.holder is not None and seen.left_s > left_s:
                raise Unavailable(
                    f"a {seen.holder.kind} drives over that database (pid {seen.holder.pid} on {seen.holder.host})",
                    where="database of the inventory", next_step="stop it first",
                )
            left_s = seen.left_s if seen.holder is not None else math.inf
            app.clock.sleep(0.5)
        yield


def _prefix(app: Application) -> str:
    return f"{app.flow.id}-{app.inventory.cluster}-"


def _check_empty(app: Application, target: Path, url: str) -> None:
    """Raises `NotAllowed` where there are incidents, or records of them, but for what an unfinished restore left."""
    if (target / UNFINISHED_RESTORE).exists():
        return
    incidents = target / "incidents"
    taken = incidents.is_symlink() or (incidents.is_dir() and any(incidents.iterdir()))
    if taken or holds_workflows(url, _prefix(app)):
        raise NotAllowed(
            "there are incidents there already, or the engine's records of some",
            where=str(target), next_step="name an empty folder with --into DIR, or move what is there out of the way",
        )


def _put_in_place(app: Application, target: Path, url: str, scratch: Path, manifest: Manifest) -> int:
    """From here on the folder is marked, and no command works on it until the last step is done; begun again, it ends
    as if it had never been interrupted."""
    give_modes(scratch, manifest)
    for name in manifest.incidents:
        # By it a relaunch looks for what was submitted since: its claim may have been written after the backup.
        _write(scratch / "incidents" / name / RESTORED, {"made_s": manifest.made_s})
    (scratch / "incidents").mkdir(mode=0o711, exist_ok=True)
    fresh = url.startswith("sqlite:")
    database = f"sqlite:///{scratch / _DATABASE}" if fresh else url
    if fresh:
        private_file(scratch / _DATABASE)
        make_tables(dbos_config(database, "restore"))
        count = load_rows(database, _prefix(app), scratch / ROWS)
    begun_before = (target / UNFINISHED_RESTORE).exists()
    _write(target / UNFINISHED_RESTORE, {"made_s": manifest.made_s})
    if not fresh:
        try:
            count = load_rows(database, _prefix(app), scratch / ROWS)
        except RunbookError:
            if not begun_before:
                (target / UNFINISHED_RESTORE).unlink()
            raise
    for name in (f"{_DATABASE}-journal", f"{_DATABASE}-wal", f"{_DATABASE}-shm", "incidents.sqlite"):
        (target / name).unlink(missing_ok=True)
    if fresh:
        (scratch / _DATABASE).replace(target / _DATABASE)
    if (scratch / PRUNED).is_file():
        (scratch / PRUNED).replace(target / PRUNED)
    if (target / "incidents").is_dir():
        # Empty, or of a restore that was interrupted at the very end.
        shutil.rmtree(target / "incidents")
    (scratch / "incidents").rename(target / "incidents")
    sync_folder(target)
    (target / UNFINISHED_RESTORE).unlink()
    sync_folder(target)
    return count


def _write(path: Path, document: object) -> None:
    with whole_file(path) as stream:
        stream.write(json.dumps(document).encode())


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A private folder beside what it is for; those that a killed command left are removed."""
    for old in folder.glob(".scratch-*"):
        if not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
    scratch = folder / f".scratch-{secrets.token_hex(4)}"
    scratch.mkdir(mode=0o700)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
