"""Which system a job runs, told from its template and its log."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.model.log import LogStory
from runbook.model.template import TemplateFile
from runbook.remedy.document import LeverDocument
from runbook.remedy.live_text import first_seen


def recognise(
    templates: Sequence[TemplateFile], story: LogStory, documents: Sequence[LeverDocument]
) -> LeverDocument | None:
    """The system with the heaviest marks; None when no system's marks are there, or two weigh the same.

    A fallback system is taken only when no other is recognised. Comments of the template do not count.
    """
    weights = {document.id: weight(document, templates, story) for document in documents}
    for fallback in (False, True):
        found = [item for item in documents if item.fallback is fallback and weights[item.id]]
        best = max((weights[item.id] for item in found), default=0)
        chosen = [item for item in found if weights[item.id] == best]
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            return None
    return None


def weight(document: LeverDocument, templates: Sequence[TemplateFile], story: LogStory) -> int:
    """The sum of the marks that are there."""
    if any(first_seen(pattern, templates) for pattern in document.excluded_by):
        return 0
    return sum(
        mark.weight
        for mark in document.marks
        if (mark.framework and mark.framework == story.framework)
        or (mark.pattern and first_seen(mark.pattern, templates))
    )
