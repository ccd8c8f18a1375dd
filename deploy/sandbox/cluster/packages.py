"""Installing the Debian packages that the sandbox needs, without starting any system service."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.settings import PACKAGES
from cluster.system import SandboxError, attempt, phase

POLICY = Path("/usr/sbin/policy-rc.d")
KEPT_POLICY = POLICY.with_name("policy-rc.d.before-runbook-sandbox")


def require_debian() -> None:
    """Refuse to go on where there is no apt and dpkg."""
    if not Path("/usr/bin/apt-get").exists() or not Path("/usr/bin/dpkg-query").exists():
        raise SandboxError(
            "this machine has no apt-get: the sandbox is built from Debian's packages",
            "use a Debian 12 machine, virtual machine or container",
        )


def missing_packages(packages: Sequence[str]) -> tuple[str, ...]:
    """Those of the packages that are not installed."""
    _, out, _ = attempt(("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages))
    installed = {line.split()[0] for line in out.splitlines() if line.endswith(" installed")}
    return tuple(package for package in packages if package not in installed)


@contextmanager
def no_service_starts() -> Iterator[None]:
    """Tell Debian's package scripts to start nothing; what was set before is put back afterwards."""
    if POLICY.exists() and not KEPT_POLICY.exists():
        POLICY.rename(KEPT_POLICY)
    POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        if KEPT_POLICY.exists():
            KEPT_POLICY.replace(POLICY)
        else:
            POLICY.unlink(missing_ok=True)


def install(*packages: str) -> None:
    """Install what is missing of these, or of what a cluster needs; no network is used when all is there."""
    require_debian()
    if KEPT_POLICY.exists():  # an earlier install was killed before it could put this back
        KEPT_POLICY.replace(POLICY)
    missing = missing_packages(packages or PACKAGES)
    if not missing:
        return
    with phase(f"install {len(missing)} packages"), no_service_starts():
        status, message = apt("install", *missing)
        if status != 0:
            apt("update")
            status, message = apt("install", *missing)
        if status != 0:
            raise SandboxError(
                f"apt-get could not install {' '.join(missing)}: {message}",
                "check the package sources and the network (`apt-get update`), then run it again",
            )


def apt(command: str, *packages: str) -> tuple[int, str]:
    """Run one apt-get command without questions; returns its exit status and its last line."""
    argv = ("apt-get", "-q", "-y", "--no-install-recommends", command, *packages)
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        check=False,
    )
    lines = done.stdout.strip().splitlines() or ["no output"]
    return done.returncode, next((line for line in lines if line.startswith("E:")), lines[-1])
