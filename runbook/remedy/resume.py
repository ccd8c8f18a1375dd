"""What makes a template go on from a checkpoint."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from runbook.model.checkpoint import Checkpoint
from runbook.model.template import Edit, Setting
from runbook.remedy.checkpoint_rules import ResumeRule
from runbook.remedy.document import LeverDocument


def resume_edits(settings: Sequence[Setting], checkpoint: Checkpoint, *, system: LeverDocument) -> tuple[Edit, ...]:
    """The edits of the document's resume rules that are not in force already.

    A value that cannot be read from the template gives an edit too: applying it is then refused with the reason,
    for a job that does not resume starts from scratch without a word.
    """
    edits = []
    for rule in system.checkpoint.resume:
        parameter = system.parameter(rule.parameter)
        found = [item for item in settings if item.parameter == rule.parameter]
        present = found[0] if found else None
        wanted = _wanted(rule, checkpoint)
        if wanted is None and present is None:
            continue
        if present is not None and _same(present.value, wanted, rule):
            continue
        spellings = parameter.spellings
        if present is not None:
            spellings = (present.spelling, *(item for item in spellings if item != present.spelling))
        old = present.value if present is not None else None
        edits.append(Edit(rule.parameter, parameter.kind, spellings, wanted, old, parameter.type == "flag"))
    return tuple(edits)


def _wanted(rule: ResumeRule, checkpoint: Checkpoint) -> str | None:
    """None: the parameter has no place there, and is taken out if it is set."""
    if rule.when == "not_the_latest" and checkpoint.latest is not False:
        return None
    if rule.text is not None or rule.value is None:
        return rule.text
    values = {
        "parent": posixpath.dirname(checkpoint.path),
        "path": checkpoint.path,
        "name": posixpath.basename(checkpoint.path),
        "step": str(checkpoint.step) if checkpoint.step is not None else None,
        "true": "true",
    }
    return values[rule.value]


def _same(present: str | None, wanted: str | None, rule: ResumeRule) -> bool:
    if present is None or wanted is None or rule.value not in ("parent", "path"):
        return present == wanted and present is not None
    if posixpath.isabs(present):
        return posixpath.normpath(present) == posixpath.normpath(wanted)
    # A relative path is meant from the job's own folder: the wanted one ends with it.
    tail = posixpath.normpath(present)
    return not tail.startswith("..") and f"{posixpath.normpath(wanted)}/".endswith(f"/{tail}/")
