"""Data loading workers as processes: each takes real host memory, until it holds what a worker holds."""

from __future__ import annotations

import contextlib
import os
import signal

_MIB = 1 << 20


class DataWorkerKilledError(RuntimeError):
    """A worker was ended by a signal; the words are those of torch.utils.data."""


class DataWorkers:
    """The workers of one rank. What they touch of their data set grows with the iterations and then stays, as pages do
    that PyTorch's workers copy when they count references (pytorch#13246)."""

    def __init__(self, count: int, mib: int, iterations: int) -> None:
        self._pipes: dict[int, int] = {}
        for _ in range(count):
            reads, writes = os.pipe()
            pid = os.fork()
            if pid == 0:
                for other in (writes, *self._pipes.values()):
                    os.close(other)
                _work(reads, mib * _MIB, iterations)
                os._exit(0)
            os.close(reads)
            self._pipes[pid] = writes

    def next_batch(self) -> None:
        """Raises DataWorkerKilledError."""
        for pid, pipe in self._pipes.items():
            with contextlib.suppress(BrokenPipeError):
                os.write(pipe, b"\x01")
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended and os.WIFSIGNALED(status):
                name = signal.strsignal(os.WTERMSIG(status))
                raise DataWorkerKilledError(f"DataLoader worker (pid {pid}) is killed by signal: {name}. ")


def _work(pipe: int, size_bytes: int, iterations: int) -> None:
    """Until the rank is gone: its end of the pipe closes with it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    held: list[bytearray] = []
    while os.read(pipe, 1):
        if len(held) < iterations:
            held.append(bytearray(b"\x01") * (size_bytes // iterations))
