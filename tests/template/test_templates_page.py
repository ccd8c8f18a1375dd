"""The examples of docs/templates.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from runbook import template

PAGE = Path(__file__).parents[2] / "docs" / "templates.md"


def test_the_examples_run() -> None:
    parts = re.split(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(parts) >= 13
    for at in range(0, len(parts), 2):  # blank lines for the prose, so that a failure names the page's own line
        parts[at] = "\n" * (parts[at].count("\n") + (at + 1 < len(parts)))
    exec(compile("".join(parts), str(PAGE), "exec"), {})


def test_every_public_function_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in template.__all__ if name != "NamedFile" and f"`{name}" not in text] == []
