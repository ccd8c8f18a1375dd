"""Searching patterns in the live lines of a template: those that are no comments, one line at a time.

Documents have hundreds of patterns and configurations thousands of lines, so a line is looked at only where it holds
the words that the pattern cannot match without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from runbook.model.template import TemplateFile

_QUANTIFIERS = "*?{"
_PUNCTUATION = frozenset("""!"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ """)


def first_seen(pattern: str, templates: Sequence[TemplateFile]) -> tuple[str, TemplateFile, int] | None:
    """The first match, its file and its line's number; None where no live line has one."""
    compiled, words = _prepared(pattern)
    for file in templates:
        for start, end in _lines_with(file.text, words):
            line = file.text[start:end]
            match = None if line.lstrip().startswith("#") else compiled.search(line)
            if match is not None:
                return match[0], file, file.text.count("\n", 0, start) + 1
    return None


def _lines_with(text: str, words: str) -> Iterator[tuple[int, int]]:
    """Where the lines begin and end that hold these words; all lines where there are none."""
    at = 0
    while at <= len(text):
        found = text.find(words, at)
        if found < 0:
            return
        start = text.rfind("\n", 0, found) + 1
        end = text.find("\n", found)
        end = len(text) if end < 0 else end
        yield start, end
        at = end + 1


@lru_cache(maxsize=4096)
def _prepared(pattern: str) -> tuple[re.Pattern[str], str]:
    return re.compile(pattern), needed_words(pattern)


def needed_words(pattern: str) -> str:
    """The longest run of plain characters without which the pattern matches nothing; "" where none is certain.

    Only what stands outside of groups and classes counts, and nothing where there are alternatives at the top or flags
    that change what a character means."""
    if "(?i" in pattern or "(?x" in pattern or "(?s" in pattern or "(?m" in pattern or "(?a" in pattern:
        return ""
    runs: list[str] = [""]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "|":
            return ""
        size = 1
        plain: str | None = None
        if char == "\\":
            size = 2
            escaped = pattern[at + 1 : at + 2]
            plain = escaped if escaped in _PUNCTUATION else None
            if plain is None and escaped not in "bBdDsSwWAZ":
                return ""  # a back-reference, or a character by its number
        elif char == "[":
            size = _class_end(pattern, at) - at
        elif char == "(":
            size = _group_end(pattern, at) - at
        elif char not in ".^$*+?{}":
            plain = char
        after = pattern[at + size : at + size + 1]
        if plain is None or (after and after in _QUANTIFIERS):
            if runs[-1]:
                runs.append("")
        else:
            runs[-1] += plain
            if after == "+":
                runs.append("")
        at += size
        if char == "{":
            at = max(at, pattern.find("}", at) + 1)
    return max(runs, key=len)


def _class_end(pattern: str, start: int) -> int:
    at = start + 1
    at += pattern[at : at + 1] == "^"
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _group_end(pattern: str, start: int) -> int:
    depth, at = 0, start
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        if char == "[":
            at = _class_end(pattern, at)
            continue
        depth += (char == "(") - (char == ")")
        at += 1
        if not depth:
            break
    return at
