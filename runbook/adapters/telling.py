"""Tells people of an incident's events, each once: what was told is remembered in the incident's folder."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Protocol

from runbook.errors import NotFound, RunbookError
from runbook.model.incident import Incident
from runbook.model.message import Message
from runbook.model.units import IncidentId
from runbook.ports import Clock
from runbook.report.messages import messages, reminder

LOG = logging.getLogger("runbook.notify")

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
    and one killed anywhere else does not. A message that no address took counts as told; the teller keeps and repeats
    it."""

    def __init__(
        self, teller: Teller, folder: Folder, clock: Clock, *, report_url: str = "", attended: bool = False
    ) -> None:
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
            self._teller.tell(message)
            told[message.event] = self._clock.now()
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
            LOG.error("%s: what was told cannot be read: %s", incident, type(error).__name__)
            return {}
        return read if isinstance(read, dict) else {}
