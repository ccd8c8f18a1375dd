"""The live view of an incident in a terminal: one line a box, the running one with a clock."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.status import Status
from rich.text import Text

from runbook.cli.say import clean_console
from runbook.errors import BadInput, Interrupted, NotAllowed
from runbook.model.incident import BoxVisit, Incident, IncidentState, Policy
from runbook.model.units import IncidentId, rough_duration
from runbook.report.narrative import answer, passed_over, to_do
from runbook.report.vocabulary.clean import clean_line, shorten
from runbook.report.vocabulary.sentences import in_words

if TYPE_CHECKING:
    from runbook.cli.wiring import Application
    from runbook.flow import Box
    from runbook.steps.shared.base import Proposal

_GOOD = "✔"
_ATTENTION = frozenset(
    {
        "escalate", "declined", "faulty", "occupied", "unknown", "failed_again", "exhausted", "needs_person",
        "unreadable", "still_there", "still_queued", "still_occupied", "tenant_stays", "limit_reached",
        "nothing_differs", "started_over", "not_proven", "cannot_resume",
    }
)
_SLOW_S = 2.0
_LOOK_S = 1.0
"""How often a question at the terminal looks whether somebody has answered it elsewhere."""
_REDRAWN_A_SECOND = 4.0
_CANNOT = ("", "dumb", "unknown")
"""Kinds of terminals that cannot go back to what is written."""
_NARROWEST = 20
"""Columns that a text needs beside its box to be broken there."""


@dataclass(frozen=True, slots=True)
class Entered:
    box: str
    title: str
    since_s: float
    """Epoch seconds."""


@dataclass(frozen=True, slots=True)
class Left:
    box: str
    visit: BoxVisit


@dataclass(frozen=True, slots=True)
class Line:
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    incident: Incident
    sentence: str


@dataclass(frozen=True, slots=True)
class Ended:
    pass


Event = Entered | Left | Line | Asked | Ended


class QueueWatcher:
    """Hands what the engine's thread reports over to the main thread, which alone writes to the terminal."""

    def __init__(self) -> None:
        self.events: queue.Queue[Event] = queue.Queue()

    def entered(self, box: Box, incident: Incident) -> None:
        self.events.put(Entered(box.name, box.title, incident.visits[-1].started_s))

    def left(self, box: Box, visit: BoxVisit, incident: Incident) -> None:
        self.events.put(Left(box.name, visit))

    def line(self, incident: IncidentId, text: str) -> None:
        self.events.put(Line(text))

    def asked(self, incident: Incident, proposal: Proposal) -> None:
        self.events.put(Asked(incident, proposal.sentence))


def redraws(stream: TextIO) -> bool:
    """Whether lines can be written over there: a terminal that can, and nobody asked for plain text (NO_COLOR)."""
    plain = os.environ.get("TERM", "") in _CANNOT or os.environ.get("NO_COLOR")
    return stream.isatty() and not plain


def console_of(stream: TextIO) -> Console:
    """What draws there; where it cannot redraw, plain text without colours, whatever else the environment says."""
    return clean_console(stream, soft_wrap=True, force=redraws(stream))


class _Now:
    """What is going on, on one line that fits at any width, with how long it has been."""

    def __init__(self, text: str, since_s: float) -> None:
        self.text = text
        self._since_s = since_s

    def __rich__(self) -> Text:
        past = rough_duration(max(time.time() - self._since_s, 0.0))
        return Text(f"{past} · {self.text} …", no_wrap=True, overflow="ellipsis")


class View:
    """Draws events. Without a terminal it prints one plain line a box."""

    def __init__(self, stream: TextIO = sys.stderr, *, quiet: bool = False) -> None:
        self._console = console_of(stream)
        self._console.quiet = quiet
        self._status: Status | None = None
        self._now = _Now("", 0.0)
        self._current = ""
        self._last_line = ""
        self._told_s = 0.0

    def heading(self, text: str) -> None:
        self._console.print(Text(clean_line(text), style="bold"))

    @contextlib.contextmanager
    def working(self, text: str) -> Iterator[None]:
        """A spinner over something that may be slow, on a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(Text(f"{text} …"), spinner="dots"):
            yield

    def draw(self, event: Event) -> None:
        if isinstance(event, Entered):
            self._enter(event)
        elif isinstance(event, Left):
            self.left(event.visit)
        elif isinstance(event, Line):
            self._tell(event.text)
        elif isinstance(event, Asked):
            self._stop()
            self._print(Text.assemble(("? ", "yellow bold"), clean_line(to_do(event.incident)[0])), 2)
            self._current = ""
            self._begin(f"{clean_line(event.incident.box)}: waits for an answer", event.incident.updated_s)

    def _enter(self, event: Entered) -> None:
        box = clean_line(event.box)
        if self._current == box and self._status is not None:
            return
        self._stop()
        self._current = box
        self._begin(clean_line(event.title), event.since_s)

    def _begin(self, text: str, since_s: float) -> None:
        if self._console.is_terminal:
            self._now = _Now(text, since_s)
            self._status = self._console.status(self._now, spinner="dots", refresh_per_second=_REDRAWN_A_SECOND)
            self._status.start()

    def left(self, visit: BoxVisit) -> None:
        """A box that was left, with its outcome."""
        self._stop()
        took_s = (visit.ended_s or visit.started_s) - visit.started_s
        attention = visit.outcome in _ATTENTION or visit.box in _ATTENTION
        mark = Text("! " if attention else f"{_GOOD} ", style="yellow" if attention else "green")
        line = Text.assemble(
            mark,
            (f"{clean_line(visit.box):<16}", "bold"),
            (f"{clean_line(visit.outcome):<16} ", "yellow" if attention else "cyan"),
            (f"{took_s:6.1f} s  ", "dim"),
        )
        indent = line.cell_len
        line.append(shorten(clean_line(visit.summary), 400))
        self._print(line, indent)
        self._current, self._last_line = "", ""

    def _print(self, text: Text, indent: int) -> None:
        """On a terminal, broken between words, what does not fit below where the words began; else one line."""
        room = self._console.width - indent
        if not self._console.is_terminal or text.cell_len <= self._console.width or room < _NARROWEST:
            self._console.print(text)
            return
        head, rest = text[:indent], text[indent:]
        for line in rest.wrap(self._console, room):
            line.rstrip()
            self._console.print(Text.assemble(head, line))
            head = Text(" " * indent)

    def _tell(self, text: str) -> None:
        text = shorten(clean_line(text), 200)
        if self._status is not None:
            self._now.text = f"{self._current}: {text}"
            return
        # Without a terminal: only news, and not more often than a person would read it.
        now = time.monotonic()
        if text != self._last_line and now - self._told_s >= _SLOW_S:
            self._console.print(Text(f"  {self._current}: {text}", style="dim"))
            self._last_line, self._told_s = text, now

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def ask(self, asked: Asked, still: Callable[[], bool] | None = None) -> bool | None:
        """A yes or a no from the person at the terminal; anything else is asked again. None once `still` says that
        the question is open no more. Raises `Interrupted` when the terminal is gone: that is no answer."""
        self._stop()
        self._print(Text.assemble(("? ", "yellow bold"), clean_line(asked.sentence)), 2)
        while True:
            self._console.print("  yes or no: ", end="")
            while still is not None and not select.select([sys.stdin], [], [], _LOOK_S)[0]:
                if not still():
                    self._console.print()
                    self._console.print(Text("  answered elsewhere", style="dim"))
                    return None
            line = sys.stdin.readline()
            if not line:
                raise Interrupted("nobody is at the terminal any more")
            answer = line.strip().lower()
            if answer in ("y", "yes", "n", "no"):
                return answer in ("y", "yes")

    def close(self) -> None:
        self._stop()

    def conclude(self, incident: Incident, report: str, *, why: bool = False) -> None:
        """The last words: how it ended, what is asked of a person, where the report is. A question that an answer on
        the command line settles stands alone, in five lines; `why` tells the rest."""
        self._stop()
        style = {
            IncidentState.RECOVERED: "green",
            IncidentState.PLANNED: "cyan",
            IncidentState.CLOSED: "cyan",
        }.get(incident.state, "yellow")
        self._console.print()
        words = incident.state.value.replace("_", " ")
        how = answer(incident) if incident.state is IncidentState.ESCALATED else ""
        asked = (in_words(incident.no_plan.question), how) if how and incident.no_plan is not None else ()
        said = shorten(clean_line(incident.conclusion), 300) if asked and not why else clean_line(incident.conclusion)
        self._print(Text.assemble((f"{words}: ", f"bold {style}"), said), len(words) + 2)
        for item in asked:
            self._print(Text(f"  → {shorten(clean_line(item), 300)}"), 4)
        rest = to_do(incident) if incident.state is not IncidentState.CLOSED else incident.to_do
        for item in (rest if why or not asked else ()):
            if item not in asked:
                self._print(Text(f"  → {clean_line(item)}"), 4)
        for item in passed_over(incident) if why else ():
            self._print(Text(f"  - {clean_line(item)}"), 4)
        more = "" if why or not passed_over(incident) else " (--why: what else was looked at)"
        self._console.print(Text(f"report: {report}{more}", style="dim"))


def until_ended(
    works: Callable[[], object], watcher: QueueWatcher, view: View, answer: Callable[[Incident, bool], None] | None
) -> BaseException | None:
    """Do it in a thread of its own and draw what is reported meanwhile; questions are put to the person, where there is
    one to `answer` them. Returns what it ended with, if that was an error."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            works()
        except BaseException as error:  # handed to the main thread, which alone ends the command
            failed.append(error)
        finally:
            watcher.events.put(Ended())

    threading.Thread(target=work, daemon=True, name="works-on-incident").start()
    with interruptible():
        while not isinstance(event := watcher.events.get(), Ended):
            if isinstance(event, Asked) and answer is not None:
                answer(event.incident, bool(view.ask(event)))
            else:
                view.draw(event)
    return failed[0] if failed else None


def mark_interrupted(app: Application, incident: Incident) -> None:
    """Have it stored that nobody works on it any more."""
    current = app.store.load(incident.id)
    if not current.finished and not current.awaiting:
        app.store.save(replace(current, state=IncidentState.INTERRUPTED, updated_s=app.clock.now()))


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends what is done here as Ctrl-C does, so that the terminal is left as it was found."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(signal.Signals(number).name)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_interactive() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def policy_for(app_mode: Policy, *, plan: bool, yes: bool, interactive: bool) -> Policy:
    """The inventory's limit and the command line's wish together; never more than either allows."""
    if plan and yes:
        raise BadInput("--plan and --yes exclude each other", next_step="name one of them")
    if app_mode is Policy.PLAN and yes:
        raise NotAllowed(
            "this inventory only plans (policy.mode: plan), so --yes is refused",
            next_step="leave --yes out, or have policy.mode of the inventory changed",
        )
    if plan or app_mode is Policy.PLAN:
        return Policy.PLAN
    if yes:
        return Policy.APPLY
    return Policy.APPROVE if interactive else Policy.PLAN
