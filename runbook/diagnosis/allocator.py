"""The allocator's settings in force, and whether this PyTorch reads the variable that holds them.

What the log shows of its own environment outweighs the launch script: a container or a framework may set it anew.
"""

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
_ROUNDUP = re.compile(r"roundup_power2_divisions\s*:", re.IGNORECASE)
_IN_FORCE = "expandable segments mode"
_UNSUPPORTED = "expandable_segments not supported"
"""What PyTorch itself says in a log; the reader of logs keeps these words as names without a value."""


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What is known about expandable segments, a memory fraction and the rounding of requests."""

    expandable: bool
    """Set, and read by this PyTorch as far as its version is known."""
    ignored: str = ""
    """Why a setting that is there has no effect, in a sentence."""
    fraction: float | None = None
    known: bool = False
    """Whether any allocator variable was among the settings, or the log tells the state."""
    rounds_up: bool = False
    """roundup_power2_divisions: requests are rounded up to shares of a power of two (R-07)."""


def allocator_settings(
    settings: Mapping[str, str], version: str | None, said: Mapping[str, str] | None = None
) -> AllocatorSettings:
    """Read the template's parameters, and what the log `said` of its own environment. `version` is "2.6.0" or a range
    "2.4-2.9"; None where unknown.

    PYTORCH_ALLOC_CONF has no effect before 2.9 and does not reach the CUDA allocator in 2.9 (pytorch issue 183387);
    later, of several variables the CUDA one is read."""
    said = said or {}
    printed = {name for name in said if name.upper() in _NAMES}
    expandable, ignored, fraction, rounds_up = False, "", None, False
    named = {name.upper(): value for name, value in settings.items() if name.upper() in _NAMES} if not printed else {}
    named |= {name.upper(): said[name] for name in printed}
    variables = {_NAMES[name] for name in named}
    newest = newest_minor(version)
    for name, value in named.items():
        on = bool(_ON.search(value)) or (name == "EXPANDABLE_SEGMENTS" and value.strip().lower() == "true")
        unread = _why_unread(newest, CUDA_NAME in variables) if _NAMES[name] == NEW_NAME else ""
        if unread:
            ignored = f"{NEW_NAME} sets expandable_segments, but {unread}" if on else ignored
            continue
        found = _FRACTION.search(value)
        fraction = float(found[1]) if found and found[1].replace(".", "", 1).isdigit() else fraction
        rounds_up = rounds_up or bool(_ROUNDUP.search(value))
        expandable = expandable or on
    if _UNSUPPORTED in said:
        expandable, ignored = False, "The log says that expandable_segments is not supported on this platform"
    elif _IN_FORCE in said:
        expandable = True
    known = bool(named) or _UNSUPPORTED in said or _IN_FORCE in said
    return AllocatorSettings(expandable, "" if expandable else ignored, fraction, known, rounds_up)


def _why_unread(newest: int | None, beside_cuda_name: bool) -> str:
    """Why the newer variable's value does not reach the CUDA allocator; "" where it does, or may."""
    if newest is not None and newest < 10:
        return (
            f"PyTorch 2.{newest} does not read that variable for CUDA ({CUDA_NAME} is the name it reads)"
        )
    return f"{CUDA_NAME} is set too, and it is the one that PyTorch reads" if beside_cuda_name else ""


def newest_minor(version: str | None) -> int | None:
    """Minor number of the newest PyTorch 2 that "2.6.0" or "2.4-2.9" allows; 0 for PyTorch 1, None for unknown."""
    numbers = _minors(version)
    return numbers[-1] if numbers else None


def oldest_minor(version: str | None) -> int | None:
    """As `newest_minor`, for the oldest."""
    numbers = _minors(version)
    return numbers[0] if numbers else None


def _minors(version: str | None) -> list[int]:
    return [int(minor) if int(major) >= 2 else 0 for major, minor in re.findall(r"(\d+)\.(\d+)", version or "")]
