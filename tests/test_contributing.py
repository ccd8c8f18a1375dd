"""CONTRIBUTING.md names rooms, modules and words that are there, and its walks can be walked."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")

def _walks() -> list[list[tuple[str, str]]]:
    part = TEXT.partition("### Three walks")[2].partition("### Words")[0]
    walks: list[list[tuple[str, str]]] = []
    for number, path, name in re.findall(r"^(\d+)\. `(runbook/\S+\.py)` `(\w+)`", part, re.MULTILINE):
        if number == "1":
            walks.append([])
        walks[-1].append((path, name))
    return walks


def _imported(path: str) -> set[str]:
    """The modules that a module imports, and those that the rooms' faces among them bring along."""
    found: set[str] = set()
    ahead = [path]
    while ahead:
        source = ahead.pop()
        for node in ast.walk(ast.parse((REPOSITORY / source).read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("runbook"):
                continue
            for name in (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)):
                base = name.replace(".", "/")
                for file in (f"{base}.py", f"{base}/__init__.py"):
                    if (REPOSITORY / file).exists() and file not in found:
                        found.add(file)
                        ahead += [file] if file.endswith("__init__.py") else []
    return found


@pytest.mark.parametrize("walk", _walks(), ids=["a job", "a line", "a lever"])
def test_a_walk_has_at_most_ten_stops_and_each_is_there(walk: list[tuple[str, str]]) -> None:
    assert 5 <= len(walk) <= 10
    for path, name in walk:
        tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
        defined = {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        }
        assert name in defined, f"{path} has no {name}"


@pytest.mark.parametrize("walk", _walks(), ids=["a job", "a line", "a lever"])
def test_each_stop_is_reached_from_one_before_or_is_a_box_of_the_flow(walk: list[tuple[str, str]]) -> None:
    for number, (path, _) in enumerate(walk[1:], 1):
        if re.fullmatch(r"runbook/(steps|cli)/[^_].*\.py", path) and path.count("/") <= 3:
            continue  # boxes and commands are found by their names in documents and tables
        before = set().union(*(_imported(earlier) for earlier, _ in walk[:number]))
        assert path in before, f"{path} is imported by none of the stops before it"


def test_every_room_of_the_house_is_named_and_every_named_room_is_there() -> None:
    drawn = TEXT.partition("## Find your way")[2].partition("### Three walks")[0]
    named = set(re.findall(r"^      (\w+)/ ", drawn, re.MULTILINE))
    rooms = {path.parent.name for path in (REPOSITORY / "runbook").glob("*/__init__.py")}
    assert named == rooms


def test_the_words_are_at_most_forty_and_in_order() -> None:
    words = re.findall(r"^\| ([a-z][a-z -]*) \|", TEXT.partition("### Words")[2].partition("\n## ")[0], re.MULTILINE)
    words = [word for word in words if word != "word"]
    assert 20 <= len(words) <= 40
    assert len(set(words)) == len(words)
