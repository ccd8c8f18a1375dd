"""A job script, read once: its header, its commands with what reaches them, the parameters on each, and the value in
force of each parameter, or where the trail ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from runbook.model.template import (
    Edit,
    ParameterNames,
    Setting,
    SettingKind,
    SubmitContext,
    TakenAs,
    TemplateFile,
    Unresolved,
)
from runbook.template.bash import arguments
from runbook.template.bash.arguments import Occurrence, by_spelling, options_among, shown_use
from runbook.template.bash.expansion import Expander
from runbook.template.bash.launchers import (
    command_chain,
    environment_entry,
    program_position,
    ray_environment_of,
    ray_starts,
    starts_program,
    training_among,
)
from runbook.template.bash.state import Atom, Binding, Command, Quote, not_known, text_of, unknown_of, unplaced
from runbook.template.bash.syntax import Hazard, Header, hazards, parse, read_header
from runbook.template.bash.walk import Walker, follow_script
from runbook.template.bash.written_files import Written, configurations
from runbook.template.budget import MOST_SCRIPT_BYTES, Budget, TooMuch, refuse_large
from runbook.template.text_files import line_of, line_start, to_bytes

_COMMENT = re.compile(rb"\s*#")


@dataclass(slots=True)
class Script:
    """A job script, read once."""

    file: TemplateFile
    data: bytes
    hazards: tuple[Hazard, ...]
    header: Header
    walker: Walker
    environment: dict[str, str] | None = None
    names: tuple[ParameterNames, ...] = ()
    training: tuple[Command, ...] = ()
    """The commands that carry the training program's options: one, or several that are alike."""
    found: dict[int, dict[str, list[Occurrence]]] = field(default_factory=dict)
    """By position of the command: by parameter: its occurrences in order."""
    clusters: tuple[Command, ...] = ()
    """The commands that start a Ray cluster."""
    written: tuple[Written, ...] = ()
    """Configuration that the script writes for its programs."""
    budget: Budget = field(default_factory=Budget)
    """For what is asked of it once it is read."""

    @property
    def commands(self) -> Sequence[Command]:
        """All of them, in the order in which they run."""
        return self.walker.commands

    @property
    def sources(self) -> frozenset[str]:
        """Files that are read as its own lines."""
        return frozenset(item.path for item in self.walker.final.sourced if item.followed)

    @property
    def starting(self) -> tuple[Command, ...]:
        """The commands that train; where none is known by its options, all that start a program."""
        return self.training or tuple(command for command in self.commands if starts_program(command))


def read_script(
    file: TemplateFile, names: Sequence[ParameterNames], known: SubmitContext | None, above: Sequence[Script] = ()
) -> Script:
    """Read a script with these parameters in mind. `above` are the scripts that run this one. Raises `TooMuch`."""
    data = to_bytes(file.text)
    environment = known.environment if known else None
    arguments = known.arguments if known else None
    texts = known.sourced if known else {}
    told = {name: Binding(unplaced(value)) for name, value in (known.variables if known else {}).items()}
    if above or environment or texts or told:
        given = {**told, **inherited(above)}
        walked = _walk(data, environment, arguments if not above else None, given, texts)
    else:
        walked = _walk_alone(data, environment is not None, arguments)
    if walked.cut:
        raise TooMuch(f"the script is not read: {walked.cut}", where=f"{file.path}:1")
    script = Script(
        file, data, walked.hazards, walked.header, walked.walker, environment, tuple(names),
        clusters=ray_starts(walked.walker.commands) if b"start" in data else (),
        written=configurations(walked.walker.writes, walked.walker.commands),
        budget=Budget(f"{file.path}:1"),
    )
    arguments_wanted = [name for name in names if name.kind in (SettingKind.ARGUMENT, SettingKind.KEY)]
    scores = []
    table = by_spelling(arguments_wanted)
    for index, command in enumerate(walked.walker.commands):
        script.found[index] = options_among(command, table)
        scores.append(
            sum(1 for name in arguments_wanted if name.training_program and name.parameter in script.found[index])
        )
    able = {id(item) for item in training_among([item for item, score in zip(script.commands, scores) if score])}
    scores = [score if id(command) in able else 0 for command, score in zip(script.commands, scores)]
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
    cut: str = ""
    """Why the rest is empty: the script is past a budget."""


def _walk(
    data: bytes, environment: dict[str, str] | None, arguments: tuple[str, ...] | None, given: dict[str, Binding],
    texts: Mapping[str, str],
) -> _Walked:
    try:
        refuse_large(len(data), MOST_SCRIPT_BYTES)
        root = parse(data)
        header = read_header(data)
        walker = follow_script(data, root, environment, arguments, {**_header_variables(header), **given}, texts)
        return _Walked(hazards(data, root), header, walker)
    except TooMuch as cut:
        why = cut.what
    except RecursionError:
        why = "what it runs is nested deeper than is followed"
    return _Walked((), Header((), 0), Walker(Expander(environment)), why)


@lru_cache(maxsize=4)
def _walk_alone(data: bytes, environment_is_known: bool, arguments: tuple[str, ...] | None) -> _Walked:
    """A script that nothing but its text decides is asked for its files, its settings and its changes in turn. A walk
    is not changed once it is over; one with an environment, which may hold secrets, is not kept."""
    return _walk(data, {} if environment_is_known else None, arguments, {}, {})


def inherited(above: Sequence[Script]) -> dict[str, Binding]:
    """Variables that the scripts above export: their values where all their commands have the same, else not known."""
    found: dict[str, Binding] = {}
    for script in above:
        states = [{**item.exported, **dict(item.prefix)} for item in script.commands]
        for name in dict.fromkeys(name for state in states for name, binding in state.items() if binding.line):
            bindings = [state.get(name) for state in states]
            first = next(item for item in bindings if item is not None)
            texts = {item.unknown or text_of(item.atoms) if item is not None else None for item in bindings}
            text = text_of(first.atoms)
            if len(texts) == 1 and text is not None and not any(atom.condition for atom in first.atoms):
                found[name] = Binding(unplaced(text))
            else:
                reason = f"{name} comes from {script.file.path}:{first.line}"
                below = first.unknown
                found[name] = not_known(f"{reason}: {below}" if below else reason, 0, below.code if below else "")
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
            ) if value.isascii() else unplaced(value)
            variables[key] = Binding(atoms, None, directive.line, (start, start + len(value.encode())))
        position += len(part.encode()) + 1
    return variables


def wanted_settings(script: Script) -> tuple[Setting, ...]:
    """A setting for each parameter that the script sets or mentions; none for one that is absent."""
    found = []
    for name in script.names:
        occurrences, problem = occurrences_in_force(script, name)
        if problem:
            found.append(_unresolved(script, name, occurrences, problem))
        elif occurrences:
            found.append(_setting(script, name, occurrences[0]))
    return tuple(found)


def written_at(script: Script, occurrence: Occurrence) -> int:
    """The line where the value stands in its list: the array, the command, the string of arguments."""
    start = occurrence.site[0]
    if start < 0 and occurrence.option is not None:
        start = occurrence.option.start
    return line_of(script.data, start) if start >= 0 else occurrence.line


def occurrences_in_force(script: Script, name: ParameterNames) -> tuple[tuple[Occurrence, ...], Unresolved | None]:
    """The occurrences that decide (one for each of the alike commands), or why nothing can be said."""
    if name.kind is SettingKind.SBATCH:
        return _directive_in_force(script, name)
    if name.kind is SettingKind.ENVIRONMENT:
        return _variable_in_force(script, name)
    deciding: list[Occurrence] = []
    commands = script.training if name.training_program else _reaching(script)
    if name.program:
        commands = tuple(command for command in script.commands if _starts(command, name.program.split()))
    chosen = {id(command) for command in commands}
    for index, command in enumerate(script.commands):
        occurrences = script.found[index].get(name.parameter, []) if id(command) in chosen else []
        if not occurrences:
            continue
        last = occurrences[-1]
        if last.condition:
            others = {text_of(item.value) for item in occurrences}
            if len(occurrences) == 1 or len(others) > 1:
                at = written_at(script, last)
                return (last,), Unresolved(f"{last.spelling} is given at line {at} only {last.condition}")
        if last.unresolved or unknown_of(last.value):
            return (last,), last.unresolved or unknown_of(last.value)
        deciding.append(last)
    values = {text_of(item.value) for item in deciding}
    if len(values) > 1:
        lines = ", ".join(f"{text_of(item.value)} at line {written_at(script, item)}" for item in deciding)
        return tuple(deciding), Unresolved(f"ambiguous: several commands take it with different values ({lines})")
    if not deciding:
        written = _in_written_files(script, name)
        if written is not None:
            return written
        return _mentioned_elsewhere(script, name)
    return tuple(deciding), None


def _in_written_files(
    script: Script, name: ParameterNames
) -> tuple[tuple[Occurrence, ...], Unresolved | None] | None:
    """As a configuration has it that the script writes; None where none of them does."""
    found = [item for file in script.written for item in (file.occurrence(name),) if item is not None]
    if not found:
        return None
    if len(found) > 1:
        lines = ", ".join(str(item.line) for item in found)
        return tuple(found), Unresolved(f"ambiguous: it stands in several files that the script writes (lines {lines})")
    first = found[0]
    problem = first.unresolved or unknown_of(first.value)
    if first.condition and problem is None:
        problem = Unresolved(f"{first.spelling} is written at line {first.line} only {first.condition}")
    return (first,), problem


def _reaching(script: Script) -> Sequence[Command]:
    """The commands whose launcher options concern the training: they are it, or run it."""
    chains = {id(command) for item in script.training for command in command_chain(item)}
    return [command for command in script.commands if id(command) in chains] if chains else script.commands


def _starts(command: Command, words: Sequence[str]) -> bool:
    """Whether the command runs the program that these words name, by itself or behind a launcher."""
    argv = [token.text or "" for token in command.argv]
    return any(
        argv[at].rsplit("/", 1)[-1] == words[0] and argv[at + 1 : at + len(words)] == list(words[1:])
        for at in range(len(argv))
    )


def _variable_in_force(script: Script, name: ParameterNames) -> tuple[tuple[Occurrence, ...], Unresolved | None]:
    commands = with_cluster(script)
    found: list[Occurrence] = []
    absent: list[Command] = []
    for command in commands:
        script.budget.spend(sum(map(_cost, command_chain(command))))
        for spelling in name.spellings:
            entry = environment_entry(command, spelling, script.header)
            if entry is None:
                continue
            found.append(
                Occurrence(
                    spelling, entry.atoms, entry.site, entry.quote, entry.level, entry.line,
                    (entry.where, *(shown_use(use) for atom in entry.atoms[:1] for use in atom.uses)),
                    next((atom.condition for atom in entry.atoms if atom.condition), ""),
                    Unresolved(entry.kept_away) if entry.kept_away else None,
                    comma_ends=entry.comma_ends or _in_header(script, entry.site[0]), encoding=entry.encoding,
                )
            )
            break
        else:
            absent.append(command)
    if not commands:
        for spelling in name.spellings:
            binding: Binding | None = script.walker.final.variables.get(spelling)
            if binding is not None and spelling in script.walker.final.exported:
                trail = (f"exported at line {binding.line}",)
                found.append(
                    Occurrence(spelling, binding.atoms, binding.site, Quote.BARE, 0, binding.line, trail)
                )
                break
    for item in found:
        if item.unresolved:
            return (item,), Unresolved(f"{item.spelling} is set at line {item.line}, but {item.unresolved}")
        if unknown_of(item.value):
            return (item,), unknown_of(item.value)
        if item.condition:
            return (item,), Unresolved(f"{item.spelling} is set only {item.condition}")
    values = {text_of(item.value) for item in found}
    without = [item for item in absent if item in script.clusters]
    if found and without and len(values) == 1:
        shown = f"{found[0].spelling} is set at line {found[0].line}"
        return tuple(found), Unresolved(f"{shown}, but `ray start` at line {without[0].line} does not have it")
    if len(values) > 1 or (found and absent):
        lines = ", ".join(f"{text_of(item.value)} at line {item.line}" for item in found)
        return tuple(found), Unresolved(f"ambiguous: the commands do not all have the same value ({lines})")
    if not found:
        return _mentioned_elsewhere(script, name)
    return tuple(dict.fromkeys(found)), None


def _cost(command: Command) -> int:
    """What it takes to look for a variable on a command: all its words and assignments."""
    return 1 + sum(2 + len(token.atoms) // 4 for token in command.argv) + len(command.prefix)


def with_cluster(script: Script) -> tuple[Command, ...]:
    """The commands that train, and those that start the Ray cluster in which they run, where no runtime environment
    says otherwise."""
    commands = script.starting
    if not script.clusters or all(ray_environment_of(command) is not None for command in commands):
        return commands
    there = {id(item) for item in commands}
    return (*commands, *(item for item in script.clusters if id(item) not in there))


def _in_header(script: Script, at: int) -> bool:
    return any(item.start <= at < item.end for item in script.header.directives)


def _directive_in_force(script: Script, name: ParameterNames) -> tuple[tuple[Occurrence, ...], Unresolved | None]:
    directive = script.header.last(name.spellings)
    if directive is None:
        submitting = next((item for item in script.commands if item.argv[0].text == "sbatch"), None)
        if submitting is not None and not script.header.directives:
            return (), Unresolved(f"the job is what sbatch at line {submitting.line} submits, with options of its own")
        return (), None
    occurrence = Occurrence(
        directive.option, unplaced(directive.value or "true"), (directive.value_start, directive.value_end), Quote.BARE,
        0, directive.line, ("#SBATCH",), directive=directive,
    )
    if script.header.heterogeneous:
        return (occurrence,), Unresolved("the job is heterogeneous: each component has its own directives")
    if directive.value is None and not name.flag:
        return (occurrence,), Unresolved(f"{directive.option} has no value (line {directive.line})")
    return (occurrence,), None


def _mentioned_elsewhere(script: Script, name: ParameterNames) -> tuple[tuple[Occurrence, ...], Unresolved | None]:
    """Why an absent parameter is not simply absent: its name stands somewhere that no command was seen to take."""
    if name.kind in (SettingKind.ARGUMENT, SettingKind.KEY):
        for index, command in enumerate(script.commands):
            occurrences = script.found[index].get(name.parameter)
            if occurrences:
                shown = command.argv[0].text or "a command"
                return (occurrences[0],), Unresolved(
                    f"{occurrences[0].spelling} is given only to {shown!r} at line {command.line}, which is not the "
                    "training command"
                )
    for spelling in name.spellings:
        tail = rb"=" if name.kind is SettingKind.ENVIRONMENT else rb"(?![\w-])"
        key = name.kind is SettingKind.KEY and not spelling.startswith("-")
        front = rb"(?<![\w.-])" if key else rb"(?<![\w-])"
        if key:
            tail, spelling = rb"(?![\w.-])", arguments.override_key(spelling)
            if "." not in spelling:
                continue  # a word of the language: it means nothing without its section
        if spelling.encode() not in script.data or re.fullmatch(r"-\w", spelling):
            continue  # a short option's letter means something else in every other command
        for match in re.finditer(front + re.escape(spelling.encode()) + tail, script.data):
            script.budget.spend(10 + len(script.walker.quiet) // 8)
            if any(start <= match.start() < end for start, end in script.walker.quiet):
                continue
            if _COMMENT.match(script.data, line_start(script.data, match.start())):
                continue
            line = line_of(script.data, match.start())
            place = Occurrence(spelling, (), (match.start(), match.end()), Quote.BARE, 0, line)
            where = f"{spelling} stands at line {line}"
            return (place,), Unresolved(f"{where}, where the trail from the training command does not lead")
    return (), None


def _setting(script: Script, name: ParameterNames, occurrence: Occurrence) -> Setting:
    value = text_of(occurrence.value)
    if name.kind is SettingKind.KEY and value in ("True", "False"):
        value = value.lower()
    return Setting(
        name.parameter, name.kind, occurrence.spelling, value, script.file.path, written_at(script, occurrence),
        occurrence.trail,
    )


def _unresolved(
    script: Script, name: ParameterNames, occurrences: Sequence[Occurrence], problem: Unresolved
) -> Setting:
    first = occurrences[0] if occurrences else None
    return Setting(
        name.parameter, name.kind, first.spelling if first else name.spellings[0], None, script.file.path,
        written_at(script, first) if first else None, first.trail if first else (), problem,
    )


def takes_override(script: Script, edit: Edit) -> bool:
    """Whether a key that is set nowhere can be given on this script's command line."""
    if edit.taken_as is TakenAs.OVERRIDE or edit.spellings[0].startswith(("+", "-")):
        return True
    programs = script.training or [item for item in script.commands if program_position(item.argv) is not None]
    return any(arguments.accepts_overrides(command) for command in programs)


_STARTED_IN = re.compile(r"\$?\(?`?\s*(?:pwd(?:\s+-[LP])?|\$?\{?(?:PWD|SLURM_SUBMIT_DIR)\}?)\s*`?\)?")
_OWN_FOLDER = re.compile(r"BASH_SOURCE|\$\{?0\b")
_FOLDER_OF = re.compile(r"""\$\(\s*dirname\s+"?\$\{?([A-Za-z_]\w*)\}?"?\s*\)""")
_FOLDER_BELOW = re.compile(
    r"""\$\(\s*cd\s+(?:--\s+)?"?\$\{?([A-Za-z_]\w*)\}?((?:/[\w.-]+)*)/?"?\s*(?:&&|;)\s*pwd(?:\s+-[LP])?\s*\)"""
)
_DEEPEST = 8
UNGIVEN = re.compile(r"\$\{[0-9]{1,3}:-([\w./+-]+)\}")
"""An argument of the script with a default: `${1:-configs/a.yaml}`."""


def likely_text(script: Script, atoms: Sequence[Atom], depth: int = 0) -> str:
    """A path that hangs on the folder in which the script is started or lies, below either: `$(pwd)/a.yaml` and
    `$(dirname "$0")/a.yaml` are `./a.yaml`. A folder in a variable that nobody set is left out; of an argument of the
    script with a default, that. Empty: it has no such form."""
    parts = []
    for at, atom in enumerate(atoms):
        ungiven = UNGIVEN.fullmatch(atom.unknown.code) if atom.unknown is not None else None
        if ungiven is not None:
            parts.append(ungiven[1])
            continue
        folder = _likely_folder(script, atom.unknown.code, depth) if atom.unknown is not None else atom.char
        if folder is None or (at and atom.unknown is not None):
            return ""
        parts.append(folder)
    return "".join(parts)


def _likely_folder(script: Script, code: str, depth: int) -> str | None:
    if _STARTED_IN.fullmatch(code) or re.fullmatch(r"[A-Z][A-Z0-9_]*", code):
        return "."
    if _OWN_FOLDER.search(code):
        above = code.count("dirname") - 1 + len(re.findall(r"/\.\.(?=[/\"' )])", code))
        return "/".join((".", *[".."] * above))
    of, inside = _FOLDER_OF.fullmatch(code), _FOLDER_BELOW.fullmatch(code)
    name = of[1] if of is not None else inside[1] if inside is not None else ""
    binding = script.walker.final.variables.get(name) if depth < _DEEPEST else None
    below = likely_text(script, binding.atoms, depth + 1) if binding is not None else ""
    return f"{below}{inside[2] if inside is not None else '/..'}" if below else None
