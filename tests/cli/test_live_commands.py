"""`runbook follow` and `runbook incidents --watch`: what is seen at a terminal and through a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from runbook.adapters.store import IncidentStore
from runbook.model.incident import BoxVisit, Incident, IncidentState, Policy
from runbook.model.units import IncidentId, JobId
from tests.cli.conftest import Shell
from tests.cli.test_commands import in_front
from tests.json_answers import check_answer

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
HOSTILE = "\x1b]0;owned\x07\x1b[2Jgone\x9b31m\u202eback"


def _incident(number: str, **changes: object) -> Incident:
    made = Incident(
        id=IncidentId(f"oom-here-{number}"), cluster="here", root_job=JobId(number), policy=Policy.APPROVE,
        trigger="person", opened_s=time.time() - 600 + int(number), box="relaunch", updated_s=time.time(),
        visits=(BoxVisit("patch", 0, 100.0, 101.5, "patched", "one edit"), BoxVisit("relaunch", 0, time.time() - 300)),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def _store(shell: Shell) -> IncidentStore:
    return IncidentStore(shell.state)


@dataclass
class Terminal:
    """A command at a pseudo-terminal of its own."""

    process: subprocess.Popen[bytes]
    leader: int
    seen: str = ""

    def until(self, words: str) -> str:
        """What was written since the last call, up to the words. Fails where they do not come."""
        deadline, start = time.monotonic() + 60, len(self.seen)
        while words not in _ESCAPE.sub("", self.seen[start:]):
            assert time.monotonic() < deadline, self.seen[start:]
            if not self._read():
                break
        assert words in _ESCAPE.sub("", self.seen[start:]), self.seen[start:]
        return self.seen[start:]

    def _read(self) -> bool:
        if select.select([self.leader], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):
                if data := os.read(self.leader, 65536):
                    self.seen += data.decode("utf-8", "replace")
                    return True
            return False
        return True

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def end(self, key: str = "") -> int:
        """The exit code, after a key."""
        os.write(self.leader, key.encode())
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._read():
            if self.process.poll() is not None and not select.select([self.leader], [], [], 0.2)[0]:
                break
        return self.process.wait(30)


@contextlib.contextmanager
def terminal(
    shell: Shell, *arguments: str, columns: int = 100, lines: int = 30, **environment: str
) -> Iterator[Terminal]:
    leader, follower = pty.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        (sys.executable, "-m", "runbook", *arguments), cwd=shell.work, stdin=follower, stdout=follower, stderr=follower,
        env={**inherited, "RUNBOOK_INVENTORY": str(shell.inventory), "TERM": "xterm", **environment},
        start_new_session=True, preexec_fn=in_front,
    )
    os.close(follower)
    try:
        yield Terminal(process, leader)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(leader)


@contextlib.contextmanager
def piped(shell: Shell, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        (sys.executable, "-m", "runbook", *arguments), cwd=shell.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "RUNBOOK_INVENTORY": str(shell.inventory)}, text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def test_an_incident_that_is_over_is_told_with_the_last_lines_and_the_code_of_oom(shell: Shell) -> None:
    job = shell.failed_job()
    ended = shell("oom", "--job", job, "--yes")
    followed = shell("follow", "--job", job)
    assert followed.returncode == ended.returncode == 0, followed.stderr
    last = ended.stderr.splitlines()
    assert followed.stdout.splitlines()[-3:] == last[-3:] and last[-1].startswith("report: ")
    assert re.search(r"✔ verify +passed", followed.stdout) and "\x1b" not in followed.stdout
    printed = shell("follow", f"oom-here-{job}", "--json").stdout.splitlines()
    assert [json.loads(line)["state"] for line in printed] == ["recovered"]
    check_answer("incident-schema.json", json.loads(printed[0]))
    none = shell("follow")
    assert none.returncode == 5 and "no incident is at work" in none.stderr


def test_who_names_no_incident_follows_the_only_one_at_work_and_chooses_among_several(shell: Shell) -> None:
    store = _store(shell)
    store.save(_incident("1", state=IncidentState.CLOSED, closed_s=1.0))
    store.save(_incident("2"))
    with piped(shell, "follow") as process:
        assert process.stdout is not None
        assert "oom-here-2" in process.stdout.readline()
        assert "patched" in process.stdout.readline()
    store.save(_incident("3"))
    several = shell("follow")
    assert several.returncode == 2 and "oom-here-2" in several.stderr and "oom-here-3" in several.stderr
    assert shell("follow", "oom-here-2", "--job", "2").returncode == 2
    assert shell("follow", "--job", "77").returncode == 3
    assert shell("follow", "oom-here-77").returncode == 3


def test_the_question_with_the_command_that_answers_then_the_end(shell: Shell) -> None:
    store = _store(shell)
    asking = _incident("7", state=IncidentState.AWAITING_APPROVAL, awaiting="submit attempt 1")
    store.save(replace(asking, awaiting=""))
    with terminal(shell, "follow", "oom-here-7") as at:
        at.until("5 min · Relaunch")
        store.save(asking)
        assert "runbook approve oom-here-7" in at.until("waits for an answer")
        left = (asking.visits[0], replace(asking.visits[1], ended_s=time.time(), outcome="declined", summary="no"))
        store.save(replace(
            asking, awaiting="", state=IncidentState.ESCALATED, closed_s=time.time(), visits=left,
            conclusion="Declined (ana).", to_do=("Look at it.",),
        ))
        at.until("→ Look at it.")
        assert at.end() == 4
    assert re.search(r"! relaunch +declined", _ESCAPE.sub("", at.seen))
    assert "\x1b[?25h" in at.seen.rpartition("\x1b[?25l")[2]  # the cursor is shown again


def test_what_a_box_waits_for_is_told_through_a_pipe_as_it_changes(shell: Shell) -> None:
    store = _store(shell)
    waiting = _incident("7", box="verify")
    for step in (3, 4):
        inside = BoxVisit("verify", 1, time.time() - 60, summary=f"job 9 RUNNING: step {step} of 5 to pass")
        told = replace(waiting, visits=(waiting.visits[0], inside))
        if step == 3:
            store.save(told)
            process = subprocess.Popen(
                (sys.executable, "-m", "runbook", "follow"), stdout=subprocess.PIPE, text=True,
                env={**os.environ, "RUNBOOK_INVENTORY": str(shell.inventory)},
            )
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            assert "verify: job 9 RUNNING: step 3 of 5 to pass" in lines[2]
            time.sleep(2.1)  # news are told no more often than a person reads them
    store.save(told)
    assert process.stdout is not None
    assert "step 4 of 5" in process.stdout.readline()
    shutil.rmtree(shell.state / "incidents" / "oom-here-7")
    assert process.wait(30) == 3
    process.stdout.close()


def test_an_incident_that_is_removed_or_damaged_ends_with_what_where_and_what_next(shell: Shell) -> None:
    store = _store(shell)
    store.save(_incident("7"))
    document = shell.state / "incidents" / "oom-here-7" / "incident.json"
    for spoil, code, words in (
        (lambda: document.write_text("{"), 2, str(document)),
        (lambda: shutil.rmtree(document.parent), 3, "was removed while it was followed"),
    ):
        store.save(_incident("7"))
        with piped(shell, "follow", "oom-here-7") as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.readline()
            spoil()
            assert process.wait(30) == code
            said = process.stderr.read()
            assert words in said and "where:" in said and "next:" in said, said


def test_ctrl_c_leaves_the_incident_alone_and_says_so(shell: Shell) -> None:
    store = _store(shell)
    store.save(_incident("7"))
    before = store.read_file(IncidentId("oom-here-7"), "incident.json")
    with terminal(shell, "follow") as at:
        at.until("Relaunch")
        assert at.end("\x03") == 130
    assert "oom-here-7 is left alone and goes on" in " ".join(_ESCAPE.sub("", at.seen).split())
    assert store.read_file(IncidentId("oom-here-7"), "incident.json") == before
    with piped(shell, "incidents", "--watch") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130


@pytest.mark.parametrize("columns", [25, 100])
def test_hostile_text_of_an_incident_does_not_reach_the_terminal(shell: Shell, columns: int) -> None:
    visits = (
        BoxVisit(f"patch{HOSTILE}", 0, 1.0, 2.0, f"patched{HOSTILE}", HOSTILE),
        BoxVisit(f"verify{HOSTILE}", 0, 3.0, summary=f"step 3{HOSTILE}"),
    )
    _store(shell).save(_incident("7", box=f"verify{HOSTILE}", visits=visits, awaiting=""))
    for arguments, words in ((("follow",), "patchgone"), (("incidents", "--watch"), "oom-here-7")):
        with terminal(shell, *arguments, columns=columns) as at:
            at.until(words)
            assert at.end("\x03") == 130
        for bad in ("\x1b]", "owned", "\x1b[2J", "\x9b", "\u202e"):
            assert bad not in at.seen, (arguments, at.seen)


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_plain_lines_where_a_terminal_cannot_redraw_or_nobody_wants_colours(
    shell: Shell, environment: dict[str, str]
) -> None:
    _store(shell).save(_incident("7"))
    for arguments in (("follow",), ("incidents", "--watch")):
        with terminal(shell, *arguments, **environment) as at:  # type: ignore[arg-type]
            at.until("what it died of has not been read yet")
            at.end("\x03")
        assert "\x1b" not in at.seen


def test_the_list_fits_the_terminal_and_is_drawn_again_as_incidents_and_the_size_change(shell: Shell) -> None:
    store = _store(shell)
    for number in range(1, 41):
        store.save(_incident(str(number), state=IncidentState.CLOSED, closed_s=1.0) if number > 3 else
                   _incident(str(number)))
    with terminal(shell, "incidents", "--watch", columns=120, lines=12) as at:
        frame = _ESCAPE.sub("", at.until("and 31 more"))
        assert "40 incidents, 3 open" in frame
        shown = re.findall(r"oom-here-(\d+)", frame)
        assert shown == ["3", "2", "1", "40", "39", "38", "37", "36", "35"]  # open ones first, newest on top
        assert len(frame.strip().splitlines()) <= 12
        at.resize(40, 8)
        frame = _ESCAPE.sub("", at.until("and 38 more"))
        assert max(len(line.rstrip()) for line in frame.splitlines()) <= 40
        assert len(frame.strip().splitlines()) <= 8
        at.resize(12, 2)
        at.until("40 incident")
        at.resize(120, 12)
        at.until("and 31 more")
        store.save(_incident("41"))
        assert re.findall(r"oom-here-(\d+)", _ESCAPE.sub("", at.until("and 32 more")))[-9:-6] == ["41", "3", "2"]
        assert at.end("\x03") == 130
    assert "\x1b[?1049l" in at.seen.rpartition("\x1b[?1049h")[2]  # what stood there before is there again


def test_through_a_pipe_a_line_for_each_incident_that_changed(shell: Shell) -> None:
    store = _store(shell)
    store.save(_incident("1", state=IncidentState.CLOSED, closed_s=1.0))
    store.save(_incident("2"))
    with piped(shell, "incidents", "--watch") as plain, piped(shell, "incidents", "--watch", "--json") as objects:
        assert plain.stdout is not None and objects.stdout is not None
        assert "oom-here-2  running · relaunch" in plain.stdout.readline()
        first = json.loads(objects.stdout.readline())
        assert first["id"] == "oom-here-2"
        check_answer("schemas/incidents-watch.json", first)
        store.save(_incident("2", updated_s=5.0))  # nothing that is shown has changed
        store.save(_incident("1", state=IncidentState.CLOSED, closed_s=1.0, root_job=JobId("99")))
        assert "oom-here-1  closed" in plain.stdout.readline()
        assert json.loads(objects.stdout.readline())["id"] == "oom-here-1"
    with piped(shell, "incidents", "--watch", "--state", "escalated") as chosen:
        assert chosen.stdout is not None
        time.sleep(1)
        store.save(_incident("2", state=IncidentState.ESCALATED, closed_s=time.time(), to_do=("Look.",)))
        line = chosen.stdout.readline()
        assert "oom-here-2  escalated" in line and "→ Look." in line


@pytest.mark.needs("setpriv")
def test_somebody_who_may_only_read_the_state_folder_can_look(shell: Shell) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    store = _store(shell)
    store.save(_incident("7", state=IncidentState.CLOSED, closed_s=1.0, conclusion="It ran well."))
    subprocess.run(("chmod", "-R", "a+rX", str(shell.state)), check=True)
    subprocess.run(("chown", "-R", "65534:65534", str(shell.state)), check=True)
    no_rights = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    for arguments, code in ((("follow", "oom-here-7"), 5), (("incidents",), 0), (("show", "oom-here-7"), 0)):
        done = subprocess.run(
            (*no_rights, sys.executable, "-m", "runbook", *arguments), cwd=shell.work, capture_output=True, text=True,
            env={**os.environ, "RUNBOOK_INVENTORY": str(shell.inventory)}, check=False,
        )
        assert done.returncode == code, (arguments, done.stderr)
        assert "oom-here-7" in done.stdout
    assert not (shell.state / "incidents.sqlite").exists()
