"""What the commands of `command_line.py` are made of: a command whose function is imported when it is run, and the
options and types that several of them have.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from runbook import __version__
from runbook.locations import without_a_home


class Command(click.Command):
    """A command whose function stands in another module of this room, and is given the options by their names."""

    def __init__(self, *arguments: Any, place: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.place = place

    def invoke(self, ctx: click.Context) -> Any:
        assert self.callback is not None
        named = [path for path in ctx.params.values() if isinstance(path, Path)]
        named += [path for paths in ctx.params.values() if isinstance(paths, tuple) for path in paths
                  if isinstance(path, Path)]
        if named:
            from runbook.adapters.silent import must_answer

            must_answer(*named)
        with without_a_home():
            module = importlib.import_module(f"runbook.cli.{self.place}")
        does = getattr(module, self.callback.__name__)
        return ctx.invoke(does, **ctx.params)


class InOrder(click.Group):
    """Commands in the order in which they stand here."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class Kind(click.ParamType[str]):
    """A kind of the playbook, which is read only when one is given."""

    name = "kind"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from runbook.kinds import load_kinds

        chosen: str = click.Choice(list(load_kinds())).convert(value, param, ctx)
        return chosen


class NamedPath(click.Path):
    """A path that click does not look at by itself: its file system may not answer, and somebody has to say so."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path(value)


PATH = NamedPath()
FILE_PATH = click.Path(path_type=Path, dir_okay=False)
STATES = ["running", "awaiting_approval", "interrupted", "recovered", "planned", "escalated", "closed"]
"""Of an incident; the module that has them takes longer to load than this one."""
inventory_option = click.option(
    "--inventory", "-i", metavar="NAME|FILE",
    help="The cluster: a name in inventories/ or /etc/runbook, or a file. "
    "Default: $RUNBOOK_INVENTORY, /etc/runbook/inventory.yaml, else `local`.",
)
playbook_option = click.option("--playbook", metavar="DIR", type=PATH, help="Another playbook folder.")


def _say_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from runbook.cli.say import echo

    python = ".".join(map(str, sys.version_info[:3]))
    echo(f"runbook, version {__version__}\ninstalled {_way_of_installation()}; Python {python}")
    ctx.exit()


def _way_of_installation() -> str:
    """As packaging tools record it: INSTALLER and direct_url.json beside the metadata, and what pipx and uv keep in an
    environment of their own."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution("runbook-oom")
    except PackageNotFoundError:
        return f"nowhere: it runs from {Path(__file__).resolve().parents[2]}"
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        return f"from a checkout, {Path(__file__).resolve().parents[2]}"
    by = (found.read_text("INSTALLER") or "a tool that does not say its name").strip()
    for receipt, tool in (("pipx_metadata.json", "pipx"), ("uv-receipt.toml", "uv tool")):
        by = tool if Path(sys.prefix, receipt).is_file() else by
    return f"by {by} in {sys.prefix}"


@click.group(
    cls=InOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 done · 2 bad input · 3 not found or not allowed · 4 a person is needed · "
        "5 nothing to do · 6 something outside did not answer, resume later · 70 a fault of this tool · 130 interrupted"
    ),
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_say_version,
    help="Show the version and how it was installed, and exit.",
)
def cli() -> None:
    """Bring GPU training jobs that died of out-of-memory back.

    runbook oom --job 123456      the whole loop for a Slurm job, asking before each act

    runbook diagnose job.out      which rank failed first and why, from logs alone

    runbook oom --log job.out --template job.sbatch      diagnose and patch with no cluster at all
    """


def command(place: str, short_help: str, **settings: Any) -> Callable[[Callable[[], None]], click.Command]:
    """A command of `runbook` itself, as its list of commands tells of it."""
    return cli.command(cls=Command, place=place, short_help=short_help, **settings)
