"""Slurm behind the Scheduler port: pyslurm where it imports and its version is the cluster's, else the commands.

`commands` runs one command, `scheduler` is the port over them, `pyslurm` what libslurm answers faster, `slurmrestd`
reads and cancels from a host without the commands.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import cast

from runbook.adapters.process import Command, run
from runbook.adapters.slurm.commands import SlurmCommands
from runbook.adapters.slurm.pyslurm import PyslurmModule, SlurmPyslurm
from runbook.adapters.slurm.scheduler import SlurmCli
from runbook.errors import RunbookError
from runbook.ports import Scheduler

_PYSLURM_PROBE = "import {module} as m; print(getattr(m, '__version__', ''))"
_PROBE_TIMEOUT_S = 20.0


def choose_scheduler(
    commands: SlurmCommands,
    *,
    cluster: str = "",
    prefer: str = "auto",
    locks: Path | None = None,
    left: Path | None = None,
    module: str = "pyslurm",
) -> Scheduler:
    """`prefer`: "auto" or "cli". The reason for the choice is in `describe()`. Only the commands' folder and the
    configuration file are taken as given; whether Slurm answers is found out at the first question."""
    version, why_not = ("", "as the inventory says") if prefer == "cli" else probe_pyslurm(module, commands)
    cli = SlurmCli(commands, cluster=cluster, why=why_not, locks=locks, left=left)
    if why_not:
        return cli
    return SlurmPyslurm(
        cast(PyslurmModule, importlib.import_module(module)), cli, cluster=cluster, version=version, ping=commands.ping
    )


def probe_pyslurm(module: str, commands: SlurmCommands) -> tuple[str, str]:
    """(pyslurm's version, why it is not used or ""). Imported in a child first: without a readable slurm.conf libslurm
    ends the whole process inside the import, with no exception."""
    if commands.slurm_conf != os.environ.get("SLURM_CONF", ""):
        return "", "pyslurm reads only the environment's SLURM_CONF, the inventory names another"
    probing = (sys.executable, "-P", "-c", _PYSLURM_PROBE.format(module=module))
    try:
        done = run(Command(probing, env=_inherited()), min(_PROBE_TIMEOUT_S, commands.timeout_s))
        if done.exit_code != 0:
            words = done.error_text().splitlines()[-1:] or [f"exit code {done.exit_code}"]
            return "", f"pyslurm does not import here ({words[0][:120]})"
        lines = done.text().strip().splitlines()
        version = lines[-1].strip() if lines else ""
        cluster_version = commands.ask("scontrol", ("--version",)).strip()
    except RunbookError as error:
        return "", f"pyslurm could not be tried ({error.what[:160]})"
    ours, theirs = (_major_minor(text) for text in (version, cluster_version))
    if ours is None or ours != theirs:
        return version, f"pyslurm {version or '(unknown)'} is not for {cluster_version or 'this Slurm'}"
    return version, ""


def _major_minor(text: str) -> tuple[int, int] | None:
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("SBATCH_", "SQUEUE_"))}
