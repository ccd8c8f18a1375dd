"""Signatures: YAML documents that say what a log line means, made ready for searching.

A document under `playbooks/oom/signatures/` holds entries; an entry holds a literal that must be in the line (so that
the search runs at memory speed) and a pattern with named fields (`<tried_bytes:size>`, units in `units.py`). Samples
that prove an entry lie beside it in `NAME.samples.yaml`, so that production does not read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from runbook.documents import Document, DocumentsInvalid, Problem, load_document
from runbook.evidence.log_phases import PhaseRule
from runbook.evidence.units import UNITS, Value, read_processes
from runbook.model.diagnosis import Detail, Kind
from runbook.model.log import MemoryFields, Phase, ProcessUse
from runbook.model.units import Bytes

CONSEQUENCE = "consequence"
HARMLESS = "harmless"
FRAMING = "framing"
PROGRESS = "progress"
_MEANINGS = frozenset(kind.value for kind in Kind) | {CONSEQUENCE, HARMLESS, FRAMING, PROGRESS}

MEMORY_FIELDS = frozenset(
    {
        "tried_bytes", "capacity_bytes", "free_bytes", "allocated_bytes", "reserved_unallocated_bytes",
        "reserved_bytes", "process_bytes", "limit_bytes", "private_pool_bytes", "other_processes",
    }
)
OTHER_FIELDS = frozenset(
    {
        "device", "rank", "local_rank", "pid", "node", "hosts", "tasks", "exit_code", "signal", "step", "total_steps",
        "duration_s", "version", "world_size", "detail", "max_allocated_bytes", "max_reserved_bytes", "saved_step",
        "resumed_step", "time", "count", "device_used_bytes", "host_used_bytes", "host_process_bytes", "tokens",
        "tokens_more", "tokens_total", "epoch", "where", "setting", "sequence", "enqueued", "completed",
        "virtual_bytes", "anon_bytes", "file_bytes", "shmem_bytes", "used_bytes",
    }
)


class SignatureEntry(Document):
    """One message shape."""

    id: str = Field(pattern=r"^[A-Z][A-Z0-9]*(-[A-Za-z0-9]+)+$")
    title: str
    why: str
    source: str
    versions: str = ""
    """PyTorch versions that print it ("2.1", "2.4-2.13"), where the wording tells."""
    literal: str | tuple[str, ...]
    """Text that is in every such line; of several, one. At least six characters, four for progress."""
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
    """The program that prints such a line, where no other does."""
    pinned: bool = False
    """Where the traceback pins host memory, it is the host that refused."""
    also: tuple[str, ...] = ()
    """Other names in the catalogue of messages that this entry covers, for a check that none is missing."""


class PhaseEntry(Document):
    """One rule of `log_phases`."""

    phase: Phase
    why: str
    source: str
    frames: str = ""
    """Expression over the lines of a traceback."""
    line: str = ""
    """Expression over the failing line itself, which then decides whatever the traceback says."""
    near: str = ""
    """Expression over a failing line without a traceback, and the few lines before it."""


class SignatureDocument(Document):
    version: Literal[1]
    id: str
    title: str
    why: str
    source: str
    parts: dict[str, str] = {}
    """Named pieces of patterns, used as `<@name>`."""
    signatures: tuple[SignatureEntry, ...]
    phases: tuple[PhaseEntry, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Match:
    """What a signature found in a line."""

    signature: Signature
    values: Mapping[str, Value]
    rounding_bytes: float

    def memory_fields(self) -> MemoryFields:
        """The figures in bytes, with the print format's error on a sum of them."""
        sizes = {name: _as_bytes(value) for name, value in self.values.items() if name in MEMORY_FIELDS}
        resident = [self.integer(name) for name in ("anon_bytes", "file_bytes", "shmem_bytes")]
        if resident[0] is not None:  # the kernel's three kinds of a process's pages
            sizes["process_bytes"] = Bytes(sum(one for one in resident if one is not None))
        others = self.values.get("other_processes")
        return MemoryFields(
            tried_bytes=sizes.get("tried_bytes"),
            capacity_bytes=sizes.get("capacity_bytes"),
            free_bytes=sizes.get("free_bytes"),
            allocated_bytes=sizes.get("allocated_bytes"),
            reserved_unallocated_bytes=sizes.get("reserved_unallocated_bytes"),
            reserved_bytes=sizes.get("reserved_bytes"),
            process_bytes=sizes.get("process_bytes"),
            limit_bytes=sizes.get("limit_bytes"),
            private_pool_bytes=sizes.get("private_pool_bytes"),
            shared_bytes=_as_bytes(self.values.get("shmem_bytes")),
            other_processes=tuple(one for one in others if isinstance(one, ProcessUse))
            if isinstance(others, tuple) else (),
            rounding_bytes=Bytes(round(self.rounding_bytes)) if sizes else None,
        )

    def integer(self, name: str) -> int | None:
        value = self.values.get(name)
        return value if isinstance(value, int) else None

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        return float(value) if isinstance(value, int | float) else None

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    def numbers(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name)
        return tuple(one for one in value if isinstance(one, int)) if isinstance(value, tuple) else ()


def _as_bytes(value: Value) -> Bytes | None:
    return Bytes(value) if isinstance(value, int) else None


@dataclass(frozen=True)
class Signature:
    """A signature ready for use; its pattern is compiled when first needed."""

    id: str
    title: str
    versions: str
    literals: tuple[str, ...]
    expression: str
    units: Mapping[str, str] = field(repr=False)
    means: str = FRAMING
    weak: bool = False
    late: bool = False
    fallback: bool = False
    lines: int = 1
    why: str = ""
    detail: Detail = Detail.NONE
    confidence: float | None = None
    pinned: bool = False
    bar: bool = False
    first_number: int = 1
    peaks: str = ""
    framework: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.expression)

    @cached_property
    def encoded(self) -> tuple[bytes, ...]:
        return tuple(literal.encode() for literal in self.literals)

    @property
    def whole(self) -> bool:
        """It reads a complete message: not a fallback, and not one of those for a message that breaks off ("…T")."""
        return not self.fallback and not self.id.endswith("T")

    @property
    def stands_alone(self) -> bool:
        """Where it matches, no other signature has to be tried."""
        return self.whole and self.lines == 1 and self.means != FRAMING

    def held_by(self, line: bytes) -> bool:
        """Whether one of its literals is in a line."""
        return any(literal in line for literal in self.encoded)

    def match(self, text: str) -> Match | None:
        """Search one line (or `lines` lines) of text without its launcher's prefix."""
        found = self.pattern.search(text)
        if found is None:
            return None
        values: dict[str, Value] = {}
        rounding = 0.0
        for group, written in found.groupdict().items():
            if written is None:
                continue
            name = group.split("__")[0]
            reading = UNITS[self.units.get(group, "text")].read(written)
            values[name] = reading.value
            if name in MEMORY_FIELDS:
                rounding += reading.rounding_bytes
            if name == "other_processes":
                own = read_processes(written)[1]
                if own is not None:
                    values["process_bytes"] = own.value
                    rounding += own.rounding_bytes
        return Match(self, values, rounding)


class Signatures:
    """All signatures of a folder, indexed by the literal that a line must hold."""

    def __init__(self, entries: Iterable[Signature], phases: Iterable[PhaseRule] = ()) -> None:
        self.all = tuple(entries)
        self.phases = tuple(phases)
        self.by_id = {entry.id: entry for entry in self.all}
        self.progress = tuple(entry for entry in self.all if entry.means == PROGRESS)
        self.events = tuple(entry for entry in self.all if entry.means != PROGRESS)

    def first_match(self, text: str, candidates: Iterable[Signature]) -> Match | None:
        """The first candidate that matches; fallbacks are tried last."""
        waiting: list[Signature] = []
        for signature in candidates:
            if signature.fallback:
                waiting.append(signature)
                continue
            match = signature.match(text)
            if match is not None:
                return match
        for signature in waiting:
            match = signature.match(text)
            if match is not None:
                return match
        return None


def load_signatures(folder: Path) -> Signatures:
    """Every signature of a folder's `*.yaml`. Raises `DocumentsInvalid` with all problems of all files."""
    loaded: list[Signature] = []
    phases: list[PhaseRule] = []
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
        phases += [PhaseRule(one.phase, one.frames, one.near, one.line) for one in document.phases]
        for index, entry in enumerate(document.signatures):
            place = f"signatures.{index} ({entry.id})"
            if entry.id in seen:
                problems.append(Problem(str(path), 0, place, f"this id is already used in {seen[entry.id]}"))
            seen[entry.id] = path.name
            try:
                loaded.append(build(entry, document.parts))
            except ValueError as error:
                problems.append(Problem(str(path), 0, place, str(error)))
    if not loaded and not problems:
        problems.append(Problem(str(folder), 0, "", "no signature documents here", "check the folder's name"))
    if problems:
        raise DocumentsInvalid(problems)
    return Signatures(loaded, phases)


def build(entry: SignatureEntry, parts: Mapping[str, str]) -> Signature:
    """An entry made ready. Raises ValueError in words for the author; the expression itself is checked by tests."""
    literals = (entry.literal,) if isinstance(entry.literal, str) else entry.literal
    for literal in literals:
        shortest = 4 if entry.means == PROGRESS else 6
        if len(literal) < shortest:
            raise ValueError(f"literal {literal!r} has fewer than {shortest} characters and would slow every search")
    if entry.means not in _MEANINGS:
        raise ValueError(f"means: {entry.means!r} is none of {', '.join(sorted(_MEANINGS))}")
    expression = entry.pattern
    for _ in range(4):
        expression = _PART.sub(lambda found: _part(parts, found[1]), expression)
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

    expression = _FIELD.sub(group, expression)
    return Signature(
        id=entry.id, title=entry.title, versions=entry.versions, literals=tuple(literals), expression=expression,
        units=units, means=entry.means, weak=entry.weak, late=entry.late, fallback=entry.fallback, lines=entry.lines,
        why=entry.why, detail=entry.detail, confidence=entry.confidence, pinned=entry.pinned, bar=entry.bar,
        first_number=entry.first_number, peaks=entry.peaks, framework=entry.framework,
    )


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
