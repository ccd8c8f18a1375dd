"""A real Prometheus and a real Alertmanager for a test: free ports, a folder of their own, ended with the test."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests.loopback import free_port

_Found = TypeVar("_Found")


def wait_for(look: Callable[[], _Found | None], seconds: float, what: str) -> _Found:
    """The first answer that is not None."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = look()
        if found is not None:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def ask(address: str, body: Any = None, **query: str) -> Any:
    """A JSON answer, also of an error that explains itself in JSON."""
    url = f"{address}?{urllib.parse.urlencode(query)}" if query else address
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        text = error.read()
    return json.loads(text) if text else None


@contextlib.contextmanager
def running(argv: tuple[str, ...], ready: str, folder: Path) -> Iterator[None]:
    """The program, from when `ready` answers until the block ends; its log is in the folder."""
    log = folder / f"{Path(argv[0]).name}.log"
    with log.open("wb") as stream, subprocess.Popen(argv, stdout=stream, stderr=stream, cwd=folder) as process:
        try:

            def answers() -> bool | None:
                assert process.poll() is None, log.read_text()
                with contextlib.suppress(OSError), urllib.request.urlopen(ready, timeout=2) as answer:
                    return True if answer.status == 200 else None
                return None

            wait_for(answers, 30, ready)
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def prometheus(folder: Path, configuration: str) -> Iterator[str]:
    """Its address. Rule files are named relative to `folder`."""
    port = free_port()
    (folder / "prometheus.yml").write_text(configuration)
    argv = (
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", "--storage.tsdb.retention.time=1d",
    )
    address = f"http://127.0.0.1:{port}"
    with running(argv, f"{address}/-/ready", folder):
        yield address


@contextlib.contextmanager
def alertmanager(folder: Path, configuration: str, port: int | None = None) -> Iterator[str]:
    """Its address; without a port it takes a free one."""
    port = port or free_port()
    (folder / "alertmanager.yml").write_text(configuration)
    argv = (
        "prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alerts",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=warn",
    )
    address = f"http://127.0.0.1:{port}"
    with running(argv, f"{address}/-/ready", folder):
        yield address
