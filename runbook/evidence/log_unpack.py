"""Packed logs (.gz, .zst) as streams of their text, unpacked while they are read."""

from __future__ import annotations

import gzip
import zlib
from typing import BinaryIO, cast

WIDEST_WINDOW_BYTES = 128 << 20
"""A .zst that asks for more memory than this is not unpacked; `zstd --long=27` is the widest that needs no leave."""


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
        return cast(BinaryIO, gzip.GzipFile(fileobj=stream)), "gzip, unpacked while reading"
    if is_zstandard(magic):
        return _zstandard(stream)
    return stream, ""


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
        """`readinto` with one kind of error."""

        def __init__(self) -> None:
            unpacker = zstandard.ZstdDecompressor(max_window_size=WIDEST_WINDOW_BYTES)
            self._reader = unpacker.stream_reader(stream, read_across_frames=True, closefd=False)

        def readinto(self, space: memoryview) -> int:
            try:
                return self._reader.readinto(space)
            except zstandard.ZstdError as error:
                raise Damaged(str(error)) from error

    return cast(BinaryIO, Text()), "zstd, unpacked while reading"
