"""What the words of a launch command are: launchers in front, the training program, what carries the environment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from runbook.model.template import TemplateFile, Unresolved
from runbook.template.bash.state import (
    Atom,
    Binding,
    Command,
    Quote,
    Token,
    bytes_of,
    not_known,
    shared_uses,
    span_of,
    text_of,
    unknown_of,
)
from runbook.template.bash.syntax import Header
from runbook.template.config import json_toml
from runbook.template.config.config_tree import Config, Form, Leaf
from runbook.template.config.write import into_brackets
from runbook.template.text_files import CannotEdit, Change, to_text

# The runtime environment of `ray job submit` as JSON on the command line: what of it reaches every worker.

_OPTION = "--runtime-env-json"
_VARIABLES = "env_vars"


@dataclass(frozen=True, slots=True)
class RuntimeEnvironment:
    """The JSON, and the atom of the script that each of its bytes comes from."""

    config: Config
    atoms: tuple[Atom, ...]
    line: int
    level: int
    """Expansions that the whole JSON came through."""

    def variable(self, name: str) -> tuple[tuple[Atom, ...], tuple[int, int]] | None:
        """A variable's value without its quotes, and its place in the file; None when it is not there."""
        if self.config.broken is not None:
            reason = f"the JSON of {_OPTION} at line {self.line} is not known or not understood"
            return _not_known(reason)
        found = [leaf for leaf in self.config.leaves if leaf.path == (_VARIABLES, name)]
        if len(found) > 1:
            reason = f"{name} stands twice in the JSON of {_OPTION} at line {self.line}"
            return _not_known(reason)
        if not found:
            around = [leaf for leaf in self.config.leaves if leaf.path == (_VARIABLES,)]
            if around:
                return _not_known(f"{_VARIABLES} in {_OPTION} at line {self.line} is no object")
            return None
        return self._value(found[0])

    def _value(self, leaf: Leaf) -> tuple[tuple[Atom, ...], tuple[int, int]]:
        inner = _one_atom_a_character(self.atoms[leaf.start + 1 : leaf.end - 1])
        if leaf.form is not Form.STRING or "\\" in leaf.raw:
            return _not_known(f"a value of {_OPTION} at line {self.line} is no plain text")
        quote = self.atoms[leaf.start]
        return inner, (quote.end, self.atoms[leaf.end - 1].start)

    def names(self) -> tuple[str, ...]:
        """The variables that it sets."""
        return tuple(leaf.path[1] for leaf in self.config.leaves if len(leaf.path) == 2 and leaf.path[0] == _VARIABLES)

    def trouble(self) -> Unresolved | None:
        """Why nothing is known of it; None when it is understood."""
        broken = self.config.broken
        return unknown_of(self.atoms) or (Unresolved(broken.what) if broken is not None else None)

    def added(self, name: str, value: str, where: str) -> Change:
        """The variable written into `env_vars`. Raises `CannotEdit` where the JSON is not written out."""
        if self.config.broken is not None:
            raise CannotEdit(
                f"the JSON of {_OPTION} is not known or not understood, so {name} cannot be added to it", where=where,
                next_step=f"add {name} to its {_VARIABLES} by hand",
            )
        mapping_nodes = {mapping.path: mapping for mapping in self.config.mapping_nodes}
        mapping = mapping_nodes.get((_VARIABLES,)) or mapping_nodes.get(())
        if mapping is None:
            raise CannotEdit(f"the value of {_OPTION} is no object", where=where)
        rest = (name,) if mapping.path else (_VARIABLES, name)
        changes = into_brackets(self.config, mapping, rest, value, where, Form.STRING)
        if len(changes) != 1 or changes[0].start != changes[0].end:
            raise CannotEdit(f"there is no room in the JSON of {_OPTION}", where=where, next_step="add it by hand")
        before = self.atoms[changes[0].start - 1]
        if before.start < 0 or before.unknown or len(before.uses) != self.level:
            raise CannotEdit(f"the JSON of {_OPTION} is not written out here", where=where, next_step="add it by hand")
        return Change(before.end, before.end, _in_quotes(to_text(changes[0].after), before.quote, where).encode())


def _in_quotes(text: str, quote: Quote, where: str) -> str:
    """JSON as it is written between the quotes that stand around it."""
    if quote is Quote.SINGLE and "'" not in text:
        return text
    if quote is Quote.DOUBLE:
        return "".join(f"\\{letter}" if letter in '$`"\\' else letter for letter in text)
    raise CannotEdit(
        f"the JSON of {_OPTION} is quoted in a way that cannot be continued", where=where,
        next_step="put it into single quotes, then try again",
    )


def json_string_body(value: str) -> str:
    """A value between JSON's quotes."""
    return json.dumps(value, ensure_ascii=False)[1:-1]


def runtime_environment(argv: Sequence[Token]) -> RuntimeEnvironment | None:
    """What `--runtime-env-json` says among these words; None when it is not given."""
    found = None
    for at, token in enumerate(argv):
        if token.prefix.startswith(f"{_OPTION}="):
            found = _read_runtime_environment(token.atoms[len(_OPTION) + 1 :], token)
        elif token.text == _OPTION and at + 1 < len(argv):
            found = _read_runtime_environment(argv[at + 1].atoms, argv[at + 1])
    return found


def _read_runtime_environment(atoms: tuple[Atom, ...], token: Token) -> RuntimeEnvironment:
    data, places = bytes_of(atoms)
    config = json_toml.read_json_bytes(TemplateFile("", ""), data)
    level = len(shared_uses([atom.uses for atom in atoms])) if atoms else 0
    return RuntimeEnvironment(config, places, token.line, level)


def _not_known(why: str) -> tuple[tuple[Atom, ...], tuple[int, int]]:
    return not_known(why, 0).atoms, (-1, -1)


def _one_atom_a_character(atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """One atom a character, where a character has several bytes."""
    found: list[Atom] = []
    for atom in atoms:
        if not found or atom is not found[-1]:
            found.append(atom)
    return tuple(found)


INTERPRETERS = ("python", "python3")
LAUNCHERS = (
    *INTERPRETERS, "srun", "torchrun", "deepspeed", "accelerate", "mpirun", "mpiexec", "torch.distributed.run",
    "torch.distributed.launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner", "deepspeed.launcher.launch",
)

_NOT_FORWARDED = {
    "ssh": "ssh does not pass the environment on",
    "pdsh": "pdsh does not pass the environment on",
    "clush": "clush does not pass the environment on",
    "docker": "a docker container starts with its own environment",
    "podman": "a podman container starts with its own environment",
    "mpirun": "mpirun passes variables to other nodes only with -x or -genv",
    "mpiexec": "mpiexec passes variables to other nodes only with -x or -genv",
    "deepspeed": "the deepspeed launcher forwards no PYTORCH_ variable to other nodes without a .deepspeed_env file",
    "ray": "workers of a running Ray cluster have the environment of `ray start`",
    "sudo": "sudo clears the environment",
}
"""Launchers that an exported variable does not get past. DeepSpeed: `EXPORT_ENVS` in deepspeed/launcher/runner.py."""


def basename(token: Token) -> str:
    return (token.text or "").rsplit("/", 1)[-1]


def command_chain(command: Command) -> Iterator[Command]:
    """The command, and those that run it, from the inside out."""
    current: Command | None = command
    while current is not None:
        yield current
        current = current.outer


def program_position(argv: Sequence[Token]) -> int | None:
    """Index of the training program: the first `*.py` or module after `-m` that is no launcher itself; where that hands
    a whole command on behind `--` (`python submit.py -- python train.py`), the program of that command."""
    found = _first_program(argv)
    if found is None:
        return None
    behind = next((at for at in range(found + 1, len(argv)) if argv[at].text == "--"), None)
    if behind is None:
        return found
    for at in range(behind + 1, len(argv)):
        if basename(argv[at]).lstrip("&;") in LAUNCHERS:  # `&&python`, handed on as a word of a later shell's
            inner = _first_program(argv[at:])
            return found if inner is None else at + inner
    return found


_TRAINER = re.compile(r"[A-Za-z][\w-]*[-_]train")  # a package installs it: fairseq-train
_IN_FRONT = frozenset({"nohup", "time", "exec", "srun", "uv", "run", "--"})
_NO_MODULE = re.compile(r"\d|.*[/:]")  # `docker run -m 64g`, `enroot start -m /a:/b`


def _first_program(argv: Sequence[Token]) -> int | None:
    for index, token in enumerate(argv):
        text = "".join(atom.char for atom in token.atoms)  # a folder that is not known does not hide the program
        if text.endswith(".py") and not text.startswith("-") and basename(token) not in ("launch.py", "launcher.py"):
            return index
        word = argv[index + 1] if text == "-m" and index + 1 < len(argv) else None
        if word is not None and basename(word) not in LAUNCHERS and not _NO_MODULE.match(word.prefix):
            return index + 1
        if _TRAINER.fullmatch(basename(token)) and all(basename(item) in _IN_FRONT for item in argv[:index]):
            return index
    return _behind_launcher(argv)


_DISTRIBUTED = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})


def _behind_launcher(argv: Sequence[Token]) -> int | None:
    """The program of a distributed launcher where its path is not known: one word in quotes that is no option's value,
    with options behind it (`torchrun --nproc_per_node 8 "$SCRIPT" --lr 1`)."""
    launcher = next((at for at, token in enumerate(argv) if basename(token) in _DISTRIBUTED), None)
    for at in range(launcher + 1, len(argv) - 1) if launcher is not None else ():
        alone = argv[at].text is None and not argv[at].several
        named = argv[at - 1].prefix.startswith("-") and "=" not in argv[at - 1].prefix
        if alone and not named and argv[at + 1].prefix.startswith("-"):
            return at
    return None


_BESIDE = re.compile(
    r"(?:^|[/._-])(?:eval\w*|infer\w*|decod\w*|generat(?:e|ion)|predict|sampl(?:e|er|ing)|test|convert\w*|preprocess\w*"
    r"|prepar\w*|preflight\w*|check\w*|validat\w*|verify\w*|export\w*|merge\w*|download\w*|tokeniz\w*|serve|server|plot|summar\w*|get|stats)(?:[._-]|$)"
)
_TRAINS = re.compile(r"(?:^|[/._-])(?:pre)?train(?:er|ing)?(?:[._-]|$)|finetun|fine_tun|sft")


_TOOLS = re.compile(r"(?:conda|ensurepip|http|ipykernel|json|nltk|pip|pytest|venv|wandb)(?:\..*)?|torch\.utils\..*")


def _is_tool(module: str) -> bool:
    """A module that installs, looks or serves: `pip`, `venv`, `torch.utils.collect_env`."""
    return _TOOLS.fullmatch(module) is not None


def trains(command: Command) -> bool:
    """Whether the command's program may be the one that trains, by its name: `convert.py`, `eval.py` and the like work
    before or behind it."""
    at = program_position(command.argv)
    if at is None or (at and command.argv[at - 1].text == "-m" and _is_tool(command.argv[at].text or "")):
        return at is None
    name = "/".join("".join(atom.char for atom in command.argv[at].atoms).split("/")[-2:])
    return not _BESIDE.search(name.rsplit("/", 1)[-1]) or bool(_TRAINS.search(name.rsplit("/", 1)[-1]))


def training_among(commands: Sequence[Command]) -> list[Command]:
    """Those of the commands that may train; all, where none of them looks like it."""
    return [command for command in commands if trains(command)] or list(commands)


def launcher_words(command: Command) -> tuple[Token, ...]:
    """The words in front of the training program; all of them where there is none."""
    return command.argv[: (program_position(command.argv) or len(command.argv))]


def starts_program(command: Command) -> bool:
    """Whether this looks like something that starts a program on the GPUs."""
    return any(basename(item) in LAUNCHERS for item in command.argv[:1]) or program_position(command.argv) is not None


@dataclass(frozen=True, slots=True)
class EnvironmentEntry:
    """`NAME=value` as it reaches a command, and where it is written."""

    atoms: tuple[Atom, ...]
    site: tuple[int, int]
    quote: Quote
    line: int
    where: str
    level: int = 0
    comma_ends: bool = False
    """In a list of `--export`, where a comma ends the value."""
    kept_away: str = ""
    """Why it does not reach the program, although the script sets it."""
    encoding: str = ""
    """What reads the value after the shell: "json" for a runtime environment of Ray."""


def environment_entry(command: Command, name: str, header: Header) -> EnvironmentEntry | None:
    """The setting of a variable that wins for this command, nearest first; None when the script sets none."""
    for current in command_chain(command):
        own = launcher_words(current)
        words = {basename(token) for token in own}
        for token in reversed(own):
            entry = _entry_in_word(token, name, own, words)
            if entry is not None:
                return entry
        given = ray_environment(current)
        value = given.variable(name) if given is not None else None
        if given is not None and value is not None:
            atoms, site = value
            quote = atoms[0].quote if atoms else Quote.NOWHERE
            return EnvironmentEntry(
                atoms, site, quote, given.line, f"--runtime-env-json at line {given.line}", given.level, encoding="json"
            )
        for key, binding in reversed(current.prefix):
            if key == name:
                where = f"in front of the command at line {current.line}"
                return binding_entry(binding, where, why_kept_away(command, name, binding, header))
    if name in command.exported:
        binding = command.exported[name]
        return binding_entry(binding, f"exported at line {binding.line}", why_kept_away(command, name, binding, header))
    return None


def ray_environment(command: Command) -> RuntimeEnvironment | None:
    """The runtime environment that this very command gives the workers of a Ray cluster, as JSON."""
    own = launcher_words(command)
    if "ray" not in [basename(token) for token in own]:
        return None
    return runtime_environment(own)


def ray_environment_of(command: Command) -> RuntimeEnvironment | None:
    """The same of the command or of one that runs it."""
    return next((found for item in command_chain(command) if (found := ray_environment(item)) is not None), None)


_RAY_START = re.compile(r"(?:^|[/\s;&])ray\s+start(?:\s|$)")


def ray_starts(commands: Sequence[Command]) -> tuple[Command, ...]:
    """Commands that start the processes of a Ray cluster: its workers get the environment of these, not of the program
    that is given to the cluster."""
    found = []
    for command in commands:
        words = " ".join(token.prefix for token in command.argv)
        if "start" in words and _RAY_START.search(words):
            found.append(command)
    outer = {id(command.outer) for command in found}
    return tuple(command for command in found if id(command) not in outer)


def binding_entry(binding: Binding, where: str, away: str = "") -> EnvironmentEntry:
    return EnvironmentEntry(binding.atoms, binding.site, Quote.BARE, binding.line, where, kept_away=away)


def why_kept_away(command: Command, name: str, binding: Binding, header: Header) -> str:
    """What keeps a variable of the script from the program: a launcher between the two, `env -u`, Slurm's export."""
    for current in command_chain(command):
        known = dict(current.prefix).get(name, current.exported.get(name))
        if known != binding:
            continue  # set further in than this command
        own = launcher_words(current)
        words = [token.text or token.prefix for token in own]
        if "env" in [basename(token) for token in own] and (
            f"--unset={name}" in words or any(pair == ("-u", name) for pair in pairwise(words))
        ):
            return f"`env -u {name}` takes it away at line {current.line}"
        if why_not_passed_on(current):
            return why_not_passed_on(current)
        export = slurm_export(current, header)
        if export.mode == "none" or (export.mode == "list" and name not in export.names):
            return f"{export.where} keeps it from the program"
    return ""


def _entry_in_word(token: Token, name: str, argv: Sequence[Token], words: set[str]) -> EnvironmentEntry | None:
    """`env NAME=value` and `--export=ALL,NAME=value`. `words` are the last parts of those in `argv`."""
    text = token.prefix
    if f"{name}=" not in text:
        return None
    if text.startswith(f"{name}=") and "env" in words:
        return _entry_of_piece(token, len(name) + 1, len(token.atoms), "env")
    if text.startswith(f"{name}=") and {"mpirun", "mpiexec"} & words and _is_value_of(token, argv, "-x"):
        return _entry_of_piece(token, len(name) + 1, len(token.atoms), "mpirun -x")
    if "srun" in words or "sbatch" in words:
        match = re.search(rf"(?:^--export=|,|^){re.escape(name)}=", text)
        if match and (text.startswith("--export=") or _is_value_of(token, argv, "--export")):
            stop = next(
                (at for at in range(match.end(), len(token.atoms)) if token.atoms[at].char == ","), len(token.atoms)
            )
            return _entry_of_piece(token, match.end(), stop, "srun --export")
    return None


def _is_value_of(token: Token, argv: Sequence[Token], option: str) -> bool:
    at = next((index for index, other in enumerate(argv) if other is token), 0)
    return at > 0 and argv[at - 1].text == option


def _entry_of_piece(token: Token, start: int, stop: int, where: str) -> EnvironmentEntry:
    atoms = token.atoms[start:stop]
    span = span_of(atoms) or (-1, -1)
    quote = atoms[0].quote if atoms else token.quote
    return EnvironmentEntry(
        atoms, span, quote, token.line, f"{where} at line {token.line}", token.level, where == "srun --export"
    )


@dataclass(frozen=True, slots=True)
class SlurmExport:
    """What of the script's environment gets past Slurm: "all", "none" or "list" with the list's place."""

    mode: str
    where: str = ""
    line: int = 0
    end: int = -1
    """Byte behind the list, where a name can be added; -1 when the list is not written in the file."""
    names: tuple[str, ...] = ()


def slurm_export(command: Command, header: Header) -> SlurmExport:
    """The `--export` in force for this command. `sbatch --export` becomes SLURM_EXPORT_ENV, which srun obeys."""
    for current in command_chain(command):
        names = [basename(token) for token in current.argv]
        found = SlurmExport("all")
        if "srun" in names or names[:1] == ["sbatch"]:
            found = _own_export(current) or (_inherited_export(current, header) if "srun" in names else found)
        if found.mode != "all":
            return found
        if "srun" in names and not any(basename(item.argv[0]) == "sbatch" for item in command_chain(current)):
            return found
    return SlurmExport("all")


def _own_export(command: Command) -> SlurmExport | None:
    """`--export` on the command itself."""
    own = launcher_words(command)
    who = "sbatch" if basename(own[0]) == "sbatch" else "srun"
    for at, token in enumerate(own):
        text = token.text or token.prefix
        if text.startswith("--export="):
            return _export(text[9:], f"{who} --export at line {token.line}", token.line, _end_of_word(token))
        if text == "--export" and at + 1 < len(own):
            value = own[at + 1]
            text = value.text or value.prefix
            return _export(text, f"{who} --export at line {value.line}", value.line, _end_of_word(value))
    return None


def _inherited_export(command: Command, header: Header) -> SlurmExport:
    """What srun goes by when it has no `--export` itself."""
    if "SLURM_EXPORT_ENV" in command.exported:
        binding = command.exported["SLURM_EXPORT_ENV"]
        span = span_of(binding.atoms)
        return _export(
            text_of(binding.atoms) or "", f"SLURM_EXPORT_ENV at line {binding.line}", binding.line,
            span[1] if span else -1,
        )
    directive = header.last(("--export",))
    if directive is not None:
        return _export(
            directive.value or "", f"#SBATCH --export at line {directive.line}", directive.line, directive.value_end
        )
    return SlurmExport("all")


def _end_of_word(token: Token) -> int:
    span = span_of(token.atoms)
    return span[1] if span else -1


def _export(value: str, where: str, line: int, end: int) -> SlurmExport:
    names = tuple(part.split("=", 1)[0] for part in value.split(",") if part)
    if value.upper() in ("NONE", "NIL"):
        return SlurmExport("none", where, line, -1)
    if not names or "ALL" in names:
        return SlurmExport("all", where, line, end)
    return SlurmExport("list", where, line, end, names)


def _over_ssh(words: Sequence[str]) -> bool:
    """Whether DeepSpeed's launcher starts other nodes in a way that passes few variables on: with a list of hosts,
    unless it does so by srun, which gets all of them (deepspeed/launcher/multinode_runner.py)."""
    by_srun = "--launcher=slurm" in (word.lower() for word in words) or any(
        first == "--launcher" and second.lower() == "slurm" for first, second in pairwise(words)
    )
    return not by_srun and any(word == "-H" or word.startswith("--hostfile") for word in words)


def why_not_passed_on(command: Command) -> str:
    """Why an exported variable would not reach the program; "" when nothing here stops it."""
    for current in command_chain(command):
        own = launcher_words(current)
        words = [basename(token) for token in own]
        for word, reason in _NOT_FORWARDED.items():
            if word in words[:1] or (word in words and words[0] in ("srun", "env", "exec", "nohup", "time", "timeout")):
                if word == "ray" and "start" in words:
                    continue
                if word == "deepspeed" and not _over_ssh([token.text or "" for token in own]):
                    continue
                return reason
        if "env" in words and any(token.text in ("-i", "--ignore-environment", "-") for token in own):
            return "`env -i` clears the environment"
        if any((token.text or "") in ("--cleanenv", "-e", "--containall") for token in own) and (
            {"singularity", "apptainer"} & set(words)
        ):
            return "the container is started with a clean environment"
    return ""
