"""Exit codes, and the three endings of every command."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from runbook.errors import Interrupted, RunbookError

if TYPE_CHECKING:
    from runbook.model.incident import Incident

DONE = 0
NEEDS_PERSON = 4
NOTHING_TO_DO = 5
UNAVAILABLE = 6
BUG = 70
INTERRUPTED = 130


def code_of(incident: Incident) -> int:
    """The exit code that an incident's state stands for."""
    from runbook.model.incident import IncidentState

    return {
        IncidentState.RECOVERED: DONE,
        IncidentState.PLANNED: DONE,
        IncidentState.ESCALATED: NEEDS_PERSON,
        IncidentState.AWAITING_APPROVAL: NEEDS_PERSON,
        IncidentState.CLOSED: NOTHING_TO_DO,
        IncidentState.INTERRUPTED: UNAVAILABLE,
        IncidentState.RUNNING: DONE,
    }[incident.state]


def guarded(command: Callable[[], int]) -> int:
    """Run a command; turn its ending into an exit code and at most a few plain lines on stderr."""
    try:
        return command()
    except RunbookError as error:
        say_error(error)
        return error.exit_code
    except (Interrupted, KeyboardInterrupt) as error:
        text = str(error) or "interrupted; nothing is lost, `runbook incidents` shows what can be resumed"
        print(f"\nrunbook: {text}", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except BrokenPipeError:
        # `runbook … | head`: the reader has seen enough.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return DONE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _say_unwritten(error)
        place = _keep(traceback.format_exc())
        print(  # noqa: T201
            f"runbook: a fault of this tool, not of your job. Nothing was left half done: every act is recorded.\n"
            f"  where: {place}\n  next: `runbook incidents` shows what can be resumed; please report the file",
            file=sys.stderr,
        )
        return BUG


def written(code: int) -> int:
    """The exit code, once what was printed is out. What cannot be written is said once, and left: the interpreter would
    try again at its end and exit with a status of its own."""
    error = _unwritable()
    if error is None:
        return code
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return _say_unwritten(error) if code == DONE and not isinstance(error, BrokenPipeError) else code


def _unwritable() -> OSError | None:
    """Why what was printed cannot get out; None where it is out."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def _say_unwritten(error: OSError) -> int:
    what = f"{error.filename}" if error.filename else "the answer"
    print(f"runbook: {what} could not be written: {(error.strerror or str(error)).lower()}", file=sys.stderr)  # noqa: T201
    return UNAVAILABLE


def say_error(error: RunbookError) -> None:
    """What, where, what next, without control characters from outside."""
    from runbook.report.vocabulary.clean import clean

    text = clean(str(error))
    print(f"runbook: {text}", file=sys.stderr)  # noqa: T201


def _keep(trace: str) -> str:
    name = f"runbook-fault-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path = Path(tempfile.gettempdir()) / name
        path.touch(mode=0o600)
        path.write_text(trace, encoding="utf-8")
    except OSError:
        return trace.strip().splitlines()[-1]
    return str(path)
