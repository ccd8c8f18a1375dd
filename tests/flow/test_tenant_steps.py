"""Memory in other hands: a leaked process is ended or left, a tenant and a spare node are waited for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from runbook.config import PolicyDocument, VerifyDocument
from runbook.errors import NotAllowed, NotFound
from runbook.flow import load_flow
from runbook.locations import data_folder
from runbook.model.incident import Attempt, BoxVisit, Policy, Severity
from runbook.model.job import NodeClass, NodeState
from runbook.model.node import LEFT_BY_EPILOG, EndedHow, GpuProcess, NodeFacts, NodeVerdict, ProcessEnd, Reach
from runbook.model.units import GIB, Bytes, IncidentId, JobId, NodeName, Unknown, UserName
from runbook.report.text.notifications import messages
from runbook.slurm.states import job_state
from runbook.steps import (
    check_node,
    classify,
    escalate,
    free_gpu,
    identify,
    reduce_world,
    relaunch,
    verify,
    wait_for_tenant,
)
from runbook.steps.shared.base import StepContext, read_only_ports
from tests.contract.fakes import FakeClock, ends
from tests.flow.inventory import inventory
from tests.flow.test_node_steps import Scene, ToldNodes, tenant
from tests.flow.test_resuming import OnePlace

LEAK = GpuProcess(
    88, Bytes(60 * GIB), "python serve.py", UserName("bob"), JobId("99"), 9000.0, start_ticks=123,
    cgroup="4:memory:/slurm_gpu-21/uid_1001/job_99/step_batch/task_0",
)
ALLOWED = PolicyDocument(mode=Policy.APPLY, may_end_leaked_processes=True)
BY_TERM = ProcessEnd(EndedHow.TERMINATED, "it ended 0.1 s after SIGTERM")


@dataclass
class Leaky(ToldNodes):
    """gpu-21's first GPU is held by processes that can be ended; what a node answers to that is a test's choice."""

    held_by: tuple[GpuProcess, ...] = (LEAK,)
    answer: ProcessEnd = BY_TERM
    ends_it: bool = True
    stays_hidden: int = 0
    silent: bool = False
    """It does not answer any more, and what its epilog left stands in for it."""
    ended: list[tuple[str, int]] = field(default_factory=list)
    before_ending: Callable[[], None] = lambda: None
    after_ending: Callable[[], None] = lambda: None
    looks: list[Callable[[Leaky], None]] = field(default_factory=list)
    """What happens before each further look."""

    def check(self, node: NodeName, *, since_s: float | None, until_s: float | None) -> NodeFacts:
        if self.asked and self.looks:
            self.looks.pop(0)(self)
        facts = super().check(node, since_s=since_s, until_s=until_s)
        if self.silent:
            facts = replace(facts, reach_detail=f"{LEFT_BY_EPILOG}; now the node does not answer")
        if isinstance(facts.gpus, Unknown) or node != "gpu-21":
            return facts
        used = sum(one.used_bytes for one in self.held_by if isinstance(one.used_bytes, int)) + self.stays_hidden
        held = replace(facts.gpus[0], used_bytes=Bytes(used), processes=self.held_by)
        return replace(facts, gpus=(held, *facts.gpus[1:]))

    def end_process(
        self, node: NodeName, process: GpuProcess, *, spared: Collection[str], grace_s: float
    ) -> ProcessEnd:
        assert {"dcgm-exporter", "nv-hostengine"} <= set(spared)
        self.before_ending()
        self.ended.append((node, process.pid))
        if self.ends_it:
            self.held_by = tuple(one for one in self.held_by if one.pid != process.pid)
        self.after_ending()
        return self.answer


class Remembering(OnePlace):
    """A folder that gives back what was written."""

    def read_file(self, incident: IncidentId, relative: str) -> bytes:
        if relative not in self.written:
            raise NotFound("not kept")
        return self.written[relative]


class Place(Scene):
    """As `Scene`: alice's job died on gpu-21. Bob's job 99 is over or runs there."""

    def __init__(
        self, nodes: Leaky, *, acts: PolicyDocument = ALLOWED, bobs: str = "COMPLETED",
        verify_settings: VerifyDocument | None = None,
    ) -> None:
        super().__init__(nodes=nodes, acts=acts)
        self.settings = inventory(acts.model_copy(update={"verify": verify_settings or VerifyDocument()}))
        self.place = Remembering()
        self.scheduler.next_id = 99
        life = ends(bobs, after_s=4) if bobs != "RUNNING" else ends(after_s=7205)
        held = (NodeName("gpu-21"),)
        self.scheduler.add(
            owner=UserName("bob"), name="server", nodes=held, life=life, start_time_s=1.0, time_limit_s=10_800.0
        )
        self.scheduler.clock.sleep(5)

    def context(self) -> StepContext:
        context = super().context()
        place: Any = self.place
        return replace(context, ports=replace(context.ports, folder=place))

    def enter(self, box: str) -> None:
        visit = BoxVisit(box, 0, self.scheduler.clock.now())
        self.incident = replace(self.incident, visits=(*self.incident.visits, visit))

    @property
    def ended(self) -> list[tuple[str, int]]:
        nodes = self.nodes
        assert isinstance(nodes, Leaky)
        return nodes.ended

    @property
    def freed(self) -> tuple[str, ...]:
        assert self.incident.failure is not None
        return self.incident.failure.freed_nodes


def leaky(**changes: Any) -> Leaky:
    nodes = Leaky(**changes)
    nodes.clock = FakeClock()
    return nodes


# -- ending a leaked process -----------------------------------------------------------------------------------------


def test_a_leaked_process_is_ended_and_the_job_goes_back_to_the_node() -> None:
    place = Place(leaky())
    assert place.run(check_node, free_gpu) == ["occupied", "freed"]
    assert place.ended == [("gpu-21", 88)]
    (act,) = place.incident.acts
    assert (act.what, act.token) == ("end_process", "runbook:oom-fake-1:end:gpu-21:88:123")
    assert act.target == "88 on gpu-21 (python serve.py, bob, job 99)"
    assert act.result == "terminated: it ended 0.1 s after SIGTERM"
    assert place.run(classify, reduce_world) == ["co_tenant", "spare"]
    assert place.incident.excluded_nodes == (), "its memory is free again"
    proposal = relaunch.propose(place.context())
    assert proposal is not None and "the memory of gpu-21 is free again" in proposal.sentence


def test_ten_seconds_pass_between_the_two_looks() -> None:
    place = Place(leaky())
    place.run(check_node)
    before = place.scheduler.clock.now()
    place.nodes.before_ending = lambda: seen.append(place.scheduler.clock.now())  # type: ignore[attr-defined]
    seen: list[float] = []
    place.run(free_gpu)
    assert seen[0] - before >= 10


@pytest.mark.parametrize(("second", "words"), [
    (replace(LEAK, start_ticks=124), "another process"),
    (replace(LEAK, cgroup="0::/user.slice"), "another process"),
    (replace(LEAK, owner=UserName("carol")), "another process"),
    (replace(LEAK, job=JobId("100")), "another process"),
    (replace(LEAK, start_ticks=Unknown("not read")), "start time is not known"),
])
def test_a_second_look_that_finds_another_process_ends_nothing(second: GpuProcess, words: str) -> None:
    place = Place(leaky(looks=[lambda nodes: setattr(nodes, "held_by", (second,))]))
    assert place.run(check_node, free_gpu) == ["occupied", "left"]
    assert place.ended == []
    assert any(words in note for note in place.incident.notes), place.incident.notes
    place.run(classify)
    assert place.incident.excluded_nodes == ("gpu-21",), "the next attempt goes elsewhere, as before"


def test_a_process_that_goes_by_itself_is_not_ended_and_frees_the_node() -> None:
    place = Place(leaky(looks=[lambda nodes: setattr(nodes, "held_by", ())]))
    assert place.run(check_node, free_gpu) == ["occupied", "freed"]
    assert (place.ended, place.incident.acts, place.freed) == ([], (), ("gpu-21",))
    assert any("by itself" in note for note in place.incident.notes)


def test_a_node_that_a_new_job_was_put_on_meanwhile_is_left_alone() -> None:
    place = Place(leaky())
    place.run(check_node)
    place.scheduler.add(nodes=(NodeName("gpu-21"),))
    place.scheduler.clock.sleep(2)
    assert place.run(free_gpu) == ["left"]
    assert place.ended == []
    assert any("jobs run on the node" in note for note in place.incident.notes)


@pytest.mark.parametrize(("acts", "process", "bobs", "words"), [
    (PolicyDocument(mode=Policy.APPLY), LEAK, "COMPLETED", "policy.may_end_leaked_processes"),
    (ALLOWED, replace(LEAK, owner=UserName("root")), "COMPLETED", "root"),
    (ALLOWED, replace(LEAK, name="/usr/bin/dcgm-exporter -f x"), "COMPLETED", "of monitoring"),
    (ALLOWED, replace(LEAK, cgroup="0::/system.slice/docker-1.scope"), "COMPLETED", "cgroup"),
    (ALLOWED, LEAK, "RUNNING", ""),
])
def test_what_may_not_be_ended_is_left_and_told(
    acts: PolicyDocument, process: GpuProcess, bobs: str, words: str
) -> None:
    place = Place(leaky(held_by=(process,)), acts=acts, bobs=bobs)
    assert place.run(check_node) == ["occupied"]
    assert free_gpu.propose(place.context()) is None
    assert place.run(free_gpu) == ["left"]
    assert place.ended == []
    assert any(words in note for note in (*place.incident.notes, "")), place.incident.notes


def test_the_question_says_what_would_be_ended_whose_and_how_much() -> None:
    place = Place(leaky())
    place.run(check_node)
    proposal = free_gpu.propose(place.context())
    assert proposal is not None
    assert proposal.sentence == (
        "end process 88 on gpu-21 (python serve.py, of bob, 60.0 GiB of GPU memory, 2.5 h old), which Slurm job 99 "
        "left behind when it ended"
    )


@pytest.mark.parametrize(("answer", "ends_it", "outcome", "result"), [
    (ProcessEnd(EndedHow.KILLED, "by SIGKILL"), True, "freed", "killed: by SIGKILL"),
    (ProcessEnd(EndedHow.GONE, "no process 88"), True, "freed", "gone: no process 88"),
    (ProcessEnd(EndedHow.STILL_THERE, "state D"), False, "still_there", "still there: state D"),
    (ProcessEnd(EndedHow.UNKNOWN, "the answer broke off"), True, "freed", "unknown: the answer broke off"),
    (ProcessEnd(EndedHow.UNKNOWN, "the answer broke off"), False, "still_there", "unknown: the answer broke off"),
    (ProcessEnd(EndedHow.REFUSED, "its start time differs"), False, "left", None),
])
def test_what_the_node_answers(answer: ProcessEnd, ends_it: bool, outcome: str, result: str | None) -> None:
    place = Place(leaky(answer=answer, ends_it=ends_it))
    assert place.run(check_node, free_gpu) == ["occupied", outcome]
    assert [act.result for act in place.incident.acts] == ([result] if result else [])
    place.run(classify)
    assert place.incident.excluded_nodes == (() if outcome == "freed" else ("gpu-21",))


def test_memory_that_stays_after_the_process_has_gone_is_not_free() -> None:
    place = Place(leaky(after_ending=lambda: None))
    nodes = place.nodes
    assert isinstance(nodes, Leaky)
    nodes.after_ending = lambda: setattr(nodes, "stays_hidden", 60 * GIB)
    assert place.run(check_node, free_gpu) == ["occupied", "still_there"]
    assert place.freed == ()


def test_a_node_that_falls_silent_is_not_free() -> None:
    place = Place(leaky())
    place.run(check_node)
    nodes = place.nodes
    nodes.before_ending = lambda: nodes.reach.update({"gpu-21": Reach.TIMEOUT})  # type: ignore[attr-defined]
    assert place.run(free_gpu) == ["still_there"]
    assert place.freed == ()


def test_what_an_epilog_left_before_does_not_say_that_the_memory_is_free_now() -> None:
    place = Place(leaky())
    place.run(check_node)
    nodes = place.nodes
    assert isinstance(nodes, Leaky)
    nodes.before_ending = lambda: setattr(nodes, "silent", True)
    assert place.run(free_gpu) == ["still_there"]
    assert place.freed == ()
    (now,) = check_node.look_again(place.context(), (NodeName("gpu-21"),))
    assert now.verdict is NodeVerdict.UNKNOWN


def test_another_tenant_beside_the_leak_keeps_the_node_avoided() -> None:
    other = replace(LEAK, pid=89, job=None, cgroup="0::/user.slice")
    place = Place(leaky(held_by=(LEAK, other)))
    assert place.run(check_node, free_gpu) == ["occupied", "still_there"]
    assert place.ended == [("gpu-21", 88)]
    place.run(classify)
    assert place.incident.excluded_nodes == ("gpu-21",)


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


@pytest.mark.parametrize("moment", ["before_ending", "after_ending"])
def test_a_run_killed_around_the_act_is_repeated_and_ends_it_once(moment: str) -> None:
    place = Place(leaky())
    place.run(check_node)
    nodes = place.nodes

    def killed() -> None:
        setattr(nodes, moment, lambda: None)
        raise Killed

    setattr(nodes, moment, killed)
    with pytest.raises(Killed):
        place.run(free_gpu)
    assert place.run(free_gpu) == ["freed"]
    assert place.ended == [("gpu-21", 88)], "signalled once"
    (act,) = place.incident.acts
    assert act.token == "runbook:oom-fake-1:end:gpu-21:88:123"
    assert ("killed had signalled it, or was about to" in act.result) == (moment == "after_ending")


def test_without_a_yes_nothing_is_ended() -> None:
    place = Place(leaky())
    place.run(check_node)
    context = place.context()
    with pytest.raises(NotAllowed):
        free_gpu.run(replace(context, ports=read_only_ports(context.ports)))
    assert place.ended == []


def test_a_job_that_is_still_being_cleaned_up_is_waited_for() -> None:
    """The cancelled job's own end keeps the node allocated for moments."""
    place = Place(leaky())
    known = place.scheduler.nodes
    looked: list[int] = []

    def completing_at_first(names: Any = None) -> tuple[NodeState, ...]:
        found = known(names)
        if names is not None:
            looked.append(1)
        if len(looked) > 4:
            return found
        return tuple(replace(one, states=("COMPLETING",), node_class=NodeClass.BUSY) for one in found)

    place.scheduler.nodes = completing_at_first  # type: ignore[method-assign]
    assert place.run(check_node, free_gpu) == ["occupied", "freed"]
    assert place.ended == [("gpu-21", 88)]


# -- waiting for a tenant --------------------------------------------------------------------------------------------


def of_two_nodes(acts: PolicyDocument = ALLOWED) -> Place:
    """Bob's job holds gpu-21, and the cluster has the job's two nodes only."""
    place = Place(leaky(), acts=acts, bobs="RUNNING")
    place.scheduler.node_names = ("gpu-21", "gpu-22")
    assert place.run(check_node, free_gpu, classify, reduce_world) == ["occupied", "left", "co_tenant", "tenant"]
    place.enter("wait_for_tenant")
    return place


def test_a_tenant_is_waited_for_and_its_owner_named_once() -> None:
    place = of_two_nodes()
    led_here = BoxVisit("reduce_world", 0, 0.0, 1.0, "tenant")
    before = place.incident = replace(place.incident, visits=(led_here, *place.incident.visits))
    result = wait_for_tenant.run(place.context())
    assert result.outcome == "waiting" and result.poll_s > 0
    assert "job 99 of bob (server) on gpu-21, RUNNING, at most" in result.summary
    assert "of at most 4.0 h" in result.summary
    place.incident = result.incident
    assert place.run(wait_for_tenant, wait_for_tenant) == ["waiting", "waiting"]
    (message,) = messages(before, result.incident)
    assert message.severity is Severity.WARNING
    assert "waits up to 4.0 h for job 99 of bob" in message.title
    assert "job 99 of bob (server) on gpu-21: the job has no other node to run on" in message.body
    assert messages(result.incident, place.incident) == ()
    assert any("job 99 of bob" in note for note in place.incident.notes), "the report names it, too"


def test_when_the_tenant_has_gone_the_job_goes_back_to_its_nodes() -> None:
    place = of_two_nodes()
    place.run(wait_for_tenant)
    place.scheduler.clock.sleep(7300)
    place.nodes.held_by = ()  # type: ignore[attr-defined]
    assert place.run(wait_for_tenant, reduce_world) == ["free", "spare"]
    assert (place.incident.excluded_nodes, place.freed) == ((), ("gpu-21",))
    assert relaunch.propose(place.context()) is not None


def test_a_tenant_that_stays_is_a_person_s_after_the_limit() -> None:
    place = of_two_nodes(ALLOWED.model_copy(update={"wait_for_tenant_hours": 1}))
    place.run(wait_for_tenant)
    place.scheduler.clock.sleep(3601)
    assert place.run(wait_for_tenant) == ["tenant_stays"]
    assert "Waited for 1.0 h" in place.incident.conclusion
    assert "job 99 of bob (server) on gpu-21" in place.incident.conclusion
    place.run(escalate)
    assert place.incident.to_do[0].startswith("Talk to bob about job 99 of bob")


def test_a_site_that_waits_for_nobody() -> None:
    place = of_two_nodes(ALLOWED.model_copy(update={"wait_for_tenant_hours": 0}))
    assert place.run(wait_for_tenant) == ["tenant_stays"]
    assert not any(note.startswith("waits up to") for note in place.incident.notes)


def test_another_job_that_takes_the_gpu_meanwhile_is_waited_for_as_well() -> None:
    place = of_two_nodes()
    place.scheduler.clock.sleep(7300)
    newer = place.scheduler.add(owner=UserName("carol"), nodes=(NodeName("gpu-21"),))
    place.scheduler.clock.sleep(2)
    place.nodes.held_by = (replace(LEAK, pid=90, job=newer),)  # type: ignore[attr-defined]
    result = wait_for_tenant.run(place.context())
    assert result.outcome == "waiting"
    assert "of carol" in result.summary


def test_memory_that_stays_when_the_tenant_s_job_has_ended_is_a_person_s() -> None:
    place = of_two_nodes()
    place.scheduler.clock.sleep(7300)
    assert place.run(wait_for_tenant) == ["still_occupied"]
    assert "gpu-21: GPU 0" in place.incident.conclusion
    assert place.ended == [], "a process that was a tenant's a moment ago is not ended by the way"


def test_a_plan_says_that_it_would_wait() -> None:
    place = of_two_nodes()
    place.incident = replace(place.incident, policy=Policy.PLAN)
    assert place.run(wait_for_tenant) == ["planned"]
    assert "would wait up to 4.0 h for job 99 of bob" in place.incident.conclusion
    assert not any(note.startswith("waits up to") for note in place.incident.notes)


def test_where_another_node_is_free_nobody_is_waited_for() -> None:
    place = Place(leaky(), bobs="RUNNING")
    assert place.run(check_node, free_gpu, classify, reduce_world) == ["occupied", "left", "co_tenant", "spare"]


# -- waiting for a spare node ----------------------------------------------------------------------------------------


def drained_elsewhere(place: Scene, *names: str) -> None:
    place.scheduler.drains |= dict.fromkeys(names, "firmware")


def test_nodes_that_can_come_back_are_queued_for_and_only_none_at_all_is_impossible() -> None:
    place = Scene(nodes=ToldNodes({"gpu-21": tenant(None)}), acts=PolicyDocument(may_reduce_world=False))
    place.incident = replace(place.incident, excluded_nodes=(NodeName("gpu-21"),))
    drained_elsewhere(place, "gpu-23", "gpu-24")
    result = reduce_world.run(place.context())
    assert result.outcome == "spare"
    assert any("until gpu-23, gpu-24 can be used again" in note for note in result.incident.notes)
    place.scheduler.node_names = ("gpu-21", "gpu-22")
    assert place.run(reduce_world) == ["impossible"]


class Watched(Place):
    """The relaunched job, as the scheduler has it from moment to moment."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(leaky(), acts=PolicyDocument(mode=Policy.APPLY, wait_for_spare_hours=2), **settings)
        now = self.scheduler.clock.now()
        self.job = self.scheduler.add(life=(), reason="Resources", stdout_path="")
        attempt = Attempt(1, job=self.job, submitted_s=now, waiting_since_s=now, failed_step=61)
        self.incident = replace(self.incident, attempts=(attempt,), original=self.incident.failure)

    def becomes(self, state: str) -> None:
        """From now on."""
        job = self.scheduler.jobs[self.job]
        started = self.scheduler.clock.now() if state == "RUNNING" else None
        job.record = replace(job.record, state=job_state(state), start_time_s=started)

    def look(self, after_s: float) -> tuple[str, str]:
        self.scheduler.clock.sleep(after_s)
        result = verify.run(self.context())
        self.incident = result.incident
        return str(result.outcome), result.summary


def test_a_queued_relaunch_says_how_long_it_waits_and_for_what() -> None:
    watched = Watched()
    assert watched.look(1800) == ("waiting", "job 100 PENDING for 30 min of at most 2.0 h: Resources (nodes have to "
                                             "become free)")


def test_a_relaunch_that_does_not_start_is_told_and_keeps_its_place() -> None:
    watched = Watched()
    outcome, why = watched.look(7201)
    assert (outcome, why) == ("still_queued", "job 100 still waits in the queue after 2.0 h: Resources (nodes have to "
                                              "become free)")
    assert ("cancel", "100") not in watched.scheduler.acts
    assert watched.incident.attempts[-1].verdict is not None and watched.incident.attempts[-1].verdict.passed is None
    assert "`scancel 100` gives it up" in watched.incident.to_do[0]


def test_time_in_the_queue_does_not_count_as_time_to_be_proven_in() -> None:
    watched = Watched(verify_settings=VerifyDocument(limit_hours=1))
    assert watched.look(7000)[0] == "waiting"
    watched.becomes("RUNNING")
    assert watched.look(3500)[0] == "waiting"
    assert watched.incident.attempts[-1].queued_s == 7000
    outcome, why = watched.look(200)
    assert (outcome, "within 1.0 hours of running" in why) == ("not_proven", True), why


def test_a_relaunch_that_slurm_queues_again_waits_anew() -> None:
    watched = Watched()
    watched.look(7100)
    watched.becomes("RUNNING")
    watched.look(600)
    watched.becomes("PENDING")
    assert watched.look(0)[0] == "waiting"
    assert watched.look(7100)[0] == "waiting"
    assert watched.look(200)[0] == "still_queued"


def test_whoever_resumes_a_relaunch_that_waits_watches_it_anew() -> None:
    watched = Watched()
    watched.look(7201)
    assert watched.run(identify) == ["relaunch_waits"]
    assert watched.look(10)[0] == "waiting"
    assert watched.incident.attempts[-1].queued_s == 7201, "none of it counts as time to be proven in"
    flow = load_flow(data_folder("playbooks") / "oom" / "flow.yaml")
    assert flow.after("identify", "relaunch_waits") == "verify"


def test_the_flow_goes_on_after_each_of_these() -> None:
    flow = load_flow(data_folder("playbooks") / "oom" / "flow.yaml")
    assert {flow.after("free_gpu", outcome) for outcome in free_gpu.Outcome} == {"classify"}
    assert flow.after("check_node", "faulty") == "drain_node"
    assert flow.after("wait_for_tenant", "free") == "reduce_world"
    assert flow.after("wait_for_tenant", "tenant_stays") == flow.after("verify", "still_queued") == "escalate"
