"""/docs/NAME: the program's own documents, so that the link of an alert opens what the alert means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from runbook.locations import data_folder
from runbook.report.site import Site, environment, security_policy

_NAME = re.compile(r"[a-z][a-z-]{0,40}")
_NEIGHBOUR = re.compile(r"([a-z][a-z-]{0,40})\.md(#[A-Za-z0-9-]+)?")


def document_routes() -> Sequence[BaseRoute]:
    """One route for all of them."""
    return (Route("/docs/{name}", _document),)


def _document(request: Request) -> Response:
    name = request.path_params["name"].removesuffix(".md")
    path = data_folder("docs") / f"{name}.md"
    if not _NAME.fullmatch(name) or not path.is_file():
        raise HTTPException(404)
    # The page is the program's own text; its policy still lets nothing run.
    headers = {"Content-Security-Policy": security_policy(served=True) + "; frame-ancestors 'none'"}
    return HTMLResponse(_page(path), headers=headers)


@cache
def _page(path: Path) -> str:
    title, body = to_html(path.read_text(encoding="utf-8"))
    return environment().get_template("document.html").render(title=title, body=body, site=Site())


def to_html(text: str) -> tuple[str, Markup]:
    """Title and body. Each heading can be linked to by its words in lower case; documents beside it are linked to as
    they are served."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(text)
    title = ""
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            words = tokens[place + 1].content
            token.attrSet("id", re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-"))
            title = title or words
        for child in token.children or ():
            _lead_to_the_page(child)
    # Raw HTML is off: what is markup here was made by the renderer from a file of this program.
    return title, Markup(reader.renderer.render(tokens, reader.options, {}))  # noqa: S704


def _lead_to_the_page(token: Token) -> None:
    found = _NEIGHBOUR.fullmatch(str(token.attrGet("href") or ""))
    if token.type == "link_open" and found:
        token.attrSet("href", f"/docs/{found[1]}{found[2] or ''}")
