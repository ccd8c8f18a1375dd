"""What a signed-in person may do from an incident's page: say yes or no to what it waits for, and take back its change.

An answer counts only for the question that was shown, in the words that were shown. Whoever gives it stands in the
incident's log of acts.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from runbook.errors import BadInput, NotFound, NothingToDo, RunbookError, Unavailable
from runbook.model.incident import Incident, Policy
from runbook.model.units import IncidentId
from runbook.report.html import Site, page_environment
from runbook.report.vocabulary.clean import clean_line, shorten
from runbook.service.auth import AuthMethod, SignIn, TooLarge, Visitor, form_of, problem, visitor_of
from runbook.service.decisions import (
    ContextOf,
    changes_undone,
    check_undoable,
    evidence,
    question_of,
    undo,
    what_is_undone,
)
from runbook.service.sign_in import account
from runbook.service.tokens import Role

LOG = logging.getLogger("runbook.service")
_MOST_REMEMBERED = 1000


class Incidents(Protocol):
    def load(self, incident: IncidentId) -> Incident: ...


@dataclass(frozen=True, slots=True)
class Offered:
    """What the page offers its visitor; the template `actions.html` draws it."""

    name: str
    may_act: bool
    incident: str
    question: str
    """"" when nothing is asked."""
    sentence: str
    given: str
    """The answer that was handed over and not heard yet: "alice said yes"."""
    answer_form: str
    """What makes the form count."""
    can_roll_back: bool


@dataclass
class Actions:
    """The acts over HTTP. `answer` hands an answer to whoever drives the incident; `save` stores and draws it; `alone`
    keeps two from rolling the same incident back at once."""

    store: Incidents
    sign_in: SignIn
    policy: Policy
    answer: Callable[[Incident, bool, str], None]
    context_of: ContextOf
    save: Callable[[Incident], None]
    alone: Callable[[IncidentId], AbstractContextManager[object]]
    _given: OrderedDict[str, tuple[bool, str]] = field(default_factory=OrderedDict, init=False, repr=False)
    _answered: int = field(default=0, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def offered(self, request: Request, incident: Incident) -> Offered | None:
        """What this visitor may do with the incident; None for nobody known, and where there is nothing to do."""
        visitor = visitor_of(request)
        question = question_of(incident)
        can_roll_back = incident.finished and bool(incident.promoted or incident.drained_nodes)
        if visitor is None or not (question or can_roll_back):
            return None
        return Offered(
            name=visitor.name,
            may_act=visitor.may(Role.ACT),
            incident=incident.id,
            question=question,
            sentence=incident.awaiting,
            given=f"{given[1]} said {'yes' if given[0] else 'no'}" if (given := self._given.get(question)) else "",
            answer_form=self._form(visitor, incident, "answer", question),
            can_roll_back=can_roll_back,
        )

    @property
    def answered(self) -> int:
        """How many answers were taken: a page made before the last one may show a question that is answered."""
        return self._answered

    def routes(self) -> Sequence[BaseRoute]:
        return (
            Route("/incidents/{incident}/question", self._question, methods=["GET"]),
            Route("/incidents/{incident}/answer", self._answer, methods=["POST"]),
            Route("/incidents/{incident}/rollback", self._ask_rollback, methods=["GET"]),
            Route("/incidents/{incident}/rollback", self._roll_back, methods=["POST"]),
        )

    # -- approval --------------------------------------------------------------------------------------------

    def _question(self, request: Request) -> Response:
        """What a program needs to answer."""
        incident = self._load(request)
        sentence = _line(incident.awaiting)
        return JSONResponse(
            {"incident": incident.id, "question": question_of(incident) or None, "sentence": sentence or None}
        )

    async def _answer(self, request: Request) -> Response:
        form, refused = await self._posted(request)
        return refused if refused is not None else await run_in_threadpool(self._take_answer, request, form)

    def _take_answer(self, request: Request, form: Mapping[str, str]) -> Response:
        visitor = _known(request)
        incident = self._load(request)
        asked, word = form.get("question", ""), form.get("answer", "")
        if word not in ("yes", "no") or not asked:
            return problem(request, 400, "This is no answer", "It has to be yes or no, to a question that it names.")
        if not self._counts(visitor, form, incident, "answer", asked):
            return _not_from_here(request)
        yes = word == "yes"
        with self._lock:
            # Two clicks are one answer: what was handed over is not handed over again.
            before = self._given.get(asked)
            if before is None:
                if question_of(incident) != asked:
                    return self._stale(request, incident)
                if self.policy is Policy.PLAN:
                    return problem(
                        request, 409, "This cluster only plans by now", "The inventory's policy is `plan`, so nothing "
                        "is done, whoever says yes.",
                    )
                self.answer(incident, yes, visitor.name)
                self._given[asked] = before = (yes, visitor.name)
                self._answered += 1
                while len(self._given) > _MOST_REMEMBERED:
                    self._given.popitem(last=False)
                LOG.warning("%s: %s says %s to: %s", incident.id, visitor.name, word, _line(incident.awaiting))
        given, by = before
        if given is not yes:
            return self._done(
                request, incident, 409, f"{by} said {'yes' if given else 'no'} before you",
                ("The first answer to a question counts.",),
            )
        what = (f"To: {_line(incident.awaiting)}.",) if question_of(incident) == asked else ()
        return self._done(
            request, incident, 200, f"{by} said {word}",
            (*what, "It is handed over; if somebody answered elsewhere before, that answer counts. The incident's page "
             "shows what becomes of it."),
        )

    def _stale(self, request: Request, incident: Incident) -> Response:
        if incident.awaiting:
            return self._done(
                request, incident, 409, "The question is another by now",
                ("Your answer was to an older question and was not taken.",
                 f"It waits for a yes to this now: {_line(incident.awaiting)}. Look at its page, then answer."),
            )
        return self._done(
            request, incident, 409, "Nothing is asked any more",
            ("Somebody answered, or the incident went on. Your answer was not taken.",),
        )

    # -- rollback --------------------------------------------------------------------------------------------

    def _ask_rollback(self, request: Request) -> Response:
        """The page that shows what would be taken back, before anything is."""
        visitor = _known(request)
        if not visitor.may(Role.ACT):
            return _not_yours(request, visitor)
        incident = self._load(request)
        undrain = request.query_params.get("undrain") == "1"
        refused = self._cannot_roll_back(request, incident, undrain=undrain or not incident.promoted)
        if refused is not None:
            return refused
        undrain = undrain or not incident.promoted
        standing = _standing(incident)
        lines = self._evidence(incident) if undrain else ()
        return HTMLResponse(
            page_environment().get_template("rollback.html").render(
                incident=incident.id,
                what=what_is_undone(incident, undrain=undrain),
                promoted=incident.promoted,
                changes=tuple(_line(title) for title in changes_undone(incident)),
                evidence=lines,
                drained=incident.drained_nodes,
                undrain=undrain,
                standing=standing,
                form=self._form(visitor, incident, "rollback", standing),
                site=Site(here="/", account=account(visitor)), refresh_s=0,
            )
        )

    def _evidence(self, incident: Incident) -> Sequence[str]:
        """For reading: what cannot be found out is said, and keeps nobody from deciding."""
        lines: list[str] = []
        try:
            for line in evidence(incident, self.context_of):
                lines.append(_line(line))
        except RunbookError as error:
            lines.append(f"How it looks now could not be found out: {_line(error.what)}")
        return lines

    async def _roll_back(self, request: Request) -> Response:
        form, refused = await self._posted(request)
        return refused if refused is not None else await run_in_threadpool(self._take_rollback, request, form)

    def _take_rollback(self, request: Request, form: Mapping[str, str]) -> Response:
        visitor = _known(request)
        incident = self._load(request)
        undrain, standing = form.get("undrain") == "1", form.get("standing", "")
        if not self._counts(visitor, form, incident, "rollback", standing):
            return _not_from_here(request)
        done: list[str] = []
        try:
            with self.alone(incident.id):
                incident = self._load(request)
                refused = self._cannot_roll_back(request, incident, undrain=undrain)
                if refused is not None:
                    return refused
                if _standing(incident) != standing:
                    return self._done(
                        request, incident, 409, "The incident changed since that page was shown",
                        ("Nothing was taken back. Look at what there is to take back now.",),
                    )
                LOG.warning("%s: %s rolls it back", incident.id, visitor.name)
                for line in undo(incident, self.context_of, self.save, undrain=undrain, by=visitor.name):
                    done.append(f"Done: {_line(line)}.")
        except RunbookError as error:
            # Each part was saved as it was done; the page says why the rest was not.
            status = 503 if isinstance(error, Unavailable) else 409
            heading = "Not all of it was taken back" if done else "It was not taken back"
            return self._done(request, incident, status, heading, (*done, error.what, error.next_step))
        return self._done(request, incident, 200, "Taken back", done)

    def _cannot_roll_back(self, request: Request, incident: Incident, *, undrain: bool) -> Response | None:
        if not incident.finished:
            return self._done(
                request, incident, 409, "The incident is still at work",
                ("What it changed is taken back when it has ended.",),
            )
        try:
            check_undoable(incident, undrain=undrain)
        except NothingToDo as error:
            return self._done(request, incident, 409, "There is nothing to take back", (error.what, error.next_step))
        return None

    # -- common ----------------------------------------------------------------------------------------------

    async def _posted(self, request: Request) -> tuple[Mapping[str, str], Response | None]:
        """The form, or why it is refused: nobody, a reader, a page of another site, too large."""
        visitor = visitor_of(request)
        if visitor is None:
            return {}, problem(request, 401, "Nobody is signed in", "Acting is for people who are signed in.")
        if not visitor.may(Role.ACT):
            return {}, _not_yours(request, visitor)
        if not self.sign_in.is_own_form(request):
            return {}, _not_from_here(request)
        try:
            return await form_of(request), None
        except TooLarge:
            return {}, problem(request, 413, "This is too large", "An answer is a few short fields.")

    def _form(self, visitor: Visitor, incident: Incident, what: str, bound_to: str) -> str:
        return self.sign_in.signer.form(visitor.session, incident.id, what, bound_to)

    def _counts(self, visitor: Visitor, form: Mapping[str, str], incident: Incident, what: str, bound_to: str) -> bool:
        """A form of this session, for this incident and act. A bearer token is its own proof."""
        if visitor.method is AuthMethod.BEARER:
            return True
        return self.sign_in.signer.form_counts(form.get("form", ""), visitor.session, incident.id, what, bound_to)

    def _load(self, request: Request) -> Incident:
        name = IncidentId(request.path_params["incident"])
        try:
            return self.store.load(name)
        except BadInput as error:
            # A name that is no incident's is one that there is not; a damaged document stays a fault.
            raise error if error.where else NotFound(error.what) from error

    def _done(
        self, request: Request, incident: Incident, status: int, heading: str, lines: Sequence[str]
    ) -> Response:
        visitor = visitor_of(request)
        if visitor is not None and visitor.method is AuthMethod.BEARER:
            details = [_line(line) for line in lines if line]
            return JSONResponse(
                {"incident": incident.id, "ok": status == 200, "what": heading, "details": details}, status_code=status
            )
        page = page_environment().get_template("acted.html").render(
            heading=heading, lines=[line for line in lines if line], incident=incident.id,
            site=Site(here="/", account=account(visitor)), refresh_s=0,
        )
        return HTMLResponse(page, status_code=status)


def _known(request: Request) -> Visitor:
    visitor = visitor_of(request)
    if visitor is None:
        raise NotFound("nobody is signed in")
    return visitor


def _standing(incident: Incident) -> str:
    """A name for what could be taken back now: a rollback counts only for what was shown."""
    parts = (incident.id, str(incident.run), incident.promoted, *incident.drained_nodes)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _line(text: str) -> str:
    return shorten(clean_line(text), 400)


def _not_yours(request: Request, visitor: Visitor) -> Response:
    return problem(
        request, 403, "You may look, not act", f"{visitor.name} has the role {visitor.role}; acting needs `act`.",
        "Ask whoever runs this service for a token of that role.",
    )


def _not_from_here(request: Request) -> Response:
    return problem(
        request, 403, "This form does not count", "It was not sent from this incident's page of your own session.",
        "Open the incident's page again and answer there.",
    )
