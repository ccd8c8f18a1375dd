"""Configuration files that a job script writes before it hands them to the program: a copy on the disk is the last
run's, and what is changed there the script writes over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from runbook.model.template import TemplateFile

_WORD = r"""["']?([^\s"';&|()<>]{1,400})["']?"""
_REDIRECTED = re.compile(r"(?<![0-9&<>-])>{1,2}\|?[ \t]{0,8}" + _WORD)
_TEE = re.compile(r"\btee[ \t]{1,8}(?:-a[ \t]{1,8})?" + _WORD)
_IN_PLACE = frozenset({"sed", "yq", "perl"})
_COPIES = frozenset({"cp", "mv", "install", "ln"})


def writer_of(path: str, scripts: Iterable[TemplateFile]) -> tuple[str, int] | None:
    """The script and the line that write the file; None where none is seen to."""
    name = path.rsplit("/", 1)[-1]
    for script in scripts:
        if name not in script.text:
            continue
        for number, line in enumerate(script.text.split("\n"), 1):
            if name not in line or line.lstrip().startswith("#"):
                continue
            if any(_same(target, path) for target in _targets(line)):
                return script.path, number
    return None


def _targets(line: str) -> Iterator[str]:
    """The words of a line that name what it writes."""
    for pattern in (_REDIRECTED, _TEE):
        yield from (match[1] for match in pattern.finditer(line))
    words = line.split()
    if _IN_PLACE & set(words) and any(re.match(r"-[a-zA-Z]{0,4}i|--in-?place", word) for word in words):
        yield from (word.strip("\"';") for word in words)
    for part in re.split(r"[;&|()]", line):
        words = part.split()
        if len(words) > 2 and words[0] in _COPIES:
            yield words[-1].strip("\"'")


def _same(target: str, path: str) -> bool:
    """Whether the words name the file; a folder in a variable may be any."""
    target, path = target.removeprefix("./"), path.removeprefix("./")
    if "$" in target or "$" in path:
        return target.rsplit("/", 1)[-1] == path.rsplit("/", 1)[-1]
    return target == path or path.endswith(f"/{target}")
