"""What programs of a few lines take, by library: `cases/*.txt`.

A case is the program's files (`=== file PATH`, the first is the one that is run) and what is read: `=== options`, a
line an option (its names, type, `= default`, `{choices}`, `no: negation`, `stores: value`, `maybe` where it is under a
condition), and `=== program` with the rest: parsers, complete or why not, what it inherits, abbreviations, config.
`=== accepted`: the library's own parser is asked as well (tests/parsers/test_programs_read.py), with these words first.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.model.program import ProgramOption, ProgramOptions
from runbook.program import read_program
from tests.case_files import read_cases

CASES = dict(read_cases(Path(__file__).parent / "cases"))


def shown(option: ProgramOption) -> str:
    parts = [*option.names, option.type or "?"]
    parts += [f"= {option.default}"] if option.default is not None else []
    parts += ["{" + ", ".join(option.choices) + "}"] if option.choices else []
    parts += [f"no: {option.negation}"] if option.negation else []
    parts += [f"stores: {option.flag_value}"] if option.flag_value else []
    return " ".join(parts + (["maybe"] if option.conditional else []))


def told(program: ProgramOptions | None) -> str:
    if program is None:
        return "none"
    lines = [" ".join(("parsers:", *program.parsers)), *(["complete"] if program.complete else [])]
    lines += [f"open: {reason}" for reason in program.open_because]
    lines += [f"inherits: {name}" for name in program.inherits]
    lines += ["abbreviations"] if program.abbreviations else []
    return "\n".join(lines + [f"config: {path}" for path in program.config])


@pytest.mark.parametrize("title", CASES)
def test_what_a_program_takes(title: str) -> None:
    parts = CASES[title]
    files = {head.removeprefix("file "): text for head, text in parts if head.startswith("file ")}
    expected = {head: text for head, text in parts if not head.startswith("file ")}
    assert set(expected) <= {"options", "program", "accepted"}

    def source_of(path: str) -> bytes | None:
        return files[path].encode() if path in files else None

    program = read_program(next(iter(files)), source_of, search=["", "/site-packages"])
    assert told(program) == expected["program"]
    options = program.options if program is not None else ()
    assert "\n".join(shown(option) for option in options) == expected.get("options", "")
