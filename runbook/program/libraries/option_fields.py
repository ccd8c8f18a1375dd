"""Fields of dataclasses and parameters of functions: name, type and default, as libraries make options of them.

https://docs.python.org/3/library/dataclasses.html: fields of base classes come first, a field that is given again keeps
its place; `init=False` and `ClassVar` are none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

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
    Scope,
    Table,
    Value,
    texts,
    written,
)
from runbook.program.sources import parsed_annotation

MOST_FIELDS = 2_000
_PLAIN = {"int": "integer", "float": "number", "str": "text", "bool": "boolean", "Path": "text", "PathLike": "text"}
_LISTS = frozenset({"list", "List", "tuple", "Tuple", "set", "Set", "Sequence", "Iterable", "Collection", "frozenset"})
_TABLES = frozenset({"dict", "Dict", "Mapping", "MutableMapping", "DictConfig"})
_WRAPPERS = frozenset({"Annotated", "Final", "Required", "NotRequired", "InitVar", "Suppress", "Positional"})
_NOTHING_OF_THEIRS = frozenset({
    "builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol", "typing.NamedTuple", "enum.Enum", "enum.IntEnum",
    "pydantic.BaseModel", "pydantic.main.BaseModel", "typing_extensions.Protocol", "builtins.dict", "tap.Tap",
    "draccus.ChoiceRegistry", "draccus.choice_types.ChoiceRegistry", "simple_parsing.Serializable",
    "simple_parsing.helpers.Serializable", "simple_parsing.helpers.serialization.Serializable", "enum.StrEnum",
    "builtins.str", "builtins.int", "dataclass_wizard.JSONWizard", "dataclasses_json.DataClassJsonMixin",
})
_FIELD = frozenset({"field", "Field", "attrib", "ib", "arg", "HfArg", "mutable_field", "choice", "subgroups", "flag"})


@dataclass(frozen=True, slots=True)
class Shape:
    """A type, as far as options are made of it."""

    type: str = ""
    choices: tuple[str, ...] = ()
    nested: Value | None = None
    """A class of which the value is made."""
    branches: tuple[Value, ...] = ()
    """Classes of which it is one or the other."""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    shape: Shape
    default: Value | None
    """None: there is none, one has to be given."""
    file: str
    line: int
    help: str = ""
    aliases: tuple[str, ...] = ()
    metadata: Table | None = None


def fields_of(of: Value, reader: ReaderFace) -> tuple[list[Field], list[str]]:
    """A class's fields, and classes it is derived from whose source was not had."""
    found: dict[str, Field] = {}
    missing: list[str] = []
    for ancestor in reversed(reader.ancestors(of)):
        value = reader.installed(ancestor) if isinstance(ancestor, External) else ancestor
        if isinstance(value, ClassValue):
            if value is not ancestor:
                inner, further = fields_of(value, reader)
                found |= {field.name: field for field in inner}
                missing += further
            elif _has_fields(value, reader):
                for field in _own(value, reader):
                    found[field.name] = field
                for name in _without_init(value):
                    found.pop(name, None)
        elif isinstance(ancestor, External) and not _nothing(ancestor.name):
            missing.append(ancestor.name)
        elif not isinstance(ancestor, External):
            missing.append(f"a base of {of.node.name}" if isinstance(of, ClassValue) else "")
        if len(found) > MOST_FIELDS:
            break
    return list(found.values()), missing


def parameters_of(function: Function, reader: ReaderFace) -> tuple[list[Field], bool]:
    """A function's parameters, and whether it takes any others by name (`**`)."""
    given = function.node.args
    every = [*given.posonlyargs, *given.args]
    if function.bound is not None or (function.owner is not None and every and every[0].arg in ("self", "cls")):
        every = every[1:]
    defaults: dict[str, ast.expr] = dict(zip((item.arg for item in reversed(every)), reversed(given.defaults)))
    defaults |= {item.arg: value for item, value in zip(given.kwonlyargs, given.kw_defaults) if value is not None}
    scope, path = function.scope, function.scope.module.path
    return [
        Field(
            item.arg, shape_of(item.annotation, scope, reader),
            reader.look_up(reader.evaluate(defaults[item.arg], scope)) if item.arg in defaults else None,
            path, item.lineno,
        )
        for item in (*every, *given.kwonlyargs)
    ], given.kwarg is not None


def shape_of(node: ast.expr | None, scope: Scope, reader: ReaderFace) -> Shape:
    """What an annotation says; one that is written as text is read as Python."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = parsed_annotation(node.value)
    if node is None:
        return Shape()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union(list(_alternatives(node)), scope, reader)
    if isinstance(node, ast.Subscript):
        return _of_subscript(node, scope, reader)
    name = _last(node)
    if name in _PLAIN:
        return Shape(_PLAIN[name])
    if name in _LISTS:
        return Shape("list")
    if name in _TABLES or name in ("Any", ""):
        return Shape()
    value = reader.look_up(reader.evaluate(node, scope))
    if isinstance(value, ClassValue):
        members = _members(value, reader)
        return Shape("choice", members) if members is not None else Shape(nested=value)
    return Shape(nested=value) if isinstance(value, External) and _is_class(value.name) else Shape()


def _of_subscript(node: ast.Subscript, scope: Scope, reader: ReaderFace) -> Shape:
    name = _last(node.value)
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        values = [written(reader.evaluate(item, scope)) for item in inner]
        return Shape("choice", tuple(value for value in values if value is not None))
    if name == "Optional":
        return replace(shape_of(inner[0], scope, reader), optional=True)
    if name == "Union":
        return _union(inner, scope, reader)
    if name in _WRAPPERS and inner:
        return shape_of(inner[0], scope, reader)
    if name in _LISTS:
        return Shape("list")
    return shape_of(node.value, scope, reader) if name not in _TABLES and name not in ("Type", "type") else Shape()


def _union(parts: list[ast.expr], scope: Scope, reader: ReaderFace) -> Shape:
    real = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is None)]
    shapes = [shape_of(part, scope, reader) for part in real[:20]]
    optional = len(real) < len(parts)
    classes = tuple(shape.nested for shape in shapes if shape.nested is not None)
    if len(shapes) == 1:
        return replace(shapes[0], optional=optional)
    if classes and len(classes) == len(shapes):
        return Shape(branches=classes, optional=optional)
    kinds = {shape.type for shape in shapes}
    kind = "number" if kinds == {"integer", "number"} else kinds.pop() if len(kinds) == 1 else ""
    return Shape(kind or ("text" if "text" in {shape.type for shape in shapes} else ""), optional=optional)


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    for _ in range(30):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)):
            break
        yield node.right
        node = node.left
    yield node


def _own(of: ClassValue, reader: ReaderFace) -> Iterator[Field]:
    for node in of.node.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        annotation = node.annotation
        if _last(annotation.value if isinstance(annotation, ast.Subscript) else annotation) == "ClassVar":
            continue
        field = Field(node.target.id, shape_of(annotation, of.scope, reader), None, of.scope.module.path, node.lineno)
        given = node.value
        if isinstance(given, ast.Call) and _last(given.func) in _FIELD:
            described = _described(field, given, of.scope, reader)
            if described is not None:
                yield described
        elif given is not None:
            yield replace(field, default=reader.look_up(reader.evaluate(given, of.scope)))
        else:
            yield field


def _without_init(of: ClassValue) -> Iterator[str]:
    """Fields that are no parameters."""
    for node in of.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call):
            keywords = {item.arg: item.value for item in node.value.keywords}
            init = keywords.get("init")
            if isinstance(init, ast.Constant) and init.value is False:
                yield node.target.id


def _described(field: Field, call: ast.Call, scope: Scope, reader: ReaderFace) -> Field | None:
    """`field(default=…, default_factory=…, metadata={…})`, and what other libraries call so."""
    given = {item.arg: reader.look_up(reader.evaluate(item.value, scope)) for item in call.keywords if item.arg}
    default = given.get("default", given.get("factory"))
    if default is None and call.args and not (isinstance(call.args[0], ast.Constant) and call.args[0].value is ...):
        default = reader.look_up(reader.evaluate(call.args[0], scope))
    factory = given.get("default_factory")
    if factory is not None:
        default = reader.call(factory, Arguments([], {}, True, field.file, field.line))
        if isinstance(factory, External) and factory.name in ("builtins.list", "builtins.tuple", "builtins.set"):
            default = Many([])
    metadata = given.get("metadata")
    about = dict(metadata.items) if isinstance(metadata, Table) else {}
    words = [item for item in (given.get("help"), given.get("description"), about.get("help")) if item is not None]
    shape = field.shape
    choices = texts(reader.look_up(given.get("choices") or about.get("choices") or UNKNOWN))
    if choices:
        shape = replace(shape, choices=choices, type="choice" if shape.type in ("text", "") else shape.type)
    aliases = texts(about.get("aliases")) or texts(given.get("aliases")) or texts(given.get("alias")) or ()
    plain = words[0].value if words and isinstance(words[0], Known) else ""
    return replace(field, shape=shape, default=default, help=str(plain or ""), aliases=aliases,
                   metadata=Table(about) if about else None)


def _members(of: ClassValue, reader: ReaderFace) -> tuple[str, ...] | None:
    """The values of an enumeration; None: the class is none."""
    bases = {ancestor.name for ancestor in reader.ancestors(of) if isinstance(ancestor, External)}
    if not any(name.rpartition(".")[2] in ("Enum", "IntEnum", "StrEnum", "ExplicitEnum") for name in bases):
        return None
    values = [written(value) for name, value in of.scope.names.items() if not name.startswith("_")]
    return tuple(value for value in values if value is not None)


def _has_fields(of: ClassValue, reader: ReaderFace) -> bool:
    """Whether its annotations are fields: under a decorator, or derived from what makes them so."""
    marks = ("dataclass", "define", "attrs", "configclass", "mutable")
    if any(isinstance(by, External) and any(mark in by.name for mark in marks) for by in of.decorators):
        return True
    if of.node.decorator_list and not of.decorators:
        return True  # decorated by a function of the program
    bases = [base for base in reader.ancestors(of) if isinstance(base, External)]
    return any(base.name.rpartition(".")[2] in ("BaseModel", "Tap", "NamedTuple", "BaseSettings") for base in bases)


def _nothing(name: str) -> bool:
    return name in _NOTHING_OF_THEIRS or name.endswith(("[]", "()"))


def _is_class(name: str) -> bool:
    return name.rpartition(".")[2][:1].isupper() and not name.startswith(("torch.", "typing.", "numpy."))


def _last(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def attribute_default(default: Value | None, name: str) -> Value | None:
    """A field's default where the object around it was made with a value of its own; None: it was not."""
    return default.attributes.get(name) if isinstance(default, Instance) else None


def named_classes(value: Value | None) -> list[Value]:
    """The classes that are handed over: one, or a list of them."""
    if isinstance(value, Many):
        return list(value.items)
    return [value] if value is not None and not isinstance(value, Known | Native) else []
