"""POST /webhooks/alertmanager: alerts become events in the spool: a crash loses none, and nobody waits for Slurm.

An alert is a hint, not evidence. The daemon asks the scheduler about the job, the flow reads the job's own logs, and
only those decide; see docs/webhook.md.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Protocol

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from runbook.config import WebhookDocument
from runbook.errors import BadInput, NotFound, Unavailable
from runbook.model.incident import Incident, IncidentState
from runbook.model.units import IncidentId, JobId, NodeName, is_incident_id
from runbook.service.auth import AuthMethod, TooLarge, body_of, visitor_of
from runbook.service.spool import SpoolEvent, alert_file
from runbook.service.tokens import Role
from runbook.triggers import incident_id

# What Alertmanager sends, and which job each alert means: values in, values out.
#
# The format is Alertmanager's webhook, version 4 (https://prometheus.io/docs/alerting/latest/configuration/,
# `webhook_config`). Labels are anybody's text: what is used of them is matched whole against what it has to be.

MOST_ALERTS = 2000
_AHEAD_S = 600.0
"""How far a sender's clock may be ahead."""
_OWN = re.compile(r"Runbook[A-Z]\w{0,100}", re.ASCII)
"""How our own rules name their alerts (deploy/prometheus)."""
_OWN_LABELS = ("incident", "incident_id")
_JOB = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?")
"""ASCII digits alone: other scripts' digits are digits to `\\d`, and no job of Slurm's."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_PORT = re.compile(r":[0-9]{1,5}\Z")
_ODD = re.compile(r"[^A-Za-z0-9_:.-]")

_Text = Annotated[str, StringConstraints(max_length=8192)]


class _Part(BaseModel):
    # A newer Alertmanager may say more; what is read is checked strictly.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _AlertPart(_Part):
    status: Literal["firing", "resolved"]
    labels: dict[str, _Text] = Field(max_length=200)
    startsAt: Annotated[AwareDatetime, Field(strict=False)]
    fingerprint: str = Field(pattern=r"^[0-9a-f]{16}$")


class _Notification(_Part):
    version: Literal["4"]
    alerts: list[_AlertPart] = Field(max_length=MOST_ALERTS)
    truncatedAlerts: int = Field(default=0, ge=0)


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `began_s`: epoch seconds."""

    name: str
    firing: bool
    began_s: float
    fingerprint: str
    labels: Mapping[str, str]


class Outcome(StrEnum):
    """What became of an alert."""

    ACCEPTED = "accepted"
    """Written down; the daemon asks Slurm about the job and reads its logs."""
    WAITING = "waiting"
    """It was written down before and waits for the daemon."""
    JOINED = "joined"
    """Its incident is there."""
    IGNORED = "ignored"
    """Resolved, too old, another cluster's, or our own without an incident."""
    NOT_ASSIGNABLE = "not_assignable"
    """It names no job, and no node either."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What is done with an alert: an event to write, or why there is none."""

    outcome: Outcome
    why: str = ""
    event: SpoolEvent | None = None
    incident: IncidentId | None = None


def read_notification(body: bytes) -> tuple[tuple[Alert, ...], int]:
    """The alerts of a notification, and how many Alertmanager left out. Raises `BadInput` with what is wrong, where."""
    try:
        found = _Notification.model_validate_json(body)
    except ValidationError as error:
        raise BadInput(
            "; ".join(_told(item["loc"], item["msg"]) for item in error.errors(include_url=False)[:5]),
            next_step="send Alertmanager's webhook JSON, version 4",
        ) from error
    return tuple(
        Alert(
            _ODD.sub("_", alert.labels.get("alertname", "unnamed"))[:80] or "unnamed",
            alert.status == "firing", alert.startsAt.timestamp(), alert.fingerprint, alert.labels,
        )
        for alert in found.alerts
    ), found.truncatedAlerts


def judge(
    alert: Alert,
    settings: WebhookDocument,
    *,
    cluster: str,
    now_s: float,
    known: Callable[[IncidentId], bool],
    incident_of: Callable[[JobId], IncidentId | None],
) -> Judged:
    """What an alert asks for. `known`: whether there is such an incident; `incident_of`: the open one of a job."""
    of_cluster = alert.labels.get(settings.cluster_label, "") if settings.cluster_label else ""
    if of_cluster and of_cluster != cluster:
        return Judged(Outcome.IGNORED, f"it is of another cluster (label {settings.cluster_label})")
    if _OWN.fullmatch(alert.name):
        return _own(alert, known)
    if not alert.firing:
        return Judged(Outcome.IGNORED, "it is resolved")
    age_s = now_s - alert.began_s
    if age_s > settings.oldest_hours * 3600:
        return Judged(Outcome.IGNORED, f"it began {age_s / 3600:.0f} hours ago, more than {settings.oldest_hours:g}")
    if age_s < -_AHEAD_S:
        return Judged(Outcome.IGNORED, f"it begins {-age_s / 60:.0f} minutes in the future; look at the clocks")
    job = _first(alert.labels, settings.job_labels)
    if job is not None and not _JOB.fullmatch(job):
        return Judged(Outcome.NOT_ASSIGNABLE, "its job label holds no single Slurm job id")
    if job is not None and (incident := incident_of(JobId(job))) is not None:
        return Judged(Outcome.JOINED, "its incident is being worked on", incident=incident)
    node = _PORT.sub("", _first(alert.labels, settings.node_labels) or "")
    if job is None and not _NODE.fullmatch(node):
        return Judged(Outcome.NOT_ASSIGNABLE, f"none of its labels names a job ({', '.join(settings.job_labels)}) "
                      f"or a node ({', '.join(settings.node_labels)})")
    event = SpoolEvent(
        file=alert_file(cluster, alert.fingerprint, alert.began_s),
        cluster=cluster[:40],
        job=JobId(job or ""),
        raw_job_id=job or "",
        restart_count=0,
        time_s=float(f"{alert.began_s:.0f}"),
        trigger="alert",
        alert=alert.name,
        node=NodeName("" if job else node),
    )
    why = "the job's own logs decide" if job else f"Slurm is asked which job had {node} then; it opens only for one"
    return Judged(Outcome.ACCEPTED, why, event)


def _own(alert: Alert, known: Callable[[IncidentId], bool]) -> Judged:
    """Our own alert on its way round: it belongs to its incident and opens nothing, ever."""
    for label in _OWN_LABELS:
        named = alert.labels.get(label, "")
        if is_incident_id(named) and known(IncidentId(named)):
            return Judged(Outcome.JOINED, "it is this tool's own alert", incident=IncidentId(named))
    return Judged(Outcome.IGNORED, "it is this tool's own alert and names no incident that there is")


def _first(labels: Mapping[str, str], wanted: tuple[str, ...]) -> str | None:
    """The value of the first label that is there and holds something."""
    return next((labels[name].strip() for name in wanted if labels.get(name, "").strip()), None)


def _told(location: tuple[int | str, ...], message: str) -> str:
    place = ".".join(_ODD.sub("_", str(part))[:60] for part in location)
    return f"{place}: {message}" if place else message


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

    playbook: str
    """The id of the flow that the alerts' jobs get."""
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
        if visitor is None or visitor.method is not AuthMethod.BEARER or not visitor.may(Role.ALERT):
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
        found = self._load(incident_id(self.playbook, self.cluster, job))
        at_work = found is not None and not found.finished and found.state is not IncidentState.INTERRUPTED
        return found.id if found is not None and at_work else None

    def _load(self, incident: IncidentId) -> Incident | None:
        try:
            return self.store.load(incident)
        except (NotFound, BadInput):
            return None


def _refused(status: int, what: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": what}, status_code=status, headers=headers)
