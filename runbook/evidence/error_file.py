"""torchelastic's error.json (`@record`): the whole exception with its traceback and its time, made readable as a log.

    {"message": {"message": "OutOfMemoryError: CUDA …", "extraInfo": {"py_callstack": "Traceback …", "timestamp": "1"}}}

A plain string is allowed as `message`; a parent may add `errorCode`. What is damaged is read as far as it goes.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from typing import BinaryIO

LARGEST_BYTES = 8 << 20
NOTE = "an error file of torchelastic, read as the traceback that it holds"

_NAME = re.compile(r"(?:^|/)error\.json$")
_STRING = r'"\s{0,8}:\s{0,8}"((?:[^"\\]|\\.)*)'
_CALLSTACK = re.compile(r'"py_callstack' + _STRING)
_MESSAGE = re.compile(r'"message' + _STRING)
_TIMESTAMP = re.compile(r'"timestamp"\s{0,8}:\s{0,8}"?(\d{9,11})(?:\.\d{0,9})?\b')


@dataclass(frozen=True, slots=True)
class ErrorFile:
    """What an error.json holds: the traceback with its message, and when it was written (epoch seconds, whole)."""

    text: str
    time_s: float | None = None
    error_code: int | None = None

    def stream(self) -> BinaryIO:
        return io.BytesIO(self.text.encode("utf-8", "replace"))


def opened_error_file(path: str, stream: BinaryIO) -> ErrorFile | None:
    """The error file at a path; None for what is no error file or holds no exception, with the stream at its start.

    Raises OSError from the stream."""
    if _NAME.search(path) is None:
        return None
    found = read_error_file(stream.read(LARGEST_BYTES))
    if found is None:
        stream.seek(0)
    return found


def read_error_file(content: bytes) -> ErrorFile | None:
    """The exception of an error.json; None where there is none in it, so that the file is read as any other."""
    text = content[:LARGEST_BYTES].decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _damaged(text)
    message = document.get("message") if isinstance(document, dict) else None
    if isinstance(message, str):
        return ErrorFile(_one_text(message, ""), None, _integer(document.get("errorCode"))) if message else None
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    words, callstack = message.get("message"), extra.get("py_callstack")
    stamp = _integer(extra.get("timestamp"))
    return ErrorFile(
        _one_text(words if isinstance(words, str) else "", callstack if isinstance(callstack, str) else ""),
        float(stamp) if stamp is not None else None,
        _integer(message.get("errorCode")) if "errorCode" in message else _integer(document.get("errorCode")),
    )


def _damaged(text: str) -> ErrorFile | None:
    """A file that breaks off, or that two processes wrote: its strings are looked for."""
    callstack, words, stamp = _CALLSTACK.search(text), _MESSAGE.search(text), _TIMESTAMP.search(text)
    if callstack is None and words is None:
        return None
    return ErrorFile(
        _one_text(_unescaped(words[1]) if words else "", _unescaped(callstack[1]) if callstack else ""),
        float(stamp[1]) if stamp else None,
    )


def _unescaped(literal: str) -> str:
    try:
        value = json.loads(f'"{literal}"', strict=False)
    except ValueError:
        value = literal.replace("\\n", "\n").replace('\\"', '"')
    return value if isinstance(value, str) else literal


def _one_text(message: str, callstack: str) -> str:
    """The traceback, which ends with the message as a rule; the message is added where it does not."""
    body = message.partition(": ")[2].strip() or message.strip()
    if callstack.strip() and body[:200] in callstack:
        return callstack.rstrip("\n") + "\n"
    whole = callstack.rstrip("\n") + "\n" + message if callstack.strip() else message
    return whole.rstrip("\n") + "\n"


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(float(value))
    except (ValueError, OverflowError):
        return None
