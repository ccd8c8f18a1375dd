"""transformers' HfArgumentParser, TRL's TrlParser, simple_parsing and Tap: argparse with options made of dataclasses.

transformers/hf_argparser.py: `--a_b` and, since 4.44, `--a-b`; a boolean takes a value or none; one that is on has
`--no_a_b`. simple_parsing: fields of nested classes stand beside the others, a boolean has `--noa_b`. Tap: a boolean
is a flag that turns its default round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from runbook.model.program import OpenReason, ProgramOption
from runbook.program.abstract_values import (
    UNKNOWN,
    Arguments,
    ClassValue,
    External,
    Instance,
    Known,
    Many,
    ReaderFace,
    Value,
    written,
)
from runbook.program.libraries.argparse_options import ArgumentParser, help_of
from runbook.program.libraries.option_fields import Field, attribute_default, fields_of, named_classes

PACKAGES = frozenset({"simple_parsing", "tap"})
_MOST_NESTED = 8


def called(name: str, arguments: Arguments, reader: ReaderFace) -> Value | None:
    last = name.rpartition(".")[2]
    if last in ("HfArgumentParser", "TrlParser"):
        return _of_classes(name, arguments, reader)
    if name in ("simple_parsing.parse", "simple_parsing.parse_known_args"):
        parser = DataclassParser.made(arguments, reader, "simple_parsing")
        parser.take(arguments.get("config_class", 0), reader, arguments)
        words = {key: value for key, value in arguments.keywords.items() if key == "args"}
        given = Arguments([], words, True, arguments.file, arguments.line)
        parser.parse(given, reader, keeps=last == "parse_known_args")
        return UNKNOWN
    if name == "simple_parsing.ArgumentParser":
        return DataclassParser.made(arguments, reader, "simple_parsing")
    if name in ("tap.Tap", "tap.TypedArgs"):
        return DataclassParser.made(arguments, reader, "tap")
    return None


def belongs_to(parser: Value, instance: Instance, arguments: Arguments, reader: ReaderFace) -> None:
    """An object of a class that is derived from a parser: of Tap's, its fields are options."""
    if isinstance(parser, DataclassParser) and parser.line.library == "tap":
        parser.take(Many([instance.of]), reader, arguments)


def _of_classes(name: str, arguments: Arguments, reader: ReaderFace) -> Value:
    parser = DataclassParser.made(arguments, reader, "hf_argument_parser")
    if name.endswith("TrlParser"):
        parser.line.add(ProgramOption(("--config",), "config", "text", file=arguments.file, line=arguments.line))
    parser.take(arguments.get("dataclass_types", 0), reader, arguments)
    return parser


@dataclass(slots=True, eq=False)
class DataclassParser(ArgumentParser):
    """`line.library` says whose rules of naming hold."""

    def method(self, name: str, arguments: Arguments, reader: ReaderFace) -> Value:
        if name in ("parse_args_into_dataclasses", "parse_args_and_config"):
            place = 1 if name.endswith("classes") else 2
            rest = reader.truth(arguments.get("return_remaining_strings", place) or Known(False))
            unknown = reader.truth(arguments.keywords.get("fail_with_unknown_args", Known(True)))
            words = {key: value for key, value in arguments.keywords.items() if key == "args"}
            given = Arguments(arguments.positional[:1], words, True, arguments.file, arguments.line)
            self.parse(given, reader, keeps=rest is not False or unknown is False)
            return UNKNOWN
        if name == "add_arguments":
            self.take(arguments.get("dataclass", 0), reader, arguments)
            return UNKNOWN
        return super(DataclassParser, self).method(name, arguments, reader)

    def take(self, classes: Value | None, reader: ReaderFace, arguments: Arguments) -> None:
        every = named_classes(reader.look_up(classes) if classes is not None else None)
        if not every and classes is not None and reader.truth(classes) is not False:
            self.line.open(OpenReason.COMPUTED, "dataclass", arguments.file, arguments.line)
        for item in every:
            self._take(reader.look_up(item), reader, arguments, 0)

    def _take(self, of: Value, reader: ReaderFace, arguments: Arguments, depth: int, made: Value | None = None) -> None:
        found = reader.installed(of) if isinstance(of, External) else of
        if not isinstance(found, ClassValue):
            if isinstance(of, External):
                self.line.inherit(of.name, arguments.file, arguments.line)
            else:
                self.line.open(OpenReason.COMPUTED, "dataclass", arguments.file, arguments.line)
            return
        fields, missing = fields_of(found, reader)
        for name in missing:
            self.line.inherit(name, found.scope.module.path, found.node.lineno)
        for field in fields:
            given = attribute_default(made, field.name)
            field = replace(field, default=given) if given is not None else field
            nested = field.shape.nested
            if nested is not None and self.line.library == "simple_parsing" and depth < _MOST_NESTED:
                self._take(nested, reader, arguments, depth + 1, field.default)
            elif field.shape.branches:
                self.line.open(OpenReason.SUBCOMMANDS, field.name, field.file, field.line)
            else:
                self.line.add(replace(self._option(field), conditional=reader.unsure))

    def _option(self, field: Field) -> ProgramOption:
        default = written(field.default)
        option = ProgramOption(
            (f"--{field.name}",), field.name, field.shape.type, default, field.shape.choices, help_of(field.help),
            file=field.file, line=field.line,
        )
        boolean = field.shape.type == "boolean"
        if self.line.library == "tap":
            stored = "false" if default == "true" else "true"
            return replace(option, type="flag", flag_value=stored) if boolean else option
        if self.line.library == "simple_parsing":
            return replace(option, negation=f"--no{field.name}") if boolean else option
        names = list(option.names)
        if "_" in field.name:
            names.append(f"--{field.name.replace('_', '-')}")
        option = replace(option, names=tuple(dict.fromkeys((*names, *field.aliases))))
        if not boolean:
            return option
        if field.default is None:
            return option if field.shape.optional else replace(option, default="false")
        return replace(option, negation=f"--no_{field.name}") if default == "true" else option
