"""How the figures and names in a log line are written, and how each becomes bytes, seconds or a number.

A signature's pattern names a field and its unit in one word: `<tried_bytes:size>`. The unit brings both the regular
expression and the reading. None of the expressions repeats a repetition, so a hostile line costs linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from runbook.model.log import ProcessUse
from runbook.model.units import Bytes

_SIZE = r"\d{1,15}(?:\.\d{1,6})? (?:bytes|[KMGT]iB)"
_NUMBER = r"-?\d{1,18}(?:\.\d{1,9})?(?:[eE][-+]?\d{1,3})?"
_SCALE = {
    "bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50, "EiB": 1 << 60,
}

SENTINEL_BYTES = 1 << 64
"""NVML's "not available", which PyTorch prints as 17179869184.00 GiB: never a size."""

ABSURD_BYTES = 1 << 50
"""A petabyte: no accelerator has it, so the request's size was garbage (R-13)."""

Value = int | float | str | tuple[ProcessUse, ...] | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Reading:
    """A value and, for sizes, the largest error that the print format puts on it, in bytes."""

    value: Value
    rounding_bytes: float = 0.0


def read_size(text: str) -> Reading:
    """PyTorch's size format: whole bytes up to 1024, else two decimals of a power of 1024 (0.005 units of error)."""
    number, unit = text.split(" ")
    scale = _SCALE[unit]
    value = round(float(number) * scale)
    if value >= SENTINEL_BYTES:
        return Reading(None)
    decimals = len(number.partition(".")[2])
    return Reading(value, 0.0 if scale == 1 else scale * 0.5 * 10.0 ** -decimals)


def _compact_size(text: str) -> Reading:
    """XLA's and TensorFlow's format, without a blank: "2.31GiB", "512B"."""
    digits = next(index for index, one in enumerate(text) if one in "KMGTPEB")
    return read_size(f"{text[:digits]} {text[digits:]}")


_AMOUNT = r"\d[\d,]{0,20}(?:\.\d{0,6})?\s?(?:[Bb]ytes?|[kKMGTP]i?[Bb]?(?:ytes)?|pages|B)(?![A-Za-z])"
_PAGE_BYTES = 4 << 10


def _amount(text: str) -> Reading:
    """Any program's way to write an amount: powers of 1024 whatever the letters (allocators count in them), with the
    error of the digits printed."""
    digits = re.match(r"[\d,.]+", text)
    number = digits[0].replace(",", "") if digits else "0"
    unit = text[len(digits[0]) if digits else 0:].strip()
    power = "kmgtp".find(unit[:1].lower()) + 1 if unit != "pages" else 0
    scale = _PAGE_BYTES if unit == "pages" else 1024**power
    return _scaled(scale)(number) if float(number) * scale < SENTINEL_BYTES else Reading(None)


def _whole_pages(text: str) -> Reading:
    """The kernel's kB: 1,024 bytes, of whole pages and therefore exact."""
    value = int(text) << 10
    return Reading(value if value < SENTINEL_BYTES else None)


def _scaled(scale: int) -> Callable[[str], Reading]:
    def read(text: str) -> Reading:
        decimals = len(text.partition(".")[2])
        if not 0 <= float(text) * scale < SENTINEL_BYTES:
            return Reading(None)
        return Reading(round(float(text) * scale), scale * 0.5 * 10.0 ** -decimals if scale > 1 else 0.0)

    return read


def _seconds(scale: float) -> Callable[[str], Reading]:
    return lambda text: _finite(float(text) * scale)


def _number(text: str) -> Reading:
    return _finite(float(text))


def _finite(value: float) -> Reading:
    """"9e999" is written as a number and is none."""
    return Reading(value if isfinite(value) else None)


def _seconds_each(text: str) -> Reading:
    """A rate in units a second; 0 has no duration."""
    rate = float(text)
    return _finite(1.0 / rate) if rate > 0 else Reading(None)


def _clock(text: str) -> Reading:
    """Seconds from "03:11" or "1:02:03"."""
    seconds = 0
    for part in text.split(":"):
        seconds = 60 * seconds + int(part)
    return Reading(float(seconds))


def _count_after(text: str) -> Reading:
    """How many there are, from the number of the last one, counted from 0."""
    return Reading(int(text) + 1)


def _integer(text: str) -> Reading:
    return Reading(int(text.replace(",", "").replace("_", "")))


def _text(text: str) -> Reading:
    return Reading(text.strip())


def _control_character(text: str) -> Reading:
    """PyTorch 2.3 printed the device index as a raw character: nothing (a NUL that ended the text) for GPU 0."""
    return Reading(ord(text) if text else 0)


_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
"""As Linux numbers them on the machines that train."""


def _signal(text: str) -> Reading:
    return Reading(_SIGNALS.get(int(text), text) if text.isdecimal() else text)


_PROCESS = re.compile(rf"(?:Process (\d{{1,10}})|this process) has ({_SIZE}) memory in use")


def read_processes(text: str) -> tuple[tuple[ProcessUse, ...], Reading | None]:
    """The process clauses of a message: the other processes, and what "this process" uses if it is named."""
    others: list[ProcessUse] = []
    own: Reading | None = None
    for match in _PROCESS.finditer(text):
        size = read_size(match[2])
        if match[1] is None:
            own = size
        else:
            value = size.value
            others.append(ProcessUse(int(match[1]), Bytes(value) if isinstance(value, int) else None))
    return tuple(others), own


_MOST_TASKS = 65_536


def read_number_list(text: str) -> tuple[int, ...]:
    """Slurm's task lists: "0-3,7". A list of more than 65,536 tasks is cut there."""
    numbers: list[int] = []
    for part in text.strip("[]").split(","):
        if len(numbers) >= _MOST_TASKS:
            break
        first, _, last = part.partition("-")
        if first.isdecimal():
            stop = int(last) if last.isdecimal() else int(first)
            numbers.extend(range(int(first), min(stop, int(first) + _MOST_TASKS - 1) + 1))
    return tuple(numbers[:_MOST_TASKS])


@dataclass(frozen=True, slots=True)
class Unit:
    """One way to write a value: the expression that finds it and the function that reads it."""

    expression: str
    read: Callable[[str], Reading]


UNITS: dict[str, Unit] = {
    "size": Unit(_SIZE, read_size),
    "compact": Unit(r"\d{1,15}(?:\.\d{1,6})?(?:[KMGTPE]iB|B\b)", _compact_size),
    "array": Unit(r"\d{1,15}(?:\.\d{0,6})? (?:bytes|[KMGTPE]iB)", read_size),
    "amount": Unit(_AMOUNT, _amount),
    "bytes": Unit(r"\d{1,19}", _scaled(1)),
    "kb": Unit(r"\d{1,18}", _whole_pages),
    "kib": Unit(_NUMBER, _scaled(1 << 10)),
    "mib": Unit(_NUMBER, _scaled(1 << 20)),
    "gib": Unit(_NUMBER, _scaled(1 << 30)),
    "gigabytes": Unit(_NUMBER, _scaled(1_000_000_000)),
    "int": Unit(r"-?\d{1,12}", _integer),
    "count": Unit(r"\d[\d,_]{0,17}", _integer),
    "seconds": Unit(_NUMBER, _seconds(1.0)),
    "milliseconds": Unit(_NUMBER, _seconds(0.001)),
    "rate": Unit(_NUMBER, _seconds_each),
    "clock": Unit(r"\d{1,6}:\d\d(?::\d\d)?", _clock),
    "lastindex": Unit(r"\d{1,12}", _count_after),
    "number": Unit(_NUMBER, _number),
    "word": Unit(r"[^\s|,;()'\"]{1,250}", _text),
    "host": Unit(r"[A-Za-z0-9][A-Za-z0-9._,\[\]-]{0,250}", _text),
    "tasks": Unit(r"[0-9,-]{1,2000}", lambda text: Reading(read_number_list(text))),
    "text": Unit(r"[^\n]{0,400}?", _text),
    "signal": Unit(r"(?:SIG[A-Z0-9]{2,8}|\d{1,2})\b", _signal),
    "control": Unit(r"[\x00-\x1f]?", _control_character),
    "processes": Unit(r"[^\n]{0,9000}?", lambda text: Reading(read_processes(text)[0])),
}
