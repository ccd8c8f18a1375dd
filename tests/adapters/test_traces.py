"""Incidents as OpenTelemetry traces, before a receiver that reads OTLP's own protobuf over HTTP."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from runbook.adapters.traces import Traces
from runbook.model.incident import Incident
from tests.report.sample_incidents import escalated, hostile, recovered

LOG = """\
[rank3]: Traceback (most recent call last):
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of \
79.10 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.80 GiB memory in use. Of the \
allocated memory 75.00 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated.
"""
SCRIPT = """\
#!/bin/bash
cat <<'END'
{log}END
exit 1
srun python pretrain_gpt.py --micro-batch-size 4 --global-batch-size 64
"""


@dataclass
class Collector:
    endpoint: str
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def spans(self) -> list[Span]:
        return [
            span for request in self.requests for resource in request.resource_spans
            for scope in resource.scope_spans for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            plain = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            found.requests.append(ExportTraceServiceRequest.FromString(plain))
            found.headers.append(dict(self.headers.items()))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


def sent(collector: Collector, *incidents: Incident) -> list[Span]:
    traces = Traces(collector.endpoint, "alpha", "https://runbook.example")
    for incident in incidents:
        traces.of(None, incident)
    traces.close()
    return collector.spans()


def oom(folder: Path, endpoint: str, *before: str) -> subprocess.CompletedProcess[str]:
    """A failed job of this machine is planned for; `before`: a statement that the program begins with."""
    inventory = folder / "here.yaml"
    inventory.write_text(
        f"version: 1\nid: here\ntitle: A test\ncluster: here\nscheduler: {{kind: local}}\nnodes: {{kind: none}}\n"
        f"policy: {{mode: plan}}\npaths: {{state: {folder}/state, spool: {folder}/state/spool}}\n", encoding="utf-8",
    )
    (folder / "train.sh").write_text(SCRIPT.format(log=LOG), encoding="utf-8")
    environment = {**os.environ, "RUNBOOK_INVENTORY": str(inventory), "OTEL_RESOURCE_ATTRIBUTES": "host.secret=hunter2"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (sys.executable, *words), cwd=folder, capture_output=True, text=True, timeout=120, check=False,
            env=environment,
        )

    job = run("-m", "runbook", "submit", "--wait", "train.sh").stdout.strip()
    with inventory.open("a", encoding="utf-8") as stream:
        stream.write(f"traces: {{endpoint: '{endpoint}'}}\n")
    start = ("-c", f"{before[0]}; from runbook.cli.main import main; sys.exit(main())") if before else ("-m", "runbook")
    return run(*start, "oom", "--job", job, "--plan")


def test_an_incident_arrives_box_by_box(collector: Collector, tmp_path: Path) -> None:
    done = oom(tmp_path, collector.endpoint)
    (document,) = (tmp_path / "state" / "incidents").glob("*/incident.json")
    incident = json.loads(document.read_text(encoding="utf-8"))
    visits = [visit["box"] for visit in incident["visits"]]
    (whole,) = [span for span in collector.spans() if not span.parent_span_id]
    boxes = [span for span in collector.spans() if span.parent_span_id]
    assert [span.name for span in boxes] == visits and len(visits) > 4, (done.stdout, done.stderr)
    assert {span.parent_span_id for span in boxes} == {whole.span_id}
    # Whoever has the incident finds its trace.
    expected = hashlib.sha256(incident["id"].encode()).digest()[:16]
    assert {span.trace_id for span in collector.spans()} == {expected}
    assert all(whole.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano for span in boxes)
    assert boxes[-1].end_time_unix_nano <= whole.end_time_unix_nano
    (resource,) = {str(request.resource_spans[0].resource) for request in collector.requests}
    assert '"runbook"' in resource and '"here"' in resource and "hunter2" not in resource


def test_acts_are_events_of_their_boxes(collector: Collector) -> None:
    incident = recovered()
    spans = sent(collector, incident)
    events = [(span.name, event.name) for span in spans for event in span.events]
    assert sorted(name for _, name in events) == sorted(act.what for act in incident.acts) and events
    told = {value.key: value.value for span in spans for event in span.events for value in event.attributes}
    assert told["runbook.target"].string_value in {incident.root_job, *(one.job for one in incident.attempts)}


def test_nothing_is_sent_that_the_metrics_do_not_carry(collector: Collector) -> None:
    """Every text that is sent is a name, a figure or a word of ours: no line, no path, nothing to be read as markup."""
    for incident in (hostile(), recovered(), escalated()):
        sent(collector, incident)
    texts = [event.name for span in collector.spans() for event in span.events]
    for span in collector.spans():
        texts.append(span.name.removeprefix("incident "))
        held = [*span.attributes, *(value for event in span.events for value in event.attributes)]
        texts += [one.value.string_value for one in held if one.key != "runbook.report_url"]
    plain = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+@-[],")
    odd = [text for text in texts if set(text) - plain or len(text) > 80]
    assert not odd, odd
    assert len(texts) > 60


def test_what_is_sent_again_after_a_restart_is_the_same_span(collector: Collector) -> None:
    numbers = []
    for _ in range(2):
        sent(collector, recovered())
        numbers.append(sorted((span.trace_id, span.span_id, span.parent_span_id) for span in collector.spans()))
        collector.requests.clear()
    assert numbers[0] == numbers[1]
    assert len({span for _, span, _ in numbers[0]}) == len(numbers[0])
    sent(collector, replace(recovered(), run=2))
    again = {span.span_id for span in collector.spans() if not span.parent_span_id}
    assert not again & {span for _, span, _ in numbers[0]}, "the second run is a span of its own"


def test_only_what_is_new_is_sent(collector: Collector) -> None:
    incident = recovered()
    half = replace(incident, visits=incident.visits[:3], closed_s=None)
    traces = Traces(collector.endpoint, "alpha", "")
    traces.of(None, half)
    traces.of(half, incident)
    traces.of(incident, incident)
    traces.close()
    names = [span.name for span in collector.spans()]
    assert names == [*(visit.box for visit in incident.visits), "incident recovered"]


@pytest.mark.parametrize("kind", ["refuses", "says nothing"])
def test_a_dead_collector_costs_nothing(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if kind == "refuses":
            listener.close()
        traces = Traces(f"http://127.0.0.1:{port}/v1/traces", "alpha", "")
        incident = recovered()
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        for _ in range(200):
            traces.of(None, incident)
        assert time.thread_time() - began_cpu_s < 2.0
        ended_s = time.monotonic()
        traces.close()
        assert time.monotonic() - ended_s < 4.0 and ended_s - began_s < 10.0


def test_without_an_endpoint_nothing_of_it_is_loaded() -> None:
    program = (
        "import runbook.cli.serve, runbook.cli.incident.drive, sys; "
        "print([name for name in sys.modules if name.startswith('opentelemetry.') and 'sdk' in name or 'otlp' in name])"
    )
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_without_the_extra_it_is_said_what_to_install(tmp_path: Path) -> None:
    done = oom(tmp_path, "http://127.0.0.1:9/v1/traces", "import sys; sys.modules['opentelemetry.sdk'] = None")
    assert done.returncode == 2 and "runbook-oom[otel]" in done.stderr, done.stderr


def test_an_endpoint_with_a_password_is_refused(tmp_path: Path) -> None:
    done = oom(tmp_path, "http://user:hunter2@collector/v1/traces")
    assert done.returncode == 2 and "traces.endpoint" in done.stderr and "hunter2" not in done.stderr, done.stderr
