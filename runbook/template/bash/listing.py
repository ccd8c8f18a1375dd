"""Every option, override and variable of the commands that start programs, without knowing any of them by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from runbook.model.template import ParameterNames, Setting, SettingKind, Unresolved
from runbook.template.bash import arguments
from runbook.template.bash.arguments import trail_of
from runbook.template.bash.launchers import (
    INTERPRETERS,
    LAUNCHERS,
    basename,
    command_chain,
    launcher_words,
    program_position,
    ray_environment,
    starts_program,
    training_among,
)
from runbook.template.bash.script import Script, occurrences_in_force
from runbook.template.bash.state import Atom, Command, Token, text_of, unknown_of
from runbook.template.text_files import line_of

_NUMBER = re.compile(r"-\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|-\.\d+")
_OPTION = re.compile(r"--?[A-Za-z]")
_STOPS = frozenset(
    (*LAUNCHERS, "env", "exec", "time", "timeout", "nohup", "numactl", "bash", "sh", "singularity", "apptainer",
     "docker", "podman", "run", "launch", "ray", "job", "submit", "--", "trl", "uv", "conda", "stdbuf", "nsys")
)
"""Words of a launch command that are no option's value."""
_OF_RAY = ("ray", "submit")

_ASSIGNMENT = re.compile(r"(?:^|,)([A-Za-z_]\w*)=")


@dataclass(slots=True)
class _Given:
    """An option with the words behind it."""

    name: str
    token: Token
    value: list[Atom]
    words: int = 0
    bare: bool = True


def listed_settings(script: Script) -> list[Setting]:
    """What reaches the programs that the script starts: variables first, then words, command by command."""
    outer = {id(item.outer) for item in script.commands if item.outer is not None and starts_program(item)}
    commands = [item for item in script.commands if starts_program(item) and id(item) not in outer]
    training = {id(command) for command in training_among(commands)}
    found: list[Setting] = []
    for command in commands:
        found += _variables(script, command)
        for current in reversed(list(command_chain(command))):
            words = _last(list(_words(script, current)))
            found += words if id(command) in training else [replace(item, aside=True) for item in words]
    return list(dict.fromkeys(found))


def _last(words: list[Setting]) -> list[Setting]:
    """Of an option that one program is given twice, the last; short options as `mpirun -x` are given many times."""
    place = {(item.parameter, item.kind, item.trail[:1]): at for at, item in enumerate(words)}
    return [
        item for at, item in enumerate(words)
        if (not item.parameter.startswith("--") and item.kind is SettingKind.ARGUMENT)
        or place[item.parameter, item.kind, item.trail[:1]] == at
    ]


def _variables(script: Script, command: Command) -> Iterator[Setting]:
    names: dict[str, None] = {}
    for current in command_chain(command):
        names |= dict.fromkeys(name for name, binding in current.exported.items() if binding.line)
        names |= dict.fromkeys(name for name, _ in current.prefix)
        own = launcher_words(current)
        words = {basename(token) for token in own}
        for at, token in enumerate(own):
            exporting = token.prefix.startswith("--export=") or (at and own[at - 1].text == "--export")
            if exporting or ("env" in words and not token.prefix.startswith("-")):
                names |= dict.fromkeys(_ASSIGNMENT.findall(token.prefix.removeprefix("--export=")))
        runtime = ray_environment(current)
        if runtime is not None:
            names |= dict.fromkeys(runtime.names())
            if runtime.trouble():
                yield Setting(
                    "--runtime-env-json", SettingKind.ARGUMENT, "--runtime-env-json", None, script.file.path,
                    runtime.line, (f"ray at line {runtime.line}",), runtime.trouble(),
                )
    before, script.training = script.training, (command,)
    found: list[Setting] = []
    for name in names:
        wanted = ParameterNames(name, SettingKind.ENVIRONMENT, (name,))
        occurrences, problem = occurrences_in_force(script, wanted)
        if not occurrences:
            continue
        first = occurrences[0]
        value = None if problem else text_of(first.value)
        path = script.file.path
        found.append(
            Setting(name, SettingKind.ENVIRONMENT, name, value, path, first.line or None, first.trail, problem)
        )
    script.training = before
    yield from sorted(found, key=lambda item: (item.line or 0, item.parameter))


def _words(script: Script, command: Command) -> Iterator[Setting]:
    """Options of the launchers in front of the program, then the program's own."""
    program = program_position(command.argv)
    if not command.argv or not starts_program(command):
        return
    at = 0
    taker = _taker(command, command.argv[0])
    while at < len(command.argv):
        token = command.argv[at]
        if program is not None and at == program:
            taker = _taker(command, token)
            at += 1
            continue
        behind = program is not None and at > program
        if not behind and token.text is not None and basename(token) in _STOPS:
            taker = _taker(command, token)
            at += 1
            continue
        if token.several and not token.prefix:
            yield _setting(script, _Given(_written(script, token), token, list(token.atoms), bare=False), taker)
            at += 1
            continue
        if behind and arguments.is_override(token.prefix.split("=", 1)[0] + "=") and "=" in token.prefix:
            yield _override(script, token, taker)
            at += 1
            continue
        if behind and token.prefix.startswith("~") and token.text is not None:
            yield _removed(script, token, taker)
            at += 1
            continue
        if behind and arguments.begins_pair(token.text):
            pair = _given(script, command.argv, at, program, behind)
            yield replace(_setting(script, pair, taker), kind=SettingKind.KEY)
            at += 1 + pair.words
            continue
        if not _is_option(token) or token.text == "-m":
            at += 1
            continue
        given = _given(script, command.argv, at, program, behind)
        if given.name == "-c" and not behind:  # the text of a shell or of Python
            return
        yield _setting(script, given, taker)
        at += 1 + given.words


class _Taker(NamedTuple):
    """The program that takes the words behind it."""

    shown: str
    launcher: bool


def _taker(command: Command, token: Token) -> _Taker:
    name = basename(token) or "".join(atom.char for atom in token.atoms) or "a program that is not known"
    launcher = name in _OF_RAY or (name in LAUNCHERS and name not in INTERPRETERS)
    return _Taker(f"{name} at line {command.line}", launcher)


def _is_option(token: Token) -> bool:
    return bool(_OPTION.match(token.prefix)) and not _NUMBER.fullmatch(token.prefix)


def _given(script: Script, argv: Sequence[Token], at: int, program: int | None, behind: bool) -> _Given:
    """The option at this place with its values: one for a launcher, any number for the program."""
    token = argv[at]
    name, equals, _ = token.prefix.partition("=")
    if equals:
        return _Given(name, token, list(token.atoms[len(name) + 1 :]), bare=False)
    if not token.prefix.startswith("--") and len(name) > 2 and not behind and name[2:].isdecimal():
        return _Given(name[:2], token, list(token.atoms[2:]), bare=False)  # srun -N2
    given = _Given(name, token, [])
    for word in argv[at + 1 :]:
        ends = program is not None and not behind and at + 1 + given.words >= program
        if ends or word.text == "--" or _is_option(word) or (not behind and (given.words or basename(word) in _STOPS)):
            break
        if behind and (("=" in word.prefix and arguments.is_override(word.prefix)) or arguments.begins_pair(word.text)):
            break
        if given.words and arguments.begins_pair(name):
            break
        if word.several and (given.words or re.search(r"[@*]", _written(script, word))):
            break  # any number of words, which may as well be further options
        if given.words:
            given.value.append(Atom(" "))
        given.value += word.atoms
        given.words += 1
        given.bare = False
    return given


def _setting(script: Script, given: _Given, taker: _Taker) -> Setting:
    token = given.token
    reason = unknown_of(token.atoms[: len(given.name)]) or unknown_of(given.value)
    condition = token.condition or next((atom.condition for atom in given.value if atom.condition), "")
    if condition and not reason:
        reason = Unresolved(f"it is given only {condition}")
    value = "true" if given.bare else text_of(given.value)
    line = _line(script, token)
    return Setting(
        given.name, SettingKind.ARGUMENT, given.name, None if reason else value, script.file.path, line,
        (taker.shown, *trail_of(token, given.value)), reason, launcher=taker.launcher,
    )


def _override(script: Script, token: Token, taker: _Taker) -> Setting:
    written, _, _ = token.prefix.partition("=")
    value, _ = arguments.without_hydra_quotes(token.atoms[len(written) + 1 :])
    found = _setting(script, _Given(written, token, list(value), bare=False), taker)
    shown = found.value.lower() if found.value in ("True", "False") else found.value
    return replace(found, parameter=arguments.override_key(written), kind=SettingKind.KEY, value=shown)


def _removed(script: Script, token: Token, taker: _Taker) -> Setting:
    key = arguments.override_key(token.prefix.partition("=")[0])
    found = _setting(script, _Given(key, token, [], bare=True), taker)
    reason = found.unresolved or Unresolved(f"~{key} at line {token.line} takes the key out of the configuration")
    return replace(found, kind=SettingKind.KEY, spelling=f"~{key}", value=None, unresolved=reason)


def _line(script: Script, token: Token) -> int:
    return line_of(script.data, token.start) if token.start >= 0 else token.line


def _written(script: Script, token: Token) -> str:
    """The word as it stands in the file."""
    if token.start < 0:
        return "further words"
    return script.data[token.start : token.end].decode("utf-8", "replace")[:60]
