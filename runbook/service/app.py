"""The web pages: incidents, their documents, health and metrics. Nothing here changes anything.

There is no login: it listens on loopback, and whoever shows it to more people puts a proxy with one before it. Kept
evidence is never served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runbook.errors import BadInput, NotFound, RunbookError
from runbook.model.incident import Incident
from runbook.model.units import IncidentId
from runbook.report.html import render_html, security_policy
from runbook.report.index_page import render_index, render_problem
from runbook.report.picture import FlowPicture
from runbook.report.summary import IncidentSummary

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_REFRESH_S = 5


class Incidents(Protocol):
    """The stored incidents, for reading."""

    def list(self) -> tuple[IncidentSummary, ...]: ...

    def unreadable(self) -> tuple[str, ...]: ...

    def load(self, incident: IncidentId) -> Incident: ...

    def load_contract(self, incident: IncidentId) -> dict[str, Any] | None: ...

    def read_file(self, incident: IncidentId, relative: str) -> bytes: ...


def create_app(
    store: Incidents,
    flow_picture: Callable[[Incident], FlowPicture],
    health: Callable[[], Mapping[str, Any]],
    metrics: Callable[[], bytes],
    *,
    hosts: Sequence[str] = LOOPBACK_HOSTS,
    more_routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """The application. `health` gives /healthz its body ("ok" decides between 200 and 503); `hosts` are the names that
    a request may ask for: a page elsewhere cannot reach a loopback service under a name of its own."""

    def index(request: Request) -> Response:
        number = request.query_params.get("page", "1")
        page = int(number) if number.isascii() and number.isdecimal() and len(number) < 7 else 1
        rows = store.list()
        return HTMLResponse(
            render_index(rows, request.query_params.get("state", "all"), page, store.unreadable())
        )

    def incident_page(request: Request) -> Response:
        name = IncidentId(request.path_params["incident"])
        incident = store.load(name)
        return HTMLResponse(
            render_html(
                incident,
                flow_picture(incident),
                store.load_contract(name),
                evidence_links=False,
                home_url="/",
                refresh_s=0 if incident.finished else _REFRESH_S,
            )
        )

    def incident_document(request: Request) -> Response:
        document = store.read_file(IncidentId(request.path_params["incident"]), "incident.json")
        return Response(document, media_type="application/json")

    def healthz(_request: Request) -> Response:
        body = dict(health())
        return JSONResponse(body, status_code=200 if body.get("ok") else 503)

    def metrics_page(_request: Request) -> Response:
        return Response(metrics(), headers={"content-type": METRICS_TYPE})

    return Starlette(
        routes=[
            Route("/", index),
            Route("/incidents/{incident}", incident_page),
            Route("/incidents/{incident}/incident.json", incident_document),
            Route("/healthz", healthz),
            Route("/metrics", metrics_page),
            *more_routes,
        ],
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        ],
        exception_handlers={RunbookError: _problem, HTTPException: _http_problem, Exception: _bug},
    )


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
        "Content-Security-Policy": security_policy() + "; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "Cache-Control": "no-store",
    }


def _problem(_request: Request, error: Exception) -> Response:
    """An expected problem: what, and what to do next. Where it lies is the machine's own affair."""
    # A name that is no incident's is refused without a place; a damaged document has one.
    if isinstance(error, NotFound) or (isinstance(error, BadInput) and not error.where):
        page = render_problem("No such incident", error.what, "The list has those that there are.")
        return HTMLResponse(page, status_code=404)
    assert isinstance(error, RunbookError)
    return HTMLResponse(
        render_problem("This cannot be shown now", error.what, error.next_step), status_code=503
    )


def _http_problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = "There is no such page" if error.status_code == 404 else "This request is not understood"
    return HTMLResponse(
        render_problem(title, error.detail), status_code=error.status_code, headers=error.headers
    )


def _bug(_request: Request, _error: Exception) -> Response:
    return HTMLResponse(
        render_problem("A fault of this program", "The service's log has the details."), status_code=500
    )
