"""Figures of the node probe's document, one by one: a value of the type it must have, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from runbook.evidence.node_answers import printable
from runbook.model.units import Bytes, Unknown

NOT_THERE = Unknown("the probe's answer does not have it")


def why_not(value: object) -> Unknown:
    reason = value.get("unknown") if isinstance(value, dict) else None
    return Unknown(printable(reason, 300)) if isinstance(reason, str) and reason else NOT_THERE


def part_of(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def items_of(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def rows_of(value: object) -> list[Mapping[str, Any]]:
    return [row for row in items_of(value) if isinstance(row, dict)]


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def whole(row: Mapping[str, Any], name: str) -> int | Unknown:
    value = row.get(name)
    return value if is_whole(value) else why_not(value)


def size_of(row: Mapping[str, Any], name: str) -> Bytes | Unknown:
    value = whole(row, name)
    return value if isinstance(value, Unknown) else Bytes(value)


def flag(row: Mapping[str, Any], name: str) -> bool | Unknown:
    value = row.get(name)
    return value if isinstance(value, bool) else why_not(value)


def text_of(row: Mapping[str, Any], name: str, limit: int) -> str | Unknown:
    value = row.get(name)
    return printable(value, limit) if isinstance(value, str) else why_not(value)


def plain(value: str | Unknown) -> str:
    return "" if isinstance(value, Unknown) else value


def seconds(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11
    return float(value) if good and isinstance(value, int | float) else None
