"""One rank of a job, of the standard library only: it counts steps, meets the others at each, and fails as told.

    member.py STEPS [RANK:STEP:HOW]…

HOW is memory, refused, raise, exit-N, kill, abort, segv, bus, hang, helper or caught.

A rank that cannot reach rank 0 any more ends with Python's own ConnectionError, as survivors of a collective do.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time

RANK = int(os.environ.get("SLURM_PROCID", os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0"))))
WORLD = int(os.environ.get("SLURM_NTASKS", os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("WORLD", "1"))))
LEADER = os.environ.get("LEADER", "127.0.0.1")
PORT = int(os.environ.get("PORT", "29611"))


def grow(until_mib: int) -> bytearray:
    """Memory that is really touched."""
    held = bytearray()
    for _ in range(until_mib // 16):
        held += os.urandom(1 << 20) * 16
    return held


def fail(how: str) -> None:
    if how == "memory":
        grow(4096)
    elif how == "refused":
        resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
        bytearray(2 << 30)
    elif how == "caught":
        try:
            resource.setrlimit(resource.RLIMIT_AS, (300 << 20, resource.RLIM_INFINITY))
            bytearray(2 << 30)
        except MemoryError:
            print("MemoryError with batch size 64, retrying with 32", flush=True)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    elif how == "raise":
        raise ValueError("token id 128261 is out of range of the vocabulary (128256)")
    elif how.startswith("exit-"):
        sys.exit(int(how[5:]))
    elif how == "hang":
        time.sleep(3600)
    elif how == "helper":
        subprocess.run([sys.executable, "-c", "x = bytearray()\nwhile True: x += bytes([1]) * (16 << 20)"], check=False)
    else:
        name = {"kill": "KILL", "abort": "ABRT", "segv": "SEGV", "bus": "BUS", "term": "TERM"}[how]
        os.kill(os.getpid(), getattr(signal, f"SIG{name}"))
        time.sleep(5)


class Meeting:
    """A barrier over TCP with rank 0."""

    def __init__(self) -> None:
        self.peers: list[socket.socket] = []
        if WORLD == 1:
            return
        if RANK == 0:
            server = socket.create_server(("", PORT), backlog=64)
            server.settimeout(30)
            self.peers = [server.accept()[0] for _ in range(WORLD - 1)]
            return
        for _ in range(300):
            try:
                self.peers = [socket.create_connection((LEADER, PORT), timeout=30)]
                return
            except OSError:
                time.sleep(0.1)
        raise ConnectionError(f"rank {RANK} cannot reach {LEADER}:{PORT}")

    def barrier(self) -> None:
        if RANK == 0:
            for peer in self.peers:
                self._word(peer)
        for peer in self.peers:
            peer.sendall(b"x")
        if RANK:
            self._word(self.peers[0])

    @staticmethod
    def _word(peer: socket.socket) -> None:
        if not peer.recv(1):
            raise ConnectionError("Connection closed by peer")


def train(steps: int, faults: dict[tuple[int, int], str]) -> None:
    print(f"rank {RANK} of {WORLD} on {socket.gethostname()} (pid {os.getpid()})", flush=True)
    meeting = Meeting()
    for step in range(1, steps + 1):
        started = time.monotonic()
        if (RANK, step) in faults:
            fail(faults[RANK, step])
        time.sleep(0.05)
        if WORLD > 1:
            meeting.barrier()
        if RANK == 0:
            print(f"step {step}/{steps} loss {2.0 / step:.4f} time {time.monotonic() - started:.3f} s", flush=True)
    if RANK == 0:
        print("training done", flush=True)


if __name__ == "__main__":
    chosen = {}
    for word in sys.argv[2:]:
        rank, step, how = word.split(":")
        chosen[int(rank), int(step)] = how
    train(int(sys.argv[1]), chosen)
