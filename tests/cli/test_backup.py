"""`runbook backup` and `restore`: everything comes back as it was, nothing hostile, and no job runs twice."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import pickle
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard

from runbook.adapters.store import IncidentStore
from runbook.cli.wiring import UNFINISHED_RESTORE
from tests.cli.conftest import Shell
from tests.report.stored_long_ago import closed, put, still_open

DRIVER = Path(__file__).resolve().parents[1] / "crash" / "driver.py"


def everything(state: Path) -> dict[str, tuple[int, str]]:
    """Mode and content of every file of the incidents; what a restore adds is left out."""
    return {
        str(path.relative_to(state)): (
            stat.S_IMODE(path.stat().st_mode), hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in (state / "incidents").rglob("*") if path.is_file() and path.name != "restored.json"
    }


def rows(state: Path) -> dict[str, list[str]]:
    with closing(sqlite3.connect(state / "workflows.sqlite")) as database:
        tables = ("workflow_status", "operation_outputs", "workflow_input", "workflow_output", "notifications")
        return {table: sorted(repr(row) for row in database.execute(f"SELECT * FROM {table}")) for table in tables}


def lose(state: Path) -> None:
    """All that is stored but the local scheduler's jobs, which stand for the cluster."""
    for path in state.iterdir():
        if path.name != "scheduler":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_everything_comes_back_as_it_was(shell: Shell) -> None:
    shell.write_inventory("apply")
    assert shell("oom", "--job", shell.failed_job(), "--yes").returncode == 0
    put(IncidentStore(shell.state), closed(7001, 3), still_open(7002, 4))
    (shell.state / "incidents" / "oom-here-7001" / "evidence" / "sparse.out").write_bytes(b"begin")
    with (shell.state / "incidents" / "oom-here-7001" / "evidence" / "sparse.out").open("r+b") as log:
        log.truncate(64 << 20)
        os.fchmod(log.fileno(), 0o600)
    before, recorded, shown = everything(shell.state), rows(shell.state), shell("incidents").stdout
    done = shell("backup", "b.zst")
    assert done.returncode == 0 and "3 incidents" in done.stdout, done.stderr
    file = shell.work / "b.zst"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.stat().st_size < 4 << 20
    lose(shell.state)
    done = shell("restore", "b.zst")
    assert done.returncode == 0 and "3 incidents" in done.stdout, done.stderr
    assert everything(shell.state) == before and rows(shell.state) == recorded
    assert shell("incidents").stdout == shown
    evidence = shell.state / "incidents" / "oom-here-7001" / "evidence"
    assert (evidence / "sparse.out").stat().st_blocks * 512 < 1 << 20
    assert stat.S_IMODE(evidence.stat().st_mode) == 0o700
    assert stat.S_IMODE((shell.state / "workflows.sqlite").stat().st_mode) == 0o600
    assert not list(shell.state.glob(".scratch-*")) and not (shell.state / UNFINISHED_RESTORE).exists()


@pytest.mark.parametrize(
    "point", ["after store.write_file", "before scheduler.submit", "after scheduler.submit"],
    ids=["before its claim was written", "before it was submitted", "before its submission was recorded"],
)
def test_what_was_submitted_since_the_backup_is_not_submitted_again(shell: Shell, point: str) -> None:
    shell.write_inventory("apply")
    job = shell.failed_job()
    killed = subprocess.run(
        (sys.executable, str(DRIVER), str(shell.inventory), point, str(shell.folder / "p"), job),
        cwd=shell.work, capture_output=True, check=False, timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert shell("backup", "b.zst").returncode == 0
    (name,) = [path.name for path in (shell.state / "incidents").iterdir()]
    assert shell("resume", name).returncode == 0
    jobs = shell("jobs").stdout
    lose(shell.state)
    assert shell("restore", "b.zst").returncode == 0
    done = shell("resume", name)
    assert done.returncode == 0, done.stderr
    assert shell("jobs").stdout == jobs
    stored = json.loads((shell.state / "incidents" / name / "incident.json").read_text())
    assert stored["state"] == "recovered" and len(stored["attempts"]) == 1
    assert [act["result"] for act in stored["acts"] if act["what"] == "submit"] == ["found submitted already"]


@contextmanager
def _daemon(shell: Shell) -> Iterator[None]:
    (shell.state / "spool").mkdir(exist_ok=True)
    environment = {**os.environ, "RUNBOOK_INVENTORY": str(shell.inventory)}
    command = (sys.executable, "-m", "runbook", "serve", "--port", "0")
    with subprocess.Popen(command, env=environment, cwd=shell.work, stderr=subprocess.DEVNULL) as daemon:
        try:
            yield
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)


def _until_recovered(path: Path) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while True:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if stored["state"] == "recovered" and stored["closed_s"]:
            return stored
        assert time.monotonic() < deadline, stored["state"]
        time.sleep(0.2)


def test_a_restored_daemon_goes_on_with_what_is_open_and_a_running_one_is_backed_up(shell: Shell) -> None:
    shell.write_inventory("apply")
    point = ("after store.write_file", str(shell.folder / "p"), shell.failed_job())
    killed = subprocess.run(
        (sys.executable, str(DRIVER), str(shell.inventory), *point),
        cwd=shell.work, capture_output=True, check=False, timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (document,) = (shell.state / "incidents").glob("*/incident.json")
    assert shell("backup", "open.zst").returncode == 0
    with _daemon(shell):
        at_work = shell("backup", "at-work.zst")
        assert at_work.returncode == 0, at_work.stderr
        _until_recovered(document)
    jobs = shell("jobs").stdout
    lose(shell.state)
    assert shell("restore", "open.zst").returncode == 0
    with _daemon(shell):
        stored = _until_recovered(document)
    assert len(stored["attempts"]) == 1 and shell("jobs").stdout == jobs


def test_a_store_that_is_not_empty_is_left_alone(shell: Shell) -> None:
    put(IncidentStore(shell.state), closed(1, 3))
    assert shell("backup", "b.zst").returncode == 0
    again = shell("backup", "b.zst")
    assert again.returncode == 2 and "there is a file of that name" in again.stderr
    before = everything(shell.state)
    done = shell("restore", "b.zst")
    assert done.returncode == 3 and "there are incidents there already" in done.stderr and "--into DIR" in done.stderr
    assert everything(shell.state) == before
    elsewhere = shell.folder / "elsewhere"
    assert shell("restore", "b.zst", "--into", str(elsewhere)).returncode == 0
    assert everything(elsewhere) == before and (elsewhere / "workflows.sqlite").is_file()


def test_another_clusters_backup_is_refused(shell: Shell) -> None:
    put(IncidentStore(shell.state), closed(1, 3))
    assert shell("backup", "b.zst").returncode == 0
    lose(shell.state)
    shell.inventory.write_text(shell.inventory.read_text().replace("cluster: here", "cluster: there"))
    done = shell("restore", "b.zst")
    assert done.returncode == 3 and "the backup is of cluster 'here'" in done.stderr
    assert not (shell.state / "incidents").exists()


Members = list[tuple[tarfile.TarInfo, bytes]]


def _read(file: Path) -> Members:
    content = zstandard.ZstdDecompressor().stream_reader(file.read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return [(info, (tar.extractfile(info) or io.BytesIO()).read()) for info in tar]


def _written(file: Path, members: Members) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for info, content in members:
            info.size = len(content) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(content))
    file.write_bytes(zstandard.ZstdCompressor().compress(packed.getvalue()))


def _with(members: Members, name: str, kind: bytes = tarfile.REGTYPE, **more: Any) -> Members:
    """One member more, in front, and named by the manifest as it is."""
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, 0o600
    for key, value in more.items():
        setattr(info, key, value)
    manifest = json.loads(members[-1][1])
    manifest["files"][name] = {
        "size_bytes": 1, "mode": info.mode, "uid": 0, "gid": 0, "sha256": hashlib.sha256(b"x").hexdigest(),
    }
    return [(info, b"x"), *members[:-1], (members[-1][0], json.dumps(manifest).encode())]


def _changed(members: Members, name: str, content: bytes) -> Members:
    return [(info, content if info.name.endswith(name) else data) for info, data in members]


INCIDENT = "incidents/oom-here-1"


@pytest.mark.parametrize(
    "hostile",
    [
        lambda found: _with(found, "../../escaped"),
        lambda found: _with(found, "/tmp/escaped"),
        lambda found: _with(found, f"{INCIDENT}/../../../escaped"),
        lambda found: _with(found, "driver.lock"),
        lambda found: _with(found, f"{INCIDENT}/.hidden"),
        lambda found: _with(found, f"{INCIDENT}/evidence/link", tarfile.SYMTYPE, linkname="/etc/passwd"),
        lambda found: _with(found, f"{INCIDENT}/evidence/link", tarfile.LNKTYPE, linkname="/etc/passwd"),
        lambda found: _with(found, f"{INCIDENT}/evidence/device", tarfile.CHRTYPE, devmajor=1, devminor=3),
        lambda found: _with(found, f"{INCIDENT}/evidence/pipe", tarfile.FIFOTYPE),
        lambda found: _with(found, f"{INCIDENT}/evidence", tarfile.DIRTYPE),
        lambda found: _with(found, f"{INCIDENT}/incident.json/below"),
        lambda found: [found[1], *found],
        lambda found: _with(found, f"{INCIDENT}/" + "deep/" * 20 + "x"),
        lambda found: _changed(found, "evidence/job.out", b"another log"),
        lambda found: [one for one in found if not one[0].name.endswith("job.out")],
        lambda found: found[:-1],
        lambda found: _changed(found, "manifest.json", b"[]"),
        lambda found: _changed(found, "manifest.json", b"{"),
    ],
    ids=[
        "traversal", "absolute", "traversal inside", "no file of a store", "hidden", "symbolic link", "hard link",
        "device", "pipe", "folder", "below a file", "twice", "deep", "another content", "one less", "cut off",
        "no manifest", "half a manifest",
    ],
)
def test_a_hostile_archive_leaves_nothing_behind(shell: Shell, hostile: Callable[[Members], Members]) -> None:
    put(IncidentStore(shell.state), closed(1, 3))
    assert shell("backup", "b.zst").returncode == 0
    _written(shell.work / "h.zst", hostile(_read(shell.work / "b.zst")))
    lose(shell.state)
    before = {path for path in shell.folder.rglob("*") if "state" not in path.parts[-1:]}
    done = shell("restore", "h.zst")
    assert done.returncode == 2 and "no backup that can be restored" in done.stderr, done.stderr
    assert not any((shell.state / name).exists() for name in ("incidents", "workflows.sqlite", UNFINISHED_RESTORE))
    assert {path for path in shell.folder.rglob("*") if "state" not in path.parts[-1:]} - before <= {
        shell.state / "driver.lock"
    }
    assert shell("restore", "b.zst").returncode == 0


@pytest.mark.parametrize(
    "content", [b"", b"no archive", b"\x28\xb5\x2f\xfd" + b"\0" * 50], ids=["empty", "text", "cut"]
)
def test_what_is_no_archive_is_said_plainly(shell: Shell, content: bytes) -> None:
    (shell.work / "b.zst").write_bytes(content)
    done = shell("restore", "b.zst")
    assert done.returncode == 2 and "no backup that can be restored" in done.stderr


def test_rows_of_another_table_or_of_no_workflow_of_ours_are_refused(shell: Shell) -> None:
    shell.write_inventory("apply")
    assert shell("oom", "--job", shell.failed_job(), "--yes").returncode == 0
    assert shell("backup", "b.zst").returncode == 0
    members = _read(shell.work / "b.zst")
    manifest = json.loads(members[-1][1])
    lose(shell.state)
    for line in (
        b'{"table": "sqlite_master", "row": {"workflow_uuid": "oom-here-1"}}\n',
        b'{"table": "workflow_status", "row": {"workflow_uuid": "theirs"}}\n',
        b'{"table": "workflow_status", "row": {"workflow_uuid": "oom-here-1", "x) --": 1}}\n',
    ):
        digest = hashlib.sha256(line).hexdigest()
        manifest["files"]["workflows.jsonl"] |= {"size_bytes": len(line), "sha256": digest}
        changed = _changed(_changed(members, "workflows.jsonl", line), "manifest.json", json.dumps(manifest).encode())
        _written(shell.work / "h.zst", changed)
        done = shell("restore", "h.zst")
        assert done.returncode == 2 and "backup" in done.stderr
        assert not (shell.state / "incidents").exists() and not (shell.state / UNFINISHED_RESTORE).exists()


class _Program:
    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._mark}",)


def _with_a_program(text: str, mark: Path, column: str) -> bytes:
    """The rows with a value of the column that is a program to whoever unpickles it."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        if line["row"].get(column) is not None:
            line["row"][column] = base64.b64encode(pickle.dumps(_Program(mark))).decode()
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@pytest.mark.parametrize("column", ["inputs", "output"])
def test_a_recorded_value_that_is_a_program_is_refused_and_never_run(
    shell: Shell, tmp_path: Path, column: str
) -> None:
    shell.write_inventory("apply")
    assert shell("oom", "--job", shell.failed_job(), "--yes").returncode == 0
    assert shell("backup", "b.zst").returncode == 0
    mark = tmp_path / "ran"
    members = _read(shell.work / "b.zst")
    manifest = json.loads(members[-1][1])
    rows_text = next(content for info, content in members if info.name == "workflows.jsonl")
    forged = _with_a_program(rows_text.decode(), mark, column)
    digest = hashlib.sha256(forged).hexdigest()
    manifest["files"]["workflows.jsonl"] |= {"size_bytes": len(forged), "sha256": digest}
    changed = _changed(_changed(members, "workflows.jsonl", forged), "manifest.json", json.dumps(manifest).encode())
    _written(shell.work / "h.zst", changed)
    lose(shell.state)
    done = shell("restore", "h.zst")
    assert done.returncode == 2 and "no plain value" in done.stderr, done.stderr
    assert not mark.exists() and not (shell.state / "incidents").exists()


def test_a_program_in_the_database_itself_is_not_run(shell: Shell, tmp_path: Path) -> None:
    """Whoever may write the tables of a server gets no further than that."""
    shell.write_inventory("approve")
    shell("oom", "--job", shell.failed_job())
    mark = tmp_path / "ran"
    program = base64.b64encode(pickle.dumps(_Program(mark))).decode()
    with closing(sqlite3.connect(shell.state / "workflows.sqlite")) as database, database:
        database.execute("UPDATE operation_outputs SET output = ?", (program,))
        for table, column in (("workflow_status", "inputs"), ("workflow_input", "inputs")):
            with contextlib.suppress(sqlite3.OperationalError):
                database.execute(f"UPDATE {table} SET {column} = ? WHERE {column} IS NOT NULL", (program,))
    name = json.loads(shell("incidents", "--json").stdout)[0]["id"]
    shell("resume", name, "--plan")
    assert not mark.exists()


EFFECTS = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod"})
RESTORE = """
import os, signal, sys
from pathlib import Path
from runbook.cli.backup import restore
point, seen = int(sys.argv[1]), 0
def watch(event, arguments):
    global seen
    if event in {effects}:
        seen += 1
        if seen == point:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
sys.exit(restore(Path(sys.argv[2]), None, sys.argv[3]))
"""


def test_killed_at_any_moment_nothing_is_half_restored_and_it_can_be_begun_again(shell: Shell) -> None:
    put(IncidentStore(shell.state), closed(1, 3), still_open(2, 3))
    assert shell("backup", "b.zst").returncode == 0
    expected = everything(shell.state)
    program = RESTORE.replace("{effects}", repr(set(EFFECTS)))
    arguments = (str(shell.work / "b.zst"), str(shell.inventory))
    point, killed = 1, True
    while killed:
        lose(shell.state)
        done = subprocess.run(
            (sys.executable, "-c", program, str(point), *arguments), capture_output=True, check=False, timeout=60
        )
        killed = done.returncode == -signal.SIGKILL
        assert killed or done.returncode == 0, done.stderr
        listed = shell("incidents")
        if listed.returncode == 0:
            assert everything(shell.state) in ({}, expected) if (shell.state / "incidents").is_dir() else True
        else:
            assert "a backup is being restored" in listed.stderr
        if everything(shell.state) != expected or (shell.state / UNFINISHED_RESTORE).exists():
            assert shell("restore", "b.zst").returncode == 0
        assert everything(shell.state) == expected and not (shell.state / UNFINISHED_RESTORE).exists()
        # By leaps, which are no multiple of what is done for each file.
        point += 7
    assert point > 30


@pytest.mark.skipif(os.geteuid() != 0, reason="gives the folder to another user")
def test_another_user_is_refused(shell: Shell) -> None:
    put(IncidentStore(shell.state), closed(1, 3))
    shutil.chown(shell.state, "daemon")
    done = shell("backup", "b.zst")
    assert done.returncode == 3 and "belong to daemon" in done.stderr
    assert not (shell.work / "b.zst").exists()
