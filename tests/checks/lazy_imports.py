"""Imports inside functions: only where start-up is measured to need them.

    python tests/checks/lazy_imports.py               # fails with each place; `make check` runs it
    python tests/checks/lazy_imports.py --measure     # writes the table anew, with what each costs here

The table lists file, imported module, and the processor's milliseconds that the import takes once the file's own module
is loaded. What costs less than `LEAST_MS` is imported at the top. Commands are imported when they are run
(`cli/main.py`), so that a command's module imports at its top whatever the command always needs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("lazy_imports.table")
LEAST_MS = 1.0
_RUNS = 3

Place = tuple[str, str]
"""File and imported module."""


def main(arguments: list[str]) -> int:
    found = dict(_found())
    if "--measure" in arguments:
        costs = {place: _cost_ms(place[0], statement) for place, (_, statement) in found.items()}
        lines = [f"{file:<46} {module:<48} {cost:8.1f}\n" for (file, module), cost in costs.items() if cost >= LEAST_MS]
        TABLE.write_text("".join(lines), encoding="utf-8")
    rows = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines()]
    listed = {(file, module): float(cost) for file, module, cost in rows}
    problems = [
        f"{file}:{line}: {module} is imported inside a function and not in {TABLE.name}: import it at the top"
        for (file, module), (line, _) in found.items() if (file, module) not in listed
    ]
    gone = listed.keys() - found.keys()
    problems += [f"{TABLE.name}: {file} does not import {module} inside a function any more" for file, module in gone]
    problems += [
        f"{TABLE.name}: {module} costs {file} {cost} ms: import it at the top"
        for (file, module), cost in listed.items() if cost < LEAST_MS
    ]
    for problem in sorted(problems):
        print(problem)
    return 1 if problems else 0


def _found() -> Iterator[tuple[Place, tuple[int, str]]]:
    """Each import inside a function: its line, and its statement."""
    for path in sorted((REPOSITORY / "runbook").rglob("*.py")):
        file = path.relative_to(REPOSITORY).as_posix()
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and not node.level:
                    yield (file, node.module or ""), (node.lineno, ast.unparse(node))
                elif isinstance(node, ast.Import):
                    yield (file, node.names[0].name), (node.lineno, ast.unparse(node))


def _cost_ms(file: str, statement: str) -> float:
    """Of the statement in a new process that has loaded the file's module; the least of several."""
    host = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    script = f"import time, {host}\nbegan = time.process_time()\n{statement}\nprint(time.process_time() - began)"
    command = [sys.executable, "-c", script]
    answers = [
        subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout for _ in range(_RUNS)
    ]
    return 1000 * min(map(float, answers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
