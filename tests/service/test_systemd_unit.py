"""The unit as systemd itself reads it, and its promise that sudo can work under it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"

# systemd.exec(5): with User= and without CAP_SYS_ADMIN each of these turns NoNewPrivileges on.
IMPLIES_NO_NEW_PRIVILEGES = (
    "SystemCallFilter", "SystemCallArchitectures", "RestrictAddressFamilies", "RestrictNamespaces", "PrivateDevices",
    "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectClock", "ProtectHostname",
    "MemoryDenyWriteExecute", "RestrictRealtime", "RestrictSUIDSGID", "DynamicUser", "LockPersonality",
)


def _settings(name: str) -> dict[str, str]:
    lines = (UNITS / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Za-z]+=", line))


def test_sudo_can_work_under_the_unit() -> None:
    settings = _settings("runbook.service")
    assert settings["NoNewPrivileges"] == "no"
    assert not settings.keys() & set(IMPLIES_NO_NEW_PRIVILEGES)
    assert {"CAP_SETUID", "CAP_SETGID", "CAP_AUDIT_WRITE"} <= set(settings["CapabilityBoundingSet"].split())


def test_the_drop_in_shuts_the_door() -> None:
    settings = _settings("no-sudo.conf")
    assert settings["NoNewPrivileges"] == "yes"
    assert settings["CapabilityBoundingSet"] == ""


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("drop_in", [False, True], ids=["unit", "unit with drop-in"])
def test_systemd_finds_no_fault(tmp_path: Path, drop_in: bool) -> None:
    unit = tmp_path / "runbook.service"
    # Only the program is exchanged: it is not installed where the tests run.
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", (UNITS / "runbook.service").read_text(), flags=re.MULTILINE)
    unit.write_text(text)
    if drop_in:
        folder = tmp_path / "runbook.service.d"
        folder.mkdir()
        shutil.copy(UNITS / "no-sudo.conf", folder)
    done = subprocess.run(
        ("systemd-analyze", "verify", str(unit)), capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
