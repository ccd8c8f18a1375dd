"""Keeping a log that may be huge: its beginning and its end, whole where it is small."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import IO, BinaryIO

_CHUNK_BYTES = 1 << 20
_LINE_SEARCH_BYTES = 1 << 16


def copy_windows(source: BinaryIO, target: IO[bytes], limit: int) -> bool:
    """Copy a log of at most `limit` bytes whole; of a larger one the first quarter of that and the rest from its end,
    cut at line borders, with a line between that says what was left out. True when something was."""
    head_bytes = max(limit // 4, 1)
    tail_bytes = max(limit - head_bytes, 1)
    head = _read_up_to(source, head_bytes)
    target.write(head)
    if len(head) < head_bytes:
        return False
    skipped, tail = _skip_to_tail(source, tail_bytes)
    if skipped == 0:
        for chunk in tail:
            target.write(chunk)
        return False
    first = next(tail, b"")
    cut = first.find(b"\n", 0, _LINE_SEARCH_BYTES) + 1
    note = (
        f"[runbook: {skipped + cut} bytes are left out here; "
        f"what follows begins at byte {head_bytes + skipped + cut} of the log]\n"
    )
    target.write((b"" if head.endswith(b"\n") else b"\n") + note.encode())
    target.write(first[cut:])
    for chunk in tail:
        target.write(chunk)
    return True


def _read_up_to(source: BinaryIO, limit: int) -> bytes:
    parts = []
    while limit > 0 and (chunk := source.read(min(limit, _CHUNK_BYTES))):
        parts.append(chunk)
        limit -= len(chunk)
    return b"".join(parts)


def _skip_to_tail(source: BinaryIO, tail_bytes: int) -> tuple[int, Iterator[bytes]]:
    """How much lies between here and the last `tail_bytes`, and those. A log may still grow: its end is where
    it was when this looked."""
    if source.seekable():
        here = source.tell()
        end = source.seek(0, os.SEEK_END)
        start = max(here, end - tail_bytes)
        source.seek(start)
        return start - here, _chunks(source, end - start)
    kept: deque[bytes] = deque()
    size = skipped = 0
    while chunk := source.read(_CHUNK_BYTES):
        kept.append(chunk)
        size += len(chunk)
        while size - len(kept[0]) >= tail_bytes:
            size -= len(kept[0])
            skipped += len(kept.popleft())
    if kept and size > tail_bytes:
        skipped += size - tail_bytes
        kept[0] = kept[0][size - tail_bytes :]
    return skipped, iter(kept)


def _chunks(source: BinaryIO, length: int) -> Iterator[bytes]:
    while length > 0 and (chunk := source.read(min(length, _CHUNK_BYTES))):
        length -= len(chunk)
        yield chunk
