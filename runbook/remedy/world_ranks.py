"""Fewer ranks: what of a template counts nodes or ranks, what has to divide the ranks that are left, and what names
nodes that are gone."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from runbook.model.template import Edit, TemplateFile
from runbook.model.units import NodeName
from runbook.remedy.edits import edit_of
from runbook.remedy.situation import Refusal, Situation

_MPIRUN_RANKS = re.compile(r"\b(?:mpirun|mpiexec(?:\.hydra)?)\b[^|;#]{0,200}\s-np?[ =]?(?P<ranks>[^\s;|]{1,80})")
"""mpirun(1), mpiexec(1): a number of ranks that no lever document edits."""
_WORLD_SIZE = re.compile(r"(?:^|\s)WORLD_SIZE=[\"']?(?P<ranks>\d{1,7})\b")
"""torch.distributed's env:// rendezvous, where the script sets it itself."""


def fewer_ranks(
    situation: Situation, nodes: int, left: int, templates: Sequence[TemplateFile] = (), gone: Sequence[NodeName] = ()
) -> list[Edit] | Refusal:
    """Literal numbers of nodes and ranks in the template; those that follow Slurm need no change. `gone`: nodes that
    are not used any more, which the template must not name."""
    named = _names_hosts(situation, templates, gone)
    if named is not None:
        return named
    edits: list[Edit] = []
    world = situation.system.world
    for made in (
        _counted(situation, (*world.nodes, *world.ranks), nodes, left),
        _steps(situation, nodes, left),
        _following(situation, nodes, left),
    ):
        if isinstance(made, Refusal):
            return made
        edits += made
    undivided = _does_not_divide(situation, nodes, left)
    return edits if undivided is None else undivided


def _counted(
    situation: Situation, parameters: Sequence[str], nodes: int, left: int, *, whose: str = "", but_one: bool = False
) -> list[Edit] | Refusal:
    """Numbers of nodes or ranks that shrink with the job; what follows Slurm's variables does so by itself. `but_one`:
    a 1 stays as it is. `whose`: of whom a refusal speaks."""
    world = situation.system.world
    edits: list[Edit] = []
    for parameter in parameters:
        setting = situation.setting(parameter)
        if setting is None or (setting.value is None and "SLURM_" in setting.unresolved):
            continue
        if but_one and setting.value == "1":
            continue
        present = situation.number(parameter)
        if isinstance(present, Refusal):
            return present
        counts_nodes = parameter in (*world.nodes, world.step_nodes)
        if present is None or present * left % nodes or (counts_nodes and present != nodes):
            return Refusal(f"{whose}{setting.spelling} {setting.value} does not go with {left} of {nodes} nodes")
        made = edit_of(situation, situation.system.parameter(parameter), str(present * left // nodes))
        if isinstance(made, Refusal):
            return made
        edits += made.edits
    return edits


def _steps(situation: Situation, nodes: int, left: int) -> list[Edit] | Refusal:
    """srun's own numbers. A step of one node or one task (an address to ask for, a file to copy) stays as it is."""
    world = situation.system.world
    own = [parameter for parameter in (world.step_nodes, world.step_tasks) if parameter]
    return _counted(situation, own, nodes, left, whose="srun's ", but_one=True)


def _following(situation: Situation, nodes: int, left: int) -> list[Edit] | Refusal:
    """Degrees whose product has to be the number of data-parallel ranks: the first that divides gets smaller."""
    parameters = situation.system.world.follow
    if not parameters:
        return []
    fixed: dict[str, int] = {}
    for parameter in parameters:
        text = situation.text(parameter)
        if isinstance(text, Refusal):
            return text
        if text == "-1":
            continue
        degree = situation.number(parameter)
        if isinstance(degree, Refusal):
            return degree
        if degree is None:
            return _not_known(situation, parameter)
        fixed[parameter] = degree
    ranks = situation.data_parallel()
    if isinstance(ranks, Refusal):
        return ranks
    if ranks is None:
        return Refusal("the number of data-parallel ranks is not known")
    product, fewer = math.prod(fixed.values()), ranks * left // nodes
    names = " × ".join(situation.spelling(parameter) for parameter in fixed)
    if len(fixed) < len(parameters):
        if fewer % product:
            return Refusal(f"{names} = {product} does not divide the {fewer} data-parallel ranks left")
        return []
    if product != ranks:
        return Refusal(f"{names} = {product} is not the {ranks} data-parallel ranks of the job")
    for parameter, degree in fixed.items():
        if degree > 1 and degree * left % nodes == 0:
            made = edit_of(situation, situation.system.parameter(parameter), str(degree * left // nodes))
            return made if isinstance(made, Refusal) else list(made.edits)
    return Refusal(f"{names} = {product} cannot be made the {fewer} data-parallel ranks left")


def _does_not_divide(situation: Situation, nodes: int, left: int) -> Refusal | None:
    rules, world = situation.system.world, situation.world_size
    groups = (*(((rules.shard_degree,),) if rules.shard_degree else ()), *rules.divide)
    for group in groups:
        product = 1
        names: list[str] = []
        for alternatives in group:
            wanted = alternatives.split("|")
            parameter = next((item for item in wanted if situation.is_set(item)), wanted[-1])
            degree = situation.number(parameter)
            if isinstance(degree, Refusal):
                return degree
            if degree is None and group != (rules.shard_degree,):
                return _not_known(situation, parameter)
            product *= degree or 1
            names.append(f"{situation.spelling(parameter)} {degree}")
        if product == 1:
            continue
        if world is None:
            return Refusal("the number of ranks is not known, so whether the sharding still divides is not known")
        if (world * left // nodes) % product:
            if group == (rules.shard_degree,):
                return Refusal(f"a sharding degree of {product} does not divide the {world * left // nodes} ranks left")
            return Refusal(f"{' × '.join(names)} does not divide the {world * left // nodes} ranks left")
    return None


def _not_known(situation: Situation, parameter: str) -> Refusal:
    spelling = situation.spelling(parameter)
    return Refusal(
        f"{spelling} is not in the template and its default is not known",
        f"What is {spelling}? Write it into the template with its present value.",
    )


def _names_hosts(situation: Situation, templates: Sequence[TemplateFile], gone: Sequence[NodeName]) -> Refusal | None:
    """A template that names its nodes, or starts ranks by a number that is not edited here, is a person's."""
    names = [re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])") for name in gone]
    for file in templates:
        for number, line in enumerate(file.text.split("\n"), start=1):
            if line.lstrip().startswith("#"):
                continue
            for name, pattern in zip(gone, names, strict=True):
                if name in line and pattern.search(line):
                    return Refusal(
                        f"{file.path}:{number} names {name}, which is not used any more",
                        f"May {file.path} do without {name}? Then let it take its nodes from SLURM_JOB_NODELIST.",
                    )
            ranks = _counts_ranks(line)
            if ranks:
                return Refusal(
                    f"{file.path}:{number} gives the number of ranks, {ranks}, which is not changed here",
                    f"Let {file.path}:{number} take the number of ranks from SLURM_NTASKS.",
                )
    return _own_hostfile(situation, templates)


def _counts_ranks(line: str) -> str:
    """A number of ranks for mpirun, or as WORLD_SIZE, that does not follow Slurm; "" where there is none."""
    found = (_MPIRUN_RANKS.search(line) if "mpi" in line else None) or _WORLD_SIZE.search(line)
    return found["ranks"] if found is not None and found["ranks"] != "1" and "SLURM_" not in found["ranks"] else ""


def _own_hostfile(situation: Situation, templates: Sequence[TemplateFile]) -> Refusal | None:
    """A host file that the script does not write itself names nodes of another day."""
    parameter = situation.system.world.hostfile
    setting = situation.setting(parameter) if parameter else None
    if setting is None:
        return None
    name = (setting.value or "").rpartition("/")[2]
    for file in templates:
        for line in file.text.split("\n"):
            if line.lstrip().startswith("#") or ">" not in line:
                continue
            written = line.partition(">")[2]
            if (name and name in written) or (not name and re.search(r"hostfile|HOSTFILE", written)):
                return None
    return Refusal(
        f"{setting.spelling} {setting.value or setting.unresolved} names the nodes, and the script does not write it",
        f"Let the script write {setting.spelling}'s file from SLURM_JOB_NODELIST.",
    )
