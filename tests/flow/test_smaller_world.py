"""When a job that lost nodes goes on with fewer: the checkpoint decides, and what stands in the template."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runbook.config import PolicyDocument
from runbook.model.incident import IncidentState, Policy
from runbook.model.log import Progress
from runbook.model.units import NodeName
from runbook.steps import find_checkpoint, reduce_world, report
from runbook.steps.shared.base import StepContext
from tests.flow.inventory import inventory
from tests.flow.test_resuming import Scene

NODES = tuple(NodeName(f"gpu-{number}") for number in (21, 22, 23, 24))
SCRIPT = (
    "#SBATCH --nodes=4\n#SBATCH --ntasks=8\nsrun python train.py --micro-batch-size 2 --gradient-accumulation-steps 3 "
    "--global-batch-size 48 --save-interval 5 --save /ckpt --load /ckpt"
)
TITAN = (
    "#SBATCH --nodes=4\ntorchrun --nnodes 4 --nproc-per-node 2 -m torchtitan.train --training.local_batch_size 2 "
    "--training.global_batch_size 48 --checkpoint.enable --checkpoint.folder checkpoint "
    "--job.dump_folder /out --parallelism.data_parallel_replicate_degree 1 --parallelism.data_parallel_shard_degree -1 "
    "--parallelism.tensor_parallel_degree 1 --parallelism.context_parallel_degree 1 "
    "--parallelism.pipeline_parallel_degree 1"
)


def whole(step: int, ranks: int) -> dict[str, bytes]:
    """A checkpoint in Megatron's distributed format, by this number of ranks."""
    folder = f"/ckpt/iter_{step:07d}"
    names = [f"__{rank}_0.distcp" for rank in range(ranks)]
    files = {f"{folder}/{name}": b"x" * 100 for name in names}
    files |= {f"{folder}/common.pt": b"x", f"{folder}/.metadata": json.dumps({"shards": names}).encode()}
    files[f"{folder}/metadata.json"] = json.dumps({"sharded_backend": "torch_dist", "world_size": ranks}).encode()
    return files


def zero(step: int, ranks: int) -> dict[str, bytes]:
    """A checkpoint of DeepSpeed's."""
    folder = f"/ckpt/global_step{step}"
    files = {f"{folder}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": b"x" * 100 for rank in range(ranks)}
    return {**files, f"{folder}/mp_rank_00_model_states.pt": b"x" * 100, "/ckpt/latest": f"global_step{step}".encode()}


TRACKER = {"/ckpt/latest_checkpointed_iteration.txt": b"40"}


def scene(script: str, files: dict[str, bytes], progress: Progress | None = None) -> StepContext:
    """A job of all four nodes of the cluster, of which one must not be used any more."""
    made = Scene(script, files)
    failure = made.incident.failure
    assert failure is not None and failure.story is not None
    story = replace(failure.story, progress=progress or Progress(last_step=60, first_step=1))
    failure = replace(
        failure, job=replace(failure.job, nodes=NODES, num_nodes=4, gpus_per_node=2, num_tasks=8), story=story
    )
    made.incident = replace(made.incident, failure=failure, original=failure, excluded_nodes=NODES[1:2])
    return replace(made.context(), settings=inventory(PolicyDocument(mode=Policy.APPLY)))


def test_with_a_checkpoint_that_other_numbers_of_ranks_load() -> None:
    context = scene(SCRIPT, {**whole(40, 8), **TRACKER})
    result = reduce_world.run(context)
    assert (result.outcome, result.incident.num_nodes) == ("reduced", 3), result.incident.notes
    assert any("iter_0000040 is loaded by fewer ranks than wrote it" in note for note in result.incident.notes)
    plan = result.incident.whole_plan
    assert plan is not None
    assert {edit.parameter: edit.new for edit in plan.edits} == {
        "nodes": "3", "tasks": "6", "gradient_accumulation_steps": "4",
    }
    assert "State that is kept by rank" in plan.uses[0].cost
    found = find_checkpoint.run(replace(context, incident=result.incident))
    assert (found.outcome, found.incident.checkpoint and found.incident.checkpoint.step) == ("found", 40)


@pytest.mark.parametrize(("files", "progress", "words"), [
    (zero(40, 8), None, "universal checkpoint (ds_to_universal.py)"),
    ({**whole(30, 8), **zero(40, 8), "/ckpt/latest_checkpointed_iteration.txt": b"30"}, None,
     "the job would repeat what it has done"),
    ({}, Progress(last_step=60, first_step=1, saved_steps=(40,)), "the log says that step 40 was saved"),
    ({f"/ckpt/iter_0000040/__{rank}_0.distcp": b"x" for rank in range(8)}, None, "no checkpoint is complete"),
])
def test_without_one_the_job_keeps_its_size(
    files: dict[str, bytes], progress: Progress | None, words: str
) -> None:
    result = reduce_world.run(scene(SCRIPT, files, progress))
    assert result.outcome != "reduced"
    assert (result.incident.num_nodes, result.incident.world_plan) == (None, None)
    assert any(words in note for note in result.incident.notes), result.incident.notes


def test_a_job_that_has_saved_nothing_has_nothing_to_load() -> None:
    result = reduce_world.run(scene(SCRIPT, {}, Progress(last_step=3, first_step=1)))
    assert (result.outcome, result.incident.num_nodes) == ("reduced", 3), result.incident.notes
    assert any("no checkpoint was written yet" in note for note in result.incident.notes)


@pytest.mark.parametrize(("more", "outcome"), [
    ("", "kept"), (" --checkpoint.exclude_from_loading lr_scheduler,dataloader", "reduced"),
    (' --checkpoint.exclude_from_loading "$PARTS"', "kept"),
])
def test_torchtitan_refuses_another_number_of_ranks_for_its_data_loader(more: str, outcome: str) -> None:
    folder = "/out/checkpoint/step-40"
    names = [f"__{rank}_0.distcp" for rank in range(8)]
    files = {f"{folder}/{name}": b"x" * 100 for name in names}
    files[f"{folder}/.metadata"] = b"x"
    result = reduce_world.run(scene(TITAN + more, files))
    notes = "\n".join(result.incident.notes)
    assert ("reduced" if result.outcome == "reduced" else "kept") == outcome, notes
    if outcome == "kept":
        assert "keeps the data loader's position by data-parallel rank" in notes


def test_when_the_job_could_have_its_size_again_is_told_and_nothing_is_switched() -> None:
    context = scene(SCRIPT, {**whole(40, 8), **TRACKER})
    reduced = reduce_world.run(context).incident
    recovered = replace(context, incident=replace(reduced, state=IncidentState.RECOVERED))
    scheduler = context.ports.scheduler
    scheduler.node_names = NODES[1:2]  # type: ignore[attr-defined]
    (told,) = report.run(recovered).incident.to_do
    assert "goes on with 3 of 4 nodes and is not switched back by itself" in told
    assert "1 more node could not be had when this was written" in told
    scheduler.node_names = (NODES[1], NodeName("gpu-25"))  # type: ignore[attr-defined]
    (told,) = report.run(recovered).incident.to_do
    assert "1 more could be had now: gpu-25." in told
