"""Telling people: nobody, the log, or anywhere that apprise reaches. Telling never fails an incident."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from runbook.ports import Clock
from runbook.report.clean import clean, clean_line, shorten

LOG = logging.getLogger("runbook.notify")

_SEND_S = 20.0
"""A server that does not answer holds nothing up for longer."""


class NoNotify:
    """Nobody is told."""

    def send(self, title: str, body: str, link: str) -> None:
        return


class LogNotify:
    """Into the log, where journald or a person sees it."""

    def __init__(self, logger: logging.Logger = LOG) -> None:
        self._logger = logger

    def send(self, title: str, body: str, link: str) -> None:
        self._logger.warning("%s: %s (%s)", *_written(title, clean_line(body), link))


class AppriseNotify:
    """By mail, chat or pager, through apprise's addresses (`mailto://…`, `slack://…`).

    The addresses hold passwords and are never logged. At most `per_hour` messages leave; the same title again within
    `again_s` is not sent. What was held back is said in the next message.
    """

    def __init__(
        self, urls: Sequence[str], clock: Clock, *, per_hour: int = 30, again_s: float = 300.0, tag: str = "runbook"
    ) -> None:
        self._urls = tuple(urls)
        self._clock = clock
        self._per_hour = per_hour
        self._again_s = again_s
        self._tag = tag
        self._lock = threading.Lock()
        self._sent: deque[tuple[float, str]] = deque()
        self._held_back = 0

    def send(self, title: str, body: str, link: str) -> None:
        """Within 20 seconds or not at all; a failure is logged."""
        title, body, link = _written(title, body, link)
        held_back = self._allowed(title)
        if held_back is None:
            LOG.info("not sent, too many messages: %s", title)
            return
        if held_back:
            body += f"\n\n({held_back} more message{'' if held_back == 1 else 's'} held back before this one.)"
        if link:
            body += f"\n\n{link}"
        _within(_SEND_S, lambda: self._send(f"[{self._tag}] {title}", body))

    def _allowed(self, title: str) -> int | None:
        """How many were held back before, or None when this one is."""
        with self._lock:
            now = self._clock.now()
            while self._sent and now - self._sent[0][0] > 3600:
                self._sent.popleft()
            repeated = any(before == title and now - when < self._again_s for when, before in self._sent)
            if repeated or len(self._sent) >= self._per_hour:
                self._held_back += 1
                return None
            self._sent.append((now, title))
            held_back, self._held_back = self._held_back, 0
            return held_back

    def _send(self, title: str, body: str) -> None:
        import apprise

        target = apprise.Apprise()
        refused = sum(1 for url in self._urls if not target.add(url))
        if refused:
            LOG.error("%d of %d notification addresses are not understood", refused, len(self._urls))
        if len(target) and not target.notify(title=title, body=body, body_format=apprise.NotifyFormat.TEXT):
            LOG.error("a notification was not delivered to every address: %s", title)


def _written(title: str, body: str, link: str) -> tuple[str, str, str]:
    """Harmless and short: titles become subject lines, where a line break would be a header."""
    return shorten(clean_line(title), 150), shorten(clean(body), 4000), clean_line(link)[:500]


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Do it in a thread of its own, and wait no longer than that."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            # Its text may hold the address with the password.
            LOG.error("a notification failed: %s", type(error).__name__)

    thread = threading.Thread(target=run, name="notify", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        LOG.error("a notification failed: no thread could be started")
        return
    thread.join(seconds)
    if thread.is_alive():
        LOG.error("a notification is still not delivered after %.0f s", seconds)
