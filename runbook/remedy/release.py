"""Which releases of a system a template is written for, by how it spells things; and the spelling to write."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.model.template import Setting, SettingKind, TemplateFile
from runbook.remedy.document import LeverDocument, Parameter, VersionMark
from runbook.remedy.live_text import first_seen
from runbook.remedy.situation import Refusal, Situation


def releases(
    system: LeverDocument, settings: Sequence[Setting], templates: Sequence[TemplateFile] = ()
) -> tuple[VersionMark, ...]:
    """The versions that the template's spellings and marks allow; all where nothing tells; none where they exclude one
    another. A pattern that several versions have as a mark says that it is one of these."""
    allowed = system.versions
    for setting in settings:
        spelt = next((item.in_version for item in system.parameters if item.id == setting.parameter), {})
        if setting.spelling.lstrip("+") in {value.lstrip("+") for value in spelt.values() if value is not None}:
            allowed = tuple(item for item in allowed if _same(spelt.get(item.id, setting.spelling), setting.spelling))
    for pattern in dict.fromkeys(mark for item in system.versions for mark in item.marks):
        if first_seen(pattern, templates):
            allowed = tuple(item for item in allowed if pattern in item.marks)
    return allowed


def spelling_to_write(situation: Situation, parameter: Parameter) -> tuple[str, ...] | Refusal:
    """The spellings of a parameter that the template does not set, the one to write first; refused where versions
    differ and which one this is is not known, or where this version does not have it."""
    possible = {item.id for item in situation.releases}
    title = situation.system.title
    if not parameter.in_version:
        return parameter.spellings
    if situation.system.versions and not possible:
        return Refusal(
            f"the template mixes spellings of several versions of {title}",
            f"Which version of {title} is installed?",
        )
    choices = parameter.spelt_among(situation.releases)
    if len(choices) > 1:
        shown = ", ".join(f"{parameter.in_version.get(item) or 'none'} in {item}" for item in sorted(possible))
        return Refusal(
            f"how {parameter.id.replace('_', ' ')} is spelt depends on the version of {title} ({shown})",
            f"Which version of {title} is installed? Write {parameter.spellings[0]} into the template with its present "
            "value, in that version's spelling.",
        )
    chosen = next(iter(choices), parameter.spellings[0])
    if chosen is None:
        return Refusal(f"this version of {title} has no {parameter.spellings[0]}")
    return parameter.spellings_after(chosen)


def with_prefix(system: LeverDocument, parameter: Parameter, spellings: tuple[str, ...]) -> tuple[str, ...]:
    """`++a.b` in front where the system's command line takes an unknown key only so."""
    prefix = system.adds_with if parameter.adds_with is None else parameter.adds_with
    if not prefix or parameter.kind is not SettingKind.KEY or spellings[0].startswith(("-", "+")):
        return spellings
    return (prefix + spellings[0], *spellings[1:])


def _same(spelt: str | None, found: str) -> bool:
    return spelt is not None and spelt.lstrip("+") == found.lstrip("+")
