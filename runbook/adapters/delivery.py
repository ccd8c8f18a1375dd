"""Who hears what, and one message to one address: a target's filter, its limits, and sending through apprise."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from runbook.model.incident import Message, Severity
from runbook.report.vocabulary.clean import clean_line, shorten

# Who hears what: a target's filter, its quiet hours, and how many messages an hour it is sent.

_HOUR_S = 3600.0
_OWNER = "{owner}"
_USER_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,63}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """Some people and what they want to hear. `addresses` is asked each time, as a file of them may change."""

    name: str
    addresses: Callable[[], tuple[str, ...]] = field(repr=False)
    """Raises `RunbookError` where they cannot be read."""
    severities: tuple[Severity, ...] = tuple(Severity)
    partitions: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    per_hour: int = 30
    quiet_hours: str = ""
    """"22:00-07:00", this machine's time; "" for none."""

    def wants(self, message: Message) -> bool:
        """Whether these people hear of it. What is about no job (the daemon's own troubles) passes every job filter."""
        about = message.about
        if message.severity not in self.severities:
            return False
        if not about.incident:
            return True
        # A job may name several partitions: "gpu,gpu-long".
        partitions = about.partition.split(",")
        return (
            (not self.partitions or any(name in self.partitions for name in partitions))
            and (not self.accounts or about.account in self.accounts)
            and (not self.users or about.owner in self.users)
        )

    def quiet(self, now_s: float) -> bool:
        """Whether it is a time at which only pages are sent."""
        if not self.quiet_hours:
            return False
        begin, _, end = self.quiet_hours.partition("-")
        now = time.strftime("%H:%M", time.localtime(now_s))
        return begin <= now < end if begin <= end else now >= begin or now < end

    def personal(self) -> bool:
        """Whether an address is made from the owner's name. Raises as `addresses`."""
        return any(_OWNER in address for address in self.addresses())

    def addresses_for(self, message: Message) -> tuple[str, ...]:
        """With the owner's name put in; those that need one are left out where it is not known or odd."""
        owner = message.about.owner if _USER_NAME.fullmatch(message.about.owner) else ""
        return tuple(
            address.replace(_OWNER, owner) for address in self.addresses() if owner or _OWNER not in address
        )


class Limit:
    """So many messages an hour, pages and all else counted apart; the same text once in `again_s`. Not thread-safe.

    `shared`: by the owners of several users' jobs. Then nobody's messages are more than what is left for others, so
    that one user's failures, however many, leave half of the hour, two users' a quarter, and so on."""

    def __init__(self, per_hour: int, again_s: float = 300.0, *, shared: bool = False) -> None:
        self._per_hour, self._shared = per_hour, shared
        self._again_s = again_s
        self._sent: dict[bool, deque[tuple[float, str]]] = {True: deque(), False: deque()}
        self._texts: deque[tuple[float, str]] = deque()
        self.held_back = 0
        """Messages since the last that was sent."""

    def allows(self, message: Message, now_s: float, quiet: bool) -> bool:
        """Whether it may be sent now; it counts as sent then, else as held back."""
        sent, owner = self._sent[message.severity is Severity.PAGE], message.about.owner
        while sent and now_s - sent[0][0] >= _HOUR_S:
            sent.popleft()
        while self._texts and now_s - self._texts[0][0] >= self._again_s:
            self._texts.popleft()
        text = f"{message.title}\n{message.body}"
        held = quiet and message.severity is not Severity.PAGE
        left = self._per_hour - len(sent)
        full = left <= 0 or (self._shared and owner != "" and sum(whose == owner for _, whose in sent) >= left)
        if held or full or any(text == before for _, before in self._texts):
            self.held_back += 1
            return False
        sent.append((now_s, owner))
        self._texts.append((now_s, text))
        return True


# One message to one address through apprise: whether it was delivered, and why not in words without the address.

_MARKUP = re.compile(r"[\\`*_\[\]()<>~#|]|(?<=^)[-+=]|(?<=^\d)\.|(?<=^\d\d)\.")
"""What Markdown may take for its own, in a line or at its start. No more: some phones show a backslash that is not
needed."""
_IN_URL = "/:?#@!$&'*+,;=%~-._[]"
_REASON_LIMIT = 200
_LEAST_SECRET = 4
"""Shorter parts of an address ("user", "x") would blot out half of a sentence."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How sending to one address went."""

    service: str
    """What apprise calls it: "Slack", "E-Mail"; "" where it does not know the address."""
    delivered: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """An address of ours that a message leads to, and the word for it."""

    word: str
    url: str


@dataclass(frozen=True, slots=True)
class Contact:
    """Whether the host that an address leads to takes a connection. Nothing is sent."""

    service: str
    """"" where the address is not understood."""
    tried: bool = False
    """False where only sending would tell."""
    problem: str = ""
    """In words without the address; "" where it was reached, or not tried."""


def contact(address: str, limit_s: float) -> Contact:
    """Connect to where messages for an address go, or to the proxy that the environment names, and hang up."""
    with _Listener():
        plugin = _plugin(address)
    if plugin is None:
        return Contact("")
    service, place = str(plugin.service_name), _place_of(plugin)
    if place is None:
        return Contact(service)
    try:
        with socket.create_connection(place, limit_s):
            return Contact(service, True)
    except TimeoutError:
        problem = f"its host did not answer within {limit_s:g} s"
    except socket.gaierror:
        problem = "its host's name is not known"
    except OSError as error:
        problem = f"its host could not be reached: {(error.strerror or type(error).__name__).lower()}"
    return Contact(service, True, problem)


def _place_of(plugin: Any) -> tuple[str, int] | None:
    """Host and port that a message would go to first; None where it cannot be told from the address."""
    from urllib.request import getproxies, proxy_bypass

    mail_host = getattr(plugin, "smtp_host", "")
    if mail_host:
        return str(mail_host), int(plugin.port or 25)
    fixed = next((url for name in ("notify_url", "webhook_url") if (url := getattr(type(plugin), name, ""))), "")
    parts = urlsplit(fixed if isinstance(fixed, str) else "")
    host, port, scheme = parts.hostname or "", parts.port, parts.scheme
    if not host or "{" in host:
        own, scheme = str(getattr(plugin, "host", "") or ""), "https" if plugin.secure else "http"
        # Services of the web keep a token where others have their host: only what reads as one is tried.
        host, port = (own, plugin.port) if "." in own or ":" in own or own == "localhost" else ("", None)
    if not host:
        return None
    proxy = urlsplit(getproxies().get(scheme, ""))
    if proxy.hostname and not proxy_bypass(host):
        return proxy.hostname, proxy.port or 3128
    return host, int(port or (443 if scheme == "https" else 80))


def deliver(address: str, title: str, body: str, links: Sequence[Link], severity: Severity) -> Delivery:
    """Send, with apprise's own time limits. Never raises; the reason names no part of the address."""
    try:
        return _deliver(address, title, body, links, severity)
    except Exception as error:
        # Its text may hold the address with the password.
        return Delivery("", False, type(error).__name__)


def _deliver(address: str, title: str, body: str, links: Sequence[Link], severity: Severity) -> Delivery:
    import apprise

    with _Listener() as listener:
        plugin = _plugin(address)
        if plugin is None:
            return Delivery("", False, "this address is not understood")
        urgency = {
            Severity.INFO: apprise.NotifyType.INFO,
            Severity.WARNING: apprise.NotifyType.WARNING,
            Severity.PAGE: apprise.NotifyType.FAILURE,
        }[severity]
        service = str(plugin.service_name)
        # The plugin itself, as apprise's own list of them sends from other threads.
        # Where Markdown alone is shown, a line break is none and an address no link unless they are written so.
        only_markdown = plugin.notify_format == apprise.NotifyFormat.MARKDOWN
        written = _markdown(body, links) if only_markdown else _text(body, links)
        how = apprise.NotifyFormat.MARKDOWN if only_markdown else apprise.NotifyFormat.TEXT
        if plugin.notify(title=title, body=written, notify_type=urgency, body_format=how):
            return Delivery(service, True)
    return Delivery(service, False, _without(address, listener.last) or "the service did not take it")


def _text(body: str, links: Sequence[Link]) -> str:
    shown = [link.url if len(links) == 1 else f"{link.word}: {link.url}" for link in links]
    return "\n\n".join(part for part in (body, "\n".join(shown)) if part)


def _markdown(body: str, links: Sequence[Link]) -> str:
    """Each line a paragraph in which nothing is markup, then the links."""
    lines = [_MARKUP.sub(r"\\\g<0>", line.strip()) for line in body.splitlines() if line.strip()]
    shown = [f"[{link.word}]({quote(link.url, safe=_IN_URL)})" for link in links]
    return "\n\n".join([*lines, *([" · ".join(shown)] if shown else [])])


def _plugin(address: str) -> Any:
    import apprise

    # Without the library's own name and its pictures, which a chat would fetch from elsewhere.
    asset = apprise.AppriseAsset(app_id="runbook", app_desc="runbook", app_url="", image_url_mask="")
    return apprise.Apprise.instantiate(address, asset=asset)


class _Listener(logging.Handler):
    """What apprise logs in this thread; nothing of it goes into any log, as it names addresses."""

    def __init__(self) -> None:
        # Imported first: its own set-up of the logger must not come after ours.
        import apprise  # noqa: F401

        super().__init__(logging.WARNING)
        self.last = ""
        self._thread = threading.get_ident()
        self._logger = logging.getLogger("apprise")

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.last = record.getMessage()

    def __enter__(self) -> _Listener:
        # It and the HTTP library below it log whole addresses, in debug mode at least.
        self._logger.propagate = False
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)


def _without(address: str, text: str) -> str:
    """The text with every part of the address blotted out."""
    parts = {
        part for whole in (address, unquote(address))
        for part in re.split(r"[^A-Za-z0-9_.-]+", whole.partition("://")[2]) if len(part) >= _LEAST_SECRET
    }
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, "***")
    return shorten(clean_line(text), _REASON_LIMIT)
