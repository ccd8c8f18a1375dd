"""What ssh's own configuration says of one host: ~/.ssh/config and /etc/ssh/ssh_config, or the file of the inventory.

Plain files (Host blocks with plain values) are read by paramiko's SSHConfig, once a process. It passes over Include,
knows not all of Match and not all quoting and tokens: where a file has any of these, OpenSSH itself is asked
(`ssh -G`), which costs one short process a host and is right by definition.
"""

from __future__ import annotations

import functools
import getpass
import os
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.adapters.process import run
from runbook.errors import RunbookError

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
    ssh = shutil.which("ssh")
    if ssh is None:
        raise UnreadableConfig(
            "the ssh configuration uses Include, Match, quotes or tokens, which the `ssh` command is needed to read; "
            "it is not installed"
        )
    argv = [ssh, "-G", "-T"]
    argv += ["-F", str(named)] if named else []
    argv += ["-l", user] if user else []
    argv += ["-p", str(port)] if port else []
    done = run((*argv, "--", host), timeout_s=_ASK_TIMEOUT_S)
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
