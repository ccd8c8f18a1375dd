"""The kernel log as the probe reads it: journal, dmesg, syslog; the window it covers; what may not be read."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from runbook.model.node import NodeFacts
from runbook.model.units import NodeName, Unknown
from runbook.node import Window, read_left_document
from tests.nvml.standin import run_probe

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
NOT_PERMITTED = "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1"
NO_JOURNAL = "exit 1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "bin"
    made.mkdir()
    return made


def ask(folder: Path, *arguments: str, **scripts: str) -> dict[str, Any]:
    """The document of a node whose log commands are these shell scripts."""
    for name, body in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    return run_probe(None, *arguments, extra={"PATH": f"{folder}:/usr/bin:/bin", "TZ": "UTC"})


def facts_of(document: dict[str, Any], since_s: float | None = None, until_s: float | None = None) -> NodeFacts:
    return read_left_document(json.dumps(document), NodeName("n"), Window(since_s, until_s))


@pytest.mark.parametrize(
    ("dmesg", "oldest_s", "xid_s"),
    [
        (f"echo '2026-11-20T06:41:28,500000+00:00 Linux'; echo '2026-11-20T08:41:28,000000+01:00 {XID}'",
         1795156888.5, 1795160488.0),
        ("[ \"$1\" = --time-format ] && { echo 'unknown option' >&2; exit 1; }; "
         f"echo '[Fri Nov 20 06:41:28 2026] Linux'; echo '[Fri Nov 20 07:41:28 2026] {XID}'",
         1795156888.0, 1795160488.0),
    ],
)
def test_forms_of_dmesg(folder: Path, dmesg: str, oldest_s: float, xid_s: float) -> None:
    document = ask(folder, dmesg=dmesg, journalctl=NO_JOURNAL)
    assert document["kernel_log"]["covers"]["since_s"] == oldest_s
    assert document["kernel_log"]["covers"]["source"] == "dmesg"
    facts = facts_of(document, since_s=xid_s - 1, until_s=xid_s + 1)
    assert not isinstance(facts.xids, Unknown)
    assert [(event.code, event.time_s, event.in_window) for event in facts.xids] == [(79, xid_s, True)]
    assert facts.log_covers_since_s == oldest_s


def test_a_dmesg_that_knows_no_option_counts_from_the_boot(folder: Path) -> None:
    document = ask(folder, dmesg=f'[ $# = 0 ] || exit 1; echo "[    5.000000] {XID}"', journalctl=NO_JOURNAL)
    boot_s = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    assert document["kernel_log"]["covers"]["since_s"] == pytest.approx(boot_s + 5, abs=2)


def test_the_journal_reaches_back_further_than_the_ring(folder: Path) -> None:
    document = ask(
        folder, "--since", "1795156888",
        dmesg="echo '2026-11-20T06:41:28,000000+00:00 late'",
        journalctl=f"case \"$*\" in *--since*) echo '1795100000.5 gpu-21 kernel: {XID}' ;; "
        "*) echo '1790000000.25 gpu-21 kernel: Linux'; sleep 0.1; echo '1790000001.0 gpu-21 kernel: more' ;; esac",
    )
    assert document["kernel_log"]["covers"] == {
        "since_s": 1790000000.25, "until_s": pytest.approx(time.time(), abs=60), "source": "journal"
    }
    facts = facts_of(document)
    assert not isinstance(facts.xids, Unknown)
    assert [event.line for event in facts.xids] == [XID]


def test_lines_of_the_oom_killer_are_kept_too(folder: Path) -> None:
    line = "Memory cgroup out of memory: Killed process 15602 (python3) total-vm:1548708kB"
    document = ask(folder, dmesg=f"echo '2026-11-20T06:41:28,5+00:00 {line}'; echo '2026-11-20T06:41:29,5+00:00 usb'",
                   journalctl=NO_JOURNAL)
    (source,) = [each for each in document["kernel_log"]["sources"] if "lines" in each]
    assert [each["line"] for each in source["lines"]] == [line]


def test_a_storm_keeps_the_newest_lines_and_says_since_when(folder: Path) -> None:
    stamp = "2026-11-20T%02d:%02d:%02d,0+00:00"
    document = ask(
        folder, journalctl=NO_JOURNAL, dmesg=f"""echo '2026-11-20T00:00:00,0+00:00 Linux'
awk 'BEGIN {{ for (i = 0; i < 5000; i++) printf "{stamp} {XID}\\n", 1 + i / 3600, i / 60 % 60, i % 60 }}'""",
    )
    (source,) = [each for each in document["kernel_log"]["sources"] if "lines" in each]
    assert (len(source["lines"]), source["dropped"]) == (4000, 1000)
    assert source["covers_since_s"] == source["lines"][0]["time_s"] == 1795136400 + 1000


def test_a_storm_of_long_lines_leaves_a_document_that_an_ssh_session_reads_to_its_end(folder: Path) -> None:
    document = ask(
        folder, journalctl=NO_JOURNAL, dmesg=f"""awk 'BEGIN {{ x = sprintf("%900s", ""); gsub(/ /, "\\303\\251", x)
for (i = 0; i < 4000; i++)
  printf "2026-11-20T%02d:%02d:%02d,0+00:00 {XID} %s\\n", 1 + i / 3600, i / 60 % 60, i % 60, x }}'""",
    )
    assert len(json.dumps(document)) < 2 << 20
    (source,) = [each for each in document["kernel_log"]["sources"] if "lines" in each]
    assert source["dropped"] + len(source["lines"]) == 4000
    assert source["covers_since_s"] == source["lines"][0]["time_s"] > 1795136400


def test_a_log_that_may_not_be_read_is_unknown_and_covers_nothing(folder: Path) -> None:
    if any(os.access(f"/var/log/{name}", os.R_OK) for name in ("kern.log", "messages", "syslog")):
        pytest.skip("this machine has a syslog that can be read")
    facts = facts_of(ask(folder, dmesg=NOT_PERMITTED, journalctl=NO_JOURNAL))
    assert isinstance(facts.xids, Unknown)
    assert isinstance(facts.log_covers_since_s, Unknown)
    assert "dmesg_restrict" in facts.xids.unknown


def test_commands_that_hang_cost_their_own_part_only(folder: Path) -> None:
    started = time.monotonic()
    document = ask(folder, "--deadline", "4", dmesg="exec sleep 60", journalctl="exec sleep 60")
    assert time.monotonic() - started < 10
    assert "unknown" in document["kernel_log"]["covers"]
    assert document["node"]["uptime_s"] > 0


def syslog(root: Path, text: str, name: str = "messages") -> dict[str, Any]:
    (root / "var/log").mkdir(parents=True, exist_ok=True)
    path = root / "var/log" / name
    path.write_text(text)
    os.utime(path, (1795160500, 1795160500))  # 20 November 2026, 07:41:40 UTC
    return run_probe(None, "--root", str(root), extra={"TZ": "UTC"})


def test_a_syslog_is_read_with_the_year_that_fits_and_its_lines_never_count_as_in_the_window(tmp_path: Path) -> None:
    """Any user can write such a line with logger(1): it may never cost a node."""
    document = syslog(
        tmp_path,
        "Dec 24 23:59:59 gpu-21 kernel: [    1.0] Linux version\nNov 20 07:41:28 gpu-21 sshd[1]: NVRM: Xid no kernel\n"
        f"Nov 20 07:41:28 gpu-21 kernel: [ 9000.123456] {XID}\n",
    )
    (source,) = document["kernel_log"]["sources"]
    assert (source["source"], source["any_user_can_write"], source["file"]) == ("syslog", True, "/var/log/messages")
    assert [(each["time_s"], each["line"]) for each in source["lines"]] == [(1795160488, XID)]
    assert source["covers_since_s"] == 1766620799  # 24 December of the year before
    facts = facts_of(document, since_s=1795160480, until_s=1795160500)
    assert not isinstance(facts.xids, Unknown)
    (event,) = facts.xids
    assert isinstance(event.in_window, Unknown)
    assert "any user of the node can write" in event.in_window.unknown


def test_a_syslog_with_iso_times_and_the_file_before_its_rotation(tmp_path: Path) -> None:
    (tmp_path / "var/log").mkdir(parents=True)
    (tmp_path / "var/log/kern.log.1").write_text("2026-11-19T00:00:00.5+00:00 gpu-21 kernel: older\n")
    document = syslog(tmp_path, f"2026-11-20T08:41:28.000000+01:00 gpu-21 kernel: {XID}\n", "kern.log")
    (source,) = document["kernel_log"]["sources"]
    assert source["covers_since_s"] == 1795046400.5
    assert [each["time_s"] for each in source["lines"]] == [1795160488.0]


def test_no_syslog_at_all(tmp_path: Path) -> None:
    document = run_probe(None, "--root", str(tmp_path))
    assert "no syslog can be read" in document["kernel_log"]["covers"]["unknown"]
