"""The one runner: output, limits, time, other users."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from runbook.adapters.identity import identity_of
from runbook.adapters.process import Command, run
from runbook.errors import NotFound, Unavailable
from runbook.model.units import UserName

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


def test_output_exit_code_and_input() -> None:
    done = run(Command(("sh", "-c", "cat; echo problem >&2; exit 7"), stdin=b"x" * 300_000), 10)
    assert (done.exit_code, done.stdout, done.stderr) == (7, b"x" * 300_000, b"problem\n")
    assert not done.truncated
    assert 0 < done.duration_s < 10


def test_a_command_that_reads_nothing() -> None:
    assert run(Command(("true",), stdin=b"x" * 1_000_000), 10).exit_code == 0


def test_output_is_cut_at_the_limit_and_the_rest_is_drained() -> None:
    done = run(Command(("head", "-c", "5000000", "/dev/zero"), output_limit_bytes=1000), 20)
    assert (len(done.stdout), done.truncated, done.exit_code) == (1000, True, 0)


def test_the_whole_group_is_killed_at_the_timeout() -> None:
    started = time.monotonic()
    with pytest.raises(Unavailable) as late:
        run(Command(("sh", "-c", "sleep 77.123 & sleep 77.123")), 0.5)
    assert time.monotonic() - started < 5
    assert "0.5 s" in late.value.what and late.value.where and late.value.next_step
    deadline = time.monotonic() + 5
    while subprocess.run(("pgrep", "-f", "sleep 77.123"), capture_output=True, check=False).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_grandchild_that_keeps_the_pipe_is_not_waited_for() -> None:
    started = time.monotonic()
    done = run(Command(("sh", "-c", "echo out; setsid sleep 5 &")), 20)
    assert done.stdout == b"out\n"
    assert time.monotonic() - started < 3


def test_a_program_or_a_folder_that_is_not_there() -> None:
    with pytest.raises(NotFound, match="no-such-program"):
        run(Command(("no-such-program",)), 5)
    with pytest.raises(NotFound, match="working directory"):
        run(Command(("true",), cwd="/no/such/folder"), 5)


def test_a_signal_is_a_negative_exit_code() -> None:
    assert run(Command(("sh", "-c", "kill -9 $$")), 5).exit_code == -9


def test_an_argument_is_never_shell_text() -> None:
    assert run(Command(("echo", "$(id)", "; ls", "a b")), 5).text() == "$(id) ; ls a b\n"


@as_root
def test_another_user_with_their_groups_environment_and_folder() -> None:
    daemon = identity_of(UserName("daemon"))
    script = "id -u; id -G; pwd; umask; cat; env | sort"
    command = Command(
        ("sh", "-c", script), as_user=daemon, cwd="/usr", stdin=b"fed\n", umask=0o027,
        env={"A": "two\nlines", "PATH": "/usr/bin:/bin"},
    )
    done = run(command, 10)
    lines = done.text().splitlines()
    assert lines[:5] == [str(daemon.uid), " ".join(map(str, daemon.groups)), "/usr", "0027", "fed"]
    assert "A=two" in lines and "lines" in lines
    assert done.stderr == b""
    assert not [line for line in lines if line.startswith(("PYTHON", "VIRTUAL_ENV", "HOME="))]


@as_root
def test_another_users_environment_is_a_login_not_ours() -> None:
    os.environ["RUNBOOK_TEST_SECRET"] = "x"
    try:
        done = run(Command(("env",), as_user=identity_of(UserName("daemon"))), 10)
    finally:
        del os.environ["RUNBOOK_TEST_SECRET"]
    assert "RUNBOOK_TEST_SECRET" not in done.text()
    assert "USER=daemon" in done.text().splitlines()


@as_root
def test_secrets_of_the_environment_are_in_no_process_list() -> None:
    daemon = identity_of(UserName("daemon"))
    code = "import os; print(open('/proc/self/cmdline').read())"
    variables = {"TOKEN": "s3cret", "PATH": "/usr/bin"}
    done = run(Command(("/usr/bin/env", "python3", "-c", code), as_user=daemon, env=variables), 10)
    assert "s3cret" not in done.text()


@as_root
def test_what_another_user_cannot_enter_or_run() -> None:
    daemon = identity_of(UserName("daemon"))
    with pytest.raises(NotFound, match="working directory"):
        run(Command(("true",), as_user=daemon, cwd="/root"), 10)
    with pytest.raises(NotFound, match="no-such-program"):
        run(Command(("no-such-program",), as_user=daemon), 10)


@as_root
def test_another_users_command_is_killed_at_the_timeout() -> None:
    with pytest.raises(Unavailable):
        run(Command(("sleep", "78.321"), as_user=identity_of(UserName("daemon"))), 0.6)
    assert not subprocess.run(("pgrep", "-f", "sleep 78.321"), capture_output=True, check=False).stdout


def test_the_same_user_needs_no_stage() -> None:
    import pwd

    me = identity_of(UserName(pwd.getpwuid(os.geteuid()).pw_name))
    done = run(Command((sys.executable, "-c", "import os; print(os.getppid())"), as_user=me), 10)
    assert int(done.text()) == os.getpid()


@as_root
def test_a_command_has_ended_by_its_end_also_where_whoever_began_it_is_gone() -> None:
    code = """
import os, signal, subprocess, sys, threading
from runbook.adapters.identity import identity_of
from runbook.adapters.process import Command, awake_s, run
from runbook.model.units import UserName
threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
argv = ("sh", "-c", "echo $$ > " + sys.argv[1] + "; exec sleep 79.5")
run(Command(argv, as_user=identity_of(UserName("daemon")), until_s=awake_s() + 2.0), 60)
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pid")
        path.touch()
        for each in (Path(folder), path):
            os.chmod(each, 0o777)
        begun = subprocess.run((sys.executable, "-c", code, str(path)), check=False, timeout=60)
        assert begun.returncode == -signal.SIGKILL
        pid = int(path.read_text())
        end = time.monotonic() + 30
        while Path(f"/proc/{pid}/stat").exists():
            assert time.monotonic() < end
            time.sleep(0.05)


@as_root
def test_a_command_whose_end_is_past_is_not_begun(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    command = Command(("touch", str(begun)), as_user=identity_of(UserName("root")), in_memory={"x": b""}, until_s=1.0)
    with pytest.raises(Unavailable):
        run(command, 10)
    assert not begun.exists()
