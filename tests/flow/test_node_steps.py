"""Check the node, drain it, fit the job to what is left: what the tool does with a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from runbook.config import PolicyDocument
from runbook.errors import BadInput
from runbook.locations import data_folder
from runbook.logs.signatures import load_signatures
from runbook.model.incident import Failure, Incident, Policy
from runbook.model.job import JobRecord, NodeState
from runbook.model.log import Finding, LogStory
from runbook.model.node import GpuFacts, GpuProcess, JobStanding, NodeAction, NodeFacts, NodeVerdict, Reach
from runbook.model.remedy import Remembered
from runbook.model.units import GIB, Bytes, IncidentId, JobId, NodeName, Unknown, UserName
from runbook.node.catalogues import load_node_documents
from runbook.ports import History
from runbook.report.vocabulary.sentences import in_words
from runbook.steps import check_node, drain_node, escalate, reduce_world
from runbook.steps.shared.base import Playbook, Ports, StepContext
from runbook.steps.shared.nodes import found_jobs
from tests.contract.fakes import FakeClock, FakeScheduler
from tests.flow.inventory import inventory
from tests.flow.test_resuming import OnePlace
from tests.flow.test_resuming import Scene as WithTemplate
from tests.kinds import Kind

DOCUMENTS = load_node_documents(data_folder("playbooks") / "oom")
SIGNATURES = load_signatures(data_folder("playbooks") / "oom" / "signatures")
GPU = GpuFacts(
    index=0, bus_id="0000:10:00", total_bytes=Bytes(80 * GIB), used_bytes=Bytes(0), free_bytes=Bytes(80 * GIB),
    ecc_uncorrectable_volatile=0, ecc_uncorrectable_aggregate=0, sram_threshold_exceeded=False,
    row_remap_pending=False, row_remap_failed=False, recovery_action="None", mig_enabled=False, processes=(),
)
Change = Callable[[GpuFacts], GpuFacts]
BROKEN: Change = lambda gpu: replace(gpu, row_remap_failed=True)  # noqa: E731
PENDING: Change = lambda gpu: replace(gpu, row_remap_pending=True)  # noqa: E731


HIDDEN: Change = lambda gpu: replace(gpu, used_bytes=Bytes(30 * GIB))  # noqa: E731


def tenant(job: str | None) -> Change:
    process = GpuProcess(88, Bytes(30 * GIB), "python", UserName("bob"), JobId(job) if job else None, 900.0)
    return lambda gpu: replace(gpu, used_bytes=Bytes(30 * GIB), processes=(process,))


@dataclass
class ToldNodes:
    """Nodes whose first GPU is as a test says; all others are healthy."""

    changes: dict[str, Change] = field(default_factory=dict)
    reach: dict[str, Reach] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    asked: list[str] = field(default_factory=list)
    until_asked: int = 10**6
    """From this many looks on all GPUs are healthy."""

    def check(self, node: NodeName, *, since_s: float | None, until_s: float | None) -> NodeFacts:
        self.asked.append(node)
        gpus = [replace(GPU, index=index, bus_id=f"0000:1{index}:00") for index in range(8)]
        if node in self.changes and len(self.asked) <= self.until_asked:
            gpus[0] = self.changes[node](gpus[0])
        reach = self.reach.get(node, Reach.OK)
        unread = Unknown("not reached")
        return NodeFacts(
            node, reach, checked_at_s=self.clock.now(), gpus=tuple(gpus) if reach is Reach.OK else unread,
            xids=() if reach is Reach.OK else unread, log_covers_since_s=0.0,
        )


class Scene:
    """A job that ran on gpu-21 and gpu-22 of four nodes, and died of memory on gpu-21."""

    def __init__(self, *, nodes: ToldNodes, acts: PolicyDocument | None = None, failing: str | None = "gpu-21") -> None:
        self.scheduler = FakeScheduler(nodes.clock)
        self.history: History | None = None
        self.nodes = nodes
        self.settings = inventory(acts or PolicyDocument(mode=Policy.APPLY))
        job = self.scheduler.add(num_nodes=2, nodes=(NodeName("gpu-21"), NodeName("gpu-22")), gpus_per_node=8)
        self.scheduler.clock.sleep(5)
        self.scheduler.cancel(self.scheduler.job(job))
        node = NodeName(failing) if failing else None
        cause = Finding("PT-CUDA-07", Kind.TRUE_OOM, "log", 0, 1, "out of memory", node=node, device=0)
        self.incident = Incident(
            IncidentId("oom-fake-1"), "fake", job, Policy.APPLY, "person", 1.0,
            failure=Failure(self.scheduler.job(job), LogStory(cause)),
        )

    def context(self) -> StepContext:
        nothing: Any = None
        place: Any = OnePlace()
        ports = Ports(
            self.scheduler, self.nodes, nothing, place, self.scheduler.clock, self.history,  # type: ignore[arg-type]
        )
        return StepContext(self.incident, ports, Playbook(SIGNATURES, (), DOCUMENTS), self.settings)

    def run(self, *steps: Any) -> list[str]:
        outcomes = []
        for step in steps:
            result = step.run(self.context())
            self.incident = result.incident
            outcomes.append(str(result.outcome))
        return outcomes

    @property
    def drained(self) -> list[str]:
        return [act[1] for act in self.scheduler.acts if act[0] == "drain"]


def test_a_faulty_node_is_drained_once_with_our_reason() -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN}))
    assert scene.run(check_node, drain_node) == ["faulty", "drained"]
    assert scene.scheduler.drains["gpu-21"].startswith("runbook:oom-fake-1 GPU 0")
    assert scene.incident.drained_nodes == ("gpu-21",)
    assert scene.run(drain_node) == ["already_drained"]
    assert scene.drained == ["gpu-21"]


@pytest.mark.parametrize("reach", [reach for reach in Reach if reach is not Reach.OK])
def test_a_node_that_does_not_answer_is_not_drained(reach: Reach) -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN}, {"gpu-21": reach}))
    assert scene.run(check_node, drain_node) == ["unknown", "left_in_service"]
    assert scene.drained == []


@pytest.mark.parametrize("change", [tenant("99"), tenant(None), PENDING])
def test_tenants_and_pending_resets_are_no_reason_to_drain(change: Change) -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": change}))
    scene.run(check_node, drain_node)
    assert scene.drained == []


@pytest.mark.parametrize("reason", ["NHC: bad fan", "runbook:oom-fake-7 GPU 3"])
def test_somebody_elses_drain_keeps_its_reason(reason: str) -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN}))
    scene.run(check_node)
    scene.scheduler.drains["gpu-21"] = reason
    assert scene.run(drain_node) == ["already_drained"]
    assert scene.scheduler.drains == {"gpu-21": reason}
    assert scene.incident.drained_nodes == ()


def test_a_drain_that_comes_between_the_question_and_the_act_stays() -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN}))
    scene.run(check_node)
    asked = scene.scheduler.nodes

    def free_until_asked_by_name(names: Any = None) -> tuple[NodeState, ...]:
        if names is None:
            found = asked()
            scene.scheduler.drains["gpu-21"] = "admin: firmware"
            return found
        return asked(names)

    scene.scheduler.nodes = free_until_asked_by_name  # type: ignore[method-assign]
    assert scene.run(drain_node) == ["left_in_service"]
    assert scene.scheduler.drains == {"gpu-21": "admin: firmware"}
    assert any("already drained" in note for note in scene.incident.notes)


@pytest.mark.parametrize(("share", "count"), [(0.25, 1), (0.5, 2), (0.0, 1)])
def test_no_more_than_the_share_of_the_nodes_is_drained(share: float, count: int) -> None:
    acts = PolicyDocument(mode=Policy.APPLY, max_drained_share=share)
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN, "gpu-22": BROKEN}), acts=acts, failing=None)
    assert scene.run(check_node, drain_node)[0] == "faulty"
    assert len(scene.drained) == count
    assert (count == 2) or any("was left in service" in note for note in scene.incident.notes)


def test_drains_of_other_incidents_count() -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN}))
    scene.scheduler.drains["gpu-24"] = "runbook:oom-fake-0 GPU 1"
    assert scene.run(check_node, drain_node) == ["faulty", "held_back"]
    assert scene.drained == []


class Drained:
    """A history in which so many nodes were drained at a time."""

    def __init__(self, count: int, time_s: float) -> None:
        self.count, self.time_s = count, time_s

    def like(self, now: Remembered) -> tuple[Remembered, ...]:
        return ()

    def drains_since(self, time_s: float) -> int:
        return self.count if self.time_s >= time_s else 0


@pytest.mark.parametrize(("ago_s", "outcome"), [(600.0, "held_back"), (3700.0, "drained")])
def test_more_drains_within_an_hour_than_the_policy_allows_are_a_persons(ago_s: float, outcome: str) -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN}))
    scene.history = Drained(3, scene.scheduler.clock.now() - ago_s)
    assert scene.run(check_node, drain_node) == ["faulty", outcome]
    assert scene.drained == ([] if outcome == "held_back" else ["gpu-21"])
    if outcome == "held_back":
        assert any("3 nodes were drained within an hour" in note for note in scene.incident.notes)
        assert any("drain it by hand" in item for item in scene.incident.to_do)


def test_the_hours_limit_counts_what_one_visit_drains() -> None:
    acts = PolicyDocument(mode=Policy.APPLY, max_drained_share=1.0, max_drains_per_hour=1)
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN, "gpu-22": BROKEN}), acts=acts, failing=None)
    assert scene.run(check_node, drain_node) == ["faulty", "held_back"]
    assert len(scene.drained) == 1


def test_the_share_is_that_of_each_partition_of_the_node() -> None:
    """Half of four nodes may go, but not half of them from a partition of two."""
    acts = PolicyDocument(mode=Policy.APPLY, max_drained_share=0.5)
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN, "gpu-22": BROKEN}), acts=acts, failing=None)
    scene.scheduler.partitions = {"gpu-21": ("h100", "all"), "gpu-22": ("h100", "all")}
    assert scene.run(check_node, drain_node) == ["faulty", "held_back"]
    assert len(scene.drained) == 1
    assert any("in the partition h100, 1 of 2 nodes" in note for note in scene.incident.notes)


def test_a_site_that_lets_nobody_drain() -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN}), acts=PolicyDocument(mode=Policy.APPLY, may_drain=False))
    assert scene.run(check_node, drain_node) == ["faulty", "left_in_service"]


def test_the_site_s_policy_is_what_the_node_is_judged_by() -> None:
    acts = PolicyDocument(mode=Policy.APPLY, drain_on_pending_reset=True)
    assert Scene(nodes=ToldNodes({"gpu-21": PENDING}), acts=acts).run(check_node, drain_node) == ["faulty", "drained"]


def test_a_tenant_whose_job_runs_is_left_where_others_are_free_and_waited_for_where_none_is() -> None:
    for others, action in ((("gpu-23", "gpu-24"), NodeAction.EXCLUDE), ((), NodeAction.WAIT_FOR_TENANT)):
        scene = Scene(nodes=ToldNodes({"gpu-21": tenant("99")}))
        scene.scheduler.node_names = ("gpu-21", "gpu-22", *others)
        scene.scheduler.next_id = 99
        assert scene.scheduler.add(owner=UserName("bob"), nodes=(NodeName("gpu-21"),)) == "99"
        scene.scheduler.clock.sleep(5)
        assert scene.run(check_node) == ["occupied"]
        assert scene.incident.failure is not None
        assert scene.incident.failure.judgements[0].action is action


def test_the_job_goes_on_without_the_drained_node_where_another_is_free() -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN}))
    scene.run(check_node, drain_node)
    scene.incident = replace(scene.incident, excluded_nodes=(NodeName("gpu-21"),))
    assert scene.run(reduce_world) == ["spare"]
    scene.scheduler.node_names = ("gpu-21",)
    assert scene.run(reduce_world) == ["impossible"]


@pytest.mark.parametrize(("change", "words"), [
    (tenant(None), "Tell the owner of the process on gpu-21: GPU 0 (0000:10:00): process 88 (python) of bob"),
    (tenant("99"), "See to the co-tenant on gpu-21: pid 88 (python) of bob"),
    (PENDING, "Reset the GPU once it is idle on gpu-21: GPU 0"),
    (HIDDEN, "Reset the GPU once it is idle on gpu-21: GPU 0"),
])
def test_a_person_is_told_what_to_do_about_the_node(change: Change, words: str) -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": change}))
    scene.scheduler.next_id = 99
    scene.scheduler.add(owner=UserName("bob"), nodes=(NodeName("gpu-21"),))
    scene.run(check_node)
    result = escalate.run(scene.context())
    assert any(line.startswith(words) for line in result.incident.to_do), result.incident.to_do


def test_of_a_drained_node_nothing_is_to_be_done_but_what_the_drain_says() -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": lambda gpu: replace(gpu, row_remap_failed=True, row_remap_pending=True)}))
    scene.run(check_node)
    assert not any("gpu-21" in line for line in escalate.run(scene.context()).incident.to_do)


MEGATRON = (
    "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun python pretrain_gpt.py --tensor-model-parallel-size 2 "
    "--micro-batch-size 1 --global-batch-size 64 --save-interval 20 --save /ckpt/a"
)


def of_four_nodes(template: str, *drained: str, may_reduce_world: bool = True) -> StepContext:
    """A job of all four nodes of the cluster, of which some must not be used any more."""
    scene = WithTemplate(template)
    failure = scene.incident.failure
    assert failure is not None
    names = tuple(NodeName(f"gpu-{number}") for number in (21, 22, 23, 24))
    failure = replace(
        failure, job=replace(failure.job, nodes=names, num_nodes=4, gpus_per_node=8, num_tasks=32)
    )
    scene.incident = replace(
        scene.incident, failure=failure, original=failure, excluded_nodes=tuple(map(NodeName, drained))
    )
    acts = PolicyDocument(mode=Policy.APPLY, may_reduce_world=may_reduce_world)
    return replace(scene.context(), settings=inventory(acts))


def test_a_job_whose_nodes_were_drained_goes_on_with_fewer_and_the_same_global_batch() -> None:
    result = reduce_world.run(of_four_nodes(MEGATRON, "gpu-21", "gpu-22"))
    assert (result.outcome, result.incident.num_nodes) == ("reduced", 2)
    (use,) = result.incident.world_plan.uses if result.incident.world_plan else ()
    assert [(edit.parameter, edit.old, edit.new) for edit in use.edits if edit.parameter == "nodes"] == [
        ("nodes", "4", "2")
    ]
    assert "global batch 64" in in_words(use.expectation)


def test_of_the_free_nodes_as_many_are_taken_as_keep_the_global_batch() -> None:
    # 64 samples cannot be shared out over the 12 data-parallel ranks of three nodes, but over the 8 of two.
    result = reduce_world.run(of_four_nodes(MEGATRON, "gpu-21"))
    assert (result.outcome, result.incident.num_nodes) == ("reduced", 2)
    assert any("not all of the 3 free nodes are used" in note for note in result.incident.notes)


@pytest.mark.parametrize(("context", "words"), [
    (of_four_nodes(MEGATRON, "gpu-21", may_reduce_world=False), "cluster has 3 that could take it"),
    (of_four_nodes(MEGATRON, "gpu-21", "gpu-22", "gpu-23"), "cluster has 1 that could take it"),
    (of_four_nodes(f"{MEGATRON}\nssh gpu-21 date", "gpu-21"), "cluster has 3 that could take it"),
    (of_four_nodes(MEGATRON.replace("--save", "--expert-model-parallel-size 16 --num-experts 64 --save"), "gpu-21"),
     "cluster has 3 that could take it"),
    (of_four_nodes("#SBATCH --nodes=4\nsrun python something_else.py", "gpu-21"), "cluster has 3"),
])
def test_a_job_that_must_not_or_cannot_shrink_is_a_person_s(context: StepContext, words: str) -> None:
    result = reduce_world.run(context)
    assert result.outcome == "impossible"
    assert words in result.incident.conclusion
    assert result.incident.world_plan is None


def test_what_a_node_was_drained_for_is_shown_before_it_is_given_back() -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": BROKEN}))
    scene.run(check_node, drain_node)
    shown = "\n".join(drain_node.undrain_evidence(scene.incident))
    assert "gpu-21 was drained" in shown
    assert "row_remap_failed: GPU 0 (0000:10:00): remapping a memory row has failed" in shown
    scene.nodes.changes.clear()
    (now,) = check_node.look_again(scene.context(), scene.incident.drained_nodes)
    assert (now.node, now.verdict) == ("gpu-21", NodeVerdict.CLEAN)
    scene.scheduler.undrain(NodeName("gpu-21"), "runbook:oom-fake-1")
    assert scene.scheduler.drains == {}


def test_memory_that_no_process_holds_is_looked_at_twice() -> None:
    """The job's own processes may just be ending when the first look comes."""
    stays = Scene(nodes=ToldNodes({"gpu-21": HIDDEN}))
    assert stays.run(check_node) == ["occupied"]
    assert stays.nodes.asked == ["gpu-21", "gpu-21"]
    goes = Scene(nodes=ToldNodes({"gpu-21": HIDDEN}, until_asked=1))
    assert goes.run(check_node) == ["clean"]
    assert goes.incident.failure is not None
    assert [one.hidden_bytes for one in goes.incident.failure.judgements] == [0]


def test_a_node_without_such_memory_is_looked_at_once() -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": tenant(None)}))
    scene.run(check_node)
    assert scene.nodes.asked == ["gpu-21"]


@pytest.mark.parametrize(("device", "local_rank", "node_device", "failing"), [
    (3, None, None, 3), (3, 3, None, 3), (0, 0, None, 0), (None, 3, None, None), (0, 5, "5", 5),
    # Every process of Ray, and of `srun --gpus-per-task`, calls its one GPU 0.
    (0, None, None, None), (0, 5, None, None), (3, 5, None, None),
])
def test_which_gpu_of_the_node_failed(
    device: int | None, local_rank: int | None, node_device: str | None, failing: int | None
) -> None:
    scene = Scene(nodes=ToldNodes())
    cause = Finding(
        "PT-CUDA-07", Kind.TRUE_OOM, "log", 0, 1, "out of memory", node=NodeName("gpu-21"), device=device,
        local_rank=local_rank, node_device=node_device,
    )
    assert scene.incident.failure is not None
    scene.incident = replace(scene.incident, failure=replace(scene.incident.failure, story=LogStory(cause)))
    scene.run(check_node)
    assert scene.incident.failure is not None
    assert [one.failing_gpu for one in scene.incident.failure.judgements] == [failing]


def test_nothing_is_shown_of_nodes_that_were_not_drained() -> None:
    scene = Scene(nodes=ToldNodes({"gpu-21": PENDING}))
    scene.run(check_node)
    assert drain_node.undrain_evidence(scene.incident) == ()


def test_a_job_id_that_stands_for_several_jobs_leaves_the_others_known() -> None:
    clock = FakeClock()

    class WithArray(FakeScheduler):
        def job(self, job: JobId) -> JobRecord:
            if job == "1000":
                raise BadInput("job 1000 is an array of several tasks")
            return super().job(job)

    scheduler = WithArray(clock)
    ended = scheduler.add()
    scheduler.cancel(scheduler.job(ended))
    processes = tuple(GpuProcess(pid, Bytes(GIB), job=job) for pid, job in ((7, JobId("1000")), (8, ended)))
    facts = NodeFacts(NodeName("gpu-21"), Reach.OK, gpus=(replace(GPU, processes=processes),))
    standings = {job.id: job.standing for job in found_jobs(scheduler, (facts,))}
    assert standings == {JobId("1000"): JobStanding.UNKNOWN, ended: JobStanding.ENDED}
