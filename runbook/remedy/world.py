"""Another number of nodes, and the flags that make a job resume: edits that keep the global batch exactly."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from runbook.model.checkpoint import Checkpoint
from runbook.model.job import JobRecord
from runbook.model.remedy import Effect, LeverUse, NoPlan, Plan
from runbook.model.template import Edit, Setting
from runbook.remedy.documents import LeverDocument
from runbook.remedy.values import Values, values_of


def reduce_world(
    settings: Sequence[Setting], job: JobRecord, *, nodes_left: int, system: LeverDocument
) -> Plan | NoPlan:
    """Fewer nodes with the same global batch: fewer data-parallel ranks, as many times more accumulation."""
    nodes = job.num_nodes or len(job.nodes)
    values = values_of(system, settings)
    if nodes_left < 1 or nodes_left >= nodes:
        return NoPlan(f"{nodes_left} of {nodes} nodes is no reduction", exhausted=False)
    if not job.num_tasks or job.num_tasks % nodes:
        return NoPlan("the tasks of the job are not spread evenly over its nodes", exhausted=False)
    ranks = job.num_tasks // nodes * nodes_left
    micro, accumulation = values.of("micro_batch_size"), values.of("gradient_accumulation_steps")
    if micro.number is None:
        return NoPlan(f"the micro-batch is not known: {micro.why_not}", exhausted=False)
    if accumulation.number is None:
        return NoPlan(f"gradient accumulation is not known: {accumulation.why_not}", exhausted=False)
    if accumulation.number * nodes % nodes_left:
        return NoPlan(
            f"{accumulation.number} accumulation steps on {nodes} nodes are no whole number on {nodes_left}, "
            "so the global batch would change",
            exhausted=False,
        )
    problem = _sharding(values, ranks)
    if problem:
        return NoPlan(problem, exhausted=False)
    new = accumulation.number * nodes // nodes_left
    edits = [values.edit("gradient_accumulation_steps", str(new))]
    if values.of("tasks").from_template:
        edits.append(values.edit("tasks", str(ranks)))
    use = LeverUse(
        lever="reduce_world",
        title=f"{nodes} → {nodes_left} nodes, accumulation {accumulation.number} → {new}",
        why="No spare node is free. The samples of an optimizer step stay the same.",
        source="The training-OOM runbook: drain node, resume at reduced world-size.",
        effect=Effect.NUMERICS,
        cost=f"steps take about {nodes / nodes_left:.1f} times as long",
        edits=tuple(edits),
        key=f"reduce_world:{nodes_left}",
        expectation=f"global batch kept: {accumulation.number} x {nodes} = {new} x {nodes_left}",
        needs_reshard=True,
    )
    return Plan(uses=(use,), system=system.id, ladder="reduce_world")


def _sharding(values: Values, ranks: int) -> str:
    shard = values.of("shard_degree")
    if shard.number is None:
        return f"the sharding degree is not known: {shard.why_not}"
    if ranks % shard.number:
        return f"{ranks} ranks cannot be divided by the sharding degree {shard.number}"
    return ""


def resume_edits(settings: Sequence[Setting], checkpoint: Checkpoint, *, system: LeverDocument) -> tuple[Edit, ...]:
    """What makes the template resume from a checkpoint; nothing where it does already."""
    if system.resume is None:
        return ()
    wanted = posixpath.dirname(checkpoint.path) if system.resume.value == "folder" else checkpoint.path
    values = values_of(system, settings)
    now = values.of(system.resume.parameter)
    if now.from_template and now.text is not None and _same_folder(now.text, wanted):
        return ()

    return (values.edit(system.resume.parameter, wanted),)


def _same_folder(text: str, wanted: str) -> bool:
    """Relative paths are the job's own: they end as the wanted one does."""
    if posixpath.isabs(text):
        return posixpath.normpath(text) == posixpath.normpath(wanted)
    return posixpath.normpath("/" + wanted).endswith("/" + posixpath.normpath(text).lstrip("./"))
