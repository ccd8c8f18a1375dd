"""The programs that tests need of the machine, and Debian's packages that hold them.

A test that needs one says so by `@pytest.mark.needs("sshd", …)`, a fixture by `require("chromium")`: without the
program the test is skipped by name, and with RUNBOOK_REQUIRE_ALL=1 it fails. `python -m tests.programs NAME…` prints
the packages of those that are missing.
"""

from __future__ import annotations

import os
import shutil
import sys

import pytest

PACKAGES = {
    "ansible-lint": "ansible-lint",
    "ansible-playbook": "ansible-core",
    "busybox": "busybox",
    "chromium": "chromium",
    "cpio": "cpio",
    "dpkg-deb": "dpkg",
    "faketime": "faketime",
    "fusermount3": "fuse3",
    "gcc": "gcc libc6-dev",
    "mmdebstrap": "mmdebstrap",
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "promtool": "prometheus",
    "amtool": "prometheus-alertmanager",
    "rpm": "rpm",
    "rpm2cpio": "rpm2cpio",
    "setpriv": "util-linux",
    "sshd": "openssh-server",
    "sudo": "sudo",
    "systemd-analyze": "systemd",
    "unshare": "util-linux",
    "visudo": "sudo",
}


def find(name: str) -> str | None:
    """The program's path; those for root only are looked for where they are too."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def require(*names: str) -> None:
    """Skips the present test where one of the programs is missing; fails it where no test may be left out."""
    missing = [name for name in names if find(name) is None]
    if not missing:
        return
    packages = " ".join(PACKAGES[name] for name in missing)
    reason = f"{', '.join(missing)} not installed (apt-get install {packages})"
    if os.environ.get("RUNBOOK_REQUIRE_ALL") == "1":
        pytest.fail(f"{reason}, and RUNBOOK_REQUIRE_ALL is set", pytrace=False)
    pytest.skip(reason)


if __name__ == "__main__":
    print(*dict.fromkeys(PACKAGES[name] for name in sys.argv[1:] if find(name) is None))
