"""The Nodes port over SSH: one connection and one round trip a check.

The question is a shell script that carries the node probe; where the node has no Python or no NVML library, the same
script asks nvidia-smi and the log's own commands.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from runbook.adapters.probe_program import end_program, probe_program
from runbook.adapters.ssh import connected
from runbook.adapters.ssh_failure import SshFailure
from runbook.adapters.ssh_settings import SshSettings
from runbook.errors import BadInput
from runbook.model.node import EndedHow, GpuProcess, NodeFacts, ProcessEnd, ProcessView, Reach
from runbook.model.units import JobId, NodeName, Unknown, UserName
from runbook.node.check_script import Limits, check_script, process_script, shell_command
from runbook.node.facts import read_node, unreachable
from runbook.node.processes import end_limit_s, end_script, read_end, read_job_processes
from runbook.node.sections import read_answers


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
            with connected(node, self.settings) as session:
                asked_at_s = self.wall_clock()
                answer = session.run(shell_command(self.settings.sudo), script)
        except SshFailure as failure:
            return unreachable(node, failure.reach, failure.detail, asked_at_s)
        except Exception as error:
            return unreachable(node, Reach.ERROR, f"{type(error).__name__}: {error}"[:200], asked_at_s)
        return read_node(
            answer.text, marker, node, since_s=since_s, until_s=until_s, asked_at_s=asked_at_s, cut_why=answer.cut_why
        )

    def processes(
        self, node: NodeName, job: JobId, owner: UserName, variables: Sequence[str]
    ) -> tuple[ProcessView, ...] | Unknown:
        """The job's processes on a node, or why they cannot be seen."""
        marker = new_marker()
        try:
            script = process_script(marker, job, tuple(variables))
            with connected(node, self.settings) as session:
                answer = session.run(shell_command(self.settings.sudo), script)
        except SshFailure as failure:
            return Unknown(f"{node} was not reached: {failure.detail}")
        except BadInput as error:
            return Unknown(error.what)
        return read_job_processes(read_answers(answer.text, marker), node, owner, variables)

    def end_process(
        self, node: NodeName, process: GpuProcess, *, spared: Collection[str], grace_s: float
    ) -> ProcessEnd:
        """As the port says. A connection that breaks leaves it unknown: the signal may have been sent."""
        marker = new_marker()
        sent = False
        try:
            script = end_script(marker, process, spared, grace_s, end_program())
            with connected(node, self.settings) as session:
                sent = True
                answer = session.run(shell_command(self.settings.sudo), script, end_limit_s(grace_s))
        except Exception as failure:
            how = EndedHow.UNKNOWN if sent else EndedHow.REFUSED
            return ProcessEnd(how, failure.detail if isinstance(failure, SshFailure) else str(failure)[:200])
        return read_end(read_answers(answer.text, marker))


def new_marker() -> str:
    """A word for the lines between sections that nothing on the node can know beforehand."""
    return f"@@{secrets.token_hex(12)}"
