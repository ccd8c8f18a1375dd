"""Incident folders on disk: the incident itself, kept evidence, patched templates.

    <root>/                        0711  passable: a job's owner reaches the patched copy that is submitted for him
      incidents.index              0600  rows for lists; only a cache, made again when it is missing or damaged
      incidents/<id>/              0711
        incident.json              0600
        report.html                0600
        evidence/                  0700  users' logs
        attempts/<n>/…             0711  patched copies, mode as the writer says
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, NamedTuple

from runbook.adapters.whole_file import sync_folder, whole_file
from runbook.errors import BadInput, NotAllowed, NotFound, RunbookError, Unavailable
from runbook.model.incident import Incident
from runbook.model.units import IncidentId
from runbook.report.json_documents import dump_incident, load_contract, load_incident
from runbook.report.summary import IncidentSummary, LeverTry, Tally, summaries_adapter, summarize

# Keeping a log that may be huge: its beginning and its end, whole where it is small.

_CHUNK_BYTES = 1 << 20
_LINE_SEARCH_BYTES = 1 << 16


def copy_windows(source: BinaryIO, target: IO[bytes], limit: int) -> bool:
    """Copy a log of at most `limit` bytes whole; of a larger one the first quarter of that and the rest from its end,
    cut at line borders, with a line between that says what was left out. True when something was."""
    head_bytes = max(limit // 4, 1)
    tail_bytes = max(limit - head_bytes, 1)
    head = _read_up_to(source, head_bytes)
    target.write(head)
    if len(head) < head_bytes:
        return False
    skipped, tail = _skip_to_tail(source, tail_bytes)
    if skipped == 0:
        for chunk in tail:
            target.write(chunk)
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
        target.write(chunk)
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


_ID = re.compile(r"oom-[A-Za-z0-9][A-Za-z0-9_.+-]{0,120}")
_PRIVATE_FOLDERS = frozenset({"evidence"})
_INDEX_REWRITE_CHANGES = 32
_INDEX_MADE = 2
"""Raised by hand when a row's fields stay and what they mean changes."""

Contract = Callable[[Incident], Mapping[str, Any] | None]


def check_incident_id(text: str) -> IncidentId:
    """The id, if it is one: `oom-<cluster>-<job>`, letters, digits and `_.+-`. Raises `BadInput` otherwise."""
    if not _ID.fullmatch(text) or ".." in text:
        raise BadInput(
            f"{text[:80]!r} is no incident id",
            next_step="name one as `runbook incidents` prints it: oom-CLUSTER-JOB",
        )
    return IncidentId(text)


class Stamp(NamedTuple):
    """Identity of one written version of a file: each save is a new inode with its own time."""

    modified_ns: int
    size_bytes: int
    inode: int


@dataclass(frozen=True, slots=True)
class _Row:
    stamp: Stamp
    summary: IncidentSummary


class IncidentStore:
    """All incidents under one root. Any number of processes may read; one driver writes an incident."""

    def __init__(self, root: Path, contract_of: Contract | None = None) -> None:
        """`contract_of` gives the diagnosis contract of an incident when `save` is not handed one."""
        self._root = root
        self._incidents = root / "incidents"
        self._index = root / "incidents.index"
        self._contract_of = contract_of
        self._rows: dict[str, _Row] | None = None
        self._newest: tuple[Mapping[str, _Row], tuple[IncidentSummary, ...]] | None = None
        """Rows, and their summaries in the order of lists."""
        self._unwritten = 0

    @property
    def root(self) -> Path:
        return self._root

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

    def load_contract(self, incident: IncidentId) -> dict[str, Any] | None:
        """The diagnosis contract that was saved with the incident."""
        return load_contract(self.read_file(incident, "incident.json"))

    def list(self) -> tuple[IncidentSummary, ...]:
        """Every incident, newest first. One that cannot be read is left out; `unreadable` names it."""
        return self.overview()[0]

    def unreadable(self) -> tuple[str, ...]:
        """Folders that hold no readable incident, by name."""
        return self.overview()[1]

    def overview(self) -> tuple[tuple[IncidentSummary, ...], tuple[str, ...]]:
        """`list` and `unreadable` from one look at the disk."""
        rows, unreadable = self._look()
        newest = self._newest
        if newest is None or newest[0] is not rows:
            # Ten thousand rows are asked for every few seconds and seldom change: the same answer is the same object.
            summaries = (row.summary for row in rows.values())
            newest = rows, tuple(sorted(summaries, key=lambda row: (row.opened_s, row.id), reverse=True))
            self._newest = newest
        return newest[1], unreadable

    def rebuild_index(self) -> int:
        """Forget the index and make it again from the incidents; returns how many there are."""
        self._rows = {}
        self._unwritten = _INDEX_REWRITE_CHANGES
        return len(self._look()[0])

    def write_file(
        self,
        incident: IncidentId,
        relative: str,
        content: bytes,
        mode: int = 0o600,
        owner: tuple[int, int] | None = None,
    ) -> Path:
        """Write a file of the incident atomically and durably. `owner` (uid, gid) is given the file where this
        process may do that; else `mode` alone decides who reads it. Raises `Unavailable` on a full disk."""
        path = self._place(incident, relative)
        with replacing(path, mode, owner) as stream:
            stream.write(content)
        return path

    def copy_stream(
        self, incident: IncidentId, relative: str, stream: BinaryIO, limit_bytes: int
    ) -> tuple[Path, bool]:
        """Keep a log: whole when it is within `limit_bytes`, else its head and its tail (one part to three: a job
        says at its end why it died) with a line between that tells what was left out. Returns (path, shortened)."""
        path = self._place(incident, relative)
        with replacing(path, 0o600, None) as target:
            shortened = copy_windows(stream, target, max(limit_bytes, 1))
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

    # -- rows ----------------------------------------------------------------------------------------------

    def _look(self) -> tuple[dict[str, _Row], tuple[str, ...]]:
        """Rows for what is on disk now: unchanged ones from the cache, the others read from the incident; and the
        names of those that cannot be read."""
        known = self._read_index() if self._rows is None else self._rows
        changed: dict[str, _Row] = {}
        unreadable: list[str] = []
        stamps = self.stamps(known)
        for name, stamp in stamps.items():
            row = known.get(name)
            if row is None or row.stamp != stamp:
                try:
                    changed[name] = _Row(stamp, summarize(self.load(IncidentId(name))))
                except RunbookError:
                    unreadable.append(name)
        gone = known.keys() - stamps.keys() | known.keys() & set(unreadable)
        if not changed and not gone:
            self._rows = known
            return known, tuple(unreadable)
        rows = {**known, **changed}
        for name in gone:
            del rows[name]
        self._unwritten += len(changed) + len(gone)
        self._rows = rows
        if self._unwritten >= _INDEX_REWRITE_CHANGES:
            self._write_index(rows)
        return rows, tuple(unreadable)

    def stamps(self, known: Container[str] = ()) -> dict[str, Stamp]:
        """Of every incident's document, by the folder's name. Names that are `known` need no second look."""
        try:
            with os.scandir(self._incidents) as entries:
                names = [entry.name for entry in entries]
            folder = os.open(self._incidents, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _problem(error, "listing", self._incidents) from error
        stamps = {}
        try:
            for name in names:
                if name not in known and not _ID.fullmatch(name):
                    continue
                # Plain os.stat and a plain try: ten thousand Path objects would take longer than the questions.
                try:
                    status = os.stat(f"{name}/incident.json", dir_fd=folder, follow_symlinks=False)
                except OSError:
                    continue
                stamps[name] = Stamp(status.st_mtime_ns, status.st_size, status.st_ino)
        finally:
            os.close(folder)
        return stamps

    def _read_index(self) -> dict[str, _Row]:
        """Damage of any kind is an empty index: it is made again."""
        try:
            data = self._index.read_bytes()
        except OSError:
            return {}
        head, _, rest = data.partition(b"\n")
        if head + b"\n" != _index_version():
            return {}
        stamps, _, summaries = rest.partition(b"\n\n")
        try:
            rows = summaries_adapter().validate_json(summaries)
            figures = [[int(figure) for figure in line.split()] for line in stamps.splitlines()]
            return {row.id: _Row(Stamp(*stamp), row) for row, stamp in zip(rows, figures, strict=True)}
        except (ValueError, TypeError):
            return {}

    def _write_index(self, rows: Mapping[str, _Row]) -> None:
        stamps = "\n".join(
            f"{row.stamp.modified_ns} {row.stamp.size_bytes} {row.stamp.inode}" for row in rows.values()
        )
        summaries = summaries_adapter().dump_json([row.summary for row in rows.values()])
        # A reader who may not write, or a full disk, only means that the next list is made from the incidents.
        with contextlib.suppress(RunbookError), replacing(self._index, 0o600, None) as stream:
            stream.write(_index_version() + stamps.encode() + b"\n\n" + summaries)
            self._unwritten = 0

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
                folder.mkdir(mode=mode, exist_ok=True, parents=folder == self._root)
                folder.chmod(mode)
                sync_folder(folder.parent)
            except OSError as error:
                raise _problem(error, "making", folder) from error
        return path


@cache
def _index_version() -> bytes:
    """The first line of the index. An index whose rows have other fields is made again from the incidents."""
    fields = [field.name for kind in (IncidentSummary, LeverTry, Tally) for field in dataclass_fields(kind)]
    return f"runbook-index {_INDEX_MADE} {zlib.crc32(' '.join(fields).encode()):08x}\n".encode()


def _relative(relative: str) -> PurePosixPath:
    path = PurePosixPath(relative)
    if (
        not relative
        or path.is_absolute()
        or "\0" in relative
        or any(part in ("..", ".") or part.startswith(".") or len(part) > 200 for part in path.parts)
        or not path.parts
    ):
        raise BadInput(f"{relative[:80]!r} is no place inside an incident's folder")
    return path


@contextlib.contextmanager
def replacing(path: Path, mode: int, owner: tuple[int, int] | None) -> Iterator[IO[bytes]]:
    """As `whole_file`, with the store's words for what goes wrong."""
    try:
        with whole_file(path, mode, owner) as stream:
            yield stream
    except OSError as error:
        raise _problem(error, "writing", path) from error


def _problem(error: OSError, doing: str, path: Path) -> RunbookError:
    reason = error.strerror or str(error)
    if isinstance(error, PermissionError):
        return NotAllowed(
            f"{doing} failed: {reason}",
            where=str(path),
            next_step="run as the user that the store belongs to, or name another with --state",
        )
    return Unavailable(
        f"{doing} failed: {reason}; the version that was there before is untouched",
        where=str(path),
        next_step="make room or mend the file system, then go on with `runbook resume`",
    )
