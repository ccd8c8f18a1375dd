"""What no incident tells of by itself: a question that is about to lapse, a message to repeat, a daemon in trouble."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from runbook.model.incident import Incident
from runbook.model.message import Message, Severity
from runbook.ports import Clock

LOG = logging.getLogger("runbook.notify")

PATIENCE_S = 300.0
"""A trouble that passes sooner is nobody's business."""
_INTERVAL_S = 30.0
_AGAIN_S = 6 * 3600.0


class Notifier(Protocol):
    def tell(self, message: Message) -> None: ...

    def retry(self) -> None: ...


@dataclass
class _Trouble:
    since_s: float
    told_s: float | None = None


@dataclass
class Watch:
    """Looks every half minute, in a thread of its own, as a notifier may take its time. One thread only."""

    cluster: str
    notifier: Notifier
    clock: Clock
    troubles: Callable[[], dict[str, str]]
    """What is wrong now: what it is about ("spool") → what is known of it in a sentence. May raise."""
    awaiting: Callable[[], tuple[Incident, ...]]
    """Incidents that wait for a yes. May raise."""
    remind: Callable[[Incident], None]
    _known: dict[str, _Trouble] = field(default_factory=dict, init=False, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="notify-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; a message on its way is not waited for."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self.round()

    def round(self) -> None:
        """One look. Never raises."""
        for step in (self._look, self._remind, self.notifier.retry):
            try:
                step()
            except Exception as error:
                LOG.error("the watch failed at %s: %s", step.__name__.strip("_"), type(error).__name__)

    def _look(self) -> None:
        now_s, present = self.clock.now(), self.troubles()
        for about, sentence in present.items():
            trouble = self._known.setdefault(about, _Trouble(now_s))
            lasts_s = now_s - trouble.since_s
            due = trouble.told_s is None or now_s - trouble.told_s >= _AGAIN_S
            if lasts_s >= PATIENCE_S and due:
                trouble.told_s = now_s
                self._tell(Severity.WARNING, f"cannot work: {sentence}", (
                    f"For {lasts_s / 60:.0f} minutes: {sentence}.",
                    "Done: nothing is lost; events wait in the spool, incidents go on where they stand.",
                    "Asked: `runbook doctor` and `journalctl -u runbook` say more.",
                ))
        for about in [about for about in self._known if about not in present]:
            if self._known.pop(about).told_s is not None:
                self._tell(Severity.INFO, f"works again: {about}", (f"The trouble with the {about} is over.",))

    def _tell(self, severity: Severity, headline: str, lines: tuple[str, ...]) -> None:
        title = f"runbook on {self.cluster} {headline}"
        self.notifier.tell(Message("", severity, title[:80], "\n".join(lines)))

    def _remind(self) -> None:
        for incident in self.awaiting():
            self.remind(incident)
