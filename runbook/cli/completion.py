"""`runbook completion`: the script that a shell sources."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script of a shell.

    bash:  runbook completion bash > ~/.local/share/bash-completion/completions/runbook
    """
    from click.shell_completion import get_completion_class

    from runbook.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None  # the choice above names only shells that click knows
    click.echo(found(cli, {}, "runbook", "_RUNBOOK_COMPLETE").source())
    return 0
