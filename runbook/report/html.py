"""The report page: one file, nothing fetched, no script, readable at night and on a phone.

The template and the style sheet lie in `templates/` and are part of the program. Every value passes `clean` and
autoescape; only pictures made here are markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from runbook.model.incident import Attempt, Incident
from runbook.model.units import Unknown
from runbook.report import narrative, words
from runbook.report.clean import clean, shorten, shorten_lines
from runbook.report.flow_svg import flow_chart
from runbook.report.limits import LEVELS, MOST_BYTES, Limits
from runbook.report.memory_picture import MemoryPicture, memory_after, memory_at_failure, shortfall
from runbook.report.memory_svg import memory_bar, scale_bytes
from runbook.report.picture import FlowPicture, stays

_STATE_TONES = {
    "running": "info",
    "awaiting_approval": "warn",
    "interrupted": "warn",
    "recovered": "good",
    "planned": "info",
    "escalated": "bad",
    "closed": "calm",
}


def render_html(
    incident: Incident,
    flow: FlowPicture,
    contract: Mapping[str, Any] | None = None,
    *,
    evidence_links: bool = True,
    home_url: str = "",
    refresh_s: int = 0,
) -> str:
    """The page of an incident, under 300 KB whatever the incident holds.

    `evidence_links`: kept copies are linked relative to the page, which is right beside them and wrong elsewhere.
    `home_url`: a link back to a list. `refresh_s`: the browser loads the page again, for an incident at work.
    """
    page = ""
    for limits in LEVELS:
        page = _render(
            incident, flow, contract, limits, evidence_links=evidence_links, home_url=home_url, refresh_s=refresh_s
        )
        if len(page.encode("utf-8", "replace")) < MOST_BYTES:
            break
    return page


def style_sheet() -> Markup:
    """The style of every page, to be inlined."""
    return Markup(environment().get_template("page.css").render())  # noqa: S704  (a file of this package)


@cache
def style_hash() -> str:
    """The style's hash as a content security policy wants it: "sha256-…"."""
    digest = hashlib.sha256(str(style_sheet()).encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode()


def security_policy() -> str:
    """What a page may do: show itself. No script, no request, no frame."""
    return f"default-src 'none'; style-src '{style_hash()}'; img-src data:; base-uri 'none'; form-action 'self'"


@cache
def environment() -> Environment:
    """The page environment: autoescape always on, every text cleaned, a missing name is an error."""
    pages = Environment(
        loader=PackageLoader("runbook.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    pages.filters.update(
        size=words.size,
        figure=_figure,
        moment=words.moment,
        clock=words.clock_time,
        machine=words.machine_time,
        duration=words.duration,
        percent=words.percent,
        commands=commands,
        beside=_beside,
        spoken=lambda name: str(name).replace("_", " "),
    )
    pages.globals.update(
        counted=words.counted, diagnosis_title=words.diagnosis_title, diagnosis_meaning=words.diagnosis_meaning,
        EFFECT_WORDS=words.EFFECT_WORDS, STATE_TITLES=words.STATE_TITLES, STATE_TONES=_STATE_TONES,
        style=style_sheet, security_policy=security_policy,
    )
    return pages


def commands(text: str) -> Markup:
    """Text in which what stands between backquotes is set as code."""
    pieces = clean(shorten(text, LEVELS[0].text)).split("`")
    if len(pieces) % 2 == 0:
        return escape("`".join(pieces))
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if index % 2 else escape(piece) for index, piece in enumerate(pieces)
    )


def _beside(path: str) -> str:
    """A link to a file under the page's own folder; it cannot name another host or scheme."""
    return "./" + quote("/".join(part for part in path.split("/") if part not in ("", ".", "..")), errors="replace")


def _finalize(value: object) -> object:
    """Every expression of every template comes through here before it is escaped."""
    if value is None:
        return ""
    if isinstance(value, Markup):
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


def _render(
    incident: Incident,
    flow: FlowPicture,
    contract: Mapping[str, Any] | None,
    limits: Limits,
    *,
    evidence_links: bool,
    home_url: str,
    refresh_s: int,
) -> str:
    failure = narrative.first_failure(incident)
    path = stays(flow.taken or incident.visits)
    chart, hubs = flow_chart(flow, path)
    titles = {box.name: box.title for box in flow.boxes}
    return environment().get_template("report.html").render(
        incident=incident,
        failure=failure,
        finding=narrative.root_cause(incident),
        headline=narrative.what_happened(incident),
        standing=narrative.how_it_stands(incident),
        to_do=narrative.to_do(incident),
        simulated=narrative.is_simulated(incident),
        memory=_memory(incident),
        changes=_changes(incident),
        attempts=incident.attempts,
        chart=chart,
        hubs=hubs,
        path=path,
        box_title=lambda name: titles.get(name, name),
        diff_rows=partial(_diff_rows, limits=limits),
        excerpt=lambda text: shorten_lines(clean(text[: limits.excerpt_lines * limits.line * 4]),
                                           limits.excerpt_lines, limits.line),
        command_line=lambda argv: " ".join(_quoted(word) for word in argv),
        cut=lambda text: shorten(clean(str(text)), limits.text),
        limits=limits,
        contract=None if contract is None else shorten(json.dumps(contract, indent=1), limits.text * 12),
        evidence_links=evidence_links,
        home_url=home_url,
        refresh_s=refresh_s,
        total_s=_total(incident),
        has_change=any(attempt.plan or attempt.patch for attempt in incident.attempts) or incident.plan is not None,
    )


def _memory(incident: Incident) -> list[tuple[str, MemoryPicture, Markup, str]]:
    """Name, picture, bar and remark: at the failure, and after the change where the new job printed its peak."""
    finding = narrative.root_cause(incident)
    if finding is None:
        return []
    failure = narrative.first_failure(incident)
    gpu = None
    for facts in failure.nodes if failure else ():
        if facts.node == finding.node and isinstance(facts.gpus, tuple):
            gpu = next((gpu for gpu in facts.gpus if gpu.index == finding.device), None)
    before = memory_at_failure(finding.fields, gpu)
    if before is None:
        return []
    named: list[tuple[str, MemoryPicture, str]] = [
        (f"When job {incident.root_job} failed", before, shortfall(before))
    ]
    proven = narrative.proven_attempt(incident)
    sample = narrative.peak_sample(proven, finding.rank) if proven else None
    after = memory_after(sample, before.capacity_bytes) if sample else None
    if proven is not None and sample is not None and after is not None:
        of_rank = f"rank {sample.rank}" if sample.rank is not None else "the highest rank that printed it"
        remark = proven.verdict.headroom if proven.verdict else ""
        named.append((f"Job {proven.job}, {of_rank}, its peak", after, remark))
    scale = scale_bytes(tuple(picture for _, picture, _ in named))
    return [(name, picture, memory_bar(picture, scale, name), remark) for name, picture, remark in named]


def _changes(incident: Incident) -> Sequence[Attempt]:
    """Attempts, or the plan of an incident that has made none, in an attempt's shape."""
    changed = [attempt for attempt in incident.attempts if attempt.plan or (attempt.patch and attempt.patch.diff)]
    if changed or (incident.plan is None and (incident.patch is None or not incident.patch.diff)):
        return changed
    return [Attempt(0, incident.plan, incident.patch, incident.checkpoint)]


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
