"""Levers, constraints and ladders: from a diagnosis and a template's values to a plan or a refusal."""

from runbook.remedy.document import LeverDocument, load_levers
from runbook.remedy.ladder import propose
from runbook.remedy.limits import cool_off_left_s, drain_refused, relaunch_refused
from runbook.remedy.recognise import recognise
from runbook.remedy.resume import resume_edits
from runbook.remedy.world import reduce_world

__all__ = [
    "LeverDocument",
    "cool_off_left_s",
    "drain_refused",
    "load_levers",
    "propose",
    "recognise",
    "reduce_world",
    "relaunch_refused",
    "resume_edits",
]
