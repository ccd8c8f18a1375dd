"""What ssh itself would read before it connects to a host, ssh_config and known_hosts, each file once a process."""

from __future__ import annotations

import base64
import binascii
import functools
import getpass
import hmac
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runbook.adapters.identity import program_on_path
from runbook.adapters.process import Command, run
from runbook.errors import RunbookError

# What ssh's own configuration says of one host: ~/.ssh/config and /etc/ssh/ssh_config, or the file of the inventory.
#
# Plain files (Host blocks with plain values) are read by paramiko's SSHConfig, once a process. It passes over Include,
# knows not all of Match and not all quoting and tokens: where a file has any of these, OpenSSH itself is asked
# (`ssh -G`), which costs one short process a host and is right by definition.

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
DEFAULT_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_ASK_TIMEOUT_S = 10.0
_LISTS = frozenset({"identityfile", "certificatefile"})
_TOKEN = re.compile(r"%(.)")
_ASK_OPENSSH = re.compile(
    r"(?:match|canonical\w*|tag|certificatefile|versionaddendum)\b|[^#]*[\"'\\%$\[]|[^#]*~(?!/)", re.I
)
"""A line with which OpenSSH's reading is wanted."""


class UnreadableConfig(Exception):
    """The configuration cannot be read, or asks for what is not done here; the text says which."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """One host's settings. A relative or missing value is what ssh would take."""

    host_name: str
    user: str
    port: int
    keys: tuple[Path, ...]
    """Private keys that are there, in the order to offer them."""
    certificates: tuple[Path, ...]
    only_these_keys: bool
    known_hosts: tuple[Path, ...]
    alias: str
    """HostKeyAlias: the name under which known_hosts has the key."""
    revoked: Path | None
    """RevokedHostKeys: keys that no host may have."""
    jumps: tuple[str, ...]
    """ProxyJump: "[user@]host[:port]", the first to be reached first."""
    proxy_command: str
    """ProxyCommand with its tokens filled in; empty: none."""
    not_done: tuple[str, ...]
    """Ways to log in that the configuration has and this tool has not, for the message when no key was accepted."""


def host_config(host: str, config_file: str, user: str = "", port: int | None = None) -> HostConfig:
    """Settings for a host, `user` and `port` standing above the files. Raises `UnreadableConfig`."""
    named = Path(config_file).expanduser() if config_file else None
    files = (named,) if named else tuple(
        path for path in (Path("~/.ssh/config").expanduser(), SYSTEM_CONFIG) if path.is_file()
    )
    try:
        stamps = tuple((path, found.st_mtime_ns, found.st_size) for path in files for found in (path.stat(),))
        if named is None:
            _refuse_what_others_can_write(files)
        plain = _plain(stamps)
        said: Mapping[str, Any] = plain.lookup(host) if plain is not None else _asked(host, named, user, port)
        return _settings(host, said, user, port)
    except UnreadableConfig:
        raise
    except (OSError, RunbookError) as error:
        where = ", ".join(map(str, files))
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableConfig(f"the ssh configuration {where} cannot be read: {reason}") from error
    except Exception as error:  # a value that paramiko's reader cannot take
        raise UnreadableConfig(f"the ssh configuration cannot be read: {error}") from error


def _refuse_what_others_can_write(files: tuple[Path, ...]) -> None:
    """As ssh does: whoever writes there can have commands run (ProxyCommand) and choose the host keys."""
    for path in files:
        found = path.stat()
        if found.st_mode & 0o022 or found.st_uid not in (0, os.geteuid()):
            raise UnreadableConfig(f"{path} may be written by others; it was not used, as `ssh` would not use it")


@functools.lru_cache(maxsize=16)
def _plain(stamps: tuple[tuple[Path, int, int], ...]) -> Any:
    """paramiko's reading of the files, the first one's values first; None where OpenSSH has to be asked."""
    from paramiko import SSHConfig

    lines: list[str] = []
    for path, _, _ in stamps:
        lines.append("Host *")
        for line in path.read_text("utf-8", "surrogateescape").splitlines():
            words = line.split(None, 1)
            if not words or words[0].startswith("#"):
                continue
            keyword, _, _ = words[0].partition("=")
            if keyword.lower() == "include":
                if _included(path, line):
                    return None
                continue
            if _ASK_OPENSSH.match(line.strip()):
                return None
            lines.append(line)
    return SSHConfig.from_text("\n".join(lines))


def _included(path: Path, line: str) -> bool:
    """Whether an Include line names a file that is there. On Debian the system's file includes an empty folder."""
    folder = path.parent if path == SYSTEM_CONFIG else Path("~/.ssh").expanduser()
    for word in re.split(r"[\s=]+", line.strip())[1:]:
        if any(mark in word for mark in "\"'\\%$"):
            return True
        if any(Path("/").glob(str(folder / Path(word).expanduser()).lstrip("/"))):
            return True
    return False


def _asked(host: str, named: Path | None, user: str, port: int | None) -> Mapping[str, Any]:
    ssh = program_on_path("ssh", then="")
    if ssh is None:
        raise UnreadableConfig(
            "the ssh configuration uses Include, Match, quotes or tokens, which the `ssh` command is needed to read; "
            "it is not installed"
        )
    argv = [ssh, "-G", "-T"]
    argv += ["-F", str(named)] if named else []
    argv += ["-l", user] if user else []
    argv += ["-p", str(port)] if port else []
    done = run(Command((*argv, "--", host), asks=True), _ASK_TIMEOUT_S)
    if done.exit_code:
        lines = done.error_text().splitlines() or [f"exit {done.exit_code}"]
        raise UnreadableConfig(f"the ssh configuration cannot be read: {lines[0][:200]}")
    said: dict[str, Any] = {}
    for line in done.text().splitlines():
        key, _, value = line.partition(" ")
        if key in _LISTS:
            said.setdefault(key, []).append(value)
        else:
            said[key] = value
    return said


def _settings(host: str, said: Mapping[str, Any], user: str, port: int | None) -> HostConfig:
    host_name, chosen_port = said.get("hostname") or host, port or int(said.get("port") or 22)
    chosen_user = user or said.get("user") or getpass.getuser()
    alias = said.get("hostkeyalias") or ""
    local = socket.gethostname()
    tokens = {
        "%": "%", "h": host_name, "n": host, "p": str(chosen_port), "r": chosen_user, "u": getpass.getuser(),
        "d": str(Path.home()), "i": str(os.getuid()), "k": alias or host, "l": local, "L": local.partition(".")[0],
    }
    named = said.get("identityfile") or list(DEFAULT_KEYS)
    command = said.get("proxycommand") or ""
    jumps = _words(said.get("proxyjump"), ",")
    known = _words(said.get("userknownhostsfile") or DEFAULT_KNOWN_HOSTS)
    known += _words(said.get("globalknownhostsfile") or GLOBAL_KNOWN_HOSTS)
    revoked = said.get("revokedhostkeys") or "none"
    return HostConfig(
        host_name=host_name,
        user=chosen_user,
        port=chosen_port,
        keys=_present(named, tokens),
        certificates=_present(said.get("certificatefile") or (), tokens),
        only_these_keys=str(said.get("identitiesonly", "")).lower() in ("yes", "true"),
        known_hosts=_present(known, tokens),
        alias=alias,
        revoked=None if revoked.lower() == "none" else Path(_filled(revoked.strip('"'), tokens)).expanduser(),
        jumps=tuple(jumps),
        proxy_command="" if jumps or command.lower() == "none" else _filled(command, tokens),
        not_done=_not_done(said),
    )


def _words(text: str | None, separator: str | None = None) -> list[str]:
    words = [word.strip() for word in (text or "").split(separator)]
    return [] if [word.lower() for word in words] == ["none"] else [word for word in words if word]


def _present(names: Sequence[str], tokens: Mapping[str, str]) -> tuple[Path, ...]:
    paths = (Path(_filled(name.strip('"'), tokens)).expanduser() for name in names if name.lower() != "none")
    return tuple(dict.fromkeys(path for path in paths if path.is_file()))


def _filled(text: str, tokens: Mapping[str, str]) -> str:
    """The text with `%h` and its kin. An unknown one is refused: to guess could reach another host."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in tokens:
            raise UnreadableConfig(f"the ssh configuration uses %{match[1]} in {text!r}, which is not supported")
        return tokens[match[1]]

    return _TOKEN.sub(value, text)


def _not_done(said: Mapping[str, Any]) -> tuple[str, ...]:
    ways = {"gssapiauthentication": "GSSAPI (Kerberos)", "hostbasedauthentication": "host-based login"}
    wanted = [words for key, words in ways.items() if str(said.get(key, "")).lower() == "yes"]
    agent = str(said.get("identityagent", ""))
    if agent and agent not in ("none", "SSH_AUTH_SOCK"):
        wanted.append(f"an agent of its own ({agent})")
    return tuple(wanted)


# known_hosts as OpenSSH reads it (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"): read once, asked for every node.
#
# paramiko's own reader is not used: it knows no patterns (`gpu-*`), leaves out `@revoked` lines, takes only the first
# of several keys of a kind, and takes time quadratic in the lines, for every connection anew.

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
