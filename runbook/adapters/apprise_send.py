"""One message to one address through apprise: whether it was delivered, and why not in words without the address."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass
from typing import Any

from runbook.model.message import Severity
from runbook.report.clean import clean_line, shorten

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


def service_of(address: str) -> str | None:
    """What kind of service an address leads to, or None where apprise does not understand it. Sends nothing."""
    with _Listener():
        plugin = _plugin(address)
    return None if plugin is None else str(plugin.service_name)


def deliver(address: str, title: str, body: str, severity: Severity) -> Delivery:
    """Send, with apprise's own time limits. Never raises; the reason names no part of the address."""
    try:
        return _deliver(address, title, body, severity)
    except Exception as error:
        # Its text may hold the address with the password.
        return Delivery("", False, type(error).__name__)


def _deliver(address: str, title: str, body: str, severity: Severity) -> Delivery:
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
        if plugin.notify(title=title, body=body, notify_type=urgency, body_format=apprise.NotifyFormat.TEXT):
            return Delivery(service, True)
    return Delivery(service, False, _without(address, listener.last) or "the service did not take it")


def _plugin(address: str) -> Any:
    import apprise

    return apprise.Apprise.instantiate(address)


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
    from urllib.parse import unquote

    parts = {
        part for whole in (address, unquote(address))
        for part in re.split(r"[^A-Za-z0-9_.-]+", whole.partition("://")[2]) if len(part) >= _LEAST_SECRET
    }
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, "***")
    return shorten(clean_line(text), _REASON_LIMIT)
