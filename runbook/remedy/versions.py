"""PyTorch versions as a log tells them: one, a range, or unknown."""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Versions:
    """The lowest and highest version that it can be; None: not bounded."""

    lowest: Version | None = None
    highest: Version | None = None
    said: str = ""

    def surely_at_least(self, version: Version) -> bool:
        return self.lowest is not None and self.lowest >= version

    def surely_below(self, version: Version) -> bool:
        return self.highest is not None and self.highest < version


def read_versions(text: str) -> Versions:
    """ "2.6.0", "2.4-2.13", ">=2.4", "2.4+", "<2.1", "<=2.0", "" (unknown)."""
    numbers = [(int(major), int(minor)) for major, minor in re.findall(r"(\d+)\.(\d+)(?:\.\d+)?", text)]
    stripped = text.strip()
    if not numbers:
        return Versions(said=text)
    first = numbers[0]
    if len(numbers) >= 2 and "-" in stripped:
        return Versions(first, numbers[1], text)
    if stripped.startswith("<="):
        return Versions(None, first, text)
    if stripped.startswith("<"):
        return Versions(None, (first[0], first[1] - 1), text)
    if stripped.startswith(">") or re.search(r"\d(?:\+|-)$", stripped):
        return Versions(first, None, text)
    return Versions(first, first, text)
