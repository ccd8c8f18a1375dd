"""A call of a port as a JSON document, and its answer as one: by the types that `ports.py` gives them, which say what
is read back. Whatever does not fit is refused."""

from __future__ import annotations

import base64
import collections.abc
import inspect
import io
import os
import typing
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, BinaryIO

from pydantic import TypeAdapter

from runbook import errors
from runbook.adapters.silent import PlainFile
from runbook.errors import RunbookError
from runbook.logs.search import InOrder
from runbook.model.diagnosis import Kinds
from runbook.steps.shared.base import Ports

Descriptors = Sequence[int]


@dataclass(frozen=True, slots=True)
class Value:
    """How a value of one type crosses."""

    dump: Callable[[Any], Any]
    load: Callable[[Any, Kinds, Descriptors], Any]
    is_file: bool = False
    """An open file, which crosses beside the document."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a port."""

    signature: inspect.Signature
    parameters: Mapping[str, Value]
    returns: Value

    def pack(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
        """The arguments of a call, and the open files among them."""
        bound = self.signature.bind(*arguments, **named)
        bound.apply_defaults()
        packed = {name: self.parameters[name].dump(value) for name, value in bound.arguments.items()}
        files = [value for name, value in bound.arguments.items() if self.parameters[name].is_file]
        return packed, tuple(file.fileno() for file in files)

    def unpack(self, packed: Mapping[str, Any], kinds: Kinds, descriptors: Descriptors) -> inspect.BoundArguments:
        """Raises `ValueError` where they are not what the method takes."""
        if packed.keys() != self.parameters.keys():
            raise ValueError("not the parameters of the method")
        given = OrderedDict(
            (name, value.load(packed[name], kinds, descriptors)) for name, value in self.parameters.items()
        )
        return inspect.BoundArguments(self.signature, given)


@cache
def methods() -> Mapping[tuple[str, str], Method]:
    """Every method of every port, by the port's name among `Ports` and its own."""
    found: dict[tuple[str, str], Method] = {}
    hints = typing.get_type_hints(Ports, localns={"InOrder": InOrder})
    for port in (field.name for field in fields(Ports)):
        protocol = next(
            (one for one in (hints[port], *typing.get_args(hints[port])) if getattr(one, "_is_protocol", False)), None
        )
        if protocol is None or protocol.__module__ not in _HOMES:
            continue
        for name, function in vars(protocol).items():
            if callable(function) and not name.startswith("_"):
                found[port, name] = _method(function)
    return found


_HOMES = frozenset({"runbook.ports", Ports.__module__})
"""Where the ports are declared; `in_order` of the logs' room is no outside."""


def _method(function: Callable[..., Any]) -> Method:
    hints = typing.get_type_hints(function)
    signature = inspect.signature(function)
    own = [parameter for name, parameter in signature.parameters.items() if name != "self"]
    return Method(
        signature.replace(parameters=own), {one.name: _value(hints[one.name]) for one in own}, _value(hints["return"])
    )


def _value(annotation: Any) -> Value:
    if annotation is BinaryIO:
        return Value(lambda _stream: None, lambda _nothing, _kinds, descriptors: _opened(descriptors), is_file=True)
    if annotation is bytes:
        return Value(
            lambda content: base64.b64encode(content).decode("ascii"),
            lambda text, _kinds, _descriptors: base64.b64decode(text, validate=True),
        )
    if typing.get_origin(annotation) is collections.abc.Collection:
        annotation = tuple[(*typing.get_args(annotation), ...)]  # type: ignore[misc]
    if BinaryIO in typing.get_args(annotation):
        raise TypeError("an open file crosses alone")
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)

    def load(document: Any, kinds: Kinds, _descriptors: Descriptors) -> Any:
        return adapter.validate_python(document, context=kinds)

    return Value(lambda value: adapter.dump_python(value, mode="json", warnings=False), load)


def _opened(descriptors: Descriptors) -> BinaryIO:
    """A memory file of the box's: what lies on a file system never comes opened (`inside`)."""
    if not descriptors:
        raise ValueError("an open file was to come")
    return io.BufferedReader(PlainFile(os.dup(descriptors[0])))


def packed_error(error: RunbookError) -> dict[str, str]:
    """An expected problem as a value; one of an adapter's own class as the class that stands in the tree."""
    known = next(one.__name__ for one in type(error).__mro__ if one.__name__ in _ERRORS)
    return {"class": known, "what": error.what, "where": error.where, "next_step": error.next_step}


def unpacked_error(document: Any) -> RunbookError:
    """Raises `ValueError` for what is none."""
    if not isinstance(document, dict) or not all(isinstance(part, str) for part in document.values()):
        raise ValueError("no error")
    found = _ERRORS.get(document.get("class", ""))
    if found is None:
        raise ValueError("no error of ours")
    return found(
        document.get("what", "")[:_LONGEST], where=document.get("where", "")[:_LONGEST],
        next_step=document.get("next_step", "")[:_LONGEST],
    )


_LONGEST = 4000
_ERRORS: Mapping[str, type[RunbookError]] = {
    name: one for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, RunbookError) and not issubclass(one, errors.BoxStopped)
}
