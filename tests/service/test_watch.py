"""The daemon's watch: troubles that last are told once and when they are over; questions are repeated."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from runbook.adapters.notify import Telling
from runbook.adapters.store import IncidentStore
from runbook.adapters.store.workflow_database import DatabaseProbe
from runbook.cli.serve import LogWatcher, watch_of
from runbook.cli.wiring import application
from runbook.errors import Unavailable
from runbook.model.incident import Incident, Message
from runbook.model.units import IncidentId
from runbook.report.text.notifications import messages
from runbook.service.daemon import ServiceStatus
from runbook.service.serve import Watch
from tests.report.sample_incidents import SAMPLES
from tests.service.notify_servers import Clock, http_server, inventory_with


@dataclass
class _Heard:
    messages: list[Message] = field(default_factory=list)
    retried: int = 0

    def tell(self, message: Message) -> None:
        self.messages.append(message)

    def retry(self) -> None:
        self.retried += 1


def test_a_trouble_that_lasts_is_told_once_and_again_when_it_is_over() -> None:
    clock, heard, wrong = Clock(), _Heard(), dict[str, str]()
    watch = Watch("alpha", heard, clock, lambda: dict(wrong), lambda: (), lambda _incident: None)
    wrong["spool"] = "the spool cannot be read: Permission denied"
    watch.round()
    clock.time_s += 299
    watch.round()
    assert heard.messages == []
    clock.time_s += 1
    watch.round()
    clock.time_s += 3600
    watch.round()
    (message,) = heard.messages
    assert message.severity == "warning"
    assert message.title == "runbook on alpha cannot work: the spool cannot be read: Permission denied"
    assert "For 5 minutes" in message.body and "`runbook doctor`" in message.body
    wrong.clear()
    watch.round()
    watch.round()
    assert [one.severity for one in heard.messages] == ["warning", "info"]
    assert heard.messages[-1].title == "runbook on alpha works again: spool"


def test_a_trouble_that_passes_is_nobody_s_business() -> None:
    clock, heard, wrong = Clock(), _Heard(), {"spool": "gone"}
    watch = Watch("alpha", heard, clock, lambda: dict(wrong), lambda: (), lambda _incident: None)
    watch.round()
    wrong.clear()
    clock.time_s += 400
    watch.round()
    wrong["spool"] = "gone"
    watch.round()
    assert heard.messages == []


def test_questions_are_repeated_though_all_else_fails() -> None:
    clock, heard, reminded = Clock(), _Heard(), list[Incident]()
    asked = replace(SAMPLES["awaiting"](), updated_s=clock.now())

    def broken() -> dict[str, str]:
        raise OSError("no disk")

    watch = Watch("alpha", heard, clock, broken, lambda: (asked,), reminded.append)
    watch.round()
    assert reminded == [asked]
    assert heard.retried == 1


def test_a_database_that_does_not_answer_is_seen_and_keeps_the_watch_waiting_no_longer_than_it_must() -> None:
    back = threading.Event()

    def hang() -> None:
        back.wait(20)

    probe = DatabaseProbe(hang, answer_s=0.05)
    assert probe.problem() == probe.problem() == "the workflow database does not answer"
    back.set()
    while probe.problem():
        pass

    def refuse() -> None:
        raise ConnectionError("postgresql://runbook:hunter2@db")

    assert DatabaseProbe(refuse).problem() == "the workflow database does not answer (ConnectionError)"


def test_the_daemon_s_own_watch_tells_of_its_spool_and_reminds_of_a_question(tmp_path: Path) -> None:
    with http_server() as server:
        app = application(str(inventory_with(tmp_path, f"  urls: ['{server.url()}']\n")))
        clock = Clock()
        app.__dict__["clock"] = clock
        app.store.save(replace(SAMPLES["awaiting"](), updated_s=clock.now() - 23 * 3600))
        engine = app.engine(LogWatcher())
        engine.launch(app.inventory.database_url, executor="test")
        try:
            status = ServiceStatus(clock.now(), last_scan_s=clock.now())
            watch = watch_of(app, engine, status)
            assert watch is not None
            status.spool_problem = "Permission denied"
            for _ in range(3):
                watch.round()
                clock.time_s += 200
                status.last_scan_s = clock.now()
        finally:
            engine.close()
        assert server.titles == [
            "job 884213 (llama-70b-sft): 60 min left for your yes to submit train.sh with --…",
            "runbook on alpha cannot work: the spool cannot be read: Permission denied",
        ]


def test_nobody_is_watched_for_where_nobody_is_told(tmp_path: Path) -> None:
    app = application(str(inventory_with(tmp_path, "  urls: []\n")))
    assert watch_of(app, app.engine(LogWatcher()), ServiceStatus(0.0)) is None


def test_of_two_daemons_one_that_dies_while_it_tells_is_not_followed_by_a_second_message(tmp_path: Path) -> None:
    ended = next(made() for made in SAMPLES.values() if messages(None, made(), ""))
    folder = IncidentStore(tmp_path)

    class Dies:
        def tell(self, message: Message) -> None:
            raise SystemExit(message.title)

    with pytest.raises(SystemExit) as died:
        Telling(Dies(), folder, Clock(), most_once=True).of(None, ended)
    heard = _Heard()
    Telling(heard, folder, Clock(), most_once=True).of(None, ended)
    titles = [message.title for message in messages(None, ended, "")]
    assert [str(died.value), *(message.title for message in heard.messages)] == titles
    heard.messages.clear()

    class NotOurs(IncidentStore):
        def write_file(
            self, incident: IncidentId, relative: str, content: bytes, mode: int = 0o600,
            owner: tuple[int, int] | None = None,
        ) -> Path:
            raise Unavailable("this process drives no longer, so it changes nothing")

    Telling(heard, NotOurs(tmp_path / "other"), Clock(), most_once=True).of(None, ended)
    assert heard.messages == [], "what cannot be written down first is told by whoever drives"
