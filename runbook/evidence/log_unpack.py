"""Packed logs (.gz, .zst) as streams of their text, unpacked while they are read."""

from __future__ import annotations

import gzip
import zlib
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
