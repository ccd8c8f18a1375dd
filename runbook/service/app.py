"""The web pages: incidents, their documents, health and metrics. Nothing here changes anything.

It listens on loopback, and asks who somebody is where the inventory has `sign_in` (`People`, who bring the acts, too).
Kept evidence is never served, and what is served is masked: pages and documents alike.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import anyio
from anyio.to_thread import run_sync
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runbook.kinds import load_kinds
from runbook.model.incident import Incident
from runbook.model.remedy import Remembered
from runbook.model.template import Patch
from runbook.model.units import IncidentId
from runbook.report.charts.flow_chart import FlowPicture
from runbook.report.html import (
    Site,
    assets_version,
    live_script,
    live_script_address,
    render_html,
    security_policy,
)
from runbook.report.html.list_pages import render_history, render_index
from runbook.report.incident_search import HistoryQuery, IndexQuery
from runbook.report.json_documents import load_contract, load_incident
from runbook.report.summary import IncidentSummary
from runbook.report.vocabulary.clean import NOT_SHOWN, masked_document
from runbook.service.actions import Actions
from runbook.service.auth import Gate, SignIn, visitor_of
from runbook.service.plain_pages import problem_handlers, reference_routes
from runbook.service.sign_in import account, sign_in_routes

# Signed-in people on the pages: the gate before them, who they are in the header, what they may do.

@dataclass(frozen=True)
class People:
    """What the application asks about whoever looks at it."""

    sign_in: SignIn
    acts: Actions | None = None

    @property
    def middleware(self) -> Middleware:
        return Middleware(Gate, sign_in=self.sign_in)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        return (*sign_in_routes(self.sign_in), *(self.acts.routes() if self.acts else ()))

    def is_known(self, request: Request) -> bool:
        return visitor_of(request) is not None

    def key(self, request: Request) -> str:
        """For whom a page was made, and after how many answers: another visitor's page is another page, and one that
        still asks what somebody has answered is old."""
        visitor = visitor_of(request)
        answered = self.acts.answered if self.acts else 0
        return f"{visitor.method}\0{visitor.session}\0{visitor.name}\0{visitor.role}\0{answered}" if visitor else ""

    def account(self, request: Request) -> Markup:
        """The header's part."""
        return account(visitor_of(request))

    def actions(self, request: Request, incident: Incident) -> object | None:
        """What the visitor may do with the incident, for the page's slot."""
        return self.acts.offered(request, incident) if self.acts else None


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_DRAWN = 3
"""Pages and documents that are made at a time: each may take seconds and a hundred megabytes."""
_MOST_WAITING = 24
_AGAIN_S = 5
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_NO_FRAME = "; frame-ancestors 'none'"
_FOR_EVER = "public, max-age=31536000, immutable"


class Folders(Protocol):
    """The incidents' own files."""

    def read_file(self, incident: IncidentId, relative: str) -> bytes: ...

    def evidence_gone(self, incident: IncidentId) -> bool: ...

    def as_kept(self, incident: Incident) -> Incident: ...


class Incidents(Protocol):
    """All incidents at once."""

    def overview(self) -> tuple[tuple[IncidentSummary, ...], tuple[str, ...]]: ...

    def all(self) -> Mapping[str, Remembered]: ...


@dataclass(frozen=True, slots=True)
class Shown:
    """What the pages are made of."""

    folders: Folders
    incidents: Incidents
    flow_picture: Callable[[Incident], FlowPicture]
    health: Callable[[], Mapping[str, Any]]
    """The body of /healthz: "ok" decides between 200 and 503."""
    metrics: Callable[[], bytes]


def create_app(
    shown: Shown,
    *,
    hosts: Sequence[str] = LOOPBACK_HOSTS,
    more_routes: Sequence[BaseRoute] = (),
    people: People | None = None,
    now: Callable[[], float] = time.time,
    look_again_s: tuple[int, int] = (5, 30),
) -> Starlette:
    """The application. `hosts` are the names that a request may ask for: a page elsewhere cannot reach a loopback
    service under a name of its own. `people`: who may look and act; None: whoever reaches the address looks, and nobody
    acts. `look_again_s`: how often an open page of an incident at work, and of the list, asks again."""

    def account_of(request: Request) -> Markup:
        return people.account(request) if people else Markup("")

    places = anyio.CapacityLimiter(_MOST_DRAWN)
    asked_for = 0

    def drawn(draw: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """Whoever waits for a place holds no thread, so that health and metrics answer meanwhile."""

        @functools.wraps(draw)
        async def endpoint(request: Request) -> Response:
            nonlocal asked_for
            if asked_for >= _MOST_DRAWN + _MOST_WAITING:
                raise HTTPException(
                    503, "too many pages are asked for at once: try again in some seconds",
                    headers={"Retry-After": str(_AGAIN_S)},
                )
            asked_for += 1
            try:
                return await run_sync(draw, request, limiter=places)
            finally:
                asked_for -= 1

        return endpoint

    def index(request: Request) -> Response:
        query = IndexQuery.read(request.query_params, load_kinds())
        if request.url.query and query.address != f"/?{request.url.query}" and "" in request.query_params.values():
            # A form sends its empty fields, too; the address that is shared and bookmarked has none.
            return RedirectResponse(query.address, status_code=303)
        site = Site(here="/", live_s=look_again_s[1], account=account_of(request))
        rows, unreadable = shown.incidents.overview()
        page = render_index(rows, query, now(), unreadable=unreadable, site=site)
        return _page(request, page, _tag(page))

    def incident_page(request: Request) -> Response:
        name = IncidentId(request.path_params["incident"])
        document = shown.folders.read_file(name, "incident.json")
        kept = "gone" if shown.folders.evidence_gone(name) else "kept"
        tag = _tag(assets_version(), document, kept, people.key(request) if people else "")
        if _has(request, tag):
            return _unchanged(tag)
        where = f"incidents/{name}/incident.json"
        incident = load_incident(document, where)
        if people is None:
            incident = _without_files(incident)
        page = render_html(
            shown.folders.as_kept(incident),
            shown.flow_picture(incident),
            load_contract(document, where),
            site=Site(live_s=0 if incident.finished else look_again_s[0], account=account_of(request)),
            actions=people.actions(request, incident) if people else None,
        )
        return _page(request, page, tag)

    def incident_document(request: Request) -> Response:
        name = IncidentId(request.path_params["incident"])
        document = shown.folders.read_file(name, "incident.json")
        masked = masked_document(document, f"incidents/{name}/incident.json", files=people is not None)
        return Response(masked, media_type="application/json")

    def history(request: Request) -> Response:
        query = HistoryQuery.read(request.query_params, load_kinds())
        if "" in request.query_params.values():
            # A form sends its empty fields, too; the address that is shared has none.
            return RedirectResponse(query.address, status_code=303)
        site = Site(here="/history", account=account_of(request))
        text = render_history(shown.incidents.overview()[0], shown.incidents.all(), query, now(), site=site)
        return HTMLResponse(text.encode("utf-8", "replace"), headers=_page_headers())

    def script(request: Request) -> Response:
        if request.url.path != live_script_address():
            raise HTTPException(404)
        return Response(live_script(), media_type="text/javascript", headers={"Cache-Control": _FOR_EVER})

    def healthz(request: Request) -> Response:
        body = dict(shown.health())
        if people and not people.is_known(request):
            # Words may name jobs and paths: figures are enough for whoever only watches.
            body = {name: value for name, value in body.items() if not isinstance(value, str)}
        return JSONResponse(body, status_code=200 if body.get("ok") else 503)

    def metrics_page(_request: Request) -> Response:
        return Response(shown.metrics(), headers={"content-type": METRICS_TYPE})

    return Starlette(
        routes=[
            Route("/", drawn(index)),
            Route("/incidents/{incident}", drawn(incident_page)),
            Route("/incidents/{incident}/incident.json", drawn(incident_document)),
            Route("/history", drawn(history)),
            *reference_routes(),
            Route("/assets/{name}", script),
            Route("/healthz", healthz),
            Route("/metrics", metrics_page),
            *(people.routes if people else ()),
            *more_routes,
        ],
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
            *((people.middleware,) if people else ()),
        ],
        exception_handlers=problem_handlers(),
    )


def _without_files(incident: Incident) -> Incident:
    """Without the lines of scripts and configurations that stand in a diff: no masking knows every secret of those.
    Which option is changed from what to what is told beside it."""

    def hidden(patch: Patch | None) -> Patch | None:
        return replace(patch, diff=NOT_SHOWN) if patch is not None and patch.diff else patch

    attempts = tuple(replace(attempt, patch=hidden(attempt.patch)) for attempt in incident.attempts)
    return replace(incident, patch=hidden(incident.patch), attempts=attempts)


def _tag(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "replace") if isinstance(part, str) else part)
        digest.update(b"\0")
    return f'"{digest.hexdigest()[:32]}"'


def _has(request: Request, tag: str) -> bool:
    """Whether the one who asks says that this is what he has."""
    return tag in request.headers.get("if-none-match", "")


def _unchanged(tag: str) -> Response:
    return Response(status_code=304, headers={"ETag": tag, **_page_headers()})


def _page(request: Request, page: str, tag: str) -> Response:
    if _has(request, tag):
        return _unchanged(tag)
    return HTMLResponse(page.encode("utf-8", "replace"), headers={"ETag": tag, **_page_headers()})


def _page_headers() -> dict[str, str]:
    """A page may run the program's own script, which asks this service again."""
    return {"Content-Security-Policy": security_policy(served=True) + _NO_FRAME}


class SecurityHeaders:
    """Headers of every answer: no script, no frame, no sniffing, no cache, no referrer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _headers().items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


def _headers() -> dict[str, str]:
    return {
        "Content-Security-Policy": security_policy() + _NO_FRAME,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "Cache-Control": "no-store",
    }
