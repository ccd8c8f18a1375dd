"""The files of a program, found as Python's imports find them and read through a callable, within limits."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from runbook.program.abstract_values import Module

MOST_FILES = 60
MOST_BYTES = 1 << 20
MOST_TOTAL = 8 << 20
MOST_LOOK_UPS = 3_000
"""Names of files that are asked for, there or not."""
_ANCESTORS = 5
_MOST_MISSES = 2
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(slots=True)
class Sources:
    """Modules by path. `search`: folders in which imports are looked for, in order."""

    source_of: Callable[[str], bytes | None]
    search: Sequence[str]
    found: dict[str, Module | None] = field(default_factory=dict)
    read_files: int = 0
    read_bytes: int = 0
    asked: int = 0
    full: bool = False
    """A limit was met."""
    unreadable: list[str] = field(default_factory=list)
    """Files that are there and are no Python that is understood."""
    _roots: dict[str, str] = field(default_factory=dict)
    """Where a package was found."""
    _missed: dict[str, int] = field(default_factory=dict)
    """How often nothing was found of a package."""
    _folders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _paths: dict[tuple[str, str], Module | None] = field(default_factory=dict)

    def module(self, path: str) -> Module | None:
        """The module in a file; None: not there, over the limits, or not understood."""
        if path in self.found:
            return self.found[path]
        self.found[path] = None
        self.asked += 1
        if self.asked > MOST_LOOK_UPS or self.read_files >= MOST_FILES:
            self.full = True
            return None
        data = self.source_of(path)
        if data is None:
            return None
        self.read_files += 1
        self.read_bytes += len(data)
        if len(data) > MOST_BYTES or self.read_bytes > MOST_TOTAL:
            self.full = True
            return None
        tree = parsed(data)
        if tree is None:
            self.unreadable.append(path)
            return None
        self.found[path] = Module(path, tree)
        return self.found[path]

    def named(self, dotted: str, folder: str | None, by: str) -> Module | None:
        """What `import dotted` finds from the file `by`; `folder` is that of a relative import."""
        key = (dotted, folder if folder is not None else str(PurePosixPath(by).parent))
        if key not in self._paths:
            folders = (folder,) if folder is not None else self._folders_for(by)
            self._paths[key] = self._first(dotted, folders)
        return self._paths[key]

    def installed_named(self, dotted: str) -> Module | None:
        """A module of a package that is installed where the program runs."""
        key = (dotted, "")
        if key not in self._paths:
            folders = [folder for folder in self.search if _installed(folder)]
            self._paths[key] = self._first(dotted, folders) if folders else None
        return self._paths[key]

    def _first(self, dotted: str, folders: Sequence[str]) -> Module | None:
        """In the folder where its package was found before; of a package that was missed often nothing is here."""
        root = dotted.partition(".")[0]
        known = self._roots.get(root) if len(folders) > 1 else None
        if known is None and self._missed.get(root, 0) >= _MOST_MISSES and len(folders) > 1:
            return None
        inside = dotted.replace(".", "/")
        for folder in (known,) if known is not None else folders:
            base = PurePosixPath(folder) / inside if inside else PurePosixPath(folder)
            for path in ((f"{base}.py", f"{base}/__init__.py") if inside else (f"{base}/__init__.py",)):
                module = self.module(path)
                if module is not None:
                    if len(folders) > 1:
                        self._roots[root] = folder
                    return module
        if len(folders) > 1 and dotted != root:  # a package may have no file of its own
            self._missed[root] = self._missed.get(root, 0) + 1
        return None

    def _folders_for(self, by: str) -> tuple[str, ...]:
        """The search folders, then those above the file: a package installed in place is imported from there."""
        start = str(PurePosixPath(by).parent)
        if start not in self._folders:
            above = [str(folder) for folder in PurePosixPath(start).parents][:_ANCESTORS]
            local = [folder for folder in self.search if not _installed(folder)]
            every = [*local, start, *(f for up in above for f in (up, str(PurePosixPath(up) / "src")))]
            self._folders[start] = tuple(dict.fromkeys(every))
        return self._folders[start]


def _installed(path: str) -> bool:
    return any(part in _INSTALLED for part in PurePosixPath(path).parts)


def parsed(data: bytes) -> ast.Module | None:
    """The syntax tree of a file; None: broken, or no Python."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return ast.parse(data.decode(encoding))
    except (SyntaxError, ValueError, RecursionError, MemoryError, LookupError):
        return None


def parsed_annotation(text: str) -> ast.expr | None:
    """An annotation that is written as text."""
    if len(text) > 500:
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

