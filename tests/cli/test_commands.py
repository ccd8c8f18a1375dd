"""What a person types and what they get: exit codes, clear errors, no traceback, whatever the input."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.conftest import Shell


def test_help_names_every_command_and_the_exit_codes(shell: Shell) -> None:
    done = shell("--help")
    assert done.returncode == 0
    for word in ("oom", "incidents", "approve", "resume", "promote", "rollback", "serve", "doctor", "playbooks"):
        assert word in done.stdout
        assert shell(word, "--help").returncode == 0
    assert "Exit codes" in done.stdout


def test_the_loop_with_yes_then_show_report_promote_rollback(shell: Shell) -> None:
    job = shell.failed_job()
    done = shell("oom", "--job", job, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    incident = json.loads(done.stdout)
    assert incident["state"] == "recovered"
    assert incident["contract"]["diagnosis"]["kind"] == "true_oom"
    assert incident["contract"]["root_cause"]["rank"] == 0
    assert len(incident["attempts"]) == 1
    again = shell("oom", "--job", job, "--yes")
    assert again.returncode == 0
    assert len(json.loads((shell.state / "incidents" / incident["id"] / "incident.json").read_text())["attempts"]) == 1
    listed = shell("incidents")
    assert incident["id"] in listed.stdout
    shown = shell("show", incident["id"])
    assert "micro-batch" in shown.stdout
    assert Path(shell("report", incident["id"]).stdout.strip()).is_file()
    script = shell.work / "train.sbatch"
    before = script.read_bytes()
    promoted = shell("promote", incident["id"], "--yes")
    assert promoted.returncode == 0, promoted.stderr
    assert b"--micro-batch-size 4" in script.read_bytes()
    assert shell("promote", incident["id"], "--yes").returncode == 5
    assert shell("rollback", incident["id"], "--yes").returncode == 0
    assert script.read_bytes() == before


def test_promote_refuses_a_template_that_was_changed_meanwhile(shell: Shell) -> None:
    job = shell.failed_job()
    assert shell("oom", "--job", job, "--yes").returncode == 0
    script = shell.work / "train.sbatch"
    script.write_text(script.read_text() + "# my own change\n")
    done = shell("promote", f"oom-here-{job}", "--yes")
    assert done.returncode == 3
    assert script.read_text().endswith("# my own change\n")


def test_without_a_terminal_and_without_yes_it_only_plans(shell: Shell) -> None:
    job = shell.failed_job()
    done = shell("oom", "--job", job, "--json")
    assert done.returncode == 0, done.stderr
    incident = json.loads(done.stdout)
    assert incident["state"] == "planned"
    assert incident["attempts"] == []
    assert "micro-batch" in incident["patch"]["diff"]
    assert [act["what"] for act in incident["acts"]] == ["submit"]
    assert incident["acts"][0]["planned_only"] is True


def test_an_inventory_that_only_plans_refuses_yes(shell: Shell) -> None:
    job = shell.failed_job()
    shell.write_inventory("plan")
    done = shell("oom", "--job", job, "--yes")
    assert done.returncode == 3
    assert "only plans" in done.stderr


def test_at_a_terminal_each_act_is_asked_for_and_no_is_respected(shell: Shell) -> None:
    job = shell.failed_job()
    screen, code = at_terminal(shell, ("oom", "--job", job), answer="no")
    assert "submit attempt 1" in screen
    assert code == 4
    lines = [line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).splitlines() if "report: " not in line]
    assert [line for line in lines if len(line) > 80] == []  # what does not fit is broken between words
    listed, _ = at_terminal(shell, ("incidents",), answer="no")
    assert "Job 1 ran out of GPU memory" in listed and f"oom-here-{job}" in listed
    assert len(listed.strip().splitlines()) <= 5  # a sentence has a line's room, not a column's
    incident = json.loads((shell.state / "incidents" / f"oom-here-{job}" / "incident.json").read_text())
    assert incident["state"] == "escalated"
    assert incident["attempts"] == []
    screen, code = at_terminal(shell, ("resume", f"oom-here-{job}"), answer="yes")
    assert code == 0, screen
    incident = json.loads((shell.state / "incidents" / f"oom-here-{job}" / "incident.json").read_text())
    assert incident["state"] == "recovered"


def in_front() -> None:
    """As a terminal starts a command: it is its own, and Ctrl-C is heard even where the tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def at_terminal(shell: Shell, arguments: tuple[str, ...], answer: str) -> tuple[str, int]:
    """Run the command in a pseudo-terminal and answer every question."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        (sys.executable, "-m", "runbook", *arguments),
        cwd=shell.work,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "RUNBOOK_INVENTORY": str(shell.inventory), "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=in_front,
    )
    os.close(follower)
    screen = b""
    answered = 0
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([leader], [], [], 0.2)
        if ready:
            try:
                data = os.read(leader, 65536)
            except OSError:
                break
            if not data:
                break
            screen += data
        if screen.count(b"yes or no:") > answered:
            answered += 1
            os.write(leader, answer.encode() + (b"" if answer == "\x03" else b"\n"))
        if process.poll() is not None and not ready:
            break
    os.close(leader)
    return screen.decode("utf-8", "replace"), process.wait(timeout=30)


def test_a_job_that_does_not_exist(shell: Shell) -> None:
    done = shell("oom", "--job", "4711", "--yes")
    assert done.returncode == 3
    assert "4711" in done.stderr
    assert "next:" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("oom",),
        ("oom", "--job", "1", "--log", "x"),
        ("oom", "--job", "1", "--plan", "--yes"),
        ("oom", "--log", "missing.out"),
        ("oom", "--job", "1", "--inventory", "nowhere"),
        ("show", "../../etc/passwd"),
        ("frobnicate",),
        ("submit", "missing.sh"),
    ],
)
def test_bad_command_lines_exit_2_with_a_sentence(shell: Shell, arguments: tuple[str, ...]) -> None:
    done = shell(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip()


def test_unknown_incidents_exit_3(shell: Shell) -> None:
    for command in ("show", "report", "approve", "resume", "promote", "rollback"):
        assert shell(command, "oom-here-99").returncode == 3, command


def test_an_inventory_with_errors_names_file_and_line(shell: Shell) -> None:
    shell.inventory.write_text(shell.inventory.read_text() + "polcy: {}\n")
    done = shell("incidents")
    assert done.returncode == 2
    assert "here.yaml:9" in done.stderr


def test_a_question_at_the_terminal_ends_when_it_is_answered_elsewhere(shell: Shell) -> None:
    (shell.state / "spool").mkdir(parents=True)
    job = shell.failed_job()
    environment = {**os.environ, "RUNBOOK_INVENTORY": str(shell.inventory), "TERM": "xterm"}
    leader, follower = pty.openpty()
    with subprocess.Popen(
        (sys.executable, "-m", "runbook", "serve", "--port", "0"), env=environment, stderr=subprocess.PIPE
    ) as daemon:
        assert daemon.stderr is not None
        try:
            for line in daemon.stderr:
                if b"reports and metrics" in line:
                    break
            process = subprocess.Popen(
                (sys.executable, "-m", "runbook", "oom", "--job", job),
                cwd=shell.work, env=environment, stdin=follower, stdout=follower, stderr=follower,
            )
            os.close(follower)
            screen, said, deadline = b"", False, time.monotonic() + 60
            while time.monotonic() < deadline and process.poll() is None:
                if select.select([leader], [], [], 0.2)[0]:
                    with contextlib.suppress(OSError):
                        screen += os.read(leader, 65536)
                if not said and b"yes or no:" in screen:
                    said = shell("approve", "--no", f"oom-here-{job}").returncode in (0, 4)
            assert b"answered elsewhere" in screen, screen
            assert process.wait(1) == 4
        finally:
            daemon.terminate()
            daemon.stderr.close()
    os.close(leader)


def test_a_slurm_conf_that_is_not_there_is_told_at_once(shell: Shell) -> None:
    text = shell.inventory.read_text()
    missing = shell.folder / "slurm.conf"
    shell.inventory.write_text(text.replace("{kind: local}", f"{{kind: slurm, slurm_conf: {missing}}}", 1))
    done = shell("oom", "--job", "1", "--plan")
    assert done.returncode == 6
    assert str(missing) in done.stderr and "scheduler.slurm_conf" in done.stderr


def test_a_state_folder_that_cannot_be_made(shell: Shell) -> None:
    shell.state.write_text("a file is in the way")
    done = shell("oom", "--job", "1", "--yes")
    assert done.returncode == 6
    assert str(shell.state) in done.stderr


def test_a_log_that_is_gone_escalates_and_keeps_the_job(shell: Shell) -> None:
    job = shell.failed_job()
    (shell.work / f"tiny-{job}.out").unlink()
    done = shell("oom", "--job", job, "--yes")
    assert done.returncode == 4
    assert "could be read" in done.stderr


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe" * 5000, b"all is well\n"])
def test_logs_without_a_memory_error_are_no_business_of_ours(shell: Shell, content: bytes) -> None:
    job = shell.failed_job()
    (shell.work / f"tiny-{job}.out").write_bytes(content)
    done = shell("oom", "--job", job, "--yes")
    assert done.returncode == 5, done.stderr


def test_offline_diagnosis_and_patch_from_files_alone(shell: Shell, tmp_path: Path) -> None:
    job = shell.failed_job()
    out = tmp_path / "out"
    script = shell.work / "train.sbatch"
    before = script.read_bytes()
    done = shell(
        "oom",
        "--log",
        str(shell.work / f"tiny-{job}.out"),
        "--template",
        str(script),
        "--output",
        str(out),
        "--json",
        XDG_STATE_HOME=str(tmp_path / "xdg"),
    )
    assert done.returncode == 0, done.stderr
    assert "--micro-batch-size 4" in (out / "train.runbook.sbatch").read_text()
    assert script.read_bytes() == before
    assert json.loads(done.stdout)["contract"]["diagnosis"]["kind"] == "true_oom"
    assert list(out.glob("*.html"))


def test_offline_one_command_at_a_time_looks_at_the_same_files(shell: Shell, tmp_path: Path) -> None:
    job = shell.failed_job()
    words = ("oom", "--log", str(shell.work / f"tiny-{job}.out"), "--template", str(shell.work / "train.sbatch"))
    xdg = str(tmp_path / "xdg")
    with ThreadPoolExecutor(3) as threads:
        begun = [
            threads.submit(shell, *words, "--output", str(tmp_path / f"o{number}"), XDG_STATE_HOME=xdg)
            for number in range(3)
        ]
        for one in begun:
            assert one.result().returncode == 0, one.result().stderr
    state = tmp_path / "xdg" / "runbook" / "local"
    (stored,) = (state / "incidents").glob("*/incident.json")
    assert json.loads(stored.read_text())["run"] == 3, "each goes on from the one before"
    before = stored.read_bytes()
    (lock,) = (state / "locks").iterdir()
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused = shell(*words, "--output", str(tmp_path / "o4"), XDG_STATE_HOME=xdg)
    assert refused.returncode == 6
    assert "another `runbook oom --log` is at the same files" in refused.stderr
    assert stored.read_bytes() == before and not (tmp_path / "o4").exists()


def test_offline_elsewhere_than_the_job_ran_still_writes_the_patch(shell: Shell, tmp_path: Path) -> None:
    """The log says that checkpoints were saved, and their folder is not on this machine."""
    job = shell.failed_job()
    script = tmp_path / "train.sbatch"
    text = (shell.work / "train.sbatch").read_text().replace(f"{shell.work}/ckpt", "$SLURM_SUBMIT_DIR/ckpt")
    script.write_text(text)
    done = shell(
        "oom", "--log", str(shell.work / f"tiny-{job}.out"), "--template", str(script), "--output", str(tmp_path / "o"),
        XDG_STATE_HOME=str(tmp_path / "xdg"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--micro-batch-size 4" in (tmp_path / "o" / "train.runbook.sbatch").read_text()
    assert "checkpoint" in done.stderr, "what was not looked at has to be said"


def test_offline_with_a_template_that_is_no_script(shell: Shell, tmp_path: Path) -> None:
    job = shell.failed_job()
    config = tmp_path / "config.py"
    config.write_text("#!/usr/bin/env python3\nmicro_batch_size = 8\n")
    done = shell(
        "oom",
        "--log",
        str(shell.work / f"tiny-{job}.out"),
        "--template",
        str(config),
        "--output",
        str(tmp_path / "o"),
        XDG_STATE_HOME=str(tmp_path / "xdg"),
    )
    assert done.returncode == 2, done.stderr
    assert "python3" in done.stderr
    assert not (tmp_path / "o").exists()


def test_doctor_says_what_it_found(shell: Shell) -> None:
    done = shell("doctor")
    assert done.returncode == 0, done.stdout
    assert "local scheduler" in done.stdout
    assert "playbooks" in done.stdout


def test_playbooks_check_reports_a_broken_document(shell: Shell, tmp_path: Path) -> None:
    import shutil

    from runbook.locations import data_folder

    assert shell("playbooks", "check").returncode == 0
    copy = tmp_path / "oom"
    shutil.copytree(data_folder("playbooks") / "oom", copy)
    flow = copy / "flow.yaml"
    flow.write_text(flow.read_text().replace("clean: classify", "clean: nowhere"))
    done = shell("playbooks", "check", "--folder", str(copy))
    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_completion_scripts(shell: Shell) -> None:
    for name in ("bash", "zsh", "fish"):
        assert "_RUNBOOK_COMPLETE" in shell("completion", name).stdout


def test_two_commands_for_one_job_are_one_incident(shell: Shell) -> None:
    job = shell.failed_job()
    command = (sys.executable, "-m", "runbook", "oom", "--job", job, "--yes")
    environment = {**os.environ, "RUNBOOK_INVENTORY": str(shell.inventory)}
    both = [
        subprocess.Popen(
            command, cwd=shell.work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    ends = [process.communicate(timeout=80) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    incident = json.loads((shell.state / "incidents" / f"oom-here-{job}" / "incident.json").read_text())
    assert len(incident["attempts"]) == 1


def test_a_log_that_earlier_runs_wrote_to_is_read_from_the_relaunch_on(shell: Shell) -> None:
    """With one log for all runs the words of the dead job stand before those of the one that replaces it."""
    script = shell.failed_job()
    assert script == "1"
    text = (shell.work / "train.sbatch").read_text().replace("%x-%j.out", "train.log")
    (shell.work / "append.sbatch").write_text(
        text.replace("#SBATCH --job", "#SBATCH --open-mode=append\n#SBATCH --job")
    )
    job = shell("submit", "--wait", "append.sbatch").stdout.strip()
    done = shell("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = json.loads((shell.state / "incidents" / f"oom-here-{job}" / "incident.json").read_text())
    assert incident["state"] == "recovered"
    assert len(incident["attempts"]) == 1, "the old failure must not be taken for a new one"


def test_a_hidden_script_is_relaunched(shell: Shell) -> None:
    shell.failed_job()
    (shell.work / ".hid.sbatch").write_text((shell.work / "train.sbatch").read_text())
    job = shell("submit", "--wait", ".hid.sbatch").stdout.strip()
    assert shell("oom", "--job", job, "--yes").returncode == 0


def test_looking_at_a_recovered_incident_again_keeps_it_recovered(shell: Shell) -> None:
    job = shell.failed_job()
    assert shell("oom", "--job", job, "--yes").returncode == 0
    relaunched = str(int(job) + 1)
    deadline = time.monotonic() + 20
    while "COMPLETED" not in shell("jobs").stdout and time.monotonic() < deadline:
        time.sleep(0.2)
    done = shell("oom", "--job", relaunched)
    assert "recovered" in done.stderr
    incident = json.loads((shell.state / "incidents" / f"oom-here-{job}" / "incident.json").read_text())
    assert incident["state"] == "recovered"


def test_a_template_that_is_not_utf8_is_kept_not_mangled(shell: Shell, tmp_path: Path) -> None:
    job = shell.failed_job()
    script = tmp_path / "latin.sbatch"
    script.write_bytes((shell.work / "train.sbatch").read_bytes() + b"# caf\xe9\n")
    done = shell(
        "oom", "--log", str(shell.work / f"tiny-{job}.out"), "--template", str(script), "--output", str(tmp_path / "o"),
        XDG_STATE_HOME=str(tmp_path / "xdg"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o" / "latin.runbook.sbatch").read_bytes().endswith(b"# caf\xe9\n")


def test_incidents_of_files_or_another_cluster_are_not_resumed_here(shell: Shell, tmp_path: Path) -> None:
    job = shell.failed_job()
    files = {"XDG_STATE_HOME": str(tmp_path / "xdg"), "RUNBOOK_INVENTORY": "local"}
    done = shell(
        "oom", "--log", str(shell.work / f"tiny-{job}.out"), "--template", str(shell.work / "train.sbatch"),
        "--output", str(tmp_path / "o"), **files,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (name,) = [path.name for path in (tmp_path / "xdg" / "runbook" / "local" / "incidents").iterdir()]
    refused = shell("resume", name, "--yes", **files)
    assert refused.returncode == 3
    assert "runbook oom --log" in refused.stderr


def test_ctrl_c_at_the_question_ends_at_once_and_resume_asks_again(shell: Shell) -> None:
    job = shell.failed_job()
    started = time.monotonic()
    screen, code = at_terminal(shell, ("oom", "--job", job), answer="\x03")
    assert code == 130, screen
    assert time.monotonic() - started < 20
    screen, code = at_terminal(shell, ("resume", f"oom-here-{job}"), answer="yes")
    assert "submit attempt 1" in screen
    assert code == 0, screen


def test_a_plan_never_drives_an_incident_that_may_act(shell: Shell) -> None:
    """The process of `--yes` was killed; looking with --plan must not carry on with its leave."""
    from tests.crash import driver

    job = shell.failed_job("--hang")
    assert driver.__file__ is not None
    killed = subprocess.run(
        (
            sys.executable,
            driver.__file__,
            str(shell.inventory),
            "before scheduler.cancel",
            str(shell.folder / "p"),
            job,
        ),
        cwd=shell.work,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert killed.returncode == -9, killed.stderr
    done = shell("oom", "--job", job, "--plan")
    assert done.returncode == 3
    assert "RUNNING" in shell("jobs").stdout
    assert shell("resume", f"oom-here-{job}").returncode == 0


def test_two_commands_for_two_jobs_wait_for_each_other_and_both_end_well(shell: Shell) -> None:
    first = shell.failed_job()
    second = shell("submit", "--wait", "train.sbatch").stdout.strip()
    environment = {**os.environ, "RUNBOOK_INVENTORY": str(shell.inventory)}
    both = [
        subprocess.Popen(
            (sys.executable, "-m", "runbook", "oom", "--job", job, "--plan"),
            cwd=shell.work,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for job in (first, second)
    ]
    ends = [process.communicate(timeout=80) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    for job in (first, second):
        assert (shell.state / "incidents" / f"oom-here-{job}" / "report.html").is_file()
