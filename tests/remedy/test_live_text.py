"""Patterns in live lines: the quick way finds what a search of every line finds."""

from __future__ import annotations

import re

import pytest

from runbook.locations import data_folder
from runbook.model.template import TemplateFile
from runbook.remedy import first_uncommented_match, load_levers, needed_words
from tests.levers.lever_cases import load_cases


@pytest.mark.parametrize("pattern, words", [
    (r"\bpretrain_\w+\.py\b", ("pretrain_",)),
    (r"--(?:tensor|pipeline)-model-parallel-size\b", ("-model-parallel-size",)),
    (r"[Mm]egatron[-_]LM\b", ("egatron",)),
    (r"\bverl(?:\.|-|_|/|\b)", ("verl",)),
    (r"one|another\b", ("one", "another")),
    (r"one|(?:a|b)", ("",)),
    (r"(?-i:a)bc", ("",)),
    (r"ab?c", ("a",)),
    (r"ab+c", ("ab",)),
    (r"ab{2,3}cd", ("cd",)),
    (r"(?i)slime", ("",)),
    (r"x\x41yy", ("",)),
    (r"[]a]long", ("long",)),
    (r"a\.b\(c", ("a.b(c",)),
    (r"", ("",)),
])
def test_what_a_pattern_cannot_do_without(pattern: str, words: tuple[str, ...]) -> None:
    assert needed_words(pattern) == words


def test_every_mark_is_found_where_a_plain_search_finds_it() -> None:
    documents = load_levers(data_folder("playbooks") / "oom" / "levers")
    patterns = {mark.pattern for one in documents for mark in one.marks if mark.pattern}
    patterns |= {pattern for one in documents for pattern in one.excluded_by}
    patterns |= {pattern for one in documents for version in one.versions for pattern in version.marks}
    seen = 0
    for case in load_cases():
        for pattern in patterns:
            found = first_uncommented_match(pattern, case.files)
            assert found == _plainly(pattern, case.files), pattern
            seen += found is not None
    assert seen > 100


def _plainly(pattern: str, files: tuple[TemplateFile, ...]) -> tuple[str, TemplateFile, int] | None:
    for file in files:
        for number, line in enumerate(file.text.split("\n"), start=1):
            match = None if line.lstrip().startswith("#") else re.search(pattern, line)
            if match is not None:
                return match[0], file, number
    return None
