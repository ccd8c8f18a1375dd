"""Fewer nodes with exactly the same global batch: fewer data-parallel ranks, more accumulation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum, auto

from runbook.model.remedy import Effect, LeverUse, NoPlan, Plan
from runbook.model.sentences import Sentence
from runbook.model.sentences.of_levers import Say
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
            raise Refused(
                Say.DOES_NOT_GO_WITH_NODES_LEFT(
                    whose=whose, spelling=setting.spelling, value=setting.value, left=left, nodes=nodes
                )
            )
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
        raise Refused(Say.DATA_PARALLEL_NOT_KNOWN())
    product, fewer = math.prod(fixed.values()), ranks * left // nodes
    names = " × ".join(context.template.spelling(parameter) for parameter in fixed)
    if len(fixed) < len(parameters):
        if fewer % product:
            raise Refused(Say.DEGREES_DO_NOT_DIVIDE_RANKS_LEFT(names=names, product=product, fewer=fewer))
        return []
    if product != ranks:
        raise Refused(Say.DEGREES_ARE_NOT_THE_RANKS(names=names, product=product, ranks=ranks))
    for parameter, degree in fixed.items():
        if degree > 1 and degree * left % nodes == 0:
            made = edit_of(context, context.template.system.parameter(parameter), str(degree * left // nodes))
            return list(made.edits)
    raise Refused(Say.DEGREES_CANNOT_BE_MADE_RANKS_LEFT(names=names, product=product, fewer=fewer))


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
            raise Refused(Say.RANKS_NOT_KNOWN_SHARDING_OPEN())
        if (world * left // nodes) % product:
            if group == (rules.shard_degree,):
                raise Refused(Say.SHARDING_DOES_NOT_DIVIDE_RANKS_LEFT(product=product, ranks=world * left // nodes))
            raise Refused(Say.DO_NOT_DIVIDE_RANKS_LEFT(names=names, ranks=world * left // nodes))


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
                        Say.NAMES_NODE_NOT_USED_ANY_MORE(path=file.path, number=number, name=name),
                        Say.MAY_FILE_DO_WITHOUT_NODE(path=file.path, name=name)
                    )
            ranks = _counts_ranks(line)
            if ranks:
                raise Refused(
                    Say.LINE_GIVES_NUMBER_OF_RANKS(path=file.path, number=number, ranks=ranks),
                    Say.LET_LINE_TAKE_RANKS_FROM_SLURM(path=file.path, number=number)
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
        Say.HOSTFILE_NOT_WRITTEN_BY_SCRIPT(spelling=setting.spelling, value=setting.value or setting.unresolved),
        Say.LET_SCRIPT_WRITE_HOSTFILE(spelling=setting.spelling)
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
        return NoPlan(Say.NO_REDUCTION(nodes_left=nodes_left, nodes=nodes), exhausted=False)
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
) -> tuple[tuple[Edit, ...], Sentence]:
    edits = fewer_ranks(context, nodes, left, gone)
    values, kept = _batch(context, nodes, left)
    for parameter, value in values.items():
        made = edit_of(context, context.template.system.parameter(parameter), value)
        edits += [edit for edit in made.edits if edit.new != edit.old]
    return tuple(edits), kept


def _batch(context: LeverContext, nodes: int, left: int) -> tuple[dict[str, str], Sentence]:
    """New values of micro-batch and accumulation; the micro-batch only ever shrinks."""
    rules = context.template.system.batch
    if rules is None:
        raise Refused(Say.BATCH_NOT_DESCRIBED())
    micro, total, ranks = context.template.number(rules.micro), context.template.total_batch(), context.data_parallel()
    if micro is None:
        raise Refused(Say.MICRO_BATCH_SIZE_NOT_KNOWN())
    if ranks is not None and ranks * left % nodes:
        raise Refused(Say.RANKS_NOT_WHOLE_ON_NODES_LEFT(ranks=ranks, nodes=nodes, left=left))
    if derives(context):
        return _derived(context, micro, total, ranks, nodes, left)
    steps = context.template.number(rules.accumulation)
    if steps is None:
        raise Refused(Say.ACCUMULATION_NOT_KNOWN())
    if total is not None and ranks is not None and micro * steps * ranks != total:
        made_up = Say.OVER_RANKS(micro=micro, steps=steps, ranks=ranks)
        raise Refused(Say.OWN_NUMBERS_DO_NOT_FIT(total=total, made_up=made_up))
    samples = micro * steps * nodes
    if samples % left:
        raise Refused(Say.SAMPLES_NOT_WHOLE_ON_NODES_LEFT(micro=micro, steps=steps, nodes=nodes, left=left))
    new_micro = _whole(samples // left, micro)
    new_steps = samples // left // new_micro
    values = {rules.accumulation: str(new_steps)}
    if new_micro != micro and rules.micro_in_checkpoint:
        raise Refused(
            Say.MICRO_BATCH_WOULD_CHANGE(
                new_micro=new_micro, micro=micro, micro_in_checkpoint=rules.micro_in_checkpoint
            )
        )
    if new_micro != micro:
        values[rules.micro] = str(new_micro)
    return values, Say.BATCH_OVER_NODES(
        micro=micro, steps=steps, nodes=nodes, new_micro=new_micro, new_steps=new_steps, left=left
    )


def _derived(
    context: LeverContext, micro: int, total: int | None, ranks: int | None, nodes: int, left: int
) -> tuple[dict[str, str], Sentence]:
    rules = context.template.system.batch
    assert rules is not None
    if ranks is None:
        raise Refused(Say.DATA_PARALLEL_NOT_KNOWN())
    values: dict[str, str] = {}
    if total is None:
        if context.ranks_not_certain:
            raise Refused(Say.BATCH_CANNOT_BE_PINNED(why=context.ranks_not_certain))
        total = micro * ranks
        values[rules.total] = str(total)
    fewer = ranks * left // nodes
    if total % (micro * ranks) or total % fewer:
        raise Refused(Say.BATCH_DOES_NOT_DIVIDE_AMONG_RANKS(total=total, fewer=fewer))
    new_micro = _whole(total // fewer, micro)
    if new_micro != micro:
        values[rules.micro] = str(new_micro)
    return values, Say.BATCH_OVER_RANKS_LEFT(
        total=total, new_micro=new_micro, new_steps=total // fewer // new_micro, fewer=fewer
    )


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
        raise Refused(Say.NODEFILE_NAMES_JOB_NODES(), Say.SUBMIT_WITH_NODES_LEFT())
    if asked.get("distribution", "").startswith("arbitrary"):
        raise Refused(Say.DISTRIBUTION_NAMES_NODES())
    segment = asked.get("segment", "")
    if segment.isdecimal() and int(segment) and left % int(segment):
        raise Refused(Say.SEGMENT_DOES_NOT_DIVIDE_NODES(segment=segment, left=left))
    options: list[str] = []
    tasks = asked.get("ntasks")
    if tasks is not None:
        if not tasks.isdecimal() or int(tasks) * left % nodes:
            raise Refused(Say.NTASKS_DO_NOT_GO_WITH_NODES_LEFT(tasks=tasks, left=left, nodes=nodes))
        options.append(f"--ntasks={int(tasks) * left // nodes}")
    gpus = asked.get("gpus")
    if gpus is not None:
        fewer = _gpus(gpus, nodes, left)
        if fewer is None:
            raise Refused(Say.GPUS_DO_NOT_GO_WITH_NODES_LEFT(gpus=gpus, left=left, nodes=nodes))
        options.append(f"--gpus={fewer}")
    if wanted_nodes:
        kept = [node for node in wanted_nodes if node not in set(gone)]
        if len(kept) > left:
            named = asked.get("nodelist", "")
            raise Refused(Say.NODELIST_ASKS_FOR_MORE(named=named, kept=len(kept), left=left))
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
