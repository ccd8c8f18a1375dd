"""The libraries that read command lines: what their functions, classes and decorators do to a program's options.

`called` and `decorated` are asked by name; None: none of the libraries here has it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from runbook.model.program import OpenReason
from runbook.program.abstract_values import (
    Arguments,
    External,
    Function,
    Instance,
    Method,
    Native,
    ReaderFace,
    Scope,
    Value,
)
from runbook.program.libraries import (
    argparse_options,
    click_options,
    hf_argument_parser,
    introspection,
    nested_fields,
    own_reading,
)

_CALLED: tuple[Callable[[str, Arguments, ReaderFace], Value | None], ...] = (
    argparse_options.called, hf_argument_parser.called, nested_fields.called, own_reading.called, click_options.called,
    introspection.called,
)
PACKAGES = (
    argparse_options.PACKAGES | hf_argument_parser.PACKAGES | nested_fields.PACKAGES | own_reading.PACKAGES
    | click_options.PACKAGES
)
"""Packages whose own source is never walked through."""
_HARMLESS = frozenset({
    "argcomplete.autocomplete", "copy.deepcopy", "copy.copy", "logging.info", "pprint.pprint", "warnings.warn",
})


def called(name: str, arguments: Arguments, reader: ReaderFace) -> Value | None:
    """What a call of something of a package gives."""
    for ask in _CALLED:
        found = ask(name, arguments, reader)
        if found is not None:
            return found
    made = argparse_options.made_elsewhere(name, arguments, reader)
    if made is not None:
        return made
    first = arguments.positional[0] if arguments.positional else None
    return first if name in _HARMLESS and isinstance(first, Native) else None


def decorated(by: Value, value: Value, arguments: Arguments, reader: ReaderFace) -> Value | None:
    """What a decorator makes of a function or class."""
    if isinstance(by, Native):
        return by.method("__call__", arguments, reader)
    return called(f"@{by.name}", arguments, reader) if isinstance(by, External) else None


def belongs_to(parser: Native, instance: Instance, arguments: Arguments, reader: ReaderFace) -> None:
    """What a class of the program adds to the parser that it is derived from."""
    hf_argument_parser.belongs_to(parser, instance, arguments, reader)
    nested_fields.belongs_to(parser, instance, arguments, reader)


def executed(node: ast.Call, scope: Scope, reader: ReaderFace) -> None:
    """`exec(…)`."""
    own_reading.variables(node, scope, reader)


def handed_on(arguments: Arguments, reader: ReaderFace) -> None:
    """A call that is given options of any name (`**`)."""
    words = arguments.keywords.get("")
    if isinstance(words, nested_fields.Words):
        words.handed_on(arguments, reader)


def part_of(value: Value, at: int) -> Value:
    return argparse_options.part_of(value, at)


def parser_for(function: Function, name: str, arguments: Arguments, reader: ReaderFace) -> Native | None:
    """The parser that a function not read hands to one of the program's, where that takes one."""
    every = function.node.args.args
    own = every[1:] if function.bound is not None else every
    if not own or "parser" not in own[0].arg or not name:
        return None
    parser = argparse_options.ArgumentParser.made(arguments, reader)
    parser.line.inherit(name, arguments.file, arguments.line)
    return parser


def handed_over(value: Value, name: str, arguments: Arguments) -> None:
    """A parser, or what adds to one, is given to a function whose source was not had (`name` empty: nor its name)."""
    value = value.of if isinstance(value, Method) else value
    parser = argparse_options.native(value)
    if parser is None or name in _HARMLESS:
        return
    if name:
        parser.line.inherit(name, arguments.file, arguments.line)
    else:
        parser.line.open(OpenReason.COMPUTED, "parser", arguments.file, arguments.line)
