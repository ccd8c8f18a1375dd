"""known_hosts as OpenSSH reads it (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"): read once, asked for every node.

paramiko's own reader is not used: it knows no patterns (`gpu-*`), leaves out `@revoked` lines, takes only the first of
several keys of a kind, and takes time quadratic in the lines, for every connection anew.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_SHA1_BYTES = 20


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A key by its kind ("ssh-ed25519", "ssh-rsa") and its bytes as they stand in known_hosts."""

    kind: str
    blob: bytes


@dataclass(frozen=True, slots=True)
class KnownHost:
    """What known_hosts says of one host."""

    keys: frozenset[KnownKey] = frozenset()
    revoked: frozenset[KnownKey] = frozenset()
    authorities: frozenset[KnownKey] = frozenset()
    """Keys of `@cert-authority` lines: who may sign this host's certificate."""


@dataclass(frozen=True, slots=True)
class _Entry:
    marker: str
    key: KnownKey


@dataclass(frozen=True, slots=True)
class KnownHostsFile:
    """The lines of one file, by what it takes to find them."""

    plain: dict[str, list[_Entry]] = field(default_factory=dict)
    patterns: list[tuple[tuple[str, ...], _Entry]] = field(default_factory=list)
    hashed: list[tuple[bytes, bytes, _Entry]] = field(default_factory=list)
    """(salt, HMAC-SHA1 of the name, entry)."""

    def entries(self, name: str) -> Iterable[_Entry]:
        """Every line that speaks of a name, which is in lower case and has its port as "[name]:port" if not 22."""
        yield from self.plain.get(name, ())
        for patterns, entry in self.patterns:
            if _matches(name, patterns):
                yield entry
        encoded = name.encode("utf-8", "surrogateescape")
        for salt, digest, entry in self.hashed:
            if hmac.compare_digest(hmac.digest(salt, encoded, "sha1"), digest):
                yield entry


def known_host(paths: Iterable[Path], host: str, port: int, alias: str = "") -> KnownHost:
    """What the files say of a host; with an alias (HostKeyAlias), of that name. As ssh does, lines without a port
    count for another port than 22 where no line has it. Raises `OSError` for a file that cannot be read."""
    files = [_file(path) for path in paths]
    name = (alias or host).lower()
    names = [name] if alias or port == 22 else [f"[{name}]:{port}", name]
    revoked = _marked(files, names, "@revoked")
    for one in names:
        keys, authorities = _marked(files, [one], ""), _marked(files, [one], "@cert-authority")
        if keys or authorities:
            return KnownHost(keys, revoked, authorities)
    return KnownHost(revoked=revoked)


def revoked_keys(path: Path) -> frozenset[KnownKey]:
    """The public keys of a RevokedHostKeys file, one a line. Raises `OSError`, and `ValueError` for a key revocation
    list and for a line that is no key: what is not understood could revoke any."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    found: set[KnownKey] = set()
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 2:
            raise ValueError(f"{path}:{number} is no public key (a revocation list of `ssh-keygen -k` is not read)")
        try:
            found.add(KnownKey(words[0], base64.b64decode(words[1], validate=True)))
        except (binascii.Error, ValueError) as error:
            raise ValueError(
                f"{path}:{number} is no public key (a revocation list of `ssh-keygen -k` is not read)"
            ) from error
    return frozenset(found)


def _marked(files: list[KnownHostsFile], names: list[str], marker: str) -> frozenset[KnownKey]:
    return frozenset(
        entry.key for file in files for name in names for entry in file.entries(name) if entry.marker == marker
    )


def _file(path: Path) -> KnownHostsFile:
    found = path.stat()
    return _read(path, found.st_mtime_ns, found.st_size, found.st_ino)


@functools.lru_cache(maxsize=16)
def _read(path: Path, _changed_ns: int, _size: int, _inode: int) -> KnownHostsFile:
    return parse(path.read_text("utf-8", "surrogateescape"))


def parse(text: str) -> KnownHostsFile:
    """Lines that are no entries are passed over, as ssh does."""
    file = KnownHostsFile()
    for line in text.split("\n"):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) < 3 or marker not in ("", "@cert-authority", "@revoked"):
            continue
        try:
            entry = _Entry(marker, KnownKey(words[1], base64.b64decode(words[2], validate=True)))
        except (binascii.Error, ValueError):
            continue
        _place(file, words[0], entry)
    return file


def _place(file: KnownHostsFile, names: str, entry: _Entry) -> None:
    if names.startswith("|1|"):
        salt, _, digest = names[3:].partition("|")
        try:
            pair = base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
        except (binascii.Error, ValueError):
            return
        if len(pair[1]) == _SHA1_BYTES:
            file.hashed.append((*pair, entry))
        return
    words = tuple(word for word in names.lower().split(",") if word)
    if any(mark in names for mark in "*?!"):
        file.patterns.append((words, entry))
        return
    for word in words:
        file.plain.setdefault(word, []).append(entry)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    """One pattern must match, and none of those behind a "!"."""
    found = False
    for pattern in patterns:
        if _pattern(pattern.removeprefix("!")).fullmatch(name):
            if pattern.startswith("!"):
                return False
            found = True
    return found


@functools.lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    """`*` and `?` only: brackets stand for themselves, as in "[gpu-1]:2222"."""
    # A run of stars is one, so that no name can make the match slow.
    parts = (re.escape(part) for part in re.split(r"(\*+|\?)", text))
    return re.compile("".join(".*" if p.startswith(r"\*") else "." if p == r"\?" else p for p in parts), re.S)
