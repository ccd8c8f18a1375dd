"""argparse, and what is built on it: ConfigArgParse.

https://docs.python.org/3/library/argparse.html: names are taken as they are written, the beginning of a long one will
do where `allow_abbrev` is not switched off, `dest` is the first long name with `_` for `-`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Self

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
    Value,
    texts,
    written,
)
from runbook.program.findings import CommandLine, said
from runbook.program.libraries.introspection import TypeValue

PACKAGES = frozenset({"argparse", "configargparse"})
_MAKE = {
    "argparse.ArgumentParser": "argparse", "configargparse.ArgumentParser": "configargparse",
    "configargparse.ArgParser": "configargparse", "configargparse.get_argument_parser": "configargparse",
    "configargparse.get_arg_parser": "configargparse",
}
_TYPES = {
    "builtins.int": "integer", "builtins.float": "number", "builtins.str": "text", "builtins.bool": "boolean",
    "pathlib.Path": "text", "os.path.abspath": "text", "os.path.expanduser": "text",
}
_GROUPS = frozenset({"add_argument_group", "add_mutually_exclusive_group"})
_KEEPING = frozenset({"parse_known_args", "parse_known_intermixed_args"})
_STRICT = frozenset({"parse_args", "parse_intermixed_args"})
_ADD = frozenset({"add_argument", "add", "add_arg"})
_HELP_LENGTH = 200
_A_PARSER = re.compile(r"(?:^|[._])arg(?:ument)?_?parser$", re.IGNORECASE)


def called(name: str, arguments: Arguments, reader: ReaderFace) -> Value | None:
    library = _MAKE.get(name)
    if library is not None:
        return ArgumentParser.made(arguments, reader, library)
    if name == "deepspeed.add_config_arguments" and arguments.positional:
        return _with_deepspeed(arguments.positional[0])
    if name.endswith("Trainer.add_argparse_args") and "lightning" in name and arguments.positional:
        return _with_lightning(arguments.positional[0], name, arguments)
    return External(name) if name == "argparse.Namespace" else None


def made_elsewhere(name: str, arguments: Arguments, reader: ReaderFace) -> Value | None:
    """A parser that a package of which nothing is read makes (`detectron2.engine.default_argument_parser`)."""
    if not _A_PARSER.search(name) or name.endswith("()"):
        return None
    parser = ArgumentParser.made(arguments, reader)
    parser.line.inherit(name, arguments.file, arguments.line)
    return parser


def _with_deepspeed(given: Value) -> Value | None:
    """What DeepSpeed's launcher hands its programs (deepspeed/__init__.py, `_add_core_arguments`)."""
    parser = native(given)
    if parser is not None:
        for name, kind in _OF_DEEPSPEED.items():
            default = "false" if kind == "flag" else None
            parser.line.add(ProgramOption((name,), name[2:], kind, default, flag_value="true" if default else ""))
    return given if parser is not None else None


def _with_lightning(given: Value, name: str, arguments: Arguments) -> Value | None:
    """The arguments of Lightning's Trainer as options (pytorch_lightning 1.x, `Trainer.add_argparse_args`); those that
    say how much is done in a pass. The others are not told, so that the parser stays open."""
    parser = native(given)
    if parser is not None:
        for option, default in _OF_LIGHTNING.items():
            parser.line.add(ProgramOption((option,), option[2:], "integer", default))
        parser.line.inherit(name, arguments.file, arguments.line)
    return given if parser is not None else None


_OF_LIGHTNING = {"--accumulate_grad_batches": "1"}
"""None is the default from 1.5 on and means one pass, too."""
_OF_DEEPSPEED = {
    "--deepspeed": "flag", "--deepspeed_config": "text", "--deepscale": "flag", "--deepscale_config": "text",
}


@dataclass(slots=True, eq=False)
class Rest(Native):
    """What `parse_known_args` gives: the options, and the words that it did not know (`words`)."""

    of: CommandLine
    words: bool = False


def part_of(value: Value, at: int) -> Value:
    """A part of what a parser gave, unpacked."""
    return Rest(value.of, True) if isinstance(value, Rest) and at == 1 else UNKNOWN


@dataclass(slots=True, eq=False)
class ArgumentParser(Native):
    """A parser, or a group of its options: both add to the same command line."""

    line: CommandLine
    defaults: dict[str, str | None] = field(default_factory=dict)
    under: str = ""
    """The word of the command line behind which its options stand."""

    @classmethod
    def made(cls, arguments: Arguments, reader: ReaderFace, library: str = "argparse") -> Self:
        short = reader.truth(arguments.keywords.get("allow_abbrev", Known(True)))
        line = CommandLine(library, abbreviations=short is not False, file=arguments.file, line=arguments.line)
        reader.findings.made.append(line)
        parser = cls(line)
        parents = arguments.keywords.get("parents")
        for parent in parents.items if isinstance(parents, Many) else []:
            of = native(reader.look_up(parent))
            if of is not None:
                for option in of.line.options:
                    line.add(option)
                line.reasons += of.line.reasons
                line.inherits += of.line.inherits
                parser.defaults |= of.defaults
        if parents is not None and (not isinstance(parents, Many) or not parents.whole):
            line.open(OpenReason.COMPUTED, "parents", arguments.file, arguments.line)
        return parser

    def method(self, name: str, arguments: Arguments, reader: ReaderFace) -> Value:
        if name in _ADD:
            self.add(arguments, reader)
        elif name in _GROUPS:
            return self
        elif name == "set_defaults":
            self._set_defaults(arguments)
        elif name in ("add_subparsers", "add_parser"):
            return self._under(name, arguments, reader)
        elif name in _STRICT or name in _KEEPING:
            return self.parse(arguments, reader, keeps=name in _KEEPING)
        return UNKNOWN

    def add(self, arguments: Arguments, reader: ReaderFace) -> None:
        """`add_argument`. Words without a dash in front stand at a place and are no options."""
        option = option_of(arguments, reader)
        if option is None:
            if len(texts(Many(arguments.positional)) or ()) < len(arguments.positional) or not arguments.whole:
                self.line.open(OpenReason.COMPUTED, "add_argument", arguments.file, arguments.line)
            return
        if option.type != "help":
            given = "default" in arguments.keywords
            default = option.default if given else self.defaults.get(option.dest, option.default)
            self.line.add(replace(option, default=default, conditional=reader.unsure or bool(self.under)))

    def parse(self, arguments: Arguments, reader: ReaderFace, *, keeps: bool) -> Value:
        """The command line is given to it: as such, or what another parser left of it."""
        words = arguments.get("args", 0)
        if (isinstance(words, Known) and words.value is not None) or isinstance(words, Many):
            return UNKNOWN  # words of the program's own
        file, at = arguments.file, arguments.line
        reader.findings.parsed(
            self.line, said(OpenReason.UNKNOWN_KEPT, self.line.library, file, at) if keeps else "", reader.unsure
        )
        if not keeps:
            reader.finish()
        return Rest(self.line) if keeps else UNKNOWN

    def _set_defaults(self, arguments: Arguments) -> None:
        self.defaults |= {name: written(value) for name, value in arguments.keywords.items()}
        self.line.change_defaults(self.defaults)

    def _under(self, name: str, arguments: Arguments, reader: ReaderFace) -> Value:
        if name == "add_subparsers":
            self.line.open(OpenReason.SUBCOMMANDS, "add_subparsers", arguments.file, arguments.line)
            return ArgumentParser(self.line, {}, "subparsers")
        below = ArgumentParser.made(arguments, reader, self.line.library)
        reader.findings.made.remove(below.line)
        for option in below.line.options:
            self.line.add(replace(option, conditional=True))
        return ArgumentParser(self.line, {}, str(arguments.plain("", 0) or "subparser"))


def native(value: Value) -> ArgumentParser | None:
    """The parser that a value is, or that its class is derived from."""
    value = value.native or value if isinstance(value, Instance) else value
    return value if isinstance(value, ArgumentParser) else None


def option_of(arguments: Arguments, reader: ReaderFace) -> ProgramOption | None:
    """What `add_argument` describes; None: nothing that stands under a name, or the name is not known."""
    names = [written(reader.look_up(item)) for item in arguments.positional]
    known = [name for name in names if name is not None and name.startswith("-") and len(name) > 1]
    if not known or len(known) < len(names):
        return None
    known.sort(key=lambda name: not name.startswith("--"))
    given = arguments.plain("dest")
    dest = given if isinstance(given, str) else known[0].lstrip("-").replace("-", "_")
    option = ProgramOption(
        tuple(known), dest, _type(arguments, reader), written(arguments.keywords.get("default")),
        texts(reader.look_up(arguments.keywords["choices"])) or () if "choices" in arguments.keywords else (),
        help_of(arguments.plain("help")), file=arguments.file, line=arguments.line,
    )
    return _acted(option, arguments, reader)


def help_of(text: object) -> str:
    return " ".join(text.split())[:_HELP_LENGTH] if isinstance(text, str) else ""


def _acted(option: ProgramOption, arguments: Arguments, reader: ReaderFace) -> ProgramOption:
    """As its action has it."""
    action = reader.look_up(arguments.keywords.get("action", Known("store")))
    kind = action.value if isinstance(action, Known) else None
    if kind in ("store_true", "store_false"):
        stored = "true" if kind == "store_true" else "false"
        usual = "false" if kind == "store_true" else "true"
        default = option.default if "default" in arguments.keywords else usual
        return replace(option, type="flag", flag_value=stored, default=default)
    if kind in ("store_const", "append_const", "count"):
        return replace(option, type="flag", flag_value=written(arguments.keywords.get("const")) or "")
    if kind in ("append", "extend"):
        return replace(option, type="list")
    if kind in ("help", "version"):
        return replace(option, type="help")
    if isinstance(action, External) and action.name.endswith("BooleanOptionalAction"):
        longs = [name for name in option.names if name.startswith("--")]
        return replace(option, type="flag", flag_value="true", negation=f"--no-{longs[0][2:]}" if longs else "")
    if isinstance(action, ClassValue | External | Function) and "type" not in arguments.keywords:
        return replace(option, type="")
    if option.choices and option.type == "text":
        return replace(option, type="choice")
    return option


def _type(arguments: Arguments, reader: ReaderFace) -> str:
    many = arguments.plain("nargs")
    if many in ("+", "*", "...") or (isinstance(many, int) and many > 1):
        return "list"
    given = reader.look_up(arguments.keywords.get("type", External("builtins.str")))
    given = External(given.name) if isinstance(given, TypeValue) else given
    if isinstance(given, External):
        found = _TYPES.get(given.name, "")
        return found or ("boolean" if "bool" in given.name.lower() else "")
    if isinstance(given, Function) and "bool" in given.name.lower():
        return "boolean"
    default = arguments.keywords.get("default")
    if isinstance(default, Known) and isinstance(default.value, bool):
        return "boolean"
    if isinstance(default, Known) and isinstance(default.value, int | float):
        return "integer" if isinstance(default.value, int) else "number"
    return ""
