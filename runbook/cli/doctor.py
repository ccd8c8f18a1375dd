"""`runbook doctor`: can the tool do its work here? What others have to answer is asked side by side, and none is waited
for longer than the whole may take.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import click

from runbook.cli import checks
from runbook.cli.checks import Found, Mark
from runbook.cli.wiring import Application, application
from runbook.config import find_inventory
from runbook.errors import Hung, RunbookError
from runbook.report.vocabulary.clean import clean

WAIT_S = 9.0
"""For everything that is asked of others together."""
_SLURM_S = 4.0
_CONNECT_S = 3.0
_NODE_S = 5.0
_WEIGHTS = (Mark.GOOD, Mark.WARNING, Mark.BAD)


def doctor(node: str | None, mending: bool, sending: bool, inventory: str | None) -> int:
    """`runbook doctor`."""
    began_s = time.monotonic()
    click.echo(f"inventory: {find_inventory(inventory)}")
    app = hurried(application(inventory))
    # Only now: a library that it imports looks into the home folder, too.
    from runbook.cli.slurm_checks import acting, nodes, owners, scheduler, spool

    asked = [
        Asked("state folder", checks.state_folder),
        Asked("rights", lambda a: checks.private_state(a, mending)),
        Asked("playbooks", checks.playbooks),
        Asked("scheduler", scheduler, elsewhere=True),
        Asked("cancel, drain", acting, elsewhere=True),
        Asked("acting as owners", owners, elsewhere=True),
        Asked("reading apart", checks.cage),
        Asked("nodes", lambda a: nodes(a, node), elsewhere=True),
        Asked("spool", spool, elsewhere=True),
        Asked("pages", checks.pages),
        Asked("notifications", lambda a: checks.notifications(a, sending=sending), elsewhere=True),
        Asked("daemon", checks.daemon, elsewhere=True),
    ]
    first, *others = asked
    worst = _tell(first, first.answer(app, began_s + WAIT_S))
    if first.hangs:
        # All the others begin with it, and a thread that waits for it in the kernel waits for good.
        click.echo(f"{'':>8}  the rest was not asked: {', '.join(one.title for one in others)}")
        return 6
    for one in others:
        if one.elsewhere:
            one.begin(app)
    for one in others:
        worst = max(worst, _tell(one, one.answer(app, began_s + WAIT_S)), key=_WEIGHTS.index)
    return 0 if worst is not Mark.BAD else 6


def _tell(one: Asked, answer: list[Found]) -> Mark:
    """The worst of what was found."""
    for found in answer:
        click.echo(f"{found.mark.value:>8}  {one.title}: {clean(found.what)}")
        if found.next_step:
            click.echo(f"{'':>8}  → {clean(found.next_step)}")
    return max((found.mark for found in answer), key=_WEIGHTS.index, default=Mark.GOOD)


def hurried(app: Application) -> Application:
    """The same for one who waits: whatever does not answer soon is told as such, and not asked again."""
    given = app.inventory
    scheduler = given.scheduler.model_copy(
        update={"command_timeout_s": min(given.scheduler.command_timeout_s, _SLURM_S)}
    )
    nodes = given.nodes.model_copy(
        update={
            "connect_timeout_s": min(given.nodes.connect_timeout_s, _CONNECT_S),
            "command_timeout_s": min(given.nodes.command_timeout_s, _NODE_S),
        }
    )
    return Application(given.model_copy(update={"scheduler": scheduler, "nodes": nodes}), patience_s=0.0)


@dataclass
class Asked:
    """One check, made here when its turn comes, or begun at once where somebody else has to answer."""

    title: str
    check: Callable[[Application], Iterator[Found]]
    elsewhere: bool = False
    hangs: bool = field(default=False, init=False)
    """It waits for a file system that does not answer."""
    _found: list[Found] = field(default_factory=list, init=False)
    _fault: list[BaseException] = field(default_factory=list, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def begin(self, app: Application) -> None:
        self._thread = threading.Thread(target=self._ask, args=(app,), name=self.title, daemon=True)
        self._thread.start()

    def answer(self, app: Application, until_s: float) -> list[Found]:
        """What was found, by `time.monotonic` until then. Raises what no check expects: a fault of ours."""
        if self._thread is None:
            self._ask(app)
        else:
            self._thread.join(max(0.0, until_s - time.monotonic()))
        if self._fault:
            raise self._fault[0]
        if self._thread is None or not self._thread.is_alive():
            return self._found
        late = Found(Mark.BAD, f"no answer within {WAIT_S:g} s", "see whether what it asks is there, then try again")
        return [*self._found, late]

    def _ask(self, app: Application) -> None:
        try:
            for found in self.check(app):
                self._found.append(found)
        except RunbookError as error:
            self.hangs = isinstance(error, Hung)
            where = f" ({error.where})" if error.where else ""
            self._found.append(Found(Mark.BAD, error.what + where, error.next_step))
        except Exception as error:
            self._fault.append(error)
