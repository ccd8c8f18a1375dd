"""Telling people anywhere that apprise reaches. Telling never fails an incident."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from runbook.adapters.delivery import Delivery, Limit, Link, Target, deliver
from runbook.errors import NotFound, RunbookError
from runbook.model.incident import Incident, Message, Severity
from runbook.model.units import IncidentId
from runbook.ports import Clock
from runbook.report.text.notifications import messages, reminder
from runbook.report.vocabulary.clean import clean, clean_line, shorten

LOG = logging.getLogger("runbook.notify")

SEND_S = 15.0
"""A server that does not answer holds nothing up for longer."""
_KEEP_S = 3600.0
_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 600.0
_KEEP = 200
_WORDS = ("Report", "Answer")
"""The links of a message."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a message at one address."""

    target: str
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class _Parcel:
    """A message on its way to one address."""

    target: str
    address: str = field(repr=False)
    title: str
    body: str
    links: tuple[Link, ...]
    severity: Severity
    since_s: float
    tries: int = 0
    again_s: float = 0.0
    """Not sent again before."""


class TargetsNotify:
    """By mail, chat or pager, to whoever wants to hear of it, within their limits. Used from several threads.

    Addresses hold passwords and are never logged. What could not be delivered and is more than information is kept for
    an hour, and `retry` sends it again. What was held back is said in the next message.
    """

    def __init__(
        self, targets: Sequence[Target], clock: Clock, *, tag: str = "runbook", within_s: float = SEND_S
    ) -> None:
        self._targets = tuple(targets)
        self._limits: dict[tuple[str, str], Limit] = {}
        self._clock = clock
        self._tag = tag
        self._within_s = within_s
        self._lock = threading.Lock()
        self._kept: deque[_Parcel] = deque(maxlen=_KEEP)
        self.counts: Counter[tuple[str, str]] = Counter()
        """By target and "delivered", "failed" or "held_back", since the start."""

    @property
    def reaches(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._targets)

    def figures(self) -> tuple[tuple[str, str, int], ...]:
        """Target, outcome, how many: every pair from the start on, so that a first failure is a rise from 0."""
        with self._lock:
            return tuple(
                (target.name, outcome, self.counts[target.name, outcome])
                for target in self._targets for outcome in ("delivered", "failed", "held_back")
            )

    def tell(self, message: Message) -> None:
        """To every target that wants it. Within 15 seconds or not at all now; a failure is one line of the log."""
        try:
            parcels = [parcel for target in self._targets for parcel in self._parcels(target, message)]
            self._deliver(parcels)
        except Exception as error:
            LOG.error("a notification failed: %s", type(error).__name__)

    def retry(self) -> None:
        """Send once more what was not delivered in the last hour. For a daemon's thread; never raises."""
        with self._lock:
            now_s = self._clock.elapsed()
            kept = [parcel for parcel in self._kept if now_s - parcel.since_s < _KEEP_S]
            due = [parcel for parcel in kept if now_s >= parcel.again_s]
            self._kept = deque((parcel for parcel in kept if now_s < parcel.again_s), maxlen=_KEEP)
        if due:
            self._deliver(due)

    def test(self, message: Message, only: str = "") -> tuple[Sent, ...]:
        """Send to every target (or to one), whatever it wants to hear and whatever was sent before. Raises
        `RunbookError` where a file of addresses cannot be read."""
        chosen = [target for target in self._targets if not only or target.name == only]
        parcels = [
            self._parcel(target, address, message, "") for target in chosen for address in target.addresses_for(message)
        ]
        return self._posted(parcels)

    def _parcels(self, target: Target, message: Message) -> list[_Parcel]:
        if not target.wants(message):
            return []
        try:
            addresses = target.addresses_for(message)
            # Each owner has a limit of their own, so that one with many jobs keeps no other's messages back.
            whose = message.about.owner if target.personal() else ""
        except RunbookError as error:
            self._failed(target.name, message.title, error.what)
            return []
        if not addresses:
            return []
        with self._lock:
            now_s = self._clock.elapsed()
            limit = self._limits.setdefault((target.name, whose), Limit(target.per_hour, shared=not target.personal()))
            if not limit.allows(message, now_s, target.quiet(self._clock.now())):
                self.counts[target.name, "held_back"] += 1
                LOG.info("not sent to %s, too many messages or quiet hours: %s", target.name, clean_line(message.title))
                return []
            held_back, limit.held_back = limit.held_back, 0
        more = f"{held_back} more message{'' if held_back == 1 else 's'}"
        note = f"({more} held back before this one.)" if held_back else ""
        return [self._parcel(target, address, message, note) for address in addresses]

    def _parcel(self, target: Target, address: str, message: Message, note: str) -> _Parcel:
        title, body = shorten(clean_line(message.title), 150), shorten(clean(message.body), 4000)
        whole = "\n\n".join(part for part in (body, note) if part)
        links = [Link(word, clean_line(url)[:500]) for word, url in zip(_WORDS, (message.link, message.answer)) if url]
        return _Parcel(
            target.name, address, f"[{self._tag}] {title}", whole, tuple(links), message.severity,
            self._clock.elapsed(),
        )

    def _deliver(self, parcels: Sequence[_Parcel]) -> None:
        for parcel, sent in zip(parcels, self._posted(parcels), strict=True):
            if sent.delivery.delivered:
                with self._lock:
                    self.counts[parcel.target, "delivered"] += 1
                continue
            service = f" by {sent.delivery.service}" if sent.delivery.service else ""
            self._failed(f"{parcel.target}{service}", parcel.title, sent.delivery.reason, parcel)

    def _failed(self, where: str, title: str, why: str, parcel: _Parcel | None = None) -> None:
        """Counted and logged once a message, however often it is tried."""
        again = parcel is not None and parcel.tries > 0
        with self._lock:
            self.counts[parcel.target if parcel else where, "failed"] += not again
            if parcel is not None and parcel.severity is not Severity.INFO:
                pause_s = min(_FIRST_PAUSE_S * 2**parcel.tries, _LONGEST_PAUSE_S)
                self._kept.append(replace(parcel, tries=parcel.tries + 1, again_s=self._clock.elapsed() + pause_s))
        level = logging.INFO if again else logging.ERROR
        LOG.log(level, "not delivered to %s: %s (%s)", where, clean_line(title), clean_line(why))

    def _posted(self, parcels: Sequence[_Parcel]) -> tuple[Sent, ...]:
        """All at once, and no longer than the limit: an address that hangs keeps no other one waiting."""
        found: dict[int, Delivery] = {}

        def post(number: int, parcel: _Parcel) -> None:
            found[number] = deliver(parcel.address, parcel.title, parcel.body, parcel.links, parcel.severity)

        threads: list[threading.Thread] = []
        for number, parcel in enumerate(parcels):
            thread = threading.Thread(target=post, args=(number, parcel), name="notify", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                found[number] = Delivery("", False, "no thread could be started")
            else:
                threads.append(thread)
        end_s = time.monotonic() + self._within_s
        for thread in threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        late = Delivery("", False, f"no answer within {self._within_s:.0f} s")
        return tuple(Sent(parcel.target, found.get(number, late)) for number, parcel in enumerate(parcels))


# Tells people of an incident's events, each once: what was told is remembered in the incident's folder.

TOLD = "told.json"


class Teller(Protocol):
    """Whoever delivers."""

    def tell(self, message: Message) -> None:
        """Never raises."""


class Folder(Protocol):
    def read_file(self, incident: IncidentId, relative: str) -> bytes: ...

    def write_file(self, incident: IncidentId, relative: str, content: bytes) -> Path: ...


class Telling:
    """At least once: an event is remembered after it was told, so that a process killed between the two tells it again,
    and one killed anywhere else does not. `most_once`: it is remembered before, so that of two daemons never both tell
    it; what one that died in between did not say is left to the reminder and to the alerts. A message that no address
    took counts as told; the teller keeps and repeats it."""

    def __init__(
        self, teller: Teller, folder: Folder, clock: Clock, *, report_url: str = "", attended: bool = False,
        most_once: bool = False,
    ) -> None:
        self._most_once = most_once
        self._teller = teller
        self._folder = folder
        self._clock = clock
        self._report_url = report_url
        self._attended = attended
        # A server that hangs keeps other incidents waiting only where they share a lock.
        self._locks = tuple(threading.Lock() for _ in range(64))

    def of(self, before: Incident | None, after: Incident) -> None:
        """Tell what came with the step from `before` to `after`. Never raises."""
        try:
            for message in messages(before, after, self._report_url):
                # Whoever sits at the terminal is asked there.
                if not (message.question and self._attended):
                    self._once(after.id, message)
        except Exception as error:
            LOG.error("%s: nobody could be told: %s", after.id, type(error).__name__)

    def remind(self, incident: Incident, approval_limit_s: float) -> None:
        """Tell once more of a question that is about to lapse. May raise what the incident's folder raises."""
        message = reminder(incident, self._clock.now(), approval_limit_s, self._report_url)
        if message is not None:
            self._once(incident.id, message)

    def _once(self, incident: IncidentId, message: Message) -> None:
        with self._locks[hash(incident) % len(self._locks)]:
            told = self._told(incident)
            if message.event in told:
                return
            told[message.event] = self._clock.now()
            if self._most_once:
                # One that may not write this down does not drive any more: whoever does tells it.
                self._folder.write_file(incident, TOLD, json.dumps(told, indent=1).encode())
                self._teller.tell(message)
                return
            self._teller.tell(message)
            try:
                self._folder.write_file(incident, TOLD, json.dumps(told, indent=1).encode())
            except RunbookError as error:
                LOG.error("%s: what was told could not be written down: %s", incident, error.what)

    def _told(self, incident: IncidentId) -> dict[str, float]:
        try:
            read = json.loads(self._folder.read_file(incident, TOLD))
        except NotFound:
            return {}
        except (RunbookError, ValueError) as error:
            if self._most_once:
                raise
            LOG.error("%s: what was told cannot be read: %s", incident, type(error).__name__)
            return {}
        return read if isinstance(read, dict) else {}
