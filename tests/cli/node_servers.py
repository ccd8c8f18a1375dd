"""Nodes for tests of `runbook node`: a real sshd each, with the stand-in NVML of a scenario behind it."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.loopback import free_port, make_key
from tests.nvml.standin import SCENARIOS, library_folder
from tests.programs import find

SSHD = find("sshd")

INVENTORY = """\
version: 1
id: nodes
title: Nodes of a test
cluster: nodes
scheduler: {scheduler}
nodes: {{kind: ssh, user: {user}, key_file: {folder}/client_key, known_hosts_file: {folder}/known_hosts,
  config_file: {folder}/ssh_config, connect_timeout_s: 2, command_timeout_s: 15}}
paths: {{state: {folder}/state, spool: {folder}/spool}}
"""


@dataclass
class Servers:
    """Names of nodes and what is behind them; `inventory` reaches them."""

    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "authorized_keys").write_text(make_key(self.folder / "client_key") + "\n")
        self.host_key = make_key(self.folder / "host_key")
        (self.folder / "bin").mkdir()
        log = "echo '2026-11-20T06:41:28,000000+00:00 Linux version 6.8.0'; cat $NODE_LOG 2>/dev/null"
        self.program("dmesg", log)
        self.program("journalctl", "exit 1")
        (self.folder / "state").mkdir()
        self.write_inventory()

    def program(self, name: str, body: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def write_inventory(self, scheduler: str = "{kind: local}") -> Path:
        path = self.folder / "inventory.yaml"
        path.write_text(INVENTORY.format(scheduler=scheduler, user=getpass.getuser(), folder=self.folder))
        return path

    def scenario(self, name: str, text: str) -> None:
        """A scenario of the test's own; lines that come later win."""
        (self.folder / f"{name}.txt").write_text(text)

    def node(self, name: str, scenario: str, log: str = "", kmsg: str = "") -> None:
        """An sshd for a node of this name. `log`: lines of its kernel log; `kmsg`: the records of its /dev/kmsg."""
        assert SSHD
        own = self.folder / f"{scenario}.txt"
        path = own if own.exists() else SCENARIOS / f"{scenario}.txt"
        (self.folder / f"{name}.log").write_text(log)
        (self.folder / f"{name}.kmsg").write_text(kmsg)
        port = self.ports[name] = free_port()
        config = self.folder / f"{name}.sshd"
        config.write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {self.folder}/host_key\nPidFile none\nStrictModes no\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nUsePAM no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\nLogLevel ERROR\n"
            f"SetEnv PATH={self.folder}/bin:{Path(sys.executable).parent}:/usr/bin:/bin "
            f"LD_LIBRARY_PATH={library_folder()} STANDIN_NVML_SCENARIO={path} NODE_LOG={self.folder}/{name}.log "
            f"RUNBOOK_KMSG={self.folder}/{name}.kmsg\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        log_file = str(self.folder / f"{name}.sshd.log")
        self.started.append(subprocess.Popen((SSHD, "-D", "-f", str(config), "-E", log_file)))
        self._known(name, self.host_key)
        deadline = time.monotonic() + 10
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < deadline, Path(log_file).read_text()
            time.sleep(0.02)

    def silent(self, name: str, port: int) -> None:
        """A node at a port of the test's own."""
        self.ports[name] = port
        self._known(name, self.host_key)

    def refused(self, name: str) -> None:
        self.silent(name, free_port())

    def changed_key(self, name: str, scenario: str) -> None:
        self.node(name, scenario)
        known = self.folder / "known_hosts"
        lines = [line for line in known.read_text().splitlines() if f":{self.ports[name]} " not in line]
        other = make_key(self.folder / f"{name}.other_key")
        known.write_text("\n".join([*lines, f"[127.0.0.1]:{self.ports[name]} {other}"]) + "\n")

    def _known(self, name: str, key: str) -> None:
        port = self.ports[name]
        with (self.folder / "known_hosts").open("a") as known:
            known.write(f"[127.0.0.1]:{port} {key}\n")
        with (self.folder / "ssh_config").open("a") as config:
            config.write(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n")

    def stop(self) -> None:
        for process in self.started:
            process.terminate()
        for process in self.started:
            process.wait(5)


@contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    made = Servers(folder)
    try:
        yield made
    finally:
        made.stop()
