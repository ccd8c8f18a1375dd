"""/history: what died of what and which lever worked, and which nodes stand out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from runbook.model.remedy import Remembered
from runbook.report.history import HistoryQuery
from runbook.report.history_page import render_history
from runbook.report.site import Site, security_policy
from runbook.report.summary import IncidentSummary
from runbook.service.people import People


class Past(Protocol):
    """The stored witnesses."""

    def all(self) -> Mapping[str, Remembered]: ...


def history_routes(
    rows: Callable[[], Sequence[IncidentSummary]], past: Past, now: Callable[[], float], people: People | None = None
) -> Sequence[BaseRoute]:
    """The page's route. Who may look at it is the gate's affair, as for every page."""

    def page(request: Request) -> Response:
        query = HistoryQuery.read(request.query_params)
        if "" in request.query_params.values():
            # A form sends its empty fields, too; the address that is shared has none.
            return RedirectResponse(query.address, status_code=303)
        site = Site(here="/history", account=people.account(request) if people else Markup(""))
        text = render_history(rows(), past.all(), query, now(), site=site)
        headers = {"Content-Security-Policy": security_policy(served=True) + "; frame-ancestors 'none'"}
        return HTMLResponse(text.encode("utf-8", "replace"), headers=headers)

    return (Route("/history", page),)
