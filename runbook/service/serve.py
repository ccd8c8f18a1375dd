"""Run the loop and the web server together until somebody says stop."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from runbook.errors import Unavailable
from runbook.service.connection import TimedConnection
from runbook.service.daemon import Daemon
from runbook.service.systemd import tell_systemd

LOG = logging.getLogger("runbook.service")
_STOP_S = 25.0
"""The event at hand may ask the scheduler; systemd waits longer (TimeoutStopSec)."""


def serve(
    app: ASGIApp,
    daemon: Daemon,
    host: str = "127.0.0.1",
    port: int = 8642,
    on_ready: Callable[[str], None] = lambda _address: None,
) -> None:
    """Until SIGTERM or SIGINT; then the event at hand is finished and the server closes. Raises `Unavailable` when the
    address cannot be had. Call from the main thread. `on_ready` is told the address, with the port that was taken."""
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
        limit_concurrency=64,
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
    def stop(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    loop = threading.Thread(target=daemon.run, name="spool", daemon=True)
    loop.start()
    try:
        # From here on connections wait instead of being refused, so that "ready" is true.
        socket.listen(128)
        name, taken = socket.getsockname()[:2]
        on_ready(f"http://{f'[{name}]' if ':' in name else name}:{taken}/")
        tell_systemd("READY=1")
        server.run(sockets=[socket])
    finally:
        tell_systemd("STOPPING=1")
        daemon.stop()
        loop.join(_STOP_S)
        if loop.is_alive():
            LOG.warning("the event at hand is not finished; it stays in the spool and is taken up again")
        socket.close()
        for number, handler in before.items():
            signal.signal(number, handler)

