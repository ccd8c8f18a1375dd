"""The Scheduler port over slurmrestd, for a host without Slurm's commands: it reads, and cancels.

Who asks shows a token of the controller's (JWT). What is done with it is done as the token's user, so nothing is
submitted: a job would be that user's and not its owner's. One version of the format is asked for, and nothing else is
tried where it is not served or slurmrestd does not answer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import math
import os
import re
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlsplit

from runbook.errors import NotAllowed, NotFound, RunbookError, Unavailable
from runbook.model.job import Claim, JobClass, JobEnvironment, JobRecord, JobScript, NodeState, Submission
from runbook.model.units import Bytes, JobId, NodeName, Unknown
from runbook.slurm import rest
from runbook.slurm.complaints import Complaint, complaint
from runbook.slurm.job_record import choose_record, merge_records, with_submit_line
from runbook.slurm.ownership import carries, check_same_run, same_owner

_MOST_BYTES = 64 << 20
"""Of one answer: the jobs of a large cluster are tens of megabytes."""
_MOST_TOKEN_BYTES = 16 << 10
_WAITING_FOR_S = 10.0
_JOBS = re.compile(r'"jobs"\s*:\s*\[')
"""A quote within a text has a backslash before it in JSON: this is a key."""
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_DECODER = json.JSONDecoder()
LOG = logging.getLogger("runbook.slurm")


@dataclass(frozen=True, slots=True)
class RestSettings:
    """Where slurmrestd is, and how it is spoken to."""

    url: str
    """"unix:/run/slurmrestd.sock", or "https://host:6820"."""
    version: str
    """One of `rest.VERSIONS`."""
    token_file: str
    """Holds the token, alone or as `scontrol token` prints it; read anew for each question, as tokens run out."""
    ca_file: str = ""
    """Certificates of who may sign slurmrestd's; "": the machine's own."""
    timeout_s: float = 20.0


class RestLine:
    """Asks one question a connection. Raises `NotFound`, `NotAllowed`, `Unavailable`; no answer is followed elsewhere,
    and no error holds the token."""

    def __init__(self, settings: RestSettings) -> None:
        self._settings = settings

    @property
    def where(self) -> str:
        return f"slurmrestd at {self._settings.url}"

    def ask(self, path: str, method: str = "GET") -> rest.Answer:
        """`path`: behind the version, such as "slurm/job/7". An answer that complains is an error, whatever its
        status."""
        answer, words, status = self.told(path, method)
        if words:
            raise self.error("; ".join(words), status)
        return answer

    def told(self, path: str, method: str = "GET") -> tuple[rest.Answer, tuple[str, ...], int]:
        """The answer, what it complains of, and its status."""
        status, body = self._answer(path, method)
        return self._read(status, body)

    def some_jobs(self, path: str, keep: Callable[[rest.Answer], bool]) -> rest.Answer:
        """The answer with those of its jobs that are kept. They are read one by one: all of a cluster's jobs at once
        would take ten times what the answer has."""
        status, body = self._answer(path, "GET")
        text = body.decode("latin-1")  # whatever stands in it, a byte of memory for a byte
        del body
        kept: list[rest.Answer] = []
        begins = _JOBS.search(text)
        if begins is not None:
            at = begins.end()
            with contextlib.suppress(ValueError, RecursionError):
                while not text.startswith("]", at := _BETWEEN.match(text, at).end()):  # type: ignore[union-attr]
                    one, end = _DECODER.raw_decode(text, at)
                    if isinstance(one, dict) and keep(one):
                        kept.append(json.loads(text[at:end].encode("latin-1")))
                    at = end
            text = text[: begins.end()] + text[at:]
        answer, words, status = self._read(status, text.encode("latin-1"))
        if words:
            raise self.error("; ".join(words), status)
        return {**answer, "jobs": kept}

    def _answer(self, path: str, method: str) -> tuple[int, bytes]:
        """Status and body."""
        kind, _, behind = path.partition("/")
        before = urlsplit(self._settings.url).path.rstrip("/") if self._secure else ""
        whole = f"{before}/{kind}/{self._settings.version}/{behind}"
        headers = {"X-SLURM-USER-TOKEN": _token(self._settings.token_file), "Accept": "application/json"}
        connection = self._connection()
        try:
            connection.request(method, whole, headers=headers)
            response = connection.getresponse()
            status, body = response.status, response.read(_MOST_BYTES + 1)
        except ssl.SSLError as error:
            raise Unavailable(
                f"slurmrestd is not who it should be, or speaks no TLS: {error.reason or error}", where=self.where,
                next_step="name who signed its certificate as scheduler.rest.ca_file",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"slurmrestd does not answer: {_in_words(error)}", where=self.where,
                next_step="see whether it runs; nothing else is asked instead",
            ) from error
        finally:
            with contextlib.suppress(OSError):
                connection.close()
        if len(body) > _MOST_BYTES:
            raise Unavailable(
                f"an answer of slurmrestd ({path}) is longer than {_MOST_BYTES >> 20} MiB and was not read",
                where=self.where, next_step="have fewer jobs wait, or use Slurm's commands (scheduler.adapter)",
            )
        return status, body

    def _read(self, status: int, body: bytes) -> tuple[rest.Answer, tuple[str, ...], int]:
        try:
            answer: Any = json.loads(body)
        except (ValueError, RecursionError):
            raise self._no_document(status, body) from None
        if not isinstance(answer, dict):
            raise self._no_document(status, body)
        words = rest.complaints_of(answer)
        return answer, words or (() if status == 200 else (f"status {status}",)), status

    @property
    def _secure(self) -> bool:
        return self._settings.url.startswith("https://")

    def _connection(self) -> http.client.HTTPConnection:
        parts, timeout_s = urlsplit(self._settings.url), self._settings.timeout_s
        if not self._secure:
            return _OverSocket(parts.path, timeout_s)
        try:
            trusted = ssl.create_default_context(cafile=self._settings.ca_file or None)
        except OSError as error:
            raise NotFound(
                f"the certificates cannot be read: {error.strerror or error}", where=self._settings.ca_file,
                next_step="mend scheduler.rest.ca_file of the inventory",
            ) from error
        return http.client.HTTPSConnection(str(parts.hostname), parts.port or 443, timeout=timeout_s, context=trusted)

    def _no_document(self, status: int, body: bytes) -> RunbookError:
        if status in (401, 403):
            return self.error("", status)
        if status == 404:
            return Unavailable(
                f"this slurmrestd does not serve {self._settings.version}", where=self.where,
                next_step="name a version that it serves as scheduler.rest.version (`slurmrestd -d list` shows them)",
            )
        shown = body[:120].decode("utf-8", "replace").strip()
        return Unavailable(f"slurmrestd answered {status} with no document of its own: {shown}", where=self.where)

    def error(self, words: str, status: int) -> RunbookError:
        if status in (401, 403, 511):
            return NotAllowed(
                f"slurmrestd does not take the token{f': {words}' if words else ''}", where=self._settings.token_file,
                next_step="put a new one there (`scontrol token username=NAME lifespan=SECONDS`); it may have run out",
            )
        match complaint(words):
            case Complaint.NO_SUCH:
                return NotFound(f"Slurm does not know it: {words}", where=self.where, next_step="check the id or name")
            case Complaint.DENIED:
                return NotAllowed(
                    f"Slurm refuses: {words}", where=self.where, next_step="use a token of an operator, or of the owner"
                )
            case Complaint.REFUSED if status == 200:
                return NotAllowed(f"Slurm refuses: {words}", where=self.where, next_step="mend what Slurm names")
            case _:
                return Unavailable(f"Slurm does not answer: {words}", where=self.where, next_step="try again")


class SlurmRest:
    """Reads and cancels through slurmrestd; what needs the owner's rights or Slurm's commands is refused."""

    def __init__(self, line: RestLine, version: str, *, cluster: str = "") -> None:
        self._line, self._version, self._cluster = line, version, cluster
        self._lock = threading.Lock()
        self._known: tuple[float, rest.Answer] = (-math.inf, {})
        """When it was asked which jobs wait, and what it said."""
        self._problem = ""

    def describe(self) -> str:
        return (
            f"{self._line.where} ({self._version}), as the token's user: it reads and cancels; submitting and draining "
            "are not done over it"
        )

    def job(self, job: JobId) -> JobRecord:
        live = self._live(job)
        kept = self._kept(live.id if live is not None else job)
        record = merge_records(live, kept)
        if record is None:
            raise NotFound(
                f"Slurm knows no job {job}", where=self._line.where,
                next_step="check the id; without accounting Slurm forgets a job minutes after its end",
            )
        if live is not None and kept is not None:
            record = replace(record, source=f"{live.source}+{kept.source}")
        record = with_submit_line(self._named(record))
        if record.state.job_class.ended and record.state.job_class is not JobClass.SUCCEEDED:
            record = replace(record, dependents=rest.read_dependents(self._waiting(), record))
        return record

    def _waiting(self) -> rest.Answer:
        """All jobs that wait for others: slurmrestd gives neither one user's nor those that wait for one job. So it is
        asked once for all that ended within some seconds, by one at a time. Nothing fails for want of them; why they
        are not known is said in the log."""
        with self._lock:
            asked_s, known = self._known
            if time.monotonic() - asked_s > _WAITING_FOR_S:
                try:
                    told = self._line.some_jobs("slurm/jobs/", lambda one: bool(one.get("dependency")))
                    known, problem = rest.of_dependents(told), ""
                except RunbookError as error:
                    known, problem = {}, error.what
                if problem and problem != self._problem:
                    LOG.warning("which jobs wait for one that failed is not known: %s", problem)
                self._problem, self._known = problem, (time.monotonic(), known)
            return known

    def script(self, job: JobId) -> JobScript | Unknown:
        kept = [one for one in self._entries(f"slurmdb/job/{_quoted(job)}") if isinstance(one.get("script"), str)]
        if len(kept) == 1 and kept[0]["script"].strip():
            return JobScript(kept[0]["script"], "slurmrestd's accounting")
        return Unknown("slurmrestd does not tell it; `scontrol write batch_script` does, where Slurm's commands are")

    def environment(self, job: JobId) -> JobEnvironment | Unknown:
        return Unknown("slurmrestd does not tell it; `sacct --env-vars` does, where Slurm's commands are")

    def submit(self, submission: Submission, original: JobRecord) -> JobId:
        raise _not_here("submitted", "the job would be the token's user's and not its owner's")

    def find_submitted(self, claim: Claim) -> tuple[JobId, ...]:
        owners = {claim.owner, claim.uid}
        found = [*rest.read_jobs(self._line.some_jobs(
            "slurm/jobs/", lambda one: bool(owners & {one.get("user_name"), rest.figure(one.get("user_id"))})
        ))]
        found += rest.read_accounted(self._line.ask(f"slurmdb/jobs/?users={quote(claim.owner, safe='')}"))
        ours = {
            (job.submit_time_s or 0.0, job.id) for job in found
            if same_owner(job, claim.uid, claim.owner) and carries(job.comment, claim.token)
        }
        return tuple(dict.fromkeys(job for _, job in sorted(ours)))

    def hold(self, job: JobRecord) -> bool:
        return False

    def release(self, job: JobRecord) -> bool:
        return False

    def cancel(self, job: JobRecord) -> None:
        try:
            now = self._live(job.id)
            if now is None:
                return
            check_same_run(self._named(now), job)
            _, words, status = self._line.told(f"slurm/job/{_quoted(job.id)}", "DELETE")
            if words and any(complaint(one) is not Complaint.ENDED for one in words):
                raise self._line.error("; ".join(words), status)
        except NotFound:
            return

    def nodes(self, names: Sequence[NodeName] | None = None) -> tuple[NodeState, ...]:
        if names is None:
            return rest.read_nodes(self._line.ask("slurm/nodes/"))
        found = []
        for name in dict.fromkeys(names):
            answer, words, status = self._line.told(f"slurm/node/{_quoted(name)}")
            told = [node for node in rest.read_nodes(answer) if node.name == name]
            if status in (401, 403, 511):
                raise self._line.error("; ".join(words), status)
            if words or len(told) != 1:
                # It says "no error" of a node that there is none of.
                raise NotFound(
                    f"Slurm tells nothing of a node {name!r}{f': {words[0]}' if words else ''}", where=self._line.where,
                    next_step="check the name",
                )
            found += told
        return tuple(found)

    def memory_to_have(self, job: JobRecord) -> Bytes | None:
        return None

    def drain(self, node: NodeName, reason: str) -> None:
        raise _not_here("drained", "that takes Slurm's commands")

    def undrain(self, node: NodeName, token: str) -> None:
        raise _not_here("given back", "that takes Slurm's commands")

    def _named(self, record: JobRecord) -> JobRecord:
        return replace(record, cluster=self._cluster or record.cluster)

    def _live(self, job: JobId) -> JobRecord | None:
        try:
            return choose_record(rest.read_jobs(self._line.ask(f"slurm/job/{_quoted(job)}")), job)
        except NotFound:
            return None

    def _kept(self, job: JobId) -> JobRecord | None:
        """None: accounting does not have it, or there is none."""
        answer, words, status = self._line.told(f"slurmdb/job/{_quoted(job)}")
        if words and not any(complaint(one) in (Complaint.NO_SUCH, Complaint.NO_ACCOUNTING) for one in words):
            raise self._line.error("; ".join(words), status)
        return None if words else choose_record(rest.read_accounted(answer), job)

    def _entries(self, path: str) -> list[dict[str, Any]]:
        jobs = self._line.ask(path).get("jobs")
        return [one for one in jobs if isinstance(one, dict)] if isinstance(jobs, list) else []


class _OverSocket(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _token(path: str) -> str:
    """Raises `NotAllowed` where others may read or change it, `NotFound` where there is none."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
                raise NotAllowed(
                    "the token of slurmrestd is not used: others than its user may read it, or it is another's",
                    where=f"{path} (user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o})",
                    next_step="make it a file of your own with mode 0600, and have a new token made",
                )
            text = stream.read(_MOST_TOKEN_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise NotFound(
            f"the token of slurmrestd cannot be read: {error.strerror}", where=path,
            next_step="`scontrol token username=NAME lifespan=SECONDS` makes one",
        ) from error
    text = text.removeprefix("SLURM_JWT=")
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise NotFound(
            "there is no token in the file", where=path,
            next_step="`scontrol token username=NAME lifespan=SECONDS` makes one",
        )
    return text


def _quoted(name: str) -> str:
    return quote(name, safe="+")


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _not_here(what: str, why: str) -> NotAllowed:
    return NotAllowed(
        f"nothing is {what} through slurmrestd: {why}", where="scheduler.adapter of the inventory",
        next_step="do it on a host with Slurm's commands",
    )
