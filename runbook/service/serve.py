"""The loop, the web server and the watch over both, together until somebody says stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from runbook.errors import RunbookError, Unavailable
from runbook.model.incident import Incident, Message, Severity
from runbook.ports import Clock
from runbook.service.daemon import tell_systemd

# A connection that does not ask in time is closed.
#
# uvicorn takes a limited number of connections and answers 503 beyond it, but waits for ever for a request to arrive: a
# browser's spare connections, or anybody who opens some and says nothing, would keep Prometheus and people out.

class TimedConnection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with `arrival_s` for each request, head and body, to have arrived whole."""

    arrival_s = 20.0
    most_waiting = 32
    """Connections that are asking for nothing: beyond it one of them is closed for each new one, so that those who ask
    always find room. It is the oldest of the address that holds the most."""
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _began_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A connection waits for its reader from the first byte that is not sent, so that its time counts from there,
        # also where it is about to be closed.
        transport.set_write_buffer_limits(high=0)
        self._began_s = self.loop.time()
        self._make_room()
        self._watch()

    def _make_room(self) -> None:
        others = [one for one in self.connections if isinstance(one, TimedConnection) and one is not self]
        waiting = [one for one in others if not one.has_asked and not one.transport.is_closing()]
        if len(waiting) >= self.most_waiting:
            held = Counter(one.peer for one in waiting)
            most = max(held.values())
            min((one for one in waiting if held[one.peer] == most), key=lambda one: one._began_s).transport.close()

    @property
    def has_asked(self) -> bool:
        """A whole request is here and not yet answered."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    @property
    def peer(self) -> str:
        return self.client[0] if self.client else ""

    def pause_writing(self) -> None:
        super().pause_writing()
        # Who asks for a page and does not read it holds a connection, too.
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.arrival_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._no_stall()
        super().resume_writing()

    def _no_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_deadline()
        self._no_stall()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Between two requests uvicorn's own keep-alive time counts; it ends with the next one's first byte."""
        if self.has_asked or self.timeout_keep_alive_task is not None:
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


# Run the loop and the web server together until somebody says stop.

LOG = logging.getLogger("runbook.service")
_STOP_S = 25.0
"""The event at hand may ask the scheduler; systemd waits longer (TimeoutStopSec)."""


class Loop(Protocol):
    def run(self) -> None:
        """Until it has come to an end, or `stop` was called. Does not raise."""

    def stop(self) -> None: ...


def serve(
    app: ASGIApp,
    daemon: Loop,
    host: str = "127.0.0.1",
    port: int = 8642,
    on_ready: Callable[[str], None] = lambda _address: None,
) -> bool:
    """Until SIGTERM or SIGINT, or until the loop ends; then the event at hand is finished and the server closes. True:
    it was told to stop. Raises `Unavailable` when the address cannot be had. Call from the main thread. `on_ready` is
    told the address, with the port that was taken."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=TimedConnection,
        log_config=None,
        access_log=False,
        server_header=False,
        # Who a proxy is, is decided by the address that really connects (service/auth.py), never by a header.
        proxy_headers=False,
        date_header=True,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
        # Those that wait are limited apart from this (TimedConnection).
        limit_concurrency=64 + TimedConnection.most_waiting,
        h11_max_incomplete_event_size=16_384,
        ws="none",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    try:
        socket = config.bind_socket()
    except SystemExit as error:
        # uvicorn ends the process where the address is taken.
        raise Unavailable(
            "the web server cannot listen there", where=f"{host}:{port}",
            next_step="stop what listens there, or name another port under reports.port of the inventory",
        ) from error

    # uvicorn closes on a signal of its own accord and then raises it once more: by then there is nothing to end.
    told = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal told
        told = server.should_exit = True

    def run() -> None:
        try:
            daemon.run()
        finally:
            server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    loop = threading.Thread(target=run, name="spool", daemon=True)
    loop.start()
    try:
        # From here on connections wait instead of being refused, so that "ready" is true.
        socket.listen(128)
        name, taken = socket.getsockname()[:2]
        on_ready(f"http://{f'[{name}]' if ':' in name else name}:{taken}/")
        tell_systemd("READY=1")
        server.run(sockets=[socket])
    finally:
        if told:
            tell_systemd("STOPPING=1")
        daemon.stop()
        loop.join(_STOP_S)
        if loop.is_alive():
            LOG.warning("the event at hand is not finished; it stays in the spool and is taken up again")
        socket.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return told


# Waiting until another daemon's turn is over.

_LOOK_S = 1.0


@dataclass
class Turn:
    """Asks every second whether it is this daemon's turn."""

    take: Callable[[], bool]
    """May raise `Unavailable`, and what no waiting mends."""
    problem: str = ""
    """Why nobody can say whose turn it is."""
    fault: RunbookError | None = None
    """What only a person can mend: it waits no longer."""
    looked_s: float | None = None
    _stop: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def run(self) -> None:
        while not (self._stop.is_set() or self.look() or self.fault):
            tell_systemd("WATCHDOG=1")
            self._stop.wait(_LOOK_S)

    def look(self) -> bool:
        """Whether it is, by now."""
        taken = False
        try:
            taken = self.take()
            self.problem = ""
        except Unavailable as error:
            if not self.problem:
                LOG.error("%s", error)
            self.problem = error.what
        except RunbookError as error:
            self.fault = error
        self.looked_s = time.time()
        return taken

    def stop(self) -> None:
        self._stop.set()


# What no incident tells of by itself: a question that is about to lapse, a message to repeat, a daemon in trouble.

WATCH_LOG = logging.getLogger("runbook.notify")

PATIENCE_S = 300.0
"""A trouble that passes sooner is nobody's business."""
_INTERVAL_S = 30.0
_AGAIN_S = 6 * 3600.0


class Notifier(Protocol):
    def tell(self, message: Message) -> None: ...

    def retry(self) -> None: ...


@dataclass
class _Trouble:
    since_s: float
    told_s: float | None = None


@dataclass
class Watch:
    """Looks every half minute, in a thread of its own, as a notifier may take its time. One thread only."""

    cluster: str
    notifier: Notifier
    clock: Clock
    troubles: Callable[[], dict[str, str]]
    """What is wrong now: what it is about ("spool") → what is known of it in a sentence. May raise."""
    awaiting: Callable[[], tuple[Incident, ...]]
    """Incidents that wait for a yes. May raise."""
    remind: Callable[[Incident], None]
    _known: dict[str, _Trouble] = field(default_factory=dict, init=False, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="notify-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; a message on its way is not waited for."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self.round()

    def round(self) -> None:
        """One look. Never raises."""
        for step in (self._look, self._remind, self.notifier.retry):
            try:
                step()
            except Exception as error:
                WATCH_LOG.error("the watch failed at %s: %s", step.__name__.strip("_"), type(error).__name__)

    def _look(self) -> None:
        now_s, present = self.clock.elapsed(), self.troubles()
        for about, sentence in present.items():
            trouble = self._known.setdefault(about, _Trouble(now_s))
            lasts_s = now_s - trouble.since_s
            due = trouble.told_s is None or now_s - trouble.told_s >= _AGAIN_S
            if lasts_s >= PATIENCE_S and due:
                trouble.told_s = now_s
                self._tell(Severity.WARNING, f"cannot work: {sentence}", (
                    f"For {lasts_s / 60:.0f} minutes: {sentence}.",
                    "Done: nothing is lost; events wait in the spool, incidents go on where they stand.",
                    "Asked: `runbook doctor` and `journalctl -u runbook` say more.",
                ))
        for about in [about for about in self._known if about not in present]:
            if self._known.pop(about).told_s is not None:
                self._tell(Severity.INFO, f"works again: {about}", (f"The trouble with the {about} is over.",))

    def _tell(self, severity: Severity, headline: str, lines: tuple[str, ...]) -> None:
        title = f"runbook on {self.cluster} {headline}"
        self.notifier.tell(Message("", severity, title[:80], "\n".join(lines)))

    def _remind(self) -> None:
        for incident in self.awaiting():
            self.remind(incident)
