"""The spool: small files that Slurm's epilog leaves when a job has ended badly, and the webhook when it is told so,
read without trusting them.

A file is removed only when its incident is durably opened; what is no event is moved to `bad/` with the reason
beside it, so that nothing is lost silently and nothing is looked at twice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from runbook.adapters.whole_file import private_folder, whole_file
from runbook.errors import Unavailable
from runbook.model.incident import GUESSES
from runbook.model.units import JobId, NodeName

FORMAT = 1
MOST_BYTES = 4096
"""An event has nine short lines."""
MOST_AGED = 5000
"""Files whose age is looked at: in a flood of more, an estimate is enough."""
MOST_LOOKED_AT = 5000
"""Files that are read for the first time at a look, so that a flood of them holds up no beat."""
MOST_BAD = 1000
"""Files kept in `bad/`; later ones are dropped."""

_FOLDERS = ("bad", "nodes")
"""Of the spool's own; in `nodes` are the answers that the nodes' own epilogs leave."""
_NAME = re.compile(r"(?P<cluster>[A-Za-z0-9][A-Za-z0-9_.-]{0,39})-(?P<job>\d{1,18})-(?P<restart>\d{1,18})\.event")
_ALERT_NAME = re.compile(
    r"(?P<cluster>[A-Za-z0-9][A-Za-z0-9_.-]{0,39})-(?P<fingerprint>[0-9a-f]{16})-(?P<began>\d{1,11})\.alert"
)
_JOB = re.compile(r"\d{1,10}(?:_\d{1,10})?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_ALERT = re.compile(r"[A-Za-z0-9_:.-]{1,80}")
_CODE = re.compile(r"(\d{1,5}):(\d{1,3})")
_NUMBER = re.compile(r"\d{1,18}")
_PLAYBOOK = re.compile(r"([a-z][a-z0-9_]{0,30})?")
_KNOWN = (
    "format", "job_id", "array_job_id", "array_task_id", "uid", "exit_code", "derived_exit_code", "restart_count",
    "cluster", "time", "alert", "node", "playbook", "by",
)
WATCH = "watch"


@dataclass(frozen=True, slots=True)
class SpoolEvent:
    """A job that ended badly, as the epilog noted it. None: it did not say."""

    file: str
    """The file's name in the spool: the event's identity."""
    cluster: str
    """"unknown" where Slurm gave none."""
    job: JobId
    """"4711", or "4700_3" for a task of an array."""
    raw_job_id: str
    """The number of its own that Slurm gives every array task."""
    restart_count: int
    time_s: float
    uid: int | None = None
    exit_code: tuple[int, int] | None = None
    """Status and signal."""
    derived_exit_code: tuple[int, int] | None = None
    trigger: str = "epilog"
    """"epilog": the job has ended badly. "alert": somebody's word that something is wrong with it. "watch": its log
    told of a memory failure, and it is still since."""
    alert: str = ""
    """The alert's name."""
    node: NodeName = NodeName("")
    """Of an alert that names no job: where, so that the job is still to be found. `job` is "" then."""
    playbook: str = ""
    """Whose flow it is for; "": of whoever reads the spool."""

    @property
    def is_suspicion(self) -> bool:
        """Whether it says that something is wrong with a job, and not that the job has ended."""
        return self.trigger in GUESSES

    @property
    def ended_well(self) -> bool:
        """Whether its codes say so: those of a job that ran into its time limit may."""
        return self.exit_code == self.derived_exit_code == (0, 0)


@dataclass(frozen=True, slots=True)
class BadEvent:
    """A file that is no event, and why."""

    file: str
    why: str


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """How much waits. `oldest_s`: when the oldest waiting event was written, epoch seconds."""

    depth: int
    oldest_s: float | None
    bad: int = 0
    """Files set aside in `bad/`."""


def parse_event(file: str, data: bytes, written_s: float) -> SpoolEvent | BadEvent:
    """Read one event. `written_s`: when the file was written, which is when the job ended unless it says so."""
    name = (_ALERT_NAME if file.endswith(".alert") else _NAME).fullmatch(file)
    if name is None:
        return BadEvent(file, "its name is not <cluster>-<job id>-<restart count>.event, nor that of an alert")
    if len(data) > MOST_BYTES:
        return BadEvent(file, f"it is larger than {MOST_BYTES} bytes")
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        return BadEvent(file, "it is not ASCII text")
    values: dict[str, str] = {}
    for line in text.split("\n"):
        if not line:
            continue
        key, equals, value = line.partition("=")
        if not equals or key in values:
            return BadEvent(file, f"the line {line[:60]!r} is no key=value, or its key comes twice")
        # A newer epilog may say more; what is not known here is passed over.
        if key in _KNOWN:
            values[key] = value
    if not _PLAYBOOK.fullmatch(values.get("playbook", "")):
        return BadEvent(file, "its playbook is no name")
    return _alert(name, values) if file.endswith(".alert") else _event(name, values, written_s)


def alert_file(cluster: str, fingerprint: str, began_s: float) -> str:
    """The name of an alert's file: the same alert of the same beginning has the same, so that it waits only once."""
    return f"{cluster[:40]}-{fingerprint}-{began_s:.0f}.alert"


def alert_text(event: SpoolEvent) -> str:
    """An alert's file as `parse_event` reads it. Raises `ValueError` for values that it would not take back."""
    lines = {
        "format": str(FORMAT), "cluster": event.cluster, "job_id": event.job, "node": event.node,
        "alert": event.alert, "time": f"{event.time_s:.0f}", "playbook": event.playbook,
        "by": event.trigger if event.trigger == WATCH else "",
    }
    text = "".join(f"{key}={value}\n" for key, value in lines.items() if value)
    if parse_event(event.file, text.encode(), event.time_s) != event:
        raise ValueError(f"no event of an alert: {event.file[:200]}")
    return text


def _alert(name: re.Match[str], values: dict[str, str]) -> SpoolEvent | BadEvent:
    file = name.string
    job, node, alert = values.get("job_id", ""), values.get("node", ""), values.get("alert", "")
    if values.get("format") != str(FORMAT) or values.get("cluster") != name["cluster"]:
        return BadEvent(file, f"its format is not {FORMAT}, or its name and its content tell of different clusters")
    if not _ALERT.fullmatch(alert) or values.get("time") != name["began"]:
        return BadEvent(file, "it has no alert's name, or its name and its content tell of different times")
    named = bool(_JOB.fullmatch(job)), bool(_NODE.fullmatch(node))
    if not any(named) or (job and not named[0]) or (node and not named[1]):
        return BadEvent(file, "it names neither a job nor a node")
    if values.get("by", "") not in ("", WATCH):
        return BadEvent(file, "it is by nobody that is known here")
    return SpoolEvent(
        file=file, cluster=name["cluster"], job=JobId(job), raw_job_id=job, restart_count=0,
        time_s=float(name["began"]), trigger=values.get("by") or "alert", alert=alert, node=NodeName(node),
        playbook=values.get("playbook", ""),
    )


def _event(name: re.Match[str], values: dict[str, str], written_s: float) -> SpoolEvent | BadEvent:
    file = name.string
    if values.get("format") != str(FORMAT):
        said = values.get("format", "missing")
        return BadEvent(file, f"format {said!r} is not {FORMAT}; upgrade runbook or its epilog")
    job, restart, cluster = values.get("job_id", ""), values.get("restart_count", ""), values.get("cluster", "")
    if (cluster, job, restart) != (name["cluster"], name["job"], name["restart"]):
        return BadEvent(file, "its name and its content tell of different jobs")
    for key in ("array_job_id", "array_task_id", "uid"):
        if values.get(key) and not _NUMBER.fullmatch(values[key]):
            return BadEvent(file, f"{key} is no number")
    codes: dict[str, tuple[int, int] | None] = {}
    for key in ("exit_code", "derived_exit_code"):
        match = _CODE.fullmatch(values.get(key, ""))
        if values.get(key) and match is None:
            return BadEvent(file, f"{key} is not status:signal")
        codes[key] = (int(match[1]), int(match[2])) if match else None
    array, task = values.get("array_job_id", ""), values.get("array_task_id", "")
    said_s = values.get("time", "")
    return SpoolEvent(
        file=file,
        cluster=cluster,
        job=JobId(f"{array}_{task}" if array and task else job),
        raw_job_id=job,
        restart_count=int(restart),
        time_s=float(said_s) if re.fullmatch(r"\d{1,11}", said_s) else written_s,
        uid=int(values["uid"]) if values.get("uid") else None,
        exit_code=codes["exit_code"],
        derived_exit_code=codes["derived_exit_code"],
        playbook=values.get("playbook", ""),
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What the file system says of an event's file."""

    written_s: float
    sharer: str
    """Among whom the daemon's attention is shared out: whoever wrote the file, and where that was Slurm's own epilog
    the owner of the job, as Slurm told it."""


class SpoolReader:
    """One spool folder. One daemon reads it; any number of epilogs, and the webhook, write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bad = folder / "bad"
        self._waiting: dict[str, _Waiting] = {}
        """Files that were read before: a name is never written twice."""

    def scan(self, limit: int = 1000, later: Container[str] = ()) -> tuple[SpoolEvent, ...]:
        """Events that wait, without the files that are `later`'s, at most `limit`: what the epilog saw before what
        alerts say, one of each owner in turn, each owner's oldest first. Bad files are set aside on the way.

        Raises `Unavailable` when the folder cannot be read."""
        names = self._names()
        known = self._waiting
        self._waiting = {name: known[name] for name in names if name in known}
        for name in islice((name for name in names if name not in known and name not in later), MOST_LOOKED_AT):
            self._event(name)
        due = {name: waiting for name, waiting in self._waiting.items() if name not in later}
        epilogs = _in_turn({name: each for name, each in due.items() if not name.endswith(".alert")})
        alerts = _in_turn({name: each for name, each in due.items() if name.endswith(".alert")})
        return self.read(islice((*epilogs, *alerts), limit))

    def read(self, files: Iterable[str]) -> tuple[SpoolEvent, ...]:
        """The events of these files, without those that are gone."""
        events = (self._event(file) for file in files)
        return tuple(event for event in events if event is not None)

    def _event(self, name: str) -> SpoolEvent | None:
        """None for one that went away meanwhile, and for a bad one, which is set aside."""
        found = self._read(name)
        if isinstance(found, BadEvent):
            # One that cannot even be moved stays where it is; the others must not wait for it.
            with contextlib.suppress(Unavailable):
                self.set_aside(found.file, found.why)
            return None
        return found

    def status(self) -> SpoolStatus:
        """How many events wait and since when. Raises `Unavailable`."""
        oldest: float | None = None
        names = self._names()
        for name in names[:MOST_AGED]:
            with contextlib.suppress(OSError):
                written = (self._folder / name).lstat().st_mtime
                oldest = written if oldest is None else min(oldest, written)
        return SpoolStatus(len(names), oldest, self._count_bad())

    def write(self, event: SpoolEvent) -> bool:
        """Leave an alert's event, durably and whole or not at all; False when it waits there already. Raises
        `Unavailable`."""
        target = self._folder / event.file
        try:
            if target.exists():
                return False
            with whole_file(target) as stream:
                stream.write(alert_text(event).encode("ascii"))
        except OSError as error:
            raise _unavailable(error, target) from error
        return True

    def done(self, event: SpoolEvent) -> None:
        """Forget an event whose incident is durably opened. Already gone is fine. Raises `Unavailable`."""
        try:
            (self._folder / event.file).unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(error, self._folder / event.file) from error

    def hand_over(self, event: SpoolEvent, to: Path) -> None:
        """Put an event's file, as it is, into another folder, durably, and forget it here. Raises `Unavailable`."""
        source = self._folder / event.file
        try:
            descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as stream:
                data = stream.read(MOST_BYTES)
            with whole_file(to / event.file) as target:
                target.write(data)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unavailable(error, source) from error
        self.done(event)

    def set_aside(self, file: str, why: str) -> None:
        """Move a file to `bad/` and write the reason beside it. Raises `Unavailable`."""
        source = self._folder / file
        try:
            with contextlib.suppress(FileExistsError):
                self._bad.mkdir(mode=0o700)
            if not stat.S_ISDIR(self._bad.lstat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "bad is no folder of its own")
            if self._count_bad() >= MOST_BAD:
                self._remove(source)
                return
            # A name from outside is kept as a name only: without separators, which a name cannot have.
            target = self._bad / file.lstrip(".")
            source.rename(target)
            reason = target.with_name(target.name[:200] + ".reason")
            with whole_file(reason, durable=False) as stream:
                stream.write(f"{why[:500]}\n".encode())
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unavailable(error, source) from error

    def _count_bad(self) -> int:
        try:
            with os.scandir(self._bad) as kept:
                return sum(1 for entry in kept if not entry.name.endswith(".reason"))
        except OSError:
            return 0

    @staticmethod
    def _remove(path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.rmdir()
        else:
            path.unlink(missing_ok=True)

    def _names(self) -> list[str]:
        """Names that their writers have finished with, in a stable order, alerts last."""
        try:
            with os.scandir(self._folder) as entries:
                names = [
                    entry.name for entry in entries if not entry.name.startswith(".") and entry.name not in _FOLDERS
                ]
                return sorted(names, key=lambda name: (name.endswith(".alert"), name))
        except OSError as error:
            raise _unavailable(error, self._folder) from error

    def _read(self, name: str) -> SpoolEvent | BadEvent | None:
        """None when it went away meanwhile."""
        try:
            # O_NONBLOCK: opening a named pipe would wait for a writer that never comes.
            descriptor = os.open(
                self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            return BadEvent(name, f"it cannot be opened as a plain file: {error.strerror}")
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return BadEvent(name, "it is not a plain file")
            data = os.read(descriptor, MOST_BYTES + 1)
        except OSError as error:
            return BadEvent(name, f"it cannot be read: {error.strerror}")
        finally:
            os.close(descriptor)
        event = parse_event(name, data, status.st_mtime)
        if isinstance(event, SpoolEvent) and event.trigger == WATCH and status.st_uid not in self._trusted():
            return BadEvent(name, "it says that it is the watch's, and somebody else wrote it")
        if isinstance(event, SpoolEvent):
            self._waiting[name] = _Waiting(status.st_mtime, self._sharer(event, status.st_uid))
        return event

    def _trusted(self) -> frozenset[int]:
        """Whose files are Slurm's word or the service's."""
        try:
            return frozenset((0, os.geteuid(), self._folder.stat().st_uid))
        except OSError:
            return frozenset()

    def _sharer(self, event: SpoolEvent, writer: int) -> str:
        return f"{writer}:{event.uid}" if writer in self._trusted() else str(writer)


_DRIVER = ".driver"


class SharedSpool:
    """The spool of one of several daemons. The one that drives reads its own and what others hand over; one that waits
    hands over what lies in its own, unless that is the very folder which the other one reads."""

    def __init__(self, folder: Path, handed: Path) -> None:
        self._folder, self._handed = folder, handed
        self._both = (SpoolReader(folder), SpoolReader(handed))

    def drive(self, name: str) -> None:
        """Leave the name of the daemon that reads this folder. Raises `Unavailable`."""
        try:
            private_folder(self._handed)
            with whole_file(self._folder / _DRIVER) as stream:
                stream.write(name.encode())
        except OSError as error:
            raise _unavailable(error, self._folder) from error

    def hand_over(self, driver: str) -> None:
        """For one that waits; `driver`: the name of the one that drives. Raises `Unavailable`."""
        with contextlib.suppress(OSError):
            if (self._folder / _DRIVER).read_bytes() == driver.encode():
                return
        own = self._both[0]
        for event in own.scan():
            own.hand_over(event, self._handed)

    def scan(self, limit: int = 1000, later: Container[str] = ()) -> tuple[SpoolEvent, ...]:
        found = [event for spool in self._both for event in spool.scan(limit, later)]
        return tuple({event.file: event for event in found}.values())[:limit]

    def read(self, files: Iterable[str]) -> tuple[SpoolEvent, ...]:
        wanted = tuple(files)
        found = [event for spool in self._both for event in spool.read(wanted)]
        return tuple({event.file: event for event in found}.values())

    def status(self) -> SpoolStatus:
        own, handed = (spool.status() for spool in self._both)
        oldest = [time_s for time_s in (own.oldest_s, handed.oldest_s) if time_s is not None]
        return SpoolStatus(own.depth + handed.depth, min(oldest, default=None), own.bad + handed.bad)

    def write(self, event: SpoolEvent) -> bool:
        return self._both[0].write(event)

    def done(self, event: SpoolEvent) -> None:
        for spool in self._both:
            spool.done(event)

    def set_aside(self, file: str, why: str) -> None:
        for spool in self._both:
            spool.set_aside(file, why)


def _in_turn(files: dict[str, _Waiting]) -> Iterator[str]:
    """One file of each sharer after the other, each one's oldest first."""
    oldest_first = sorted(files, key=lambda name: (files[name].written_s, name))
    by_sharer: dict[str, list[str]] = {}
    for name in oldest_first:
        by_sharer.setdefault(files[name].sharer, []).append(name)
    for turn in zip_longest(*by_sharer.values()):
        yield from (name for name in turn if name is not None)


def _unavailable(error: OSError, path: Path) -> Unavailable:
    return Unavailable(
        f"the spool cannot be used: {error.strerror}",
        where=str(path),
        next_step="make it as deploy/slurm/README.md says: owned by SlurmUser, group of the daemon, mode 2770",
    )
