"""The documents behind the signatures: their shape, how they are checked, and what is made of them.

Reading a log does not come here as long as the documents are as they were compiled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from runbook.documents import Document, DocumentsInvalid, Pattern, Problem, load_document
from runbook.logs.signatures.field_units import UNITS
from runbook.logs.signatures.signature import (
    AT_START,
    CONSEQUENCE,
    MEMORY_FIELDS,
    NO_KINDS,
    OTHER_FIELDS,
    PROGRESS,
    FieldWords,
    PrefixForm,
    Signature,
    Signatures,
    Words,
)
from runbook.logs.tracebacks import PhaseRule
from runbook.model.diagnosis import Detail, Kinds
from runbook.model.log import Event, Framework, FrameworkRole, Phase


class SignatureEntry(Document):
    """One message shape."""

    id: str = Field(pattern=r"^[A-Z][A-Z0-9]*(-[A-Za-z0-9]+)+$")
    title: str
    why: str
    source: str
    versions: str = ""
    """PyTorch versions that print it ("2.1", "2.4-2.13"), where the wording tells."""
    literal: str | tuple[str, ...] = ()
    """Text that is in every such line; of several, one. At least six characters, four for progress. None stands in an
    entry with `of`, nor in one that reports `last_word`: it is held against the last lines of a log alone."""
    pattern: str
    means: str
    weak: bool = False
    """Speaks only where nothing stronger does."""
    late: bool = False
    """Printed some time after what it reports: its place in the log does not say what came first."""
    fallback: bool = False
    """Tried only on lines that no other signature matched."""
    lines: int = Field(default=1, ge=1, le=20)
    """How many lines the pattern may look at, joined with newlines."""
    detail: Detail = Detail.NONE
    """What kind of its kind the line alone shows."""
    confidence: float | None = Field(default=None, ge=0.0, le=1.0)
    """How firm the line alone is in what it means; the diagnosis has a default."""
    bar: bool = False
    """Progress: a bar, of which a log has several (evaluation, data); `where` is its name."""
    first_number: Literal[0, 1] = 1
    """Progress: how the program numbers its first step."""
    peaks: Literal["", "reset", "running"] = ""
    """Whether the line's peaks begin again after each print, or are the greatest since the start; "" is not known."""
    framework: str = ""
    """The program that prints such a line, where no other does; "" takes the document's."""
    engine: str = ""
    """The inference engine that prints such a line, by its id among the frameworks."""
    reports: tuple[Event, ...] = ()
    """What the line reports, beyond what it means; the document's are added to them."""
    of_a_rank: str = ""
    """Consequence: what it says of the rank whose line it is; "" takes the title."""
    incomplete: bool = False
    """It reads no complete message: where one on this line and those below matches, that one counts; and it is not put
    together from lines that were cut."""
    stands: Literal["", "anywhere", "at_start", "outside_prose"] = ""
    """Where in a line its words are no quotation; "" takes the document's."""
    pinned: bool = False
    """Where the traceback pins host memory, it is the host that refused."""
    of: str = ""
    """The general signature whose lines this entry tells apart by their other words."""
    also: tuple[str, ...] = ()
    """Other names in the catalogue of messages that this entry covers, for a check that none is missing."""


class PhaseEntry(Document):
    """One rule of `tracebacks`."""

    phase: Phase
    why: str
    source: str
    frames: str = ""
    """Expression over the lines of a traceback."""
    also: str = ""
    """A second one that they must hold too, before or behind the first."""
    line: str = ""
    """Expression over the failing line itself, which then decides whatever the traceback says."""
    near: str = ""
    """Expression over a failing line without a traceback, and the few lines before it."""


class FrameworkEntry(Document):
    """A program that training jobs run; `Framework` says what the attributes do."""

    id: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    role: FrameworkRole
    folder: str = Field(default="", pattern=r"^[A-Za-z0-9_]*$")
    words: tuple[str, ...] = ()
    why: str = ""
    source: str = ""


class PrefixEntry(Document):
    """One of `PrefixForm`."""

    title: str
    source: str
    pattern: str
    opens: str = Field(min_length=1)
    learned: bool = False
    says: tuple[str, ...] = Field(min_length=1)
    """Prefixes that prove it, each with a line behind it or none."""


class SignatureDocument(Document):
    version: Literal[1]
    id: str
    title: str
    why: str
    source: str
    parts: dict[str, str] = {}
    """Named pieces of patterns, used as `<@name>`. The one named `opening` is the speaker's name that may stand in
    front of what must stand `at_start`."""
    stands: Literal["", "at_start", "outside_prose"] = ""
    """For all its signatures that do not say otherwise."""
    general: bool = False
    """Its signatures read the shape of a failure, whoever printed it, and only where no other signature matches."""
    went_on: Pattern = ""
    """What a program says near a failure that it handled; of one document."""
    who: tuple[str, ...] = ()
    """Expressions of the words in front of a message that say who says it: rank, local_rank, node, pid."""
    behind: tuple[str, ...] = ()
    """Expressions of the words of a message itself, or behind it, that say who says it."""
    figures: tuple[str, ...] = ()
    """Expressions that give an amount of memory its role by the words around it, for what general signatures read."""
    framework: str = ""
    """For all its signatures that do not say otherwise."""
    reports: tuple[Event, ...] = ()
    """Of all its signatures, beside their own."""
    prefixes: tuple[PrefixEntry, ...] = ()
    """What stands in front of lines and says who says them."""
    signatures: tuple[SignatureEntry, ...] = ()
    phases: tuple[PhaseEntry, ...] = ()
    frameworks: tuple[FrameworkEntry, ...] = ()


class Sample(Document):
    line: str
    fields: dict[str, int | float | str | list[int] | list[tuple[int, int | None]] | None] = {}
    """Every field that the signature captures from this line, in its model unit."""


class SampleEntry(Document):
    id: str
    samples: tuple[Sample, ...] = Field(min_length=1)
    near_misses: tuple[str, ...] = ()


class SampleDocument(Document):
    version: Literal[1]
    id: str
    title: str
    why: str
    source: str
    signatures: tuple[SampleEntry, ...]


_FIELD = re.compile(r"<([a-z_]+):([a-z]+)>")
_PART = re.compile(r"<@([a-z_]+)>")


def read_signatures(folder: Path, kinds: Kinds) -> Signatures:
    """Every signature of a folder, from the documents. Raises `DocumentsInvalid` with all problems of all files."""
    loaded: list[Signature] = []
    phases: list[PhaseRule] = []
    frameworks: list[Framework] = []
    figures: list[FieldWords] = []
    who: list[FieldWords] = []
    behind: list[FieldWords] = []
    forms: list[PrefixForm] = []
    went_on = ""
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        if path.name.endswith(".samples.yaml"):
            continue
        try:
            document = load_document(path, SignatureDocument)
        except DocumentsInvalid as error:
            problems.extend(error.problems)
            continue
        phases += [PhaseRule(one.phase, one.frames, one.near, one.line, one.also) for one in document.phases]
        frameworks += [Framework(one.id, one.role, one.folder, one.words) for one in document.frameworks]
        went_on = document.went_on or went_on
        try:
            figures += [FieldWords(*_compiled(one, document.parts)) for one in document.figures]
            who += [FieldWords(*_compiled(one, document.parts)) for one in document.who]
            behind += [FieldWords(*_compiled(one, document.parts)) for one in document.behind]
            forms += [
                PrefixForm(*_compiled(one.pattern, document.parts), one.opens, one.learned) for one in document.prefixes
            ]
        except ValueError as error:
            problems.append(Problem(str(path), 0, "figures, who, behind, prefixes", str(error)))
        for index, entry in enumerate(document.signatures):
            place = f"signatures.{index} ({entry.id})"
            if entry.id in seen:
                problems.append(Problem(str(path), 0, place, f"this id is already used in {seen[entry.id]}"))
            seen[entry.id] = path.name
            try:
                loaded.append(build(entry, document, kinds))
            except ValueError as error:
                problems.append(Problem(str(path), 0, place, str(error)))
    engines = {one.id for one in frameworks if one.role is FrameworkRole.ENGINE}
    problems += [
        Problem(str(folder / seen[one.id]), 0, one.id, f"engine: {one.engine!r} is no engine among the frameworks",
                f"describe it, or name one of {', '.join(sorted(engines))}")
        for one in loaded if engines and one.engine and one.engine not in engines
    ]
    general = {one.id for one in loaded if one.general and not one.of}
    problems += [
        Problem(str(folder / seen[one.id]), 0, one.id, f"of: {one.of!r} is no general signature", "name one")
        for one in loaded if one.of and one.of not in general
    ]
    if not loaded and not problems:
        problems.append(Problem(str(folder), 0, "", "no signature documents here", "check the folder's name"))
    if problems:
        raise DocumentsInvalid(problems)
    return Signatures(loaded, phases, frameworks, kinds, Words(figures, who, behind, went_on), forms)


def build(entry: SignatureEntry, document: SignatureDocument, kinds: Kinds) -> Signature:
    """An entry made ready. Raises ValueError in words for the author; the expression itself is checked by tests."""
    literals = (entry.literal,) if isinstance(entry.literal, str) else entry.literal
    if not literals and not entry.of and Event.LAST_WORD not in entry.reports:
        raise ValueError("literal: text that is in every such line is missing")
    for literal in literals:
        shortest = 3 if document.general else 4 if entry.means == PROGRESS else 6
        if len(literal) < shortest:
            raise ValueError(f"literal {literal!r} has fewer than {shortest} characters and would slow every search")
    if entry.means not in kinds and entry.means not in NO_KINDS:
        raise ValueError(f"means: {entry.means!r} is none of {', '.join(sorted({*kinds, *NO_KINDS}))}")
    if entry.of_a_rank and entry.means != CONSEQUENCE:
        raise ValueError(f"of_a_rank: only a consequence says something of a rank, not {entry.means!r}")
    framework = entry.framework or document.framework
    reports = frozenset((*document.reports, *entry.reports))
    if Event.ENGINE_STARTS in reports and not entry.engine:
        raise ValueError("engine: an engine that starts has a name")
    expression, units = _compiled(entry.pattern, document.parts)
    stands = entry.stands or document.stands
    return Signature(
        id=entry.id, title=entry.title, versions=entry.versions, literals=tuple(literals), expression=expression,
        units=units, means=kinds.of(entry.means), kinds=kinds, weak=entry.weak or document.general, late=entry.late,
        fallback=entry.fallback or document.general, lines=entry.lines, general=document.general, of=entry.of,
        why=entry.why, detail=entry.detail, confidence=entry.confidence, pinned=entry.pinned, bar=entry.bar,
        first_number=entry.first_number, peaks=entry.peaks, framework=framework,
        engine=entry.engine, reports=reports, of_a_rank=entry.of_a_rank, incomplete=entry.incomplete,
        stands="" if stands == "anywhere" else stands,
        opening=document.parts.get("opening", "") if stands == AT_START else "",
    )


def _compiled(pattern: str, parts: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The regular expression, and the unit of each of its groups. Raises ValueError in words for the author."""
    for _ in range(4):
        pattern = _PART.sub(lambda found: _part(parts, found[1]), pattern)
    units: dict[str, str] = {}

    def group(found: re.Match[str]) -> str:
        name, unit = found[1], found[2]
        if name not in MEMORY_FIELDS and name not in OTHER_FIELDS:
            raise ValueError(f"pattern: unknown field {name!r}")
        if unit not in UNITS:
            raise ValueError(f"pattern: unknown unit {unit!r}, known are {', '.join(sorted(UNITS))}")
        key = name if name not in units else f"{name}__{len(units)}"
        units[key] = unit
        return f"(?P<{key}>{UNITS[unit].expression})"

    return _FIELD.sub(group, pattern), units


def _part(parts: Mapping[str, str], name: str) -> str:
    if name not in parts:
        raise ValueError(f"pattern: no part named {name!r} in this document")
    return parts[name]


def load_samples(folder: Path) -> tuple[SampleEntry, ...]:
    """The samples beside the signatures; for tests and for `runbook playbooks check`."""
    entries: list[SampleEntry] = []
    for path in sorted(folder.glob("*.samples.yaml")):
        entries.extend(load_document(path, SampleDocument).signatures)
    return tuple(entries)


def load_prefixes(folder: Path) -> tuple[PrefixEntry, ...]:
    """The forms of prefixes with the samples that prove them; for tests and for `runbook playbooks check`."""
    paths = [path for path in sorted(folder.glob("*.yaml")) if not path.name.endswith(".samples.yaml")]
    return tuple(one for path in paths for one in load_document(path, SignatureDocument).prefixes)
