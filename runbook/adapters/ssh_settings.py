"""How nodes are reached over SSH, as an inventory says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How to reach the nodes. Empty means what `ssh` itself would take: its files, the present user, port 22."""

    user: str = ""
    port: int | None = None
    key_file: str = ""
    jump_host: str = ""
    """"[user@]host[:port]", several with commas, as for `ssh -J`; each one's host key is checked like any other."""
    known_hosts_file: str = ""
    """Empty: those that ssh_config names, else ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts."""
    config_file: str = ""
    """Empty: ~/.ssh/config and /etc/ssh/ssh_config; a file named here stands alone, as for `ssh -F`."""
    use_agent: bool = True
    sudo: bool = False
    """Ask nodes as root through `sudo -n`, where the kernel log and other people's processes need it."""
    probe: bool = True
    """Send the node probe along, rather than ask nvidia-smi only."""
    connect_timeout_s: float = 5.0
    """For each of: the connection, the greeting, the key exchange, the authentication. Of all of them together, on a
    way without jump hosts, an attempt takes no more than twice this, and no attempt begins after one and a half."""
    command_timeout_s: float = 15.0
    output_limit_bytes: int = 4 << 20
