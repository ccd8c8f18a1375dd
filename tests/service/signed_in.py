"""An application with sign-in over a real store, tokens in a real file, and nothing of its own replaced."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.testclient import TestClient

from runbook.adapters.store import IncidentStore
from runbook.model.incident import Incident, Policy
from runbook.service.actions import Actions
from runbook.service.app import People, create_app
from runbook.service.auth import Proxy, Signer, SignIn, networks
from runbook.service.tokens import Role, TokenFile, add_token
from runbook.steps.shared.base import StepContext
from tests.cli.conftest import Shell
from tests.service.shown import shown

HERE = "http://localhost"
FORM = {"sec-fetch-site": "same-origin", "accept": "text/html"}
PAGE = {"accept": "text/html"}
SECRET = "a-proxy-secret-of-some-length"


def address_of(process: subprocess.Popen[str]) -> str:
    """Where the daemon says that it answers, once it does; it ends without a stroke."""
    said = ""
    assert process.stderr is not None
    while (found := re.search(r"reports and metrics at (http://\S+?)/?\n", said)) is None:
        line = process.stderr.readline()
        assert line, said
        said += line
    return found[1]


@contextlib.contextmanager
def serving(shell: Shell) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`runbook serve` with the shell's inventory, as a process, with its address."""
    with subprocess.Popen(
        (sys.executable, "-m", "runbook", "serve", "--port", "0"), stderr=subprocess.PIPE, text=True,
        env={**os.environ, "RUNBOOK_INVENTORY": str(shell.inventory)}, cwd=shell.work,
    ) as process:
        try:
            yield address_of(process), process
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        finally:
            process.kill()


def no_context(_incident: Incident) -> StepContext:
    raise AssertionError("nothing is done outside in this test")


@dataclass
class Place:
    """The service in a folder. `answers`: what was handed over to the engine."""

    folder: Path
    policy: Policy = Policy.APPROVE
    context_of: Callable[[Incident], StepContext] = no_context
    more_routes: Sequence[BaseRoute] = ()
    site_url: str = ""
    session_s: float = 3600.0
    problem: Exception | None = None
    """What the engine answers with."""
    answers: list[tuple[str, bool, str]] = field(default_factory=list)
    proxy: Proxy | None = field(
        default_factory=lambda: Proxy(
            networks(("10.0.0.5",)), SECRET, "x-forwarded-user", "x-forwarded-groups",
            frozenset({"bob"}), frozenset({"oncall"}),
        )
    )

    def __post_init__(self) -> None:
        self.store = IncidentStore(self.folder / "state")
        self.tokens = self.folder / "tokens.yaml"
        self.token = {role: add_token(self.tokens, f"{role.value}er", role) for role in Role}
        self.sign_in = SignIn(
            Signer(b"k" * 32, self.session_s), TokenFile(self.tokens), self.proxy, site_url=self.site_url
        )

    def _save(self, incident: Incident) -> None:
        self.store.save(incident)

    def _answer(self, incident: Incident, yes: bool, by: str) -> None:
        if self.problem is not None:
            raise self.problem
        self.answers.append((incident.id, yes, by))

    def app(self) -> Starlette:
        """The application as the daemon makes it, with an engine that only remembers."""
        acts = Actions(
            self.store, self.sign_in, self.policy, self._answer, self.context_of, self._save,
            lambda _incident: contextlib.nullcontext(),
        )
        health = {"ok": True, "spool_depth": 1, "last_problem": "job 4711 of alice"}
        return create_app(
            shown(self.store, health, lambda: b"runbook_up 1\n"), hosts=("localhost", "127.0.0.1", "runbook.example"),
            people=People(self.sign_in, acts), look_again_s=(1, 1), more_routes=self.more_routes,
        )

    def client(self, address: str = HERE, peer: str = "127.0.0.1") -> TestClient:
        return TestClient(
            self.app(), base_url=address, raise_server_exceptions=False, follow_redirects=False, client=(peer, 40_000)
        )

    def browser(self, role: Role = Role.ACT, address: str = HERE) -> TestClient:
        """A client that has signed in through the form."""
        client = self.client(address)
        answer = client.post("/sign-in", data={"token": self.token[role]}, headers=FORM)
        assert answer.status_code == 303, answer.text
        return client

    def bearer(self, role: Role) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token[role]}"}


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of a page's own form, without the header's."""
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))
