"""click (and rich-click) and typer: options by decorators, and by a function's parameters.

https://click.palletsprojects.com/options/, https://typer.tiangolo.com/: click takes names as they are written, typer
makes `--batch-size` of `batch_size`; booleans of typer are flags with `--no-x`; an unknown option ends the program
unless `ignore_unknown_options` is set. More than one command: which options there are depends on the command's name.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace

from runbook.model.program import OpenReason, ProgramOption
from runbook.program.abstract_values import (
    UNKNOWN,
    Arguments,
    External,
    Function,
    Known,
    Many,
    Native,
    ReaderFace,
    Table,
    Value,
    texts,
    written,
)
from runbook.program.findings import CommandLine, said
from runbook.program.libraries.argparse_options import help_of
from runbook.program.libraries.option_fields import Field, parameters_of

PACKAGES = frozenset({"click", "rich_click", "typer", "asyncclick"})
_TYPES = {
    "int": "integer", "INT": "integer", "IntRange": "integer", "float": "number", "FLOAT": "number",
    "FloatRange": "number", "str": "text", "STRING": "text", "Path": "text", "File": "text",
    "bool": "boolean", "BOOL": "boolean",
}


def called(name: str, arguments: Arguments, reader: ReaderFace) -> Value | None:
    plain = name.removeprefix("@")
    root, _, last = plain.partition(".")
    if root in ("click", "rich_click", "asyncclick"):
        last = last.rpartition(".")[2]
        if last in ("command", "group"):
            made = Making(arguments, group=last == "group")
            return made.method("__call__", arguments, reader) if name.startswith("@") else made
        if last == "option":
            return Option(option_of(arguments, reader), arguments)
        if last == "Choice":
            return Choice(texts(reader.look_up(arguments.get("choices", 0) or UNKNOWN)) or ())
        return Option(None, arguments) if last in ("argument", "version_option", "pass_context") else None
    if plain == "typer.Typer":
        return Command(CommandLine("typer", file=arguments.file, line=arguments.line), group=True, settings=arguments)
    if plain == "typer.run":
        command = Command(CommandLine("typer", file=arguments.file, line=arguments.line))
        command.take(arguments.get("function", 0), reader)
        return command.method("__call__", arguments, reader)
    if plain in ("typer.Option", "typer.Argument"):
        return TyperDefault(arguments, option=last == "Option")
    return None


@dataclass(slots=True, eq=False)
class TyperDefault(Native):
    """`typer.Option(4, "--batch-size", "-b")` as a parameter's default or annotation."""

    given: Arguments
    option: bool


@dataclass(slots=True, eq=False)
class Option(Native):
    """A decorator; over a function, and over others of its kind."""

    option: ProgramOption | None
    given: Arguments

    def method(self, name: str, arguments: Arguments, reader: ReaderFace) -> Value:
        below = arguments.get("", 0)
        if name != "__call__" or below is None:
            return UNKNOWN
        if isinstance(below, Command):  # above `@click.command()`, as some write it
            below.add(self)
            return below
        return Stack([self, *below.options], below.function) if isinstance(below, Stack) else Stack([self], below)


@dataclass(slots=True, eq=False)
class Stack(Native):
    """A function with options over it, no command yet."""

    options: list[Option]
    function: Value

    def method(self, name: str, arguments: Arguments, reader: ReaderFace) -> Value:
        return reader.call(self.function, arguments) if name == "__call__" else UNKNOWN


@dataclass(slots=True, eq=False)
class Making(Native):
    """`@click.command(…)`, `@group.command(…)`."""

    given: Arguments
    group: bool
    of: Command | None = None

    def method(self, name: str, arguments: Arguments, reader: ReaderFace) -> Value:
        below = arguments.get("", 0)
        if name != "__call__" or below is None:
            return UNKNOWN
        library = self.of.line.library if self.of is not None else "click"
        line = CommandLine(library, file=self.given.file, line=self.given.line)
        command = Command(line, self.group, self.given)
        if library == "typer":
            command.take(below, reader)
        for option in below.options if isinstance(below, Stack) else []:
            command.add(option)
        if self.of is not None:
            self.of.commands.append(command)
        else:
            reader.findings.made.append(line)
        return command


@dataclass(slots=True, eq=False)
class Command(Native):
    line: CommandLine
    group: bool = False
    settings: Arguments | None = None
    commands: list[Command] = field(default_factory=list)
    takes_all: bool = False
    """It has an argument for any number of words."""

    def add(self, item: Option) -> None:
        self.takes_all = self.takes_all or item.given.plain("nargs") == -1
        if item.option is not None:
            self.line.add(item.option)
        elif texts(Many(item.given.positional)) is None:
            self.line.open(OpenReason.COMPUTED, "option", item.given.file, item.given.line)

    def method(self, name: str, arguments: Arguments, reader: ReaderFace) -> Value:
        if name in ("command", "group", "callback"):
            if name == "callback" and self.line.library != "typer":
                return UNKNOWN
            return Making(arguments, name == "group", self)
        if name in ("add_command", "add_typer"):
            below = reader.look_up(arguments.get("cmd", 0) or UNKNOWN)
            if isinstance(below, Command):
                self.commands.append(below)
            return UNKNOWN
        if name in ("__call__", "main"):
            return self._started(arguments, reader)
        return UNKNOWN

    def _started(self, arguments: Arguments, reader: ReaderFace) -> Value:
        if arguments.keywords.get("args") is not None or (arguments.positional and self.line.library == "click"):
            return UNKNOWN
        findings, line = reader.findings, self.line
        if len(self.commands) == 1 and line.library == "typer":
            line = self.commands[0].line
            self.settings = self.commands[0].settings
        elif self.group or self.commands:
            line.open(OpenReason.SUBCOMMANDS, line.library, line.file, line.line)
            for command in self.commands:
                for option in command.line.options:
                    line.add(replace(option, conditional=True))
        keeps = ""
        if self._keeps(reader):
            keeps = said(OpenReason.UNKNOWN_KEPT, line.library, line.file, line.line)
        findings.parsed(line, keeps, reader.unsure)
        reader.finish()
        return UNKNOWN

    def _keeps(self, reader: ReaderFace) -> bool:
        """An option that is not known is an argument then, and needs a place to go."""
        settings = self.settings.keywords.get("context_settings") if self.settings is not None else None
        if settings is not None and not (isinstance(settings, Table) and settings.whole):
            return True
        given = settings.items if isinstance(settings, Table) else {}
        ignores, extra = (
            reader.truth(given.get(name, Known(False))) is not False
            for name in ("ignore_unknown_options", "allow_extra_args")
        )
        return ignores and (extra or self.takes_all)

    def take(self, function: Value | None, reader: ReaderFace) -> None:
        """typer: a function's parameters."""
        value = reader.look_up(function) if function is not None else UNKNOWN
        if not isinstance(value, Function):
            self.line.open(OpenReason.COMPUTED, "typer", self.line.file, self.line.line)
            return
        fields, _ = parameters_of(value, reader)
        nodes = {item.arg: item.annotation for item in (*value.node.args.args, *value.node.args.kwonlyargs)}
        for one in fields:
            about = one.default if isinstance(one.default, TyperDefault) else _annotated(nodes[one.name], value, reader)
            default = one.default
            if isinstance(default, TyperDefault):
                default = default.given.get("default", 0)
                default = None if default is UNKNOWN else default
            if about.option if about is not None else default is not None:
                self.line.add(_typer_option(replace(one, default=default), about))


def _annotated(node: ast.expr | None, function: Function, reader: ReaderFace) -> TyperDefault | None:
    """`Annotated[int, typer.Option(…)]`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        for part in node.slice.elts[1:]:
            value = reader.look_up(reader.evaluate(part, function.scope))
            if isinstance(value, TyperDefault):
                # Here nothing but names stands at places: the default is the parameter's own.
                value.given.positional.insert(0, UNKNOWN)
                return value
    return None


def _typer_option(one: Field, about: TyperDefault | None) -> ProgramOption:
    given = about.given if about is not None else None
    names = [name for name in texts(Many(given.positional[1:])) or () if name.startswith("-")] if given else []
    longs, negation = _divided(names or [f"--{one.name.strip('_').replace('_', '-')}"])
    longs.sort(key=lambda name: not name.startswith("--"))
    option = ProgramOption(
        tuple(longs), one.name, one.shape.type, written(one.default), one.shape.choices,
        help_of(given.plain("help") if given is not None else ""), file=one.file, line=one.line,
    )
    if option.type == "boolean":
        usual = "" if names else f"--no-{longs[0][2:]}"
        option = replace(option, type="flag", flag_value="true", negation=negation or usual)
    return option


def option_of(arguments: Arguments, reader: ReaderFace) -> ProgramOption | None:
    """What `click.option` describes; None: its name is not known."""
    names = texts(Many(arguments.positional))
    if not names or not any(name.startswith("-") for name in names):
        return None
    longs, negation = _divided([name for name in names if name.startswith("-")])
    longs.sort(key=lambda name: not name.startswith("--"))
    own = next((name for name in names if not name.startswith("-")), longs[0].lstrip("-").replace("-", "_").lower())
    default = arguments.keywords.get("default")
    kind, choices = _type(arguments.keywords.get("type"), default, reader)
    option = ProgramOption(
        tuple(longs), own, kind, written(default), choices, help_of(arguments.plain("help")), file=arguments.file,
        line=arguments.line, conditional=reader.unsure,
    )
    flag = reader.truth(arguments.keywords.get("is_flag", Known(False)))
    if negation or flag or arguments.plain("count"):
        stored = written(arguments.keywords.get("flag_value")) or "true"
        return replace(option, type="flag", flag_value=stored, negation=negation, default=option.default or "false")
    many = arguments.plain("nargs")
    if arguments.plain("multiple") or (isinstance(many, int) and many != 1):
        return replace(option, type="list")
    return option


def _divided(names: list[str]) -> tuple[list[str], str]:
    """`--x/--no-x`: the names that switch on, and the first that switches off."""
    on = [name.partition("/")[0].strip() for name in names]
    off = [name.partition("/")[2].strip() for name in names if "/" in name]
    return on, next((name for name in off if name.startswith("--")), off[0] if off else "")


def _type(given: Value | None, default: Value | None, reader: ReaderFace) -> tuple[str, tuple[str, ...]]:
    value = reader.look_up(given) if given is not None else None
    if isinstance(value, Choice):
        return "choice", value.choices
    if isinstance(value, External):
        return _TYPES.get(value.name.removesuffix("()").rpartition(".")[2], ""), ()
    plain = default.value if isinstance(default, Known) else None
    if isinstance(plain, bool):
        return "boolean", ()
    if isinstance(plain, int | float):
        return ("integer" if isinstance(plain, int) else "number"), ()
    return ("text" if value is None else ""), ()


@dataclass(frozen=True, slots=True)
class Choice(Native):
    choices: tuple[str, ...]
