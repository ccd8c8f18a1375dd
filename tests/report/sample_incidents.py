"""Incidents as they come: the test data of the report and the service, made by hand from real messages' shapes."""

from __future__ import annotations

from dataclasses import replace

from runbook.model.checkpoint import Checkpoint
from runbook.model.diagnosis import Detail, Diagnosis, Hypothesis
from runbook.model.incident import (
    Act,
    Attempt,
    BoxVisit,
    Failure,
    Incident,
    IncidentState,
    Policy,
    Receipt,
    Verdict,
)
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import (
    Collateral,
    Finding,
    LogSource,
    LogStory,
    MemoryFields,
    MemorySample,
    Phase,
    ProcessUse,
    Progress,
)
from runbook.model.node import (
    GpuFacts,
    GpuProcess,
    NodeFacts,
    NodeJudgement,
    NodeVerdict,
    Reach,
    XidEvent,
)
from runbook.model.remedy import Effect, LeverUse, NoPlan, Plan, RefusedLever
from runbook.model.sentences import as_written
from runbook.model.template import Edit, Patch, SettingKind, Splice, TemplateFile
from runbook.model.units import GIB, MIB, Bytes, IncidentId, JobId, NodeName, Unknown, UserName
from runbook.report.charts.flow_chart import FlowArrow, FlowBox, FlowPhase, FlowPicture
from tests.kinds import KINDS, Kind

OPENED_S = 1_789_351_984.0
"""2026-09-14 02:13:04 UTC."""


def gib(value: float) -> Bytes:
    return Bytes(round(value * GIB))


FLOW = FlowPicture(
    title="Training out of memory",
    boxes=(
        FlowBox("identify", "Identify the job"),
        FlowBox("read_error", "Read the error"),
        FlowBox("cancel_job", "Cancel the wedged job", acts=True),
        FlowBox("check_node", "Check the node"),
        FlowBox("drain_node", "Drain the node", acts=True),
        FlowBox("classify", "Classify"),
        FlowBox("reduce_world", "Fit the job to the nodes left"),
        FlowBox("choose_lever", "Choose the lever"),
        FlowBox("find_checkpoint", "Find the last checkpoint"),
        FlowBox("patch", "Change the launch template"),
        FlowBox("relaunch", "Relaunch", acts=True),
        FlowBox("verify", "Verify"),
        FlowBox("promote", "Promote the change", acts=True),
        FlowBox("escalate", "Escalate"),
        FlowBox("report", "Report"),
    ),
    arrows=tuple(
        FlowArrow(source, target, outcome)
        for source, nexts in {
            "identify": {
                "identified": "read_error", "cancelled_by_user": "report", "succeeded": "report",
                "waiting": "report", "no_logs": "escalate",
            },
            "read_error": {
                "memory_error": "cancel_job", "gpu_fault": "cancel_job", "other_error": "report",
                "healthy": "report", "unreadable": "escalate", "relaunch_failed_otherwise": "escalate",
            },
            "cancel_job": {
                "cancelled": "check_node", "already_gone": "check_node", "planned": "check_node",
                "declined": "escalate", "still_there": "escalate",
            },
            "check_node": {
                "clean": "classify", "faulty": "drain_node", "occupied": "classify", "unknown": "classify",
            },
            "drain_node": {"drained": "classify", "left_in_service": "classify", "declined": "classify"},
            "classify": {
                "true_oom": "choose_lever", "fragmentation": "choose_lever", "other_memory": "choose_lever",
                "co_tenant": "reduce_world", "hardware_fault": "reduce_world", "not_oom": "escalate",
                "undetermined": "escalate",
            },
            "reduce_world": {"spare": "find_checkpoint", "reduced": "find_checkpoint", "impossible": "escalate"},
            "choose_lever": {"lever": "find_checkpoint", "needs_person": "escalate", "exhausted": "escalate"},
            "find_checkpoint": {"found": "patch", "none_yet": "patch", "missing": "escalate"},
            "patch": {
                "patched": "relaunch", "unchanged": "relaunch", "cannot_edit": "choose_lever",
                "cannot_resume": "escalate",
            },
            "relaunch": {"submitted": "verify", "planned": "report", "declined": "escalate"},
            "verify": {
                "passed": "promote", "waiting": "verify", "failed_again": "read_error", "not_proven": "escalate",
            },
            "promote": {"promoted": "report", "left_to_owner": "report"},
            "escalate": {"told": "report"},
            "report": {"written": "end"},
        }.items()
        for outcome, target in nexts.items()
    ),
    phases=(
        FlowPhase("read", "Identify, read the logs", frozenset({"identify", "read_error"})),
        FlowPhase("cancel", "Cancel", frozenset({"cancel_job"}), acts=True),
        FlowPhase("node", "Node check", frozenset({"check_node", "drain_node", "free_gpu"})),
        FlowPhase(
            "decide", "Decide and change the template",
            frozenset({"classify", "choose_lever", "reduce_world", "find_checkpoint", "patch"}),
        ),
        FlowPhase("relaunch", "Relaunch", frozenset({"relaunch"}), acts=True),
    ),
    afterwards=frozenset({"verify", "promote", "report", "escalate"}),
    proof="verify",
)

TEMPLATE = """#!/bin/bash
#SBATCH --job-name=llama-70b-sft
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
export PYTORCH_ALLOC_CONF=expandable_segments:True
srun torchrun --nproc-per-node=8 pretrain_gpt.py \\
    --micro-batch-size 4 \\
    --global-batch-size 512 \\
    --seq-length 8192 \\
    --load /scratch/ana/ckpt --save /scratch/ana/ckpt
"""

EXCERPT = """[rank19]: Traceback (most recent call last):
[rank19]:   File "/home/ana/megatron/pretrain_gpt.py", line 247, in forward_step
[rank19]:     output_tensor = model(tokens, position_ids, attention_mask, labels=labels)
[rank19]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.10 \
GiB of which 1.13 GiB is free. Including non-PyTorch memory, this process has 77.96 GiB memory in use. Of the \
allocated memory 73.61 GiB is allocated by PyTorch, and 1.24 GiB is reserved by PyTorch but unallocated."""

JOB = JobRecord(
    id=JobId("884213"),
    cluster="alpha",
    name="llama-70b-sft",
    owner=UserName("ana"),
    state=JobState("FAILED", JobClass.FAILED),
    exit_code=1,
    nodes=tuple(NodeName(f"gpu-{number}") for number in (20, 21, 22, 23)),
    num_nodes=4,
    num_tasks=4,
    gpus_per_node=8,
    submit_time_s=OPENED_S - 30_000,
    start_time_s=OPENED_S - 29_000,
    end_time_s=OPENED_S - 40,
    work_dir="/home/ana/megatron",
    stdout_path="/home/ana/megatron/logs/llama-70b-sft-884213.out",
    submit_line="sbatch --nodes=4 train.sh",
    partition="gpu",
    source="scontrol+sacct",
)


def _finding(**changes: object) -> Finding:
    finding = Finding(
        signature="torch_cuda_oom_2_4",
        means=Kind.TRUE_OOM,
        file=JOB.stdout_path,
        offset=1_204_331,
        line=8123,
        excerpt=EXCERPT,
        rank=19,
        local_rank=3,
        node=NodeName("gpu-22"),
        pid=48_117,
        device=3,
        time_s=OPENED_S - 55,
        step=1200,
        phase=Phase.FORWARD,
        fields=MemoryFields(
            tried_bytes=gib(2.5),
            capacity_bytes=gib(79.10),
            free_bytes=gib(1.13),
            allocated_bytes=gib(73.61),
            reserved_unallocated_bytes=gib(1.24),
            reserved_bytes=gib(74.85),
            process_bytes=gib(77.96),
            rounding_bytes=Bytes(11 * MIB),
        ),
        framework_version="2.4-2.13",
    )
    return replace(finding, **changes)  # type: ignore[arg-type]


def _story(finding: Finding | None, **changes: object) -> LogStory:
    story = LogStory(
        root_cause=finding,
        collateral=(
            Collateral(
                0, NodeName("gpu-20"), as_written("NCCL watchdog timed out waiting for rank 19"), "nccl_watchdog"
            ),
            Collateral(
                7, NodeName("gpu-20"), as_written("ended by torchrun after rank 19 failed"), "torchelastic_sigterm"
            ),
        ),
        progress=Progress(
            last_step=1199, total_steps=20_000, first_step=0, step_duration_s=21.4, saved_steps=(500, 1000)
        ),
        framework="megatron",
        framework_version="2.4-2.13",
        world_size=32,
        sources=(LogSource(JOB.stdout_path, 1_310_222, 1_310_222),),
    )
    return replace(story, **changes)  # type: ignore[arg-type]


def _gpu(index: int, **changes: object) -> GpuFacts:
    gpu = GpuFacts(
        index=index,
        uuid=f"GPU-5f1c0e{index:02d}-77a1",
        bus_id=f"00000000:{0x18 + index * 0x10:02X}:00.0",
        name="NVIDIA H100 80GB HBM3",
        total_bytes=gib(79.65),
        used_bytes=Bytes(4 * MIB),
        free_bytes=gib(79.10),
        ecc_uncorrectable_volatile=0,
        ecc_uncorrectable_aggregate=0,
        sram_threshold_exceeded=False,
        row_remap_pending=False,
        row_remap_failed=False,
        recovery_action="None",
        mig_enabled=False,
        processes=(),
    )
    return replace(gpu, **changes)  # type: ignore[arg-type]


def _node(**changes: object) -> NodeFacts:
    facts = NodeFacts(
        node=NodeName("gpu-22"),
        reach=Reach.OK,
        checked_at_s=OPENED_S + 6,
        driver="570.124.06",
        gpus=tuple(_gpu(index) for index in range(8)),
        expected_gpus=8,
        xids=(),
        log_covers_since_s=OPENED_S - 900_000,
        commands=("nvidia-smi -q -x", "dmesg --time-format iso"),
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


CLEAN = NodeJudgement(
    NodeName("gpu-22"),
    NodeVerdict.CLEAN,
    reasons=("no XID in the job's window; no pending or failed row remap; no foreign process",),
    source="NVIDIA GPU Memory Error Management, row remapping",
)

TRUE_OOM = Diagnosis(
    Hypothesis(
        Kind.TRUE_OOM,
        0.93,
        reasons=tuple(map(as_written, (
            "Allocated 73.61 GiB of 74.85 GiB reserved: the allocator held only 1.24 GiB that was not in use.",
            "Defragmenting perfectly would give 1.24 GiB; together with 1.13 GiB free that is less than the "
            "2.50 GiB asked for.",
        ))),
        against=(as_written(
            "Steps before 1200 passed: longer samples in this batch are likely; bucketing would also mend that."
        ),),
        missing=(as_written("memory_summary() at the failure"),),
        detail=Detail.GROWN,
    ),
    runners_up=(
        Hypothesis(Kind.FRAGMENTATION, 0.05, against=(as_written("expandable_segments:True was already set"),)),
        Hypothesis(Kind.MEMORY_LEAK, 0.02),
    ),
    rules=("R-04 perfect defragmentation", "R-07 node is clean"),
)

DIFF = """--- train.sh
+++ train.sh (incident oom-alpha-884213, attempt 1)
@@ -5,6 +5,6 @@
 export PYTORCH_ALLOC_CONF=expandable_segments:True
 srun torchrun --nproc-per-node=8 pretrain_gpt.py \\
-    --micro-batch-size 4 \\
+    --micro-batch-size 2 \\
     --global-batch-size 512 \\
     --seq-length 8192 \\
     --load /scratch/ana/ckpt --save /scratch/ana/ckpt
"""


def _use(old: str, new: str) -> LeverUse:
    return LeverUse(
        lever="micro_batch_size",
        title=f"Micro-batch from {old} to {new}; accumulation doubles, the global batch stays 512",
        why="Activation memory grows with the micro-batch; Megatron derives the accumulation from the global batch.",
        source="Training-OOM runbook, procedure step 6; Megatron-LM --global-batch-size",
        effect=Effect.NONE,
        cost="About 4 to 8 % lower throughput",
        edits=(Edit("micro_batch_size", SettingKind.ARGUMENT, ("--micro-batch-size",), new, old),),
        key=f"micro_batch_size={new}",
        expectation=as_written("Frees about half of the 31 GiB of activations: 15 GiB"),
    )


PLAN = Plan(
    uses=(_use("4", "2"),),
    refused=(
        RefusedLever("expandable_segments", as_written("already set in the template")),
        RefusedLever(
            "seq_length", as_written("changes the experiment"), needs_person=True,
            question=as_written("May sequences be shorter?"),
        ),
    ),
    system="megatron",
    ladder="true_oom",
)


def _patch(diff: str = DIFF, before: str = "4", after: str = "2") -> Patch:
    return Patch(
        files=(TemplateFile("train.sh", TEMPLATE.replace(f"size {before}", f"size {after}")),),
        splices=(Splice("train.sh", 231, before, after),),
        diff=diff,
    )


CHECKPOINT = Checkpoint(
    "/scratch/ana/ckpt/iter_0001000", 1000, complete=True, format="megatron", world_size=32, reshardable=True
)


def _visits(*rows: tuple[str, str, float], attempt: int = 0, start_s: float = OPENED_S) -> tuple[BoxVisit, ...]:
    visits = []
    now = start_s
    for box, outcome, seconds in rows:
        visits.append(BoxVisit(box, attempt, now, now + seconds if outcome else None, outcome))
        now += seconds
    return tuple(visits)


def _attempt(number: int = 1, **changes: object) -> Attempt:
    attempt = Attempt(
        number=number,
        plan=PLAN,
        patch=_patch(),
        checkpoint=CHECKPOINT,
        submit_command=(
            "sbatch", "--nodes=4", "--comment=runbook:oom-alpha-884213:1",
            "/var/lib/runbook/incidents/oom-alpha-884213/attempts/1/train.sh",
        ),
        job=JobId("884301"),
        submitted_s=OPENED_S + 11,
        receipts=(
            Receipt("micro_batch_size", "script", True, "--micro-batch-size 2 at line 7"),
            Receipt("micro_batch_size", "process arguments", True, "gpu-22 pid 51002: --micro-batch-size 2"),
        ),
        verdict=Verdict(
            passed=True,
            why="Step 1201 completed, and the checkpoint of step 1500 is complete.",
            progress=Progress(
                last_step=1512,
                resumed_from_step=1000,
                saved_steps=(1500,),
                memory=(MemorySample(19, 1500, gib(52.1), gib(58.9), gib(57.8), gib(61.2)),),
            ),
            headroom="61.20 GiB of 79.10 GiB on rank 19: 23 % left",
        ),
    )
    return replace(attempt, **changes)  # type: ignore[arg-type]


def _acts(*whats: tuple[str, str, str, float]) -> tuple[Act, ...]:
    return tuple(
        Act(what, target, OPENED_S + after, token="runbook:oom-alpha-884213:1" if what == "submit" else "",
            result=result)
        for what, target, result, after in whats
    )


def recovered() -> Incident:
    """A true shortage of memory, mended by the first lever."""
    return Incident(
        id=IncidentId("oom-alpha-884213"),
        cluster="alpha",
        root_job=JobId("884213"),
        policy=Policy.APPLY,
        trigger="epilog",
        opened_s=OPENED_S,
        tool_version="0.1.0",
        state=IncidentState.RECOVERED,
        box="report",
        updated_s=OPENED_S + 11_660,
        closed_s=OPENED_S + 11_660,
        failure=Failure(JOB, _story(_finding()), (_node(),), (CLEAN,), (), TRUE_OOM),
        templates=(TemplateFile("train.sh", TEMPLATE),),
        evidence_files=("evidence/llama-70b-sft-884213.out", "evidence/gpu-22-nvidia-smi.xml"),
        checkpoint=CHECKPOINT,
        checkpoints=(
            CHECKPOINT,
            Checkpoint("/scratch/ana/ckpt/iter_0001200", 1200, complete=False, why="only 19 of 32 ranks wrote"),
        ),
        plan=PLAN,
        patch=_patch(),
        attempts=(_attempt(),),
        visits=_visits(
            ("identify", "identified", 0.4), ("read_error", "memory_error", 0.9), ("cancel_job", "cancelled", 2.1),
            ("check_node", "clean", 1.6), ("classify", "true_oom", 0.1), ("choose_lever", "lever", 0.1),
            ("find_checkpoint", "found", 0.6), ("patch", "patched", 0.2), ("relaunch", "submitted", 0.7),
            ("verify", "passed", 11_650.0), ("promote", "left_to_owner", 0.1), ("report", "written", 0.1),
        ),
        acts=_acts(
            ("cancel", "884213", "cancelled", 2.3),
            ("submit", "884301", "submitted", 6.6),
        ),
        conclusion="Relaunched as job 884301 with half the micro-batch; it ran past step 1200 and saved step 1500.",
    )


def two_attempts() -> Incident:
    """The first lever was not enough: the relaunch died again, the second got through."""
    first = recovered()
    second_finding = _finding(
        file="/home/ana/megatron/logs/llama-70b-sft-884301.out", line=402, step=1204, time_s=OPENED_S + 5_000,
        phase=Phase.BACKWARD,
        fields=replace(_finding().fields, tried_bytes=gib(1.75), allocated_bytes=gib(74.9)),
    )
    second_plan = Plan(
        uses=(
            replace(
                _use("2", "1"),
                key="micro_batch_size=1",
            ),
            LeverUse(
                lever="activation_checkpointing",
                title="Recompute all activations in the backward pass",
                why="The next rung: stored activations are the largest part left.",
                source="Training-OOM runbook, procedure step 8",
                effect=Effect.NUMERICS,
                cost="About 30 % more compute",
                edits=(Edit("recompute", SettingKind.ARGUMENT, ("--recompute-granularity",), "full", None),),
                key="recompute=full",
            ),
        ),
        system="megatron",
        ladder="true_oom",
    )
    diff = DIFF.replace("attempt 1", "attempt 2").replace("size 2", "size 1").replace("size 4", "size 2").replace(
        "+    --micro-batch-size 1 \\\n", "+    --micro-batch-size 1 --recompute-granularity full \\\n"
    )
    attempts = (
        _attempt(
            verdict=Verdict(False, "Out of memory again at step 1204, in the backward pass."),
            story=_story(second_finding),
            diagnosis=TRUE_OOM,
        ),
        _attempt(
            2,
            plan=second_plan,
            patch=_patch(diff, "2", "1"),
            job=JobId("884377"),
            submitted_s=OPENED_S + 5_040,
            submit_command=("sbatch", "--nodes=4", "--comment=runbook:oom-alpha-884213:2", "attempts/2/train.sh"),
        ),
    )
    return replace(
        first,
        original=first.failure,
        failure=Failure(
            replace(JOB, id=JobId("884301")), _story(second_finding), (_node(),), (CLEAN,), (), TRUE_OOM
        ),
        plan=second_plan,
        patch=_patch(diff, "2", "1"),
        attempts=attempts,
        visits=(
            *first.visits[:9],
            *_visits(
                ("verify", "failed_again", 4_980.0), ("read_error", "memory_error", 0.8),
                ("cancel_job", "already_gone", 0.2), ("check_node", "clean", 1.4), ("classify", "true_oom", 0.1),
                ("choose_lever", "lever", 0.1), ("find_checkpoint", "found", 0.5), ("patch", "patched", 0.2),
                ("relaunch", "submitted", 0.8),
                attempt=1, start_s=OPENED_S + 20,
            ),
            *_visits(
                ("verify", "passed", 6_600.0), ("promote", "left_to_owner", 0.1), ("report", "written", 0.1),
                attempt=2, start_s=OPENED_S + 5_041,
            ),
        ),
        acts=_acts(
            ("cancel", "884213", "cancelled", 2.3), ("submit", "884301", "submitted", 6.6),
            ("submit", "884377", "submitted", 5_040.0),
        ),
        conclusion="Relaunched twice; job 884377 ran past step 1200 and saved step 1500.",
    )


def escalated() -> Incident:
    """The ladder is empty but for a lever that changes the experiment."""
    first = recovered()
    return replace(
        first,
        state=IncidentState.ESCALATED,
        attempts=(_attempt(verdict=Verdict(False, "Out of memory again at step 1201.")),),
        plan=None,
        patch=None,
        no_plan=NoPlan(
            as_written("What is left would change the experiment."),
            refused=(
                RefusedLever(
                    "seq_length", as_written("changes the experiment"), True,
                    as_written("May sequences be cut to 4096 tokens?"),
                ),
                RefusedLever("sharding", as_written("4 nodes are all that the partition has")),
            ),
            exhausted=False,
            question=as_written("May sequences be cut to 4096 tokens?"),
        ),
        visits=(
            *first.visits[:9],
            *_visits(
                ("verify", "failed_again", 900.0), ("read_error", "memory_error", 0.8),
                ("cancel_job", "already_gone", 0.2), ("check_node", "clean", 1.4), ("classify", "true_oom", 0.1),
                ("choose_lever", "needs_person", 0.1), ("escalate", "told", 0.3), ("report", "written", 0.1),
                attempt=1, start_s=OPENED_S + 20,
            ),
        ),
        conclusion="The relaunch ran out of memory too, and the levers that are left would change the experiment.",
        to_do=(
            "Ask ana: may sequences be cut to 4096 tokens? Answer with `runbook resume oom-alpha-884213`.",
            "The job is not running; its last complete checkpoint is step 1000.",
        ),
    )


def planned() -> Incident:
    """Policy `plan`: read, judged, decided; nothing touched."""
    first = recovered()
    return replace(
        first,
        policy=Policy.PLAN,
        trigger="person",
        state=IncidentState.PLANNED,
        attempts=(),
        visits=(
            *_visits(
                ("identify", "identified", 0.4), ("read_error", "memory_error", 0.9), ("cancel_job", "planned", 0.0),
                ("check_node", "clean", 1.6), ("classify", "true_oom", 0.1), ("choose_lever", "lever", 0.1),
                ("find_checkpoint", "found", 0.6), ("patch", "patched", 0.2), ("relaunch", "planned", 0.0),
                ("report", "written", 0.1),
            ),
        ),
        acts=(
            Act("cancel", "884213", OPENED_S + 2, planned_only=True),
            Act("submit", "train.sh", OPENED_S + 6, planned_only=True),
        ),
        updated_s=OPENED_S + 5,
        closed_s=OPENED_S + 5,
        conclusion="Half the micro-batch would fit; nothing was touched, as the policy is to plan only.",
    )


def awaiting() -> Incident:
    """Policy `approve`: at the relaunch, waiting for a yes."""
    first = recovered()
    return replace(
        first,
        policy=Policy.APPROVE,
        state=IncidentState.AWAITING_APPROVAL,
        box="relaunch",
        awaiting="submit train.sh with --micro-batch-size 2 as ana on 4 nodes, from step 1000.",
        attempts=(),
        visits=(*first.visits[:8], BoxVisit("relaunch", 0, OPENED_S + 6)),
        acts=first.acts[:1],
        updated_s=OPENED_S + 6,
        closed_s=None,
        conclusion="",
    )


def just_opened() -> Incident:
    """Nothing known yet but the job's number."""
    return Incident(
        id=IncidentId("oom-alpha-884999_4"), cluster="alpha", root_job=JobId("884999_4"), policy=Policy.APPLY,
        trigger="epilog", opened_s=OPENED_S, updated_s=OPENED_S, box="identify",
        visits=(BoxVisit("identify", 0, OPENED_S),),
    )


def hardware_fault() -> Incident:
    """XID 48 and 94 on the failing GPU: drained, resumed on three nodes."""
    first = recovered()
    gpus = tuple(
        _gpu(
            index,
            ecc_uncorrectable_volatile=3,
            row_remap_pending=True,
            recovery_action="Reset",
            total_bytes=Unknown("nvidia-smi says [Unknown Error]"),
        )
        if index == 3
        else _gpu(index)
        for index in range(8)
    )
    facts = _node(
        gpus=gpus,
        xids=(
            XidEvent(48, OPENED_S - 58, gpus[3].bus_id, "NVRM: Xid (PCI:0000:48:00): 48, pid=48117, Double Bit ECC", 1),
            XidEvent(94, OPENED_S - 57, gpus[3].bus_id, "NVRM: Xid (PCI:0000:48:00): 94, Contained memory error", 4),
            XidEvent(13, OPENED_S - 90_000, gpus[1].bus_id, "NVRM: Xid: 13, Graphics Exception", 1, None, False, False),
        ),
    )
    judgement = NodeJudgement(
        NodeName("gpu-22"),
        NodeVerdict.FAULTY,
        reasons=("XID 48 (double-bit ECC error) on GPU 3, 3 s before the failure", "XID 94 four times on GPU 3"),
        faulty_gpus=(3,),
        drain=True,
        source="NVIDIA XID errors, r570; GPU Memory Error Management",
    )
    diagnosis = Diagnosis(
        Hypothesis(
            Kind.HARDWARE_FAULT,
            0.9,
            reasons=(as_written("XID 48 on the failing rank's GPU within the job's window."),),
            missing=(as_written("field diagnostic"),),
        ),
        (Hypothesis(Kind.TRUE_OOM, 0.08),),
    )
    assert first.failure is not None
    return replace(
        first,
        failure=replace(first.failure, nodes=(facts,), judgements=(judgement,), diagnosis=diagnosis),
        excluded_nodes=(NodeName("gpu-22"),),
        drained_nodes=(NodeName("gpu-22"),),
        num_nodes=3,
        plan=None,
        patch=replace(_patch(), diff=DIFF.replace("-    --micro-batch-size 4", "-#SBATCH --nodes=4")
                      .replace("+    --micro-batch-size 2", "+#SBATCH --nodes=3")),
        attempts=(_attempt(plan=None, excluded_nodes=(NodeName("gpu-22"),)),),
        visits=_visits(
            ("identify", "identified", 0.4), ("read_error", "memory_error", 0.9), ("cancel_job", "cancelled", 2.1),
            ("check_node", "faulty", 1.6), ("drain_node", "drained", 0.4), ("classify", "hardware_fault", 0.1),
            ("reduce_world", "reduced", 0.1), ("find_checkpoint", "found", 0.6), ("patch", "patched", 0.2),
            ("relaunch", "submitted", 0.7), ("verify", "passed", 7_000.0), ("promote", "left_to_owner", 0.1),
            ("report", "written", 0.1),
        ),
        acts=_acts(
            ("cancel", "884213", "cancelled", 2.3), ("drain", "gpu-22", "drained", 5.0),
            ("submit", "884301", "submitted", 6.6),
        ),
        conclusion="gpu-22 is drained; job 884301 resumed on 3 nodes and ran past step 1200.",
        to_do=("Run the field diagnostic on gpu-22, GPU 3, before giving the node back.",),
    )


def co_tenant() -> Incident:
    """A leaked notebook holds 31 GiB of the failing GPU; facts come from the simulator."""
    first = recovered()
    tenant = GpuProcess(
        9122, gib(31.2), "python -m ipykernel_launcher", UserName("bo"), None, 190_000.0, None
    )
    ghost = GpuProcess(
        7001, gib(0.6), "[Not Found]", Unknown("the process is gone from /proc"), Unknown("no cgroup to read")
    )
    finding = _finding(
        fields=MemoryFields(
            tried_bytes=gib(2.5), capacity_bytes=gib(79.10), free_bytes=gib(0.42), allocated_bytes=gib(44.0),
            reserved_unallocated_bytes=gib(1.1), reserved_bytes=gib(45.1), process_bytes=gib(46.3),
            other_processes=(ProcessUse(9122, gib(31.2)), ProcessUse(7001, None)),
        ),
    )
    return replace(
        first,
        id=IncidentId("oom-alpha-884500"),
        state=IncidentState.ESCALATED,
        failure=Failure(
            JOB,
            _story(finding, notes=(as_written("The job ran on the simulator's GPUs."),)),
            (_node(simulated=True, gpus=(*(_gpu(i) for i in range(3)), _gpu(3, processes=(tenant, ghost)),
                                         _gpu(4, processes=Unknown("nvidia-smi timed out after 5 s")))),),
            (
                NodeJudgement(
                    NodeName("gpu-22"), NodeVerdict.OCCUPIED,
                    reasons=("pid 9122 of bo, in no Slurm job, holds 31.20 GiB of GPU 3",),
                    missing=("processes of GPU 4: nvidia-smi timed out after 5 s",), tenants=(tenant, ghost),
                ),
            ),
            (),
            Diagnosis(Hypothesis(Kind.CO_TENANT, 0.97, reasons=(
                as_written("31.20 GiB of GPU 3 belong to pid 9122, not to the job."),
            ))),
        ),
        attempts=(), plan=None, patch=None, no_plan=NoPlan(
            as_written("No lever of the job's own helps against a co-tenant.")
        ),
        visits=_visits(
            ("identify", "identified", 0.4), ("read_error", "memory_error", 0.9), ("cancel_job", "cancelled", 2.1),
            ("check_node", "occupied", 5.6), ("classify", "co_tenant", 0.1), ("reduce_world", "impossible", 0.1),
            ("escalate", "told", 0.2), ("report", "written", 0.1),
        ),
        acts=_acts(("cancel", "884213", "cancelled", 2.3)),
        conclusion="Another user's process holds 31.20 GiB of the GPU, and no spare node is free.",
        to_do=("See to pid 9122 of bo on gpu-22 (31.20 GiB, 2 days old, in no Slurm job).",),
    )


def unreachable_node() -> Incident:
    """The node did not answer: unknown is shown as unknown."""
    first = recovered()
    assert first.failure is not None
    return replace(
        first,
        state=IncidentState.RUNNING,
        box="verify",
        closed_s=None,
        conclusion="",
        failure=replace(
            first.failure,
            story=_story(_finding(fields=MemoryFields(tried_bytes=gib(2.5)), rank=None, device=None)),
            nodes=(NodeFacts(NodeName("gpu-22"), Reach.TIMEOUT, "no answer on port 22 after 5 s"),),
            judgements=(
                NodeJudgement(NodeName("gpu-22"), NodeVerdict.UNKNOWN, missing=("everything: the node is silent",)),
            ),
        ),
        attempts=(_attempt(verdict=None, receipts=(Receipt("micro_batch_size", "process arguments", False,
                                                            "the rank's processes are not up yet"),)),),
        visits=(*first.visits[:3], BoxVisit("check_node", 0, OPENED_S + 3, OPENED_S + 8, "unknown"),
                *first.visits[4:9], BoxVisit("verify", 1, OPENED_S + 12)),
    )


HOSTILE = (
    "<script>document.title='owned'</script>\x1b[31mred\x1b[0m\x1b]8;;http://evil.example/\x07click\x1b]8;;\x07"
    "\u202egnp.exe\u202c\u2066hidden\u2069\x00\x07\udcff&amp;\"'><img src=http://evil.example/x.png onerror=alert(1)>"
    "{{ 7*7 }}{% raw %}"
)


def hostile() -> Incident:
    """Every text that others write is an attack, and everything is too large."""
    first = two_attempts()
    assert first.failure is not None
    finding = _finding(
        excerpt=(HOSTILE + "A" * 1000 + "\n") * 8_500,
        node=NodeName(HOSTILE),
        file=f"/home/{HOSTILE}.out",
        fields=MemoryFields(
            tried_bytes=gib(9_000.0), capacity_bytes=Bytes(0), free_bytes=Bytes(-5), allocated_bytes=gib(1e6),
            other_processes=tuple(ProcessUse(pid, gib(3.0)) for pid in range(2_000)),
        ),
    )
    job = replace(JOB, name=HOSTILE, owner=UserName(HOSTILE), comment=HOSTILE, work_dir=HOSTILE, stdout_path=HOSTILE)
    gpu = _gpu(3, name=HOSTILE, recovery_action=HOSTILE, processes=tuple(
        GpuProcess(pid, gib(1.0), HOSTILE, UserName(HOSTILE), JobId(HOSTILE)) for pid in range(100)
    ))
    facts = _node(
        node=NodeName(HOSTILE),
        gpus=(gpu, *(_gpu(index, name=HOSTILE) for index in range(63))),
        xids=tuple(XidEvent(13, OPENED_S, HOSTILE, HOSTILE * 10) for _ in range(1_000)),
        commands=(HOSTILE,) * 100,
    )
    judgement = NodeJudgement(
        NodeName(HOSTILE), NodeVerdict.OCCUPIED, (HOSTILE,) * 300, (HOSTILE,) * 300, (HOSTILE,) * 300,
        gpu.processes if isinstance(gpu.processes, tuple) else (),
    )
    diagnosis = Diagnosis(
        Hypothesis(Kind.UNDETERMINED, 0.2, *((as_written(HOSTILE),) * 200,) * 3),
        tuple(Hypothesis(kind, 0.01, (as_written(HOSTILE),)) for kind in KINDS.values()),
    )
    failure = Failure(
        job,
        _story(
            finding,
            collateral=tuple(Collateral(rank, NodeName(HOSTILE), as_written(HOSTILE)) for rank in range(1_024)),
            sources=tuple(LogSource(HOSTILE, 1, 1, HOSTILE) for _ in range(1_024)),
            notes=(as_written(HOSTILE),) * 1_000,
        ),
        (facts,) * 8,
        (judgement,) * 8,
        (),
        diagnosis,
    )
    use = replace(_use(HOSTILE, HOSTILE), why=HOSTILE, cost=HOSTILE, expectation=as_written(HOSTILE))
    plan = Plan((use,) * 20, (RefusedLever(HOSTILE, as_written(HOSTILE), True, as_written(HOSTILE)),) * 200)
    attempt = _attempt(
        plan=plan,
        patch=_patch(f"--- a\n+++ b\n@@ -1 +1 @@\n-{HOSTILE}\n+{HOSTILE}\n" * 300),
        submit_command=(HOSTILE,) * 500,
        receipts=(Receipt(HOSTILE, HOSTILE, True, HOSTILE),) * 300,
        verdict=Verdict(False, HOSTILE * 100, headroom=HOSTILE),
        checkpoint=Checkpoint(HOSTILE, 3, True),
    )
    return replace(
        first,
        failure=failure,
        original=None,
        state=IncidentState.ESCALATED,
        conclusion=HOSTILE * 20,
        to_do=(HOSTILE,) * 200,
        notes=(HOSTILE,) * 500,
        plan=plan,
        attempts=(attempt,) * 20,
        evidence_files=(f"evidence/{HOSTILE}",) * 400,
        visits=tuple(replace(visit, summary=HOSTILE, outcome=HOSTILE, box=HOSTILE) for visit in first.visits) * 60,
        acts=tuple(Act(HOSTILE, HOSTILE, OPENED_S, HOSTILE, HOSTILE) for _ in range(900)),
        checkpoints=(Checkpoint(HOSTILE, None, False, HOSTILE),) * 300,
    )


SAMPLES = {
    "recovered": recovered,
    "two_attempts": two_attempts,
    "escalated": escalated,
    "planned": planned,
    "awaiting": awaiting,
    "just_opened": just_opened,
    "hardware_fault": hardware_fault,
    "co_tenant": co_tenant,
    "unreachable_node": unreachable_node,
    "hostile": hostile,
}
