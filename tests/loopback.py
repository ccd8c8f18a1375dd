"""Ports and keys for servers that a test starts on this machine."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_key(path: Path) -> str:
    """Writes a key pair; returns the public half as a line of `authorized_keys`."""
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)), check=True)
    return path.with_name(path.name + ".pub").read_text().strip()
