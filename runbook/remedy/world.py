"""Fewer nodes with exactly the same global batch: fewer data-parallel ranks, more accumulation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum, auto

from runbook.model.remedy import Effect, LeverUse, NoPlan, Plan
from runbook.model.template import Edit
from runbook.model.units import NodeName
from runbook.remedy.edits import derives, edit_of
from runbook.remedy.lever_context import LeverContext, largest_divisor, no_default
from runbook.remedy.template_settings import Refused, TemplateSettings

# Fewer ranks: what of a template counts nodes or ranks, what has to divide the ranks that are left, and what names
# nodes that are gone.

_MPIRUN_RANKS = re.compile(r"\b(?:mpirun|mpiexec(?:\.hydra)?)\b[^|;#]{0,200}\s-np?[ =]?(?P<ranks>[^\s;|]{1,80})")
"""mpirun(1), mpiexec(1): a number of ranks that no lever document edits."""
_WORLD_SIZE = re.compile(r"(?:^|\s)WORLD_SIZE=[\"']?(?P<ranks>\d{1,7})\b")
"""torch.distributed's env:// rendezvous, where the script sets it itself."""


def fewer_ranks(
    context: LeverContext, nodes: int, left: int, gone: Sequence[NodeName] = ()
) -> list[Edit]:
    """Literal numbers of nodes and ranks in the template; those that follow Slurm need no change. `gone`: nodes that
    are not used any more, which the template must not name."""
    _names_no_host(context.template, gone)
    world = context.template.system.world
    edits = [
        *_counted(context, (*world.nodes, *world.ranks), nodes, left),
        *_steps(context, nodes, left),
        *_following(context, nodes, left),
    ]
    _divides(context, nodes, left)
    return edits


def _counted(
    context: LeverContext, parameters: Sequence[str], nodes: int, left: int, *, whose: str = "", but_one: bool = False
) -> list[Edit]:
    """Numbers of nodes or ranks that shrink with the job; what follows Slurm's variables does so by itself. `but_one`:
    a 1 stays as it is. `whose`: of whom a refusal speaks."""
    world = context.template.system.world
    edits: list[Edit] = []
    for parameter in parameters:
        setting = context.template.setting(parameter)
        if setting is None or setting.follows_slurm:
            continue
        if but_one and setting.value == "1":
            continue
        present = context.template.number(parameter)
        counts_nodes = parameter in (*world.nodes, world.step_nodes)
        if present is None or present * left % nodes or (counts_nodes and present != nodes):
            raise Refused(f"{whose}{setting.spelling} {setting.value} does not go with {left} of {nodes} nodes")
        made = edit_of(context, context.template.system.parameter(parameter), str(present * left // nodes))
        edits += made.edits
    return edits


def _steps(context: LeverContext, nodes: int, left: int) -> list[Edit]:
    """srun's own numbers. A step of one node or one task (an address to ask for, a file to copy) stays as it is."""
    world = context.template.system.world
    own = [parameter for parameter in (world.step_nodes, world.step_tasks) if parameter]
    return _counted(context, own, nodes, left, whose="srun's ", but_one=True)


def _following(context: LeverContext, nodes: int, left: int) -> list[Edit]:
    """Degrees whose product has to be the number of data-parallel ranks: the first that divides gets smaller."""
    parameters = context.template.system.world.follow
    if not parameters:
        return []
    fixed: dict[str, int] = {}
    for parameter in parameters:
        text = context.template.text(parameter)
        if text == "-1":
            continue
        degree = context.template.number(parameter)
        if degree is None:
            raise no_default(context.template.spelling(parameter))
        fixed[parameter] = degree
    ranks = context.data_parallel()
    if ranks is None:
        raise Refused("the number of data-parallel ranks is not known")
    product, fewer = math.prod(fixed.values()), ranks * left // nodes
    names = " × ".join(context.template.spelling(parameter) for parameter in fixed)
    if len(fixed) < len(parameters):
        if fewer % product:
            raise Refused(f"{names} = {product} does not divide the {fewer} data-parallel ranks left")
        return []
    if product != ranks:
        raise Refused(f"{names} = {product} is not the {ranks} data-parallel ranks of the job")
    for parameter, degree in fixed.items():
        if degree > 1 and degree * left % nodes == 0:
            made = edit_of(context, context.template.system.parameter(parameter), str(degree * left // nodes))
            return list(made.edits)
    raise Refused(f"{names} = {product} cannot be made the {fewer} data-parallel ranks left")


def _divides(context: LeverContext, nodes: int, left: int) -> None:
    """Refused where what has to divide the ranks does not divide those that are left."""
    rules, world = context.template.system.world, context.world_size
    groups = (*(((rules.shard_degree,),) if rules.shard_degree else ()), *rules.divide)
    for group in groups:
        product = 1
        names: list[str] = []
        for alternatives in group:
            wanted = alternatives.split("|")
            parameter = next((item for item in wanted if context.template.is_set(item)), wanted[-1])
            degree = context.template.number(parameter)
            if degree is None and group != (rules.shard_degree,):
                raise no_default(context.template.spelling(parameter))
            product *= degree or 1
            names.append(f"{context.template.spelling(parameter)} {degree}")
        if product == 1:
            continue
        if world is None:
            raise Refused("the number of ranks is not known, so whether the sharding still divides is not known")
        if (world * left // nodes) % product:
            if group == (rules.shard_degree,):
                raise Refused(f"a sharding degree of {product} does not divide the {world * left // nodes} ranks left")
            raise Refused(f"{' × '.join(names)} does not divide the {world * left // nodes} ranks left")


def _names_no_host(template: TemplateSettings, gone: Sequence[NodeName]) -> None:
    """A template that names its nodes, or starts ranks by a number that is not edited here, is a person's."""
    names = [re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])") for name in gone]
    for file in template.templates:
        for number, line in enumerate(file.text.split("\n"), start=1):
            if line.lstrip().startswith("#"):
                continue
            for name, pattern in zip(gone, names, strict=True):
                if name in line and pattern.search(line):
                    raise Refused(
                        f"{file.path}:{number} names {name}, which is not used any more",
                        f"May {file.path} do without {name}? Then let it take its nodes from SLURM_JOB_NODELIST.",
                    )
            ranks = _counts_ranks(line)
            if ranks:
                raise Refused(
                    f"{file.path}:{number} gives the number of ranks, {ranks}, which is not changed here",
                    f"Let {file.path}:{number} take the number of ranks from SLURM_NTASKS.",
                )
    _writes_its_hostfile(template)


def _counts_ranks(line: str) -> str:
    """A number of ranks for mpirun, or as WORLD_SIZE, that does not follow Slurm; "" where there is none."""
    found = (_MPIRUN_RANKS.search(line) if "mpi" in line else None) or _WORLD_SIZE.search(line)
    return found["ranks"] if found is not None and found["ranks"] != "1" and "SLURM_" not in found["ranks"] else ""


def _writes_its_hostfile(template: TemplateSettings) -> None:
    """Refused where the script does not write its host file itself: it names nodes of another day."""
    parameter = template.system.world.hostfile
    setting = template.setting(parameter) if parameter else None
    if setting is None:
        return
    name = (setting.value or "").rpartition("/")[2]
    for file in template.templates:
        for line in file.text.split("\n"):
            if line.lstrip().startswith("#") or ">" not in line:
                continue
            written = line.partition(">")[2]
            if (name and name in written) or (not name and re.search(r"hostfile|HOSTFILE", written)):
                return
    raise Refused(
        f"{setting.spelling} {setting.value or setting.unresolved} names the nodes, and the script does not write it",
        f"Let the script write {setting.spelling}'s file from SLURM_JOB_NODELIST.",
    )


class WorldLever(StrEnum):
    """Levers of no document, by their names in a plan. They are never the owner's to keep: the template stays for the
    nodes that it was written for."""

    REDUCE_WORLD = auto()


def fit_to_nodes(context: LeverContext, nodes_left: int, nodes_gone: Sequence[NodeName] = ()) -> Plan | NoPlan:
    """The edits for `nodes_left` nodes, or why the global batch could not be kept exactly.

    `nodes_gone`: nodes that must not be used any more, which the template must not name."""
    nodes = context.job.num_nodes or len(context.job.nodes)
    if nodes_left < 1 or nodes_left >= nodes:
        return NoPlan(f"{nodes_left} of {nodes} nodes is no reduction", exhausted=False)
    try:
        edits, kept = _edits(context, nodes, nodes_left, nodes_gone)
    except Refused as refused:
        return NoPlan(refused.refusal.why, exhausted=False, question=refused.refusal.question)
    changes = ",".join(f"{edit.parameter}={edit.new}" for edit in edits)
    use = LeverUse(
        lever=WorldLever.REDUCE_WORLD.value,
        title=f"{nodes_left} nodes instead of {nodes}",
        why="No spare node is free. The samples of an optimizer step stay exactly the same.",
        source="The training-OOM runbook: drain the node, resume at reduced world size.",
        effect=Effect.NUMERICS,
        cost=_cost(context, nodes, nodes_left, edits),
        edits=edits,
        key=f"{WorldLever.REDUCE_WORLD}:nodes={nodes_left},{changes}",
        expectation=kept,
        needs_reshard=True,
    )
    return Plan(uses=(use,), system=context.template.system.id, ladder=WorldLever.REDUCE_WORLD.value)


def _cost(context: LeverContext, nodes: int, left: int, edits: Sequence[Edit]) -> str:
    rules, degree = context.template.system, context.template.system.world.shard_degree
    costs = [f"Steps take about {nodes / left:.1f} times as long."]
    if not (degree and context.template.is_set(degree)):
        costs.append(
            f"Where weights or states are sharded over all ranks, each rank holds {nodes / left:.2f} times its share."
        )
    if rules.batch is not None and any(edit.parameter == rules.batch.micro for edit in edits):
        costs.append("A loss averaged within each micro-batch weighs samples of different length differently.")
    if rules.checkpoint.per_rank is not None:
        costs.append(rules.checkpoint.per_rank.why)
    return " ".join(costs)


def _edits(
    context: LeverContext, nodes: int, left: int, gone: Sequence[NodeName]
) -> tuple[tuple[Edit, ...], str]:
    edits = fewer_ranks(context, nodes, left, gone)
    values, kept = _batch(context, nodes, left)
    for parameter, value in values.items():
        made = edit_of(context, context.template.system.parameter(parameter), value)
        edits += [edit for edit in made.edits if edit.new != edit.old]
    return tuple(edits), kept


def _batch(context: LeverContext, nodes: int, left: int) -> tuple[dict[str, str], str]:
    """New values of micro-batch and accumulation; the micro-batch only ever shrinks."""
    rules = context.template.system.batch
    if rules is None:
        raise Refused("the system's document does not say what makes up the global batch")
    micro, total, ranks = context.template.number(rules.micro), context.template.total_batch(), context.data_parallel()
    if micro is None:
        raise Refused("the micro-batch size is not known")
    if ranks is not None and ranks * left % nodes:
        raise Refused(f"{ranks} data-parallel ranks on {nodes} nodes are no whole number on {left}")
    if derives(context):
        return _derived(context, micro, total, ranks, nodes, left)
    steps = context.template.number(rules.accumulation)
    if steps is None:
        raise Refused("the accumulation steps are not known, so the global batch could not be kept")
    if total is not None and ranks is not None and micro * steps * ranks != total:
        made_up = f"{micro} × {steps} × {ranks} ranks"
        raise Refused(f"the template's own numbers do not fit together: {total} is not {made_up}")
    samples = micro * steps * nodes
    if samples % left:
        raise Refused(
            f"{micro} × {steps} samples on each rank of {nodes} nodes are no whole number on {left}, so the global "
            "batch would change"
        )
    new_micro = _whole(samples // left, micro)
    new_steps = samples // left // new_micro
    values = {rules.accumulation: str(new_steps)}
    if new_micro != micro and rules.micro_in_checkpoint:
        raise Refused(
            f"the micro-batch would have to become {new_micro} in place of {micro}: {rules.micro_in_checkpoint}"
        )
    if new_micro != micro:
        values[rules.micro] = str(new_micro)
    return values, f"{micro} × {steps} × {nodes} nodes = {new_micro} × {new_steps} × {left} nodes"


def _derived(
    context: LeverContext, micro: int, total: int | None, ranks: int | None, nodes: int, left: int
) -> tuple[dict[str, str], str]:
    rules = context.template.system.batch
    assert rules is not None
    if ranks is None:
        raise Refused("the number of data-parallel ranks is not known")
    values: dict[str, str] = {}
    if total is None:
        if context.ranks_not_certain:
            raise Refused(f"the global batch size is not set and cannot be pinned: {context.ranks_not_certain}")
        total = micro * ranks
        values[rules.total] = str(total)
    fewer = ranks * left // nodes
    if total % (micro * ranks) or total % fewer:
        raise Refused(f"a global batch of {total} does not divide among {fewer} ranks")
    new_micro = _whole(total // fewer, micro)
    if new_micro != micro:
        values[rules.micro] = str(new_micro)
    return values, f"global batch {total} = {new_micro} × {total // fewer // new_micro} × {fewer} ranks"


def _whole(samples: int, micro: int) -> int:
    return largest_divisor(samples, min(micro, samples))


# The submission's own options that go with the number of nodes: sbatch's totals, which stand for all nodes together.
#
# Source: sbatch(1). A number for each node (`--ntasks-per-node`, `--gpus-per-node`, `--mem`, `--cpus-per-task`) stays.

_GPUS = re.compile(r"(?P<kind>[A-Za-z][\w.]{0,63}:)?(?P<count>[1-9][0-9]{0,5})\Z")


def world_options(
    asked: Mapping[str, str], nodes: int, left: int, *, wanted_nodes: Sequence[NodeName] = (),
    gone: Sequence[NodeName] = (),
) -> tuple[str, ...]:
    """What has to be said anew on sbatch's command line for `left` of `nodes` nodes, beside `--nodes` itself.

    `asked`: the options in force by long name, of whatever source; `wanted_nodes`: `--nodelist` as a list."""
    if "nodefile" in asked:
        raise Refused("--nodefile names the job's nodes", "Submit it with the nodes that are left in that file.")
    if asked.get("distribution", "").startswith("arbitrary"):
        raise Refused("--distribution=arbitrary places the ranks on named nodes")
    segment = asked.get("segment", "")
    if segment.isdecimal() and int(segment) and left % int(segment):
        raise Refused(f"--segment={segment} does not divide {left} nodes")
    options: list[str] = []
    tasks = asked.get("ntasks")
    if tasks is not None:
        if not tasks.isdecimal() or int(tasks) * left % nodes:
            raise Refused(f"--ntasks={tasks} does not go with {left} of {nodes} nodes")
        options.append(f"--ntasks={int(tasks) * left // nodes}")
    gpus = asked.get("gpus")
    if gpus is not None:
        fewer = _gpus(gpus, nodes, left)
        if fewer is None:
            raise Refused(f"--gpus={gpus} does not go with {left} of {nodes} nodes")
        options.append(f"--gpus={fewer}")
    if wanted_nodes:
        kept = [node for node in wanted_nodes if node not in set(gone)]
        if len(kept) > left:
            named = asked.get("nodelist", "")
            raise Refused(f"--nodelist={named} asks for {len(kept)} of the nodes, and {left} are free")
        if kept:
            options.append(f"--nodelist={','.join(kept)}")
    return tuple(options)


def _gpus(text: str, nodes: int, left: int) -> str | None:
    parts: list[str] = []
    for part in text.split(","):
        match = _GPUS.match(part)
        if match is None or int(match["count"]) * left % nodes:
            return None
        parts.append(f"{match['kind'] or ''}{int(match['count']) * left // nodes}")
    return ",".join(parts)
