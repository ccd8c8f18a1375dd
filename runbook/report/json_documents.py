"""`incident.json` and the other JSON documents: versioned and public, and back. The schema of `incident.json` is
published as docs/incident-schema.json.

    python -m runbook.report.json_documents > docs/incident-schema.json
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from runbook.errors import BadInput
from runbook.kinds import load_kinds
from runbook.model import checkpoint, diagnosis, incident, job, log, node, remedy, template, units
from runbook.model.diagnosis import Kinds
from runbook.model.incident import SCHEMA_VERSION, Incident
from runbook.model.node import NodeCheck
from runbook.model.sentences import Sentence
from runbook.report.vocabulary.sentences import in_words

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


CONTRACT_KEY = "contract"
"""Where the diagnosis contract stands in the document; the incident's own keys are those of `Incident`."""

_SAME = "failure"
"""In place of `original`: it is the failure under work."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@cache
def incident_adapter() -> TypeAdapter[Incident]:
    """Built on first use: a command that shows no incident does not pay for it."""
    from pydantic import TypeAdapter

    return TypeAdapter(Incident)


def dump_incident(incident: Incident, contract: Mapping[str, Any] | None = None) -> bytes:
    """The document as UTF-8 JSON, indented, ending with a newline.

    `contract` is the diagnosis in the shape of the diagnosis contract; null when there is no diagnosis yet.
    Bytes of a script or a path that were not UTF-8 stand there as Python has them, as lone surrogates: `\\udce9` for
    the byte 0xE9. They come back with `load_incident`, so that a copy is byte for byte what its owner wrote. Raises
    `ValueError` on a figure that is infinite or not a number: nothing that is measured is.
    """
    from pydantic_core import PydanticSerializationError, to_json

    document, same = _told_once(incident)
    document[CONTRACT_KEY] = dict(contract) if contract is not None else None
    if same:
        document["original"] = document["failure"]
    # Written at each step of each incident: ten times as fast as Python's own with an indent.
    with contextlib.suppress(PydanticSerializationError):
        data = to_json(document, indent=1)
        if b"NaN" not in data and b"Infinity" not in data:
            return data + b"\n"
    # What it refuses may be lone surrogates, and what it lets through no number: here they are told apart.
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode() + b"\n"


def pack_incident(incident: Incident) -> str:
    """The incident for ourselves alone: ASCII on one line, what stands in it twice once. `unpack_incident` reads it."""
    return json.dumps(incident_document(incident), allow_nan=False)


def incident_document(incident: Incident) -> dict[str, Any]:
    """What `pack_incident` makes text of. `incident_of` reads it."""
    document, same = _told_once(incident)
    if same:
        document["original"] = _SAME
    return document


def _told_once(incident: Incident) -> tuple[dict[str, Any], bool]:
    """The document, and whether `original`, which is then null in it, is the failure under work: as long as nothing was
    relaunched it is, and most of the document."""
    same = incident.original is not None and incident.original == incident.failure
    once = replace(incident, original=None) if same else incident
    return incident_adapter().dump_python(once, mode="json", context=in_words, warnings="error"), same


def unpack_incident(text: str, where: str, kinds: Kinds | None = None) -> Incident:
    """What `pack_incident` made, or the document as it is published. Raises `BadInput`; `kinds` as in
    `load_incident`."""
    return incident_of(_document(text.encode(), where), where, kinds)


def incident_of(document: dict[str, Any], where: str, kinds: Kinds | None = None) -> Incident:
    """What `incident_document` made, or the document as it is published. Raises `BadInput`; `kinds` as in
    `load_incident`."""
    from pydantic import ValidationError

    _check_version(document, where)
    same = document.get("original") == _SAME
    if same:
        document = {key: value for key, value in document.items() if key != "original"}
    try:
        incident = incident_adapter().validate_python(document, context=load_kinds() if kinds is None else kinds)
    except ValidationError as error:
        raise _damaged(error, where) from error
    return replace(incident, original=incident.failure) if same else incident


def json_bytes(document: Mapping[str, Any]) -> bytes:
    """JSON as documents are written that are only read: bytes that were not UTF-8 are U+FFFD there."""
    try:
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        text = json.dumps(without_surrogates(document), indent=1, ensure_ascii=False, allow_nan=False)
        return text.encode() + b"\n"


def load_incident(data: bytes, where: str = "incident.json", kinds: Kinds | None = None) -> Incident:
    """Read a document back. Raises `BadInput` when it is not one, or of a newer version than this program knows.

    Unknown keys are passed over: within a version, fields are only ever added. `kinds`: those of the playbook that
    wrote it; the installed one where none are given."""
    from pydantic import ValidationError

    document = _document(data, where)
    try:
        if _ESCAPED_SURROGATE.search(data):  # pydantic's own reader of JSON refuses them
            return incident_adapter().validate_python(document, context=load_kinds() if kinds is None else kinds)
        return incident_adapter().validate_json(data, context=load_kinds() if kinds is None else kinds)
    except ValidationError as error:
        raise _damaged(error, where) from error


def _damaged(error: ValidationError, where: str) -> BadInput:
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return BadInput(
        f"the incident cannot be read: {path or 'document'}: {first['msg']}{more}",
        where=where,
        next_step="restore the file from a backup, or move the folder away and open the incident again",
    )


def load_contract(data: bytes, where: str = "incident.json") -> dict[str, Any] | None:
    """The diagnosis contract of a document, None when it has none."""
    contract = _document(data, where).get(CONTRACT_KEY)
    return contract if isinstance(contract, dict) else None


def _document(data: bytes, where: str) -> dict[str, Any]:
    from pydantic_core import from_json

    try:
        try:
            document = from_json(data)
        except ValueError:  # what it refuses may be lone surrogates; and Python has the better words
            document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"not JSON: {error}",
            where=where,
            next_step="restore the file from a backup, or open the incident again",
        ) from error
    _check_version(document, where)
    assert isinstance(document, dict)
    return document


def _check_version(document: object, where: str) -> None:
    version = document.get("version") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(version, int) or isinstance(version, bool):
        raise BadInput("not an incident: no version", where=where, next_step="name an incident.json of runbook")
    if version > SCHEMA_VERSION:
        raise BadInput(
            f"the incident was written by a newer runbook (schema {version}; this one knows {SCHEMA_VERSION})",
            where=where,
            next_step="upgrade runbook on this machine",
        )


def without_surrogates(value: Any) -> Any:
    """A document's values with U+FFFD for bytes that were not UTF-8."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    return value


_DESCRIBED_MODULES: tuple[ModuleType, ...] = (
    incident, checkpoint, diagnosis, job, log, node, remedy, remedy, template, units,
)


def incident_schema() -> dict[str, Any]:
    """JSON Schema 2020-12. Only what has no default is required: a reader meets files that an older release of the
    same version wrote, and keys that a newer one added."""
    described = _descriptions()
    from pydantic import json_schema

    class AsWritten(json_schema.GenerateJsonSchema):
        """Of a default what an incident holds: a sentence is its text."""

        def encode_default(self, dft: Any) -> Any:
            return in_words(dft) if isinstance(dft, Sentence) else super().encode_default(dft)

    document = incident_adapter().json_schema(
        mode="validation", ref_template="#/$defs/{model}", schema_generator=AsWritten
    )
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


def published_schema() -> str:
    """The text of docs/incident-schema.json."""
    return json.dumps(incident_schema(), indent=2, ensure_ascii=False) + "\n"


_NUMBER_OR_NULL: dict[str, Any] = {"type": ["integer", "null"]}
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
_HYPOTHESIS: dict[str, Any] = {
    "type": "object",
    "required": ["kind", "confidence"],
    "properties": {
        "kind": {"type": "string"},
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
                "first_failed": {
                    "type": ["object", "null"],
                    "properties": {
                        **dict.fromkeys(("rank", "pid"), _NUMBER_OR_NULL),
                        **dict.fromkeys(("node", "told_by"), _TEXT_OR_NULL),
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
    for module in _DESCRIBED_MODULES:
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
    sys.stdout.write(published_schema())


NODE_CHECK_VERSION = 1
"""Fields are only ever added within a version."""


@cache
def node_check_adapter() -> TypeAdapter[NodeCheck]:
    from pydantic import TypeAdapter

    return TypeAdapter(NodeCheck)


def dump_node_check(check: NodeCheck) -> bytes:
    """The document as UTF-8 JSON, ending with a newline."""
    document = node_check_adapter().dump_python(check, mode="json", exclude={"reports"}, warnings="error")
    return json_bytes({"version": NODE_CHECK_VERSION, **document})
