"""Levers, constraints and ladders: from a diagnosis and a template's values to a plan or a refusal."""

from runbook.remedy.checkpoint_rules import Obstacle, Restarter
from runbook.remedy.earlier_incidents import (
    SimilarIncident,
    Similarity,
    circumstances,
    similar_incidents,
    what_worked,
    with_reasons,
)
from runbook.remedy.ladder import cool_off_left_s, drain_refused, propose, relaunch_refused
from runbook.remedy.lever_document import LeverDocument
from runbook.remedy.loading import load_levers, load_restarters
from runbook.remedy.recognition import recognise
from runbook.remedy.resume import (
    Resumed,
    ResumeFindings,
    ResumeKind,
    checkpoint_folders,
    find_restarters,
    resume_edits,
    resume_findings,
    resume_proof,
)
from runbook.remedy.template_settings import TemplateSettings
from runbook.remedy.world import REDUCE_WORLD, reduce_world, world_options

__all__ = [
    "REDUCE_WORLD",
    "LeverDocument",
    "Obstacle",
    "Restarter",
    "ResumeFindings",
    "ResumeKind",
    "Resumed",
    "SimilarIncident",
    "Similarity",
    "TemplateSettings",
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
    "similar_incidents",
    "what_worked",
    "with_reasons",
    "world_options",
]
