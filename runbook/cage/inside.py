"""Inside the cage: a box is run with ports that are a line to whoever keeps it.

Everything that reads what a job left behind runs here: scripts, configurations, logs, packed files, metadata of
checkpoints, answers of nodes. Files come opened, from the owner's own rights; nothing else is in reach."""

from __future__ import annotations

import errno
import fcntl
import io
import mmap
import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from socket import socket
from typing import Any, BinaryIO, NoReturn, cast

from pydantic import TypeAdapter

from runbook.adapters.files import receive_file, received_file, translated
from runbook.adapters.log_files import THREADS, on_threads
from runbook.adapters.store import copy_windows
from runbook.cage.calls import methods, packed_error, unpacked_error
from runbook.cage.wire import Broken, Channel
from runbook.config import Inventory, NodesDocument, PolicyDocument, SchedulerDocument
from runbook.errors import Hung, RunbookError, Unavailable
from runbook.logs.reader import LogReader
from runbook.model.checkpoint import DirectoryEntry
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import LogStory
from runbook.model.template import TemplateFile
from runbook.model.units import IncidentId, JobId, Unknown, UserName
from runbook.ports import Clock, Files, History, Nodes, Scheduler
from runbook.report.json_documents import incident_adapter, pack_incident, unpack_incident
from runbook.steps.shared.base import IncidentFolder, Playbook, Ports, Proposal, StepContext, StepResult
from runbook.steps.shared.template_reading import TemplateReading

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
"""Of a memory file that is handed over: nobody changes it while it is read."""
_LONGEST_TRACE = 20_000
_BALLAST_BYTES = 4 << 20
"""Given back when memory ran out, so that this can still be said."""
_FOREVER_S = 86_400.0 * 7
_FIRST_WORD_S = 5.0
OPENED = "opened"
"""What comes is the file itself, and not the line to the owner's child that opens it."""
ANSWERS_S = 20.0
"""A file system that takes longer for one read hangs."""


@dataclass
class Box:
    """What the warm process has ready for every box."""

    playbook: Playbook
    limit_bytes: int
    """The largest answer of the other side."""

    def warm(self) -> None:
        """Make what every box would make anew."""
        incident_adapter()
        methods()
        _proposals()
        self.playbook.signatures.compile()
        LogReader(self.playbook.signatures).read([("warm", io.BytesIO(b"step 1: loss 1.0\n" * 4), 68)])
        job = JobRecord(JobId("1"), "", "warm", UserName("nobody"), JobState("FAILED", JobClass.FAILED))
        script = TemplateFile("warm.sh", "#!/bin/sh\n#SBATCH --nodes=1\nexport A=1\nsrun python3 train.py --lr 1\n")
        reading = TemplateReading(
            (script,), (), LogStory(root_cause=None), self.playbook.levers, submitted=job, failed=job.id,
            ask_environment=lambda: Unknown("not asked"),
        )
        for system in (reading.system, *self.playbook.levers[:1]):
            assert replace(reading, named=system).values is not None

    def serve(self, connection: socket) -> NoReturn:
        """Run one box and say what came of it."""
        channel = Channel(connection, self.limit_bytes)
        # Mapped and not touched: what is limited is the address space, and each page touched costs time.
        ballast = mmap.mmap(-1, _BALLAST_BYTES)
        try:
            asked = channel.receive(_FOREVER_S)
            assert asked is not None
            answer = self._answer(asked[0], Line(channel, self.playbook))
        except RunbookError as error:
            answer = {"error": packed_error(error)}
        except MemoryError:
            ballast.close()
            answer = {"spent": "memory"}
        except RecursionError:
            answer = {"spent": "depth"}
        except BaseException as error:
            too_large = isinstance(error, OSError) and error.errno == errno.EFBIG
            answer = {"spent": "file"} if too_large else {"fault": traceback.format_exc()[-_LONGEST_TRACE:]}
        channel.send(answer)
        os._exit(0)

    def _answer(self, asked: dict[str, Any], line: Line) -> dict[str, Any]:
        incident = unpack_incident(asked["incident"], "the cage", self.playbook.signatures.kinds)
        context = StepContext(
            incident, _ports(line, asked["history"]), self.playbook, _settings(asked["settings"]), line.tell
        )
        function: Callable[[StepContext], object] = getattr(import_module(asked["module"]), asked["function"])
        result = function(context)
        if isinstance(result, StepResult):
            return {"result": {
                "outcome": str(result.outcome), "incident": pack_incident(result.incident),
                "summary": result.summary, "poll_s": result.poll_s,
            }}
        return {"proposal": _proposals().dump_python(cast("Proposal | None", result), mode="json")}


class Line:
    """The line to the keeper, for any number of threads."""

    def __init__(self, channel: Channel, playbook: Playbook) -> None:
        self._channel = channel
        self._kinds = playbook.signatures.kinds
        self._waiting: dict[int, SimpleQueue[tuple[dict[str, Any], tuple[int, ...]]]] = {}
        self._lock = threading.Lock()
        self._number = 0
        self._reader: threading.Thread | None = None

    def call(self, port: str, method: str, *arguments: Any, **named: Any) -> Any:
        """What the outside answers. Raises what it raises."""
        answer, came = self.ask(port, method, *arguments, **named)
        try:
            return methods()[port, method].returns.load(answer, self._kinds, came)
        finally:
            for descriptor in came:
                os.close(descriptor)

    def ask(self, port: str, method: str, *arguments: Any, **named: Any) -> tuple[Any, tuple[int, ...]]:
        """As `call`: the answer as it came, and what came with it, which is the caller's to close."""
        how = methods()[port, method]
        packed, descriptors = how.pack(arguments, named)
        answers: SimpleQueue[tuple[dict[str, Any], tuple[int, ...]]] = SimpleQueue()
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = answers
            if self._reader is None:
                self._reader = threading.Thread(target=self._read, name="cage-line", daemon=True)
                self._reader.start()
        self._channel.send({"id": number, "port": port, "method": method, "arguments": packed}, descriptors)
        answer, came = answers.get()
        if "error" in answer:
            raise unpacked_error(answer["error"])
        return answer["value"], came

    def tell(self, text: str) -> None:
        self._channel.send({"tell": text})

    def _read(self) -> None:
        try:
            while (came := self._channel.receive(_FOREVER_S)) is not None:
                self._waiting.pop(came[0]["id"]).put(came)
        except Broken:
            os._exit(2)


class _Remote:
    """A port whose every method is a call over the line."""

    def __init__(self, line: Line, port: str) -> None:
        self._line, self._port = line, port

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if (self._port, method) not in methods():
            raise AttributeError(method)
        line, port = self._line, self._port

        def call(*arguments: Any, **named: Any) -> Any:
            return line.call(port, method, *arguments, **named)

        return call


class _Files:
    """Opened by the owner's child, read here: a file system that hangs hangs those two alone, and after a while what
    is read says so."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._there = cast(Files, _Remote(line, "files"))

    def open(self, path: str, owner: UserName) -> BinaryIO:
        opened, came = self._line.ask("files", "open", path, owner)
        if opened == OPENED:
            return received_file(came[0], path, owner, ANSWERS_S)
        try:
            with socket(fileno=came[0]) as connection:
                return receive_file(connection, path, owner, ANSWERS_S)
        except Unavailable as error:
            if not isinstance(error, Hung):
                # Whoever started the owner's child knows more of why it ended, and tells instead.
                threading.Event().wait(_FIRST_WORD_S)
            raise

    def entries(self, folder: str, owner: UserName, depth: int = 1) -> tuple[DirectoryEntry, ...]:
        return self._there.entries(folder, owner, depth)

    def read_small(self, path: str, owner: UserName, limit: int = 1 << 20) -> bytes:
        with self.open(path, owner) as stream:
            try:
                return stream.read(limit)
            except OSError as error:
                raise translated(error.errno or 0, error.strerror or str(error), path, owner) from error

    def replace(self, path: str, owner: UserName, content: bytes, expected_sha256: str) -> str:
        return self._there.replace(path, owner, content, expected_sha256)


class _Folder(_Remote):
    """Copies of logs are made here, in memory files, and only put in their place there."""

    def copy_stream(
        self, incident: IncidentId, relative: str, stream: BinaryIO, limit_bytes: int
    ) -> tuple[Path, bool]:
        made = os.memfd_create("log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with os.fdopen(made, "w+b") as held:
            shortened = copy_windows(stream, held, max(limit_bytes, 1))
            held.flush()
            held.seek(0)
            fcntl.fcntl(made, fcntl.F_ADD_SEALS, SEALS)
            path, _ = self._line.call("folder", "copy_stream", incident, relative, held, limit_bytes)
        return path, shortened


def _ports(line: Line, history: bool) -> Ports:
    return Ports(
        scheduler=cast(Scheduler, _Remote(line, "scheduler")),
        nodes=cast(Nodes, _Remote(line, "nodes")),
        files=_Files(line),
        folder=cast(IncidentFolder, _Folder(line, "folder")),
        clock=cast(Clock, _Remote(line, "clock")),
        history=cast(History, _Remote(line, "history")) if history else None,
        in_order=on_threads(THREADS),
    )


def packed_settings(settings: Inventory) -> dict[str, Any]:
    """What boxes are decided by; nothing of what the service alone has to know, such as passwords."""
    return {
        "id": settings.id, "title": settings.title, "cluster": settings.cluster, "version": settings.version,
        "nodes": settings.nodes.model_dump(mode="json", include={"kind", "fan_out", "gpus_per_node"}),
        "policy": settings.policy.model_dump(mode="json"), "kind": settings.scheduler.kind,
    }


def _settings(packed: dict[str, Any]) -> Inventory:
    # Not checked as a whole: the document's own folders are out of reach here.
    return Inventory.model_construct(
        id=packed["id"], title=packed["title"], cluster=packed["cluster"], version=packed["version"],
        scheduler=SchedulerDocument(kind=packed["kind"]),
        nodes=NodesDocument.model_validate(packed["nodes"]), policy=PolicyDocument.model_validate(packed["policy"]),
    )


def _proposals() -> TypeAdapter[Proposal | None]:
    return TypeAdapter(Proposal | None)
