"""`incident.json` as it is shown to others: the same document, with the values of secrets made unreadable."""

from __future__ import annotations

import json
from typing import Any

from runbook.errors import BadInput
from runbook.masking import MASK, masked
from runbook.report.clean import shorten

_LONGEST = 200_000


def masked_document(data: bytes, where: str = "incident.json") -> bytes:
    """The document with every text masked by its own shape and, in a list of words, by the option in front of it.
    Keys are the schema's own, and stay, as numbers do; a text of more than 200,000 characters is cut, and says so.
    Raises `BadInput` for what is no JSON."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {error}", where=where, next_step="restore the file from a backup") from error
    return json.dumps(_masked(document, {}), indent=1, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _masked(value: Any, known: dict[str, str]) -> Any:
    """`known`: texts masked before; the same lines stand in an incident many times."""
    if isinstance(value, str):
        shown = known.get(value)
        if shown is None:
            # Masked with some more than is shown, so that a secret is not cut in two and then shown by halves.
            shown = known[value] = shorten(masked(value[: _LONGEST + 10_000]), _LONGEST)
        return shown
    if isinstance(value, dict):
        return {word: _masked(item, known) for word, item in value.items()}
    if isinstance(value, list):
        told = [_masked(item, known) for item in value]
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
