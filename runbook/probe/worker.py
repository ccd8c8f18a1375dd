"""Work that may hang, in a process of its own: what it had said when its time was up still counts.

A call into a driver that hangs cannot be interrupted from within, and a process in the kernel's uninterruptible sleep
cannot even be killed. So nothing that may hang is done by the probe itself: a forked child says what it finds, one
JSON line each, and the probe goes on without it when the time is up. Here is, too, how the probe says what it does not
know, and text as it may leave the node.
"""

import json
import os
import select
import signal
import time
from typing import Any, Callable, Dict, Iterator, Optional

DOCUMENT = "runbook-node"
VERSION = 1
"""Of the document: fields are only ever added within a version."""
Record = Dict[str, Any]
Send = Callable[[Record], None]

LIMIT_BYTES = 8 << 20
_PR_SET_PDEATHSIG = 1


def unknown(reason: str) -> Dict[str, str]:
    """A figure that could not be read, with the reason for a person. It never means "fine"."""
    return {"unknown": clean(reason, 300)}


def is_unknown(value: Any) -> bool:
    """Whether a figure is one of those."""
    return isinstance(value, dict) and set(value) == {"unknown"}


def clean(text: str, limit: int = 400) -> str:
    """Without control characters, at most `limit` characters; a process names itself as it likes."""
    kept = "".join(character if character.isprintable() else " " for character in text).strip()
    return kept if len(kept) <= limit else kept[: limit - 1] + "\u2026"


class Worker:
    """A child that runs `work(send, *arguments)`. `ended` says that it came to its end by itself."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        reading, writing = os.pipe()
        self.ended = False
        self.failure = ""
        self.patience_s: Optional[float] = None
        """How long it may say nothing; None: as long as it likes."""
        self.pid = os.fork()
        if self.pid == 0:
            _child(work, arguments, reading, writing)
        os.close(writing)
        self._reading = reading
        self._rest = b""
        self._read_bytes = 0

    def records(self, until: float) -> Iterator[Record]:
        """What the child says, until it ends, or `until` (monotonic), or it says nothing for `patience_s`."""
        while True:
            while b"\n" in self._rest:
                line, self._rest = self._rest.split(b"\n", 1)
                record = json.loads(line.decode("ascii"))
                if "end" in record:
                    self.ended, self.failure = True, record["end"]
                    return
                yield record
            wait_s = max(0.0, until - time.monotonic())
            if self.patience_s is not None:
                wait_s = min(wait_s, self.patience_s)
            ready = select.select([self._reading], [], [], wait_s)[0]
            if not ready:
                return
            block = os.read(self._reading, 1 << 16)
            self._read_bytes += len(block)
            if not block or self._read_bytes > LIMIT_BYTES:
                self.ended = True
                self.failure = "its process ended in the middle" if not block else "it said too much"
                return
            self._rest += block

    def close(self) -> None:
        """End the child and everything it started; never waits for one that cannot die."""
        for kill in (os.killpg, os.kill):  # it may not have made its process group yet
            try:
                kill(self.pid, signal.SIGKILL)
            except OSError:
                pass
        for _ in range(20):
            try:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    break
            except OSError:
                break
            time.sleep(0.005)
        os.close(self._reading)


def _child(work: Callable[..., None], arguments: Any, reading: int, writing: int) -> None:
    """Never returns. Keeps no stream of the parent open: whoever waits for the probe's output must not wait for it."""
    failure = ""
    try:
        os.setpgid(0, 0)
        os.close(reading)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        try:
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        except (ImportError, OSError, AttributeError):
            pass  # then it ends by itself, or hangs alone

        def send(record: Record) -> None:
            data = json.dumps(record).encode("ascii") + b"\n"
            while data:
                data = data[os.write(writing, data):]

        try:
            work(send, *arguments)
        except Exception as error:
            failure = "%s: %s" % (type(error).__name__, str(error)[:200])
        send({"end": failure})
    finally:
        os._exit(0)
