"""The command line stands apart from what commands do: each option reaches its function, and choices are the words that
are used elsewhere."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from runbook import __version__
from runbook.cli.command_line import cli
from runbook.cli.options import Command
from runbook.model.incident import IncidentState
from runbook.service.tokens import Role

REPOSITORY = Path(__file__).resolve().parents[2]


def _commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))
        else:
            yield (*words, name), command


def test_each_command_has_a_function_that_takes_its_options() -> None:
    commands = dict(_commands(cli))
    assert {("oom",), ("template", "show"), ("completion",)} <= commands.keys()
    for words, command in commands.items():
        assert isinstance(command, Command) and command.callback is not None, words
        does = getattr(importlib.import_module(f"runbook.cli.{command.place}"), command.callback.__name__)
        assert inspect.signature(does).parameters.keys() == {param.name for param in command.params}, words


def test_choices_are_the_words_of_incidents_and_tokens() -> None:
    assert _choices("incidents", "state") == [state.value for state in IncidentState]
    assert _choices("token", "new", "role") == [role.value for role in Role]


def _choices(*words: str) -> list[str]:
    command = dict(_commands(cli))[words[:-1]]
    kind = next(param.type for param in command.params if param.name == words[-1])
    assert isinstance(kind, click.Choice)
    return list(kind.choices)


def test_help_of_a_command_loads_nothing_of_what_it_does() -> None:
    """Which is what keeps help, completion and a mistyped option quick."""
    script = (
        "import sys\nfrom runbook.cli.main import main\n"
        "try:\n    main(['serve', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(name for name in sys.modules if name.startswith(('runbook.', 'pydantic', 'rich', 'dbos'))))"
    )
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    names = ("cli", "cli.command_line", "cli.file_commands", "cli.main", "cli.options", "errors", "locations")
    assert loaded == str([f"runbook.{name}" for name in names]), loaded


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"INSTALLER": "pip\n"}, f"installed by pip in {sys.prefix}; "),
        ({"INSTALLER": "deb\n"}, f"installed by deb in {sys.prefix}; "),
        (
            {"INSTALLER": "uv", "direct_url.json": '{"url": "file:///a", "dir_info": {"editable": true}}'},
            f"installed from a checkout, {REPOSITORY}; ",
        ),
        ({}, "installed by a tool that does not say its name"),
    ],
)
def test_the_version_says_how_it_was_installed(tmp_path: Path, files: dict[str, str], said: str) -> None:
    metadata = tmp_path / f"runbook_oom-{__version__}.dist-info"
    metadata.mkdir()
    for name, text in {"METADATA": f"Name: runbook-oom\nVersion: {__version__}\n", **files}.items():
        (metadata / name).write_text(text)
    done = subprocess.run(
        (sys.executable, "-m", "runbook", "--version"), capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}, cwd="/",
    )
    assert done.stdout.startswith(f"runbook, version {__version__}\n{said}"), done.stdout + done.stderr
