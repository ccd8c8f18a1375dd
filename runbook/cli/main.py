"""The `runbook` command: exit codes, and the three endings of every command of `command_line.py`."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

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
        _say(f"\nrunbook: {text}")
        return INTERRUPTED
    except BrokenPipeError:
        # `runbook … | head`: the reader has seen enough.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return DONE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _say_unwritten(error)
        place = _keep_trace(traceback.format_exc())
        _say(
            f"runbook: a fault of this tool, not of your job. Nothing was left half done: every act is recorded.\n"
            f"  where: {place}\n  next: `runbook incidents` shows what can be resumed; please report the file"
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
    _say(f"runbook: {what} could not be written: {(error.strerror or str(error)).lower()}")
    return UNAVAILABLE


def say_error(error: RunbookError) -> None:
    """What, where, what next."""
    from runbook.masking import masked

    _say(f"runbook: {masked(str(error))}")


def _say(text: str) -> None:
    from runbook.cli.say import echo

    echo(text, err=True)


def _keep_trace(trace: str) -> str:
    import tempfile

    try:
        # A name that nobody can guess, made new: others may put links into this folder.
        descriptor, path = tempfile.mkstemp(".txt", f"runbook-fault-{time.strftime('%Y%m%d-%H%M%S')}-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(trace)
    except OSError:
        return trace.strip().splitlines()[-1]
    return path


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script. Works in this process where `arguments` are given, and as the daemon, which
    opens no file of a user's itself; else in a child of it."""
    told = _in_a_child() if arguments is None and sys.argv[1:2] != ["serve"] else None
    code = flushed(guarded(lambda: _run(arguments)))
    if told is not None:
        os.write(told, bytes((code,)))
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


# A process cannot be ended, not even by itself, while one of its threads waits in the kernel for a file system that
# does not answer. So a command works in a child of the process that its user waits for, which can always leave.

_ENDING_S = 10.0
"""For what a command does at its end, or when it is interrupted."""
_LOOK_S = 0.25
_STUCK_LOOKS = 4
_PR_SET_PDEATHSIG = 1
_SI_KERNEL = 0x80
"""Of a signal that the terminal has sent to both."""


def _in_a_child() -> int:
    """Returns in a child of this process: a descriptor on which it says its exit code. This process waits for the child
    and ends as it does."""
    asks = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
    watched = {one for one in asks if signal.getsignal(one) is not signal.SIG_IGN} | {signal.SIGCHLD, signal.SIGIO}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    told, tells = os.pipe()
    fcntl.fcntl(told, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(told, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(tells)
        _end_with(child, told, watched)
    os.close(told)
    # Whoever kills the parent means the command.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(INTERRUPTED)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Once())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return tells


class _Once:
    """Ctrl-C, which comes twice where `kill` tells it to both processes."""

    _last_s = -1.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before_s, self._last_s = self._last_s, time.monotonic()
        if before_s < 0 or self._last_s - before_s > 1.0:
            signal.default_int_handler(number, frame)


def _end_with(child: int, told: int, watched: set[signal.Signals]) -> NoReturn:
    """End as the child ends; without it where it was interrupted, or has said its code, and cannot end."""
    said, stuck, until_s = b"", 0, 0.0
    while True:
        heard = signal.sigtimedwait(watched, _LOOK_S) if until_s else signal.sigwaitinfo(watched)
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            _end_like(status)
        if heard is not None and heard.si_signo not in (signal.SIGCHLD, signal.SIGIO):
            until_s = time.monotonic() + _ENDING_S
            if heard.si_code != _SI_KERNEL:
                os.kill(child, heard.si_signo)
        with contextlib.suppress(BlockingIOError):
            if code := os.read(told, 1):
                said, until_s = code, time.monotonic() + _ENDING_S
        if not until_s:
            continue
        stuck = stuck + 1 if _waits_in_the_kernel(child) else 0
        if stuck < _STUCK_LOOKS and time.monotonic() < until_s:
            continue
        os.kill(child, signal.SIGKILL)
        if not said:
            with contextlib.suppress(OSError):
                os.write(2, b"\nrunbook: interrupted while it waited for something that does not answer, such as the "
                         b"file system of a file or folder that it was to read\n")
        os._exit(said[0] if said else INTERRUPTED)


def _waits_in_the_kernel(child: int) -> bool:
    """Whether its first thread does, or is gone while another does."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{child}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()[0] in "DZ"
    return False


def _end_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def completion(shell: str) -> int:
    """`runbook completion`."""
    found = get_completion_class(shell)
    assert found is not None  # the choice above names only shells that click knows
    click.echo(found(cli, {}, "runbook", "_RUNBOOK_COMPLETE").source())
    return 0
