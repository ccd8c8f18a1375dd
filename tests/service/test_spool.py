"""The spool: what the epilog writes is read, everything else is set aside, nothing is lost or done twice."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.errors import Unavailable
from runbook.service.spool import MOST_BAD, BadEvent, SharedSpool, SpoolEvent, SpoolReader, parse_event

EPILOG = Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "runbook-epilog"
GOOD = (
    "format=1\njob_id=4711\narray_job_id=\narray_task_id=\nuid=1000\n"
    "exit_code=1:0\nderived_exit_code=0:125\nrestart_count=0\ncluster=alpha\n"
)
NAME = "alpha-4711-0.event"


def test_a_plain_job() -> None:
    assert parse_event(NAME, GOOD.encode(), 7.0) == SpoolEvent(
        NAME, "alpha", "4711", "4711", 0, 7.0, 1000, (1, 0), (0, 125)  # type: ignore[arg-type]
    )


ACCEPTED: dict[str, tuple[str, str, dict[str, object]]] = {
    "an array task has its own name": (
        GOOD.replace("array_job_id=", "array_job_id=4700").replace("array_task_id=", "array_task_id=3"),
        NAME,
        {"job": "4700_3", "raw_job_id": "4711"},
    ),
    "nothing but the numbers": (
        "format=1\njob_id=4711\nrestart_count=0\ncluster=alpha",
        NAME,
        {"uid": None, "exit_code": None, "derived_exit_code": None},
    ),
    "a later epilog says more": (GOOD + "partition=gpu\n", NAME, {"job": "4711"}),
    "a time of its own": (GOOD + "time=1789351984\n", NAME, {"time_s": 1789351984.0}),
    "a time that is none": (GOOD + "time=yesterday\n", NAME, {"time_s": 7.0}),
    "a cluster with dashes": (
        GOOD.replace("cluster=alpha", "cluster=al-pha-1"), "al-pha-1-4711-0.event", {"cluster": "al-pha-1"},
    ),
}


@pytest.mark.parametrize("case", sorted(ACCEPTED))
def test_accepted(case: str) -> None:
    text, name, expected = ACCEPTED[case]
    event = parse_event(name, text.encode(), 7.0)
    assert isinstance(event, SpoolEvent)
    assert {key: getattr(event, key) for key in expected} == expected


REFUSED = {
    "empty": ("", NAME, "format"),
    "another format": (GOOD.replace("format=1", "format=2"), NAME, "upgrade"),
    "another job in the name": (GOOD, "alpha-4712-0.event", "different jobs"),
    "another cluster in the name": (GOOD, "beta-4711-0.event", "different jobs"),
    "no event's name": (GOOD, "core.4711", "its name"),
    "a name with a line break": (GOOD, "alpha-4711-0.event\n", "its name"),
    "a key twice": (GOOD + "job_id=1\n", NAME, "twice"),
    "no key": (GOOD + "; rm -rf /\n", NAME, "no key=value"),
    "a number that is none": (GOOD.replace("uid=1000", "uid=$(id)"), NAME, "uid"),
    "a code that is none": (GOOD.replace("exit_code=1:0", "exit_code=256"), NAME, "exit_code"),
    "not ASCII": (GOOD + "x=é\n", NAME, "ASCII"),
    "too large": (GOOD + "x=" + "y" * 5000, NAME, "larger"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_refused_with_the_reason(case: str) -> None:
    text, name, why = REFUSED[case]
    bad = parse_event(name, text.encode(), 7.0)
    assert isinstance(bad, BadEvent)
    assert why in bad.why


@given(st.binary(max_size=300) | st.text(st.sampled_from("=\n:0149jobidformat_crsexut-"), max_size=200).map(str.encode))
@settings(max_examples=300)
def test_any_bytes_are_an_event_of_that_name_or_bad(data: bytes) -> None:
    found = parse_event(NAME, data, 1.0)
    assert isinstance(found, BadEvent) or (found.raw_job_id, found.cluster) == ("4711", "alpha")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


def _write(spool: Path, job: int, restart: int = 0, text: str = GOOD, age_s: float = 0.0) -> Path:
    path = spool / f"alpha-{job}-{restart}.event"
    path.write_text(text.replace("4711", str(job)).replace("restart_count=0", f"restart_count={restart}"))
    os.utime(path, (1_000_000 - age_s, 1_000_000 - age_s))
    return path


def test_what_the_epilog_itself_writes_is_read(spool: Path) -> None:
    variables = {
        "SLURM_JOB_ID": "884213", "SLURM_ARRAY_JOB_ID": "884200", "SLURM_ARRAY_TASK_ID": "4", "SLURM_JOB_UID": "1000",
        "SLURM_JOB_EXIT_CODE2": "1:0", "SLURM_JOB_DERIVED_EC": "256", "SLURM_CLUSTER_NAME": "alpha",
        "RUNBOOK_SPOOL": str(spool),
    }
    subprocess.run(("/bin/sh", str(EPILOG)), env=variables, check=True, timeout=10)
    (event,) = SpoolReader(spool).scan()
    assert (event.job, event.raw_job_id, event.uid, event.exit_code) == ("884200_4", "884213", 1000, (1, 0))


def test_oldest_first_and_only_finished_files(spool: Path) -> None:
    _write(spool, 1, age_s=10)
    _write(spool, 2, age_s=30)
    _write(spool, 3, age_s=20)
    (spool / ".alpha-4-0.123").write_text(GOOD)
    assert [event.job for event in SpoolReader(spool).scan()] == ["2", "3", "1"]
    assert SpoolReader(spool).status().depth == 3
    assert SpoolReader(spool).status().oldest_s == 1_000_000 - 30


def test_an_event_stays_until_it_is_done(spool: Path) -> None:
    path = _write(spool, 1)
    reader = SpoolReader(spool)
    (event,) = reader.scan()
    assert reader.scan() == (event,)
    reader.done(event)
    reader.done(event)
    assert not path.exists()
    assert reader.scan() == ()


def test_the_same_failure_reported_a_hundred_times_is_one_event(spool: Path) -> None:
    for _ in range(100):
        _write(spool, 4711)
    assert len(SpoolReader(spool).scan()) == 1


def test_garbage_is_set_aside_with_its_reason_and_hinders_nothing(spool: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(GOOD)
    (spool / "alpha-1-0.event").symlink_to(secret)
    os.mkfifo(spool / "alpha-2-0.event")
    (spool / "alpha-3-0.event").mkdir()
    (spool / "alpha-4-0.event").write_bytes(b"\xff" * 10_000_000)
    (spool / "notes.txt").write_text("hello")
    (spool / ("n" * 250)).write_text("long")
    (spool / "bad-\n-name\x1b[31m.event").write_text("?")
    _write(spool, 5)
    reader = SpoolReader(spool)
    assert [event.job for event in reader.scan()] == ["5"]
    assert {path.name for path in spool.iterdir()} == {"alpha-5-0.event", "bad"}
    assert reader.status().bad == 7
    assert "plain file" in (spool / "bad" / "alpha-1-0.event.reason").read_text()
    assert "larger" in (spool / "bad" / "alpha-4-0.event.reason").read_text()
    assert secret.read_text() == GOOD
    assert [event.job for event in reader.scan()] == ["5"]


def test_a_flood_of_garbage_does_not_fill_the_disk(spool: Path) -> None:
    (spool / "bad").mkdir()
    for number in range(MOST_BAD):
        (spool / "bad" / f"x{number}").touch()
    (spool / "more").touch()
    assert SpoolReader(spool).scan() == ()
    assert not (spool / "more").exists()
    assert SpoolReader(spool).status().bad == MOST_BAD


def test_what_cannot_be_set_aside_does_not_stop_the_others(spool: Path) -> None:
    (spool / "junk").write_text("x")
    (spool / "bad" / "junk" / "in the way").mkdir(parents=True)
    _write(spool, 5)
    assert [event.job for event in SpoolReader(spool).scan()] == ["5"]


def test_a_missing_spool_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as refusal:
        SpoolReader(tmp_path / "none").scan()
    assert refusal.value.where == str(tmp_path / "none")
    assert "2770" in refusal.value.next_step


def test_a_daemon_that_waits_hands_its_events_over_and_leaves_the_folder_that_is_read(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        _write(folder, 1)
    _write(folders[1], 2)
    drives, waits = (SharedSpool(folder, tmp_path / "handed-over") for folder in folders)
    drives.drive("daemon, pid 1 on one")
    waits.hand_over("daemon, pid 1 on one")
    assert not list(folders[1].glob("*.event"))
    assert drives.status().depth == 3
    found = {event.job: event for event in drives.scan()}
    assert set(found) == {"1", "2"}
    for event in found.values():
        drives.done(event)
    assert drives.status().depth == 0 and drives.scan() == ()
    # Both look into the same folder: nothing is taken away from under the one that reads it.
    _write(folders[0], 3)
    SharedSpool(folders[0], tmp_path / "handed-over").hand_over("daemon, pid 1 on one")
    assert [path.name for path in folders[0].glob("*.event")] == ["alpha-3-0.event"]
