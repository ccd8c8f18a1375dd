"""Whether a message stands in a line as its speaker says it, or inside a sentence that quotes it.

A model's samples, a chat, a data set and a help text hold the words of the kernel, of Slurm and of PyTorch. The
kernel's and Slurm's own lines begin with the message, behind what launchers, collectors and loggers put in front of a
line. An exception's message stands behind its class, a logger's prefix, or words that end in a colon."""

from __future__ import annotations

import re
from functools import lru_cache

from runbook.evidence.signatures import AT_START, OUTSIDE_PROSE, Match

_PREFIXES_AT_MOST = 12
_LOOKED_AT = 2_000
_TOKEN = re.compile(r"\s*(\S{1,80})(?=\s|$)\s*")
_TIME_WORD = re.compile(
    r"[\[(]?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|UTC|GMT|AM|PM)[,.]?$"
)
_LEVEL = re.compile(
    r"[\[(<|]{0,2}(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|ERR|CRITICAL|FATAL|SEVERE|stderr|stdout"
    r"|error|fatal|critical)[\])>|:,-]{0,2}$"
)
_CLASS = re.compile(r"(?<=[A-Za-z])(?:Error|Exception)\b|\bwhat\(\)|\bterminate called")
_CLASS_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_."
_JSON_LOG = re.compile(r"\{[^\n]{0,1500}\"(?:message|msg|MESSAGE|log|event)\" ?: ?\"")
_LOGGED = re.compile(r"(?:ERROR|CRITICAL|FATAL|error|fatal)\S{0,3} [\w.:/-]{1,80}$")


def is_quoted(match: Match, text: str, raised: bool) -> bool:
    """Whether a match in a line (without its launcher's prefix) may be a quotation, by where its signature must stand.
    `raised`: the line ends a traceback, so it is the exception itself."""
    if match.signature.stands == AT_START:
        return _late_in_line(text[: match.start], match.signature.opening)
    if match.signature.stands == OUTSIDE_PROSE:
        return not raised and _in_prose(text, match.start or _literal(match, text), match.start)
    return False


def _late_in_line(before: str, opening: str) -> bool:
    """Whether something else than prefixes and the speaker's name stands in front of the message."""
    if not before.strip():
        return False
    if len(before) > _LOOKED_AT:
        return True
    logged = _JSON_LOG.match(before)
    position = logged.end() if logged is not None else 0
    for _ in range(_PREFIXES_AT_MOST):
        if opening and _compiled(opening).fullmatch(before, position):
            return False
        found = _TOKEN.match(before, position)
        if found is None or not _is_prefix(found[1]):
            break
        position = found.end()
    return position < len(before)


def _is_prefix(token: str) -> bool:
    """A stamp, a host or a rank (they hold a digit), a level, punctuation: no word of a sentence."""
    letters = sum(1 for one in token if one.isalpha())
    return not letters or any(one.isdigit() for one in token) or bool(_LEVEL.match(token) or _TIME_WORD.match(token))


def _literal(match: Match, text: str) -> int:
    """Where the words themselves begin, for a pattern that begins with the line."""
    places = [text.find(literal) for literal in match.signature.literals]
    return min((place for place in places if place >= 0), default=0)


def _in_prose(text: str, words: int, start: int) -> bool:
    """Whether words of a sentence run up to the message, or up to the exception's class in front of it."""
    found = _CLASS.search(text, 0, min(words, start + _LOOKED_AT))
    head = (text[: found.start()].rstrip(_CLASS_LETTERS) if found is not None else text[:start])[-_LOOKED_AT:]
    if "Traceback (most recent call last)" in head:
        return False
    bare = head.rstrip(" \t\"'`\u201c\u2018([{<\\")
    if not bare.strip() or head.rstrip(" \"'").endswith(("\\n", "\\t")):
        return False
    last = bare.split()[-1]
    if not (bare[-1].isalpha() or bare[-1] == ",") or _LEVEL.match(last) or _is_prefix(last):
        return False
    return not _LOGGED.search(bare[-160:])


@lru_cache(maxsize=64)
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)
