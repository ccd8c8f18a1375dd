"""The document of node answers: what one round trip to a node brings back, cut into named sections.

A node answers with text between marker lines, each carrying a word that only this question knows, so that nothing
a process or the kernel prints can pass for a marker. Whoever asks (nvidia-smi today, a probe later) adds sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_TIMED_OUT = frozenset({124, 137})


@dataclass(frozen=True, slots=True)
class Section:
    """One command's answer. `exit_code` is None when the command had not ended when the answer was cut off."""

    text: str
    exit_code: int | None

    @property
    def timed_out(self) -> bool:
        """The remote `timeout` ended it, or it never ended at all."""
        return self.exit_code is None or self.exit_code in _TIMED_OUT

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(line for line in self.text.split("\n") if line.strip())


@dataclass(frozen=True, slots=True)
class NodeAnswers:
    """All sections by name; of two with the same name the later one counts. `cut` says that the end is missing."""

    sections: Mapping[str, Section] = field(default_factory=dict)
    cut: bool = False

    def get(self, name: str) -> Section | None:
        return self.sections.get(name)

    def value(self, name: str, key: str) -> str:
        """The first `key=value` line of a section, or ""."""
        return next(iter(self.values(name, key)), "")

    def values(self, name: str, key: str) -> tuple[str, ...]:
        """All `key=value` lines of a section in their order."""
        section = self.sections.get(name)
        prefix = f"{key}="
        lines = section.lines if section else ()
        return tuple(line.removeprefix(prefix).strip() for line in lines if line.startswith(prefix))


def read_answers(text: str, marker: str) -> NodeAnswers:
    """Cut the text at lines `MARKER begin NAME`, `MARKER end NAME STATUS` and `MARKER done`.

    Text outside sections (a message of the day, shell warnings) is dropped."""
    sections: dict[str, Section] = {}
    name: str | None = None
    kept: list[str] = []
    done = False
    for line in text.replace("\r\n", "\n").split("\n"):
        words = line.split(" ")
        if words[0] != marker:
            if name is not None:
                kept.append(line)
            continue
        if name is not None:
            ends_it = words[1:3] == ["end", name]
            sections[name] = Section("\n".join(kept).strip("\n"), _status(words) if ends_it else None)
            name = None
        if words[1:2] == ["begin"] and len(words) == 3:
            name, kept = words[2], []
        elif words[1:2] == ["done"]:
            done = True
    if name is not None:
        sections[name] = Section("\n".join(kept).strip("\n"), None)
    return NodeAnswers(sections, cut=not done)


def _status(words: list[str]) -> int | None:
    return int(words[3]) if len(words) == 4 and words[3].isdecimal() else None


def printable(text: str, limit: int = 400) -> str:
    """Text of a node as it may be kept: no control characters, at most `limit` characters."""
    cleaned = "".join(character if character.isprintable() else " " for character in text).strip()
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"
