"""Lever documents and restarters as they are used: read and checked once, then remembered until one of them changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from runbook.document_cache import Cached
from runbook.model.diagnosis import Detail, Kind
from runbook.model.log import Phase
from runbook.model.remedy import Effect
from runbook.remedy import checkpoint_rules, document
from runbook.remedy.checkpoint_rules import Restarter
from runbook.remedy.constraints import CONSTRAINTS
from runbook.remedy.document import LeverDocument
from runbook.remedy.functions import FUNCTIONS


def load_levers(folder: Path) -> tuple[LeverDocument, ...]:
    """All lever documents of a folder. Raises `DocumentsInvalid` with every problem of every file.

    Parsing and checking them takes seconds, so documents without a problem are remembered."""
    made_by = [Path(__file__).with_name(name) for name in ("document.py", "document_check.py", "checkpoint_rules.py")]
    words = (*sorted(FUNCTIONS), *sorted(CONSTRAINTS), *Kind, *Detail, *Phase, *Effect)
    cached = Cached.of("levers", folder, sorted(folder.glob("*.yaml")), made_by, words)
    if cached is not None and (known := _restored(cached.read())) is not None:
        return known
    made = document.load_levers(folder)
    if cached is not None:
        plain = [item.model_dump(mode="json", exclude_defaults=True) for item in made]
        if _restored(plain) == made:
            cached.write(plain)
    return made


def load_restarters(file: Path) -> tuple[Restarter, ...]:
    """The restarters common to all systems. Raises `DocumentsInvalid`. Remembered likewise."""
    cached = Cached.of("restarters", file, [file], [Path(__file__).with_name("checkpoint_rules.py")], ())
    plain = cached.read() if cached is not None else None
    if isinstance(plain, list):
        try:
            return tuple(Restarter.model_validate(item) for item in plain)
        except ValidationError:
            pass
    made = checkpoint_rules.load_restarters(file)
    if cached is not None:
        cached.write([item.model_dump(mode="json", exclude_defaults=True) for item in made])
    return made


def _restored(plain: Any) -> tuple[LeverDocument, ...] | None:
    """Documents out of what was remembered; None where it does not fit."""
    if not isinstance(plain, list):
        return None
    try:
        return tuple(LeverDocument.model_validate(item) for item in plain)
    except ValidationError:
        return None
