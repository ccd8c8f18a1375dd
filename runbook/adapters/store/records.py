"""What the durable run keeps in its database: of each box what it changed of the incident, and no text twice.

An incident may hold megabytes that its owner chose, the configurations that his script names. Recorded whole with each
box they were there twenty times, where no owner's share is counted; and a run that waits, for a job or a person, would
hold all of it in memory. So it is packed: compressed, each long text once, in memory as in the database. Everything is
read as well as earlier versions recorded it: the whole incident, as text.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from typing import Any, NewType, NotRequired, TypedDict

from runbook.errors import BadInput
from runbook.model.incident import Incident
from runbook.report.json_documents import incident_document, incident_of

Packed = NewType("Packed", bytes)
"""An incident, or what was changed of one: compressed JSON."""
Recorded = Packed | str
"""`str`: the whole incident as text, as earlier versions recorded it."""

_WHERE = "the workflow database"
_LONG = 256
"""Characters from which on a text is kept once, by its hash."""
_MARK = "\0"
"""Before the hash that stands for a text, and before a text that itself begins so."""
_QUICK = 1
"""zlib's level: 100 kB take 2 ms, and come to a sixth."""
_MOST_BYTES = 512 << 20
"""Of what comes out: rows may come from a backup, and a backup from anywhere."""


class BoxRecord(TypedDict):
    """What is kept of one run of a box."""

    outcome: str
    incident: Recorded
    """What the box changed; "" for nothing, so that hours of polling cost no space."""
    poll_s: float
    unavailable: str
    bug: str
    stopped: NotRequired[str]
    """What ended a box that used more than it may."""


class Asked(TypedDict):
    """What is kept of the question that an acting box puts; `sentence` is "" when it has nothing to do outside."""

    sentence: str
    what: str
    target: str
    token: str
    unavailable: str
    bug: str
    stopped: NotRequired[str]


class Handed(TypedDict):
    """What is kept of an incident that goes to a person because a box was ended."""

    incident: Recorded
    box: str


class Answer(TypedDict):
    yes: bool
    by: str


def packed(incident: Incident) -> Packed:
    """The whole of it."""
    return _pack(incident_document(incident), {})


def unpacked(recorded: Recorded) -> Incident:
    """What `packed` made, or earlier versions did. Raises `BadInput`."""
    return incident_of(_document(recorded), _WHERE)


def changes(before: Recorded, after: Incident) -> Packed:
    """What makes `after` of `before`; texts that stand in `before` are not in it."""
    was, now = _document(before), incident_document(after)
    return _pack(_difference(was, now), dict(_long_texts(was)))


def repacked(recorded: Recorded) -> Packed:
    """The whole of it, as it is recorded today. Raises `BadInput`."""
    return _pack(_document(recorded), {}) if isinstance(recorded, str) else recorded


def changed(before: Recorded, recorded: Recorded) -> Packed:
    """`before` with what `changes` made of it. Raises `BadInput`."""
    if isinstance(recorded, str):
        return repacked(recorded)
    was = _document(before)
    return _pack(_applied(was, _unpack(recorded, dict(_long_texts(was)))), {})


# What differs between two JSON values, as JSON: ["=", value], ["dict", inner differences, new, keys that are gone], or
# ["list", length, inner differences by place, what follows].


def _difference(before: Any, after: Any) -> list[Any]:
    if isinstance(before, dict) and isinstance(after, dict):
        inner = {
            key: _difference(before[key], value)
            for key, value in after.items() if key in before and _differ(before[key], value)
        }
        new = {key: value for key, value in after.items() if key not in before}
        return ["dict", inner, new, [key for key in before if key not in after]]
    if isinstance(before, list) and isinstance(after, list):
        both = min(len(before), len(after))
        inner = {
            str(at): _difference(before[at], after[at]) for at in range(both) if _differ(before[at], after[at])
        }
        return ["list", len(after), inner, after[both:]]
    return ["=", after]


def _differ(one: Any, other: Any) -> bool:
    # Python's own comparison takes 1 for True and for 1.0.
    return one is not other and json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)


def _applied(before: Any, difference: Any) -> Any:
    try:
        kind, *told = difference
        if kind == "=":
            return told[0]
        if kind == "dict":
            inner, new, gone = told
            return {
                **{
                    key: _applied(value, inner[key]) if key in inner else value
                    for key, value in before.items() if key not in gone
                },
                **new,
            }
        length, inner, more = told
        kept = before[: int(length)]
        return [_applied(value, inner[str(at)]) if str(at) in inner else value for at, value in enumerate(kept)] + more
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise _damaged(f"a change that does not fit: {error}") from error


# Long texts once, and the bytes.


def _long_texts(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if len(value) >= _LONG:
            yield _hash(value), value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _long_texts(inner)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _pack(value: Any, known: dict[str, str]) -> Packed:
    texts: dict[str, str] = {}

    def short(part: Any) -> Any:
        if isinstance(part, str):
            if len(part) >= _LONG:
                name = _hash(part)
                if name not in known:
                    texts[name] = part
                return _MARK + name
            return _MARK + part if part.startswith(_MARK) else part
        if isinstance(part, dict):
            return {key: short(inner) for key, inner in part.items()}
        return [short(inner) for inner in part] if isinstance(part, list | tuple) else part

    whole = [short(value), texts]
    return Packed(zlib.compress(json.dumps(whole, allow_nan=False, separators=(",", ":")).encode(), _QUICK))


def _unpack(recorded: Packed, known: dict[str, str]) -> Any:
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(recorded, _MOST_BYTES)
        if not reader.eof:
            raise _damaged("it is cut off, or too large")
        value, texts = json.loads(data)
        texts = {**known, **texts}

        def whole(part: Any) -> Any:
            if isinstance(part, str) and part.startswith(_MARK):
                return part[1:] if part.startswith(_MARK, 1) else texts[part[1:]]
            if isinstance(part, dict):
                return {key: whole(inner) for key, inner in part.items()}
            return [whole(inner) for inner in part] if isinstance(part, list) else part

        return whole(value)
    except (zlib.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(str(error)) from error


def _document(recorded: Recorded) -> dict[str, Any]:
    try:
        found = json.loads(recorded) if isinstance(recorded, str) else _unpack(recorded, {})
    except ValueError as error:
        raise _damaged(str(error)) from error
    if not isinstance(found, dict):
        raise _damaged("no document")
    return found


def _damaged(why: str) -> BadInput:
    return BadInput(
        f"what was recorded of an incident cannot be read: {why}", where=_WHERE,
        next_step="restore the database from a backup, or open the incident again",
    )
