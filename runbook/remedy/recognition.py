"""Which system a job runs, told from its template and its log."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from functools import lru_cache

from runbook.model.log import LogStory
from runbook.model.template import TemplateFile
from runbook.remedy.lever_document import LeverDocument

# Searching patterns in the live lines of a template: those that are no comments, one line at a time.
#
# Documents have hundreds of patterns and configurations thousands of lines, so a line is looked at only where it holds
# the words that the pattern cannot match without.

_QUANTIFIERS = "*?{"
_PUNCTUATION = frozenset("""!"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ """)


def first_uncommented_match(pattern: str, templates: Sequence[TemplateFile]) -> tuple[str, TemplateFile, int] | None:
    """The first match, its file and its line's number; None where no live line has one."""
    for file in templates:
        found = _first_in(pattern, file)
        if found is not None:
            return found[0], file, found[1]
    return None


@lru_cache(maxsize=256)
def code_alone(file: TemplateFile) -> TemplateFile:
    """A Python file with blanks for its comments and for texts that are statements of their own: docstrings. As it is
    where it is no Python that can be read."""
    return _without_texts(file, every=False)


@lru_cache(maxsize=64)
def names_alone(file: TemplateFile) -> TemplateFile:
    """The same with blanks for all texts."""
    return _without_texts(file, every=True)


def _without_texts(file: TemplateFile, *, every: bool) -> TemplateFile:
    if not every and "#" not in file.text and '"""' not in file.text and "'''" not in file.text:
        return file
    lines = io.StringIO(file.text).readlines()
    alone = True
    try:
        for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and (alone or every)):
                _blank(lines, token.start, token.end)
            elif token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
                alone = True
            elif token.type != tokenize.NL:
                alone = False
    except (tokenize.TokenError, SyntaxError, ValueError):
        return file
    return TemplateFile(file.path, "".join(lines))


def _blank(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> None:
    for number in range(start[0], end[0] + 1):
        line = lines[number - 1]
        first = start[1] if number == start[0] else 0
        last = end[1] if number == end[0] else len(line.rstrip("\r\n"))
        lines[number - 1] = line[:first] + " " * (last - first) + line[last:]


@lru_cache(maxsize=1024)
def _first_in(pattern: str, file: TemplateFile) -> tuple[str, int] | None:
    """Remembered: a mark may exclude one system, recognise another and tell the version of a third."""
    compiled = re.compile(pattern)
    for start, end in _lines_with(file.text, needed_words(pattern)):
        line = file.text[start:end]
        match = compiled.search(line)
        if match is not None and not line.lstrip().startswith("#"):
            return match[0], file.text.count("\n", 0, start) + 1
    return None


def _lines_with(text: str, words: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Where the lines begin and end that hold one of these words."""
    if len(words) == 1:
        yield from _lines_with_one(text, words[0])
        return
    yield from sorted({place for word in words for place in _lines_with_one(text, word)})


def _lines_with_one(text: str, word: str) -> Iterator[tuple[int, int]]:
    at = 0
    while at <= len(text):
        found = text.find(word, at)
        if found < 0:
            return
        start = text.rfind("\n", at, found) + 1 or at
        end = text.find("\n", found)
        end = len(text) if end < 0 else end
        yield start, end
        at = end + 1


@lru_cache(maxsize=4096)
def needed_words(pattern: str) -> tuple[str, ...]:
    """Words of which one at least stands in whatever the pattern matches: of each alternative at its top the longest
    run of plain characters. One empty word where nothing is certain.

    Only what stands outside of groups and classes counts, and nothing where flags change what a character means."""
    if re.search(r"\(\?[aiLmsux-]+[):]", pattern):
        return ("",)
    words = tuple(dict.fromkeys(max(runs, key=len) for runs in _runs(pattern)))
    return words if all(words) else ("",)


def _runs(pattern: str) -> list[list[str]]:
    """The runs of plain characters of each alternative."""
    found: list[list[str]] = [[""]]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        runs = found[-1]
        size = 1
        plain: str | None = None
        if char == "|":
            found.append([""])
        elif char == "\\":
            size = 2
            escaped = pattern[at + 1 : at + 2]
            plain = escaped if escaped in _PUNCTUATION else None
            if plain is None and escaped not in "bBdDsSwWAZ":
                return [[""]]  # a back-reference, or a character by its number
        elif char == "[":
            size = _class_end(pattern, at) - at
        elif char == "(":
            size = _group_end(pattern, at) - at
        elif char not in ".^$*+?{}":
            plain = char
        after = pattern[at + size : at + size + 1]
        if plain is None or (after and after in _QUANTIFIERS):
            runs.append("")
        else:
            runs[-1] += plain
            if after == "+":
                runs.append("")
        at += size
        if char == "{":
            at = max(at, pattern.find("}", at) + 1)
    return found


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


def recognise(
    templates: Sequence[TemplateFile], story: LogStory, documents: Sequence[LeverDocument]
) -> LeverDocument | None:
    """The system with the heaviest marks; None when no system's marks are there, or two weigh the same.

    A fallback system is taken only when no other is recognised. Comments of the template do not count.
    """
    weights = {document.id: mark_weight(document, templates, story) for document in documents}
    for fallback in (False, True):
        found = [item for item in documents if item.fallback is fallback and weights[item.id] and not item.roles]
        best = max((weights[item.id] for item in found), default=0)
        chosen = [item for item in found if weights[item.id] == best]
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            return None
    return None


def mark_weight(document: LeverDocument, templates: Sequence[TemplateFile], story: LogStory) -> int:
    """The sum of the marks that are there."""
    if any(first_uncommented_match(pattern, templates) for pattern in document.excluded_by):
        return 0
    return sum(
        mark.weight
        for mark in document.marks
        if (mark.framework and mark.framework == story.framework)
        or (mark.pattern and first_uncommented_match(mark.pattern, templates))
    )
