"""Pure judgement: evidence in, ranked hypotheses with their reasons, and what is missing, out."""

from runbook.diagnosis.diagnose import diagnose

__all__ = ["diagnose"]
