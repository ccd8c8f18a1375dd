"""The sign-in page: a token becomes a session's cookie, and goes when it is told to."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from runbook.report.html import page_environment
from runbook.service.auth import (
    SIGN_IN,
    AuthMethod,
    SignIn,
    TooLarge,
    Visitor,
    cookie_name,
    form_of,
    goes_over_tls,
    is_loopback,
    own_place,
    problem,
    unknown_token,
    visitor_of,
)
from runbook.service.tokens import Role

LOG = logging.getLogger("runbook.service")


def account(visitor: Visitor | None) -> Markup:
    """Who is signed in, for a page's header, with the way out for a session."""
    page = page_environment().get_template("account.html").render(visitor=visitor)
    return Markup(page)  # noqa: S704  (of a template that escapes)


def sign_in_routes(sign_in: SignIn) -> Sequence[BaseRoute]:
    """/sign-in and /sign-out."""

    def page(request: Request, here: str, wrong: str = "", status: int = 200) -> Response:
        visitor = visitor_of(request)
        html = page_environment().get_template("signin.html").render(
            step="ask", here=own_place(here), wrong=wrong, site=None, refresh_s=0,
            visitor=visitor, by_token=sign_in.tokens is not None,
        )
        return HTMLResponse(html, status_code=status)

    async def show(request: Request) -> Response:
        return page(request, request.query_params.get("next", "/"))

    async def begin(request: Request) -> Response:
        if sign_in.tokens is None:
            return problem(request, 404, "There is no such page", "People come in through the proxy here.")
        origin = request.headers.get("origin", "")
        # Over plain http browsers do not say where a form is from, and with it their Origin is "null" or http.
        if not is_loopback(request) and "sec-fetch-site" not in request.headers and not origin.startswith("https:"):
            return problem(
                request, 403, "Sign in over https", "A token is not taken over a connection that others can read.",
                "Use the https address, or an SSH tunnel to loopback.",
            )
        if not sign_in.is_own_form(request):
            return problem(request, 403, "This form is not from here", "It was sent by a page of another site.")
        try:
            form = await form_of(request)
        except TooLarge:
            return problem(request, 413, "This is too large", "A token is a short line.")
        token, here = form.get("token", "").strip(), form.get("next", "/")
        holder = sign_in.tokens.holder(token, sign_in.now()) if token else None
        if holder is None:
            refused = unknown_token(sign_in, request)
            if refused.status_code == 429:
                return refused
            return page(request, here, "This token is not known: it is wrong, or was taken back.", 401)
        if holder.role is Role.ALERT:
            return page(request, here, "This token is for alerts only; it opens no page.", 403)
        LOG.info("%s signed in", holder.name)
        answer = RedirectResponse(own_place(here), status_code=303)
        tls = goes_over_tls(request)
        answer.set_cookie(
            cookie_name(tls=tls), sign_in.signer.begin(holder.mark), max_age=sign_in.signer.session_s, path="/",
            secure=tls, httponly=True, samesite="strict",
        )
        return answer

    async def end(request: Request) -> Response:
        if not sign_in.is_own_form(request):
            return problem(request, 403, "This form is not from here", "It was sent by a page of another site.")
        visitor = visitor_of(request)
        if visitor is not None and visitor.method is AuthMethod.SESSION:
            sign_in.signer.end(visitor.session)
            LOG.info("%s signed out", visitor.name)
        answer = RedirectResponse(SIGN_IN, status_code=303)
        for tls in (True, False):
            answer.delete_cookie(cookie_name(tls=tls), path="/", secure=tls, httponly=True, samesite="strict")
        return answer

    return (
        Route(SIGN_IN, show, methods=["GET"]),
        Route(SIGN_IN, begin, methods=["POST"]),
        Route("/sign-out", end, methods=["POST"]),
    )
