"""Lever documents and restarters as they are used: read from their compiled form, or read and checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from runbook.compiled import Compiled, CompiledDocuments
from runbook.documents import Document, DocumentsInvalid, Problem, load_document, load_folder
from runbook.kinds import load_kinds
from runbook.model.diagnosis import Detail, Kinds
from runbook.model.log import Phase
from runbook.model.remedy import Effect
from runbook.model.template import SettingKind
from runbook.remedy import checkpoint_rules
from runbook.remedy.checkpoint_rules import Restarter
from runbook.remedy.constraints import CONSTRAINTS
from runbook.remedy.edits import FUNCTIONS
from runbook.remedy.lever_context import texts_of
from runbook.remedy.lever_document import Ladder, LeverDocument, LeverRule, Need, Parameter


class CommonLevers(Document):
    """What belongs to no system: the options of Slurm and of containers, and the ladders that need no framework."""

    version: Literal[1]
    id: str
    title: str
    why: str
    source: str
    parameters: tuple[Parameter, ...]
    levers: tuple[LeverRule, ...]
    ladders: tuple[Ladder, ...]

    def joined_to(self, system: LeverDocument) -> LeverDocument:
        """The system's document with these: what it says itself stands, and a ladder that both have goes on with the
        levers of this one."""
        parameters, levers = {item.id for item in system.parameters}, {item.id for item in system.levers}
        common = {item.id: item for item in self.ladders}
        ladders = tuple(
            item.model_copy(update={"levers": tuple(dict.fromkeys((*item.levers, *common[item.id].levers)))})
            if item.id in common else item
            for item in system.ladders
        )
        own = {item.id for item in ladders}
        return system.model_copy(update={
            "parameters": (*system.parameters, *(item for item in self.parameters if item.id not in parameters)),
            "levers": (*system.levers, *(item for item in self.levers if item.id not in levers)),
            "ladders": (*ladders, *(item for item in self.ladders if item.id not in own)),
        })


def load_levers(folder: Path, kinds: Kinds | None = None) -> tuple[LeverDocument, ...]:
    """All lever documents of a folder. Raises `DocumentsInvalid` with every problem of every file. `kinds`: what their
    ladders may be for; the installed playbook's where none are given.

    Parsing and checking them takes seconds, so their compiled form is read."""
    return compiled_levers(folder, load_kinds() if kinds is None else kinds).load()


def load_restarters(file: Path) -> tuple[Restarter, ...]:
    """The restarters common to all systems. Raises `DocumentsInvalid`."""
    return compiled_restarters(file).load()


def compiled_levers(folder: Path, kinds: Kinds) -> CompiledDocuments[tuple[LeverDocument, ...]]:
    made_by = [Path(__file__).with_name(name) for name in ("lever_document.py", "loading.py", "checkpoint_rules.py")]
    words = (*sorted(FUNCTIONS), *sorted(CONSTRAINTS), *kinds, *Detail, *Phase, *Effect)
    documents = [*sorted(folder.glob("*.yaml")), *_common(folder)]
    compiled = Compiled.of(folder, documents, made_by, words)
    return CompiledDocuments(compiled, lambda: read_levers(folder, kinds), _plain, partial(_restored, LeverDocument))


def compiled_restarters(file: Path) -> CompiledDocuments[tuple[Restarter, ...]]:
    compiled = Compiled.of(file, [file], [Path(__file__).with_name("checkpoint_rules.py")])
    return CompiledDocuments(
        compiled, lambda: checkpoint_rules.load_restarters(file), _plain, partial(_restored, Restarter)
    )


_Model = TypeVar("_Model", bound=BaseModel)


def _plain(made: Sequence[BaseModel]) -> list[dict[str, Any]]:
    return [item.model_dump(mode="json", exclude_defaults=True, by_alias=True) for item in made]


def _restored(model: type[_Model], plain: Any) -> tuple[_Model, ...]:
    return tuple(model.model_validate(item) for item in plain)


def read_levers(folder: Path, kinds: Kinds) -> tuple[LeverDocument, ...]:
    """All lever documents of a folder. Raises `DocumentsInvalid` with every problem of every file."""
    loaded = load_folder(folder, LeverDocument)
    for path in _common(folder):
        common = load_document(path, CommonLevers)
        loaded = tuple((name, common.joined_to(document)) for name, document in loaded)
    problems = [problem for path, document in loaded for problem in check_document(document, str(path), kinds)]
    ids = [document.id for _, document in loaded]
    problems += [
        Problem(str(path), 1, "id", f"{document.id} is the id of two documents", "rename one")
        for path, document in loaded
        if ids.count(document.id) > 1
    ]
    if problems:
        raise DocumentsInvalid(problems)
    return tuple(document for _, document in loaded)


def _common(folder: Path) -> list[Path]:
    """The document for every system beside the folder; a playbook need not have one."""
    return [path for path in (folder.with_name("common_levers.yaml"),) if path.exists()]


_NAME_PARAMETERS = frozenset({
    "parameter", "parameters", "longest", "degree", "degrees", "part", "whole", "heads", "kv_heads", "vocabulary",
    "hidden", "buffer", "budget", "newer", "as", "experts", "unless", "layers", "stages", "other", "like",
    "micro", "accumulation", "by", "sequence", "config", "keys", "total", "size", "groups", "ranks", "also",
})
"""Arguments of functions and constraints whose values are ids of parameters."""


def check_document(document: LeverDocument, name: str, kinds: Kinds) -> Iterator[Problem]:
    """Names that point nowhere: parameters, levers, functions, constraints, versions."""
    parameters = {item.id for item in document.parameters}
    levers = {item.id for item in document.levers}
    versions = {item.id for item in document.versions}

    def missing(path: str, wanted: Sequence[str], present: set[str] | frozenset[str], what: str) -> Iterator[Problem]:
        for item in wanted:
            if item and item not in present:
                yield Problem(name, 1, path, f"no {what} {item!r}", f"known are: {', '.join(sorted(present))}")

    for rule in document.levers:
        path = f"levers.{rule.id}"
        conditions = (*rule.needs, *rule.holds, *rule.cautions)
        yield from missing(path, [edit.parameter for edit in rule.edits], parameters, "parameter")
        beside = [name for conflict in rule.conflicts for name in conflict.parameters]
        yield from missing(path, beside, parameters, "parameter")
        yield from missing(path, [edit.function for edit in rule.edits], frozenset(FUNCTIONS), "function")
        yield from missing(path, [need.constraint for need in conditions], frozenset(CONSTRAINTS), "constraint")
        yield from missing(path, _named(conditions), parameters, "parameter")
        yield from missing(path, rule.versions, versions, "version")
        yield from missing(path, (*rule.named, *rule.unnamed), {item.parameter for item in document.roles}, "role")
        yield from missing(path, _named([Need(constraint="-", arguments=edit.arguments) for edit in rule.edits]),
                           parameters, "parameter")
    for ladder in document.ladders:
        yield from missing(f"ladders.{ladder.id}", ladder.levers, levers, "lever")
        yield from missing(f"ladders.{ladder.id}.kinds", ladder.kinds, frozenset(kinds), "kind")
    yield from missing("roles", [item.parameter for item in document.roles], parameters, "parameter")
    used = {lever for ladder in document.ladders for lever in ladder.levers}
    for lever in sorted(levers - used):
        yield Problem(name, 1, f"levers.{lever}", "stands on no ladder", "put it on one, or remove it")
    world = document.world
    named: list[str] = [*world.nodes, *world.ranks, world.shard_degree]
    named += [world.launcher_nodes, world.per_node, world.one_node, world.step_nodes, world.step_tasks]
    named += [world.hostfile, *world.follow]
    named += [name for group in world.divide for item in group for name in item.split("|")]
    named += [name for item in world.stays for name in item.parameters]
    named += document.checkpoint.named
    named += [document.configuration.parameter] if document.configuration is not None else []
    named += [name for item in document.restarters if item.condition is not None for name in item.condition.parameters]
    if document.batch is not None:
        batch = document.batch
        named += [batch.micro, batch.accumulation, batch.total, *batch.model_parallel]
    kept = document.remembered
    named += [*kept.micro_batch, *kept.accumulation, *kept.global_batch, *kept.sequence_length, *kept.degrees]
    yield from missing("", named, parameters, "parameter")
    for item in document.parameters:
        stretches = (item, *item.spelt, *item.defaults)
        named_versions = [name for stretch in stretches for name in (*stretch.since, *stretch.until)]
        yield from missing(f"parameters.{item.id}", named_versions, versions, "version")
    spellings = [
        spelling for item in document.parameters for spelling in item.spellings if item.kind is not SettingKind.SBATCH
    ]
    for spelling in sorted({item for item in spellings if spellings.count(item) > 1}):
        yield Problem(name, 1, "parameters", f"{spelling} belongs to two parameters", "keep it in one")


def _named(conditions: Sequence[Need]) -> tuple[str, ...]:
    found: list[str] = []
    for condition in conditions:
        for key in condition.arguments:
            if key in _NAME_PARAMETERS:
                # `by` is a number in other functions
                found += [item for item in texts_of(condition.arguments, key) if item[:1].isalpha()]
    return tuple(found)
