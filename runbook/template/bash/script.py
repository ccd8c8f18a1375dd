"""A job script, read once: its header, its commands with what reaches them, and the parameters on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from runbook.model.template import ParameterNames, SettingKind, SubmitContext, TemplateFile
from runbook.template.bash.commands import ray_starts
from runbook.template.bash.header import Header, read_header
from runbook.template.bash.options import Occurrence, by_spelling, options_among
from runbook.template.bash.runs import Command
from runbook.template.bash.state import Binding, not_known
from runbook.template.bash.syntax import Hazard, hazards, parse
from runbook.template.bash.walk import Walker, follow
from runbook.template.bash.words import Atom, Quote, plain, text_of
from runbook.template.splices import to_bytes


@dataclass(slots=True)
class Script:
    """A job script, read once."""

    file: TemplateFile
    data: bytes
    hazards: tuple[Hazard, ...]
    header: Header
    walker: Walker
    environment: dict[str, str] | None = None
    arguments_known: bool = False
    names: tuple[ParameterNames, ...] = ()
    training: tuple[Command, ...] = ()
    """The commands that carry the training program's options: one, or several that are alike."""
    found: dict[int, dict[str, list[Occurrence]]] = field(default_factory=dict)
    """By position of the command: by parameter: its occurrences in order."""
    clusters: tuple[Command, ...] = ()
    """The commands that start a Ray cluster."""


def read_script(
    file: TemplateFile, names: Sequence[ParameterNames], known: SubmitContext | None, above: Sequence[Script] = ()
) -> Script:
    """Read a script with these parameters in mind. `above` are the scripts that run this one."""
    data = to_bytes(file.text)
    environment = known.environment if known else None
    arguments = known.arguments if known else None
    if above or environment:
        walked = _walk(data, environment, arguments if not above else None, inherited(above))
    else:
        walked = _walk_alone(data, environment is not None, arguments)
    script = Script(
        file, data, walked.hazards, walked.header, walked.walker, environment, arguments is not None and not above,
        tuple(names), clusters=ray_starts(walked.walker.commands) if b"start" in data else (),
    )
    arguments_wanted = [name for name in names if name.kind in (SettingKind.ARGUMENT, SettingKind.KEY)]
    scores = []
    table = by_spelling(arguments_wanted)
    for index, command in enumerate(walked.walker.commands):
        script.found[index] = options_among(command, table)
        scores.append(
            sum(1 for name in arguments_wanted if name.training_program and name.parameter in script.found[index])
        )
    best = max(scores, default=0)
    if best:
        script.training = tuple(command for command, score in zip(walked.walker.commands, scores) if score == best)
    return script


@dataclass(frozen=True, slots=True)
class _Walked:
    """A script as far as no parameters are asked for."""

    hazards: tuple[Hazard, ...]
    header: Header
    walker: Walker


def _walk(
    data: bytes, environment: dict[str, str] | None, arguments: tuple[str, ...] | None, given: dict[str, Binding]
) -> _Walked:
    root = parse(data)
    header = read_header(data)
    walker = follow(data, root, environment, arguments, {**_header_variables(header), **given})
    return _Walked(hazards(data, root), header, walker)


@lru_cache(maxsize=4)
def _walk_alone(data: bytes, environment_is_known: bool, arguments: tuple[str, ...] | None) -> _Walked:
    """A script that nothing but its text decides is asked for its files, its settings and its changes in turn. A walk
    is not changed once it is over; one with an environment, which may hold secrets, is not kept."""
    return _walk(data, {} if environment_is_known else None, arguments, {})


def inherited(above: Sequence[Script]) -> dict[str, Binding]:
    """Variables that the scripts above export: their values where all their commands have the same, else not known."""
    found: dict[str, Binding] = {}
    for script in above:
        states = [{**item.exported, **dict(item.prefix)} for item in script.walker.commands]
        for name in dict.fromkeys(name for state in states for name, binding in state.items() if binding.line):
            bindings = [state.get(name) for state in states]
            first = next(item for item in bindings if item is not None)
            texts = {item.unknown or text_of(item.atoms) if item is not None else None for item in bindings}
            text = text_of(first.atoms)
            if len(texts) == 1 and text is not None and not any(atom.condition for atom in first.atoms):
                found[name] = Binding(plain(text))
            else:
                reason = f"{name} comes from {script.file.path}:{first.line}"
                found[name] = not_known(f"{reason}: {first.unknown}" if first.unknown else reason, 0)
    return found


def _header_variables(header: Header) -> dict[str, Binding]:
    """Variables that `#SBATCH --export=ALL,NAME=value` gives the script."""
    directive = header.last(("--export",))
    variables: dict[str, Binding] = {}
    if directive is None or not directive.value:
        return variables
    position = directive.value_start
    for part in directive.value.split(","):
        if "=" in part:
            key, value = part.split("=", 1)
            start = position + len(key.encode()) + 1
            atoms = tuple(
                Atom(char, start + at, start + at + 1, Quote.BARE) for at, char in enumerate(value)
            ) if value.isascii() else plain(value)
            variables[key] = Binding(atoms, None, directive.line, (start, start + len(value.encode())))
        position += len(part.encode()) + 1
    return variables
