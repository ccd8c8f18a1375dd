"""A slurmrestd whose list of all jobs any user can make long: it is asked for once and read within little memory; where
it is not read, that is said."""

from __future__ import annotations

import http.server
import json
import logging
import socketserver
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runbook.adapters.slurm.slurmrestd import RestLine, RestSettings, SlurmRest
from runbook.errors import Unavailable
from runbook.model.job import Claim
from runbook.model.units import JobId, UserName

RECORDED = Path(__file__).parents[1] / "recorded" / "slurm" / "rest-26.05.5-v0.0.43"


class Slurmrestd(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    jobs: bytes
    asked = 0


class Handler(http.server.BaseHTTPRequestHandler):
    server: Slurmrestd

    def do_GET(self) -> None:
        if self.path.endswith("/jobs/"):
            self.server.asked += 1
            answer = self.server.jobs
        elif "/slurm/" in self.path:
            answer = json.dumps({"jobs": [_job(7, "train")], "errors": []}).encode()
        else:
            answer = b'{"jobs": [], "errors": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def address_string(self) -> str:
        return ""

    def log_message(self, *_: object) -> None: ...


def _job(number: int, name: str, **other: Any) -> dict[str, Any]:
    recorded = json.loads((RECORDED / "slurm_failed.json").read_bytes())["jobs"][0]
    return {**recorded, "job_id": number, "name": name, **other}


def _many(how_many: int, *others: dict[str, Any]) -> bytes:
    one = json.dumps(_job(1000, 'n"jobs": [' + "\U0001f4a5" * 300, job_state=["PENDING"]), ensure_ascii=False)
    rest = "".join(f",{json.dumps(other, ensure_ascii=False)}" for other in others)
    return f'{{"jobs": [{",".join([one] * how_many)}{rest}], "errors": [], "meta": {{"x": "é"}}}}'.encode()


@pytest.fixture
def slurmrestd(tmp_path: Path) -> Iterator[Slurmrestd]:
    with Slurmrestd(str(tmp_path / "s"), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def _rest(folder: Path) -> SlurmRest:
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text("t")
    return SlurmRest(RestLine(RestSettings(f"unix:{folder / 's'}", "v0.0.43", str(token), timeout_s=60)), "v0.0.43")


def test_jobs_that_end_together_ask_once_for_all_that_wait(tmp_path: Path, slurmrestd: Slurmrestd) -> None:
    waits = _job(8, "next é", job_state=["PENDING"], dependency="afterok:7(unfulfilled)", state_reason="Dependency")
    slurmrestd.jobs = _many(2000, waits)
    rest = _rest(tmp_path)
    tracemalloc.start()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(rest.job, [JobId("7")] * 4))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert slurmrestd.asked == 1
    assert [[(one.id, one.name) for one in job.dependents] for job in found] == [[("8", "next é")]] * 4
    assert peak < 4 * len(slurmrestd.jobs), f"{peak} for {len(slurmrestd.jobs)}"


def test_what_is_too_long_or_cut_is_said_and_the_job_is_told_all_the_same(
    tmp_path: Path, slurmrestd: Slurmrestd, caplog: pytest.LogCaptureFixture
) -> None:
    rest = _rest(tmp_path)
    slurmrestd.jobs = b" " * (65 << 20)
    with caplog.at_level(logging.WARNING):
        assert rest.job(JobId("7")).dependents == ()
    assert "which jobs wait for one that failed is not known: an answer of slurmrestd" in caplog.text
    assert "is longer than 64 MiB and was not read" in caplog.text
    slurmrestd.jobs = _many(3)[:-2000]
    caplog.clear()
    assert _rest(tmp_path).job(JobId("7")).dependents == () and "is not known" in caplog.text


def test_what_was_submitted_before_is_found_among_all(tmp_path: Path, slurmrestd: Slurmrestd) -> None:
    recorded = _job(7, "train")
    owner, uid = UserName(recorded["user_name"]), recorded["user_id"]
    slurmrestd.jobs = _many(10, _job(9, "again", comment="runbook:oom-a-7:1:abc", job_state=["PENDING"]))
    claim = Claim(owner, uid, "", "runbook:oom-a-7:1:abc", 0.0)
    assert _rest(tmp_path).find_submitted(claim) == ("9",)
    slurmrestd.jobs = b" " * (65 << 20)
    with pytest.raises(Unavailable, match="longer than 64 MiB"):
        _rest(tmp_path).find_submitted(claim)
