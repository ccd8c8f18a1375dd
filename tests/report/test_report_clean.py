"""Hostile text made harmless."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.report.vocabulary.clean import clean, clean_line, cleaned_to, shorten, shorten_lines

CASES = {
    "colours": ("\x1b[1;31mred\x1b[0m text", "red text"),
    "title": ("\x1b]0;owned\x07after", "after"),
    "hyperlink": ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    "unterminated command ends with its line": ("a\x1b]0;never\nb", "a\nb"),
    "cursor": ("a\x1b[2J\x1b[1;1Hb", "ab"),
    "one-byte introducer": ("\x9b31mred", "red"),
    "bidirectional": ("file\u202egnp.exe\u2069", "filegnp.exe"),
    "zero width": ("ad\u200bmin\ufeff", "admin"),
    "tags": ("a\U000e0041b", "ab"),
    "null and bell": ("a\x00\x07b", "ab"),
    "carriage return": ("1 %\r2 %\r\n3 %", "1 %\n2 %\n3 %"),
    "not UTF-8": ("caf\udce9", "caf\ufffd"),
    "other scripts stay": ("Größe 模型 модель", "Größe 模型 модель"),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_cleaned(name: str) -> None:
    dirty, expected = CASES[name]
    assert clean(dirty) == expected


@given(st.text(st.characters(codec=None), max_size=300))
def test_what_is_clean_stays_so_and_prints(text: str) -> None:
    once = clean(text)
    assert clean(once) == once
    assert "\x1b" not in once
    assert "\n" not in clean_line(text)
    once.encode()


def test_a_huge_line_is_cut_and_said() -> None:
    text = shorten_lines("x" * 10_000_000, 10, 80)
    assert len(text) < 1_000
    assert "more characters" in text
    assert shorten("abcdef", 3) == "abc … (3 more characters)"
    assert shorten_lines("a\nb\nc", 3, 10) == "a\nb\nc"
    assert shorten_lines("a\nb\nc", 2, 10) == "a\nb\n… (1 more characters)"


@pytest.mark.parametrize("text", ["", "short", "a" * 90, "word " * 40, "\x1b[31m" * 3000 + "red", "é\u202e" * 200])
def test_what_is_shown_is_what_cleaning_all_of_it_would_show(text: str) -> None:
    assert cleaned_to(text, 80).startswith(clean(text)[:80].rstrip()[:40])
    assert len(cleaned_to(text, 80).partition(" … (")[0]) <= 80


def test_a_secret_that_the_window_cuts_in_two_is_not_shown() -> None:
    secret = "hf_" + "Ab1" * 12
    whole = "\x1b[0m" * 1179 + " --token " + secret  # what is cleaned away fills the window up to the secret's middle
    for more in range(40):
        found = cleaned_to("\x1b[m" * more + whole + " tail" * 2000, 80)
        assert secret[:12] not in found, more
