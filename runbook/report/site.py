"""What the pages have in common: template environment, style, script, security policy, and the site around a page.

The templates, the style sheet and the script lie in `templates/` and are part of the program. Every value passes
`clean` and autoescape; only pictures made here are markup.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from runbook.model.incident import IncidentState
from runbook.model.units import Unknown
from runbook.report import words
from runbook.report.clean import Cleaned, clean, shorten
from runbook.report.limits import LEVELS
from runbook.report.node_words import oom_kill_words

NAVIGATION: tuple[tuple[str, str], ...] = (("/", "Incidents"), ("/history", "History"))
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
        kills=lambda facts: tuple(oom_kill_words(facts, windowed=True)),
    )
    pages.globals.update(
        counted=words.counted, diagnosis_title=words.diagnosis_title, diagnosis_meaning=words.diagnosis_meaning,
        EFFECT_WORDS=words.EFFECT_WORDS, EFFECT_SENTENCES=words.EFFECT_SENTENCES, STATE_TITLES=words.STATE_TITLES,
        AGAIN_TITLES=words.AGAIN_TITLES, KIND_TITLES=words.KIND_TITLES, STATE_TONES=STATE_TONES,
        NAVIGATION=NAVIGATION, style=style_sheet, security_policy=security_policy, assets_version=assets_version,
        live_script_address=live_script_address, site=None,
    )
    return pages


def commands(text: str) -> Markup:
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
    return (files("runbook.report") / "templates" / name).read_text(encoding="utf-8").rstrip("\n")


def _beside(path: str) -> str:
    """A link to a file under the page's own folder; it cannot name another host or scheme."""
    return "./" + quote("/".join(part for part in path.split("/") if part not in ("", ".", "..")), errors="replace")


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
