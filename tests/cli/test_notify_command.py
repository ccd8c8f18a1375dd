"""`runbook notify test` and what `runbook doctor` says of the addresses; a real server takes the messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from runbook.cli.checks import notifications
from runbook.cli.command_line import notify
from runbook.cli.wiring import application
from runbook.errors import BadInput, NotFound, Unavailable
from tests.service.notify_servers import HttpServer, http_server, inventory_with


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server() as running:
        yield running


def _test(path: Path, *arguments: str) -> tuple[str, BaseException | None]:
    result = CliRunner().invoke(notify, ["test", "--inventory", str(path), *arguments])
    return result.output, result.exception


def test_each_address_is_named_by_its_service_and_never_shown(tmp_path: Path, server: HttpServer) -> None:
    path = inventory_with(
        tmp_path,
        "  targets:\n"
        f"    - {{name: oncall, urls: ['{server.url('hunter2')}'], severities: [page]}}\n"
        f"    - {{name: chat, urls: ['json://u:hunter2@127.0.0.1:1/', '{server.url('hunter2', 'form')}']}}\n"
        f"    - {{name: owner, urls: ['{server.url('hunter2/{owner}')}']}}\n",
    )
    output, error = _test(path)
    assert isinstance(error, Unavailable) and "1 address did not take" in str(error)
    assert "hunter2" not in output + str(error)
    assert output.splitlines() == [
        "oncall: hears no info; sent all the same",
        "oncall: address 1 (JSON): delivered",
        "chat: address 1 (JSON): not delivered: A Connection error occurred sending JSON notification to ***.",
        "chat: address 2 (Form): delivered",
        "owner: no address; `--owner USER` where an address holds {owner}",
    ]
    assert server.received[0]["title"] == "[runbook] test from alpha, severity info: nothing has happened"
    server.received.clear()
    output, error = _test(path, "--severity", "page", "--target", "owner", "--owner", "ana")
    assert output == "owner: address 1 (JSON): delivered\n"
    assert (server.received[0]["path"], server.received[0]["type"]) == ("/hunter2/ana", "failure")


def test_what_cannot_be_tested_is_said(tmp_path: Path) -> None:
    assert isinstance(_test(inventory_with(tmp_path, "  urls: []\n"))[1], NotFound)
    _, error = _test(inventory_with(tmp_path, "  urls: ['json://x']\n"), "--target", "oncall")
    assert isinstance(error, BadInput) and "name one of all" in str(error)


def test_doctor_looks_at_the_addresses_without_sending(tmp_path: Path, server: HttpServer) -> None:
    path = inventory_with(
        tmp_path,
        f"  urls: ['{server.url('{owner}')}']\n"
        "  targets:\n    - {name: odd, urls: ['nonsense://hunter2', 'json://fine'], severities: [page]}\n",
    )
    good, bad = notifications(application(str(path)))
    assert (good.mark, good.what) == ("ok", "all: JSON, reached; hears info, warning, page")
    assert (bad.mark, bad.what) == ("problem", "odd: 1 of 2 addresses are not understood")
    assert server.received == []
