"""`runbook deploy prometheus` and `runbook metrics`: what they print, and that they replace nothing unasked."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from runbook.cli.command_line import cli
from runbook.errors import BadInput, Unavailable

REPOSITORY = Path(__file__).resolve().parents[2]
UNITS = REPOSITORY / "deploy" / "systemd"
HOLD_THE_LOCK = """
import sys
from pathlib import Path
from runbook.adapters.driver import DriverLock
assert DriverLock(Path(sys.argv[1]), sys.argv[2]).take()
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    path = tmp_path / "inventory.yaml"
    path.write_text(
        f"version: 1\nid: site\ntitle: A site\ncluster: alpha\nscheduler: {{kind: local}}\nnodes: {{kind: none}}\n"
        f"paths: {{state: {tmp_path}/state, spool: {tmp_path}/spool}}\n"
    )
    return path


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(args=list(arguments), standalone_mode=False) == 0
    return capsys.readouterr().out


def _files(printed: str) -> dict[str, str]:
    parts = re.split(r"^# ---- (.+)$", printed, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def _scrape(text: str) -> dict[str, Any]:
    (job,) = YAML(typ="safe").load(text)["scrape_configs"]
    return dict(job)


def test_what_is_printed_is_of_this_cluster(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with inventory.open("a") as stream:
        stream.write("reports: {url: 'https://runbook.example/', listen: 127.0.0.1, port: 9001}\n")
    files = _files(_run(capsys, "deploy", "prometheus", "-i", str(inventory)))
    assert set(files) == {
        "runbook-scrape.yml", "runbook.rules.yml", "runbook-absent-alpha.rules.yml", "runbook-alertmanager.yml",
    }
    job = _scrape(files["runbook-scrape.yml"])
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9001"], "labels": {"cluster": "alpha"}}]
    assert "authorization" not in job
    assert "https://runbook.example/docs/alerts#runbookescalated" in files["runbook.rules.yml"]
    assert 'absent(runbook_driver_up{cluster="alpha"})' in files["runbook-absent-alpha.rules.yml"]
    assert "http://127.0.0.1:9001/webhooks/alertmanager" in files["runbook-alertmanager.yml"]
    assert "127.0.0.1:8642" not in "".join(files.values())
    assert "CLUSTER" not in "".join(files.values())


@pytest.mark.parametrize(
    ("reports", "target"),
    [
        ("{listen: 0.0.0.0, url: 'https://runbook.example'}", "runbook.example:8642"),
        ("{listen: 10.0.0.5}", "10.0.0.5:8642"),
        ("{listen: '::1'}", "[::1]:8642"),
    ],
)
def test_prometheus_is_sent_to_where_the_daemon_answers(
    inventory: Path, capsys: pytest.CaptureFixture[str], reports: str, target: str
) -> None:
    with inventory.open("a") as stream:
        stream.write(f"reports: {reports}\n")
    files = _files(_run(capsys, "deploy", "prometheus", "-i", str(inventory)))
    assert _scrape(files["runbook-scrape.yml"])["static_configs"][0]["targets"] == [target]


def test_metrics_behind_the_sign_in_need_a_token(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with inventory.open("a") as stream:
        stream.write("sign_in: {tokens_file: /etc/runbook/tokens, open: [healthz]}\n")
    files = _files(_run(capsys, "deploy", "prometheus", "-i", str(inventory)))
    assert "credentials_file" in _scrape(files["runbook-scrape.yml"])["authorization"]


def test_nothing_is_replaced_unasked(inventory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "prometheus"
    command = ("deploy", "prometheus", "-i", str(inventory), "--output", str(folder))
    assert len(_run(capsys, *command).splitlines()) == 4
    assert _run(capsys, *command) == ""
    (folder / "runbook.rules.yml").write_text("# ours\n")
    (folder / "runbook-scrape.yml").unlink()
    with pytest.raises(BadInput, match="there already") as refusal:
        cli.main(args=list(command), standalone_mode=False)
    assert "--force" in refusal.value.next_step
    assert (folder / "runbook.rules.yml").read_text() == "# ours\n"
    assert not (folder / "runbook-scrape.yml").exists()
    assert len(_run(capsys, *command, "--force").splitlines()) == 2
    assert "RunbookEscalated" in (folder / "runbook.rules.yml").read_text()


@pytest.mark.prometheus
def test_prometheus_own_tools_take_the_files(
    inventory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "prometheus"
    _run(capsys, "deploy", "prometheus", "-i", str(inventory), "--output", str(folder))
    with (folder / "runbook-scrape.yml").open("a") as stream:
        stream.write("rule_files: [runbook.rules.yml, runbook-absent-*.rules.yml]\n")
    for argv in (
        ("promtool", "check", "config", str(folder / "runbook-scrape.yml")),
        ("amtool", "check-config", str(folder / "runbook-alertmanager.yml")),
    ):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_text_file_is_whole_and_readable(
    inventory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spool" / "alpha-1-0.event").write_text("")
    target = tmp_path / "runbook.prom"
    target.write_text("old")
    command = ("metrics", "-i", str(inventory))
    assert _run(capsys, *command, "--textfile", str(target)) == ""
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert not list(tmp_path.glob(".*"))
    text = target.read_text()
    assert 'runbook_spool_depth{cluster="alpha"} 1.0' in text
    assert 'runbook_incidents_opened_total{cluster="alpha",flow="oom"} 0.0' in text
    assert "heartbeat" not in text
    # Twice the same but for the age of the waiting event.
    without_age = r"^runbook_spool_oldest_age_seconds.*$"
    assert re.sub(without_age, "", _run(capsys, *command), flags=re.MULTILINE) == re.sub(
        without_age, "", text, flags=re.MULTILINE
    )


def test_a_text_file_that_cannot_be_written_leaves_nothing(inventory: Path, tmp_path: Path) -> None:
    for target, kind in ((tmp_path / "metrics.txt", BadInput), (tmp_path / "no-folder" / "a.prom", Unavailable)):
        with pytest.raises(kind):
            cli.main(args=["metrics", "-i", str(inventory), "--textfile", str(target)], standalone_mode=False)
        assert not target.exists()


@pytest.fixture(params=["daemon", "command"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    (tmp_path / "state").mkdir()
    argv = (sys.executable, "-c", HOLD_THE_LOCK, str(tmp_path / "state"), request.param)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        yield request.param, process
        process.kill()


def test_whether_a_daemon_drives_is_seen_without_taking_its_lock(
    inventory: Path, driver: tuple[str, subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    kind, process = driver
    up = 'runbook_driver_up{cluster="alpha"} 1.0'
    assert (up in _run(capsys, "metrics", "-i", str(inventory))) == (kind == "daemon")
    process.kill()
    process.wait(10)
    assert up not in _run(capsys, "metrics", "-i", str(inventory))


@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_no_fault_with_the_timer(tmp_path: Path) -> None:
    for name in ("runbook-metrics.service", "runbook-metrics.timer"):
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", (UNITS / name).read_text(), flags=re.MULTILINE)
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ("systemd-analyze", "verify", *map(str, sorted(tmp_path.glob("runbook-metrics.*")))),
        capture_output=True, text=True, timeout=30, check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
