"""What of closed incidents goes when there is too much of it, and how it goes: in steps that may be cut off anywhere.

    <root>/pruned.json   0600   when this was last done, what lies here, and the sums of the metrics over what has gone
    <root>/trash/        0700   what has been taken out of its place and is being deleted

What goes is renamed into the trash before any of it is deleted, so that an incident is there whole or not at all; the
next turn deletes what an earlier one left. Nothing is followed: a link, a device, another file system or a file of
somebody else within an incident's folder keeps the whole of it where it is.

Evidence goes first and the summary long after it: `incident.json` is small, and history, the choice of levers and the
lists are made from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from runbook.adapters.store import REMOVED_NOTE, IncidentStore, Stamp, replacing
from runbook.adapters.store.totals import AS_THEY_STAND, Key
from runbook.adapters.whole_file import private_folder, sync_folder
from runbook.config import KeepDocument
from runbook.errors import Unavailable
from runbook.model.units import GIB, IncidentId, is_incident_id

_DAY_S = 86_400.0
SETTLED_S = 7 * _DAY_S
"""Nothing of an incident but its evidence goes before that, however little room there is: events that come late and
jobs that are tried again are held against it, and the drains of the last hour are counted in it."""
_BLOCK_BYTES = 512
_EVIDENCE = "evidence"
_REMOVED = b"The copies of the job's logs were removed to make room: `keep` of the inventory (docs/keep.md).\n"


@dataclass(frozen=True, slots=True)
class Held:
    """What one incident takes of the disk: a sparse file what it has blocks for."""

    name: str
    stamp: Stamp
    """Of the document that the rest was read from."""
    owner: str
    closed_s: float | None
    """None: it is open, and nothing of it goes."""
    evidence_bytes: int = 0
    other_bytes: int = 0
    strange: str = ""
    """What lies in its folder and was not put there by this tool: nothing of it goes then."""
    needed: str = ""
    """Why the whole of it cannot go; its evidence can."""


class Why(StrEnum):
    AGE = "age"
    OWNER = "owner_gib"
    TOTAL = "total_gib"


@dataclass(frozen=True, slots=True)
class Going:
    """What goes of one incident."""

    held: Held
    whole: bool
    why: Why

    @property
    def size_bytes(self) -> int:
        return self.held.evidence_bytes + (self.held.other_bytes if self.whole else 0)


def measure(store: IncidentStore, name: str) -> tuple[int, int, str]:
    """Bytes of the evidence and of the rest, and what is strange in the folder ("" for nothing)."""
    root = store.root.stat()
    top = store.root / "incidents" / name
    sizes = {True: 0, False: 0}
    folders = [(top, False)]
    while folders:
        folder, evidence = folders.pop()
        try:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_dev != root.st_dev:
                return 0, 0, f"{folder.name} is a link, or another file system"
            entries = list(os.scandir(folder))
        except OSError as error:
            return 0, 0, f"{folder.name} cannot be read: {error.strerror}"
        sizes[evidence] += found.st_blocks * _BLOCK_BYTES
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            below = Path(entry.path).relative_to(top)
            kept = below.parts[0] == _EVIDENCE
            if stat.S_ISDIR(status.st_mode):
                folders.append((Path(entry.path), kept))
            elif not stat.S_ISREG(status.st_mode):
                return 0, 0, f"{below} is neither a file nor a folder"
            else:
                sizes[kept] += status.st_blocks * _BLOCK_BYTES
            # Patched copies are their job's owner's.
            if status.st_uid not in (0, root.st_uid) and below.parts[0] != "attempts":
                return 0, 0, f"{below} belongs to user {status.st_uid}"
    return sizes[True], sizes[False], ""


def plan(held: Sequence[Held], keep: KeepDocument, now_s: float) -> tuple[Going, ...]:
    """What has to go, the oldest first: what is past its days; then of owners who have more than their share; then,
    where all of it is too much, of whoever has the most, and never of one who has less than an equal part."""
    chosen = _Choice(held, now_s)
    for one in chosen.closed:
        age_s = chosen.age_s(one)
        if age_s >= keep.days * _DAY_S and not one.needed:
            chosen.take(one, Why.AGE, whole=True)
        elif age_s >= keep.evidence_days * _DAY_S and one.evidence_bytes:
            chosen.take(one, Why.AGE, whole=False)
    most_of_one, most = round(keep.owner_gib * GIB), round(keep.total_gib * GIB)
    for whole in (False, True):
        for owner in sorted(chosen.bytes_of):
            while chosen.bytes_of[owner] > most_of_one and chosen.oldest(owner, Why.OWNER, whole=whole):
                pass
    part = most // max(len(chosen.bytes_of), 1)
    for whole in (False, True):
        spent: set[str] = set()
        while sum(chosen.bytes_of.values()) > most:
            over = [owner for owner, size in chosen.bytes_of.items() if size > part and owner not in spent]
            if not over:
                break
            heaviest = max(over, key=lambda owner: (chosen.bytes_of[owner], owner))
            if not chosen.oldest(heaviest, Why.TOTAL, whole=whole):
                spent.add(heaviest)
    return tuple(sorted(chosen.going.values(), key=lambda going: (going.held.closed_s or 0.0, going.held.name)))


class _Choice:
    """What is left to whom, while it is chosen what goes."""

    def __init__(self, held: Sequence[Held], now_s: float) -> None:
        self._now_s = now_s
        self.going: dict[str, Going] = {}
        self.bytes_of: Counter[str] = Counter()
        for one in held:
            self.bytes_of[one.owner] += one.evidence_bytes + one.other_bytes
        free = (one for one in held if one.closed_s is not None and not one.strange)
        self.closed = sorted(free, key=lambda one: (one.closed_s or 0.0, one.name))
        self._queues: dict[bool, dict[str, Iterator[Held]]] = {}
        for whole in (False, True):
            by_owner = defaultdict(list)
            for one in self.closed:
                by_owner[one.owner].append(one)
            self._queues[whole] = {owner: iter(theirs) for owner, theirs in by_owner.items()}

    def age_s(self, one: Held) -> float:
        return self._now_s - (one.closed_s or 0.0)

    def take(self, one: Held, why: Why, *, whole: bool) -> None:
        before = self.going.get(one.name)
        self.going[one.name] = after = Going(one, whole, before.why if before and not whole else why)
        self.bytes_of[one.owner] -= after.size_bytes - (before.size_bytes if before else 0)

    def oldest(self, owner: str, why: Why, *, whole: bool) -> bool:
        """Take the oldest of an owner's that can still go. False: there is none."""
        for one in self._queues[whole].get(owner, iter(())):
            before = self.going.get(one.name)
            if whole and self.age_s(one) >= SETTLED_S and not one.needed and not (before and before.whole):
                self.take(one, why, whole=True)
                return True
            if not whole and before is None and one.evidence_bytes:
                self.take(one, why, whole=False)
                return True
        return False


# What is remembered of what has gone.


@dataclass(frozen=True, slots=True)
class Pruned:
    last_s: float | None = None
    """When a turn last came to its end; None: never."""
    stored_bytes: int = 0
    """What lay here then."""
    sums: Mapping[Key, int] = field(default_factory=dict)
    """What incidents that are gone have added to the metrics, which must not fall: Prometheus takes that for a restart
    of all that it counts."""
    leaving: Mapping[str, Mapping[Key, int]] = field(default_factory=dict)
    """The same of those that are going, by incident: it counts once the incident's folder is gone."""

    def figures(self, there: Callable[[str], bool]) -> Mapping[Key, int]:
        """What is added to the sums over the incidents that are `there`."""
        sums = Counter(self.sums)
        for name, figures in self.leaving.items():
            if not there(name):
                sums.update(figures)
        return sums


def pruned_path(root: Path) -> Path:
    return root / "pruned.json"


def load_pruned(root: Path) -> Pruned:
    """One that is not there, or cannot be read, says that nothing was ever removed."""
    try:
        document = json.loads(pruned_path(root).read_bytes())
        return Pruned(
            document["last_s"], int(document["stored_bytes"]), _figures(document["sums"]),
            {str(name): _figures(figures) for name, figures in document["leaving"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Pruned()


def _save(root: Path, pruned: Pruned) -> None:
    document = {
        "version": 1,
        "last_s": pruned.last_s,
        "stored_bytes": pruned.stored_bytes,
        "sums": [[list(key), value] for key, value in sorted(pruned.sums.items())],
        "leaving": {
            name: [[list(key), value] for key, value in figures.items()] for name, figures in pruned.leaving.items()
        },
    }
    with replacing(pruned_path(root), 0o600, None) as stream:
        stream.write(json.dumps(document, indent=1).encode())


def _figures(stored: object) -> dict[Key, int]:
    assert isinstance(stored, list)
    return {tuple(str(part) for part in key): int(value) for key, value in stored}


# How it goes. One process at a time (the caller's to see to).


@dataclass(frozen=True, slots=True)
class Remover:
    """Of one store. Every method may be killed at any moment, and begun again."""

    store: IncidentStore
    figures_of: Callable[[str], Mapping[Key, int]]
    """What an incident adds to the metrics."""

    def finish(self) -> None:
        """Delete what an earlier turn had taken out, and settle what it was about to. Raises `Unavailable`."""
        trash = self._trash
        try:
            for entry in list(os.scandir(trash)) if trash.is_dir() and not trash.is_symlink() else ():
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    Path(entry.path).unlink()
            for half in self.store.root.glob(f".{pruned_path(self.store.root).name}.*"):
                half.unlink()
        except OSError as error:
            raise _unavailable(error, trash) from error
        pruned = load_pruned(self.store.root)
        if pruned.leaving:
            sums = dict(pruned.figures(self._there))
            _save(self.store.root, Pruned(pruned.last_s, pruned.stored_bytes, sums))

    def remove(self, going: Sequence[Going]) -> tuple[Going, ...]:
        """Take out what goes, then delete it. An incident that was changed since it was looked at is left. Returns what
        has gone. Raises `Unavailable`."""
        still = [one for one in going if self.store.stamp(one.held.name) == one.held.stamp]
        whole = [one for one in still if one.whole]
        if whole:
            leaving = {one.held.name: self._growing(one.held.name) for one in whole}
            pruned = load_pruned(self.store.root)
            _save(self.store.root, Pruned(pruned.last_s, pruned.stored_bytes, pruned.sums, leaving))
        gone = tuple(one for one in still if self._take_out(one))
        self.finish()
        return gone

    def ended(self, now_s: float, stored_bytes: int) -> None:
        """A turn has come to its end. Raises `Unavailable`."""
        pruned = load_pruned(self.store.root)
        _save(self.store.root, Pruned(now_s, stored_bytes, pruned.sums, pruned.leaving))

    @property
    def _trash(self) -> Path:
        return self.store.root / "trash"

    def _there(self, name: str) -> bool:
        return self.store.stamp(name) is not None

    def _growing(self, name: str) -> dict[Key, int]:
        return {key: value for key, value in self.figures_of(name).items() if key[0] not in AS_THEY_STAND}

    def _take_out(self, going: Going) -> bool:
        """By one rename. What turns out to have been changed in that moment is put back."""
        assert is_incident_id(going.held.name)
        folder = self.store.root / "incidents" / going.held.name
        place = folder if going.whole else folder / _EVIDENCE
        target = self._trash / f"{going.held.name}.{secrets.token_hex(4)}"
        try:
            if not stat.S_ISDIR(place.lstat().st_mode):
                return False
            private_folder(self._trash, 0o700)
            if not stat.S_ISDIR(self._trash.lstat().st_mode):
                raise Unavailable("the trash is no folder", where=str(self._trash), next_step="remove what lies there")
            if not going.whole:
                self.store.write_file(IncidentId(going.held.name), REMOVED_NOTE, _REMOVED)
            place.rename(target)
            document = (target if going.whole else folder) / "incident.json"
            if _stamp_of(document) != going.held.stamp:
                with contextlib.suppress(OSError):
                    target.rename(place)
                    return False
            sync_folder(place.parent)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unavailable(error, place) from error
        return True


def _stamp_of(path: Path) -> Stamp | None:
    with contextlib.suppress(OSError):
        status = path.lstat()
        return Stamp(status.st_mtime_ns, status.st_size, status.st_ino)
    return None


def _unavailable(error: OSError, path: Path) -> Unavailable:
    return Unavailable(
        f"removing failed: {error.strerror or error}", where=error.filename or str(path),
        next_step="what was taken out waits in the trash folder; mend the file system, then `runbook prune`",
    )
