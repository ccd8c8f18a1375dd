"""What the workflow library keeps in its tables, read as the plain values that this program writes there.

The library pickles what it records, and a pickle is a program: whoever can put a row into the database, by a backup
that is restored or by rights on a server, would have his code run by the daemon, as root. Here no pickle names
anything that is to be called. The library reads rows by a serializer of its own whatever its configuration says, so
that this one takes its place, in every process that imports this module.
"""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

from dbos._serialization import DefaultSerializer


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a recorded value would call {module[:80]}.{name[:80]}")


def plain_value(text: str) -> Any:
    """Text, numbers, lists and the like of a base64 pickle. Raises `ValueError` for anything else."""
    try:
        return _Plain(io.BytesIO(base64.b64decode(text, validate=True))).load()
    except Exception as error:  # what a broken pickle raises is any error
        raise ValueError(f"no plain value: {error}") from error


DefaultSerializer.deserialize = lambda _self, text: plain_value(text)  # type: ignore[method-assign,assignment]
