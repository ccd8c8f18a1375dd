"""The Nodes port: over SSH, on this machine, and for a node that does not answer any more by what its epilog left.

The question is one shell script that carries the node probe; where the node has no Python or no NVML library, the
same script asks nvidia-smi and the log's own commands.
"""

from __future__ import annotations

import functools
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path

from runbook.adapters.process import Command, run
from runbook.adapters.ssh import SshFailure, SshSession, SshSettings
from runbook.errors import BadInput, RunbookError
from runbook.model.job import JobRecord
from runbook.model.node import EndedHow, GpuProcess, NodeFacts, ProcessEnd, ProcessView, Reach
from runbook.model.units import NodeName, Unknown
from runbook.node import (
    Limits,
    Window,
    check_script,
    end_limit_s,
    end_script,
    process_script,
    read_answers,
    read_end,
    read_job_processes,
    read_left_document,
    read_node,
    shell_arguments,
    shell_command,
    unreachable,
)
from runbook.ports import Nodes
from runbook.probe.build import NoPynvml, program


@functools.lru_cache(maxsize=1)
def probe_program() -> str:
    """The program text for `python3 -`; "" where nvidia-ml-py is not installed: nodes are then asked by nvidia-smi."""
    try:
        return program()
    except (NoPynvml, OSError):
        return ""


@functools.lru_cache(maxsize=1)
def end_program() -> str:
    """The program text that ends one process on a node."""
    return files("runbook.probe").joinpath("end_process.py").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class SshNodes:
    """Asks nodes over SSH as `settings` say. Safe to use from several threads."""

    settings: SshSettings = field(default_factory=SshSettings)
    wall_clock: Callable[[], float] = time.time

    def check(self, node: NodeName, *, since_s: float | None, until_s: float | None) -> NodeFacts:
        """GPU facts and the kernel log's events. Never raises: `reach` says how it went."""
        asked_at_s = self.wall_clock()
        marker = new_marker()
        script = check_script(
            marker, node, since_s, Limits.within(self.settings.command_timeout_s),
            probe_program() if self.settings.probe else "",
        )
        try:
            with _connected(node, self.settings) as session:
                asked_at_s = self.wall_clock()
                answer = session.run(shell_command(self.settings.sudo), script)
        except SshFailure as failure:
            return unreachable(node, failure.reach, failure.detail, asked_at_s)
        except Exception as error:
            return unreachable(node, Reach.ERROR, f"{type(error).__name__}: {error}"[:200], asked_at_s)
        return read_node(
            answer.text, marker, node, Window(since_s, until_s), asked_at_s, cut_why=answer.cut_why
        )

    def processes(
        self, node: NodeName, job: JobRecord, variables: Sequence[str]
    ) -> tuple[ProcessView, ...] | Unknown:
        """The job's processes on a node, or why they cannot be seen."""
        marker = new_marker()
        try:
            script = process_script(marker, job, tuple(variables))
            with _connected(node, self.settings) as session:
                answer = session.run(shell_command(self.settings.sudo), script)
        except SshFailure as failure:
            return Unknown(f"{node} was not reached: {failure.detail}")
        except BadInput as error:
            return Unknown(error.what)
        return read_job_processes(read_answers(answer.text, marker), node, variables)

    def end_process(
        self, node: NodeName, process: GpuProcess, *, spared: Collection[str], grace_s: float
    ) -> ProcessEnd:
        """As the port says. A connection that breaks leaves it unknown: the signal may have been sent."""
        marker = new_marker()
        sent = False
        try:
            script = end_script(marker, process, spared, grace_s, end_program())
            with _connected(node, self.settings) as session:
                sent = True
                answer = session.run(shell_command(self.settings.sudo), script, end_limit_s(grace_s))
        except Exception as failure:
            how = EndedHow.UNKNOWN if sent else EndedHow.REFUSED
            return ProcessEnd(how, failure.detail if isinstance(failure, SshFailure) else str(failure)[:200])
        return read_end(read_answers(answer.text, marker))


def _connected(node: NodeName, settings: SshSettings) -> AbstractContextManager[SshSession]:
    # fabric and paramiko take a fifth of a second to import: only whoever connects pays for them.
    from runbook.adapters.ssh.connect import connected

    return connected(node, settings)


def new_marker() -> str:
    """A word for the lines between sections that nothing on the node can know beforehand."""
    return f"@@{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class LocalNodes:
    """Asks this machine, whatever name the node is given. `environment` None: this process's own."""

    sudo: bool = False
    probe: bool = True
    """Let the node probe answer where it can, rather than nvidia-smi."""
    command_timeout_s: float = 15.0
    output_limit_bytes: int = 4 << 20
    environment: Mapping[str, str] | None = None
    wall_clock: Callable[[], float] = time.time

    def check(self, node: NodeName, *, since_s: float | None, until_s: float | None) -> NodeFacts:
        """GPU facts and the kernel log's events. Never raises: `reach` says how it went."""
        asked_at_s = self.wall_clock()
        marker = new_marker()
        script = check_script(
            marker, node, since_s, Limits.within(self.command_timeout_s), probe_program() if self.probe else ""
        )
        try:
            text = self._ask(script)
        except RunbookError as error:
            return unreachable(node, Reach.TIMEOUT if "did not answer" in error.what else Reach.ERROR, error.what)
        return read_node(text, marker, node, Window(since_s, until_s), asked_at_s)

    def processes(
        self, node: NodeName, job: JobRecord, variables: Sequence[str]
    ) -> tuple[ProcessView, ...] | Unknown:
        """The job's processes on this machine, or why they cannot be seen."""
        marker = new_marker()
        try:
            text = self._ask(process_script(marker, job, tuple(variables)))
        except BadInput as error:
            return Unknown(error.what)
        except RunbookError as error:
            return Unknown(f"{node} did not answer: {error.what}")
        return read_job_processes(read_answers(text, marker), node, variables)

    def end_process(
        self, node: NodeName, process: GpuProcess, *, spared: Collection[str], grace_s: float
    ) -> ProcessEnd:
        """As the port says."""
        marker = new_marker()
        try:
            script = end_script(marker, process, spared, grace_s, end_program())
        except (ValueError, OSError) as error:
            return ProcessEnd(EndedHow.REFUSED, str(error))
        try:
            text = self._ask(script, end_limit_s(grace_s), asks=False)
        except RunbookError as error:
            return ProcessEnd(EndedHow.UNKNOWN, error.what)
        return read_end(read_answers(text, marker))

    def _ask(self, script: str, timeout_s: float | None = None, *, asks: bool = True) -> str:
        asked = Command(
            tuple(shell_arguments(self.sudo)),
            stdin=script.encode("utf-8", "surrogateescape"),
            env=self.environment if self.environment is not None else os.environ,
            output_limit_bytes=self.output_limit_bytes,
            asks=asks,
        )
        return run(asked, timeout_s if timeout_s is not None else self.command_timeout_s).text()


MOST_BYTES = 4 << 20
_LATEST_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class NodesWithLeft:
    """Asks `nodes`; where a node is not reached, takes what its epilog left in `folder` within the window asked for."""

    nodes: Nodes
    folder: Path

    def check(self, node: NodeName, *, since_s: float | None, until_s: float | None) -> NodeFacts:
        """As the port says. An answer that was left is `Reach.OK` and says in its detail that it was left."""
        facts = self.nodes.check(node, since_s=since_s, until_s=until_s)
        if facts.reach is Reach.OK:
            return facts
        left = self._left(node, since_s, until_s)
        if left is None:
            return facts
        return replace(left, reach_detail=f"{left.reach_detail}; now the node does not answer: {facts.reach_detail}")

    def processes(
        self, node: NodeName, job: JobRecord, variables: Sequence[str]
    ) -> tuple[ProcessView, ...] | Unknown:
        """As the port says: nothing that was left tells of a running job."""
        return self.nodes.processes(node, job, variables)

    def end_process(
        self, node: NodeName, process: GpuProcess, *, spared: Collection[str], grace_s: float
    ) -> ProcessEnd:
        """As the port says: only by a node that answers now."""
        return self.nodes.end_process(node, process, spared=spared, grace_s=grace_s)

    def _left(self, node: NodeName, since_s: float | None, until_s: float | None) -> NodeFacts | None:
        """The latest answer of the node that was written between the two times; one without an end is too old to
        tell of this job."""
        if since_s is None:
            return None
        for path in self._files(node)[:_LATEST_LOOKED_AT]:
            text = read_left(self.folder, path)
            if text is None:
                continue
            facts = read_left_document(text, node, Window(since_s, until_s))
            at_s = facts.checked_at_s
            if facts.reach is Reach.OK and at_s is not None and since_s <= at_s <= (until_s or float("inf")):
                return facts
        return None

    def _files(self, node: NodeName) -> list[Path]:
        """Latest first."""
        ending = f".{node}.json"
        try:
            with os.scandir(self.folder) as entries:
                found = [
                    (entry.stat(follow_symlinks=False).st_mtime, entry.name) for entry in entries
                    if entry.name.endswith(ending) and not entry.name.startswith(".")
                ]
        except OSError:
            return []
        return [self.folder / name for _, name in sorted(found, reverse=True)]


def read_left(folder: Path, path: Path) -> str | None:
    """A plain file of root or of the folder's owner: anybody else's word must not cost a node."""
    try:
        trusted = {0, folder.stat().st_uid}
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in trusted or status.st_size > MOST_BYTES:
            return None
        try:
            return handle.read(MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return None
