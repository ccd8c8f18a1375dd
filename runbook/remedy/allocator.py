"""Options of PyTorch's CUDA caching allocator: which variable is read, and how options go together."""

from __future__ import annotations

import re

CUDA_NAME = "PYTORCH_CUDA_ALLOC_CONF"
NEW_NAME = "PYTORCH_ALLOC_CONF"
NEW_NAME_SINCE = (2, 10)
"""First version whose CUDA allocator reads `PYTORCH_ALLOC_CONF`: absent up to 2.8, parsed but without effect on CUDA
in 2.9 (pytorch#183387); the CUDA name works everywhere."""

_VERSION = re.compile(r"(\d+)\.(\d+)")


def parse(text: str) -> dict[str, str] | None:
    """Options in order; None when the text is not a list of `key:value`. Values in brackets keep their commas."""
    options: dict[str, str] = {}
    for part in re.split(r",(?![^\[]*\])", text):
        part = part.strip()
        if not part:
            continue
        key, colon, value = part.partition(":")
        if not colon or not re.fullmatch(r"[A-Za-z_0-9]+", key.strip()):
            return None
        options[key.strip()] = value.strip()
    return options


def join(options: dict[str, str]) -> str:
    return ",".join(f"{key}:{value}" for key, value in options.items())


def oldest_version(text: str | None) -> tuple[int, int] | None:
    """The oldest version that a text like "2.6.0" or "2.4-2.13" allows; None when it names none."""
    match = _VERSION.search(text or "")
    return (int(match.group(1)), int(match.group(2))) if match else None


def reads_new_name(version: str | None) -> bool:
    """Whether every version that the text allows reads `PYTORCH_ALLOC_CONF` on CUDA. Unknown: no."""
    oldest = oldest_version(version)
    return oldest is not None and oldest >= NEW_NAME_SINCE


def knows_expandable_segments(version: str | None) -> bool:
    """In wheels since 2.1; an unknown version is taken to be newer than that only where the caller says so."""
    oldest = oldest_version(version)
    return oldest is None or oldest >= (2, 1)
