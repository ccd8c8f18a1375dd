"""Hydra and OmegaConf, absl's flags and those like them, and programs that take their own variables as options.

Hydra: keys without dashes, in the file that `config_path` and `config_name` name. absl: one dash or two, `--nox` for
booleans, an unknown flag ends the program at `app.run`; TensorFlow's own `app.run` keeps them. nanoGPT's way:
`exec(open("configurator.py").read())` sets those variables of the module that are numbers, truths or texts.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from runbook.model.program import OpenReason, ProgramOption
from runbook.program.abstract_values import (
    UNKNOWN,
    Arguments,
    ClassValue,
    External,
    Function,
    Instance,
    Known,
    Native,
    ReaderFace,
    Scope,
    Value,
    texts,
    written,
)
from runbook.program.findings import CommandLine, said
from runbook.program.libraries.argparse_options import help_of
from runbook.program.libraries.nested_fields import Tree
from runbook.program.libraries.option_fields import shape_of

PACKAGES = frozenset({"hydra", "omegaconf", "absl", "gflags", "ml_collections", "tensorflow"})
_FLAGS = {
    "string": "text", "integer": "integer", "float": "number", "bool": "boolean", "boolean": "boolean",
    "enum": "choice", "enum_class": "choice", "list": "list", "spaceseplist": "list", "multi_string": "list",
    "multi_integer": "list", "multi_float": "list",
    "multi_enum": "list", "config_file": "text",
}
_DEFINE = "DEFINE_"


def called(name: str, arguments: Arguments, reader: ReaderFace) -> Value | None:
    last = name.rpartition(".")[2]
    if last.startswith(_DEFINE):
        return _define(last.removeprefix(_DEFINE), arguments, reader)
    if name == "hydra.main":
        return HydraMain(arguments)
    if name in ("hydra.initialize", "hydra.compose", "hydra.initialize_config_dir", "hydra.initialize_config_module"):
        return _composed(arguments, reader)
    if last == "store" and "ConfigStore" in name:
        return _stored(arguments, reader)
    if name == "omegaconf.OmegaConf.from_cli" or (name.endswith(".from_dotlist") and reader.findings.own_reading):
        return _from_cli(arguments, reader)
    if name == "omegaconf.OmegaConf.structured":
        _schema_line(reader, arguments.get("obj", 0) or UNKNOWN)
        return External("omegaconf.OmegaConf()")
    if name == "absl.app.run":
        return _absl_run(arguments, reader)
    if name in ("gflags.FLAGS", "absl.flags.FLAGS", "absl.flags.FLAGS.parse_flags_with_usage"):
        return _flags_parsed(arguments, reader, keeps=reader.truth(arguments.get("known_only") or Known(False)) is True)
    if name.startswith("tensorflow.") and name.endswith("app.run"):
        return _flags_parsed(arguments, reader, keeps=True)
    return None


def variables(node: ast.Call, scope: Scope, reader: ReaderFace) -> None:
    """`exec` of a file that reads the command line into the module's variables."""
    path = next((item.value for item in ast.walk(node) if isinstance(item, ast.Constant) and isinstance(item.value, str)
                 and item.value.endswith(".py")), None)
    if path is None:
        return
    here, at = scope.module.path, node.lineno
    line = CommandLine("globals", file=here, line=at)
    sets = reader.file_says(path, here)
    if sets is None:
        line.open(OpenReason.UNREADABLE, path, here, at)
    elif "argv" not in sets:
        return
    reader.findings.made.append(line)
    # One that runs a file named on the command line (nanoGPT's `config/x.py`) takes the values from there.
    certain = sets is not None and "exec(" not in sets
    for name, value in scope.names.items():
        plain = isinstance(value, Known) and isinstance(value.value, str | int | float)
        if not name.startswith("_") and (plain or value is UNKNOWN):
            kind = _kind(value.value) if isinstance(value, Known) else ""
            default = written(value) if certain else None
            line.add(ProgramOption((f"--{name}",), name, kind, default, file=here, line=at, joined=True))
    keeps = "" if sets is None or "raise" in sets else said(OpenReason.UNKNOWN_KEPT, path, here, at)
    reader.findings.parsed(line, keeps, reader.unsure)
    reader.finish()


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "integer" if isinstance(value, int) else "number" if isinstance(value, float) else "text"


@dataclass(slots=True, eq=False)
class HydraMain(Native):
    """`@hydra.main(config_path=…, config_name=…)`, and the function under it."""

    given: Arguments
    function: Value | None = None

    def method(self, name: str, arguments: Arguments, reader: ReaderFace) -> Value:
        if name != "__call__":
            return UNKNOWN
        if self.function is None:
            return HydraMain(self.given, arguments.get("", 0) or UNKNOWN)
        file, at = self.given.file, self.given.line
        line = CommandLine("hydra", file=file, line=at)
        config = config_file(self.given)
        if config:
            line.config.append(config)
        line.open(OpenReason.CONFIGURATION, config, file, at)
        if isinstance(self.function, Function):
            of = annotated(self.function, 0, reader)
            if of is not None:
                schema(of, "", line, reader)
        reader.findings.made.append(line)
        reader.findings.parsed(line, "", reader.unsure)
        reader.finish()
        return UNKNOWN


def config_file(given: Arguments) -> str:
    """The primary configuration, beside the file that names it; empty: none, or its name is not known."""
    folder, name = given.plain("config_path", 0), given.plain("config_name", 1)
    if not isinstance(name, str):
        return ""
    file = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    if isinstance(folder, str) and folder.startswith("pkg://"):
        return f"{folder}/{file}"
    parts: list[str] = []
    path = PurePosixPath(given.file).parent / (folder if isinstance(folder, str) else "") / file
    for part in path.parts:
        if part == ".." and parts and parts[-1] not in ("..", "/"):
            parts.pop()
        else:
            parts.append(part)
    return str(PurePosixPath(*parts))


def _composed(arguments: Arguments, reader: ReaderFace) -> Value:
    line = _shared("hydra", arguments, reader)
    config = config_file(arguments)
    if config:
        line.config.append(config)
    line.open(OpenReason.CONFIGURATION, config, arguments.file, arguments.line)
    reader.findings.parsed(line, "", True)
    return UNKNOWN


def _stored(arguments: Arguments, reader: ReaderFace) -> Value:
    group = arguments.plain("group")
    prefix = f"{str(group).replace('/', '.')}." if isinstance(group, str) else ""
    _schema_line(reader, arguments.get("node", 1) or UNKNOWN, prefix)
    return UNKNOWN


def _schema_line(reader: ReaderFace, of: Value, prefix: str = "") -> None:
    """A class that is some configuration's schema; it counts where Hydra or OmegaConf reads the command line."""
    line = reader.findings.schemas
    of = reader.look_up(of)
    if isinstance(of, ClassValue | Instance):
        schema(of, prefix, line, reader)


def _from_cli(arguments: Arguments, reader: ReaderFace) -> Value:
    line = _shared("omegaconf", arguments, reader)
    line.open(OpenReason.CONFIGURATION, "", arguments.file, arguments.line)
    reader.findings.parsed(line, "", True)
    return UNKNOWN


def _shared(library: str, arguments: Arguments, reader: ReaderFace) -> CommandLine:
    """A library's one command line, to which every module of the program adds."""
    if library not in reader.findings.shared:
        line = CommandLine(library, file=arguments.file, line=arguments.line)
        reader.findings.shared[library] = line
        reader.findings.made.append(line)
    return reader.findings.shared[library]


def _define(kind: str, arguments: Arguments, reader: ReaderFace) -> Value:
    line = _shared("absl", arguments, reader)
    name = arguments.plain("name", 0)
    if not isinstance(name, str):
        line.open(OpenReason.COMPUTED, _DEFINE + kind, arguments.file, arguments.line)
        return UNKNOWN
    option = ProgramOption(
        (f"--{name}",), name, _FLAGS.get(kind, ""), written(arguments.get("default", 1)), (),
        help_of(arguments.plain("help", 3 if kind.startswith("enum") else 2)), file=arguments.file, line=arguments.line,
        conditional=reader.unsure,
    )
    if kind == "enum":
        option = replace(option, choices=texts(arguments.get("enum_values", 2)) or ())
    if kind in ("bool", "boolean"):
        option = replace(option, negation=f"--no{name}")
    if kind.startswith("config"):
        line.open(OpenReason.CONFIGURATION, name, arguments.file, arguments.line)
        if option.default and kind == "config_file":
            line.config.append(option.default)
    line.add(option)
    short = arguments.plain("short_name")
    if isinstance(short, str):
        line.options[-1] = replace(line.options[-1], names=(*line.options[-1].names, f"-{short}"))
    return UNKNOWN


def _absl_run(arguments: Arguments, reader: ReaderFace) -> Value:
    """Flags are taken out of the words; `main` is given the others."""
    reader.start_imports()
    line = _shared("absl", arguments, reader)
    reader.findings.parsed(line, "", reader.unsure)
    main = reader.look_up(arguments.get("main", 0) or UNKNOWN)
    before, reader.findings.own_reading = reader.findings.own_reading, ""
    if isinstance(main, Function):
        reader.call(main, Arguments([External("sys.argv")], {}, True, arguments.file, arguments.line))
    if reader.findings.own_reading:
        line.reasons.append(reader.findings.own_reading)
    reader.findings.own_reading = reader.findings.own_reading or before
    reader.finish()
    return UNKNOWN


def _flags_parsed(arguments: Arguments, reader: ReaderFace, *, keeps: bool) -> Value:
    reader.start_imports()
    line = _shared("absl", arguments, reader)
    file, at = arguments.file, arguments.line
    reader.findings.parsed(line, said(OpenReason.UNKNOWN_KEPT, "absl", file, at) if keeps else "", reader.unsure)
    reader.finish()
    return UNKNOWN


def schema(of: Value, prefix: str, line: CommandLine, reader: ReaderFace) -> None:
    """The keys of a class that is a configuration's schema (OmegaConf), without dashes."""
    found = of.of if isinstance(of, Instance) else of
    if not isinstance(found, ClassValue):
        if isinstance(found, External):
            line.inherit(found.name, line.file, line.line)
        return
    below = CommandLine("schema")
    made = of if isinstance(of, Instance) else None
    Tree(below, reader).nested(found, prefix, found.scope.module.path, found.node.lineno, made)
    line.inherits += below.inherits
    line.reasons += below.reasons
    for option in below.options:
        line.add(replace(option, names=(option.dest,)))


def annotated(function: Function, place: int, reader: ReaderFace) -> Value | None:
    """The class that a function's parameter is said to be of."""
    every = function.node.args.args
    if len(every) <= place:
        return None
    nested = shape_of(every[place].annotation, function.scope, reader).nested
    return nested if isinstance(nested, ClassValue) else None
