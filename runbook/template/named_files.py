"""The files that a job script names: configuration files, programs, other scripts; and their paths turned to copies."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.model.template import ParameterNames, SettingKind, SubmitContext, TemplateFile
from runbook.template.bash.arguments import Occurrence, options_given
from runbook.template.bash.launchers import (
    LAUNCHERS,
    basename,
    command_chain,
    program_position,
    training_among,
)
from runbook.template.bash.script import Script, likely_text, read_script
from runbook.template.bash.state import Atom, Command, Token, text_of, unknown_of, why_unknown
from runbook.template.bash.written_files import same_file
from runbook.template.budget import TooMuch
from runbook.template.config import edit as config_edit
from runbook.template.config.config_tree import Config
from runbook.template.containers import Container, container_of, starts_container
from runbook.template.text_files import CannotEdit, Language, language_of

# A step reads what is named here, edits copies of it (`apply` takes the script and these files together), and has the
# script's own argument rewritten to the copy with `point_to_copies`, so that nobody else's job sees the change.

OPTIONS = (
    "--config", "--config_file", "--config-file", "--config_yaml", "--config-yaml", "--yaml-cfg", "--yaml_cfg",
    "--deepspeed", "--deepspeed_config", "--deepspeed-config", "--ds_config", "--ds-config", "--job.config_file",
    "--job.config-file", "--custom-config-path", "--fsdp_config", "--accelerate_config", "--runtime-env",
)
"""Options that name a configuration file: Hugging Face, accelerate, TRL, DeepSpeed, torchtitan, Megatron, AReaL, slime,
Ray. `--deepspeed` is also a bare flag, so only a value that looks like a file counts."""

_CONFIGURATION = re.compile(
    r"-c|--?(?:(?:train(?:ing)?|exp(?:eriment)?|run|main|model|task|args)[-_.])?"
    r"(?:config|cfg|conf|yaml|recipe|hparams|params|settings|base|opt|exp(?:eriment)?|load)s?"
    r"(?:[-_](?:path|file|yaml))?"
)
_HYDRA_NAME = ("--config-name", "-cn")
_HYDRA_FOLDER = ("--config-path", "-cp")
HYDRA_FURTHER = ("--config-dir", "-cd")
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True, slots=True)
class WorkingFolder:
    """Where the script says that a command runs."""

    said: str
    """By what: "cd /x at line 4"."""
    path: str = ""
    """Absolute; "" where it is not certain."""
    below: str | None = None
    """Relative to the folder in which the script is started; None where that is not certain."""
    likely: str = ""
    """By the usual forms (`cd "$ROOT/src"`), below the script's folder; "" where `below` is certain."""

    @property
    def gone_to(self) -> str | None:
        """From the folder before; None where that is not certain."""
        return self.path or self.below


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
    folder: WorkingFolder | None = None
    """In which the command runs; None when the script says nothing of it."""
    script: bool = False
    """A shell script that this one runs or sources: it is read behind it, and goes on from what it exports."""
    sourced: bool = False
    """Read as the script's own lines: what it sets may say which further files are named."""
    likely: str = ""
    """Where one whose path is not known lies by the usual forms (`$(pwd)/a.yaml`), below the script's folder."""
    decided_by: str = ""
    """What of the script decides a path that is not known, as it is written there: "$1"."""

    @property
    def meant(self) -> str | None:
        """The path by which it is known among the files that were read."""
        return self.path if self.path is not None or not self.likely else posixpath.normpath(self.likely)

    container: Container | None = None
    """In which the path is meant."""
    hydra: bool = False
    """Named by `--config-name`: the path is joined from it and `--config-path`; without that it is under the program's
    own folder, which is not known."""


def only_prepares(command: Command) -> bool:
    """`cp`, `cat` and the like name files too, without running anything."""
    first = (command.argv[0].text or "").rsplit("/", 1)[-1]
    return first in _PREPARING


_PREPARING = frozenset({
    "cp", "mv", "cat", "rm", "sed", "mkdir", "ln", "ls", "test", "[", "cd", "jq", "yq", "grep", "tee", "rsync", "scp",
    "tar", "chmod", "touch", "wc", "head", "tail", "diff", "pkill", "pgrep", "killall",
})


def named_files(file: TemplateFile, known: SubmitContext | None = None) -> tuple[NamedFile, ...]:
    """The files that the training command and its launchers name, in order; of a configuration file those that its
    own keys name (`deepspeed: ds.json`). What is in no language of ours names none. A script that is past a budget
    names one whose path is not known."""
    try:
        language = language_of(file)
    except CannotEdit:
        return ()
    if language is not Language.BASH:
        return tuple(_named_by_keys(config_edit.read_config(file, language)))
    try:
        return _named_by_script(read_script(file, naming_options(), known))
    except TooMuch as cut:
        return (NamedFile("", None, 1, cut.what, script=True),)


def _named_by_script(script: Script) -> tuple[NamedFile, ...]:
    found = scripts_named(script)
    for command in naming_commands(script):
        script.budget.spend(len(script.commands) // 8)
        if not only_prepares(command):
            folder, container = _where_it_runs(script, command)
            here = [
                replace(item.file, folder=folder, likely=likely_path(script, item)) for item in naming_words(command)
                if not any(same_file(item.occurrence.value, file.file.path) for file in script.written)
            ]
            here += program_named(script, command, folder)
            found += [replace(item, container=container) for item in here]
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


def scripts_named(script: Script) -> list[NamedFile]:
    """Shell scripts that this one sources; those that set up tools are none of the job's."""
    found: list[NamedFile] = []
    for item in script.walker.final.sourced:
        if item.path.endswith((".sh", ".bash", ".env")) and "$" not in item.path:
            found.append(NamedFile("source", item.path, item.line, script=True, sourced=True))
    return found


def _scripts_run(command: Command) -> list[NamingWord]:
    """A shell script that the command runs: `srun bash train.sh`, `./train.sh`."""
    bare_launcher = basename(command.argv[0]) in LAUNCHERS and program_position(command.argv) is None
    for at, token in enumerate(command.argv):
        text = token.prefix
        if not text.endswith(".sh") or text.startswith("-") or _SET_UP.search(text):
            continue
        shell = at > 0 and bool(_SHELL.fullmatch(command.argv[at - 1].text or ""))
        if at and not shell and not bare_launcher:
            continue
        condition = token.condition or command.condition
        reason = why_unknown(token.atoms) or (condition and f"it is run only {condition}")
        named = NamedFile("", None if reason else token.text, token.line, reason, script=True)
        return [NamingWord(named, _word_as_value(token))]
    return []


def _word_as_value(token: Token) -> Occurrence:
    return Occurrence(
        "", token.atoms, (token.start, token.end), token.quote, token.level, token.line, token.trail, token.condition,
        option=token, value_token=token,
    )


@dataclass(frozen=True, slots=True)
class NamingWord:
    """A file, and where its path is written."""

    file: NamedFile
    occurrence: Occurrence
    folder: tuple[Atom, ...] = ()  # Hydra's, with a slash behind it


def naming_options() -> tuple[ParameterNames, ...]:
    """All options, so that the reader finds their values; none of them tells the training command."""
    return tuple(
        ParameterNames(option, SettingKind.ARGUMENT, (option,), training_program=False)
        for option in (*OPTIONS, *_HYDRA_NAME, *_HYDRA_FOLDER, *HYDRA_FURTHER)
    )


def naming_commands(script: Script) -> list[Command]:
    """Commands that start a program or take a configuration, from the inside out, each once."""
    return [
        item for item in script.commands
        if program_position(item.argv) is not None or any(naming_words(item))
    ]


def naming_words(command: Command) -> list[NamingWord]:
    index_of = {name.parameter: name for name in naming_options()}
    found: list[NamingWord] = []
    given = options_given(command, tuple(index_of.values()))
    for option in OPTIONS:
        for item in given.get(option, [])[-1:]:
            text = text_of(item.value)
            if not item.unresolved and text is not None and not text.endswith(_SUFFIXES):
                continue
            if option == "--deepspeed" and (item.value_token is None and not item.value):
                continue  # the bare flag
            reason = item.condition and f"it is given only {item.condition}"
            reason = reason or _why(item)
            by = item.unresolved or unknown_of(item.value)
            file = NamedFile(option, None if reason else text, item.line, reason, decided_by=by.code if by else "")
            found.append(NamingWord(file, item))
    found += _hydra_places(given)
    found += _without_option(command, found)
    found += _scripts_run(command)
    return sorted(found, key=lambda word: word.file.line)


def _why(given: Occurrence) -> str:
    """Why its value is not known; "" when it is."""
    return str(given.unresolved or "") or why_unknown(given.value)


def _hydra_places(given: Mapping[str, list[Occurrence]]) -> list[NamingWord]:
    names = [item for option in _HYDRA_NAME for item in given.get(option, [])]
    folders = [item for option in _HYDRA_FOLDER for item in given.get(option, [])]
    if not names:
        return []
    name = names[-1]
    text = text_of(name.value)
    reason = _why(name) or (name.condition and f"it is given only {name.condition}")
    path = None
    if not reason and text is not None:
        path = text if text.endswith((".yaml", ".yml")) else f"{text}.yaml"
        if folders:
            folder = text_of(folders[-1].value)
            if folder is None:
                reason, path = _why(folders[-1]), None
            else:
                path = posixpath.join(folder, path)
    front = (*folders[-1].value, Atom("/")) if folders else ()
    return [NamingWord(NamedFile(name.spelling, path, name.line, reason, hydra=True), name, front)]


def _without_option(command: Command, found: Sequence[NamingWord]) -> list[NamingWord]:
    """A recipe that stands without an option behind the program: `trl sft recipe.yaml`, `train.py run.toml`."""
    taken = {id(word.occurrence.value_token) for word in found}
    words = []
    program = program_position(command.argv)
    for at, token in enumerate(command.argv):
        text = token.text if token.text is not None else "".join(atom.char for atom in token.atoms)
        if not text.endswith(_SUFFIXES) or re.search(r"[=\s]", text) or text.startswith("-") or id(token) in taken:
            continue
        before = command.argv[at - 1].text or "" if at else ""
        suffixes = _SUFFIXES if program is not None and at == program + 1 else (".yaml", ".yml", ".toml")
        if before.startswith("-") and before not in ("--", "-m") and not _CONFIGURATION.fullmatch(before):
            continue
        if not text.endswith(suffixes) or (token.text is None and not before.startswith("-")):
            continue
        reason = f"it is given only {token.condition}" if token.condition else why_unknown(token.atoms)
        words.append(NamingWord(NamedFile("", None if reason else text, token.line, reason), _word_as_value(token)))
    return words


def program_named(script: Script, command: Command, folder: WorkingFolder | None) -> list[NamedFile]:
    at = program_position(command.argv)
    if at is None:
        return []
    token: Token = command.argv[at]
    written = "".join(atom.char for atom in token.atoms)
    if not written.endswith(".py") or (token.text is not None and re.search(r"\s", token.text)):
        return []
    likely = likely_text(script, token.atoms) if token.text is None else ""
    return [NamedFile("", token.text, token.line, why_unknown(token.atoms), True, folder, likely=likely)]


def likely_path(script: Script, word: NamingWord) -> str:
    """Where a file whose path is not known lies by the usual forms; "" where it has none of them."""
    if word.file.path is not None or word.occurrence.condition:
        return ""
    likely = likely_text(script, (*word.folder, *word.occurrence.value))
    return f"{likely}.yaml" if likely and word.file.hydra and not likely.endswith((".yaml", ".yml")) else likely


def _commands_that_train(file: TemplateFile, known: SubmitContext | None) -> Iterator[tuple[Script, Command]]:
    """Those that may; none of a file that is no script, or that cannot be read."""
    try:
        if language_of(file) is not Language.BASH:
            return
        script = read_script(file, naming_options(), known)
    except (CannotEdit, TooMuch):
        return
    yield from ((script, command) for command in training_among(naming_commands(script)))


def programs_started(file: TemplateFile, known: SubmitContext | None = None) -> tuple[NamedFile, ...]:
    """The Python programs that a script's commands start and that may train, in order, each with the paths where its
    file may lie: of a module (`-m a.b`) below the working folder or its `src`. Nothing for a file that is no script."""
    found: list[NamedFile] = []
    for script, command in _commands_that_train(file, known):
        at = program_position(command.argv)
        if at is None or only_prepares(command):
            continue
        folder, container = _where_it_runs(script, command)
        token = command.argv[at]
        here = program_named(script, command, folder)
        if (command.argv[at - 1].text if at else "") == "-m" and re.fullmatch(r"\w+(?:\.\w+)*", token.text or ""):
            module = (token.text or "").replace(".", "/")
            here = [
                NamedFile("-m", path, token.line, program=True, folder=folder)
                for path in (f"{module}.py", f"{module}/__main__.py", f"src/{module}.py", f"src/{module}/__main__.py")
            ]
        found += [replace(item, container=container) for item in here]
    return tuple(dict.fromkeys(found))


def words_of_files(file: TemplateFile, known: SubmitContext | None = None) -> tuple[str, ...]:
    """Words behind the training programs that end as a configuration file does, whatever option they belong to."""
    found: list[str] = []
    for _, command in _commands_that_train(file, known):
        at = program_position(command.argv)
        for token in command.argv[at + 1 :] if at is not None else ():
            word = (token.text or "").rpartition("=")[2]
            if word.endswith((*_SUFFIXES, ".py")):
                found.append(word)
    return tuple(dict.fromkeys(found))


def _where_it_runs(script: Script, command: Command) -> tuple[WorkingFolder | None, Container | None]:
    """The folder of the node in which a command runs, and its container, which knows a folder of its own."""
    container = container_of(command, script.header, script.environment)
    started = starts_container(command, script.header)
    if container is None or started is None:
        return _working_folder(script, command, script.commands), None
    inside = [item for item in script.commands if started[0] is None or started[0] in command_chain(item)]
    gone = _gone_to(script, command, inside)
    container = container.after(gone.gone_to if gone is not None else "")
    around = [item for item in script.commands if item not in inside]
    return _working_folder(script, command, around) if container.from_outside else None, container


def _working_folder(script: Script, command: Command, among: Sequence[Command]) -> WorkingFolder | None:
    """The last `cd` of these in front of the command, or Slurm's own option."""
    for current in command_chain(command):
        for token in current.argv:
            if re.match(r"--chdir(=|$)|-D$", token.prefix):
                return WorkingFolder(f"--chdir at line {token.line}")
    directive = script.header.last(("--chdir", "-D"))
    found = None
    if directive is not None:
        found = WorkingFolder(f"#SBATCH --chdir {directive.value} at line {directive.line}")
    return _gone_to(script, command, among, found)


def _gone_to(
    script: Script, command: Command, among: Sequence[Command], found: WorkingFolder | None = None
) -> WorkingFolder | None:
    """Where those of `among` that stand in front of the command have gone to by `cd`; `found` where they have not."""
    below: str | None = ""
    left: list[tuple[WorkingFolder | None, str | None]] = []
    counted = {id(item) for item in among}
    for item in script.commands:
        if item is command:
            break
        if id(item) not in counted:
            continue
        if item.argv and item.argv[0].text == "popd" and left and not item.condition:
            found, below = left.pop()
        elif item.argv and item.argv[0].text in ("cd", "pushd"):
            left += [(found, below)] if item.argv[0].text == "pushd" else []
            target = item.argv[1].text if len(item.argv) > 1 else ""
            shown = "a folder that is not known" if target is None else target
            said = f"cd {shown} at line {item.line}" + (f", {item.condition}" if item.condition else "")
            if item.condition or target is None or not re.fullmatch(r"[^\s~-]\S*", target):
                below = None
            elif below is not None:
                below = posixpath.join(below, target)
            absolute = (below or "").startswith("/")
            likely = likely_text(script, item.argv[1].atoms) if target is None and not item.condition else ""
            found = WorkingFolder(said, below if absolute and below else "", None if absolute else below, likely)
    return found
