"""What Slack and Teams are really sent: apprise's own request, taken by a server that stands where theirs is.

apprise knows one address of Slack's, so the server is the proxy of the environment and answers for whatever host is
asked for, by TLS. What a person then sees on a phone is Slack's and Teams' affair; what they are given to show is
looked at here.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from markdown_it import MarkdownIt

from runbook.adapters.delivery import Target
from runbook.adapters.notify import TargetsNotify
from runbook.model.incident import Incident, Message, Severity
from runbook.report.text.notifications import messages
from tests.report.sample_incidents import awaiting, hostile, recovered
from tests.service.notify_servers import Clock

SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#gpu-jobs?verify=no"
TEAMS = "workflows://prod-161.westeurope.logic.azure.com:443/WORKFLOWID/SIGNATURE?verify=no"
REPORT = "https://runbook.example/incidents/oom-alpha-884213"


def _certificate(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "chat")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(
        issuer_name=name, subject_name=name, public_key=key.public_key(), serial_number=1,
        not_valid_before=now - timedelta(days=1), not_valid_after=now + timedelta(days=1),
    ).sign(key, hashes.SHA256())
    path = folder / "chat.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ))  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Every message that arrives, with the host that it was meant for."""
    context = _certificate(tmp_path)
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        host = ""

        def do_CONNECT(self) -> None:
            self.host = self.path
            self.send_response(200)
            self.end_headers()
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
            self.close_connection = False

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append({"host": self.host, **json.loads(body)})
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.server_port}")
        yield received
        server.shutdown()


def told(chat: list[dict[str, Any]], address: str, incident: Incident) -> tuple[str, str]:
    """(title, text) as they are sent."""
    TargetsNotify([Target("chat", lambda: (address,))], Clock()).tell(
        messages(None, incident, "https://runbook.example")[0]
    )
    (message,) = chat
    chat.clear()
    assert "github" not in json.dumps(message) and "pprise" not in json.dumps(message), message
    if address == SLACK:
        assert message["host"] == "hooks.slack.com:443" and message["channel"] == "#gpu-jobs"
        assert message["mrkdwn"] is False, "nothing of it is markup"
        (attachment,) = message["attachments"]
        return attachment["title"], attachment["text"]
    assert message["host"] == "prod-161.westeurope.logic.azure.com:443"
    (card,) = message["attachments"]
    title, body = (block for block in card["content"]["body"] if block["type"] == "TextBlock")
    return title["text"], body["text"]


@pytest.mark.parametrize("address", [SLACK, TEAMS], ids=["Slack", "Teams"])
def test_a_question_says_what_happened_and_what_is_asked_with_both_links(
    chat: list[dict[str, Any]], address: str
) -> None:
    title, text = told(chat, address, awaiting())
    assert title.startswith("[runbook] job 884213 (llama-70b-sft): waits for your yes") and len(title) <= 90
    plain = text.replace("\\", "")
    lines = [line for line in plain.split("\n") if line]
    for line, words in zip(lines, ("Job 884213 ran out of GPU memory on rank 19", "Done: Cancelled job", "Asked: Say")):
        assert line.startswith(words), plain
    assert REPORT in text and f"{REPORT}#first-title" in text, "an address is written as it is, or it leads nowhere"


def test_slack_is_told_which_link_is_which(chat: list[dict[str, Any]]) -> None:
    _, text = told(chat, SLACK, awaiting())
    assert text.splitlines()[-2:] == [f"Report: {REPORT}", f"Answer: {REPORT}#first-title"]
    _, text = told(chat, SLACK, recovered())
    assert text.splitlines()[-1] == f"{REPORT}#first-title", "nothing is asked: one link"


def test_teams_shows_lines_and_links_as_such(chat: list[dict[str, Any]]) -> None:
    """A card shows Markdown: a single line break is none there, and a bare address is no link."""
    _, text = told(chat, TEAMS, awaiting())
    shown = MarkdownIt().render(text)
    assert shown.count("<p>") == 4
    assert f'<a href="{REPORT}">Report</a> · <a href="{REPORT}#first-title">Answer</a>' in shown


def test_a_users_words_are_no_markup_in_teams(chat: list[dict[str, Any]]) -> None:
    _, text = told(chat, TEAMS, hostile())
    shown = MarkdownIt().render(text)
    assert shown.count("<a ") == 1 and "<script" not in shown and "<img" not in shown, shown


WORDS = (
    "[click](https://evil.example)", "**loud** __loud__ ~~gone~~ `code`", "# heading", "- item", "1. item", "===",
    "<https://evil.example>", "![x](https://evil.example/x.png)", "| a | b |", "\\[x](y)", "> said",
)


@pytest.mark.parametrize("words", WORDS)
def test_no_line_of_a_message_is_markup(chat: list[dict[str, Any]], words: str) -> None:
    body = f"before\n{words}\nafter"
    TargetsNotify([Target("chat", lambda: (TEAMS,))], Clock()).tell(
        Message("event", Severity.PAGE, "title", body, f"{REPORT}/a(b)?x=[y]")
    )
    (message,) = chat
    text = message["attachments"][0]["content"]["body"][-1]["text"]
    shown = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    tags = [part for part in shown.replace("\n", "").split("<") if part and not part.startswith(("p>", "/p>"))]
    assert len(tags) == 2 and tags[0].startswith("a href=") and tags[1].startswith("/a>"), shown
    assert "".join(MarkdownIt("commonmark").parse(text)[4].content.split("\\")) == "".join(words.split("\\"))
