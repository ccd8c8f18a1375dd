"""Boxes in the cage: whatever one of them does, the service lives on, the others go on, and a person is told."""

from __future__ import annotations

import json
import os
import platform
import pwd
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.identity import stage_interpreter
from runbook.cage.calls import methods
from runbook.cage.leave import RULES
from runbook.cli.wiring import Application
from runbook.errors import BoxStopped, NotAllowed
from runbook.model.incident import BoxVisit, Incident, IncidentState
from runbook.steps.shared.base import StepResult, read_only_ports
from tests.contract.fakes import FakeClock, FakeScheduler, ends
from tests.hostile import steps
from tests.hostile.scene import Service, application, ended, failed_job, opened

SAID = {
    "eats_memory": "needed more than 192 MiB of memory",
    "spins": "",
    "hangs": "computed for more than 8 s",
    "recurses": "went deeper than it may",
    "crashes": "SIGSEGV",
    "writes_a_huge_file": "wrote a file of more than 65 MiB",
    "exits": "exit status 3",
    "sends_garbage": "no JSON",
    "sends_half_a_frame": "computed for more than 8 s",
    "asks_without_waiting": "asked for more than 128 answers at a time",
    "promises_too_much": "an answer of 4095 MiB, where 1 MiB are the limit",
    "sends_deep_json": "no JSON",
    "answers_with_another_incident": "not believed: another root_job",
    "answers_with_another_owner": "not believed: a job that the scheduler did not tell of so",
    "answers_with_no_outcome_of_its_own": "not believed: an outcome",
    "claims_an_act": "not believed: acts that it did not do",
    "cancels": "asked for scheduler.cancel",
    "drains": "asked for scheduler.drain",
    "submits": "asked for scheduler.submit",
    "reads_as_another": "asked for files.open as daemon",
    "writes_a_program_of_root": "asked for folder.write_file with mode 4755",
    "writes_the_report": "asked for folder.write_file to report.html",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cage")


@pytest.fixture(scope="module")
def app(folder: Path) -> Iterator[Application]:
    """One warm process for the boxes of these tests."""
    made = application(folder)
    yield made
    made.cage.close()


def _visiting(incident: Incident) -> Incident:
    return replace(incident, box="look", visits=(BoxVisit("look", 0, time.time()),))


def _run(app: Application, incident: Incident, acts: tuple[str, ...] = ()) -> StepResult:
    return app.cage.run(replace(app.flow.boxes["look"], acts=acts), app.context(_visiting(incident)))


@pytest.mark.timeout(400)
def test_hostile_jobs_end_with_a_person_and_the_others_go_on(tmp_path: Path) -> None:
    """All in one queue with four places: each hostile job is tried twice, an honest one once, and nobody waits for
    ever."""
    app, names = application(tmp_path), list(SAID)
    before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    threads = threading.active_count()
    with Service(app) as engine:
        incidents = {name: opened(app, failed_job(app, tmp_path, name)) for name in [*names, "honest", "raises"]}
        for incident in incidents.values():
            engine.enqueue(incident)
        last = {name: ended(app, engine, incident) for name, incident in incidents.items()}
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("cage-call")]
    for name in names:
        incident = last[name]
        assert incident.state is IncidentState.ESCALATED and incident.finished, (name, incident.conclusion)
        assert SAID[name] in incident.conclusion and "tried 2 times" in incident.conclusion, (name, incident.conclusion)
        assert f"job {incident.root_job}" in incident.conclusion or "not believed" in incident.conclusion
        assert [(visit.box, visit.outcome) for visit in incident.visits] == [
            ("look", "stopped"), ("ask", "told"), ("tell", "written")
        ]
        assert any("yourself" in item for item in incident.to_do)
        assert not (app.store.folder(incident.id) / "reading.json").exists()
    assert last["honest"].visits[0].outcome == "identified"
    assert last["raises"].state is IncidentState.INTERRUPTED, "a bug of ours is told as before"
    assert "ZeroDivisionError: in the box" in last["raises"].conclusion
    assert "in raises" in app.store.read_file(last["raises"].id, "crash.txt").decode()
    # Which comes first depends on how busy the machine is.
    assert any(words in last["spins"].conclusion for words in ("2 s of CPU time", "computed for more than 8 s"))
    page = app.store.read_file(last["eats_memory"].id, "report.html").decode()
    assert "needed more than 192 MiB of memory" in page
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before_bytes
    assert grown_bytes < 300 << 20, "the boxes' memory is not the service's"
    assert threading.active_count() <= threads + 8


@pytest.mark.timeout(200)
def test_one_owners_hostile_jobs_leave_places_to_the_others(tmp_path: Path) -> None:
    """Six jobs that hang until they are ended, and one of another user who came last."""
    clock = FakeClock(time.time())
    scheduler = FakeScheduler(clock)
    app = application(tmp_path)
    app.scheduler_override = scheduler
    jobs = [scheduler.add(name="hangs.sh", owner="games", life=ends("FAILED", 1)) for _ in range(6)]
    honest = scheduler.add(name="honest.sh", owner="root", life=ends("FAILED", 1), command="", script=None)
    clock.sleep(60)
    with Service(app) as engine:
        hostile = [opened(app, job) for job in jobs]
        for incident in hostile:
            engine.enqueue(incident)
        time.sleep(1.0)
        last = opened(app, honest)
        engine.enqueue(last)
        assert ended(app, engine, last).visits[0].outcome in ("identified", "no_logs")
        assert not [one for one in hostile if app.store.load(one.id).finished], "the honest job waited for none of them"


def test_a_box_has_nothing_in_reach(app: Application, folder: Path) -> None:
    notes = _run(app, opened(app, failed_job(app, folder, "looks_around"))).incident.notes
    found = dict(note.partition(": ")[::2] for note in notes)
    for what in ("shadow", "passwd", "write", "list", "tcp", "udp", "run"):
        assert found[what].startswith("refused"), (what, found)
    if os.geteuid() == 0:
        assert found["root"].startswith("refused")
        assert "dumpable 0" in found
        assert any(name.startswith(("uid 60", "uid 61")) for name in found), found
    assert not Path("/tmp/of-the-cage").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.needs("setpriv")
def test_a_service_user_has_the_same_walls(app: Application, folder: Path) -> None:
    """Those that need no root, as far as this machine lets its users have namespaces."""
    python = stage_interpreter()
    version = subprocess.run((python, "--version"), capture_output=True, text=True, check=True).stdout.split()[1]
    if version.split(".")[:2] != platform.python_version().split(".")[:2]:
        pytest.skip(f"the Python that other users can run here is {version}")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        ran = subprocess.run(
            ("setpriv", "--reuid=games", "--regid=games", "--clear-groups", python, "-c", AS_A_SERVICE_USER, name),
            capture_output=True, text=True, check=False, timeout=120, cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.environ["PATH"],
                 "HOME": name, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    assert ran.returncode == 0, ran.stderr
    missing, *notes = json.loads(ran.stdout)
    found = dict(note.partition(": ")[::2] for note in notes)
    for what in ("shadow", *(() if "landlock" in missing else ("passwd", "write", "run"))):
        assert found[what].startswith("refused"), found
    if "a network of its own" not in missing:
        assert found["udp"].startswith("refused") and found["tcp"].startswith("refused"), found


AS_A_SERVICE_USER = """
import json, sys
from pathlib import Path
from tests.hostile.scene import application, failed_job, opened
from tests.hostile.test_cage import _run
app = application(Path(sys.argv[1]))
kept = app.cage.walls()
notes = _run(app, opened(app, failed_job(app, Path(sys.argv[1]), "looks_around"))).incident.notes
print(json.dumps([kept.missing, *notes]))
app.cage.close()
"""


def test_every_call_of_a_port_has_its_rule() -> None:
    """A box that calls what has none is ended. These two no box calls: a person gives nodes back, and small files are
    read where they were opened."""
    without = {f"{port}.{method}" for port, method in methods()} - RULES.keys()
    assert without == {"scheduler.undrain", "files.read_small"}


@pytest.mark.parametrize("name", ["reads_as_another", "cancels", "submits", "drains"])
def test_nothing_is_asked_of_the_outside_that_the_incident_has_no_business_with(
    app: Application, folder: Path, name: str
) -> None:
    """Not even where the box may act, if the act is not the incident's own."""
    job = failed_job(app, folder, name)
    acts = () if name == "reads_as_another" else ("cancel", "submit", "drain")
    with pytest.raises(BoxStopped, match="asked for"):
        _run(app, opened(app, job), acts)


def test_without_a_yes_an_acting_box_may_only_look(app: Application, folder: Path) -> None:
    incident = opened(app, failed_job(app, folder, "honest"))
    known = _run(app, incident).incident
    context = app.context(replace(_visiting(known)))
    box = replace(app.flow.boxes["look"], acts=("cancel",), run=steps.cancels)
    with pytest.raises(NotAllowed, match="without a yes"):
        app.cage.run(box, replace(context, ports=read_only_ports(context.ports)))
    assert app.cage.run(box, context).outcome == "identified"


def test_a_box_that_computes_for_long_gives_way_to_the_others(app: Application, folder: Path) -> None:
    assert _run(app, opened(app, failed_job(app, folder, "gives_way"))).outcome == "identified"


def test_the_warm_process_is_started_again_when_it_is_gone(app: Application, folder: Path) -> None:
    incident = opened(app, failed_job(app, folder, "honest"))
    assert _run(app, incident).outcome == "identified"
    assert app.cage._server is not None
    app.cage._server.kill()
    app.cage._server.wait(10)
    assert _run(app, incident).outcome == "identified"


def test_waiting_for_the_outside_is_not_the_boxs_time(app: Application, folder: Path) -> None:
    """A box that asks a slow scheduler for longer than it may compute is not ended."""
    incident = opened(app, failed_job(app, folder, "waits_for_the_outside"))
    assert _run(app, incident).outcome == "identified"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_files_come_opened_with_the_owners_rights_and_no_others() -> None:
    """Another user's job: his own log is read, by a name that is no UTF-8; root's file that he names is not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        his, roots = folder / "wei\udcdf.log", folder / "roots.log"
        for path, owner in ((his, pwd.getpwnam("games").pw_uid), (roots, 0)):
            path.write_bytes(b"x" * 1000)
            path.chmod(0o600)
            os.chown(path, owner, -1)
        scheduler = FakeScheduler(FakeClock(time.time()))
        app = application(folder)
        app.scheduler_override = scheduler
        try:
            for path, said in ((his, "read 1000 bytes"), (roots, "")):
                job = scheduler.add(
                    name="reads_its_log.sh", owner="games", stdout_path=str(path), life=ends("FAILED", 1)
                )
                scheduler.clock.sleep(60)
                incident = opened(app, job)
                if said:
                    assert _run(app, incident).incident.notes == (said,)
                else:
                    with pytest.raises(NotAllowed, match="games may not do this"):
                        _run(app, incident)
        finally:
            app.cage.close()
