"""Libraries that name a nested field by its path: tyro, draccus, pyrallis, jsonargparse; and Fire's parameters.

As their own parsers have it: tyro prints `--model.batch-size`, takes `_` as well, and a boolean is a flag with
`--model.no-x`. draccus and pyrallis take `--model.batch_size` only, a boolean with its value, and `--config_path`.
jsonargparse the same with `--config`. Fire takes either separator and `--nox`; what it does not know ends the program
after the function has run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from runbook.model.program import OpenReason, ProgramOption
from runbook.program.abstract_values import (
    UNKNOWN,
    Arguments,
    ClassValue,
    External,
    Function,
    Instance,
    Known,
    Many,
    Native,
    ReaderFace,
    Table,
    Value,
    written,
)
from runbook.program.findings import CommandLine, said
from runbook.program.libraries.argparse_options import ArgumentParser, help_of
from runbook.program.libraries.option_fields import (
    Field,
    attribute_default,
    fields_of,
    named_classes,
    parameters_of,
)

PACKAGES = frozenset({"tyro", "draccus", "pyrallis", "jsonargparse", "fire", "lightning", "pytorch_lightning"})
_CALLS = {
    "tyro.cli": ("tyro", "f"), "draccus.parse": ("draccus", "config_class"),
    "pyrallis.parse": ("pyrallis", "config_class"),
    "fire.Fire": ("fire", "component"), "fire.core.Fire": ("fire", "component"),
    "jsonargparse.CLI": ("jsonargparse", "components"), "jsonargparse.auto_cli": ("jsonargparse", "components"),
}
_WRAPS = {"draccus.wrap": "draccus", "pyrallis.wrap": "pyrallis", "draccus.wrap()": "draccus"}
_CONFIG = {"draccus": "config_path", "pyrallis": "config_path", "jsonargparse": "config"}
_ADD_CLASSES = frozenset({
    "add_class_arguments", "add_dataclass_arguments", "add_function_arguments", "add_subclass_arguments",
})
_CHOICES = ("ChoiceRegistry", "PluginRegistry")
_MOST_NESTED = 10


def called(name: str, arguments: Arguments, reader: ReaderFace) -> Value | None:
    if name in _CALLS:
        library, keyword = _CALLS[name]
        return _parsed(library, arguments.get(keyword, 0), arguments, reader)
    if name in _WRAPS:
        return Wrap(_WRAPS[name])
    if name in ("jsonargparse.ArgumentParser", "jsonargparse.lightning.LightningArgumentParser"):
        return JsonArgumentParser.made(arguments, reader, "jsonargparse")
    if name.startswith("tyro.extras."):
        line = _line("tyro", arguments, reader)
        line.open(OpenReason.SUBCOMMANDS, name, arguments.file, arguments.line)
        reader.findings.parsed(line, "", reader.unsure)
        return UNKNOWN
    if name.rpartition(".")[2] == "LightningCLI":
        return _lightning(arguments, reader)
    return None


def _line(library: str, arguments: Arguments, reader: ReaderFace) -> CommandLine:
    line = CommandLine(library, file=arguments.file, line=arguments.line)
    reader.findings.made.append(line)
    if library in _CONFIG:
        name = _CONFIG[library]
        line.add(ProgramOption((f"--{name}",), name, "text", file=arguments.file, line=arguments.line))
    return line


def _parsed(library: str, of: Value | None, arguments: Arguments, reader: ReaderFace) -> Value:
    words = reader.look_up(arguments.get("args") or arguments.get("command") or Known(None))
    if isinstance(words, Many) or (isinstance(words, Known) and words.value is not None):
        return UNKNOWN
    line = _line(library, arguments, reader)
    tree = Tree(line, reader)
    tree.take(of, arguments)
    default = arguments.get("default")
    if default is not None and not isinstance(default, Instance):
        tree.forget_defaults()
    rest = reader.truth(arguments.keywords.get("return_unknown_args", Known(False)))
    keeps = said(OpenReason.UNKNOWN_KEPT, library, arguments.file, arguments.line) if rest is not False else tree.keeps
    reader.findings.parsed(line, keeps, reader.unsure)
    if not keeps:
        reader.finish()
    return UNKNOWN


def _lightning(arguments: Arguments, reader: ReaderFace) -> Value:
    line = _line("jsonargparse", arguments, reader)
    line.inherit("lightning.pytorch.Trainer", arguments.file, arguments.line)
    line.open(OpenReason.SUBCOMMANDS, "LightningCLI", arguments.file, arguments.line)
    for place, (keyword, prefix) in enumerate((("model_class", "model"), ("datamodule_class", "data"))):
        of = reader.look_up(arguments.get(keyword, place) or UNKNOWN)
        if isinstance(of, ClassValue):
            Tree(line, reader).parameters(of, f"{prefix}.", arguments)
    reader.findings.parsed(line, "", reader.unsure)
    return JsonArgumentParser(line)


def belongs_to(parser: Value, instance: Instance, arguments: Arguments, reader: ReaderFace) -> None:
    """A class that is derived from LightningCLI: what its `add_arguments_to_parser` adds."""
    adds = reader.attribute(instance, "add_arguments_to_parser")
    if isinstance(parser, JsonArgumentParser) and isinstance(adds, Function):
        reader.call(adds, Arguments([parser], {}, True, arguments.file, arguments.line))


@dataclass(slots=True, eq=False)
class Wrap(Native):
    """`@draccus.wrap()`: the class is that of the function's first parameter."""

    library: str
    function: Function | None = None

    def method(self, name: str, arguments: Arguments, reader: ReaderFace) -> Value:
        if name != "__call__":
            return UNKNOWN
        if self.function is None:
            given = arguments.get("", 0)
            return Wrap(self.library, given) if isinstance(given, Function) else self
        if arguments.positional:  # called with a configuration that is made already
            return UNKNOWN
        fields, _ = parameters_of(self.function, reader)
        return _parsed(self.library, fields[0].shape.nested if fields else None, arguments, reader)


@dataclass(slots=True, eq=False)
class JsonArgumentParser(ArgumentParser):
    def method(self, name: str, arguments: Arguments, reader: ReaderFace) -> Value:
        if name in _ADD_CLASSES:
            prefix = written(arguments.get("nested_key", 1))
            of = reader.look_up(arguments.get("theclass", 0) or UNKNOWN)
            if isinstance(of, ClassValue | Function) and name != "add_subclass_arguments":
                Tree(self.line, reader).parameters(of, f"{prefix}." if prefix else "", arguments)
            else:
                what = of.name if isinstance(of, External) else name
                self.line.inherit(what, arguments.file, arguments.line)
            return UNKNOWN
        return super(JsonArgumentParser, self).method(name, arguments, reader)


@dataclass(slots=True, eq=False)
class Words(Native):
    """Options of any name, as `**` has them. Where they are handed on beside an object, they set what it has."""

    line: CommandLine

    def handed_on(self, arguments: Arguments, reader: ReaderFace) -> None:
        for item in [one for value in arguments.positional for one in named_classes(reader.look_up(value))]:
            value = reader.look_up(item)
            if isinstance(value, Instance):
                below = CommandLine("")
                Tree(below, reader).nested(value.of, "", arguments.file, arguments.line, value)
                for option in below.options:
                    self.line.add(option)


@dataclass(slots=True)
class Tree:
    """Fields as options, nested ones under their path."""

    line: CommandLine
    reader: ReaderFace
    keeps: str = ""

    def take(self, of: Value | None, arguments: Arguments) -> None:
        """A class, a function, or several of them."""
        of = self.reader.look_up(of) if of is not None else None
        several = list(of.items.values()) if isinstance(of, Table) else named_classes(of)
        if of is None or len(several) != 1 or isinstance(of, Table | Instance):
            self.line.open(OpenReason.SUBCOMMANDS, self.line.library, arguments.file, arguments.line)
        for item in several:
            value = self.reader.look_up(item)
            value = value.of if isinstance(value, Instance) else value
            if isinstance(value, Function | ClassValue | External):
                self.of(value, arguments)
            elif len(several) == 1:
                self.line.open(OpenReason.COMPUTED, self.line.library, arguments.file, arguments.line)

    def of(self, value: Function | ClassValue | External, arguments: Arguments) -> None:
        if isinstance(value, Function) or self.line.library == "fire":
            self.parameters(value, "", arguments)
        else:
            self.nested(value, "", arguments.file, arguments.line, None)

    def parameters(self, of: Function | ClassValue | External, prefix: str, arguments: Arguments) -> None:
        """A function's parameters, or those with which an object of a class is made."""
        function = self.reader.attribute(of, "__init__") if isinstance(of, ClassValue) else of
        if isinstance(of, ClassValue) and not isinstance(function, Function):
            self.nested(of, prefix, arguments.file, arguments.line, None)
            return
        if not isinstance(function, Function):
            self.line.inherit(of.name if isinstance(of, External) else "", arguments.file, arguments.line)
            return
        fields, others = parameters_of(function, self.reader)
        if others and self.line.library == "fire":
            words = Words(self.line)
            self.reader.call(function, Arguments([], {"": words}, False, arguments.file, arguments.line))
        if others:
            self.keeps = said(OpenReason.UNKNOWN_KEPT, "**", function.scope.module.path, function.node.lineno)
        if isinstance(of, ClassValue) and self.line.library == "fire":
            self.line.open(OpenReason.SUBCOMMANDS, of.node.name, arguments.file, arguments.line)
        for field in fields:
            self._field(field, prefix, 0, None)

    def nested(self, of: Value, prefix: str, file: str, line: int, made: Value | None, depth: int = 0) -> None:
        found = self.reader.installed(of) if isinstance(of, External) else of
        if not isinstance(found, ClassValue) or depth > _MOST_NESTED:
            self.line.inherit(of.name if isinstance(of, External) else prefix, file, line)
            return
        if any(isinstance(one, External) and one.name.endswith(_CHOICES) for one in self.reader.ancestors(found)):
            self.line.open(OpenReason.SUBCOMMANDS, f"{prefix}type", file, line)
            self.line.add(ProgramOption((f"--{prefix}type",), f"{prefix}type", "choice", file=file, line=line))
        fields, missing = fields_of(found, self.reader)
        for name in missing:
            if not name.endswith(_CHOICES):
                self.line.inherit(name, found.scope.module.path, found.node.lineno)
        for field in fields:
            self._field(field, prefix, depth, made)

    def _field(self, field: Field, prefix: str, depth: int, made: Value | None) -> None:
        given = attribute_default(made, field.name)
        field = replace(field, default=given) if given is not None else field
        shape = field.shape
        if shape.nested is not None and isinstance(shape.nested, ClassValue) and self.line.library != "fire":
            if shape.optional and self.line.library == "tyro":
                self.line.open(OpenReason.SUBCOMMANDS, field.name, field.file, field.line)
            below = f"{prefix}{field.name}."
            self.nested(shape.nested, below, field.file, field.line, field.default, depth + 1)
        elif shape.branches:
            self.line.open(OpenReason.SUBCOMMANDS, field.name, field.file, field.line)
        else:
            self.line.add(replace(self._option(field, prefix), conditional=self.reader.unsure))

    def _option(self, field: Field, prefix: str) -> ProgramOption:
        path = f"{prefix}{field.name}"
        default = written(field.default)
        option = ProgramOption(
            (f"--{path}",), path, field.shape.type, default, field.shape.choices, help_of(field.help),
            file=field.file, line=field.line,
        )
        if not option.type and isinstance(field.default, Known):
            option = replace(option, type=_type_of(field.default))
        library = self.line.library
        boolean = option.type == "boolean"
        if library == "fire":
            return replace(option, negation=f"--no{path}") if boolean else option
        if library != "tyro":
            return option
        names = tuple(dict.fromkeys((f"--{path.replace('_', '-')}", f"--{path}", *field.aliases)))
        option = replace(option, names=names)
        if not boolean or field.default is None:
            return option
        front, _, last = names[0][2:].rpartition(".")
        negation = f"--{front}.no-{last}" if front else f"--no-{last}"
        return replace(option, type="flag", flag_value="true", negation=negation)

    def forget_defaults(self) -> None:
        """A configuration that is not known takes the place of the classes' own defaults."""
        self.line.change_defaults(dict.fromkeys((option.dest for option in self.line.options), None))


def _type_of(default: Known) -> str:
    value = default.value
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) else "number"
    return "text" if isinstance(value, str) else ""
