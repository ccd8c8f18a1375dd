"""Who is asking, and whether they may: bearer tokens for programs, a signed cookie for browsers, a proxy's headers.

Everything here is off unless the inventory has `sign_in`. A header is believed only from the proxy's own address, never
because it is there.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import re
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

from itsdangerous import BadSignature, URLSafeSerializer, URLSafeTimedSerializer
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from runbook.errors import Unavailable
from runbook.report.html import page_environment
from runbook.report.html.list_pages import render_problem
from runbook.service.tokens import NAME_PATTERN, Role, TokenFile, read_private

# What a browser keeps: a signed cookie that says whose token it signed in with, and signed values in forms.
#
# Signing is itsdangerous'. The cookie proves nothing by itself: at every request the file of tokens is asked whether
# the token is still there, so that a removed one ends its sessions at once.

_MOST_ENDED = 10_000
_MOST_CHARACTERS = 2000


class Signer:
    """Signs cookies and forms with the service's own key."""

    def __init__(self, key: bytes, session_s: float) -> None:
        self._sessions = URLSafeTimedSerializer(key, salt="runbook-session")
        # Without a time: the same page has the same form, so that a page that watches itself sees no change in it. The
        # session that it is bound to has an end.
        self._forms = URLSafeSerializer(key, salt="runbook-form")
        self._session_s = session_s
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def session_s(self) -> int:
        return int(self._session_s)

    def begin(self, mark: str) -> str:
        """A cookie for whoever showed the token with this hash."""
        return self._sessions.dumps([secrets.token_urlsafe(18), mark])

    def session(self, cookie: str) -> tuple[str, str] | None:
        """(session, the token's hash) of a cookie that is ours, young enough, and was not signed out here."""
        if len(cookie) > _MOST_CHARACTERS:
            return None
        try:
            value = self._sessions.loads(cookie, max_age=self.session_s)
        except BadSignature:
            return None
        match value:
            case [str(session), str(mark)] if session not in self._ended:
                return session, mark
        return None

    def end(self, session: str) -> None:
        """Forget a session, whoever else has its cookie. Holds until the service starts anew or the cookie's age."""
        with self._lock:
            self._ended[session] = None
            while len(self._ended) > _MOST_ENDED:
                self._ended.popitem(last=False)

    def form(self, *bound_to: str) -> str:
        """A value for a form that only counts with exactly these words: the session, the incident, the act."""
        return self._forms.dumps(list(bound_to))

    def form_counts(self, value: str, *bound_to: str) -> bool:
        try:
            return len(value) <= _MOST_CHARACTERS and bool(self._forms.loads(value) == list(bound_to))
        except BadSignature:
            return False


def session_key(state: Path) -> bytes:
    """The key that signs, made once and kept in the state folder, so that a restart signs nobody out. Raises
    `NotAllowed` when others can read it."""
    path = state / "session.key"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(32))
            stream.flush()
            os.fsync(stream.fileno())
    except FileExistsError:
        pass
    except OSError as error:
        raise Unavailable(f"the key for sessions cannot be made: {error.strerror}", where=str(path)) from error
    key = read_private(path, "key for sessions", "start the daemon")
    if len(key) < 32:
        raise Unavailable(
            "the key for sessions is damaged", where=str(path), next_step="remove it: everybody signs in once more"
        )
    return key


LOG = logging.getLogger("runbook.service")

SIGN_IN = "/sign-in"
WEBHOOKS = "/webhooks/"
ASSETS = "/assets/"
"""The program's own style and script, the same for everybody."""
SECRET_HEADER = "x-runbook-proxy-secret"  # noqa: S105  (a header's name)
_NAME = re.compile(NAME_PATTERN)
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_WINDOW_S = 60.0
_MOST_WRONG = 10
"""Wrong tokens an address and window before the answer is 429. A token has 256 bits: this spares the log, not the
token, so a right one always passes and nobody can lock Alertmanager out."""
_VISITOR = "runbook.visitor"


class AuthMethod(StrEnum):
    BEARER = "bearer"
    SESSION = "session"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who is known."""

    name: str
    role: Role
    method: AuthMethod
    session: str
    """What forms are bound to."""

    def may(self, wanted: Role) -> bool:
        return self.role.may(wanted)


@dataclass(frozen=True, slots=True)
class Proxy:
    """The proxy that is believed."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
    secret: str = ""
    user_header: str = "x-forwarded-user"
    groups_header: str = ""
    act_users: frozenset[str] = frozenset()
    act_groups: frozenset[str] = frozenset()

    def visitor(self, connection: HTTPConnection) -> Visitor | None:
        """Whom the proxy names. None from any other address, without its secret, or for a name that is none."""
        headers = connection.headers
        named = headers.getlist(self.user_header)
        if not named or connection.client is None or not self._is_from(connection.client.host):
            return None
        secret = headers.get(SECRET_HEADER, "")
        if self.secret and not hmac.compare_digest(secret.encode(), self.secret.encode()):
            LOG.warning("a user header without the proxy's secret from %s is not believed", connection.client.host)
            return None
        # Two headers of one name: the proxy did not remove what the visitor sent.
        if len(named) != 1 or _NAME.fullmatch(named[0]) is None:
            LOG.warning("the proxy's user header holds no single name")
            return None
        groups = headers.getlist(self.groups_header) if self.groups_header else []
        if len(groups) > 1:
            return None
        held = {group.strip() for group in groups[0].split(",")} if groups else set()
        acts = named[0] in self.act_users or bool(held & self.act_groups)
        return Visitor(named[0], Role.ACT if acts else Role.READ, AuthMethod.PROXY, f"proxy:{named[0]}")

    def _is_from(self, address: str) -> bool:
        try:
            host = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
            host = host.ipv4_mapped
        return any(host.version == network.version and host in network for network in self.networks)


@dataclass
class SignIn:
    """How visitors are known here."""

    signer: Signer
    tokens: TokenFile | None = None
    proxy: Proxy | None = None
    open_paths: frozenset[str] = frozenset({"/healthz", "/metrics"})
    site_url: str = ""
    """The address in links, whose origin forms may come from."""
    now: Callable[[], float] = time.time
    _wrong: OrderedDict[str, deque[float]] = field(default_factory=OrderedDict, init=False, repr=False)

    def visitor(self, connection: HTTPConnection) -> Visitor | None:
        """Who asks, if anybody that is known. A wrong bearer token is nobody, whatever else is there."""
        bearer = bearer_of(connection)
        if bearer is not None:
            holder = self.tokens.holder(bearer, self.now()) if self.tokens else None
            return Visitor(holder.name, holder.role, AuthMethod.BEARER, "") if holder else None
        if self.proxy is not None and (visitor := self.proxy.visitor(connection)) is not None:
            return visitor
        opened = self.signer.session(session_cookie(connection))
        if opened is None or self.tokens is None:
            return None
        session, mark = opened
        holder = self.tokens.holder_of(mark, self.now())
        return Visitor(holder.name, holder.role, AuthMethod.SESSION, session) if holder else None

    def too_many_wrong(self, connection: HTTPConnection) -> bool:
        """Note one wrong token; True when this address has shown too many of late."""
        address = connection.client.host if connection.client else ""
        now = self.now()
        times = self._wrong.setdefault(address, deque(maxlen=_MOST_WRONG + 1))
        self._wrong.move_to_end(address)
        while len(self._wrong) > 1000:
            self._wrong.popitem(last=False)
        while times and now - times[0] > _WINDOW_S:
            times.popleft()
        times.append(now)
        if len(times) == _MOST_WRONG + 1:
            return True
        LOG.warning("a wrong token from %s", address)
        return False

    def is_own_form(self, request: Request) -> bool:
        """Whether a request comes from a page of this site, by the browser's word. Programs with a bearer token send no
        word and need none: no page elsewhere can make a browser send their header."""
        if bearer_of(request) is not None:
            return True
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site == "same-origin"
        origin = request.headers.get("origin", "")
        parts = urlsplit(origin)
        if not parts.netloc:
            return False
        known = {request.headers.get("host", "").lower()}
        if self.site_url:
            known.add(urlsplit(self.site_url).netloc.lower())
        return parts.netloc.lower() in known


def visitor_of(request: HTTPConnection) -> Visitor | None:
    """Who the gate found to be asking."""
    found = request.scope.get(_VISITOR)
    return found if isinstance(found, Visitor) else None


def bearer_of(connection: HTTPConnection) -> str | None:
    """The bearer token shown, None where there is none. Other schemes are a proxy's affair."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def own_place(text: str) -> str:
    """A place of this site to go on to; the list for anything that could lead elsewhere."""
    plain = text.isascii() and text.isprintable() and "\\" not in text and " " not in text
    return text if plain and text.startswith("/") and not text.startswith("//") and len(text) <= 500 else "/"


def is_loopback(connection: HTTPConnection) -> bool:
    """Whether the address in the browser is this machine's own, where nothing can listen on the way."""
    host = connection.headers.get("host", "")
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return name.lower() in _LOOPBACK_NAMES


def goes_over_tls(connection: HTTPConnection) -> bool:
    """Whether the browser's own connection is safe from listeners: anything but loopback has to be TLS, and a proxy or
    the browser may say that even loopback is."""
    headers = connection.headers
    said = headers.get("origin", "").startswith("https:") or headers.get("x-forwarded-proto", "") == "https"
    return said or not is_loopback(connection)


def cookie_name(*, tls: bool) -> str:
    """With the prefix a browser only takes the cookie from this very host, over TLS."""
    return "__Host-runbook_session" if tls else "runbook_session"


def session_cookie(connection: HTTPConnection) -> str:
    """The cookie shown, "" for none. One without the prefix counts on loopback alone."""
    plain = connection.cookies.get(cookie_name(tls=False), "") if is_loopback(connection) else ""
    return connection.cookies.get(cookie_name(tls=True), "") or plain


class Gate:
    """Lets known visitors pass, and everybody to what is open. Without `sign_in` there is no gate."""

    def __init__(self, app: ASGIApp, sign_in: SignIn) -> None:
        self._app = app
        self._sign_in = sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        visitor = self._sign_in.visitor(request)
        scope[_VISITOR] = visitor
        answer = self._refusal(request, visitor)
        await (self._app if answer is None else answer)(scope, receive, send)

    def _refusal(self, request: Request, visitor: Visitor | None) -> Response | None:
        # The path that is routed by, and not the address that the request claims: its Host header is in that one.
        path = str(request.scope["path"])
        if visitor is None and bearer_of(request) is not None and path not in self._sign_in.open_paths:
            return unknown_token(self._sign_in, request)
        # The webhook's own route asks for its role; an unknown caller gets the same answer there as here.
        if path in self._sign_in.open_paths or path == SIGN_IN or path.startswith(ASSETS):
            return None
        wanted = Role.ALERT if path.startswith(WEBHOOKS) else Role.READ
        if visitor is None:
            return self._who_is_there(request)
        if not visitor.may(wanted):
            return problem(request, 403, "This is not yours to see", f"{visitor.name} has the role {visitor.role}.")
        return None

    def _who_is_there(self, request: Request) -> Response:
        if not _wants_page(request) or request.method not in ("GET", "HEAD") or self._sign_in.tokens is None:
            by_token = self._sign_in.tokens is not None
            next_step = "Send a token: `Authorization: Bearer …`." if by_token else "Come through the proxy."
            return problem(
                request, 401, "Nobody is signed in", "This page is for people who are signed in.", next_step,
                {"WWW-Authenticate": "Bearer"},
            )
        query = request.scope["query_string"].decode("latin-1")
        here = own_place(quote(request.scope["path"], safe="/") + (f"?{query}" if query else ""))
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A link in a chat: the browser holds a strict cookie back until the page is asked for by one of ours.
            return HTMLResponse(page_environment().get_template("signin.html").render(
                step="again", here=here, site=None, refresh_s=0,
            ))
        return RedirectResponse(f"{SIGN_IN}?next={quote(here, safe='')}", status_code=303)


def unknown_token(sign_in: SignIn, request: Request) -> Response:
    """The answer to a wrong token; 429 after too many."""
    if sign_in.too_many_wrong(request):
        return problem(
            request, 429, "Too many wrong tokens", "This address has shown too many wrong tokens.",
            "Wait a minute.", {"Retry-After": "60"},
        )
    return problem(
        request, 401, "This token is not known", "It is wrong, or was taken back.", "`runbook token list` names those "
        "that there are.", {"WWW-Authenticate": 'Bearer error="invalid_token"'},
    )


def problem(
    request: Request, status: int, title: str, what: str, next_step: str = "", headers: Mapping[str, str] | None = None
) -> Response:
    """A refusal: a page for a browser, JSON for a program."""
    if _wants_page(request):
        return HTMLResponse(render_problem(title, what, next_step), status_code=status, headers=headers)
    return JSONResponse({"error": title, "what": what, "next": next_step}, status_code=status, headers=headers)


def _wants_page(request: Request) -> bool:
    return bearer_of(request) is None and "text/html" in request.headers.get("accept", "")


def networks(texts: Sequence[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Addresses and networks of an inventory, which has checked them."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


# Small bodies of requests, read without trusting their length or their content.

_FORM_BYTES = 16_384


class TooLarge(Exception):
    """The body is larger than it may be."""


async def body_of(request: Request, limit: int) -> bytes:
    """The whole body. Raises `TooLarge` as soon as it is, whatever length was announced."""
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdecimal() and int(announced[:18]) > limit:
        raise TooLarge
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise TooLarge
        parts.append(part)
    return b"".join(parts)


async def form_of(request: Request) -> Mapping[str, str]:
    """The fields of a form without files; empty for what is none. A field that comes twice is left out: which one is
    meant is not known. Raises `TooLarge`."""
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await body_of(request, _FORM_BYTES)
    if content != "application/x-www-form-urlencoded":
        return {}
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict")
    except (UnicodeDecodeError, ValueError):
        return {}
    names = [name for name, _ in pairs]
    return {name: value for name, value in pairs if names.count(name) == 1}
