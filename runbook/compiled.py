"""What was made of documents, beside them as plain JSON: written when the wheel is built, and by `make setup`.

A compiled form says what it was made of. Where that is not what is there (a document or the program was changed, or
nothing was compiled), the documents are read themselves: it is never stale, only missing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook import __version__


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
