"""Nobody else reads what the tool keeps, whatever the umask, and no link that somebody planted is followed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runbook.adapters.whole_file import is_own_file, settled_folder, whole_file, write_new
from runbook.errors import NotAllowed
from runbook.service.spool import SpoolReader
from runbook.service.tokens import read_private
from tests.cli.conftest import Shell
from tests.cli.test_companions import LOG

NOBODY = 65534
TEMPLATE = (
    "#!/bin/bash\n"
    "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 8 --global-batch-size 64\n"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act for two users")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    made.work.mkdir()
    made.write_inventory()
    return made


def run(shell: Shell, *arguments: str, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "RUNBOOK_INVENTORY": str(shell.inventory), "HOME": str(shell.folder / "home"),
        "XDG_STATE_HOME": str(shell.folder / "xdg"),
    }
    return subprocess.run(
        (sys.executable, "-m", "runbook", *arguments), cwd=shell.work, env=environment, umask=umask, timeout=90,
        capture_output=True, text=True, check=False,
    )


def open_to_others(folder: Path, *, allowed: int = 0o711) -> list[str]:
    """What others can read or write below a folder; folders may be passed through."""
    found = []
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if not path.is_symlink() and mode & ~(allowed if path.is_dir() else 0o700):
            found.append(f"{path.relative_to(folder)} {mode:04o}")
    return found


@needs_root
def test_a_copy_is_not_its_readers_to_write_where_there_are_no_access_lists(tmp_path: Path) -> None:
    """Case: the file became the user's own, on the service's disk (ramfs stands for NFS)."""
    folder = tmp_path / "ramfs"
    folder.mkdir()
    mounted = subprocess.run(("mount", "-t", "ramfs", "-o", "mode=755", "x", str(folder)), check=False)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with pytest.raises(OSError, match="no access lists"), whole_file(folder / "a", reader=(NOBODY, NOBODY)) as file:
            file.write(b"x")
        assert list(folder.iterdir()) == []
    finally:
        subprocess.run(("umount", str(folder)), check=True)


def test_the_probes_builder_writes_through_no_link(tmp_path: Path) -> None:
    kept, target = tmp_path / "kept", tmp_path / "probe.pyz"
    kept.write_text("kept")
    target.symlink_to(kept)
    subprocess.run((sys.executable, "-m", "runbook.probe.build", str(target)), check=True, capture_output=True)
    assert kept.read_text() == "kept" and stat.S_IMODE(kept.stat().st_mode) != 0o755
    assert not target.is_symlink() and target.stat().st_mode & 0o111
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "probe.pyz"]


def test_a_secret_is_read_from_the_file_that_was_looked_at(tmp_path: Path) -> None:
    """Its name is moved to and fro between a private file and one that everybody may write."""
    name, stop = tmp_path / "key", threading.Event()
    (tmp_path / "own").write_bytes(b"own")
    (tmp_path / "own").chmod(0o600)
    (tmp_path / "open").write_bytes(b"open")
    (tmp_path / "open").chmod(0o666)
    name.symlink_to("own")

    def swap() -> None:
        while not stop.is_set():
            for target in ("open", "own"):
                (tmp_path / "next").symlink_to(target)
                (tmp_path / "next").replace(name)

    thread = threading.Thread(target=swap)
    thread.start()
    read, ends_s = [], time.monotonic() + 3
    try:
        while time.monotonic() < ends_s:
            with contextlib.suppress(NotAllowed):
                read.append(read_private(name, "key", "make it"))
    finally:
        stop.set()
        thread.join()
    assert set(read) == {b"own"}


def test_whatever_the_umask_nobody_else_reads_what_is_kept(shell: Shell) -> None:
    job = shell.failed_job()
    done = run(shell, "oom", "--job", job, "--yes", umask=0)
    assert done.returncode == 0, done.stderr
    assert (shell.state / "workflows.sqlite").exists() and (shell.state / "incidents.sqlite").exists()
    assert open_to_others(shell.state) == []


def test_the_folders_above_a_new_state_folder_are_nobody_elses_either(shell: Shell) -> None:
    shell.inventory.write_text(shell.inventory.read_text().replace(f"{shell.state}", f"{shell.folder}/a/b/state"))
    assert run(shell, "oom", "--job", shell.failed_job(), "--yes", umask=0).returncode == 0
    assert (shell.folder / "a/b/state/incidents.sqlite").exists()
    assert open_to_others(shell.folder / "a") == []


def test_looking_makes_no_folder(shell: Shell) -> None:
    assert run(shell, "incidents", umask=0).returncode == 0
    assert not shell.state.exists()


def test_doctor_names_what_others_can_read_and_mends_it_with_consent(shell: Shell) -> None:
    job = shell.failed_job()
    assert run(shell, "oom", "--job", job, "--yes").returncode == 0
    database, evidence = shell.state / "workflows.sqlite", next(shell.state.rglob("evidence"))
    database.chmod(0o644)
    evidence.chmod(0o777)
    told = run(shell, "doctor")
    assert told.returncode == 6
    assert f"{database}: others can read or change it (mode 0644)" in told.stdout and str(evidence) in told.stdout
    assert stat.S_IMODE(database.stat().st_mode) == 0o644  # nobody has said yes
    mended = run(shell, "doctor", "--mend")
    assert mended.returncode == 0 and "2 mended" in mended.stdout, mended.stdout
    assert open_to_others(shell.state) == []
    assert run(shell, "doctor").returncode == 0


@needs_root
def test_doctor_names_what_somebody_else_has_put_there(shell: Shell) -> None:
    shell.state.mkdir(mode=0o700)
    planted = shell.state / "incidents.sqlite"
    planted.write_bytes(b"")
    planted.chmod(0o600)
    os.chown(planted, NOBODY, NOBODY)
    (shell.state / "link").symlink_to("/etc/passwd")
    told = run(shell, "doctor", "--mend")
    assert told.returncode == 6
    assert f"it belongs to user {NOBODY}" in told.stdout and "neither a file nor a folder" in told.stdout


def offline(shell: Shell, template: Path, *more: str) -> subprocess.CompletedProcess[str]:
    log = shell.work / "log.out"
    log.write_text(LOG.replace("torchtitan", "megatron"))
    return run(shell, "oom", "--log", str(log), "--template", str(template), "--json", *more)


@needs_root
def test_a_planted_link_is_neither_followed_nor_replaced(shell: Shell) -> None:
    """As root, in a folder of a user's: the names of report and copy are links to a file that only root may write."""
    home = shell.folder / "of-a-user"
    home.mkdir()
    template = home / "train.sh"
    template.write_text(TEMPLATE)
    first = offline(shell, template)
    written = [path for path in home.iterdir() if path != template]
    assert len(written) == 2, first.stderr
    target = shell.folder / "only-roots"
    target.write_text("secret\n")
    for path in written:
        path.unlink()
        path.symlink_to(target)
    os.chown(home, NOBODY, NOBODY)
    again = offline(shell, template)
    assert target.read_text() == "secret\n", again.stderr
    assert all(path.is_symlink() for path in written)
    assert len([path for path in home.iterdir() if path.is_file() and not path.is_symlink()]) == 3


@needs_root
def test_a_folder_that_a_user_has_made_a_link_is_not_entered(shell: Shell) -> None:
    home, elsewhere = shell.folder / "of-a-user", shell.folder / "cron.d"
    home.mkdir()
    elsewhere.mkdir()
    template = home / "train.sh"
    template.write_text(TEMPLATE)
    os.chown(home, NOBODY, NOBODY)
    (home / "out").symlink_to(elsewhere)
    os.chown(home / "out", NOBODY, NOBODY, follow_symlinks=False)
    done = offline(shell, template, "--output", str(home / "out"))
    assert done.returncode == 6 and "link of another user" in done.stderr
    assert list(elsewhere.iterdir()) == []
    # The administrator's own links lead where they did.
    os.chown(home / "out", 0, 0, follow_symlinks=False)
    assert offline(shell, template, "--output", str(home / "out")).returncode != 6
    assert len(list(elsewhere.iterdir())) == 2


@needs_root
def test_root_reads_what_a_script_names_with_the_rights_of_the_scripts_owner(shell: Shell) -> None:
    """Else whoever hands root a script to look at is handed back a copy of what only root or a third may read."""
    for folder in (shell.folder, *shell.folder.parents[:-2], shell.work):
        folder.chmod(folder.stat().st_mode | 0o711)
    private = shell.folder / "private.json"
    private.write_text('{"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "tag": "only-roots"}')
    private.chmod(0o600)
    template = shell.work / "train.sh"
    template.write_text(f"#!/bin/bash\ndeepspeed train.py --deepspeed --deepspeed_config {private}\n")
    mine = run(shell, "template", "show", str(template))
    assert "train_micro_batch_size_per_gpu" in mine.stdout and mine.returncode == 0, mine.stderr

    def copies() -> list[Path]:
        return [path for path in shell.work.rglob("*") if path.is_file() and "only-roots" in path.read_text()]

    offline(shell, template)
    assert copies(), "root's own script has its configuration changed in a copy beside it"
    for path in shell.work.iterdir():
        if path != template:
            path.unlink() if path.is_file() else shutil.rmtree(path)
    os.chown(template, NOBODY, -1)
    done = run(shell, "template", "show", str(template))
    assert str(private) in done.stdout + done.stderr and "may not do this" in done.stdout + done.stderr
    offline(shell, template)
    assert copies() == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_copy_is_as_private_as_its_template(shell: Shell, umask: int) -> None:
    template = shell.work / "train.sh"
    template.write_text(TEMPLATE)
    template.chmod(0o600)
    (shell.work / "log.out").write_text(LOG.replace("torchtitan", "megatron"))
    output = shell.work / "out"
    done = run(
        shell, "oom", "--log", "log.out", "--template", str(template), "--output", str(output), umask=umask
    )
    assert len(list(output.iterdir())) == 2, done.stderr
    assert open_to_others(output) == []


def test_a_name_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "there").symlink_to(tmp_path / "nowhere")
    with settled_folder(tmp_path) as folder, pytest.raises(FileExistsError):
        write_new(folder / "there", b"x")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "one").write_text("x")
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert not is_own_file(tmp_path / "one")


def test_a_folder_stays_the_one_that_was_entered(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with settled_folder(tmp_path / "out") as folder:
        (tmp_path / "out").rename(tmp_path / "moved")
        (tmp_path / "out").symlink_to("/nonexistent")
        write_new(folder / "file", b"x")
    assert (tmp_path / "moved" / "file").read_bytes() == b"x"


@contextlib.contextmanager
def _links(folder: Path) -> Iterator[Path]:
    target = folder.parent / "elsewhere"
    target.mkdir()
    yield target
    assert list(target.iterdir()) == []


def test_a_spools_bad_folder_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    with _links(spool) as target:
        (spool / "bad").symlink_to(target)
        (spool / "x.event").write_text("nonsense")
        assert SpoolReader(spool).scan() == ()
        assert (spool / "x.event").exists()
