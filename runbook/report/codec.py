"""`incident.json`: the incident as a versioned public document, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from runbook.errors import BadInput
from runbook.model.incident import SCHEMA_VERSION, Incident

if TYPE_CHECKING:
    from pydantic import TypeAdapter

CONTRACT_KEY = "contract"
"""Where the diagnosis contract stands in the document; the incident's own keys are those of `Incident`."""

_SURROGATE = re.compile("[\ud800-\udfff]")


@cache
def adapter() -> TypeAdapter[Incident]:
    """Built on first use: a command that shows no incident does not pay for it."""
    from pydantic import TypeAdapter

    return TypeAdapter(Incident)


def dump(incident: Incident, contract: Mapping[str, Any] | None = None) -> bytes:
    """The document as UTF-8 JSON, indented, ending with a newline.

    `contract` is the diagnosis in the shape of the diagnosis contract; null when there is no diagnosis yet.
    Bytes of a path that were not UTF-8 become U+FFFD: JSON cannot hold them. Raises `ValueError` on a
    figure that is infinite or not a number: nothing that is measured is.
    """
    document = adapter().dump_python(incident, mode="json", warnings="error")
    document[CONTRACT_KEY] = dict(contract) if contract is not None else None
    return encoded(document)


def encoded(document: Mapping[str, Any]) -> bytes:
    """JSON as every document of ours is written: see `dump`."""
    try:
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        text = json.dumps(_without_surrogates(document), indent=1, ensure_ascii=False, allow_nan=False)
        return text.encode() + b"\n"


def load(data: bytes, where: str = "incident.json") -> Incident:
    """Read a document back. Raises `BadInput` when it is not one, or of a newer version than this program knows.

    Unknown keys are passed over: within a version, fields are only ever added."""
    from pydantic import ValidationError

    _document(data, where)
    try:
        return adapter().validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise BadInput(
            f"the incident cannot be read: {path or 'document'}: {first['msg']}{more}",
            where=where,
            next_step="restore the file from a backup, or move the folder away and open the incident again",
        ) from error


def load_contract(data: bytes, where: str = "incident.json") -> dict[str, Any] | None:
    """The diagnosis contract of a document, None when it has none."""
    contract = _document(data, where).get(CONTRACT_KEY)
    return contract if isinstance(contract, dict) else None


def _document(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"not JSON: {error}",
            where=where,
            next_step="restore the file from a backup, or open the incident again",
        ) from error
    version = document.get("version") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(version, int) or isinstance(version, bool):
        raise BadInput("not an incident: no version", where=where, next_step="name an incident.json of runbook")
    if version > SCHEMA_VERSION:
        raise BadInput(
            f"the incident was written by a newer runbook (schema {version}; this one knows {SCHEMA_VERSION})",
            where=where,
            next_step="upgrade runbook on this machine",
        )
    return document


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value
