"""An incident as an OpenTelemetry trace, sent by OTLP over HTTP: a box is a span, an act an event.

Only imported where the inventory names an endpoint. What is sent is what the metrics say of an incident (`LABELS`),
names of boxes and outcomes, and which jobs and nodes were acted on: no sentence, no path, nothing of a log.
docs/traces.md says what a collector sees.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import threading
from collections.abc import Iterator
from functools import partial

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from runbook import __version__
from runbook.adapters.metrics import LABELS, incident_labels
from runbook.model.incident import Act, BoxVisit, Incident, IncidentState
from runbook.report.summary import summarize

LOG = logging.getLogger("runbook.traces")

_SEND_S = 3.0
"""For one request: a collector that hangs holds up nothing but the thread that sends."""
_GATHER_MS = 1000
_MOST_WAITING = 2048
"""Spans; beyond it new ones push out old ones."""
_MOST_AT_ONCE = 256
_END_S = 2.0
"""What is not sent within this time when the program ends is lost."""


class Traces:
    """Sends each box once it has been left, and the incident once it has ended. From several threads."""

    def __init__(self, endpoint: str, cluster: str, report_url: str) -> None:
        # A collector that is down is the collector's news: the library's own lines would fill the log.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._report_url = report_url
        # Given whole: the machine's OTEL_RESOURCE_ATTRIBUTES and what a library finds out of it are not added.
        service = {"name": "runbook", "version": __version__, "namespace": cluster}
        self._span = partial(
            ReadableSpan, kind=SpanKind.INTERNAL, instrumentation_scope=InstrumentationScope("runbook", __version__),
            resource=Resource({f"service.{name}": value for name, value in service.items()}),
        )
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_S, compression=Compression.Gzip)
        self._sender = BatchSpanProcessor(
            exporter, max_queue_size=_MOST_WAITING, schedule_delay_millis=_GATHER_MS,
            max_export_batch_size=_MOST_AT_ONCE,
        )
        atexit.register(self.close)

    def of(self, before: Incident | None, after: Incident) -> None:
        """Send what ended with the step from `before` to `after`. Waits for nobody, never raises."""
        try:
            for span in self._ended(before, after):
                self._sender.on_end(span)
        except Exception as error:
            LOG.error("%s: no trace: %s", after.id, type(error).__name__)

    def close(self) -> None:
        """Send what is left, for at most two seconds. May be called again."""
        # It waits half a minute where nobody answers, and has no shorter limit.
        ending = threading.Thread(target=self._sender.shutdown, name="traces-end", daemon=True)
        ending.start()
        ending.join(_END_S)

    def _ended(self, before: Incident | None, after: Incident) -> Iterator[ReadableSpan]:
        trace = trace_id(after.id)
        whole = _context(trace, f"{after.id}:{after.run}")
        known = before.visits if before is not None else ()
        for number, visit in enumerate(after.visits):
            if visit.ended_s is None or (number < len(known) and known[number].ended_s is not None):
                continue
            yield self._span(
                visit.box, _context(trace, f"{after.id}:visit:{number}"), whole,
                start_time=_ns(visit.started_s), end_time=_ns(max(visit.started_s, visit.ended_s)),
                attributes={
                    "runbook.incident": after.id, "runbook.box": visit.box, "runbook.outcome": visit.outcome,
                    "runbook.attempt": visit.attempt,
                },
                events=tuple(_events(after, visit)),
            )
        if after.closed_s is not None and after.finished and not (before is not None and before.finished):
            # The last box is left just after it has closed the incident.
            end_s = max([after.closed_s, *(visit.ended_s or 0.0 for visit in after.visits[-1:])])
            told = dict(zip(LABELS, incident_labels(summarize(after), self._report_url), strict=True))
            failed = after.state is IncidentState.ESCALATED
            yield self._span(
                f"incident {after.state.value}", whole, start_time=_ns(after.opened_s), end_time=_ns(end_s),
                attributes={
                    **{f"runbook.{name}": value for name, value in told.items() if value}, "runbook.run": after.run
                },
                status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            )


def trace_id(incident: str) -> int:
    """The first 16 bytes of the SHA-256 of the incident's id: the same after a restart, and for whoever looks it up."""
    return int.from_bytes(hashlib.sha256(incident.encode()).digest()[:16], "big")


def _context(trace: int, of: str) -> SpanContext:
    """Numbers that follow from what they are of, so that a span which is sent again is the same span."""
    span = int.from_bytes(hashlib.sha256(of.encode()).digest()[:8], "big")
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _events(incident: Incident, visit: BoxVisit) -> Iterator[Event]:
    ended_s = visit.ended_s or visit.started_s
    jobs = {incident.root_job, *(attempt.job for attempt in incident.attempts)}
    named = {str(name) for name in (*jobs, *incident.drained_nodes, *incident.excluded_nodes) if name}
    for act in incident.acts:
        if visit.started_s <= act.time_s <= ended_s:
            yield Event(act.what, _told(act, named), _ns(act.time_s))


def _told(act: Act, named: set[str]) -> dict[str, str | bool]:
    """Of what was acted on, only jobs and nodes: other acts are on paths."""
    target = {"runbook.target": act.target} if act.target in named else {}
    return {**target, "runbook.planned_only": act.planned_only, "runbook.approved": bool(act.approved_by)}


def _ns(time_s: float) -> int:
    return int(time_s * 1e9)
