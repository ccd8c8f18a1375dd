"""One file that holds a store: a tar archive, compressed by zstd, whose last member says what each other one has to be.

    workflows.jsonl               what the engine had recorded, a row a line (`workflow_rows.py`)
    pruned.json                   what the metrics remember of incidents that have gone
    incidents/<id>/<file>         plain files alone; folders are made as the store makes them
    manifest.json                 size, mode, owner and SHA-256 of each

An archive is believed in nothing: what is no plain file, lies outside, comes twice, is more than there is room for or
is not what the manifest says is refused, and nothing has been put in place by then. What has been zeros becomes holes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast

import zstandard

from runbook.adapters.store import IncidentStore
from runbook.adapters.whole_file import let_read, private_folder, put_sparse, reader_of, whole_file
from runbook.errors import BadInput, NotAllowed, RunbookError, Unavailable
from runbook.model.units import is_incident_id, size

VERSION = 1
ROWS = "workflows.jsonl"
PRUNED = "pruned.json"
_MANIFEST = "manifest.json"
_MOST_MANIFEST_BYTES = 512 << 20
_LEAST_FREE_BYTES = 64 << 20
_MOST_COPY_BYTES = 16 << 20
"""Of one patched copy of a script or of a file that it names."""
_CHUNK_BYTES = 1 << 20
_DEEPEST = 12
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the archive."""

    size_bytes: int
    mode: int
    uid: int
    gid: int
    sha256: str
    reader: int | None = None
    """The user who may read a patched copy, too."""


@dataclass
class Manifest:
    made_s: float
    """When the backup was begun: what was done outside later is not known to it."""
    tool: str
    cluster: str
    version: int = VERSION
    files: dict[str, Member] = field(default_factory=dict)

    @property
    def incidents(self) -> frozenset[str]:
        return frozenset(name.split("/")[1] for name in self.files if name.startswith("incidents/"))


# Writing


def write_archive(
    path: Path, store: IncidentStore, rows: Path, manifest: Manifest, kept: Mapping[tuple[str, str], bytes]
) -> tuple[str, ...]:
    """Everything of the store, with the rows that were taken from the engine's database before. `kept`: by incident and
    place, what counts in place of the file there. Returns what was left out: what is neither a file nor a folder, and
    copies that their owner has swollen. Raises `Unavailable`."""
    left: list[str] = []
    try:
        with whole_file(path, 0o600) as target:
            packed = zstandard.ZstdCompressor(level=3).stream_writer(target, closefd=False)
            with packed, tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                _add(tar, manifest, ROWS, rows)
                _add(tar, manifest, PRUNED, store.root / PRUNED)
                for name in sorted(store.stamps()):
                    # The document first: all that it names is there by the time that the rest is read.
                    folder = store.root / "incidents" / name
                    _add(tar, manifest, f"incidents/{name}/incident.json", folder / "incident.json")
                    for file in _files(folder, left):
                        relative = str(file.relative_to(folder))
                        if relative == "incident.json" or (name, relative) in kept:
                            continue
                        if relative.startswith("attempts/"):
                            _add_copy(tar, manifest, f"incidents/{name}/{relative}", file, left)
                        else:
                            _add(tar, manifest, f"incidents/{name}/{relative}", file)
                    for (incident, relative), content in kept.items():
                        if incident == name:
                            _add_text(tar, manifest, f"incidents/{name}/{relative}", content, None)
                text = json.dumps(asdict(manifest)).encode()
                info = tarfile.TarInfo(_MANIFEST)
                info.size, info.mode = len(text), 0o600
                tar.addfile(info, _Bytes(text))
    except OSError as error:
        raise Unavailable(
            f"the backup could not be written: {error.strerror or error}", where=str(path),
            next_step="make room, or name a folder that you may write to",
        ) from error
    return tuple(left)


def _files(folder: Path, left: list[str]) -> Iterator[Path]:
    """Every plain file below; one whose name begins with a dot is being written."""
    folders = [folder]
    while folders:
        try:
            entries = sorted(os.scandir(folders.pop()), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            else:
                left.append(entry.path)


def _add(tar: tarfile.TarFile, manifest: Manifest, name: str, path: Path) -> None:
    """One file, as it is once it is open: its name may be another version's by then, or nobody's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = status.st_size, stat.S_IMODE(status.st_mode), status.st_mtime
        info.uid, info.gid = status.st_uid, status.st_gid
        hashed = _Hashed(stream)
        tar.addfile(info, cast(IO[bytes], hashed))
    manifest.files[name] = Member(info.size, info.mode, info.uid, info.gid, hashed.hexdigest())


class _Hashed:
    """A stream that is read once, with the digest of what was read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._digest = stream, hashlib.sha256()

    def read(self, length: int = -1) -> bytes:
        data = self._stream.read(length)
        self._digest.update(data)
        return data

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _add_copy(tar: tarfile.TarFile, manifest: Manifest, name: str, path: Path, left: list[str]) -> None:
    """A patched copy, which is its job's owner's where an earlier version wrote it, or where the file system knows no
    access lists: read whole before it is written, as he may write to it meanwhile, and left out where he keeps it from
    being opened, or has made it larger than a script or a configuration is."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError:
        left.append(str(path))
        return
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        content = stream.read(_MOST_COPY_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    if len(content) > _MOST_COPY_BYTES:
        left.append(str(path))
        return
    _add_text(tar, manifest, name, content, status)
    manifest.files[name] = replace(manifest.files[name], reader=reader_of(path))


def _add_text(
    tar: tarfile.TarFile, manifest: Manifest, name: str, content: bytes, status: os.stat_result | None
) -> None:
    """`status`: of the file that it was read from; None: it is the service's own."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.uid, info.gid = len(content), 0o600, os.geteuid(), os.getegid()
    if status is not None:
        info.mode, info.mtime = stat.S_IMODE(status.st_mode), status.st_mtime
        info.uid, info.gid = status.st_uid, status.st_gid
    tar.addfile(info, _Bytes(content))
    digest = hashlib.sha256(content).hexdigest()
    manifest.files[name] = Member(info.size, info.mode, info.uid, info.gid, digest)


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, length: int = -1) -> bytes:
        data, self._data = self._data[:length], self._data[length:]
        return data


# Reading


def unpack(path: Path, folder: Path) -> Manifest:
    """Everything, into a folder that is empty and nobody else's. Raises `BadInput` for what is no whole backup of ours,
    `Unavailable` where there is no room."""
    try:
        with path.open("rb") as packed, zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            return _unpacked(cast(BinaryIO, stream), folder)
    except RunbookError:
        raise
    except (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError, KeyError, TypeError) as error:
        raise _refused(path, f"it cannot be read ({type(error).__name__})") from error
    except OSError as error:
        raise Unavailable(
            f"the backup could not be unpacked: {error.strerror or error}", where=error.filename or str(path),
            next_step="make room, or name another folder with --into",
        ) from error


def _unpacked(stream: BinaryIO, folder: Path) -> Manifest:
    found: dict[str, Member] = {}
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for info in tar:
            # A sparse member is as long as it says, whatever it takes.
            if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
                raise _refused(info.name, "it is no plain file")
            content = tar.extractfile(info)
            assert content is not None
            if info.name == _MANIFEST:
                if info.size > _MOST_MANIFEST_BYTES:
                    raise _refused(info.name, "it is too large")
                return _checked(_manifest(json.loads(content.read())), found)
            target = _place(folder, info.name)
            if info.name in found:
                raise _refused(info.name, "it comes twice")
            digest = _write(target, content, info.size)
            found[info.name] = Member(info.size, stat.S_IMODE(info.mode), info.uid, info.gid, digest)
    raise _refused(_MANIFEST, "it is missing: the archive was cut off")


def _place(folder: Path, name: str) -> Path:
    """Where a member goes. Its name is one that the store itself could have given."""
    if name not in (ROWS, PRUNED):
        parts = name.split("/")
        plain = all(part and part[0] != "." and "\0" not in part and len(os.fsencode(part)) <= 255 for part in parts)
        if not plain or parts[0] != "incidents" or not 3 <= len(parts) <= _DEEPEST or not is_incident_id(parts[1]):
            raise _refused(name, "it is no file of a store")
    path = folder / PurePosixPath(name)
    for above in reversed(path.relative_to(folder).parents[:-1]):
        # Each as the store makes it; one that is there is a folder of ours, as nothing else is ever made here.
        if not (folder / above).is_dir():
            try:
                private_folder(folder / above, 0o700 if above.name == "evidence" else 0o711)
            except (FileExistsError, NotADirectoryError) as error:
                raise _refused(name, "it lies in a file") from error
    return path


def _write(path: Path, content: IO[bytes], length: int) -> str:
    free = os.statvfs(path.parent)
    if length - free.f_bavail * free.f_frsize > -_LEAST_FREE_BYTES and length > _MOST_MANIFEST_BYTES:
        raise Unavailable(f"there is no room for {size(length)}", where=str(path), next_step="make room")
    digest = hashlib.sha256()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise _refused(path.name, "it comes twice") from error
    with os.fdopen(descriptor, "wb") as target:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
            put_sparse(target, chunk)
        target.truncate()
        target.flush()
        if target.tell() != length:
            raise _refused(path.name, "it is shorter than it says")
        os.fsync(descriptor)
    return digest.hexdigest()


def _manifest(document: Any) -> Manifest:
    version = document["version"]
    if version != VERSION:
        raise NotAllowed(
            f"the backup is of version {version!r}, and this program reads {VERSION}",
            next_step="install the version that made it, or a newer one",
        )
    files = {str(name): Member(**given) for name, given in document["files"].items()}
    if not all(_HEX.fullmatch(member.sha256) for member in files.values()):
        raise _refused(_MANIFEST, "a digest is none")
    return Manifest(float(document["made_s"]), str(document["tool"]), str(document["cluster"]), version, files)


def _checked(manifest: Manifest, found: dict[str, Member]) -> Manifest:
    if missing := sorted(manifest.files.keys() - found.keys()):
        raise _refused(missing[0], "it is missing")
    for name, member in found.items():
        promised = manifest.files.get(name)
        if promised is None or replace(promised, reader=None) != member:
            raise _refused(name, "it is not what the manifest says")
    return manifest


def give_modes(folder: Path, manifest: Manifest) -> None:
    """Each file its mode, never more than its owner's; patched copies their owner, where this process may, and whoever
    may read them. Raises `OSError`."""
    for name, member in manifest.files.items():
        path = folder / PurePosixPath(name)
        if os.geteuid() == 0 and name.split("/")[2:3] == ["attempts"]:
            os.chown(path, member.uid, member.gid, follow_symlinks=False)
        path.chmod((member.mode & 0o700) | 0o400)
        if member.reader is not None and name.split("/")[2:3] == ["attempts"]:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                let_read(descriptor, member.reader)
            except OSError as error:
                # What was submitted from it has read it by now; a relaunch that needs one writes it anew, and says so.
                if error.errno != errno.ENOTSUP:
                    raise
            finally:
                os.close(descriptor)


def _refused(where: object, why: str) -> BadInput:
    return BadInput(f"this is no backup that can be restored: {why}", where=str(where)[:200])
