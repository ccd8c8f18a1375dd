"""What was made of documents, beside them as plain JSON: written when the wheel is built, and by `make setup`.

A compiled form says what it was made of. Where that is not what is there (a document or the program was changed, or
nothing was compiled), the documents are read themselves: it is never stale, only missing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from runbook import __version__

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Compiled:
    """The place of one compiled form, and what it has to be made of."""

    path: Path
    key: str

    @classmethod
    def of(
        cls, source: Path, documents: Iterable[Path], made_by: Sequence[Path], words: Iterable[str] = ()
    ) -> Compiled | None:
        """Of a folder of documents or a single one. `documents` and `made_by` (the program's own files) count by their
        contents, `words` as they are. None where one of them cannot be read."""
        key = hashlib.sha256()
        try:
            for path in (*documents, *made_by):
                content = path.read_bytes()
                key.update(f"{path.name}\0{len(content)}\0".encode() + content)
        except OSError:
            return None
        key.update("\0".join((__version__, *words)).encode())
        return cls(source.parent / "compiled" / f"{source.stem}.json", key.hexdigest())

    def read(self) -> Any:
        """What was compiled of the same; None where there is no such thing."""
        try:
            content = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return content.get("content") if isinstance(content, dict) and content.get("key") == self.key else None

    def write(self, content: object) -> None:
        """Keep `content`, whole or not at all. Raises `OSError`."""
        self.path.parent.mkdir(exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"key": self.key, "content": content}, separators=(",", ":")), encoding="utf-8")
        temporary.replace(self.path)


@dataclass(frozen=True, slots=True)
class CompiledDocuments(Generic[_Made]):
    """What is made of documents, by way of their compiled form."""

    compiled: Compiled | None
    read: Callable[[], _Made]
    """Reads and checks the documents themselves. Raises `DocumentsInvalid` with all problems."""
    plain: Callable[[_Made], Any]
    restored: Callable[[Any], _Made]
    """What `plain` was made of. Raises `AttributeError`, `KeyError`, `TypeError` or `ValueError` where it does not
    fit."""

    def load(self) -> _Made:
        """Out of the compiled form; out of the documents where there is none of what they are now."""
        plain = self.compiled.read() if self.compiled is not None else None
        if plain is not None:
            try:
                return self.restored(plain)
            except (AttributeError, KeyError, TypeError, ValueError):
                pass  # another program's, or changed by hand
        return self.read()

    def keep(self) -> _Made:
        """Write the compiled form. Raises `DocumentsInvalid`, and `RuntimeError` where the form tells less than they
        do."""
        made = self.read()
        plain = self.plain(made)
        if self.compiled is None or self.restored(json.loads(json.dumps(plain))) != made:
            raise RuntimeError(f"{type(made).__name__} cannot be compiled")
        self.compiled.write(plain)
        return made
