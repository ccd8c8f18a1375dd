"""What an inventory decides for the flow: plain values, so that steps need no knowledge of its document."""

from __future__ import annotations

from dataclasses import dataclass, field

from runbook.model.incident import Policy


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """When a relaunch counts as proven, and for how long to watch. Times in seconds."""

    steps_past_failure: int = 1
    """How many steps beyond the one that failed must be completed."""
    needs_checkpoint: bool = True
    first_poll_s: float = 0.5
    longest_poll_s: float = 30.0
    limit_s: float = 86_400.0
    """Give up watching after this long, time in the queue not counted; a person is told."""


@dataclass(frozen=True, slots=True)
class ActSettings:
    """What the tool may do on this cluster."""

    policy: Policy = Policy.APPROVE
    max_relaunches: int = 4
    """Relaunches an incident, all attempts together."""
    may_drain: bool = True
    max_drained_share: float = 0.25
    """Share of the cluster's nodes that may be drained by this tool at one time; one node is always allowed
    where `may_drain` is set."""
    may_promote: bool = False
    """Write a proven change back into the owner's template without being asked."""
    may_change_training: bool = False
    """Levers that change the experiment (sequence length) without asking."""
    may_reduce_world: bool = True
    approval_limit_s: float = 86_400.0
    cancel_wait_s: float = 60.0
    unavailable_patience_s: float = 300.0
    """How long a box is tried again while Slurm, SSH or a file system does not answer."""
    drain_on_pending_reset: bool = False
    """Drain for a row that waits to be remapped, so that the reset comes."""
    drain_on_contained_error: bool = False
    """Drain for Xid 94, after which the GPU stays usable."""
    drain_on_hidden_memory: bool = False
    may_end_leaked_processes: bool = False
    """End a process that an ended job left on a GPU, where nothing speaks against it."""
    wait_for_tenant_s: float = 4 * 3600.0
    """How long to wait for somebody else's job to leave the GPUs, where the job has no other node; 0: not at all."""
    wait_for_spare_s: float = 86_400.0
    """How long a relaunched job may wait in the queue at a time before a person is told."""
    most_nodes_checked: int = 16
    """Nodes to check when the failing rank's node is not known."""


@dataclass(frozen=True, slots=True)
class FlowSettings:
    cluster: str
    acts: ActSettings = field(default_factory=ActSettings)
    verify: VerifySettings = field(default_factory=VerifySettings)
    node_fan_out: int = 32
    """Nodes asked at a time."""
    report_url: str = ""
    """Base address of `runbook serve`, for links; empty: links are file paths."""
    expected_gpus_per_node: int | None = None
