"""The `runbook` command: a list of commands whose modules are imported only when they are run."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable

import click

from runbook import __version__
from runbook.cli.exit import guarded, written

_COMMANDS: dict[str, tuple[str, str]] = {
    "oom": ("oom", "Bring back a job that died of out-of-memory."),
    "diagnose": ("diagnose", "Read logs: which rank failed first, and why. Touches nothing."),
    "explain": ("signatures", "What a signature, a kind of failure, a lever or a parameter means."),
    "signatures": ("signatures", "The log lines that the tool knows, as a table."),
    "levers": ("levers", "What can be changed to free memory, by system and phase, as a table."),
    "template": ("template", "template show FILE: what a launch script sets, and where."),
    "patch": ("patch", "Write a lever into a copy of a launch script, or say why not."),
    "node": ("node", "Check nodes: GPU faults, whose processes hold memory. Touches nothing."),
    "incidents": ("look", "List incidents, newest first."),
    "show": ("look", "Show one incident."),
    "report": ("look", "Where an incident's report is; --open shows it in a browser."),
    "history": ("history", "What died of what before, and what worked; --nodes: which nodes stand out."),
    "approve": ("act", "Say yes or no to what an incident waits for."),
    "resume": ("act", "Go on with an interrupted or escalated incident."),
    "promote": ("act", "Write a proven change into the owner's template, with a backup."),
    "rollback": ("act", "Undo a promotion, and give drained nodes back on request."),
    "submit": ("local", "Submit a job script to the local scheduler."),
    "jobs": ("local", "List the local scheduler's jobs."),
    "probe": ("probe", "Look at this machine as the node check does, or build the probe's one file."),
    "serve": ("serve", "The daemon: spool, reports, metrics, health."),
    "token": ("token", "Make, list or take back the tokens that people and programs sign in with."),
    "metrics": ("metrics", "Print the Prometheus metrics, or write them for node exporter."),
    "deploy": ("deploy", "deploy prometheus: scrape job, alert rules and routes for an inventory."),
    "notify": ("notify", "notify test: does a message reach the people whom the inventory names?"),
    "doctor": ("doctor", "Check the inventory, Slurm rights, SSH and playbooks, and say what to do."),
    "playbooks": ("playbooks", "Check the documents: flow, signatures, levers, XIDs."),
    "completion": ("completion", "Print the completion script of a shell."),
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
    code = written(guarded(lambda: _run(arguments)))
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
