"""Pages about no incident: /docs/NAME, the program's own documents, so that the link of an alert opens what the alert
means; /explain, what a word of a report, of Slurm or of the driver means, as `runbook explain` tells it; and what is
said where something went wrong.

They show texts of this program only. What was asked for is a visitor's text, and is shown as such.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from urllib.parse import quote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from runbook.errors import BadInput, NotFound, RunbookError
from runbook.explain import Topic
from runbook.explain.terms import load_terms
from runbook.explain.topics import LONGEST_WORD, near, topics_of
from runbook.locations import data_folder
from runbook.report.html import Site, page_environment
from runbook.report.html.list_pages import render_problem
from runbook.report.vocabulary.clean import clean_line, shorten

_NAME = re.compile(r"[a-z][a-z-]{0,40}")
_NEIGHBOUR = re.compile(r"([a-z][a-z-]{0,40})\.md(#[A-Za-z0-9-]+)?")
_ADDRESS = "/explain"
_REMEMBERED_WORDS = 256
_SHOWN_WORD = 80
_IN_FULL = 3
"""So many topics of one word are told in full; others in short, each with a link to its own page."""


def reference_routes() -> tuple[Route, ...]:
    """/docs/NAME, /explain and /explain/WORD."""
    return (
        Route("/docs/{name}", _document),
        Route(_ADDRESS, _explain),
        Route(_ADDRESS + "/{name:path}", _explain),
    )


def _document(request: Request) -> Response:
    name = request.path_params["name"].removesuffix(".md")
    path = data_folder("docs") / f"{name}.md"
    if not _NAME.fullmatch(name) or not path.is_file():
        raise HTTPException(404)
    # The page is the program's own text; its policy still lets nothing run.
    return HTMLResponse(_document_page(path))


@cache
def _document_page(path: Path) -> str:
    title, body = to_html(path.read_text(encoding="utf-8"))
    return page_environment().get_template("document.html").render(title=title, body=body, site=Site())


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


def _explain(request: Request) -> Response:
    word = clean_line(request.path_params.get("name") or request.query_params.get("q", "")).strip()[:LONGEST_WORD]
    page, status = _explain_page(word)
    return HTMLResponse(page, status_code=status)


@lru_cache(maxsize=_REMEMBERED_WORDS)
def _explain_page(word: str) -> tuple[str, int]:
    """The page of a word and its status: 404 where nothing has that name."""
    found = topics_of(word) if word else ()
    page = page_environment().get_template("explain.html").render(
        word=word,
        shown_word=shorten(word, _SHOWN_WORD),
        topics=found,
        in_full=len(found) <= _IN_FULL,
        close=near(word) if word and not found else (),
        groups=() if word else load_terms().begin,
        address=_address,
        leads=_leads,
        site=Site(here=_ADDRESS),
    )
    return page, 200 if found or not word else 404


def _address(name: str) -> str:
    return f"{_ADDRESS}/{quote(name, safe='')}"


def _leads(topic: Topic) -> tuple[str, ...]:
    """Names of other pages, without the topic's own."""
    return tuple(name for name in topic.see if name != topic.name)


def problem_handlers() -> dict[type[Exception], Callable[[Request, Exception], Response]]:
    """What is answered where a page cannot be: by the exception that a route raised."""
    return {RunbookError: _problem, HTTPException: _http_problem, Exception: _bug}


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
