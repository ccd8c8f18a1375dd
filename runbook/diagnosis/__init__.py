"""Pure judgement: evidence in, ranked hypotheses with their reasons, and what is missing, out."""

from runbook.diagnosis.case import LOCAL_PROCESSES
from runbook.diagnosis.decision import diagnose, unknown_names

__all__ = ["LOCAL_PROCESSES", "diagnose", "unknown_names"]
