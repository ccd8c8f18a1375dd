"""`runbook node --json`: the check as a versioned document; facts and judgement are those of `incident.json`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from runbook.model.node import NodeCheck
from runbook.report.codec import encoded

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VERSION = 1
"""Fields are only ever added within a version."""


@cache
def adapter() -> TypeAdapter[NodeCheck]:
    from pydantic import TypeAdapter

    return TypeAdapter(NodeCheck)


def dump(check: NodeCheck) -> bytes:
    """The document as UTF-8 JSON, ending with a newline."""
    return encoded({"version": VERSION, **adapter().dump_python(check, mode="json", warnings="error")})
