"""Where sentences are made: of a code and its parameters, the words."""

from __future__ import annotations

from string import Formatter
from typing import Any

from runbook.model.sentences import NOTHING, Sentence
from runbook.model.units import in_gib


def in_words(sentence: Sentence) -> str:
    return _WORDS.vformat(sentence.code.value, (), dict(sentence.values))


class _Words(Formatter):
    """Formats of parameters beside Python's own, as `Wording` tells them."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Sentence):
            said = in_words(value)
            return said.rstrip("?") if format_spec == "?" else said.rstrip(".") if format_spec == "." else said
        if isinstance(value, (tuple, list)):
            return format_spec.join(self.format_field(item, "") for item in value if item != NOTHING)
        if format_spec.endswith("GiB"):
            return in_gib(value, int(format_spec[1:-3] or 2))
        return format(value, format_spec)


_WORDS = _Words()
