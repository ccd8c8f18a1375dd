"""Levers, constraints and ladders: from a diagnosis and a template's values to a plan or a refusal."""

from runbook.remedy.documents import LeverDocument, load_levers, recognise
from runbook.remedy.ladder import propose
from runbook.remedy.world import reduce_world, resume_edits

__all__ = ["LeverDocument", "load_levers", "propose", "recognise", "reduce_world", "resume_edits"]
