"""The allocator's settings in force, and whether this PyTorch reads the variable that holds them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

CUDA_NAME = "PYTORCH_CUDA_ALLOC_CONF"
NEW_NAME = "PYTORCH_ALLOC_CONF"
_NAMES = {
    CUDA_NAME: CUDA_NAME, "PYTORCH_HIP_ALLOC_CONF": CUDA_NAME, "ALLOCATOR_CUDA": CUDA_NAME,
    "EXPANDABLE_SEGMENTS": CUDA_NAME, NEW_NAME: NEW_NAME, "ALLOCATOR_NEWER": NEW_NAME,
}
"""The variables, and the ids under which lever documents name them."""
_ON = re.compile(r"(?:^|[,\s'\"])expandable_segments\s*[:=]\s*true\b", re.IGNORECASE)
_FRACTION = re.compile(r"(?:^|,)\s*per_process_memory_fraction\s*:\s*([0-9.]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What is known about expandable segments and a memory fraction."""

    expandable: bool
    """Set, and read by this PyTorch as far as its version is known."""
    ignored: str = ""
    """Why a setting that is there has no effect, in a sentence."""
    fraction: float | None = None
    known: bool = False
    """Whether any allocator variable was among the settings."""


def allocator_settings(settings: Mapping[str, str], version: str | None) -> AllocatorSettings:
    """Read the template's parameters. `version` is "2.6.0" or a range "2.4-2.9"; None where unknown.

    PYTORCH_ALLOC_CONF has no effect before 2.9 and does not reach the CUDA allocator in 2.9 (pytorch issue 183387)."""
    expandable, ignored, fraction, known = False, "", None, False
    named = {name.upper(): value for name, value in settings.items() if name.upper() in _NAMES}
    variables = {_NAMES[name] for name in named}
    for name, value in named.items():
        known = True
        on = bool(_ON.search(value)) or (name == "EXPANDABLE_SEGMENTS" and value.strip().lower() == "true")
        found = _FRACTION.search(value)
        fraction = float(found[1]) if found else fraction
        if not on:
            continue
        newest = newest_minor(version)
        if _NAMES[name] == NEW_NAME and CUDA_NAME not in variables and newest is not None and newest < 10:
            ignored = (
                f"{NEW_NAME} sets expandable_segments, but PyTorch 2.{newest} does not read that variable for CUDA "
                f"({CUDA_NAME} is the name it reads)"
            )
            continue
        expandable = True
    return AllocatorSettings(expandable, ignored, fraction, known)


def newest_minor(version: str | None) -> int | None:
    """Minor number of the newest PyTorch 2 that "2.6.0" or "2.4-2.9" allows; 0 for PyTorch 1, None for unknown."""
    numbers = re.findall(r"(\d+)\.(\d+)", version or "")
    if not numbers:
        return None
    major, minor = numbers[-1]
    return int(minor) if int(major) >= 2 else 0

