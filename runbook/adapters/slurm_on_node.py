"""Which job had a node when an alert began: asked of Slurm's accounting."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, field

from runbook.adapters.slurm_commands import SlurmCommands
from runbook.model.units import JobId, NodeName
from runbook.ports import Clock
from runbook.slurm.accounting import jobs_on_node, on_node_arguments


@dataclass(frozen=True)
class SlurmOnNode:
    """Calls raise `Unavailable` while Slurm does not answer, and `NoAccounting`."""

    commands: SlurmCommands
    clock: Clock
    _random: random.SystemRandom = field(default_factory=random.SystemRandom, repr=False)

    def __call__(self, node: NodeName, at_s: float) -> tuple[JobId, ...]:
        """The jobs that had the node, under its short name where it is given with a domain."""
        separator = "~" + "".join(self._random.choice(string.ascii_lowercase) for _ in range(20)) + "~"
        for name in dict.fromkeys((node, NodeName(node.partition(".")[0]))):
            text = self.commands.ask("sacct", on_node_arguments(name, self.clock.now() - at_s, separator))
            if found := jobs_on_node(text, name, at_s, separator):
                return found
        return ()
