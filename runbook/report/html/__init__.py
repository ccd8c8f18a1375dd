"""The page of an incident: one renderer for the served page, live while there is work, and for the file that stays.

The file is self-contained: nothing fetched, no script, readable at night and on a phone. The template lies in
`templates/`; the pages over all incidents are in `list_pages.py`, the pictures in `charts/`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from runbook.model.incident import Attempt, Incident, IncidentState
from runbook.model.units import Unknown, duration, moment, size
from runbook.report import narrative
from runbook.report.charts import incident_figures
from runbook.report.charts.flow_chart import FlowPicture
from runbook.report.json_documents import without_surrogates
from runbook.report.narrative import timeline
from runbook.report.vocabulary import titles
from runbook.report.vocabulary.clean import Cleaned, clean, clean_line, cleaned_to, shorten, shorten_lines
from runbook.report.vocabulary.nodes import oom_kill_words
from runbook.report.vocabulary.sentences import in_words
from runbook.report.vocabulary.titles import STATE_TITLES

# How much of an incident a page shows, so that it stays small whatever the logs hold.

@dataclass(frozen=True, slots=True)
class Limits:
    """Counts and characters. What is cut is said where it is cut."""

    text: int
    """Characters of one piece of text."""
    items: int
    """Entries of a list in a section: reasons, notes, receipts, levers passed over."""
    rows: int
    """Rows of a table: acts, visits, XIDs, processes, ranks."""
    groups: int
    """Attempts, nodes: parts with tables of their own."""
    excerpt_lines: int
    diff_lines: int
    line: int
    """Characters of a line of an excerpt or a diff."""


LEVELS = (
    Limits(text=700, items=20, rows=64, groups=8, excerpt_lines=40, diff_lines=160, line=400),
    Limits(text=300, items=8, rows=16, groups=4, excerpt_lines=20, diff_lines=60, line=300),
    Limits(text=160, items=3, rows=6, groups=2, excerpt_lines=8, diff_lines=20, line=160),
)
"""From generous to tight: a page that comes out too large is made again with the next."""

MOST_BYTES = 300_000


# What the pages have in common: template environment, style, script, security policy, and the site around a page.
#
# The templates, the style sheet and the script lie in `templates/` and are part of the program. Every value passes
# `clean` and autoescape; only pictures made here are markup.

NAVIGATION: tuple[tuple[str, str], ...] = (("/", "Incidents"), ("/history", "History"), ("/explain", "Explain"))
"""Address and name of each page in the header of the site; a new page adds its line here."""

STATE_TONES: dict[IncidentState, str] = {
    IncidentState.RUNNING: "info",
    IncidentState.AWAITING_APPROVAL: "warn",
    IncidentState.INTERRUPTED: "warn",
    IncidentState.RECOVERED: "good",
    IncidentState.PLANNED: "info",
    IncidentState.ESCALATED: "bad",
    IncidentState.CLOSED: "calm",
}


@dataclass(frozen=True, slots=True)
class Site:
    """What a served page has and a file has not: the way to the other pages, and the script that keeps it true."""

    here: str = ""
    """The address in `NAVIGATION` that the page is, if it is one of them."""
    live_s: int = 0
    """The open page asks again after so many seconds; 0: it does not change any more."""
    account: Markup = Markup("")
    """The sign-in's part of the header."""


def style_sheet() -> Markup:
    """The style of every page, to be inlined."""
    return Markup(_part("page.css"))  # noqa: S704  (a file of this package)


@cache
def style_hash() -> str:
    """The style's hash as a content security policy wants it: "sha256-…"."""
    digest = hashlib.sha256(str(style_sheet()).encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode()


def live_script() -> str:
    """The script that keeps a served page true; a file has none."""
    return _part("live.js")


@cache
def live_script_address() -> str:
    """Where it is served: the name changes with what it says, so that it may be kept for ever."""
    return f"/assets/live-{hashlib.sha256(live_script().encode()).hexdigest()[:16]}.js"


@cache
def assets_version() -> str:
    """Changes with the style or the script: a page that is open while the program is upgraded loads anew."""
    return hashlib.sha256((str(style_sheet()) + live_script()).encode()).hexdigest()[:16]


def security_policy(*, served: bool = False) -> str:
    """What a page may do: show itself. No request, no frame, no script; a served page runs the program's own script,
    which asks the same service."""
    own = "; script-src 'self'; connect-src 'self'" if served else ""
    return f"default-src 'none'; style-src '{style_hash()}'; img-src data:; base-uri 'none'; form-action 'self'{own}"


@cache
def page_environment() -> Environment:
    """The page environment: autoescape always on, every text cleaned, a missing name is an error."""
    pages = Environment(
        loader=PackageLoader("runbook.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    pages.filters.update(
        in_words=in_words,
        size=size,
        figure=_figure,
        moment=moment,
        clock=titles.clock_time,
        machine=titles.machine_time,
        duration=duration,
        percent=titles.percent,
        commands=commands_as_code,
        beside=_beside,
        spoken=lambda name: str(name).replace("_", " "),
        kills=lambda facts: tuple(oom_kill_words(facts, windowed=True)),
    )
    pages.globals.update(
        counted=titles.counted, diagnosis_title=titles.diagnosis_title, diagnosis_meaning=titles.diagnosis_meaning,
        EFFECT_WORDS=titles.EFFECT_WORDS, EFFECT_SENTENCES=titles.EFFECT_SENTENCES, STATE_TITLES=titles.STATE_TITLES,
        AGAIN_TITLES=titles.AGAIN_TITLES, STATE_TONES=STATE_TONES,
        NAVIGATION=NAVIGATION, style=style_sheet, security_policy=security_policy, assets_version=assets_version,
        live_script_address=live_script_address, site=None,
    )
    return pages


def commands_as_code(text: str) -> Markup:
    """Text in which what stands between backquotes is set as code."""
    # Cleaned before it is cut: half a secret would not be known as one.
    limit = LEVELS[0].text
    pieces = shorten(clean(text[: limit * 8]), limit).split("`")
    if len(pieces) % 2 == 0:
        return escape("`".join(pieces))
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if index % 2 else escape(piece) for index, piece in enumerate(pieces)
    )


@cache
def _part(name: str) -> str:
    """A file of this package, without the line end that a template would not have either."""
    return (files("runbook.report.html") / "templates" / name).read_text(encoding="utf-8").rstrip("\n")


def _beside(path: str) -> str:
    """A link to a file under the page's own folder; it cannot name another host or scheme."""
    inside = "/".join(part for part in path.split("/") if part not in ("", ".", ".."))
    try:
        return "./" + quote(inside, errors="surrogateescape")  # a name's bytes that are no UTF-8 lead there as well
    except UnicodeEncodeError:
        return "./" + quote(inside, errors="replace")


def _finalize(value: object) -> object:
    """Every expression of every template comes through here before it is escaped."""
    if value is None:
        return ""
    if isinstance(value, Markup | Cleaned):
        return value
    return clean(str(value)) if not isinstance(value, int | float) else value


def _figure(value: object) -> str:
    """A fact of a node: yes, no, a number, or unknown with its reason."""
    match value:
        case Unknown():
            return f"unknown: {value.unknown}"
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)


__all__ = ["Site", "page_environment", "render_html", "security_policy", "style_hash", "style_sheet"]


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
    template = page_environment().get_template("report.html")
    told = {**_told(incident, flow), "site": site, "actions": actions}
    for limits in LEVELS:
        page = template.render(**told, **_cut_to(limits, contract))
        if len(page.encode("utf-8", "replace")) < MOST_BYTES:
            break
    return page


def page_title(incident: Incident) -> str:
    """For a tab and a chat's preview: "Recovered: job 884213 llama-70b-sft, true out of memory"."""
    failure = narrative.first_failure(incident)
    cause = narrative.cause(incident)
    name = f" {shorten(clean_line(failure.job.name[:400]), 60)}" if failure and failure.job.name else ""
    title = cause.kind.entry.title if cause else ""
    of_what = f", {title[:1].lower()}{title[1:]}" if cause else ""
    return f"{STATE_TITLES[incident.state]}: job {incident.root_job}{name}{of_what}"


def _told(incident: Incident, flow: FlowPicture) -> dict[str, object]:
    """What the page says, however much room there is."""
    titles = {box.name: box.title for box in flow.boxes}
    drawn = incident_figures(incident, flow)
    return {
        "incident": incident,
        "failure": narrative.first_failure(incident),
        "finding": narrative.root_cause(incident),
        "page_title": page_title(incident),
        "headline": narrative.what_happened(incident),
        "standing": narrative.how_it_stands(incident),
        "to_do": narrative.to_do(incident),
        "done": narrative.what_was_done(incident),
        "again": narrative.runs_again(incident),
        "again_sentence": narrative.again_sentence(incident),
        "simulated": narrative.is_simulated(incident),
        "figures": drawn,
        "path": drawn.path,
        "events": timeline(incident),
        "changes": _changes(incident),
        "attempts": incident.attempts,
        "box_title": lambda name: titles.get(name, name),
        "foreseen_and_measured": narrative.foreseen_and_measured,
        "what_is_foreseen": narrative.what_is_foreseen,
        "in_words": in_words,
        "story_notes": lambda story: tuple(map(in_words, story.notes)),
        "why_passed_over": narrative.why_passed_over,
        "command_line": lambda argv: " ".join(_quoted(word) for word in argv),
        "total_s": _total_s(incident),
    }


def _cut_to(limits: Limits, contract: Mapping[str, Any] | None) -> dict[str, object]:
    """What is cut where there is little room."""
    return {
        "diff_rows": partial(_diff_rows, limits=limits),
        "excerpt": lambda text: shorten_lines(
            clean(text[: limits.excerpt_lines * limits.line * 4]), limits.excerpt_lines, limits.line
        ),
        "cut": lambda text: cleaned_to(str(text), limits.text),
        "limits": limits,
        "contract": None if contract is None else cleaned_to(
            json.dumps(without_surrogates(contract), indent=1), limits.text * 12
        ),
    }


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


def _total_s(incident: Incident) -> float | None:
    end = incident.closed_s if incident.closed_s is not None else incident.updated_s
    return end - incident.opened_s if end and end > incident.opened_s else None
