"""Logs that are no plain text: packed ones (.gz, .zst), unpacked while they are read, and torchelastic's error.json.

That file of `@record` holds the whole exception with its traceback and its time:
    {"message": {"message": "OutOfMemoryError: …", "extraInfo": {"py_callstack": "…", "timestamp": "1"}}}
A plain string is allowed as `message`; a parent may add `errorCode`. What is damaged is read as far as it goes.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


WIDEST_WINDOW_BYTES = 128 << 20
"""A .zst that asks for more memory than this is not unpacked; `zstd --long=27` is the widest that needs no leave."""

_READ_BYTES = 64 << 10
_PACKED_BYTES = 512
"""What is unpacked at a time: a block of four bytes may stand for 128 KiB of text, so this for 16 MiB."""


class Damaged(Exception):
    """A packed stream that cannot be unpacked any further."""


DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, Damaged)


def unpacked(stream: BinaryIO) -> tuple[BinaryIO, str]:
    """The stream, or its text where it is packed, with a note. A pipe that lets nobody look ahead is read as it is."""
    try:
        stream.seek(0)
        magic = stream.read(4)
        stream.seek(0)
    except (OSError, AttributeError):
        look_ahead = getattr(stream, "peek", None)
        magic = bytes(look_ahead(4)[:4]) if look_ahead is not None else b""
    if is_gzip(magic):
        return cast(BinaryIO, _Gzip(fileobj=stream)), "gzip, unpacked while reading"
    if is_zstandard(magic):
        return _zstandard(stream)
    return stream, ""


class _Gzip(gzip.GzipFile):
    """Hands out what is unpacked already before it says that the file is cut: the last lines matter most."""

    def readinto(self, space: WriteableBuffer) -> int:
        piece = self.read1(memoryview(space).nbytes)
        memoryview(space)[:len(piece)] = piece
        return len(piece)


def is_gzip(head: bytes) -> bool:
    return head[:2] == b"\x1f\x8b"


def is_zstandard(head: bytes) -> bool:
    """A frame of Zstandard, or a skippable frame in front of one."""
    skippable = len(head) >= 4 and head[0] & 0xF0 == 0x50 and head[1:4] == b"\x2a\x4d\x18"
    return head[:4] == b"\x28\xb5\x2f\xfd" or skippable


def _zstandard(stream: BinaryIO) -> tuple[BinaryIO, str]:
    try:
        import zstandard
    except ImportError:
        return stream, "packed with zstd; the Python package zstandard is not installed, so it was not read"

    class Text:
        """`readinto` over the frames, which says when the last one is cut. What is not yet asked for stays packed."""

        def __init__(self) -> None:
            self._begin()
            self._packed = b""
            self._text = b""
            self._inside = False

        def _begin(self) -> None:
            self._unpacker = zstandard.ZstdDecompressor(max_window_size=WIDEST_WINDOW_BYTES).decompressobj()

        def readinto(self, space: memoryview) -> int:
            while not self._text:
                piece = self._packed[:_PACKED_BYTES] or stream.read(_READ_BYTES)
                if not piece:
                    if self._inside:
                        raise Damaged("the last frame is cut")
                    return 0
                if not self._packed:
                    self._packed = piece
                    continue
                self._packed = self._packed[_PACKED_BYTES:]
                try:
                    self._text = self._unpacker.decompress(piece)
                except zstandard.ZstdError as error:
                    raise Damaged(str(error)) from error
                self._inside = not self._unpacker.eof
                if self._unpacker.eof:
                    self._packed = self._unpacker.unused_data + self._packed
                    self._begin()
            got = min(len(space), len(self._text))
            space[:got] = self._text[:got]
            self._text = self._text[got:]
            return got

    return cast(BinaryIO, Text()), "zstd, unpacked while reading"


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
