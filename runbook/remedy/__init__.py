"""Levers, constraints and ladders: from a diagnosis and a template's values to a plan or a refusal."""

from runbook.remedy.checkpoint_rules import Obstacle, Restarter
from runbook.remedy.circumstances import circumstances
from runbook.remedy.document import LeverDocument
from runbook.remedy.history import Likeness, Witness, what_worked, with_reasons, witnesses
from runbook.remedy.ladder import propose
from runbook.remedy.limits import cool_off_left_s, drain_refused, relaunch_refused
from runbook.remedy.loading import load_levers, load_restarters
from runbook.remedy.recognise import recognise
from runbook.remedy.restarters import find_restarters
from runbook.remedy.resume import resume_edits
from runbook.remedy.resume_check import ResumeFindings, checkpoint_folders, resume_findings
from runbook.remedy.resume_proof import Resumed, ResumeKind, resume_proof
from runbook.remedy.settings_told import Told
from runbook.remedy.world import REDUCE_WORLD, reduce_world
from runbook.remedy.world_options import world_options

__all__ = [
    "REDUCE_WORLD",
    "LeverDocument",
    "Likeness",
    "Obstacle",
    "Restarter",
    "ResumeFindings",
    "ResumeKind",
    "Resumed",
    "Told",
    "Witness",
    "checkpoint_folders",
    "circumstances",
    "cool_off_left_s",
    "drain_refused",
    "find_restarters",
    "load_levers",
    "load_restarters",
    "propose",
    "recognise",
    "reduce_world",
    "relaunch_refused",
    "resume_edits",
    "resume_findings",
    "resume_proof",
    "what_worked",
    "with_reasons",
    "witnesses",
    "world_options",
]
