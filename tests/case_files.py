"""Cases that are written down in text files: `##### title`, then its parts, each a line `=== head` over its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

Part = tuple[str, str]
"""What stands behind `===`, and the text below it without the line ends at its end."""


def read_cases(folder: Path) -> Iterator[tuple[str, list[Part]]]:
    """Each case as "FILE: TITLE" and its parts, in the order of the files and of their text."""
    for path in sorted(folder.glob("*.txt")):
        for case in re.split(r"(?m)^##### ", path.read_text(encoding="utf-8"))[1:]:
            title, _, body = case.partition("\n")
            parts = [part.partition("\n") for part in re.split(r"(?m)^=== ", body)[1:]]
            yield f"{path.stem}: {title.strip()}", [(head.strip(), text.rstrip("\n")) for head, _, text in parts]
