"""The units as systemd itself reads them: how shut they are, and that sudo can work under the drop-in for it."""

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


def test_with_the_drop_in_sudo_can_work() -> None:
    shut, opened = _settings("runbook.service"), _settings("as-owners.conf")
    assert opened["NoNewPrivileges"] == "no"
    for name in shut.keys() & set(IMPLIES_NO_NEW_PRIVILEGES):
        assert opened[name] in ("no", ""), name
    assert {"CAP_SETUID", "CAP_SETGID", "CAP_AUDIT_WRITE"} <= set(opened["CapabilityBoundingSet"].split())


def test_what_shuts_the_cage_is_not_refused_by_the_unit() -> None:
    text = (UNITS / "runbook.service").read_text()
    assert "RestrictNamespaces=user net ipc pid\n" in text
    assert "SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self\n" in text


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("unit", ["runbook.service", "runbook-metrics.service"])
def test_systemd_measures_little_exposure(unit: str) -> None:
    command = ("systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", str(UNITS / unit))
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert "Overall exposure level" in done.stdout, done.stderr
    assert done.returncode == 0, done.stdout.splitlines()[-1]


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
        shutil.copy(UNITS / "as-owners.conf", folder)
    done = subprocess.run(
        ("systemd-analyze", "verify", str(unit)), capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
