"""Topics of what can be changed: levers, parameters, what is out of a template's reach, diagnostic settings."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from runbook.explain import Row, Topic, listed, rows
from runbook.model.template import condition_of
from runbook.remedy import (
    CONSTRAINTS,
    Conflict,
    Diagnostic,
    EditRule,
    Ladder,
    LeverDocument,
    LeverRule,
    Need,
    OutOfReach,
    Parameter,
)

Entry = LeverRule | Parameter | OutOfReach | Diagnostic


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


def topics_of(name: str, documents: Sequence[LeverDocument]) -> list[Topic]:
    """What a name means, for each system that has it."""
    return [replace(_topic(item), system=item.document.id) for item in answers(name, documents)]


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


def _topic(item: Answer) -> Topic:
    entry, document = item.entry, item.document
    used_by = {"used_by": _used_by(item)}
    data = {"system": document.id, "what": item.what, **entry.model_dump(mode="json", by_alias=True)}
    if isinstance(entry, LeverRule):
        short = rows(("changes", _changes(document, entry)), ("effect", effect_of(entry)), ("cost", entry.cost))
        hint = f"`runbook patch --lever {entry.id} --template FILE` shows what it would change"
        return Topic(
            item.name, item.what, entry.title, _lever(document, entry), short, hint=hint, data=data | used_by
        )
    if isinstance(entry, Parameter):
        rules = levers_of(document, entry.id)
        short = rows(
            ("default", default_of(document, entry)), ("levers", ", ".join(rule.id for rule in rules) or "none")
        )
        title = entry.spellings[0]
        return Topic(item.name, item.what, title, _parameter(document, entry), short, data=data | used_by)
    if isinstance(entry, OutOfReach):
        told = rows(
            ("system", document.title), ("names", ", ".join(entry.names)), ("why", entry.why),
            ("instead", entry.tell), ("source", entry.source),
        )
        return Topic(
            item.name, item.what, "not a lever that a template carries", told, rows(("why", entry.why)), data=data
        )
    told = rows(
        ("system", document.title), ("settings", "  ".join(entry.settings)), ("why", entry.why),
        ("cost", entry.cost), ("source", entry.source),
    )
    title = "makes the next failure say more; never added unasked"
    return Topic(item.name, item.what, title, told, rows(("why", entry.why)), data=data)


def _lever(document: LeverDocument, rule: LeverRule) -> tuple[Row, ...]:
    ladders = [
        f"rung {ladder.levers.index(rule.id) + 1} of {len(ladder.levers)}: {when(ladder)}"
        for ladder in document.ladders if rule.id in ladder.levers
    ]
    return rows(
        ("system", document.title),
        ("why", rule.why),
        ("changes", _changes(document, rule)),
        ("relieves", ", ".join(item.replace("_", " ") for item in rule.relieves)),
        ("expectation", rule.expectation),
        ("effect", effect_of(rule)),
        ("cost", rule.cost),
        ("asks", rule.consent),
        ("versions", ", ".join(rule.versions)),
        *listed("needs", [_condition(document, need) for need in rule.needs]),
        *listed("must hold", [_condition(document, need) for need in rule.holds]),
        *listed("tells", [item.says for item in rule.cautions]),
        *listed("not beside", [_conflict(document, conflict) for conflict in rule.conflicts]),
        *listed("ladders", ladders),
        ("source", rule.source),
        ("document", f"levers/{document.id}.yaml"),
    )


def _parameter(document: LeverDocument, entry: Parameter) -> tuple[Row, ...]:
    versions = ", ".join(
        f"{version.id} {document.spelt_in(entry, version) or '(does not have it)'}" for version in document.versions
    ) if entry.differs else ""
    rules = levers_of(document, entry.id)
    apart = [item for item in document.out_of_reach if plain(entry.id) in {plain(name) for name in item.names}]
    return rows(
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
        *listed("levers", [f"{rule.id}: {rule.title} ({effect_of(rule)})" for rule in rules]
                or ["none changes it; others look at it, or a person may set it"]),
        *listed("but", [f"{item.id}: {item.why} {item.tell}" for item in apart]),
        ("source", entry.source),
        ("document", f"levers/{document.id}.yaml"),
    )


def when(ladder: Ladder) -> str:
    """For which failures a ladder is: "true_oom in forward or backward, role actor"."""
    text = " or ".join(ladder.kinds)
    if ladder.details:
        text += f" ({' or '.join(ladder.details)})"
    if ladder.phases:
        text += f" in {' or '.join(ladder.phases)}"
    if ladder.roles:
        text += f", of {' or '.join(ladder.roles)}"
    return text


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
