"""The Nodes port on this machine: the same question as over SSH, asked of the local shell.

For a cluster of one machine and for the demo: without nvidia-smi every GPU figure is unknown, unless simulated GPUs
(`SIMULATED_GPU_DIR`) stand in for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from runbook.adapters.nodes_ssh import new_marker
from runbook.adapters.probe_program import end_program, probe_program
from runbook.adapters.process import Runner, run
from runbook.errors import BadInput, RunbookError
from runbook.model.node import EndedHow, GpuProcess, NodeFacts, ProcessEnd, ProcessView, Reach
from runbook.model.units import JobId, NodeName, Unknown, UserName
from runbook.node.check_script import Limits, check_script, process_script, shell_arguments
from runbook.node.facts import read_node, unreachable
from runbook.node.processes import end_limit_s, end_script, read_end, read_job_processes
from runbook.node.sections import read_answers


@dataclass(frozen=True, slots=True)
class LocalNodes:
    """Asks this machine, whatever name the node is given. `environment` None: this process's own."""

    runner: Runner = run
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
        return read_node(text, marker, node, since_s=since_s, until_s=until_s, asked_at_s=asked_at_s)

    def processes(
        self, node: NodeName, job: JobId, owner: UserName, variables: Sequence[str]
    ) -> tuple[ProcessView, ...] | Unknown:
        """The job's processes on this machine, or why they cannot be seen."""
        marker = new_marker()
        try:
            text = self._ask(process_script(marker, job, tuple(variables)))
        except BadInput as error:
            return Unknown(error.what)
        except RunbookError as error:
            return Unknown(f"{node} did not answer: {error.what}")
        return read_job_processes(read_answers(text, marker), node, owner, variables)

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
            text = self._ask(script, end_limit_s(grace_s))
        except RunbookError as error:
            return ProcessEnd(EndedHow.UNKNOWN, error.what)
        return read_end(read_answers(text, marker))

    def _ask(self, script: str, timeout_s: float | None = None) -> str:
        environment = self.environment if self.environment is not None else os.environ
        completed = self.runner(
            shell_arguments(self.sudo),
            timeout_s=timeout_s if timeout_s is not None else self.command_timeout_s,
            stdin=script.encode("utf-8", "surrogateescape"),
            env=environment,
            output_limit_bytes=self.output_limit_bytes,
        )
        return completed.text()
