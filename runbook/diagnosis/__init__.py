"""Pure judgement: evidence in, ranked hypotheses with their reasons, and what is missing, out."""

from runbook.diagnosis.decision import diagnose, unknown_names

__all__ = ["diagnose", "unknown_names"]
