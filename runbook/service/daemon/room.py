"""What incidents take of the memory and of the disk: whose next ones wait for room, and how those that an earlier
process left unfinished are taken up.

How much an incident takes its owner decides, by what his scripts name. So incidents are begun and taken up by bytes as
well as by number. Logs have bounds of their own (`LogsKept`); this is about what the incidents themselves take.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from runbook.errors import RunbookError, Unavailable
from runbook.model.units import IncidentId, UserName, size

LOG = logging.getLogger("runbook.service")
HELD_BYTES = 128 << 20
"""Of all incidents that are begun, as they are held: packed. A usual one has 20 kB."""
_SHARE = 3
_LEAST_PARTS = 64
"""So small a part of it every owner may have, whatever the others do."""
_SMALL_BYTES = 1 << 20
"""An owner of so little on disk is in nobody's way."""
_LOOKED_FOR_S = 1.0


class Disk(NamedTuple):
    """Where incidents are stored."""

    free_bytes: int
    reserve_bytes: int
    """What no log is copied into: it is for the incidents."""


@dataclass
class Room:
    """Owners whose incidents take so much that no further one of theirs is begun until some end or go."""

    held: Callable[[], Mapping[UserName, int]]
    """Bytes in memory, by owner."""
    stored: Callable[[], Mapping[UserName, int]]
    """Bytes on disk of incidents' documents and of what the workflow database holds of them, by owner."""
    disk: Callable[[], Disk]
    owner_bytes: int
    """On disk, the incidents of one owner."""
    held_bytes: int = HELD_BYTES
    _looked: tuple[float, Mapping[UserName, str]] = field(default=(-1e9, {}), init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def crowded(self) -> Mapping[UserName, str]:
        """By owner why, as it was a second ago at most. Raises `Unavailable`."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked[0] > _LOOKED_FOR_S:
                self._looked = now_s, {**self._on_disk(), **self._in_memory()}
            return self._looked[1]

    def _in_memory(self) -> dict[UserName, str]:
        held = self.held()
        free = max(self.held_bytes - sum(held.values()), self.held_bytes // _LEAST_PARTS)
        return {
            owner: f"the incidents of {owner} that are at work hold {size(mine)} of memory"
            for owner, mine in held.items() if mine * _SHARE >= free
        }

    def _on_disk(self) -> dict[UserName, str]:
        stored = self.stored()
        found = {
            owner: f"the incidents of {owner} take {size(mine)} on disk without their logs, and one owner has "
            f"{size(self.owner_bytes)} (keep.owner_gib)"
            for owner, mine in stored.items() if mine >= self.owner_bytes
        }
        free_bytes, reserve_bytes = self.disk()
        if free_bytes < reserve_bytes // 2:
            part = max(sum(stored.values()) // max(len(stored), 1), _SMALL_BYTES)
            found |= {
                owner: f"{size(free_bytes)} are free where incidents are stored, and those of {owner} take {size(mine)}"
                for owner, mine in stored.items() if mine >= part and owner not in found
            }
        return found


_MOST_RISING = 32
_MOST_RISING_BYTES = 16 << 20


@dataclass
class TakingUp:
    """Goes on with what an earlier process left, after the service answers: so many at a time, by number and by bytes,
    as a run that is taken up goes through all that was recorded of it."""

    left: deque[tuple[IncidentId, int]]
    """Each with its bytes on disk."""
    rising: set[IncidentId]
    """Taken up, and not yet where they were: whoever drives takes out what has arrived."""
    take_up: Callable[[IncidentId], None]
    at_last: Callable[[], object]
    """Called once, after the last."""
    _bytes: dict[IncidentId, int] = field(default_factory=dict, init=False, repr=False)
    _over: bool = field(default=False, init=False)

    def some(self) -> None:
        """As many as there is room for now. Raises `Unavailable`, and is called again then."""
        self._bytes = {name: taken for name, taken in self._bytes.items() if name in self.rising}
        while self.left:
            name, taken = self.left[0]
            many = len(self._bytes) >= _MOST_RISING or sum(self._bytes.values()) + taken > _MOST_RISING_BYTES
            if many and self._bytes:
                return
            try:
                self.take_up(name)
            except Unavailable:
                raise
            except RunbookError as error:
                LOG.error("%s: cannot be taken up: %s", name, error)
            self.left.popleft()
            self._bytes[name] = taken
        if not self._over:
            self.at_last()
            self._over = True


def in_turn(incidents: Iterable[tuple[UserName, IncidentId, int]]) -> deque[tuple[IncidentId, int]]:
    """One of each owner after the other: who has many keeps nobody else's waiting."""
    counted: dict[UserName, int] = {}
    turns = []
    for owner, name, taken in incidents:
        counted[owner] = counted.get(owner, 0) + 1
        turns.append((counted[owner], name, taken))
    turns.sort(key=lambda turn: turn[0])
    return deque((name, taken) for _, name, taken in turns)
