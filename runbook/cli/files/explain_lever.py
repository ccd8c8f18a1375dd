"""What `runbook explain` tells of levers, parameters, what is out of a template's reach, and diagnostic settings."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import click

from runbook.cli.files.levers import terminal_width, when
from runbook.model.template import condition_of
from runbook.remedy import (
    CONSTRAINTS,
    Conflict,
    Diagnostic,
    EditRule,
    LeverDocument,
    LeverRule,
    Need,
    OutOfReach,
    Parameter,
)
from runbook.report.text import labelled

Entry = LeverRule | Parameter | OutOfReach | Diagnostic

_WHOLE_UP_TO = 3
"""So many answers of one system are told in full; others in short, and how to ask for one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An entry of a system's document that a name stands for."""

    document: LeverDocument
    what: str
    """lever, parameter, out of reach, diagnostic."""
    entry: Entry

    @property
    def name(self) -> str:
        return f"{self.document.id}:{self.entry.id}"


def answers(name: str, documents: Sequence[LeverDocument]) -> tuple[Answer, ...]:
    """What a name stands for: an id, a spelling in any form in which a template can have it, or SYSTEM:NAME."""
    system, colon, rest = name.partition(":")
    chosen = [item for item in documents if colon and item.id == system.strip().lower().replace("-", "_")]
    asked = rest if chosen else name
    every = [item for document in chosen or documents for item in _entries(document)]
    written = [item for item in every if _bare(asked) in (item.entry.id, *map(_bare, names_of(item)))]
    if written:
        return tuple(written)
    wanted = plain(asked)
    return tuple(item for item in every if wanted in {plain(one) for one in (item.entry.id, *names_of(item))})


def near(name: str, documents: Sequence[LeverDocument]) -> list[str]:
    """Names that differ from this one by a slip of the fingers."""
    by_plain: dict[str, list[str]] = {}
    for one in all_names(documents):
        by_plain.setdefault(plain(one), []).append(_bare(one))
    found = difflib.get_close_matches(plain(name.rpartition(":")[2]), by_plain, 3, 0.7)
    dashes = name.startswith("-")
    return [min(by_plain[one], key=lambda text: (text.startswith("-") is not dashes, text)) for one in found]


def all_names(documents: Sequence[LeverDocument]) -> Iterator[str]:
    """Everything that `answers` takes, as it is written."""
    for document in documents:
        for item in _entries(document):
            yield item.entry.id
            yield from names_of(item)


def plain(name: str) -> str:
    """A spelling without what its place in a template adds: `++a.b=1` is a.b; dashes count as underscores."""
    text = _bare(name).lower()
    return (text.lstrip("-") or text).replace("-", "_")


def _bare(name: str) -> str:
    return condition_of(name.strip())[0].lstrip("+").partition("=")[0].strip()


def names_of(item: Answer) -> tuple[str, ...]:
    """The spellings of an entry beside its id."""
    entry = item.entry
    if isinstance(entry, Parameter):
        return entry.spellings
    if isinstance(entry, OutOfReach):
        return entry.names
    return entry.settings if isinstance(entry, Diagnostic) else ()


def tell(found: Sequence[Answer], *, as_json: bool) -> None:
    """Print the answers: one in full, several in short with what differs between the systems."""
    if as_json:
        told = [
            {"system": item.document.id, "what": item.what, **item.entry.model_dump(mode="json", by_alias=True)}
            for item in found
        ]
        if len(found) == 1:
            told[0]["used_by"] = _used_by(found[0])
        click.echo(json.dumps(told[0] if len(told) == 1 else told, indent=2, ensure_ascii=False))
        return

    width = min(120, terminal_width())
    systems = list(dict.fromkeys(item.document.id for item in found))
    if len(systems) == 1 and len(found) <= _WHOLE_UP_TO:
        for at, item in enumerate(found):
            if at:
                click.echo()
            _in_full(item, width)
        return
    where = f"in {len(systems)} systems: {', '.join(systems)}" if len(systems) > 1 else f"in {systems[0]}"
    click.echo(f"{len(found)} entries have this name, {where}.")
    for item in found:
        click.echo()
        _in_short(item, width)
    click.echo(f"\n`runbook explain {found[0].name}` tells all about one")


def _entries(document: LeverDocument) -> Iterator[Answer]:
    yield from (Answer(document, "lever", item) for item in document.levers)
    yield from (Answer(document, "parameter", item) for item in document.parameters)
    yield from (Answer(document, "out of reach", item) for item in document.out_of_reach)
    yield from (Answer(document, "diagnostic", item) for item in document.diagnostics)


def _used_by(item: Answer) -> dict[str, list[str]]:
    """The levers that change a parameter; the ladders on which a lever stands."""
    if item.what == "parameter":
        return {"levers": [rule.id for rule in levers_of(item.document, item.entry.id)]}
    if item.what == "lever":
        return {"ladders": [one.id for one in item.document.ladders if item.entry.id in one.levers]}
    return {}


def levers_of(document: LeverDocument, parameter: str) -> tuple[LeverRule, ...]:
    """The levers that change a parameter."""
    return tuple(rule for rule in document.levers if any(edit.parameter == parameter for edit in rule.edits))


def _heading(item: Answer, title: str) -> None:
    click.echo(click.style(f"{item.name}  {title}", bold=True))


def _rows(width: int, rows: Sequence[tuple[str, str]]) -> None:
    for label, text in rows:
        for line in labelled(label, text, width):
            click.echo(line)


def _in_short(item: Answer, width: int) -> None:
    entry = item.entry
    if isinstance(entry, LeverRule):
        _heading(item, entry.title)
        _rows(width, [
            ("changes", _changes(item.document, entry)), ("effect", effect_of(entry)), ("cost", entry.cost),
        ])
    elif isinstance(entry, Parameter):
        _heading(item, ', '.join(entry.spellings))
        rules = levers_of(item.document, entry.id)
        _rows(width, [
            ("default", default_of(item.document, entry)), ("levers", ", ".join(rule.id for rule in rules) or "none"),
        ])
    else:
        _heading(item, item.what)
        _rows(width, [("why", entry.why)])


def _in_full(item: Answer, width: int) -> None:
    entry, document = item.entry, item.document
    if isinstance(entry, LeverRule):
        _heading(item, entry.title)
        _lever(document, entry, width)
    elif isinstance(entry, Parameter):
        _heading(item, entry.spellings[0])
        _parameter(document, entry, width)
    elif isinstance(entry, OutOfReach):
        _heading(item, "not a lever that a template carries")
        _rows(width, [
            ("system", document.title), ("names", ", ".join(entry.names)), ("why", entry.why),
            ("instead", entry.tell), ("source", entry.source),
        ])
    else:
        _heading(item, "makes the next failure say more; never added unasked")
        _rows(width, [
            ("system", document.title), ("settings", "  ".join(entry.settings)), ("why", entry.why),
            ("cost", entry.cost), ("source", entry.source),
        ])


def _lever(document: LeverDocument, rule: LeverRule, width: int) -> None:
    _rows(width, [
        ("system", document.title),
        ("why", rule.why),
        ("changes", _changes(document, rule)),
        ("relieves", ", ".join(item.replace("_", " ") for item in rule.relieves)),
        ("expectation", rule.expectation),
        ("effect", effect_of(rule)),
        ("cost", rule.cost),
        ("asks", rule.consent),
        ("versions", ", ".join(rule.versions)),
    ])
    for label, needs in (("needs", rule.needs), ("must hold", rule.holds)):
        _rows(width, [(label if at == 0 else "", _condition(document, need)) for at, need in enumerate(needs)])
    conflicts = [_conflict(document, conflict) for conflict in rule.conflicts]
    _rows(width, [("not beside" if at == 0 else "", text) for at, text in enumerate(conflicts)])

    ladders = [
        f"rung {ladder.levers.index(rule.id) + 1} of {len(ladder.levers)}: {when(ladder)}"
        for ladder in document.ladders if rule.id in ladder.levers
    ]
    _rows(width, [("ladders" if at == 0 else "", text) for at, text in enumerate(ladders)])
    _rows(width, [("source", rule.source), ("document", f"levers/{document.id}.yaml")])
    click.echo(f"\n`runbook patch --lever {rule.id} --template FILE` shows what it would change")


def _parameter(document: LeverDocument, entry: Parameter, width: int) -> None:
    versions = ", ".join(
        f"{version.id} {document.spelt_in(entry, version) or '(does not have it)'}" for version in document.versions
    ) if entry.differs else ""
    rules = levers_of(document, entry.id)
    _rows(width, [
        ("system", document.title),
        ("spellings", "  ".join(entry.spellings)),
        ("in version", versions),
        ("kind", f"{entry.kind}{', of the launcher' if entry.launcher else ''}"
                 f"{f', of {entry.program}' if entry.program else ''}, {entry.type}"),
        ("default", default_of(document, entry)),
        ("allowed", ", ".join(entry.allowed) + (" (from most memory to least)" if entry.allowed else "")),
        ("floor", str(entry.floor) if entry.floor is not None else ""),
        ("added", "" if entry.addable else "never: a program without it could go on with another experiment"),
        ("why", entry.why),
        ("batch", _part_of_batch(document, entry.id)),
    ])
    _rows(width, [
        ("levers" if at == 0 else "", f"{rule.id}: {rule.title} ({effect_of(rule)})") for at, rule in enumerate(rules)
    ] or [("levers", "none changes it; others look at it, or a person may set it")])
    apart = [item for item in document.out_of_reach if plain(entry.id) in {plain(name) for name in item.names}]
    _rows(width, [("but", f"{item.id}: {item.why} {item.tell}") for item in apart])
    _rows(width, [("source", entry.source), ("document", f"levers/{document.id}.yaml")])


def effect_of(rule: LeverRule) -> str:
    """What a lever does to the experiment, in words."""
    words = {
        "none": "none: the same mathematics",
        "numerics": "numerics: the same samples, another order of floating-point sums",
        "training": "training: another experiment, never without the owner's consent",
    }
    return words[rule.effect]


def default_of(document: LeverDocument, entry: Parameter) -> str:
    """The default in words, with what differs by version."""
    said = entry.default if entry.default is not None else "not known, so nothing is concluded from its absence"
    own = [(item.id, document.default_in(entry, item)) for item in document.versions]
    by_version = ", ".join(
        f"{version} {value if value is not None else 'not known'}" for version, value in own if value != entry.default
    )
    return f"{said} (but {by_version})" if by_version else said


def _part_of_batch(document: LeverDocument, parameter: str) -> str:
    batch = document.batch
    if batch is None:
        return ""
    parts = {
        batch.micro: "the micro-batch", batch.accumulation: "the accumulation steps", batch.total: "the global batch",
        **dict.fromkeys(batch.model_parallel, "a degree that divides the ranks before the rest is data-parallel"),
    }
    return parts.get(parameter, "")


def _changes(document: LeverDocument, rule: LeverRule) -> str:
    return "; ".join(_edit(document, step) for step in rule.edits)


def _edit(document: LeverDocument, step: EditRule) -> str:
    spelling = condition_of(document.parameter(step.parameter).spellings[0])[0]
    given = _arguments(step.arguments)
    return f"{spelling}: {step.function.replace('_', ' ')}{f' ({given})' if given else ''}"


def _condition(document: LeverDocument, need: Need) -> str:
    meaning = _first_sentence(CONSTRAINTS[need.constraint])
    given = _arguments(need.arguments)
    return f"{need.constraint.replace('_', ' ')}{f' ({given})' if given else ''}: {meaning}"


def _first_sentence(function: Callable[..., object]) -> str:
    text = " ".join((function.__doc__ or "").split())
    return text.split(". ")[0].rstrip(".")


def _conflict(document: LeverDocument, conflict: Conflict) -> str:
    spelling = condition_of(document.parameter(conflict.parameter).spellings[0])[0]
    values = f" {' or '.join(conflict.values)}" if conflict.values else ""
    return f"{spelling}{values}: {conflict.why}{' A person can decide otherwise.' if conflict.ask else ''}"


def _arguments(arguments: dict[str, str | int | tuple[str | int, ...]]) -> str:
    return ", ".join(
        f"{key} {', '.join(str(one) for one in value) if isinstance(value, tuple) else value}"
        for key, value in arguments.items()
    )
