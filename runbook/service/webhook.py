"""POST /webhooks/alertmanager: alerts become events in the spool: a crash loses none, and nobody waits for Slurm.

An alert is a hint, not evidence. The daemon asks the scheduler about the job, the flow reads the job's own logs, and
only those decide; see docs/webhook.md.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from runbook.config import WebhookDocument
from runbook.errors import BadInput, NotFound, Unavailable
from runbook.model.incident import Incident, IncidentState
from runbook.model.units import IncidentId, JobId
from runbook.service.alerts import Alert, Judged, Outcome, judge, read_notification
from runbook.service.auth import Road, visitor_of
from runbook.service.forms import TooLarge, body_of
from runbook.service.spool import SpoolEvent
from runbook.service.tokens import Role
from runbook.triggers import incident_id

LOG = logging.getLogger("runbook.service")

PATH = "/webhooks/alertmanager"
MOST_BYTES = 2 << 20


class Events(Protocol):
    """Where events wait."""

    def write(self, event: SpoolEvent) -> bool: ...


class Incidents(Protocol):
    def load(self, incident: IncidentId) -> Incident: ...


@dataclass(frozen=True)
class Webhook:
    """Takes notifications for one cluster."""

    cluster: str
    settings: WebhookDocument
    spool: Events
    store: Incidents
    now: Callable[[], float] = time.time

    def routes(self) -> Sequence[BaseRoute]:
        return (Route(PATH, self._take, methods=["POST"]),)

    async def _take(self, request: Request) -> Response:
        visitor = visitor_of(request)
        # The gate has asked for the role; a browser's session or a proxy's word is still no way in for a program.
        if visitor is None or visitor.road is not Road.BEARER or not visitor.may(Role.ALERT):
            return _refused(401, "a bearer token of the role `alert` is needed", {"WWW-Authenticate": "Bearer"})
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _refused(415, "the body has to be application/json")
        try:
            alerts, left_out = read_notification(await body_of(request, MOST_BYTES))
        except TooLarge:
            return _refused(413, f"the notification is larger than {MOST_BYTES >> 20} MiB: set max_alerts")
        except BadInput as error:
            return _refused(400, error.what)
        try:
            told = await run_in_threadpool(self._each, alerts)
        except Unavailable as error:
            # Alertmanager tries again by itself; what was written down before is found waiting then.
            LOG.error("alerts cannot be taken: %s", error)
            return _refused(503, error.what)
        counted = Counter(item["outcome"] for item in told)
        LOG.info("%s alerts from %s: %s", len(told), visitor.name, dict(counted))
        return JSONResponse({"version": 1, "alerts": told, "counts": dict(counted), "truncated": left_out})

    def _each(self, alerts: Sequence[Alert]) -> list[dict[str, Any]]:
        return [self._one(alert) for alert in alerts]

    def _one(self, alert: Alert) -> dict[str, Any]:
        judged = judge(
            alert, self.settings, cluster=self.cluster, now_s=self.now(), known=self._known, incident_of=self._open
        )
        if judged.event is not None and not self.spool.write(judged.event):
            judged = Judged(Outcome.WAITING, "it was told before and waits for the daemon", judged.event)
        event = judged.event
        return {
            "fingerprint": alert.fingerprint,
            "alert": alert.name,
            "outcome": judged.outcome.value,
            "why": judged.why,
            "job": event.job or None if event else None,
            "node": event.node or None if event else None,
            "incident": judged.incident,
        }

    def _known(self, incident: IncidentId) -> bool:
        return self._load(incident) is not None

    def _open(self, job: JobId) -> IncidentId | None:
        """The incident of this job where it is at work. Of a relaunched job only the scheduler knows."""
        found = self._load(incident_id(self.cluster, job))
        at_work = found is not None and not found.finished and found.state is not IncidentState.INTERRUPTED
        return found.id if found is not None and at_work else None

    def _load(self, incident: IncidentId) -> Incident | None:
        try:
            return self.store.load(incident)
        except (NotFound, BadInput):
            return None


def _refused(status: int, what: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": what}, status_code=status, headers=headers)
