"""`runbook snapshot`: what PyTorch's memory snapshots say. Nothing is touched, and nothing in them is run."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

from runbook.adapters.files.owner_side import open_regular
from runbook.adapters.silent import PATIENCE_S, PatientFile, within
from runbook.cli.files.levers import terminal_width
from runbook.cli.say import echo, redraw
from runbook.errors import BadInput, NotAllowed, NotFound, RunbookError, Unavailable
from runbook.model.snapshots import SnapshotFindings
from runbook.report.text.snapshot_text import document_of, render_snapshots
from runbook.snapshots import findings_of, read_snapshot

_MOST_FILES = 512
_MOST_BYTES = 16 << 30
_SHOWN_FROM_BYTES = 32 << 20


def snapshot(files: tuple[Path, ...], as_json: bool, verbose: bool, always_replay: bool) -> int:
    """`runbook snapshot`."""
    paths = _named(files)
    found = [_read(path, always_replay) for path in paths]
    if as_json:
        echo(json.dumps(document_of(found), indent=2, ensure_ascii=True))
        return 0
    for line in render_snapshots(found, min(120, terminal_width()), verbose=verbose):
        echo(line)
    return 0


def _named(files: tuple[Path, ...]) -> list[Path]:
    """Files; of a folder those whose names are a pickle's. Raises `BadInput`, `NotFound`."""
    if not files:
        raise BadInput("no snapshot is named", next_step="runbook snapshot FILE.pickle…, or the folder that has them")
    named: list[Path] = []
    for path in files:
        if within(PATIENCE_S, str(path), path.is_dir):
            inside = within(PATIENCE_S, str(path), lambda folder=path: sorted(folder.iterdir()))  # type: ignore[misc]
            chosen = [one for one in inside if one.suffix in (".pickle", ".pkl")]
            if not chosen:
                raise NotFound(f"no file of {path} is named .pickle or .pkl", next_step="name the files themselves")
            named += chosen
        else:
            named.append(path)
    if len(named) > _MOST_FILES:
        raise BadInput(f"more than {_MOST_FILES} snapshots", next_step="name fewer: a rank or two tell most")
    return named


def _read(path: Path, always_replay: bool) -> SnapshotFindings:
    """Raises `BadInput` that names the file, and what opening it does."""
    try:
        descriptor = within(PATIENCE_S, str(path), partial(open_regular, str(path)))
    except FileNotFoundError:
        raise NotFound(f"{path} is not there") from None
    except PermissionError:
        raise NotAllowed(f"{path} may not be read", next_step="run as somebody who may") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    with PatientFile(descriptor, str(path), PATIENCE_S) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > _MOST_BYTES:
            raise BadInput(f"{path} is larger than {_MOST_BYTES >> 30} GiB", next_step="record fewer entries")
        try:
            if os.geteuid() == 0:
                from runbook.cage import read_apart

                return read_apart(stream, path.name, always_replay=always_replay)
            with _Progress(path.name, size) as progress:
                return findings_of(read_snapshot(stream, progress.update), path.name, always_replay=always_replay)
        except MemoryError:
            raise Unavailable(f"{path} takes more memory to read than there is") from None
        except RunbookError as error:
            where = f"{path}, {error.where}" if error.where and error.where != path.name else str(path)
            what = f"{path.name} is not read: {error.what}"
            raise type(error)(what, where=where, next_step=error.next_step) from None


class _Progress:
    """How far a large file has been read, for a person who waits."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._shown = size >= _SHOWN_FROM_BYTES and sys.stderr.isatty()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._shown:
            redraw("")

    def update(self, read: int) -> None:
        """Bytes."""
        if self._shown:
            redraw(f"{self._name}: {100 * read // self._size} %")
