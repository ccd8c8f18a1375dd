"""What makes a template go on from a checkpoint."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from runbook.model.checkpoint import Checkpoint
from runbook.model.template import Edit, Setting, TemplateFile
from runbook.remedy.checkpoint_rules import ResumeRule
from runbook.remedy.document import LeverDocument
from runbook.remedy.settings_told import Told


def resume_edits(
    settings: Sequence[Setting],
    checkpoint: Checkpoint,
    *,
    system: LeverDocument,
    templates: Sequence[TemplateFile] = (),
) -> tuple[Edit, ...]:
    """The edits of the document's resume rules that are not in force already.

    A value that cannot be read from the template gives an edit too: applying it is then refused with the reason,
    for a job that does not resume starts from scratch without a word.
    """
    told = Told(system, tuple(settings), tuple(templates))
    edits = []
    for parameter, rules in _by_parameter(system, checkpoint).items():
        rule = next((item for item in rules if _applies(item, checkpoint)), None)
        present = told.setting(parameter)
        wanted = _wanted(rule, checkpoint) if rule is not None else None
        if present is None and (wanted is None or wanted == told.default(parameter) or not told.exists(parameter)):
            continue
        if present is not None and rule is not None and _same(present.value, wanted, rule):
            continue
        edits.append(told.edit(parameter, wanted))
    return tuple(edits)


def _by_parameter(system: LeverDocument, checkpoint: Checkpoint) -> dict[str, list[ResumeRule]]:
    """The rules for a checkpoint of this format. One that is for other formats only says nothing here."""
    found: dict[str, list[ResumeRule]] = {}
    for rule in system.checkpoint.resume:
        if not rule.formats or checkpoint.format in rule.formats:
            found.setdefault(rule.parameter, []).append(rule)
    return found


def _applies(rule: ResumeRule, checkpoint: Checkpoint) -> bool:
    not_the_latest = checkpoint.latest is False
    return rule.when == "always" or (rule.when == "not_the_latest") is not_the_latest


def _wanted(rule: ResumeRule, checkpoint: Checkpoint) -> str | None:
    """None: the parameter has no place there, and is taken out if it is set."""
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
    if present is not None and present.casefold() in {item.casefold() for item in rule.accepts}:
        return True
    if present is not None and rule.text is not None and rule.value is None:
        return present.casefold() == rule.text.casefold()
    if present is None or wanted is None or rule.value not in ("parent", "path"):
        return present == wanted and present is not None
    if posixpath.isabs(present):
        return posixpath.normpath(present) == posixpath.normpath(wanted)
    # A relative path is meant from the job's own folder: the wanted one ends with it.
    tail = posixpath.normpath(present)
    return not tail.startswith("..") and f"{posixpath.normpath(wanted)}/".endswith(f"/{tail}/")
