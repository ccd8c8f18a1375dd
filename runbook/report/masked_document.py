"""`incident.json` as it is shown to others: the same document, with the values of secrets made unreadable."""

from __future__ import annotations

import json
from typing import Any

from runbook.errors import BadInput
from runbook.masking import MASK, masked


def masked_document(data: bytes, where: str = "incident.json") -> bytes:
    """The document with every text masked: by its own shape, by the key that it stands under, and, in a list of words,
    by the option in front of it. Numbers and the document's shape stay. Raises `BadInput` for what is no JSON."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {error}", where=where, next_step="restore the file from a backup") from error
    return json.dumps(_masked(document, ""), indent=1, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _masked(value: Any, key: str) -> Any:
    if isinstance(value, str):
        return _text(value, key)
    if isinstance(value, dict):
        # {"name": "HF_TOKEN", "value": "…"}: an entry whose name stands beside its value.
        name = next((value[word] for word in ("name", "key") if isinstance(value.get(word), str)), "")
        return {
            masked(word): _masked(item, name if name and word in ("value", "old", "new") else word)
            for word, item in value.items()
        }
    if isinstance(value, list):
        told = [_masked(item, key) for item in value]
        for at in range(1, len(value)):
            if _is_option_with(value[at - 1], value[at]):
                told[at] = MASK
        return told
    return value


def _is_option_with(option: Any, word: Any) -> bool:
    """Whether two words of a command line are an option and its secret."""
    if not isinstance(option, str) or not isinstance(word, str) or not option.startswith("-") or "=" in option:
        return False
    together = f"{option} {word}"
    return masked(together) != together


def _text(text: str, key: str) -> str:
    shown = masked(text)
    if shown != text or not key or not text or "\n" in text:
        return shown
    named = f"{key}={text}"
    return MASK if masked(named) != named else shown
