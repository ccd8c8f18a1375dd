"""What is read of a program's source is what its real parser takes: the programs of tests/program/cases.

Those with a part `accepted` are run by the library's own parser: with every option that was read, under its first name
and under its last, with every negation, and with an option that was not read. A case's words stand in that part.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from runbook.model.program import OpenReason, ProgramOption, ProgramOptions
from runbook.program import read_program
from tests.case_files import Part, read_cases

pytestmark = pytest.mark.parsers
REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = REPOSITORY / ".venv-parsers" / "bin" / "python"
_VALUES = {"integer": "3", "number": "0.5", "boolean": "true", "text": "x", "list": "2", "": "x"}
CASES = {
    title: parts for title, parts in read_cases(REPOSITORY / "tests" / "program" / "cases")
    if any(head == "accepted" for head, _ in parts)
}


def values(option: ProgramOption) -> list[str]:
    if option.type == "flag":
        return []
    return [option.choices[0] if option.choices else _VALUES[option.type]]


def written(option: ProgramOption, name: str, equals: bool) -> list[str]:
    """The option on a command line; `--name=value` for parsers that take nothing else."""
    given = values(option)
    if not name.startswith("-") or (equals and given):
        return [f"{name}={given[0] if given else 'true'}"]
    return [name, *given]


@pytest.mark.parametrize("title", CASES)
def test_the_programs_own_parser_takes_what_was_read_and_nothing_else(title: str, tmp_path: Path) -> None:
    files = {head.removeprefix("file "): text for head, text in CASES[title] if head.startswith("file ")}
    for path, text in files.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    program = read_program(
        next(iter(files)), lambda path: files[path].encode() if path in files else None, search=[""]
    )
    assert program is not None
    lines = command_lines(CASES[title], program)
    job = {"folder": str(tmp_path), "file": next(iter(files)), "lines": [words for _, words, _ in lines]}
    assert PYTHON.exists(), "run tests/parsers/prepare first"
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("run_program.py"))], input=json.dumps(job), capture_output=True,
        text=True, timeout=150, check=False,
    )
    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout)
    wrong = [f"{what}: {words}" for (what, words, expected), was in zip(lines, taken, strict=True) if was != expected]
    assert not wrong, f"{wrong}\n{done.stderr[-2000:]}"


def command_lines(parts: list[Part], program: ProgramOptions) -> list[tuple[str, list[str], bool]]:
    """What it shows, its words, and whether the program should take them."""
    front = next(text for head, text in parts if head == "accepted").split()
    equals = program.parsers == ("globals",)
    options = [option for option in program.options if option.dest not in ("config", "config_path")]
    options = [option for option in options if not option.conditional]
    first = [word for option in options for word in written(option, option.names[0], equals)]
    found = [
        ("every option", [*front, *first], True),
        ("other names", [*front, *(w for option in options for w in written(option, option.names[-1], equals))], True),
    ]
    negated = [option for option in options if option.negation]
    others = [word for option in options if option not in negated for word in written(option, option.names[0], equals)]
    if negated:
        found.append(("negations", [*front, *others, *(option.negation for option in negated)], True))
    if program.complete:
        unknown = "--surely-not-an-option"
        found.append(("an unknown option", [*front, *first, f"{unknown}=1" if equals else unknown, "1"], False))
    elif all(reason.startswith(OpenReason.UNKNOWN_KEPT) for reason in program.open_because):
        found.append(("an unknown option that is kept", [*front, *first, "--surely-not-an-option", "1"], True))
    return found
