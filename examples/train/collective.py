"""A barrier for the ranks of one job over TCP: rank 0 counts arrivals and lets everybody go.

It stands in for the collective operation in which the ranks of a real job meet in every step. A rank that is gone
leaves the others waiting in it, as NCCL does, until the timeout.
"""

from __future__ import annotations

import select
import socket
import time

from launcher_environment import Rank

_CONNECT_TIMEOUT_S = 120.0


class CollectiveTimeoutError(Exception):
    """The other ranks did not arrive in time; ``waited_s`` is how long this one waited."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"waited {waited_s:.0f} s")
        self.waited_s = waited_s


class PeerLostError(Exception):
    """Another rank closed its connection (raised only if survivors are not to hang)."""


class Collective:
    """All ranks of a job; ``barrier`` blocks until everybody is there. Connects when it is made."""

    def __init__(self, rank: Rank, timeout_s: float, hangs: bool) -> None:
        self.operations = 0
        self._rank = rank
        self._timeout_s = timeout_s
        self._hangs = hangs
        self._peers: list[socket.socket] = []
        if rank.world_size > 1:
            if rank.rank == 0:
                self._accept_all()
            else:
                self._connect()

    def barrier(self) -> None:
        """Wait for all ranks. Raises CollectiveTimeoutError, or PeerLostError if survivors are not to hang."""
        self.operations += 1
        if not self._peers:
            return
        deadline_s = time.monotonic() + self._timeout_s
        if self._rank.rank == 0:
            waiting = {peer.fileno(): peer for peer in self._peers}
            poll = select.poll()
            for descriptor in waiting:
                poll.register(descriptor, select.POLLIN)
            while waiting:
                for descriptor in self._ready(poll, deadline_s):
                    if self._receive(waiting[descriptor], deadline_s):
                        poll.unregister(descriptor)
                        del waiting[descriptor]
            for peer in self._peers:
                self._send(peer, deadline_s)
        else:
            self._send(self._peers[0], deadline_s)
            poll = select.poll()
            poll.register(self._peers[0].fileno(), select.POLLIN)
            while not (self._ready(poll, deadline_s) and self._receive(self._peers[0], deadline_s)):
                pass

    def close(self) -> None:
        """Close all connections."""
        for peer in self._peers:
            peer.close()
        self._peers.clear()

    def _ready(self, poll: select.poll, deadline_s: float) -> list[int]:
        events = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
        if not events and time.monotonic() >= deadline_s:
            raise CollectiveTimeoutError(self._timeout_s)
        return [descriptor for descriptor, _ in events]

    def _receive(self, peer: socket.socket, deadline_s: float) -> bool:
        try:
            data = peer.recv(1)
        except OSError:
            data = b""
        if not data:
            self._lost(deadline_s)
        return True

    def _send(self, peer: socket.socket, deadline_s: float) -> None:
        try:
            peer.sendall(b".")
        except OSError:
            self._lost(deadline_s)

    def _lost(self, deadline_s: float) -> None:
        """Somebody is gone: hang until the timeout as NCCL does, or say so at once."""
        if not self._hangs:
            raise PeerLostError
        while (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 60.0))
        raise CollectiveTimeoutError(self._timeout_s)

    def _accept_all(self) -> None:
        deadline_s = time.monotonic() + min(self._timeout_s, _CONNECT_TIMEOUT_S)
        with socket.create_server(("", self._rank.master_port), backlog=self._rank.world_size) as server:
            while len(self._peers) < self._rank.world_size - 1:
                server.settimeout(max(0.01, deadline_s - time.monotonic()))
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    raise CollectiveTimeoutError(_CONNECT_TIMEOUT_S) from None
                if self._is_ours(peer):
                    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._peers.append(peer)
                else:
                    peer.close()

    def _is_ours(self, peer: socket.socket) -> bool:
        peer.settimeout(5.0)
        try:
            with peer.makefile("rb") as stream:
                greeting = stream.readline(200).decode("ascii", "replace").strip()
            if greeting != self._rank.key:
                return False
            peer.sendall(b"!")
        except OSError:
            return False
        peer.settimeout(None)
        return True

    def _connect(self) -> None:
        deadline_s = time.monotonic() + min(self._timeout_s, _CONNECT_TIMEOUT_S)
        address = (self._rank.master_address, self._rank.master_port)
        while True:
            try:
                peer = socket.create_connection(address, timeout=5.0)
                peer.sendall(f"{self._rank.key}\n".encode("ascii"))
                if peer.recv(1) == b"!":
                    break
                peer.close()
            except OSError:
                pass
            if time.monotonic() > deadline_s:
                raise CollectiveTimeoutError(_CONNECT_TIMEOUT_S)
            time.sleep(0.05)
        peer.settimeout(None)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers.append(peer)
