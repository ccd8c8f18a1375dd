"""The files that a job script names: its configuration, scripts that it runs, and the program itself.

A step reads what is named here, edits copies of it (`apply` takes the script and these files together), and has the
script's own argument rewritten to the copy with `point_to_copies`, so that nobody else's job sees the change.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runbook.model.template import ParameterNames, SettingKind, SubmitContext, TemplateFile
from runbook.template.bash.commands import LAUNCHERS, basename, chain, program_at
from runbook.template.bash.options import Occurrence, options_given
from runbook.template.bash.runs import Command
from runbook.template.bash.script import Script, read_script
from runbook.template.bash.words import Token, text_of, unknown_of
from runbook.template.config import edit as config_edit
from runbook.template.config.document import Config
from runbook.template.errors import CannotEdit
from runbook.template.language import Language, language_of

OPTIONS = (
    "--config", "--config_file", "--config-file", "--config_yaml", "--config-yaml", "--yaml-cfg", "--yaml_cfg",
    "--deepspeed", "--deepspeed_config", "--deepspeed-config", "--ds_config", "--ds-config", "--job.config_file",
    "--job.config-file", "--custom-config-path", "--fsdp_config", "--accelerate_config", "--runtime-env",
)
"""Options that name a configuration file: Hugging Face, accelerate, TRL, DeepSpeed, torchtitan, Megatron, AReaL, slime,
Ray. `--deepspeed` is also a bare flag, so only a value that looks like a file counts."""

_HYDRA_NAME = ("--config-name", "-cn")
_HYDRA_FOLDER = ("--config-path", "-cp")
HYDRA_FURTHER = ("--config-dir", "-cd")
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a script names."""

    option: str
    """The option that names it; "" for one that stands alone (`trl sft recipe.yaml`) and for the program."""
    path: str | None
    """As written, variables followed; None when it is computed. Relative to the folder in which the command runs."""
    line: int
    unresolved: str = ""
    """Why the path is not known."""
    program: bool = False
    """The Python program itself, whose literals may be the configuration."""
    folder: str = ""
    """What the script says of the folder in which the command runs: "cd /x at line 4"; "" when it says nothing."""
    script: bool = False
    """A shell script that this one runs or sources: it is read behind it, and goes on from what it exports."""
    hydra: bool = False
    """Named by `--config-name`: the path is joined from it and `--config-path`; without that it is under the program's
    own folder, which is not known."""


def named_files(file: TemplateFile, known: SubmitContext | None = None) -> tuple[NamedFile, ...]:
    """The files that the training command and its launchers name, in order; of a configuration file those that its
    own keys name (`deepspeed: ds.json`). What is in no language of ours names none."""
    try:
        language = language_of(file)
    except CannotEdit:
        return ()
    if language is not Language.BASH:
        return tuple(_named_by_keys(config_edit.read_config(file, language)))
    script = read_script(file, option_names(), known)
    found = sourced(script)
    for command in naming_commands(script):
        if not prepares(command):
            folder = _folder(script, command)
            found += [_named(item, folder) for item in places(command)]
            found += program_of(command, folder)
    return tuple(dict.fromkeys(found))


_KEYS = (
    "deepspeed", "deepspeed_config", "deepspeed_config_file", "ds_config", "config_file", "fsdp_config",
    "accelerate_config", "custom_config_path", "runtime_env",
)
"""Keys of a configuration file that name a further one: Hugging Face, accelerate, Axolotl, LLaMA-Factory."""


def _named_by_keys(config: Config) -> Iterator[NamedFile]:
    for leaf in config.leaves:
        if config.loose or not leaf.path or leaf.path[-1] not in _KEYS:
            continue
        if leaf.value is None or leaf.value.endswith(_SUFFIXES):
            yield NamedFile(".".join(leaf.path), leaf.value, leaf.line, leaf.unresolved)


_SHELL = re.compile(r"(?:.*/)?(?:ba|da|k)?sh")
_SET_UP = re.compile(r"(?:^|/)(?:activate|profile|bashrc|(?:conda|mamba|modules?|lmod)\.sh)$|^/etc/")


def sourced(script: Script) -> list[NamedFile]:
    """Shell scripts that this one sources; those that set up tools are none of the job's."""
    found: list[NamedFile] = []
    for item in script.walker.final.sourced:
        path, _, line = item.rpartition(" at line ")
        if path.endswith(".sh") and "$" not in path:
            found.append(NamedFile("source", path, int(line), script=True))
    return found


def _run(command: Command) -> list[Place]:
    """A shell script that the command runs: `srun bash train.sh`, `./train.sh`."""
    for at, token in enumerate(command.argv):
        text = token.prefix
        if not text.endswith(".sh") or text.startswith("-") or _SET_UP.search(text):
            continue
        shell = at > 0 and bool(_SHELL.fullmatch(command.argv[at - 1].text or ""))
        if at and not shell and not (basename(command.argv[0]) in LAUNCHERS and program_at(command.argv) is None):
            continue
        condition = token.condition or command.condition
        reason = unknown_of(token.atoms) or (condition and f"it is run only {condition}")
        return [Place("", None if reason else token.text, reason, token.line, _as_value(token), script=True)]
    return []


def _as_value(token: Token) -> Occurrence:
    return Occurrence(
        "", token.atoms, (token.start, token.end), token.quote, token.level, token.line, token.trail, token.condition,
        option=token, value_token=token,
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path is written."""

    option: str
    path: str | None
    unresolved: str
    line: int
    occurrence: Occurrence
    hydra: bool = False
    script: bool = False


def option_names() -> tuple[ParameterNames, ...]:
    """All options, so that the reader finds their values; none of them tells the training command."""
    return tuple(
        ParameterNames(option, SettingKind.ARGUMENT, (option,), training_program=False)
        for option in (*OPTIONS, *_HYDRA_NAME, *_HYDRA_FOLDER, *HYDRA_FURTHER)
    )


def naming_commands(script: Script) -> list[Command]:
    """Commands that start a program or take a configuration, from the inside out, each once."""
    return [
        item for item in script.walker.commands
        if program_at(item.argv) is not None or any(places(item))
    ]


def prepares(command: Command) -> bool:
    """`cp`, `cat` and the like name files too, without running anything."""
    first = (command.argv[0].text or "").rsplit("/", 1)[-1]
    return first in ("cp", "mv", "cat", "rm", "sed", "mkdir", "ln", "ls", "test", "[", "cd", "jq", "yq", "grep", "tee")


def places(command: Command) -> list[Place]:
    index_of = {name.parameter: name for name in option_names()}
    found: list[Place] = []
    given = options_given(command, tuple(index_of.values()))
    for option in OPTIONS:
        for item in given.get(option, [])[-1:]:
            text = text_of(item.value)
            if not item.unresolved and text is not None and not text.endswith(_SUFFIXES):
                continue
            if option == "--deepspeed" and (item.value_token is None and not item.value):
                continue  # the bare flag
            reason = item.condition and f"it is given only {item.condition}"
            reason = reason or item.unresolved or unknown_of(item.value)
            found.append(Place(option, None if reason else text, reason, item.line, item))
    found += _hydra_places(given)
    found += _alone(command, found)
    found += _run(command)
    return sorted(found, key=lambda place: place.line)


def _hydra_places(given: Mapping[str, list[Occurrence]]) -> list[Place]:
    names = [item for option in _HYDRA_NAME for item in given.get(option, [])]
    folders = [item for option in _HYDRA_FOLDER for item in given.get(option, [])]
    if not names:
        return []
    name = names[-1]
    text = text_of(name.value)
    reason = name.unresolved or unknown_of(name.value) or (name.condition and f"it is given only {name.condition}")
    path = None
    if not reason and text is not None:
        path = text if text.endswith((".yaml", ".yml")) else f"{text}.yaml"
        if folders:
            folder = text_of(folders[-1].value)
            if folder is None:
                reason, path = unknown_of(folders[-1].value) or folders[-1].unresolved, None
            else:
                path = posixpath.join(folder, path)
    return [Place(name.spelling, path, reason, name.line, name, True)]


def _alone(command: Command, found: Sequence[Place]) -> list[Place]:
    """A recipe that stands without an option behind the program: `trl sft recipe.yaml`, `train.py run.toml`."""
    taken = {id(place.occurrence.value_token) for place in found}
    places = []
    program = program_at(command.argv)
    for at, token in enumerate(command.argv):
        text = token.text
        if text is None or not text.endswith(_SUFFIXES) or "=" in text or text.startswith("-") or id(token) in taken:
            continue
        before = command.argv[at - 1].text or "" if at else ""
        suffixes = _SUFFIXES if program is not None and at == program + 1 else (".yaml", ".yml", ".toml")
        if (before.startswith("-") and before not in ("--", "-m")) or not text.endswith(suffixes):
            continue
        reason = f"it is given only {token.condition}" if token.condition else ""
        places.append(Place("", None if reason else text, reason, token.line, _as_value(token)))
    return places


def _named(place: Place, folder: str) -> NamedFile:
    return NamedFile(place.option, place.path, place.line, place.unresolved, False, folder, place.script, place.hydra)


def program_of(command: Command, folder: str) -> list[NamedFile]:
    at = program_at(command.argv)
    if at is None:
        return []
    token: Token = command.argv[at]
    written = "".join(atom.char for atom in token.atoms)
    if not written.endswith(".py"):
        return []
    return [NamedFile("", token.text, token.line, unknown_of(token.atoms), True, folder)]


def _folder(script: Script, command: Command) -> str:
    """The last `cd` in front of the command, or Slurm's own option."""
    for current in chain(command):
        for token in current.argv:
            if re.match(r"--chdir(=|$)|-D$", token.prefix):
                return f"--chdir at line {token.line}"
    found = ""
    directive = script.header.last(("--chdir", "-D"))
    if directive is not None:
        found = f"#SBATCH --chdir {directive.value} at line {directive.line}"
    for item in script.walker.commands:
        if item is command:
            break
        if item.argv and item.argv[0].text in ("cd", "pushd"):
            target = item.argv[1].text if len(item.argv) > 1 else ""
            shown = "a folder that is not known" if target is None else target
            found = f"cd {shown} at line {item.line}" + (f", {item.condition}" if item.condition else "")
    return found
