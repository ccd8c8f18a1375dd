"""What programs ask of their classes to make options of them: `dataclasses.fields`, types and what they are made of.

https://docs.python.org/3/library/typing.html#introspection-helpers, as far as annotations are kept (`Shape`).
"""

from __future__ import annotations

from dataclasses import dataclass

from runbook.program.abstract_values import (
    UNKNOWN,
    Arguments,
    ClassValue,
    External,
    Instance,
    Known,
    Many,
    Native,
    ReaderFace,
    Table,
    Value,
)
from runbook.program.libraries.option_fields import Field, Shape, fields_of

_NAMES = {"integer": "builtins.int", "number": "builtins.float", "boolean": "builtins.bool", "text": "builtins.str"}
_NONE = "builtins.NoneType"


@dataclass(frozen=True, slots=True)
class TypeValue(Native):
    """A type: one with a name, or one that is made of others (`origin`)."""

    name: str = ""
    origin: str = ""
    parts: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldValue(Native):
    """What `dataclasses.fields` gives of a field."""

    field: Field

    def attribute(self, name: str) -> Value | None:
        field = self.field
        if name == "name":
            return Known(field.name)
        if name == "type":
            return type_of(field.shape)
        if name == "default":
            return External("dataclasses.MISSING") if field.default is None else field.default
        if name == "init":
            return Known(True)
        return (field.metadata or Table({})) if name == "metadata" else None


def type_of(shape: Shape) -> Value:
    if shape.optional:
        inner = Shape(shape.type, shape.choices, shape.nested, shape.branches)
        return TypeValue(origin="typing.Union", parts=(type_of(inner), TypeValue(_NONE)))
    if shape.type == "choice":
        return TypeValue(origin="typing.Literal", parts=tuple(Known(choice) for choice in shape.choices))
    if shape.type == "list":
        return TypeValue(origin="builtins.list", parts=(TypeValue("builtins.str"),))
    if shape.nested is not None:
        return TypeValue(shape.nested.name) if isinstance(shape.nested, External) else shape.nested
    return TypeValue(_NAMES[shape.type]) if shape.type in _NAMES else UNKNOWN


def called(name: str, arguments: Arguments, reader: ReaderFace) -> Value | None:
    first = reader.look_up(arguments.positional[0]) if arguments.positional else None
    if name in ("dataclasses.fields", "attr.fields", "attrs.fields") and first is not None:
        fields = _fields(first, reader)
        return Many([FieldValue(field) for field in fields]) if fields is not None else Many([], False)
    if name in ("typing.get_type_hints", "inspect.get_annotations") and first is not None:
        fields = _fields(first, reader)
        return Table({field.name: type_of(field.shape) for field in fields}) if fields is not None else None
    if name == "typing.get_origin" and isinstance(first, TypeValue | External | ClassValue):
        return External(first.origin) if isinstance(first, TypeValue) and first.origin else Known(None)
    if name == "typing.get_args" and isinstance(first, TypeValue | External | ClassValue):
        return Many(list(first.parts) if isinstance(first, TypeValue) else [])
    if name in ("pathlib.Path", "pathlib.PurePath", "os.path.expanduser") and isinstance(first, Known):
        return first
    if name == "builtins.type" and isinstance(first, Known):
        kind = type(first.value).__name__
        return TypeValue(_NONE if first.value is None else f"builtins.{kind}")
    if name in ("builtins.isinstance", "builtins.issubclass") and isinstance(first, TypeValue) and arguments.positional:
        return _is_a(name, first, arguments.positional[1] if len(arguments.positional) > 1 else UNKNOWN)
    return None


def _fields(of: Value, reader: ReaderFace) -> list[Field] | None:
    """None: some of them are not known."""
    found = of.of if isinstance(of, Instance) else of
    if not isinstance(found, ClassValue):
        return None
    fields, missing = fields_of(found, reader)
    return None if missing else fields


def _is_a(name: str, first: TypeValue, of: Value) -> Value:
    if not isinstance(of, External):
        return UNKNOWN
    if name == "builtins.isinstance":
        return Known(not first.origin) if of.name == "builtins.type" else Known(False)
    return Known(first.name == of.name)
