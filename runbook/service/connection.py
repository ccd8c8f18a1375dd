"""A connection that does not ask in time is closed.

uvicorn takes a limited number of connections and answers 503 beyond it, but waits for ever for a request to arrive: a
browser's spare connections, or anybody who opens some and says nothing, would keep Prometheus and people out.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedConnection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with `arrival_s` for each request, head and body, to have arrived whole."""

    arrival_s = 20.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_deadline()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Between two requests uvicorn's own keep-alive time counts; it ends with the next one's first byte."""
        arrived = self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        if arrived or self.timeout_keep_alive_task is not None:
            self._no_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.arrival_s, self._give_up)

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
