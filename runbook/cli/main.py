"""The `runbook` command: exit codes, and the three endings of every command of `command_line.py`."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable

import click
from click.shell_completion import get_completion_class

from runbook.cli.command_line import cli
from runbook.errors import Interrupted, RunbookError

DONE = 0
NEEDS_PERSON = 4
NOTHING_TO_DO = 5
UNAVAILABLE = 6
BUG = 70
INTERRUPTED = 130


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
        place = _keep_trace(traceback.format_exc())
        print(  # noqa: T201
            f"runbook: a fault of this tool, not of your job. Nothing was left half done: every act is recorded.\n"
            f"  where: {place}\n  next: `runbook incidents` shows what can be resumed; please report the file",
            file=sys.stderr,
        )
        return BUG


def flushed(code: int) -> int:
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


def _keep_trace(trace: str) -> str:
    try:
        # A name that nobody can guess, made new: others may put links into this folder.
        descriptor, path = tempfile.mkstemp(".txt", f"runbook-fault-{time.strftime('%Y%m%d-%H%M%S')}-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(trace)
    except OSError:
        return trace.strip().splitlines()[-1]
    return path


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script."""
    code = flushed(guarded(lambda: _run(arguments)))
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        # A workflow's thread may wait a day for an approval. What it does is recorded; it need not be waited for.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run(arguments: list[str] | None) -> int:
    try:
        code = cli.main(args=arguments, prog_name="runbook", standalone_mode=False)
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except SystemExit as ending:
        if ending.code != 1:
            return ending.code if isinstance(ending.code, int) else 0
        # So click ends where the reader of a pipe has gone.
        raise BrokenPipeError from None
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        error.show()
        return 2
    return code if isinstance(code, int) else 0


def completion(shell: str) -> int:
    """`runbook completion`."""
    found = get_completion_class(shell)
    assert found is not None  # the choice above names only shells that click knows
    click.echo(found(cli, {}, "runbook", "_RUNBOOK_COMPLETE").source())
    return 0
