"""How the probe says what it does not know, and text as it may leave the node."""

from typing import Any, Dict

DOCUMENT = "runbook-node"
VERSION = 1
"""Of the document: fields are only ever added within a version."""


def unknown(reason: str) -> Dict[str, str]:
    """A figure that could not be read, with the reason for a person. It never means "fine"."""
    return {"unknown": clean(reason, 300)}


def is_unknown(value: Any) -> bool:
    """Whether a figure is one of those."""
    return isinstance(value, dict) and set(value) == {"unknown"}


def clean(text: str, limit: int = 400) -> str:
    """Without control characters, at most `limit` characters; a process names itself as it likes."""
    kept = "".join(character if character.isprintable() else " " for character in text).strip()
    return kept if len(kept) <= limit else kept[: limit - 1] + "\u2026"
