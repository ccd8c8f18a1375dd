"""Incident folders on disk: the incident itself, kept evidence, patched templates.

    <root>/                        0711  passable: a job's owner reaches the patched copy that is submitted for him
      incidents.sqlite             0600  what lists, history and metrics ask (`read_model`)
      pruned.json, trash/                what has gone, and is going (`keep`)
      incidents/<id>/              0711
        incident.json              0600
        report.html                0600
        evidence/                  0700  users' logs; evidence-removed.txt once they were removed
        attempts/<n>/…             0711  patched copies, mode as the writer says
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, NamedTuple

from runbook.adapters.whole_file import private_folder, put_sparse, sync_folder, whole_file
from runbook.errors import BadInput, NotAllowed, NotFound, RunbookError, Unavailable
from runbook.locations import playbook_folder
from runbook.model.incident import Incident
from runbook.model.units import IncidentId, UserName, is_incident_id, size
from runbook.report.json_documents import dump_incident, load_contract, load_incident

# Keeping a log that may be huge: its beginning and its end, whole where it is small.

_CHUNK_BYTES = 1 << 20
_LINE_SEARCH_BYTES = 1 << 16
_MOST_RESERVED_BYTES = 1 << 30
"""Stays free where logs are kept; on a small disk a tenth of it."""
_SMALL_BYTES = 1 << 20
"""A log of this much is kept as long as half of that stays free: what fills a disk is the large ones."""
_COUNTED_FOR_S = 60.0
_MOST_OWNERS = 1024
RECORDED = 2
"""An incident's document with what the workflow database holds of it, which is no more: a change is recorded once."""


def copy_windows(source: BinaryIO, target: IO[bytes], limit: int) -> bool:
    """Copy a log of at most `limit` bytes whole; of a larger one the first quarter of that and the rest from its end,
    cut at line borders, with a line between that says what was left out. True when something was."""
    head_bytes = max(limit // 4, 1)
    tail_bytes = max(limit - head_bytes, 1)
    head = _read_up_to(source, head_bytes)
    put_sparse(target, head)
    if len(head) < head_bytes:
        return False
    skipped, tail = _skip_to_tail(source, tail_bytes)
    if skipped == 0:
        for chunk in tail:
            put_sparse(target, chunk)
        return False
    first = next(tail, b"")
    cut = first.find(b"\n", 0, _LINE_SEARCH_BYTES) + 1
    note = (
        f"[runbook: {skipped + cut} bytes are left out here; "
        f"what follows begins at byte {head_bytes + skipped + cut} of the log]\n"
    )
    target.write((b"" if head.endswith(b"\n") else b"\n") + note.encode())
    target.write(first[cut:])
    for chunk in tail:
        put_sparse(target, chunk)
    return True


def _read_up_to(source: BinaryIO, limit: int) -> bytes:
    parts = []
    while limit > 0 and (chunk := source.read(min(limit, _CHUNK_BYTES))):
        parts.append(chunk)
        limit -= len(chunk)
    return b"".join(parts)


def _skip_to_tail(source: BinaryIO, tail_bytes: int) -> tuple[int, Iterator[bytes]]:
    """How much lies between here and the last `tail_bytes`, and those. A log may still grow: its end is where
    it was when this looked."""
    if source.seekable():
        here = source.tell()
        end = source.seek(0, os.SEEK_END)
        start = max(here, end - tail_bytes)
        source.seek(start)
        return start - here, _chunks(source, end - start)
    kept: deque[bytes] = deque()
    size = skipped = 0
    while chunk := source.read(_CHUNK_BYTES):
        kept.append(chunk)
        size += len(chunk)
        while size - len(kept[0]) >= tail_bytes:
            size -= len(kept[0])
            skipped += len(kept.popleft())
    if kept and size > tail_bytes:
        skipped += size - tail_bytes
        kept[0] = kept[0][size - tail_bytes :]
    return skipped, iter(kept)


def _chunks(source: BinaryIO, length: int) -> Iterator[bytes]:
    while length > 0 and (chunk := source.read(min(length, _CHUNK_BYTES))):
        length -= len(chunk)
        yield chunk


_PRIVATE_FOLDERS = frozenset({"evidence"})
REMOVED_NOTE = "evidence-removed.txt"
"""In an incident's folder: its kept logs were removed, or are about to be."""

Contract = Callable[[Incident], Mapping[str, Any] | None]


def check_incident_id(text: str) -> IncidentId:
    """The id, if it is one: `<playbook>-<cluster>-<job>`. Raises `BadInput` otherwise."""
    if not is_incident_id(text):
        raise BadInput(
            f"{text[:80]!r} is no incident id",
            next_step=f"name one as `runbook incidents` prints it: {playbook_folder().name}-CLUSTER-JOB",
        )
    return IncidentId(text)


class Stamp(NamedTuple):
    """Identity of one written version of a file: each save is a new inode with its own time."""

    modified_ns: int
    size_bytes: int
    inode: int


@dataclass
class LogsKept:
    """How much of jobs' logs is copied: they may fill the disk but for what documents and the database need to go on,
    and open incidents of one owner, of which nothing is removed, no more than his share."""

    reserve_bytes: int | None = None
    """Stays free; None: 1 GiB, and on a small disk a tenth of it."""
    owner_bytes: int | None = None
    open_of: Callable[[IncidentId], tuple[UserName, Sequence[IncidentId]]] | None = None
    """An incident's owner, and all open incidents of his."""
    _sums: dict[UserName, tuple[float, int]] = field(default_factory=dict, init=False)
    """By owner: when it was added up, and what was there with what was copied since."""
    _owners: dict[IncidentId, tuple[float, UserName, Sequence[IncidentId]]] = field(
        default_factory=dict, init=False, repr=False
    )
    """When it was asked whose an incident is: a job of a thousand logs is asked about once."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def disk(self, folder: Path) -> tuple[int, int]:
        """What is free where the folder lies, and what of it stays free of logs. Raises `Unavailable`."""
        try:
            disk = os.statvfs(folder)
        except OSError as error:
            raise _problem(error, "writing", folder) from error
        usual = min(_MOST_RESERVED_BYTES, disk.f_blocks * disk.f_frsize // 10)
        return disk.f_bavail * disk.f_frsize, usual if self.reserve_bytes is None else self.reserve_bytes

    def check(self, incidents: Path, incident: IncidentId, wanted_bytes: int, there_bytes: int) -> None:
        """Counts what is wanted in the place of a copy of `there_bytes`. Raises `NotAllowed`."""
        free, reserve = self.disk(incidents)
        small = wanted_bytes <= _SMALL_BYTES
        if small:
            reserve //= 2
        if free - wanted_bytes < reserve:
            raise NotAllowed(
                f"it was read and not kept: {size(free)} are free where incidents are kept, and {size(reserve)} of it "
                "stay free for the incidents themselves",
                where=str(incidents / incident),
                next_step="make room, or let older evidence go sooner (`keep` in the inventory, `runbook prune`)",
            )
        more_bytes = max(wanted_bytes - there_bytes, 0)
        self._check_share(incidents, incident, more_bytes, None if small else free - reserve)

    def _check_share(self, incidents: Path, incident: IncidentId, wanted_bytes: int, room_bytes: int | None) -> None:
        """`room_bytes`: what is left for logs; one owner takes half of it at most, so that there is some for the next.
        None: what is wanted is too little to matter."""
        if self.open_of is None or self.owner_bytes is None:
            return
        now_s = time.monotonic()
        with self._lock:
            looked_s, owner, theirs = self._owners.get(incident, (-math.inf, UserName(""), ()))
        if now_s - looked_s > _COUNTED_FOR_S:
            owner, theirs = self.open_of(incident)
            with self._lock:
                if len(self._owners) > _MOST_OWNERS:
                    self._owners.clear()
                self._owners[incident] = now_s, owner, theirs
        with self._lock:
            counted_s, kept = self._sums.get(owner, (-math.inf, 0))
            if now_s - counted_s > _COUNTED_FOR_S:
                counted_s, kept = now_s, sum(_kept_bytes(incidents / name) for name in theirs)
            most = self.owner_bytes if room_bytes is None else min(self.owner_bytes, (kept + room_bytes) // 2)
            fits = kept + wanted_bytes <= most
            self._sums[owner] = counted_s, kept + (wanted_bytes if fits else 0)
        if not fits:
            half = "" if most == self.owner_bytes else ", half of what there is room for"
            raise NotAllowed(
                f"it was read and not kept: {size(kept)} are kept of {owner}'s open incidents and their logs, and one"
                f" owner has {size(most)}{half}",
                where=str(incidents / incident),
                next_step="end some of them, or " + (
                    "make room where incidents are kept" if half else "raise keep.owner_gib in the inventory"
                ),
            )


def _bytes_on_disk(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_blocks * 512
    return 0


def _kept_bytes(folder: Path) -> int:
    """Of an incident: its logs, and its document with its page and what the database holds of it."""
    kept = RECORDED * _bytes_on_disk(folder / "incident.json") + _bytes_on_disk(folder / "report.html")
    with contextlib.suppress(OSError), os.scandir(folder / "evidence") as entries:
        kept += sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
    return kept


class IncidentStore:
    """All incidents under one root. Any number of processes may read; one driver writes an incident."""

    def __init__(self, root: Path, contract_of: Contract | None = None, logs: LogsKept | None = None) -> None:
        """`contract_of` gives the diagnosis contract of an incident when `save` is not handed one. `logs`: how much of
        them is kept; None: no owner's share is known."""
        self._logs = logs or LogsKept()
        self._root = root
        self._incidents = root / "incidents"
        self._contract_of = contract_of

    @property
    def root(self) -> Path:
        return self._root

    def disk(self) -> tuple[int, int]:
        """What is free where incidents are stored, and what of it no log is copied into. Raises `Unavailable`."""
        return self._logs.disk(self._root)

    def folder(self, incident: IncidentId) -> Path:
        """The incident's folder, which need not exist yet. Raises `BadInput` for what is no incident id."""
        return self._incidents / check_incident_id(incident)

    def path(self, incident: IncidentId, relative: str) -> Path:
        """Where a file of the incident lies or would lie. Raises `BadInput` for a place outside its folder."""
        return self.folder(incident) / _relative(relative)

    def exists(self, incident: IncidentId) -> bool:
        """Whether the incident has been saved."""
        return (self.folder(incident) / "incident.json").is_file()

    def save(self, incident: Incident, contract: Mapping[str, Any] | None = None) -> Path:
        """Write `incident.json`, durably and whole or not at all; the previous version stays on any failure."""
        if contract is None and self._contract_of is not None:
            contract = self._contract_of(incident)
        return self.write_file(incident.id, "incident.json", dump_incident(incident, contract))

    def load(self, incident: IncidentId) -> Incident:
        """Raises `NotFound`; `BadInput` when the document is damaged or of a newer version."""
        path = self.folder(incident) / "incident.json"
        return load_incident(self.read_file(incident, "incident.json"), str(path))

    def evidence_gone(self, incident: IncidentId) -> bool:
        """Whether its kept logs were removed: they go before the incident does (`keep` of the inventory)."""
        folder = self.folder(incident)
        return not (folder / "evidence").is_dir() and (folder / REMOVED_NOTE).is_file()

    def as_kept(self, incident: Incident) -> Incident:
        """The incident without the names of kept logs that were removed."""
        return replace(incident, evidence_files=()) if self.evidence_gone(incident.id) else incident

    def load_contract(self, incident: IncidentId) -> dict[str, Any] | None:
        """The diagnosis contract that was saved with the incident."""
        return load_contract(self.read_file(incident, "incident.json"))

    def write_file(
        self,
        incident: IncidentId,
        relative: str,
        content: bytes,
        mode: int = 0o600,
        owner: tuple[int, int] | None = None,
    ) -> Path:
        """Write a file of the incident atomically and durably. `owner` (uid, gid) may read it, too. Raises
        `Unavailable` on a full disk."""
        path = self._place(incident, relative)
        with replacing(path, mode, owner) as stream:
            stream.write(content)
        return path

    def copy_stream(
        self, incident: IncidentId, relative: str, stream: BinaryIO, limit_bytes: int
    ) -> tuple[Path, bool]:
        """Keep a log: whole when it is within `limit_bytes`, else its head and its tail (one part to three: a job
        says at its end why it died) with a line between that tells what was left out. Returns (path, shortened). Raises
        `NotAllowed` where too little would stay free for the incidents themselves, or the owner has his share."""
        path = self._place(incident, relative)
        wanted = limit_bytes if (length := _length(stream)) is None else min(length, limit_bytes)
        self._logs.check(self._incidents, incident, wanted, _bytes_on_disk(path))
        with replacing(path, 0o600, None) as target:
            shortened = copy_windows(stream, target, max(limit_bytes, 1))
            target.truncate()
        return path, shortened

    def read_file(self, incident: IncidentId, relative: str) -> bytes:
        """A kept file. Raises `NotFound`."""
        path = self.folder(incident) / _relative(relative)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            known = self.folder(incident).is_dir()
            raise NotFound(
                f"{relative} is not kept for {incident}" if known else f"no incident {incident}",
                where=str(path),
                next_step="`runbook incidents` shows the incidents that there are",
            ) from error
        except OSError as error:
            raise _problem(error, "reading", path) from error

    def stamps(self, known: Container[str] = ()) -> dict[str, Stamp]:
        """Of every incident's document, by the folder's name. Names that are `known` need no second look."""
        try:
            with os.scandir(self._incidents) as entries:
                names = [entry.name for entry in entries if entry.name in known or is_incident_id(entry.name)]
            folder = os.open(self._incidents, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _problem(error, "listing", self._incidents) from error
        try:
            stamps = {name: _stamp(f"{name}/incident.json", folder) for name in names}
        finally:
            os.close(folder)
        return {name: stamp for name, stamp in stamps.items() if stamp is not None}

    def stamp(self, name: str) -> Stamp | None:
        """Of one incident's document; None where there is none."""
        return _stamp(f"{self._incidents}/{name}/incident.json")

    # -- places --------------------------------------------------------------------------------------------

    def _place(self, incident: IncidentId, relative: str) -> Path:
        """Where to write, with the folders made."""
        path = self.folder(incident) / _relative(relative)
        missing = []
        folder = path.parent
        while folder != self._root.parent and not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for folder in reversed(missing):
            mode = 0o700 if folder.name in _PRIVATE_FOLDERS else 0o711
            try:
                private_folder(folder, mode)
                sync_folder(folder.parent)
            except OSError as error:
                raise _problem(error, "making", folder) from error
        return path


def _stamp(path: str, folder: int | None = None) -> Stamp | None:
    # Plain os.stat and a plain try: ten thousand Path objects would take longer than the questions.
    try:
        status = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


def _relative(relative: str) -> PurePosixPath:
    path = PurePosixPath(relative)
    if (
        not relative
        or path.is_absolute()
        or "\0" in relative
        or any(part in ("..", ".") or part.startswith(".") or len(os.fsencode(part)) > 200 for part in path.parts)
        or not path.parts
    ):
        raise BadInput(f"{relative[:80]!r} is no place inside an incident's folder")
    return path


@contextlib.contextmanager
def replacing(path: Path, mode: int, reader: tuple[int, int] | None) -> Iterator[IO[bytes]]:
    """As `whole_file`, with the store's words for what goes wrong."""
    try:
        with whole_file(path, mode, reader=reader) as stream:
            yield stream
    except OSError as error:
        raise _problem(error, "writing", path) from error


def _length(stream: BinaryIO) -> int | None:
    """Of what is left to read; None where that is not known before it is."""
    if not stream.seekable():
        return None
    here = stream.tell()
    length = stream.seek(0, os.SEEK_END) - here
    stream.seek(here)
    return length


def _problem(error: OSError, doing: str, path: Path) -> RunbookError:
    reason = error.strerror or str(error)
    if isinstance(error, PermissionError):
        return NotAllowed(
            f"{doing} failed: {reason}",
            where=str(path),
            next_step="run as the user that the store belongs to, or name another with --state",
        )
    if error.errno == errno.ENOTSUP:
        return NotAllowed(f"{doing} failed: {reason}", where=str(path), next_step="move the state folder, then resume")
    return Unavailable(
        f"{doing} failed: {reason}; the version that was there before is untouched",
        where=str(path),
        next_step="make room or mend the file system, then go on with `runbook resume`",
    )
