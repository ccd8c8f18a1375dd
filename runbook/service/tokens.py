"""Who may come in with which token: names, roles and hashes in a file of the service's own, never a token itself.

A token is 256 random bits, made here and shown once. A hash of that needs no salt and no slow function: there is
nothing to guess. The file is read again whenever it changes, so that a token taken out of it is void at once.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from runbook.adapters.whole_file import whole_file
from runbook.documents import Document, parse_document
from runbook.errors import BadInput, NotAllowed, NotFound, RunbookError, Unavailable

LOG = logging.getLogger("runbook.service")

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$"
MARK = "rbk_"
"""What every token begins with, so that scanners for lost secrets can know it."""


class Role(StrEnum):
    """What a token, or a person whom a proxy names, may do."""

    READ = "read"
    """Look at every page."""
    ACT = "act"
    """Also say yes and no, and roll back."""
    ALERT = "alert"
    """Tell of alerts, and nothing else: Alertmanager's."""

    def may(self, wanted: Role) -> bool:
        """Whether this role includes the wanted one."""
        return self is wanted or self is Role.ACT


class TokenDocument(Document):
    name: str = Field(pattern=NAME_PATTERN)
    role: Role
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    until_s: float | None = None
    """Void after this time, epoch seconds."""


class TokensDocument(Document):
    version: int = Field(ge=1, le=1)
    tokens: tuple[TokenDocument, ...] = ()


_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose token it is."""

    name: str
    role: Role
    mark: str
    """The token's hash: what a session remembers of it."""


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class TokenFile:
    """The tokens as they are in the file now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: tuple[TokenDocument, ...] = ()

    def check(self) -> None:
        """Read it. Raises `NotFound`, `NotAllowed` when others may read or change it, `BadInput` when it is damaged."""
        self._read()

    def holder(self, token: str, now_s: float) -> Holder | None:
        """Whose token this is, in constant time for any that is not known."""
        return self.holder_of(hash_of(token), now_s)

    def holder_of(self, mark: str, now_s: float) -> Holder | None:
        """As `holder`, for a session that remembers the hash: None once the token is gone from the file."""
        found: TokenDocument | None = None
        for known in self._now():
            if hmac.compare_digest(known.sha256, mark):
                found = known
        if found is None or (found.until_s is not None and now_s >= found.until_s):
            return None
        return Holder(found.name, found.role, found.sha256)

    def _now(self) -> tuple[TokenDocument, ...]:
        """The file's tokens; none while it cannot be read, so that a fault lets nobody in."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                self._read()
                self._stamp = stamp
        except (OSError, RunbookError) as error:
            if self._tokens or self._stamp is None:
                LOG.error("nobody can sign in: the tokens cannot be read: %s", error)
            self._tokens, self._stamp = (), (0, 0, 0)
        return self._tokens

    def _read(self) -> None:
        self._tokens = _document(self._path, "runbook token new NAME --role act").tokens


def _document(path: Path, how: str) -> TokensDocument:
    text = read_private(path, "file of tokens", how).decode("utf-8", "replace")
    return parse_document(text, TokensDocument, str(path))


def read_private(path: Path, what: str, how: str) -> bytes:
    """A small file with secrets: a plain one, of this user or root, that nobody else can read or change but its group
    may read. It is opened once, and what is read is what was looked at, whatever its name leads to by then. Raises
    `NotFound` (`how` makes it) and `NotAllowed`."""
    try:
        # O_NONBLOCK: opening a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError as error:
        raise NotFound(f"there is no {what}", where=str(path), next_step=f"make it: {how}") from error
    except OSError as error:
        raise NotAllowed(
            f"the {what} cannot be read: {error.strerror}",
            where=str(path),
            next_step="give it to the user that the service runs as, or its group the right to read",
        ) from error
    with os.fdopen(descriptor, "rb") as stream:
        _check_private(os.fstat(stream.fileno()), path, what)
        try:
            return stream.read(_MOST_BYTES)
        except OSError as error:
            raise Unavailable(f"the {what} cannot be read: {error.strerror}", where=str(path)) from error


def _check_private(status: os.stat_result, path: Path, what: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotAllowed(f"the {what} is no plain file", where=str(path), next_step="name a file")
    if status.st_uid not in (0, os.geteuid()):
        raise NotAllowed(
            f"the {what} belongs to another user",
            where=str(path),
            next_step="give it to the user that the service runs as, or to root",
        )
    # Its group may read it (root:runbook, 0640); nobody else may, and only its owner may change it.
    if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise NotAllowed(
            f"the {what} can be read or changed by others (mode {stat.S_IMODE(status.st_mode):04o})",
            where=str(path),
            next_step=f"chmod 600 {path}",
        )


def add_token(path: Path, name: str, role: Role, until_s: float | None = None) -> str:
    """Make a token, keep its hash, and return it: the only time that it is seen. Raises `BadInput` for a name that is
    taken or odd."""
    document = load_tokens(path)
    if any(known.name == name for known in document.tokens):
        raise BadInput(
            f"there is a token named {name!r} already",
            where=str(path),
            next_step=f"choose another name, or `runbook token remove {name}` first",
        )
    token = MARK + secrets.token_urlsafe(32)
    try:
        made = TokenDocument(name=name, role=role, sha256=hash_of(token), until_s=until_s)
    except ValueError as error:
        raise BadInput(
            f"{name[:80]!r} is no name for a token",
            next_step="letters, digits and _.@- after a letter or digit, at most 64",
        ) from error
    _write(path, (*document.tokens, made))
    return token


def remove_token(path: Path, name: str) -> None:
    """Make a token void, with every session that was begun with it. Raises `NotFound`."""
    document = load_tokens(path)
    left = tuple(known for known in document.tokens if known.name != name)
    if len(left) == len(document.tokens):
        raise NotFound(f"no token is named {name[:80]!r}", where=str(path), next_step="`runbook token list` names them")
    _write(path, left)


def load_tokens(path: Path) -> TokensDocument:
    """The document, empty when there is no file yet."""
    if not path.exists():
        return TokensDocument(version=1)
    return _document(path, "")


def _write(path: Path, tokens: tuple[TokenDocument, ...]) -> None:
    """Whole or not at all, mode and owner kept."""
    # Only characters that YAML takes as they are: names are letters, digits and _.@-.
    lines = ["# Tokens of `runbook serve`: hashes only. Change it with `runbook token new` and `remove`.", "version: 1"]
    lines.append("tokens:" if tokens else "tokens: []")
    for token in tokens:
        lines += [f'- name: "{token.name}"', f"  role: {token.role.value}", f'  sha256: "{token.sha256}"']
        lines += [f"  until_s: {token.until_s:.0f}"] if token.until_s is not None else []
    try:
        before = path.stat() if path.exists() else None
        mode = stat.S_IMODE(before.st_mode) if before is not None else 0o600
        with whole_file(path, mode, (before.st_uid, before.st_gid) if before is not None else None) as stream:
            stream.write(("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise Unavailable(
            f"the file of tokens cannot be written: {error.strerror}",
            where=str(path),
            next_step="make its folder, or run as the user that it belongs to",
        ) from error
