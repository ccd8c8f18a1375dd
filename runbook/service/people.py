"""Signed-in people on the pages: the gate before them, who they are in the header, what they may do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import BaseRoute

from runbook.model.incident import Incident
from runbook.service.actions import Actions
from runbook.service.auth import Gate, SignIn, visitor_of
from runbook.service.sign_in import account, sign_in_routes


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
        return f"{visitor.road}\0{visitor.session}\0{visitor.name}\0{visitor.role}\0{answered}" if visitor else ""

    def account(self, request: Request) -> Markup:
        """The header's part."""
        return account(visitor_of(request))

    def actions(self, request: Request, incident: Incident) -> object | None:
        """What the visitor may do with the incident, for the page's slot."""
        return self.acts.offered(request, incident) if self.acts else None
