"""The page of an incident: one renderer for the served page, live while there is work, and for the file that stays.

The file is self-contained: nothing fetched, no script, readable at night and on a phone. The template lies in
`templates/`; what is common to all pages is in `site.py`, the pictures are in `figures.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from runbook.model.incident import Attempt, Incident
from runbook.report import narrative
from runbook.report.clean import clean, clean_line, shorten, shorten_lines, shown
from runbook.report.figures import Figures, figures
from runbook.report.limits import LEVELS, MOST_BYTES, Limits
from runbook.report.picture import FlowPicture
from runbook.report.site import Site, environment, security_policy, style_hash, style_sheet
from runbook.report.timeline import timeline
from runbook.report.words import KIND_TITLES, STATE_TITLES

__all__ = ["Site", "environment", "render_html", "security_policy", "style_hash", "style_sheet"]


def render_html(
    incident: Incident,
    flow: FlowPicture,
    contract: Mapping[str, Any] | None = None,
    *,
    site: Site | None = None,
    actions: object | None = None,
) -> str:
    """The page of an incident, under 300 KB whatever the incident holds.

    `site`: the page is served; without it, it is a file beside the kept copies, which it links. `actions`: what a
    person may do from the page, shown by the template `actions.html` beside what there is to do.
    """
    page = ""
    drawn = figures(incident, flow)
    for limits in LEVELS:
        page = _render(incident, flow, drawn, contract, limits, site=site, actions=actions)
        if len(page.encode("utf-8", "replace")) < MOST_BYTES:
            break
    return page


def page_title(incident: Incident) -> str:
    """For a tab and a chat's preview: "Recovered: job 884213 llama-70b-sft, true out of memory"."""
    failure = narrative.first_failure(incident)
    cause = narrative.cause(incident)
    name = f" {shorten(clean_line(failure.job.name[:400]), 60)}" if failure and failure.job.name else ""
    of_what = f", {KIND_TITLES[cause.kind][:1].lower()}{KIND_TITLES[cause.kind][1:]}" if cause else ""
    return f"{STATE_TITLES[incident.state]}: job {incident.root_job}{name}{of_what}"


def _render(
    incident: Incident,
    flow: FlowPicture,
    drawn: Figures,
    contract: Mapping[str, Any] | None,
    limits: Limits,
    *,
    site: Site | None,
    actions: object | None,
) -> str:
    titles = {box.name: box.title for box in flow.boxes}
    return environment().get_template("report.html").render(
        incident=incident,
        failure=narrative.first_failure(incident),
        finding=narrative.root_cause(incident),
        page_title=page_title(incident),
        headline=narrative.what_happened(incident),
        standing=narrative.how_it_stands(incident),
        to_do=narrative.to_do(incident),
        done=narrative.what_was_done(incident),
        again=narrative.runs_again(incident),
        again_sentence=narrative.again_sentence(incident),
        simulated=narrative.is_simulated(incident),
        figures=drawn,
        path=drawn.path,
        events=timeline(incident),
        changes=_changes(incident),
        attempts=incident.attempts,
        box_title=lambda name: titles.get(name, name),
        diff_rows=partial(_diff_rows, limits=limits),
        excerpt=lambda text: shorten_lines(clean(text[: limits.excerpt_lines * limits.line * 4]),
                                           limits.excerpt_lines, limits.line),
        command_line=lambda argv: " ".join(_quoted(word) for word in argv),
        cut=lambda text: shown(str(text), limits.text),
        limits=limits,
        contract=None if contract is None else shown(json.dumps(contract, indent=1), limits.text * 12),
        site=site,
        actions=actions,
        total_s=_total(incident),
    )


def _changes(incident: Incident) -> Sequence[Attempt]:
    """Attempts, or the plan of an incident that has made none, in an attempt's shape."""
    changed = [attempt for attempt in incident.attempts if attempt.plan or (attempt.patch and attempt.patch.diff)]
    if changed or (incident.plan is None and (incident.patch is None or not incident.patch.diff)):
        return changed
    return [Attempt(0, incident.whole_plan, incident.patch, incident.checkpoint)]


def _diff_rows(diff: str, limits: Limits) -> list[tuple[str, str]]:
    """Lines of a unified diff with their class."""
    rows = []
    text = shorten_lines(clean(diff[: limits.diff_lines * limits.line]), limits.diff_lines, limits.line)
    for line in text.rstrip("\n").split("\n"):
        match line[:1]:
            case "+" if not line.startswith("+++"):
                name = "added"
            case "-" if not line.startswith("---"):
                name = "removed"
            case "@":
                name = "place"
            case "+" | "-":
                name = "file"
            case _:
                name = "same"
        rows.append((name, line))
    return rows


def _quoted(word: str) -> str:
    """A word as a shell would need it, for reading only."""
    plain = word and all(character.isalnum() or character in "@%_+=:,./-" for character in word)
    return word if plain else "'" + word.replace("'", "'\\''") + "'"


def _total(incident: Incident) -> float | None:
    end = incident.closed_s if incident.closed_s is not None else incident.updated_s
    return end - incident.opened_s if end and end > incident.opened_s else None
