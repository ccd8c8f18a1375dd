"""`runbook observe`: what to put in front of a job so that ranks leave a memory snapshot when they run out."""

from __future__ import annotations

import shlex
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path

from runbook.adapters.silent import PATIENCE_S, within
from runbook.adapters.whole_file import is_own_file, settled_folder, whole_file, write_new
from runbook.cli.say import echo
from runbook.errors import BadInput, NotAllowed, RunbookError, Unavailable

_NAME = "sitecustomize.py"
_READABLE = 0o644


def observe(into: str | None, folder: Path | None, entries: int) -> int:
    """`runbook observe`."""
    with as_file(files("runbook.observer") / _NAME) as installed:
        if folder is None:
            path = str(installed.parent)
        else:
            path = str(folder.absolute())
            within(PATIENCE_S, path, partial(_put, folder, installed.read_bytes()))
    for one in (path, into or ""):
        if any(not letter.isprintable() for letter in one):
            raise BadInput("a folder's name holds what no shell line can", next_step="name another")
    if ":" in path:
        raise BadInput(f"{path} holds a colon, which PYTHONPATH takes for an end", next_step="--write another folder")
    target = shlex.quote(into) if into else '"${SLURM_SUBMIT_DIR:-$PWD}/snapshots"'
    echo("# In the launch script, before the command that starts the ranks (docs/snapshots.md):")
    echo(f"export RUNBOOK_SNAPSHOTS={target}")
    echo(f"export RUNBOOK_SNAPSHOT_ENTRIES={entries}")
    echo(f"export PYTHONPATH={shlex.quote(path)}${{PYTHONPATH:+:$PYTHONPATH}}")
    return 0


def _put(folder: Path, content: bytes) -> None:
    """An earlier one of ours is replaced, nothing else. Raises `NotAllowed`, `Unavailable`."""
    try:
        with settled_folder(folder) as settled:
            target = settled / _NAME
            if is_own_file(target):
                if not target.read_bytes().startswith(content[:80]):
                    raise NotAllowed(
                        f"{folder / _NAME} is there already and is not ours",
                        next_step="name a folder of its own: Python takes the first of that name alone",
                    )
                with whole_file(target, mode=_READABLE) as stream:
                    stream.write(content)
            else:
                write_new(target, content, mode=_READABLE)
    except RunbookError:
        raise
    except OSError as error:
        raise Unavailable(f"{folder / _NAME} cannot be written: {(error.strerror or str(error)).lower()}") from None
