"""A log can name any host; only nodes that the scheduler gave to the job are contacted, drained or avoided."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import BinaryIO, cast

import pytest

from runbook.locations import data_folder
from runbook.logs.signatures import load_signatures
from runbook.model.incident import Failure, Incident, Policy
from runbook.model.job import JobRecord
from runbook.model.node import NodeFacts, Reach
from runbook.model.units import IncidentId, JobId, NodeName, UserName
from runbook.node.catalogues import load_node_documents
from runbook.ports import Files
from runbook.steps import check_node, classify, read_error
from runbook.steps.reduce_world import excluded
from runbook.steps.shared.base import IncidentFolder, Playbook, Ports, StepContext
from tests.contract.fakes import FakeClock, FakeFiles, FakeScheduler
from tests.flow.inventory import inventory

LOG = "/home/alice/slurm-1.out"
MESSAGE = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
    "79.15 GiB of which 1.00 GiB is free. Process 4242 has 70.00 GiB memory in use. Including non-PyTorch memory, "
    "this process has 5.00 GiB memory in use. Of the allocated memory 4.00 GiB is allocated by PyTorch, and 100.00 "
    "MiB is reserved by PyTorch but unallocated.\n"
)


class NoFolder:
    """Keeps nothing: what is kept of a log is not the question here."""

    def copy_stream(
        self, incident: IncidentId, relative: str, stream: BinaryIO, limit_bytes: int
    ) -> tuple[object, bool]:
        return object(), False


@dataclass
class AskedNodes:
    """Nodes that answer nothing and remember who was asked."""

    asked: list[str] = field(default_factory=list)

    def check(self, node: NodeName, *, since_s: float | None, until_s: float | None) -> NodeFacts:
        self.asked.append(node)
        return NodeFacts(node, Reach.TIMEOUT)


QUOTED = {
    "a sample": "(RewardManager pid=4401) [response] You see " + repr(MESSAGE.partition(": ")[2].strip()) + " now.\n",
    "a kernel line": "[response] NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.\n",
    "slurmstepd": "[response] slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n",
}


def begun(log: str, nodes: tuple[str, ...]) -> StepContext:
    """A running job with this log, ready to be read."""
    scheduler = FakeScheduler(node_names=(*nodes, "gpu-24"))
    scheduler.add(nodes=tuple(NodeName(name) for name in nodes), num_nodes=2, num_tasks=8)
    scheduler.clock.now_s += 5.0
    job: JobRecord = replace(
        scheduler.job(JobId("1")), owner=UserName("alice"), stdout_path=LOG, nodes=tuple(map(NodeName, nodes))
    )
    incident = Incident(
        IncidentId("oom-fake-1"), "fake", JobId("1"), Policy.APPLY, "person", 1.0, failure=Failure(job)
    )
    playbook = data_folder("playbooks") / "oom"
    return StepContext(
        incident,
        Ports(
            scheduler, AskedNodes(), cast(Files, FakeFiles({LOG: log.encode()})),  # type: ignore[arg-type]
            cast(IncidentFolder, NoFolder()), FakeClock(),
        ),
        Playbook(load_signatures(playbook / "signatures"), (), load_node_documents(playbook)),
        inventory(),
    )


def worked(log: str, nodes: tuple[str, ...]) -> tuple[list[str], tuple[NodeName, ...], Incident]:
    """Read the log, check nodes, classify: who was contacted, and who is avoided."""
    context = begun(log, nodes)
    for step in (read_error, check_node, classify):
        context = replace(context, incident=step.run(context).incident)
    return cast(AskedNodes, context.ports.nodes).asked, excluded(context), context.incident


@pytest.mark.parametrize("line", [
    "rank 1 of 8 on node {host} (pid 991)\n",
    "{host}:991:992 [1] NCCL INFO comm 0x55 rank 1 nranks 8 cudaDev 1 nvmlDev 1 busId 10 commId 0x1 - Init COMPLETE\n",
])
@pytest.mark.parametrize("host", ["gpu-24", "login.example.org", "gpu-21,ALL"])
def test_a_host_that_the_job_did_not_have_is_neither_contacted_nor_avoided(line: str, host: str) -> None:
    asked, avoided, incident = worked(line.format(host=host) + MESSAGE, ("gpu-21", "gpu-22"))
    assert set(asked) <= {"gpu-21", "gpu-22"}
    assert set(avoided) <= {"gpu-21", "gpu-22"}
    assert incident.failure is not None and incident.failure.story is not None
    cause = incident.failure.story.root_cause
    assert cause is not None and cause.node in (None, "gpu-21", "gpu-22")


def test_where_the_job_s_nodes_are_not_known_nobody_is_contacted_on_the_log_s_word() -> None:
    asked, avoided, _ = worked("rank 1 of 8 on node gpu-24 (pid 991)\n" + MESSAGE, ())
    assert (asked, avoided) == ([], ())


def test_a_node_of_the_job_is_known_by_its_name_without_the_domain() -> None:
    log = "rank 1 of 8 on node gpu-22.cluster.example (pid 991)\n" + MESSAGE
    asked, avoided, _ = worked(log, ("gpu-21.cluster.example", "gpu-22.cluster.example"))
    assert asked == ["gpu-22.cluster.example"]
    assert avoided in ((), ("gpu-22.cluster.example",))


@pytest.mark.parametrize("quoted", sorted(QUOTED))
def test_a_running_job_that_only_mentions_an_error_is_left_alone(quoted: str) -> None:
    context = begun(QUOTED[quoted], ("gpu-21", "gpu-22"))
    assert not context.failure.job.state.job_class.ended
    assert read_error.run(context).outcome == read_error.Outcome.HEALTHY


def test_a_running_job_whose_rank_says_so_is_wedged() -> None:
    assert read_error.run(begun(MESSAGE, ("gpu-21",))).outcome == read_error.Outcome.MEMORY_ERROR
