"""What a browser keeps: a signed cookie that says whose token it signed in with, and signed values in forms.

Signing is itsdangerous'. The cookie proves nothing by itself: at every request the file of tokens is asked whether the
token is still there, so that a removed one ends its sessions at once.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections import OrderedDict
from pathlib import Path

from itsdangerous import BadSignature, URLSafeSerializer, URLSafeTimedSerializer

from runbook.errors import Unavailable
from runbook.service.tokens import read_private

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
