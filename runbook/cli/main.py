"""The `runbook` command: a list of commands whose modules are imported only when they are run, the options that
several of them have, exit codes, and the three endings of every command.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from runbook import __version__
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
    name = f"runbook-fault-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path = Path(tempfile.gettempdir()) / name
        path.touch(mode=0o600)
        path.write_text(trace, encoding="utf-8")
    except OSError:
        return trace.strip().splitlines()[-1]
    return str(path)


_COMMANDS: dict[str, tuple[str, str]] = {
    "oom": ("incident.oom", "Bring back a job that died of out-of-memory."),
    "diagnose": ("files.diagnose", "Read logs: which rank failed first, and why. Touches nothing."),
    "explain": ("files.signatures", "What a signature, a kind of failure, a lever or a parameter means."),
    "signatures": ("files.signatures", "The log lines that the tool knows, as a table."),
    "levers": ("files.levers", "What can be changed to free memory, by system and phase, as a table."),
    "template": ("files.template", "template show FILE: what a launch script sets, and where."),
    "patch": ("files.patch", "Write a lever into a copy of a launch script, or say why not."),
    "node": ("node_check", "Check nodes: GPU faults, whose processes hold memory. Touches nothing."),
    "incidents": ("incident.stored", "List incidents, newest first."),
    "show": ("incident.stored", "Show one incident."),
    "report": ("incident.stored", "Where an incident's report is; --open shows it in a browser."),
    "history": ("incident.past", "What died of what before, and what worked; --nodes: which nodes stand out."),
    "approve": ("incident.act", "Say yes or no to what an incident waits for."),
    "resume": ("incident.act", "Go on with an interrupted or escalated incident."),
    "promote": ("incident.act", "Write a proven change into the owner's template, with a backup."),
    "rollback": ("incident.act", "Undo a promotion, and give drained nodes back on request."),
    "submit": ("this_machine", "Submit a job script to the local scheduler."),
    "jobs": ("this_machine", "List the local scheduler's jobs."),
    "probe": ("this_machine", "Look at this machine as the node check does, or build the probe's one file."),
    "serve": ("serve", "The daemon: spool, reports, metrics, health."),
    "token": ("sign_in", "Make, list or take back the tokens that people and programs sign in with."),
    "metrics": ("monitoring", "Print the Prometheus metrics, or write them for node exporter."),
    "deploy": ("monitoring", "deploy prometheus: scrape job, alert rules and routes for an inventory."),
    "notify": ("monitoring", "notify test: does a message reach the people whom the inventory names?"),
    "doctor": ("doctor", "Check the inventory, Slurm rights, SSH and playbooks, and say what to do."),
    "playbooks": ("files.playbooks", "Check the documents: flow, signatures, levers, XIDs."),
    "completion": ("main", "Print the completion script of a shell."),
}


class _Lazy(click.Group):
    """Commands by name; the help page needs none of their modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"runbook.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 done · 2 bad input · 3 not found or not allowed · 4 a person is needed · "
        "5 nothing to do · 6 something outside did not answer, resume later · 70 a fault of this tool · 130 interrupted"
    ),
)
@click.version_option(__version__, prog_name="runbook")
def cli() -> None:
    """Bring GPU training jobs that died of out-of-memory back.

    runbook oom --job 123456      the whole loop for a Slurm job, asking before each act

    runbook diagnose job.out      which rank failed first and why, from logs alone

    runbook oom --log job.out --template job.sbatch      diagnose and patch with no cluster at all
    """


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


def inventory_option(function: Callable[..., object]) -> Callable[..., object]:
    """`--inventory`, the same everywhere."""
    return click.option(
        "--inventory",
        "-i",
        metavar="NAME|FILE",
        help="The cluster: a name in inventories/ or /etc/runbook, or a file. "
        "Default: $RUNBOOK_INVENTORY, /etc/runbook/inventory.yaml, else `local`.",
    )(function)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script of a shell.

    bash:  runbook completion bash > ~/.local/share/bash-completion/completions/runbook
    """

    found = get_completion_class(shell)
    assert found is not None  # the choice above names only shells that click knows
    click.echo(found(cli, {}, "runbook", "_RUNBOOK_COMPLETE").source())
    return 0
