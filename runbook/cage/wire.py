"""What goes between a box in the cage and whoever keeps it: JSON documents in frames, open files beside them.

A frame is read as hostile: its size is bounded, nothing of it is believed before it is whole, and no side waits for
the other without a limit. It is never unpickled."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = struct.Struct(">IB")
"""Bytes of the document, and how many open files come with it."""
_MOST_DESCRIPTORS = 4
_PIECE_BYTES = 1 << 18
_SEND_S = 30.0
"""The other side reads all the time; one that does not for so long is gone."""


class Broken(Exception):
    """The other side is gone, or what it sent is no frame: `what` says which."""

    def __init__(self, what: str, *, gone: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.gone = gone


class Channel:
    """One end of the line. Any number of threads may send; one receives."""

    def __init__(self, connection: socket.socket, limit_bytes: int) -> None:
        """`limit_bytes`: of a document that is received."""
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._sending = threading.Lock()

    def send(self, document: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Raises `Broken` when the other side is gone or does not read."""
        # ASCII: bytes of a path that are no UTF-8 stand in strings as surrogates, which only escapes can carry.
        body = json.dumps(document, ensure_ascii=True, allow_nan=False).encode("ascii")
        with self._sending:
            try:
                head = _HEAD.pack(len(body), len(descriptors))
                if descriptors:
                    self._ready(select.POLLOUT, _SEND_S)
                    socket.send_fds(self._connection, [head], list(descriptors))
                else:
                    self._send_all(head)
                self._send_all(body)
            except OSError as error:
                raise Broken(error.strerror or str(error), gone=True) from error

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], tuple[int, ...]] | None:
        """The next document and the files that came with it, which are then the caller's to close; None when none came
        in time. Raises `Broken`."""
        deadline = time.monotonic() + timeout_s
        while (frame := self._whole()) is None:
            if not self._ready(select.POLLIN, deadline - time.monotonic()):
                return None
            try:
                data, came, _, _ = socket.recv_fds(
                    self._connection, _PIECE_BYTES, _MOST_DESCRIPTORS, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                continue
            except OSError as error:
                raise Broken(error.strerror or str(error), gone=True) from error
            self._descriptors.extend(came)
            if not data:
                raise Broken("it ended without an answer", gone=True)
            self._received += data
            if len(self._descriptors) > _MOST_DESCRIPTORS:
                raise Broken("it sent more open files than it may")
        return frame

    def close(self) -> None:
        """Hang up. Files that came and were not taken are closed."""
        self._connection.close()
        while self._descriptors:
            with contextlib.suppress(OSError):
                os.close(self._descriptors.popleft())

    def _whole(self) -> tuple[dict[str, Any], tuple[int, ...]] | None:
        if len(self._received) < _HEAD.size:
            return None
        size, count = _HEAD.unpack_from(self._received)
        if size > self._limit_bytes:
            raise Broken(f"an answer of {size >> 20} MiB, where {self._limit_bytes >> 20} MiB are the limit")
        end = _HEAD.size + size
        if len(self._received) < end:
            return None
        if count > len(self._descriptors):
            raise Broken("an answer without the open file that it speaks of")
        try:
            document = json.loads(bytes(self._received[_HEAD.size : end]))
        except (ValueError, RecursionError) as error:
            raise Broken("an answer that is no JSON") from error
        if not isinstance(document, dict):
            raise Broken("an answer that is no document")
        del self._received[:end]
        return document, tuple(self._descriptors.popleft() for _ in range(count))

    def _send_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            if not self._ready(select.POLLOUT, _SEND_S):
                raise Broken("it does not read what it asked for", gone=True)
            with contextlib.suppress(BlockingIOError):
                left = left[self._connection.send(left, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]

    def _ready(self, event: int, timeout_s: float) -> bool:
        try:
            poll = select.poll()
            poll.register(self._connection, event)
            return bool(poll.poll(max(timeout_s, 0.0) * 1000))
        except (OSError, ValueError) as error:
            raise Broken("hung up", gone=True) from error
