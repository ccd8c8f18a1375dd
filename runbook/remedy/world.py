"""Fewer nodes with exactly the same global batch: fewer data-parallel ranks, more accumulation."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.model.job import JobRecord
from runbook.model.log import LogStory
from runbook.model.remedy import Effect, LeverUse, NoPlan, Plan
from runbook.model.template import Edit, Setting, TemplateFile
from runbook.model.units import NodeName
from runbook.remedy.batch import derives
from runbook.remedy.document import LeverDocument
from runbook.remedy.edits import edit_of
from runbook.remedy.release import releases
from runbook.remedy.situation import Refusal, Situation, largest_divisor
from runbook.remedy.world_ranks import fewer_ranks

REDUCE_WORLD = "reduce_world"
"""The lever's name in a plan. It is never the owner's to keep: the template stays for the nodes that it was written
for."""


def reduce_world(
    settings: Sequence[Setting],
    job: JobRecord,
    *,
    nodes_left: int,
    system: LeverDocument,
    story: LogStory | None = None,
    templates: Sequence[TemplateFile] = (),
    nodes_gone: Sequence[NodeName] = (),
) -> Plan | NoPlan:
    """The edits for `nodes_left` nodes, or why the global batch could not be kept exactly.

    `nodes_gone`: nodes that must not be used any more, which the template must not name."""
    situation = Situation(
        system, tuple(settings), story or LogStory(root_cause=None), job,
        releases=releases(system, settings, templates),
    )
    nodes = job.num_nodes or len(job.nodes)
    if nodes_left < 1 or nodes_left >= nodes:
        return NoPlan(f"{nodes_left} of {nodes} nodes is no reduction", exhausted=False)
    outcome = _edits(situation, nodes, nodes_left, templates, nodes_gone)
    if isinstance(outcome, Refusal):
        return NoPlan(outcome.why, exhausted=False, question=outcome.question)
    edits, kept = outcome
    use = LeverUse(
        lever=REDUCE_WORLD,
        title=f"{nodes_left} nodes instead of {nodes}",
        why="No spare node is free. The samples of an optimizer step stay exactly the same.",
        source="The training-OOM runbook: drain the node, resume at reduced world size.",
        effect=Effect.NUMERICS,
        cost=_cost(situation, nodes, nodes_left, edits),
        edits=edits,
        key=f"reduce_world:nodes={nodes_left}," + ",".join(f"{edit.parameter}={edit.new}" for edit in edits),
        expectation=kept,
        needs_reshard=True,
    )
    return Plan(uses=(use,), system=system.id, ladder=REDUCE_WORLD)


def _cost(situation: Situation, nodes: int, left: int, edits: Sequence[Edit]) -> str:
    rules, degree = situation.system, situation.system.world.shard_degree
    costs = [f"Steps take about {nodes / left:.1f} times as long."]
    if not (degree and situation.is_set(degree)):
        costs.append(
            f"Where weights or states are sharded over all ranks, each rank holds {nodes / left:.2f} times its share."
        )
    if rules.batch is not None and any(edit.parameter == rules.batch.micro for edit in edits):
        costs.append("A loss averaged within each micro-batch weighs samples of different length differently.")
    if rules.checkpoint.per_rank is not None:
        costs.append(rules.checkpoint.per_rank.why)
    return " ".join(costs)


def _edits(
    situation: Situation, nodes: int, left: int, templates: Sequence[TemplateFile], gone: Sequence[NodeName]
) -> tuple[tuple[Edit, ...], str] | Refusal:
    world = fewer_ranks(situation, nodes, left, templates, gone)
    if isinstance(world, Refusal):
        return world
    batch = _batch(situation, nodes, left)
    if isinstance(batch, Refusal):
        return batch
    values, kept = batch
    edits = list(world)
    for parameter, value in values.items():
        made = edit_of(situation, situation.system.parameter(parameter), value)
        if isinstance(made, Refusal):
            return made
        edits += [edit for edit in made.edits if edit.new != edit.old]
    return tuple(edits), kept


def _batch(situation: Situation, nodes: int, left: int) -> tuple[dict[str, str], str] | Refusal:
    """New values of micro-batch and accumulation; the micro-batch only ever shrinks."""
    rules = situation.system.batch
    if rules is None:
        return Refusal("the system's document does not say what makes up the global batch")
    micro, total, ranks = situation.number(rules.micro), situation.total_batch(), situation.data_parallel()
    for value in (micro, total, ranks):
        if isinstance(value, Refusal):
            return value
    assert not isinstance(micro, Refusal) and not isinstance(total, Refusal) and not isinstance(ranks, Refusal)
    if micro is None:
        return Refusal("the micro-batch size is not known")
    if ranks is not None and ranks * left % nodes:
        return Refusal(f"{ranks} data-parallel ranks on {nodes} nodes are no whole number on {left}")
    if derives(situation):
        return _derived(situation, micro, total, ranks, nodes, left)
    steps = situation.number(rules.accumulation)
    if isinstance(steps, Refusal):
        return steps
    if steps is None:
        return Refusal("the accumulation steps are not known, so the global batch could not be kept")
    if total is not None and ranks is not None and micro * steps * ranks != total:
        made_up = f"{micro} × {steps} × {ranks} ranks"
        return Refusal(f"the template's own numbers do not fit together: {total} is not {made_up}")
    samples = micro * steps * nodes
    if samples % left:
        return Refusal(
            f"{micro} × {steps} samples on each rank of {nodes} nodes are no whole number on {left}, so the global "
            "batch would change"
        )
    new_micro = _whole(samples // left, micro)
    new_steps = samples // left // new_micro
    values = {rules.accumulation: str(new_steps)}
    if new_micro != micro and rules.micro_in_checkpoint:
        return Refusal(
            f"the micro-batch would have to become {new_micro} in place of {micro}: {rules.micro_in_checkpoint}"
        )
    if new_micro != micro:
        values[rules.micro] = str(new_micro)
    return values, f"{micro} × {steps} × {nodes} nodes = {new_micro} × {new_steps} × {left} nodes"


def _derived(
    situation: Situation, micro: int, total: int | None, ranks: int | None, nodes: int, left: int
) -> tuple[dict[str, str], str] | Refusal:
    rules = situation.system.batch
    assert rules is not None
    if ranks is None:
        return Refusal("the number of data-parallel ranks is not known")
    values: dict[str, str] = {}
    if total is None:
        if situation.ranks_not_certain:
            return Refusal(f"the global batch size is not set and cannot be pinned: {situation.ranks_not_certain}")
        total = micro * ranks
        values[rules.total] = str(total)
    fewer = ranks * left // nodes
    if total % (micro * ranks) or total % fewer:
        return Refusal(f"a global batch of {total} does not divide among {fewer} ranks")
    new_micro = _whole(total // fewer, micro)
    if new_micro != micro:
        values[rules.micro] = str(new_micro)
    return values, f"global batch {total} = {new_micro} × {total // fewer // new_micro} × {fewer} ranks"


def _whole(samples: int, micro: int) -> int:
    return largest_divisor(samples, min(micro, samples))

