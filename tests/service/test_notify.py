"""Telling people: delivered through apprise's own transport to real local servers, never raising, never flooding."""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runbook.adapters.delivery import Target
from runbook.adapters.notify import TargetsNotify
from runbook.cli.wiring import targets_of
from runbook.config import load_inventory
from runbook.errors import RunbookError
from runbook.model.incident import About, Message, Severity
from tests.service.notify_servers import Clock, HttpServer, http_server, inventory_with, smtp_server


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server() as running:
        yield running


def _target(*addresses: str, name: str = "all", **more: Any) -> Target:
    return Target(name, lambda: addresses, **more)


def _message(title: str, severity: Severity = Severity.WARNING, about: About | None = None) -> Message:
    return Message("event", severity, title, "body", "", about or About("oom-alpha-1", "ana", "gpu,long", "physics"))


def test_a_message_arrives_cleaned_with_its_link(server: HttpServer) -> None:
    notify = TargetsNotify([_target(server.url())], Clock())
    title, body = "oom-alpha-1: a person\r\nBcc: all", "It \x1b[31mfailed\x1b[0m."
    notify.tell(Message("event", Severity.WARNING, title, body, "http://x/1"))
    (message,) = server.received
    assert message["title"] == "[runbook] oom-alpha-1: a person Bcc: all"
    assert message["message"] == "It failed.\n\nhttp://x/1"
    assert message["type"] == "warning"


def test_a_form_is_filled_in_as_well(server: HttpServer) -> None:
    TargetsNotify([_target(server.url(scheme="form"))], Clock()).tell(_message("drained gpu-22"))
    assert "drained" in server.received[0]["form"]


def test_a_mail_goes_to_the_owner_of_the_job() -> None:
    with smtp_server() as (mailbox, port):
        address = f"mailto://127.0.0.1:{port}?from=runbook@example.org&to={{owner}}@example.org&mode=insecure"
        notify = TargetsNotify([_target(address)], Clock())
        notify.tell(_message("runs again", Severity.INFO))
        notify.tell(_message("odd owner", about=About("oom-alpha-2", "ana@evil.example,bo")))
        notify.tell(_message("nobody's job", about=About()))
    (mail,) = mailbox.mails
    assert (mail["X-To"], mail["Subject"]) == ("ana@example.org", "[runbook] runs again")
    assert "body" in mail.as_string()


def test_each_target_hears_what_it_wants(server: HttpServer) -> None:
    notify = TargetsNotify(
        [
            _target(server.url("pager"), name="pager", severities=(Severity.PAGE,)),
            _target(server.url("long"), name="long", partitions=("long",)),
            _target(server.url("cpu"), name="cpu", partitions=("cpu",)),
            _target(server.url("physics"), name="physics", accounts=("physics",), users=("ana", "bo")),
            _target(server.url("bo"), name="bo", users=("bo",)),
        ],
        Clock(),
    )
    notify.tell(_message("warned"))
    assert sorted(one["path"] for one in server.received) == ["/long", "/physics"]
    server.received.clear()
    notify.tell(_message("paged", Severity.PAGE))
    assert sorted(one["path"] for one in server.received) == ["/long", "/pager", "/physics"]
    server.received.clear()
    notify.tell(_message("the daemon's own trouble", about=About()))
    assert sorted(one["path"] for one in server.received) == ["/bo", "/cpu", "/long", "/physics"]


def test_the_same_message_is_not_repeated_and_a_flood_is_held_back(server: HttpServer) -> None:
    clock = Clock()
    notify = TargetsNotify([_target(server.url(), per_hour=5)], clock)
    for _ in range(3):
        notify.tell(_message("the same", about=About()))
    assert len(server.received) == 1
    for number in range(20):
        notify.tell(_message(f"number {number}", about=About()))
    assert len(server.received) == 5
    clock.time_s += 3_601
    notify.tell(_message("later", about=About()))
    assert len(server.received) == 6
    assert "(2 more messages held back before this one.)" in server.received[1]["message"]
    assert "(16 more messages held back before this one.)" in server.received[-1]["message"]


def test_an_owner_with_many_jobs_keeps_no_other_owner_s_messages_back(server: HttpServer) -> None:
    notify = TargetsNotify([_target(server.url("{owner}"), per_hour=2)], Clock())
    for number in range(4):
        notify.tell(_message(f"job {number}", about=About("oom-alpha-1", "ana")))
    notify.tell(_message("job 9", about=About("oom-alpha-9", "bo")))
    assert [one["path"] for one in server.received] == ["/ana", "/ana", "/bo"]
    assert "held back" not in server.received[-1]["message"]


def test_one_user_s_failures_leave_room_for_the_pages_of_others(server: HttpServer) -> None:
    notify = TargetsNotify([_target(server.url(), per_hour=30)], Clock())
    for owner in ("ana", "bo", "cy"):
        for number in range(40):
            notify.tell(_message(f"{owner} {number}", Severity.PAGE, about=About("oom-alpha-1", owner)))
    counts = [sum(title.startswith(owner) for title in server.titles) for owner in ("ana", "bo", "cy")]
    assert counts == [15, 8, 4]
    notify.tell(_message("the daemon's own trouble", Severity.PAGE, about=About()))
    assert "held back before this one" in server.received[-1]["message"]


def test_a_flood_of_information_leaves_room_for_pages(server: HttpServer) -> None:
    notify = TargetsNotify([_target(server.url(), per_hour=3)], Clock())
    for number in range(10):
        notify.tell(_message(f"info {number}", Severity.INFO, about=About()))
    for number in range(10):
        notify.tell(_message(f"page {number}", Severity.PAGE, about=About()))
    assert server.titles == ["info 0", "info 1", "info 2", "page 0", "page 1", "page 2"]


def test_quiet_hours_are_for_all_but_pages(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    clock = Clock()
    clock.time_s = 86_400 * 20_000 + 23 * 3600.0
    notify = TargetsNotify([_target(server.url(), quiet_hours="22:00-07:00")], clock)
    notify.tell(_message("at night"))
    notify.tell(_message("urgent at night", Severity.PAGE))
    clock.time_s += 7 * 3600
    notify.tell(_message("before seven"))
    clock.time_s += 3601
    notify.tell(_message("in the morning"))
    assert server.titles == ["urgent at night", "in the morning"]
    assert "1 more message held back" in server.received[-1]["message"]


def test_a_failure_is_logged_without_the_address_and_raises_nothing(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.status = 500
    addresses = (
        server.url("secrettoken"), "nonsense://user:hunter2@x", "json://user:hunter2@127.0.0.1:1/",
        "slack://TokenAhunter2/broken",
    )
    notify = TargetsNotify([_target(*addresses)], Clock())
    # As the daemon logs; pytest's own handler also hears loggers that pass nothing on.
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger().addHandler(handler)
        notify.tell(_message("title"))
        logging.getLogger().removeHandler(handler)
    text = written.getvalue()
    assert text.count("not delivered to all") == 4
    assert "by JSON" in text and "error=500" in text and "not understood" in text
    assert not [secret for secret in ("hunter2", "127.0.0.1", "secrettoken") if secret in text]
    assert notify.figures() == (("all", "delivered", 0), ("all", "failed", 4), ("all", "held_back", 0))


def test_a_server_that_hangs_is_left_alone_after_a_while_and_keeps_no_other_waiting(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    with http_server() as slow:
        slow.delay_s = 3.0
        notify = TargetsNotify([_target(slow.url(), server.url())], Clock(), within_s=0.5)
        begun_s = time.monotonic()
        notify.tell(_message("title"))
        assert time.monotonic() - begun_s < 2.5
    assert server.titles == ["title"]
    assert "no answer within" in caplog.text


def test_what_was_not_delivered_is_sent_again_for_an_hour(server: HttpServer) -> None:
    clock = Clock()
    notify = TargetsNotify([_target(server.url())], clock)
    server.status = 503
    notify.tell(_message("urgent", Severity.PAGE))
    notify.tell(_message("good news", Severity.INFO))
    clock.time_s += 30
    notify.retry()
    server.status = 200
    clock.time_s += 59
    notify.retry()
    assert server.titles == [], "the pause grows"
    clock.time_s += 1
    notify.retry()
    notify.retry()
    assert server.titles == ["urgent"]
    assert notify.figures() == (("all", "delivered", 1), ("all", "failed", 2), ("all", "held_back", 0))
    server.status = 503
    notify.tell(_message("too late", Severity.PAGE))
    server.status = 200
    clock.time_s += 3601
    notify.retry()
    assert server.titles == ["urgent"]


def test_an_inventory_s_addresses_may_stand_in_a_file_of_their_own(
    tmp_path: Path, server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "oncall.urls"
    file.write_text(f"# the pager\n\n{server.url('from-file')}\n", encoding="utf-8")
    os.chmod(file, 0o600)
    path = inventory_with(
        tmp_path, f"  urls: ['{server.url('old')}']\n  targets:\n"
        f"    - {{name: oncall, urls_file: {file}, severities: [page], per_hour: 9}}\n",
    )
    notify = TargetsNotify(targets_of(load_inventory(str(path)).notify), Clock())
    notify.tell(_message("one", Severity.PAGE))
    assert sorted(one["path"] for one in server.received) == ["/from-file", "/old"]
    os.chmod(file, 0o644)
    notify.tell(_message("two", Severity.PAGE))
    assert len(server.received) == 3
    assert "not delivered to oncall" in caplog.text and "read or changed by others" in caplog.text


@pytest.mark.parametrize(
    ("notify", "line", "said"),
    [
        ("  urls: ['mailto:ana:hunter2@x']\n", 9, "expected an address as apprise knows it"),
        ("  urls: {a: 'mailto://u:hunter2@x'}\n", 9, "should be a valid tuple"),
        ("  targets: [{name: a}]\n", 9, "urls or urls_file is needed"),
        (
            "  targets:\n    - {name: a, urls: ['json://hunter2']}\n    - {name: a, urls: ['json://x']}\n",
            9, "two targets",
        ),
        ("  targets: [{name: a, urls: ['json://hunter2'], severities: [loud]}]\n", 9, "'info', 'warning' or 'page'"),
        ("  targets: [{name: a, urls: ['json://hunter2'], quiet_hours: '25:00-07:00'}]\n", 9, "quiet_hours"),
        ("  targets: [{name: a, urls: ['json://hunter2'], per_hours: 3}]\n", 9, "unknown key"),
    ],
)
def test_a_fault_is_told_with_its_line_and_without_the_address(
    tmp_path: Path, notify: str, line: int, said: str
) -> None:
    with pytest.raises(RunbookError) as caught:
        load_inventory(str(inventory_with(tmp_path, notify)))
    assert f"site.yaml:{line}" in str(caught.value)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_inventory_shows_no_address(tmp_path: Path) -> None:
    loaded = load_inventory(str(inventory_with(tmp_path, "  urls: ['json://u:hunter2@x']\n")))
    assert "hunter2" not in repr(loaded) + loaded.model_dump_json()
    assert "hunter2" not in repr(targets_of(loaded.notify))
