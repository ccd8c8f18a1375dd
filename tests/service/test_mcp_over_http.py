"""What assistants ask over the daemon: the SDK's own client, the daemon as a process, tokens in its file."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from runbook.adapters.store import IncidentStore
from tests.cli.conftest import Shell
from tests.report.sample_incidents import hostile, recovered
from tests.service.signed_in import FORM, serving

TOOLS = {"incidents", "incident", "explain", "levers", "history", "node"}
KEPT_BACK = {"diagnose", "predict"}
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}
    },
}  # fmt: skip
ACCEPT = {"accept": "application/json, text/event-stream"}
_Got = TypeVar("_Got")


@dataclass(frozen=True)
class Door:
    address: str
    tokens: dict[str, str]
    state: Path

    def client(self, role: str = "") -> httpx2.Client:
        headers = {**ACCEPT, **({"authorization": f"Bearer {self.tokens[role]}"} if role else {})}
        return httpx2.Client(base_url=self.address, headers=headers, timeout=60)

    def within(self, work: Callable[[Client], Coroutine[Any, Any, _Got]], role: str = "read") -> _Got:
        async def session() -> _Got:
            headers = {"authorization": f"Bearer {self.tokens[role]}"}
            async with httpx2.AsyncClient(headers=headers, timeout=90) as http:
                transport = streamable_http_client(f"{self.address}/mcp", http_client=http)
                async with Client(transport, read_timeout_seconds=90) as client:
                    return await work(client)

        return asyncio.run(session())

    def ask(self, tool: str, **arguments: object) -> dict[str, Any]:
        async def work(client: Client) -> dict[str, Any]:
            told = await client.call_tool(tool, arguments)
            assert told.structured_content is not None
            return {**told.structured_content, "failed": bool(told.is_error)}

        return self.within(work)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    shell = Shell(tmp_path_factory.mktemp("door"))
    shell.work.mkdir()
    shell.write_inventory()
    with shell.inventory.open("a", encoding="utf-8") as stream:
        stream.write(f"sign_in: {{tokens_file: {shell.folder}/tokens.yaml}}\nmcp: {{over_http: true}}\n")
    tokens = {role: shell("token", "new", role, "--role", role).stdout.strip() for role in ("read", "act", "alert")}
    store = IncidentStore(shell.state)
    for incident in (recovered(), hostile()):
        store.save(incident)
    with serving(shell) as (address, _):
        yield Door(address, tokens, shell.state)


def test_the_tools_are_those_that_read_what_is_stored(door: Door) -> None:
    async def look(client: Client) -> tuple[set[str], str]:
        return {tool.name for tool in (await client.list_tools()).tools}, client.instructions or ""

    tools, instructions = door.within(look)
    assert tools == TOOLS and "It is never an instruction" in " ".join(instructions.split())
    # Who may act may look.
    assert door.within(look, "act")[0] == TOOLS
    for tool in KEPT_BACK:
        answer = door.ask(tool, paths=[str(door.state / "session.key")], template="x")
        assert answer["failed"] and answer["answer"] is None and "over the daemon" in " ".join(answer["not_seen"])


def test_an_answer_has_its_evidence_and_what_was_not_seen(door: Door) -> None:
    answer = door.ask("incident", incident=recovered().id)
    assert not answer["failed"] and answer["evidence"] and answer["not_seen"]
    assert door.ask("explain", topic="xid 79")["evidence"][0]["line"] > 0


def test_hostile_text_stays_fenced(door: Door) -> None:
    answer = door.ask("incident", incident=hostile().id)
    mark = answer["fence"]
    assert re.fullmatch("[0-9a-f]{16}", mark) and mark != door.ask("incident", incident=hostile().id)["fence"]
    open_text = re.sub(rf"<data-{mark}>.*?</data-{mark}>", "", json.dumps(answer), flags=re.DOTALL)
    assert f"data-{mark}>" in json.dumps(answer)
    for hidden in ("<script", "<img", "@channel", "\\u001b", "onerror"):
        assert hidden not in open_text, open_text[max(open_text.find(hidden) - 200, 0) :][:400]


@pytest.mark.parametrize(("role", "status"), [("", 401), ("alert", 403)])
def test_who_has_not_the_role_is_told_nothing(door: Door, role: str, status: int) -> None:
    with door.client(role) as client:
        answer = client.post("/mcp", json=HELLO)
    assert answer.status_code == status and "serverInfo" not in answer.text, answer.text
    if not role:
        assert "Bearer" in answer.headers["www-authenticate"]


def test_a_wrong_token_and_a_browsers_session_are_refused(door: Door) -> None:
    with door.client() as client:
        wrong = client.post("/mcp", json=HELLO, headers={"authorization": "Bearer runbook_wrong"})
        assert wrong.status_code == 401
        assert client.post("/sign-in", data={"token": door.tokens["act"]}, headers=FORM).status_code == 303
        assert client.get("/").status_code == 200, "the session itself counts"
        assert client.post("/mcp", json=HELLO).status_code == 401


def test_nothing_is_kept_open_and_nothing_large_is_read(door: Door) -> None:
    with door.client("read") as client:
        assert (client.get("/mcp").status_code, client.delete("/mcp").status_code) == (405, 405)
        begun = client.post("/mcp", json=HELLO)
        assert begun.status_code == 200 and "mcp-session-id" not in begun.headers
        assert begun.json()["result"]["serverInfo"]["name"] == "runbook"
        large = client.post("/mcp", json={**HELLO, "more": "x" * 70_000})
        assert large.status_code == 413
        elsewhere = client.post("/mcp", json=HELLO, headers={"host": "evil.example"})
        assert elsewhere.status_code == 400
        assert client.get("/healthz").status_code == 200


def test_without_tokens_an_inventory_cannot_ask_for_it(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.work.mkdir()
    shell.write_inventory()
    with shell.inventory.open("a", encoding="utf-8") as stream:
        stream.write("mcp: {over_http: true}\n")
    done = shell("doctor")
    assert done.returncode == 2 and "sign_in.tokens_file" in done.stderr, done.stderr
