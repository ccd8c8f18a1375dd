"""Logging in with keys as ssh does: the files in their order, then the agent's. A key file is read once a process.

An RSA key of 4096 bits takes tens of milliseconds to read and check, which for hundreds of nodes is most of the time.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paramiko import Agent, PKey, SSHConfig
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey
from paramiko.pkey import PublicBlob

from runbook.adapters.ssh_config import HostConfig


class Keys(AuthStrategy):
    """The keys for one host. `notes` says of each file why it was not offered."""

    def __init__(self, host: HostConfig, first: Path | None, use_agent: bool) -> None:
        """`first` is the inventory's key. Raises `OSError` when it cannot be read: it was named, so it is wanted."""
        super().__init__(ssh_config=SSHConfig())
        self._user = host.user
        self._files = tuple(dict.fromkeys((*((first,) if first else ()), *host.keys)))
        self._certificates = host.certificates
        self._only_files = host.only_these_keys
        self._agent = use_agent
        self.notes: list[str] = []
        self.limit_s = 0.0
        self.not_done: tuple[str, ...] = ()
        if first is not None:
            first.stat()

    def get_sources(self) -> Iterator[AuthSource]:
        for path in self._files:
            key = self._key(path)
            if key is not None:
                yield InMemoryPrivateKey(self._user, key)
        if self._agent:
            yield from self._of_agent()

    def _of_agent(self) -> Iterator[AuthSource]:
        agent = Agent()
        try:
            # IdentitiesOnly: of the agent's keys only those whose public half lies beside a named file.
            wanted = {_public_half(path) for path in self._files} if self._only_files else None
            for key in agent.get_keys():
                if wanted is None or key.asbytes() in wanted:
                    yield InMemoryPrivateKey(self._user, key)
        finally:
            agent.close()

    def _key(self, path: Path) -> PKey | None:
        try:
            found = path.stat()
            certificates = tuple((one, one.stat().st_mtime_ns) for one in self._certificates)
            beside = path.with_name(path.name + "-cert.pub")
            changed_ns = beside.stat().st_mtime_ns if beside.is_file() else 0
            return _read(path, found.st_mtime_ns, found.st_size, changed_ns, certificates)
        except Exception as error:
            words = " ".join(str(error).split())[:100] or type(error).__name__
            self.notes.append(f"{path} cannot be used ({words})")
            return None


@functools.lru_cache(maxsize=32)
def _read(
    path: Path, _changed_ns: int, _size: int, _beside_ns: int, certificates: Sequence[tuple[Path, int]]
) -> PKey:
    """The key with its certificate: the file beside it, else the one of CertificateFile that is made for it."""
    key = PKey.from_path(path)
    if key.public_blob is None:
        for one, _ in certificates:
            blob = PublicBlob.from_file(str(one))
            if blob.key_type.startswith(key.get_name()) and _inside(key, blob.key_blob):
                key.load_certificate(str(one))
                break
    return key


def _inside(key: PKey, certificate: bytes) -> bool:
    """A certificate holds the public key's own fields, without the name of its kind."""
    return key.asbytes()[4 + len(key.get_name()):] in certificate


def _public_half(path: Path) -> bytes:
    for beside in (path.with_name(path.name + ".pub"), path):
        try:
            words = beside.read_text("ascii").split()
            return base64.b64decode(words[1], validate=True)
        except (OSError, UnicodeDecodeError, IndexError, binascii.Error, ValueError):
            continue
    return b""


def last_error(strategy_result: Any) -> Exception | None:
    """The error of the last key that was offered; None: there was no key to offer."""
    return next((one.result for one in reversed(strategy_result) if isinstance(one.result, Exception)), None)
