"""Whatever else starts the job again beside this tool: noticed in the template, with what the plan does about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.model.template import Edit
from runbook.remedy.checkpoint_rules import Restarter
from runbook.remedy.settings_told import Told


@dataclass(frozen=True, slots=True)
class RestarterFindings:
    """What a person is told of them, what is changed for the relaunch, and what is left to look at."""

    notes: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    to_do: tuple[str, ...] = ()


def find_restarters(told: Told, common: Sequence[Restarter] = ()) -> RestarterFindings:
    """The restarters of the system and those that every system can have."""
    notes: list[str] = []
    edits: list[Edit] = []
    to_do: list[str] = []
    for restarter in (*told.system.restarters, *common):
        place = _place(told, restarter)
        if place is None:
            continue
        notes.append(f"{restarter.title} ({place}): {restarter.what_happens}")
        if restarter.to_do:
            to_do.append(restarter.to_do)
        if restarter.set is not None and restarter.condition is not None:
            edits.append(told.edit(restarter.condition.parameter, restarter.set))
    return RestarterFindings(tuple(dict.fromkeys(notes)), tuple(edits), tuple(dict.fromkeys(to_do)))


def _place(told: Told, restarter: Restarter) -> str | None:
    """Where it is seen; None when it is not there."""
    if restarter.condition is not None:
        # A value that is not known may be one that restarts: it is told, and set where the rule sets one.
        if told.holds(restarter.condition) is False:
            return None
        setting = told.setting(restarter.condition.parameter)
        return told.place(setting) if setting is not None else f"{told.named(restarter.condition.parameter)} is not set"
    compiled = re.compile(restarter.pattern)
    line = next((line for line in told.lines() if compiled.search(line.text)), None)
    return line.place if line is not None else None
