"""The epilog script: what it writes, what it refuses, and that it always ends with status 0."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.programs import require

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "runbook-epilog"
FAILED_JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_EXIT_CODE2": "1:0",
    "SLURM_JOB_DERIVED_EC": "125",
    "SLURM_JOB_RESTART_COUNT": "2",
    "SLURM_CLUSTER_NAME": "training",
    "SLURM_JOB_NAME": "x\njob_id=1\n$(touch /tmp/pwned)",
}
WRITTEN = (
    "format=1\njob_id=4711\narray_job_id=\narray_task_id=\nuid=1000\n"
    "exit_code=1:0\nderived_exit_code=0:125\nrestart_count=2\ncluster=training\n"
)


def run_epilog(spool: Path | str, variables: dict[str, str], prefix: tuple[str, ...] = ()) -> None:
    """Run the script as slurmctld does, with nothing in the environment but these variables."""
    done = subprocess.run(
        (*prefix, "/bin/sh", str(SCRIPT)),
        env={**variables, "RUNBOOK_SPOOL": str(spool)},
        capture_output=True,
        timeout=10,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def without(name: str) -> dict[str, str]:
    """The failed job less one variable."""
    return {key: value for key, value in FAILED_JOB.items() if key != name}


def only_event(spool: Path) -> Path:
    """The one file in the spool."""
    (path,) = spool.iterdir()
    return path


def test_failed_job_is_one_exact_file(tmp_path: Path) -> None:
    before = time.time()
    run_epilog(tmp_path, FAILED_JOB)
    event = only_event(tmp_path)
    assert event.name == "training-4711-2.event"
    assert event.read_text() == WRITTEN
    assert before - 2 <= event.stat().st_mtime <= time.time() + 2
    assert event.stat().st_mode & 0o777 == 0o640


def test_same_failure_again_is_the_same_file(tmp_path: Path) -> None:
    run_epilog(tmp_path, FAILED_JOB)
    run_epilog(tmp_path, FAILED_JOB)
    assert only_event(tmp_path).read_text() == WRITTEN


def test_array_task_is_named(tmp_path: Path) -> None:
    run_epilog(tmp_path, {**FAILED_JOB, "SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"})
    assert "array_job_id=4700\narray_task_id=3\n" in only_event(tmp_path).read_text()


@pytest.mark.parametrize(
    ("derived", "written"),
    [("256", "1:0"), ("9", "0:9"), ("0:125", "0:125"), ("65535", "255:127"), ("70:8:9", ""), ("010", ""), ("-1", "")],
)
def test_derived_code_is_a_wait_status_or_a_pair(tmp_path: Path, derived: str, written: str) -> None:
    run_epilog(tmp_path, {**FAILED_JOB, "SLURM_JOB_DERIVED_EC": derived})
    assert f"\nderived_exit_code={written}\n" in only_event(tmp_path).read_text()


@pytest.mark.parametrize("derived", ["0", "0:0"])
def test_job_that_ended_well_leaves_no_file(tmp_path: Path, derived: str) -> None:
    run_epilog(tmp_path, {**FAILED_JOB, "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_DERIVED_EC": derived})
    assert list(tmp_path.iterdir()) == []


def test_a_site_may_want_every_end(tmp_path: Path) -> None:
    """Slurm gives 0:0 for a job that hung until its time limit."""
    ended = {**FAILED_JOB, "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_DERIVED_EC": "0", "RUNBOOK_ENDS": "all"}
    run_epilog(tmp_path, ended)
    assert "exit_code=0:0\nderived_exit_code=0:0\n" in only_event(tmp_path).read_text()


def test_failed_step_of_a_job_that_ended_well_is_noted(tmp_path: Path) -> None:
    run_epilog(tmp_path, {**FAILED_JOB, "SLURM_JOB_EXIT_CODE2": "0:0"})
    assert "exit_code=0:0\nderived_exit_code=0:125\n" in only_event(tmp_path).read_text()


@pytest.mark.parametrize("name", [key for key in FAILED_JOB if key != "SLURM_JOB_ID"])
def test_missing_variable_is_an_empty_value(tmp_path: Path, name: str) -> None:
    run_epilog(tmp_path, without(name))
    lines = only_event(tmp_path).read_text().splitlines()
    assert [line.partition("=")[0] for line in lines] == [line.partition("=")[0] for line in WRITTEN.splitlines()]


def test_without_job_id_there_is_nothing_to_say(tmp_path: Path) -> None:
    run_epilog(tmp_path, without("SLURM_JOB_ID"))
    run_epilog(tmp_path, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "hostile",
    ["1\njob_id=2", "$(touch pwned)", "`id`", "../../etc/x", "-rf", "*", "1 2", "", "9" * 60, "\u0661", "a" * 5000],
)
@pytest.mark.parametrize("name", [key for key in FAILED_JOB if key != "SLURM_JOB_NAME"])
def test_hostile_values_are_not_written(tmp_path: Path, name: str, hostile: str) -> None:
    run_epilog(tmp_path, {**FAILED_JOB, name: hostile})
    for event in tmp_path.iterdir():
        assert event.name in ("training-4711-2.event", "training-4711-0.event", "unknown-4711-2.event")
        assert len(event.read_text().splitlines()) == len(WRITTEN.splitlines())
        assert len(hostile) < 3 or hostile not in event.read_text()


def test_hostile_job_id_leaves_no_file(tmp_path: Path) -> None:
    run_epilog(tmp_path, {**FAILED_JOB, "SLURM_JOB_ID": "1/../../x"})
    assert list(tmp_path.iterdir()) == []


def test_missing_spool_is_no_failure(tmp_path: Path) -> None:
    run_epilog(tmp_path / "absent", FAILED_JOB)
    assert not (tmp_path / "absent").exists()


def test_spool_that_is_a_file_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("kept")
    run_epilog(tmp_path / "spool", FAILED_JOB)
    assert (tmp_path / "spool").read_text() == "kept"


def test_relative_spool_that_looks_like_an_option(tmp_path: Path) -> None:
    run_epilog("-f", FAILED_JOB, prefix=("env", "-C", str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_events_place_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "training-4711-2.event").mkdir()
    run_epilog(tmp_path, FAILED_JOB)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_spool_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        require("setpriv")
        prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        if subprocess.run((*prefix, "test", "-r", str(SCRIPT)), check=False).returncode != 0:
            pytest.skip("the checkout cannot be read by an unprivileged user")
    run_epilog(tmp_path, FAILED_JOB, prefix)
    tmp_path.chmod(0o755)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small or read-only file system needs root")
@pytest.mark.parametrize("case", ["read-only", "full"])
def test_read_only_and_full_file_systems(tmp_path: Path, case: str) -> None:
    if subprocess.run(("unshare", "--mount", "true"), capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not allow mounts")
    mount = 'mount -t tmpfs -o size=4k tmpfs "$0"; '
    mount += 'mount -o remount,ro "$0"' if case == "read-only" else 'head -c 4096 /dev/zero >"$0"/filler'
    script = f'{mount}; env -i RUNBOOK_SPOOL="$0" "$@" /bin/sh {SCRIPT}; echo "status $?"; ls -A "$0"'
    done = subprocess.run(
        ("unshare", "--mount", "sh", "-ec", script, str(tmp_path), *(f"{k}={v}" for k, v in FAILED_JOB.items())),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["status", "0", *(["filler"] if case == "full" else [])]


def test_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    (tmp_path / "training-4711-2.event").write_text("older\n")
    seen = os.open(tmp_path / "training-4711-2.event", os.O_RDONLY)
    run_epilog(tmp_path, FAILED_JOB)
    assert os.read(seen, 100) == b"older\n"
    os.close(seen)


def test_it_is_quick(tmp_path: Path) -> None:
    times_s = []
    for _ in range(20):
        started = time.perf_counter()
        run_epilog(tmp_path, FAILED_JOB)
        times_s.append(time.perf_counter() - started)
    assert min(times_s) < 0.02


def test_it_calls_only_builtins_mv_and_rm() -> None:
    code = [line.split("#")[0] for line in SCRIPT.read_text().splitlines() if not line.lstrip().startswith("#")]
    words = " ".join(code).split()
    assert not {"scontrol", "sacct", "squeue", "python3", "date", "cat", "touch", "mkdir", "sed"} & set(words)
