"""Talk to systemd, where there is one: ready, alive, stopping."""

from __future__ import annotations

import os
import socket


def tell_systemd(message: str) -> bool:
    """Send one line of sd_notify(3), such as "READY=1". False where nobody listens; never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    # A leading @ stands for the NUL byte of an abstract socket.
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(0.2)
            channel.sendto(message.encode(), target)
    except OSError:
        return False
    return True
