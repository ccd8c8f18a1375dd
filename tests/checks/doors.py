"""The house has few doors: what a reader has to open is worth opening, and imports go round in no circle.

    python -m tests.checks.doors             # fails with each place; `make check` runs it
    python -m tests.checks.doors --write     # writes what is found to the list of what is still allowed

- A module of fewer than 150 lines that one other module alone imports is a paragraph of that one, unless it is a face.
- A module of more than 500 lines holds two things; a folder of more than twelve modules has sub-rooms.
- No module reaches itself by imports, those inside functions counted in.
- No function takes more than six parameters, `self` and `cls` aside.
- A file name stands once in the house, unless it is the same thing in two rooms.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from tests.checks.literals import PRODUCT, REPOSITORY, Finding, modules, verdict

ALLOWED = REPOSITORY / "tests" / "checks" / "doors.allowed"
FEWEST_LINES = 150
MOST_LINES = 500
MOST_IN_A_FOLDER = 12
MOST_PARAMETERS = 6
ON_THE_NODE = "runbook/probe/"
"""Shipped to nodes and run there by itself: each part is a process that may hang alone."""
ROOM_OF_COMMANDS = "runbook/cli/"
COMMAND_LINES = (f"{ROOM_OF_COMMANDS}command_line.py", f"{ROOM_OF_COMMANDS}file_commands.py")
FOUND_BY_NAME = ("runbook/steps/", ROOM_OF_COMMANDS, "runbook/checkpoints/")
"""Rooms whose modules are found by their names (a box, a command, a format) and imported by nobody or by one."""


def main() -> int:
    trees = dict(modules(PRODUCT))
    imports = {file: _imports(file, tree, trees) for file, tree in trees.items()}
    found = [*_paragraphs(trees, imports), *_sizes(trees), *_circles(imports), *_parameters(trees), *_names(trees)]
    return verdict(found, ALLOWED, "Merge what is one subject, divide what is two.")


def _face(file: str) -> bool:
    return PurePosixPath(file).name in ("__init__.py", "__main__.py")


def _imports(file: str, tree: ast.Module, trees: Mapping[str, ast.Module]) -> dict[str, int]:
    """The product's modules that a module imports, and where. Importing from a face counts as importing the face."""
    room = PurePosixPath(file).parent
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(room.parts[: len(room.parts) - node.level + 1]) + "." if node.level else ""
            base = f"{start}{node.module or ''}".rstrip(".")
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            for dotted in (name, name.rpartition(".")[0]):
                path = dotted.replace(".", "/")
                module = next((one for one in (f"{path}.py", f"{path}/__init__.py") if one in trees), None)
                if module is not None:
                    if module != file:
                        found.setdefault(module, node.lineno)
                    break
    return found


def _paragraphs(trees: Mapping[str, ast.Module], imports: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    importers = defaultdict(list)
    for file, of in imports.items():
        for module in of:
            importers[module].append(file)
    for file in trees:
        if _face(file) or file.startswith((ON_THE_NODE, *FOUND_BY_NAME)) or _lines(file) >= FEWEST_LINES:
            continue
        if len(importers[file]) == 1 and not _face(importers[file][0]):
            yield Finding(file, 1, f"is imported by {importers[file][0]} alone")


def _lines(file: str) -> int:
    return len((REPOSITORY / file).read_text(encoding="utf-8").splitlines())


def _sizes(trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    for file in trees:
        if _lines(file) > MOST_LINES:
            yield Finding(file, 1, f"has more than {MOST_LINES} lines")
    folders = Counter(str(PurePosixPath(file).parent) for file in trees if not _face(file))
    for folder, count in folders.items():
        if count > MOST_IN_A_FOLDER and not f"{folder}/".startswith(FOUND_BY_NAME):
            yield Finding(f"{folder}/", 1, f"has more than {MOST_IN_A_FOLDER} modules and no sub-rooms for them")


def _circles(imports: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """Each module of a circle, once. A face that brings together the modules of its room does not make one."""
    arrows = {
        file: {to for to in of if not (_face(to) and PurePosixPath(file).is_relative_to(PurePosixPath(to).parent))}
        for file, of in imports.items()
    }
    for file in arrows:
        seen: set[str] = set()
        ahead = list(arrows[file])
        while ahead:
            module = ahead.pop()
            if module not in seen:
                seen.add(module)
                ahead += arrows[module]
        if file in seen:
            yield Finding(file, 1, "reaches itself by imports")


def _parameters(trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    """A function that does a command takes each of its options by name."""
    commands = {node.name for file in COMMAND_LINES for node in trees[file].body if isinstance(node, ast.FunctionDef)}
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if file.startswith(ROOM_OF_COMMANDS) and node.name in commands:
                    continue
                every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                own = [one.arg for one in every if one.arg not in ("self", "cls")]
                if len(own) > MOST_PARAMETERS:
                    yield Finding(file, node.lineno, f"{node.name} takes more than {MOST_PARAMETERS} parameters")


def _names(trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    names = Counter(PurePosixPath(file).name for file in trees if not _face(file))
    for file in trees:
        if names[PurePosixPath(file).name] > 1:
            yield Finding(file, 1, "has a name that stands more than once in the house")


if __name__ == "__main__":
    sys.exit(main())
