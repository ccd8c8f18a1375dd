"""The catalogue of GPU models: how much memory each one shows when nothing is lost."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from runbook.documents import Document, DocumentsInvalid, Problem, load_document
from runbook.model.catalogues import GpuModels, model_key
from runbook.model.units import MIB, Bytes


class GpuModelEntry(Document):
    """Models that show the same."""

    names: tuple[str, ...] = Field(min_length=1)
    """As nvidia-smi prints them, with or without the maker's name."""
    total_mib: tuple[int, ...] = Field(min_length=1)
    """Totals that sound ones were seen with: driver branches differ, and on GDDR memory ECC costs a sixteenth."""
    note: str = ""


class GpuModelDocument(Document):
    """`playbooks/oom/gpu_models.yaml`."""

    version: Literal[1]
    id: str
    title: str
    why: str
    source: str = Field(min_length=1)
    date: datetime.date
    models: tuple[GpuModelEntry, ...] = Field(min_length=1)


def load_gpu_models(path: Path) -> GpuModels:
    """The catalogue. Raises `DocumentsInvalid`, also for a model that stands in it twice."""
    document = load_document(path, GpuModelDocument)
    least: dict[str, Bytes] = {}
    problems: list[Problem] = []
    for number, entry in enumerate(document.models):
        for name in entry.names:
            key = model_key(name)
            if key in least:
                problems.append(Problem(str(path), 0, f"models.{number}", f"{name} stands here a second time"))
            least[key] = Bytes(min(entry.total_mib) * MIB)
    if problems:
        raise DocumentsInvalid(problems)
    return GpuModels(least, document.source, document.date.isoformat())
