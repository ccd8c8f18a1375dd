"""The service with many stored incidents: /metrics, the list, one page; each asked of a real server over loopback."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import uvicorn

from runbook.adapters.metrics import IncidentMetrics, Labels, ServiceFigures
from runbook.adapters.store import IncidentStore
from runbook.adapters.store.read_model import ReadModel
from runbook.model.units import IncidentId
from runbook.report.json_documents import dump_incident
from runbook.report.past_incidents import remember
from runbook.service.app import Shown, create_app
from tests.report.sample_incidents import (
    FLOW,
    awaiting,
    co_tenant,
    escalated,
    hardware_fault,
    planned,
    recovered,
    two_attempts,
    unreachable_node,
)

Row = Callable[..., None]

_SAMPLES = (recovered, two_attempts, escalated, planned, awaiting, hardware_fault, co_tenant, unreachable_node)


def service(row: Row) -> None:
    """10,000 incidents of eight kinds; RUNBOOK_BENCH_SIZE=small: 1,000."""
    incidents = 1_000 if os.environ.get("RUNBOOK_BENCH_SIZE") == "small" else 10_000
    folder = Path(tempfile.mkdtemp(prefix="runbook-bench-"))
    try:
        _write(folder, incidents)
        print(f"service with {incidents} stored incidents")
        row("  making the read model anew, once", [_seconds(lambda: _read_model(folder).rows())], "s")
        row("  the list in a new process", [_seconds(lambda: _read_model(folder).rows())], "s")
        _remember(folder, row)
        _ask(folder, row)
    finally:
        shutil.rmtree(folder)


def _write(folder: Path, incidents: int) -> None:
    """As the store would, without its care for power cuts."""
    texts = [dump_incident(make(), {"version": 1}).decode("utf-8") for make in _SAMPLES]
    names = [make().id for make in _SAMPLES]
    now_s = time.time()
    for number, (text, name) in zip(range(incidents), cycle(zip(texts, names))):
        place = folder / "incidents" / f"oom-alpha-{number}"
        place.mkdir(parents=True)
        new = text.replace(f'"{name}"', f'"oom-alpha-{number}"').replace("1789", f"{int(now_s - number * 60) // 10**6}")
        (place / "incident.json").write_text(new, encoding="utf-8")


def _remember(folder: Path, row: Row) -> None:
    """What the choice of a lever asks, in a process that has just begun."""
    now = remember(recovered())
    assert now is not None
    row("  all earlier incidents, in a new process", [_seconds(lambda: _read_model(folder).all())], "s")
    row("  incidents like one, in a new process", [_seconds(lambda: _read_model(folder).like(now)) for _ in range(9)],
        note="   aim: under 100 ms")


def _read_model(folder: Path) -> ReadModel:
    return ReadModel(IncidentStore(folder))


def _ask(folder: Path, row: Row) -> None:
    store = IncidentStore(folder)
    figures = ServiceFigures(now_s=time.time(), version="bench", heartbeat_s=time.time())
    incidents = ReadModel(store)
    metrics = IncidentMetrics(incidents, Labels("alpha", "oom", report_url="https://runbook.example"), lambda: figures)
    app = create_app(Shown(store, incidents, lambda _incident: FLOW, lambda: {"ok": True}, metrics.text))
    with socket.socket() as channel:
        channel.bind(("127.0.0.1", 0))
        channel.listen(16)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [channel]}, daemon=True)
        thread.start()
        try:
            port = channel.getsockname()[1]
            row("  /metrics, the first time in a process", [_request(port, "/metrics")[0]])
            changing = store.load(IncidentId("oom-alpha-0"))

            def metrics_after_a_change(number: int) -> tuple[float, int]:
                store.save(replace(changing, box=f"box{number}"))
                return _request(port, "/metrics")

            for name, ask, aim in (
                ("/metrics", lambda _number: _request(port, "/metrics"), "under 100 ms"),
                ("/metrics, one incident having changed", metrics_after_a_change, "under 100 ms"),
                ("the list", lambda _number: _request(port, "/"), "under 150 ms"),
                ("the list, one user's", lambda _number: _request(port, "/?user=ana"), "under 150 ms"),
                ("what died of what", lambda _number: _request(port, "/history"), "under 150 ms"),
                ("one page", lambda number: _request(port, f"/incidents/oom-alpha-{8 * number}"), "under 100 ms"),
            ):
                answers = [ask(number) for number in range(16)][1:]
                size = max(size for _, size in answers)
                row(f"  {name}", [seconds for seconds, _ in answers], note=f"   {size / 1000:.0f} KB; aim: {aim}")
        finally:
            server.should_exit = True
            thread.join(10)


def _request(port: int, path: str) -> tuple[float, int]:
    """Seconds until the last byte, and bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with suppress(ConnectionRefusedError):
        connection.connect()
    started = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    seconds = time.perf_counter() - started
    connection.close()
    assert answer.status == 200, (path, answer.status)
    return seconds, len(body)


def _seconds(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started
