"""Hostile text made harmless to look at: no terminal commands, no invisible characters, no reordering, no secrets."""

from __future__ import annotations

import json
import re
from typing import Any

from runbook.errors import BadInput
from runbook.masking import MASK, masked

_ANSI = re.compile(
    r"""\x1b(?:
        \[[0-?]*[ -/]*[@-~]              # CSI: colours, cursor
      | [\]PX^_].*?(?:\x07|\x1b\\|$)     # OSC, DCS, SOS, PM, APC up to their terminator: titles, hyperlinks
      | [ -/]*[0-~]                      # two-character sequences
    )|\x9b[0-?]*[ -/]*[@-~]""",
    re.VERBOSE | re.DOTALL,
)

_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 (tab, newline and carriage return are handled apart), DEL, C1
    "\u00ad\u061c\u180e"  # soft hyphen, Arabic letter mark, Mongolian vowel separator
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # zero width, bidirectional controls, line separators
    "\ufff9-\ufffb"  # interlinear annotation
    "\U000e0000-\U000e007f"  # tag characters
    "]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONG_ESCAPE = 4096


def clean(text: str) -> str:
    """Text of several lines: as `harmless`, and secrets are masked."""
    return masked(harmless(text))


def harmless(text: str) -> str:
    """Text of several lines: newlines and tabs stay, everything else that is not seen goes.

    Lone surrogates (bytes that were not UTF-8) become U+FFFD. Unicode TR 36 section 2.10 names the
    bidirectional and invisible characters that are misused to show one text and mean another.
    """
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text or "\x9b" in text:
        text = _without_escapes(text)
    text = _INVISIBLE.sub("", text)
    return _SURROGATE.sub("\ufffd", text)


def escaped(text: str) -> str:
    """The text of a JSON document with what is not seen in it as JSON's escapes: the same document."""
    return _INVISIBLE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _without_escapes(text: str) -> str:
    """An unterminated operating-system command must not swallow a whole log: it ends with its line."""
    return "\n".join(_ANSI.sub("", line[:_LONG_ESCAPE]) + line[_LONG_ESCAPE:] for line in text.split("\n"))


def clean_line(text: str) -> str:
    """As `clean`, on one line: line breaks and tabs become blanks."""
    return " ".join(clean(text).split())


class Cleaned(str):
    """Text that has been through `clean` already."""

    __slots__ = ()


def cleaned_to(text: str, limit: int) -> Cleaned:
    """Cleaned and shortened, at a cost that goes with `limit` and not with the text: only a window of it is looked at.

    Where what is cleaned away leaves less than `limit` of the window, the window's last word goes too: a secret that
    the window cuts in two has lost the shape by which it is known."""
    window = text[: 8 * limit + _LONG_ESCAPE]
    cleaned = clean(window)
    left_out = len(text) - len(window)
    if left_out and len(cleaned) <= limit:
        cleaned = cleaned.rpartition(" ")[0]
    left_out += max(len(cleaned) - limit, 0)
    return Cleaned(f"{cleaned[:limit].rstrip()} … ({left_out:,} more characters)" if left_out else cleaned)


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters, the cut said in words."""
    if len(text) <= limit:
        return text
    return f"{text[:limit].rstrip()} … ({len(text) - limit:,} more characters)"


def shorten_lines(text: str, lines: int, width: int) -> str:
    """At most `lines` lines of at most `width` characters each, the cut said in words."""
    # Only the part that can be shown is split: an excerpt may be a 10 MB line.
    window = text[: (lines + 1) * (width + 1)]
    rows = window.split("\n")
    shown = [row if len(row) <= width else row[:width] + " …" for row in rows[:lines]]
    left_out = len(text) - sum(len(row) + 1 for row in rows[:lines])
    if left_out > 0:
        shown.append(f"… ({left_out:,} more characters)")
    return "\n".join(shown)


# `incident.json` as it is shown to others: the same document, with the values of secrets made unreadable.

_LONGEST = 200_000


def masked_document(data: bytes, where: str = "incident.json", *, files: bool = True) -> bytes:
    """The document with every text masked by its own shape and, in a list of words, by the option in front of it.
    Keys are the schema's own, and stay, as numbers do; a text of more than 200,000 characters is cut, and says so.
    `files`: with the texts of scripts and configurations; no masking knows every secret of those, so where anybody may
    look, they are left out. Raises `BadInput` for what is no JSON."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {error}", where=where, next_step="restore the file from a backup") from error
    if not files:
        _leave_out_files(document)
    text = json.dumps(_masked(document, {}), indent=1, ensure_ascii=False)
    return escaped(_SURROGATE.sub("\ufffd", text)).encode() + b"\n"


NOT_SHOWN = "(not shown to those who are not signed in)"


def _leave_out_files(document: Any) -> None:
    """Every text of a template's file, which stands beside the file's path and nothing else, and what of it stands in a
    patch: lines of the diff, and bytes that were replaced. What was changed is told by the plan's edits."""
    values = [document]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            if value.keys() == {"path", "text"}:
                value["text"] = NOT_SHOWN
            if isinstance(value.get("diff"), str) and value["diff"] and "splices" in value:
                value["diff"], value["splices"] = NOT_SHOWN, []
            values += value.values()
        elif isinstance(value, list):
            values += value


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
