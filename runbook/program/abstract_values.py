"""What is known of a value without running the program."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runbook.program.findings import Findings

Plain = str | int | float | bool | bytes | None
MOST_ITEMS = 2_000
MOST_TEXT = 20_000


class Value:
    """Anything; by itself: nothing is known of it."""

    __slots__ = ()


UNKNOWN = Value()


@dataclass(frozen=True, slots=True)
class Known(Value):
    value: Plain


@dataclass(slots=True, eq=False)
class Many(Value):
    """A list, tuple or set; `whole`: these are all its items."""

    items: list[Value]
    whole: bool = True


@dataclass(slots=True, eq=False)
class Table(Value):
    """A dictionary."""

    items: dict[Plain, Value]
    whole: bool = True


@dataclass(frozen=True, slots=True)
class External(Value):
    """Something of a package whose source is not read, by its full name; `()` behind what a call gives."""

    name: str


@dataclass(slots=True, eq=False)
class Scope:
    """Names of a module, a class or a call."""

    module: Module
    names: dict[str, Value] = field(default_factory=dict)
    outer: Scope | None = None
    external_stars: list[str] = field(default_factory=list)
    """Modules whose source is not read and of which all names were imported."""
    is_class: bool = False


@dataclass(slots=True, eq=False)
class Module(Value):
    """A file of source. Its statements are run when a name of it is first asked for."""

    path: str
    tree: ast.Module
    scope: Scope = field(init=False)
    started: bool = False

    def __post_init__(self) -> None:
        self.scope = Scope(self)


@dataclass(frozen=True, slots=True)
class ModuleName(Value):
    """An imported module, not yet looked for. `folder`: of a relative import."""

    dotted: str
    folder: str | None
    by: str
    """The file that imports it."""


@dataclass(frozen=True, slots=True)
class Imported(Value):
    """`from module import name`, not yet looked for."""

    module: ModuleName
    name: str


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(slots=True, eq=False)
class Function(Value):
    node: FunctionNode
    scope: Scope
    bound: Value | None = None
    owner: ClassValue | None = None
    decorators: tuple[Value, ...] = ()
    partial: Arguments | None = None

    @property
    def name(self) -> str:
        return "" if isinstance(self.node, ast.Lambda) else self.node.name


@dataclass(slots=True, eq=False)
class ClassValue(Value):
    node: ast.ClassDef
    scope: Scope
    """Of its own names; its `outer` is where it stands."""
    bases: tuple[Value, ...] = ()
    decorators: tuple[Value, ...] = ()


@dataclass(slots=True, eq=False)
class Instance(Value):
    """An object of a class of the program; `native`: what it is of a library's class that its class is derived from."""

    of: ClassValue
    attributes: dict[str, Value] = field(default_factory=dict)
    native: Native | None = None


@dataclass(frozen=True, slots=True)
class Super(Value):
    instance: Value
    above: ClassValue


@dataclass(slots=True, eq=False)
class Arguments:
    """Of a call. `whole`: no `*` or `**` of which the content is not known."""

    positional: list[Value]
    keywords: dict[str, Value]
    whole: bool
    file: str
    line: int

    def get(self, name: str, place: int | None = None) -> Value | None:
        """By keyword, or at its place among the others."""
        if name in self.keywords:
            return self.keywords[name]
        return self.positional[place] if place is not None and place < len(self.positional) else None

    def plain(self, name: str, place: int | None = None) -> Plain:
        """Its value where that is known, else None."""
        value = self.get(name, place)
        return value.value if isinstance(value, Known) else None

    def every(self) -> list[Value]:
        return [*self.positional, *self.keywords.values()]


class Native(Value):
    """An object of a library that this room knows: a parser, a group of options, a command."""

    __slots__ = ()

    def method(self, name: str, arguments: Arguments, reader: ReaderFace) -> Value:
        """What a call of a method does."""
        return UNKNOWN

    def attribute(self, name: str) -> Value | None:
        """None: it is a method, or not known."""
        return None


@dataclass(frozen=True, slots=True)
class Method(Value):
    of: Value
    name: str


class ReaderFace(Protocol):
    """What a library's module may ask of the reader that walks through the program."""

    findings: Findings

    def truth(self, value: Value) -> bool | None: ...
    def call(self, function: Value, arguments: Arguments) -> Value: ...
    def look_up(self, value: Value) -> Value: ...
    def attribute(self, value: Value, name: str) -> Value: ...
    def evaluate(self, node: ast.expr, scope: Scope) -> Value: ...
    def ancestors(self, value: Value) -> Sequence[Value]: ...
    def installed(self, value: Value) -> Value: ...
    def start_imports(self) -> None: ...
    def file_says(self, path: str, by: str) -> str | None: ...
    def finish(self) -> None: ...
    @property
    def unsure(self) -> bool: ...


_KINDS_OF_VALUES = ("builtins.", "typing.", "types.")


def same(one: Value, other: Value) -> bool | None:
    """Whether two types are the same, or a type and something plain; None: not known."""
    names = [getattr(value, "name", "") for value in (one, other) if isinstance(value, External | Native)]
    annotated = isinstance(one, Native) or isinstance(other, Native)
    known = [name.startswith(_KINDS_OF_VALUES) for name in names]
    if len(names) == 2 and all(names) and (all(known) or (annotated and any(known))):
        return names[0] == names[1]
    plain = isinstance(one, Known) or isinstance(other, Known)
    return False if plain and len(names) == 1 and names[0].startswith(_KINDS_OF_VALUES) else None


def written(value: Value | None) -> str | None:
    """A value as one writes it on a command line; None: not known, or none."""
    if isinstance(value, Known):
        plain = value.value
        if plain is None or isinstance(plain, bytes):
            return None
        return str(plain).lower() if isinstance(plain, bool) else str(plain)
    if isinstance(value, Many) and value.whole:
        items = [written(item) for item in value.items]
        return " ".join(item for item in items if item is not None) if None not in items else None
    return None


def texts(value: Value | None) -> tuple[str, ...] | None:
    """The items of a list whose items are all known; of a dictionary its keys."""
    if isinstance(value, Table) and value.whole:
        return tuple(str(key) for key in value.items)
    if not isinstance(value, Many) or not value.whole:
        return None
    items = [written(item) for item in value.items]
    return tuple(item for item in items if item is not None) if None not in items else None


def either(one: Value, other: Value) -> Value:
    """What is known of a value that is one or the other: what holds for both, or the one that can be followed."""
    if one == other or (isinstance(one, External) and isinstance(other, External)):
        return one  # of two that are not read the later, or the first that is tried
    for value in (one, other):
        if isinstance(value, Native | Function | ClassValue | Instance):
            return value
    return UNKNOWN


def is_huge(value: object) -> bool:
    """A number of so many digits that it is not written out."""
    return isinstance(value, int) and value.bit_length() > 200


def is_words(value: Value) -> bool:
    """Whether it is `sys.argv`, or a part of it."""
    return isinstance(value, External) and value.name == "sys.argv"


def carries(value: Value) -> bool:
    """Whether a parser or the like is in a value, or the words of the command line."""
    if isinstance(value, Native) or is_words(value):
        return True
    if isinstance(value, Instance):
        return value.native is not None or any(isinstance(item, Native) for item in value.attributes.values())
    if isinstance(value, Many):
        return any(isinstance(item, Native) for item in value.items)
    return isinstance(value, Table) and any(isinstance(item, Native) for item in value.items.values())


def carried(arguments: Arguments) -> bool:
    return any(carries(item) for item in arguments.every())
