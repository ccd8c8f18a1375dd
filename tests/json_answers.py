"""Holds what a command prints with `--json` against its published schema, as narrowly as that can be read: nothing may
be missing, and nothing may be printed that the schema does not name."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

DOCS = Path(__file__).resolve().parents[1] / "docs"


def check_answer(schema: str, document: object) -> None:
    """`schema`: the file below docs/."""
    problems = [
        f"{'.'.join(map(str, problem.absolute_path)) or 'the whole'}: {problem.message[:300]}"
        for problem in _validator(schema).iter_errors(document)
    ]
    assert not problems, f"docs/{schema}: " + "\n".join(problems[:5])


@cache
def _validator(schema: str) -> Draft202012Validator:
    document = json.loads((DOCS / schema).read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(_closed(document))


def _closed(schema: Any) -> Any:
    """The same, where an object may have no other keys than those that are named."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed
