"""The Grafana dashboard held against Grafana's published schema: its own typed models (grafana-foundation-sdk) read it,
know every key, and find a value of the right type in each."""

from __future__ import annotations

import enum
import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

DASHBOARD = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "runbook.json"
MODELS = "grafana_foundation_sdk.models."


def lost(written: Any, read: Any, where: str = "") -> Iterator[str]:
    """Keys and values that are not there any more once the models have read and written the document."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            yield from [f"{where}.{key}"] if key not in read else lost(value, read[key], f"{where}.{key}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for place, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from lost(one, other, f"{where}[{place}]")
    elif written != read:
        yield f"{where}: {written!r} is {read!r}"


def wrong(value: Any, kind: Any, where: str) -> Iterator[str]:
    """Values of a model that are not of the type that the schema says."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or isinstance(kind, typing.TypeVar):
        return
    if origin in (typing.Union, types.UnionType):
        # What it lacks is told of the type that comes nearest.
        nearest = [one for one in inner if one is type(value)] or [one for one in inner if one is not types.NoneType]
        yield from min(([*wrong(value, one, where)] for one in nearest), key=len)
    elif origin is typing.Literal:
        if value not in inner:
            yield f"{where}: {value!r:.80} is none of {inner}"
    elif origin in (list, dict):
        if not isinstance(value, origin):
            yield f"{where}: {value!r:.80} is no {origin.__name__}"
            return
        for key, one in enumerate(value) if origin is list else value.items():
            yield from wrong(one, inner[-1], f"{where}[{key}]")
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        if value not in [one.value for one in kind] and value not in list(kind):
            yield f"{where}: {value!r:.80} is none of {[one.value for one in kind]}"
    elif isinstance(value, dict) and getattr(kind, "__module__", "").startswith(MODELS):
        # The models leave some of their parts as they were written.
        part = kind.from_json(value)
        yield from (*lost(value, json.loads(JSONEncoder().encode(part)), where), *all_wrong(part, where))
    elif isinstance(kind, type) and not (isinstance(value, kind) or (kind is float and isinstance(value, int))):
        yield f"{where}: {value!r:.80} is no {kind.__name__}"
    elif type(value).__module__.startswith(MODELS):
        yield from all_wrong(value, where)


def all_wrong(model: Any, where: str = "") -> Iterator[str]:
    module = vars(sys.modules[type(model).__module__])
    for name, kind in typing.get_type_hints(type(model), module).items():
        yield from wrong(getattr(model, name), kind, f"{where}.{name}")


def problems(document: dict[str, Any]) -> list[str]:
    register_default_plugins()
    model = Dashboard.from_json(document)
    return [*lost(document, json.loads(JSONEncoder().encode(model))), *all_wrong(model)]


def test_grafana_knows_every_key_and_the_type_of_every_value() -> None:
    found = problems(json.loads(DASHBOARD.read_text(encoding="utf-8")))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("change", ["unknown key", "wrong type", "wrong word", "unknown option"])
def test_a_fault_is_seen(change: str) -> None:
    document = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panel = next(one for one in document["panels"] if one["type"] == "stat")
    match change:
        case "unknown key":
            panel["descriptoin"] = "?"
        case "wrong type":
            panel["gridPos"]["w"] = "wide"
        case "wrong word":
            panel["options"]["colorMode"] = "rainbow"
        case "unknown option":
            panel["options"]["colourMode"] = "value"
    assert problems(document)
