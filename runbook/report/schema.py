"""The JSON schema of `incident.json`, published as docs/incident-schema.json.

    python -m runbook.report.schema > docs/incident-schema.json
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from types import ModuleType
from typing import Any

from runbook.model import checkpoint, diagnosis, incident, job, log, node, remedy, template, units
from runbook.report.codec import CONTRACT_KEY, adapter

_MODULES: tuple[ModuleType, ...] = (
    incident, checkpoint, diagnosis, job, log, node, remedy, remedy, template, units,
)


def schema() -> dict[str, Any]:
    """JSON Schema 2020-12. Only what has no default is required: a reader meets files that an older release of the
    same version wrote, and keys that a newer one added."""
    described = _descriptions()
    document = adapter().json_schema(mode="validation", ref_template="#/$defs/{model}")
    for name, part in {"Incident": document, **document.get("$defs", {})}.items():
        for field, words in described.get(name, {}).items():
            if field == "":
                part["description"] = words
            elif field in part.get("properties", {}):
                part["properties"][field] = {**part["properties"][field], "description": words}
    document["properties"]["version"] = {
        "const": incident.SCHEMA_VERSION,
        "description": "Version of this schema. A reader refuses a greater one.",
    }
    document["required"] = [*document["required"], "version"]
    document["properties"][CONTRACT_KEY] = _CONTRACT
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "runbook incident",
        **_without_titles(document),
    }


def published() -> str:
    """The text of docs/incident-schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


_NUMBER_OR_NULL: dict[str, Any] = {"type": ["integer", "null"]}
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
_HYPOTHESIS: dict[str, Any] = {
    "type": "object",
    "required": ["kind", "confidence"],
    "properties": {
        "kind": {"$ref": "#/$defs/Kind"},
        "detail": {"anyOf": [{"$ref": "#/$defs/Detail"}, {"type": "null"}]},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        **{name: {"type": "array", "items": {"type": "string"}} for name in ("reasons", "against", "missing")},
    },
}
_CONTRACT: dict[str, Any] = {
    "description": "The diagnosis in a short shape of its own that other tools read; null before there is one.",
    "anyOf": [
        {"type": "null"},
        {
            "type": "object",
            "required": ["version", "diagnosis", "runners_up", "root_cause", "fields", "collateral"],
            "properties": {
                "version": {"const": 1},
                "diagnosis": {"anyOf": [_HYPOTHESIS, {"type": "null"}]},
                "runners_up": {"type": "array", "items": _HYPOTHESIS},
                "root_cause": {
                    "type": ["object", "null"],
                    "properties": {
                        **dict.fromkeys(("signature", "node", "phase", "file", "excerpt"), _TEXT_OR_NULL),
                        **dict.fromkeys(("rank", "pid", "device", "step", "line", "offset"), _NUMBER_OR_NULL),
                        "node_device": _TEXT_OR_NULL,
                        "time": {"type": ["string", "number", "null"]},
                    },
                },
                "fields": {
                    "type": ["object", "null"],
                    "properties": {
                        **{
                            f"{name}_bytes": _NUMBER_OR_NULL
                            for name in (
                                "tried", "capacity", "free", "allocated", "reserved_unallocated", "reserved",
                                "process", "limit", "private_pool",
                            )
                        },
                        "other_processes": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "properties": {"pid": {"type": "integer"}, "bytes": _NUMBER_OR_NULL},
                            },
                        },
                    },
                },
                "collateral": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"rank": _NUMBER_OR_NULL, "node": _TEXT_OR_NULL, "why": {"type": "string"}},
                    },
                },
            },
        },
    ],
}


def _without_titles(part: dict[str, Any]) -> dict[str, Any]:
    """Titles made from names say nothing more; a property that is called "title" stays."""
    kept: dict[str, Any] = {}
    for key, value in part.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in ("properties", "$defs"):
            kept[key] = {name: _without_titles(inner) for name, inner in value.items()}
        elif isinstance(value, dict):
            kept[key] = _without_titles(value)
        elif isinstance(value, list):
            kept[key] = [_without_titles(item) if isinstance(item, dict) else item for item in value]
        else:
            kept[key] = value
    return kept


def _descriptions() -> dict[str, dict[str, str]]:
    """Class -> field -> its docstring in the model's source ("" stands for the class): one place for the words."""
    found: dict[str, dict[str, str]] = {}
    for module in _MODULES:
        for item in ast.parse(inspect.getsource(module)).body:
            if not isinstance(item, ast.ClassDef):
                continue
            fields: dict[str, str] = {}
            if words := ast.get_docstring(item):
                fields[""] = " ".join(words.split())
            for before, after in zip(item.body, item.body[1:], strict=False):
                if (
                    isinstance(before, ast.AnnAssign)
                    and isinstance(before.target, ast.Name)
                    and isinstance(after, ast.Expr)
                    and isinstance(after.value, ast.Constant)
                    and isinstance(after.value.value, str)
                ):
                    fields[before.target.id] = " ".join(after.value.value.split())
            found[item.name] = fields
    return found


if __name__ == "__main__":
    sys.stdout.write(published())
