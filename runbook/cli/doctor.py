"""`runbook doctor`: can the tool do its work here? What others have to answer is asked side by side, and none is waited
for longer than the whole may take.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from runbook.cli import checks, slurm_checks
from runbook.cli.checks import Found, Mark
from runbook.cli.say import echo
from runbook.cli.wiring import Application, application
from runbook.config import find_inventory
from runbook.errors import RunbookError
from runbook.report.vocabulary.clean import clean

WAIT_S = 9.0
"""For everything that is asked of others together."""
_SLURM_S = 4.0
_CONNECT_S = 3.0
_NODE_S = 5.0


def doctor(node: str | None, mending: bool, sending: bool, inventory: str | None) -> int:
    """`runbook doctor`."""
    began_s = time.monotonic()
    echo(f"inventory: {find_inventory(inventory)}")
    app = hurried(application(inventory))
    asked = [
        Asked("state folder", checks.state_folder),
        Asked("rights", lambda a: checks.private_state(a, mending)),
        Asked("playbooks", checks.playbooks),
        Asked("scheduler", slurm_checks.scheduler, elsewhere=True),
        Asked("cancel, drain", slurm_checks.acting, elsewhere=True),
        Asked("acting as owners", slurm_checks.owners, elsewhere=True),
        Asked("reading apart", checks.cage),
        Asked("nodes", lambda a: slurm_checks.nodes(a, node), elsewhere=True),
        Asked("spool", slurm_checks.spool, elsewhere=True),
        Asked("pages", checks.pages),
        Asked("notifications", lambda a: checks.notifications(a, sending=sending), elsewhere=True),
        Asked("daemon", checks.daemon, elsewhere=True),
    ]
    for one in asked:
        if one.elsewhere:
            one.begin(app)
    worst = Mark.GOOD
    for one in asked:
        for found in one.answer(app, began_s + WAIT_S):
            echo(f"{found.mark.value:>8}  {one.title}: {clean(found.what)}")
            if found.next_step:
                echo(f"{'':>8}  → {clean(found.next_step)}")
            if found.mark is Mark.BAD or (found.mark is Mark.WARNING and worst is Mark.GOOD):
                worst = found.mark
    return 0 if worst is not Mark.BAD else 6


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
            where = f" ({error.where})" if error.where else ""
            self._found.append(Found(Mark.BAD, error.what + where, error.next_step))
        except Exception as error:
            self._fault.append(error)
