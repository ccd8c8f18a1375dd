"""Signatures: what a log line means, ready for searching; their documents are `signature_document`.

A document under `playbooks/oom/signatures/` holds entries; an entry holds a literal that must be in the line (so that
the search runs at memory speed) and a pattern with named fields (`<tried_bytes:size>`, units in `field_units.py`).
Samples that prove an entry lie beside it in `NAME.samples.yaml`, so that production does not read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from runbook.logs.signatures.field_units import UNITS, Value, read_processes
from runbook.logs.tracebacks import PhaseRule
from runbook.model.diagnosis import Detail, Kind, Kinds
from runbook.model.log import (
    Event,
    Framework,
    Meanings,
    MemoryFields,
    ProcessUse,
    SignatureTraits,
)
from runbook.model.units import Bytes

CONSEQUENCE = "consequence"
HARMLESS = "harmless"
FRAMING = "framing"
PROGRESS = "progress"
AT_START = "at_start"
OUTSIDE_PROSE = "outside_prose"
_FRAMING = Kind(FRAMING)
NO_KINDS = frozenset({CONSEQUENCE, HARMLESS, FRAMING, PROGRESS})
"""What a line may mean beside a kind of failure."""

MEMORY_FIELDS = frozenset(
    {
        "tried_bytes", "capacity_bytes", "free_bytes", "allocated_bytes", "reserved_unallocated_bytes",
        "reserved_bytes", "process_bytes", "limit_bytes", "private_pool_bytes", "other_processes",
    }
)
OTHER_FIELDS = frozenset(
    {
        "device", "rank", "local_rank", "pid", "node", "hosts", "tasks", "exit_code", "signal", "step", "total_steps",
        "total_epochs", "duration_s", "elapsed_s", "version", "world_size", "detail",
        "num_nodes", "node_rank", "node_ranks", "first_rank",
        "max_allocated_bytes", "max_reserved_bytes",
        "saved_step", "resumed_step", "time", "count", "device_used_bytes", "host_used_bytes", "host_process_bytes",
        "tokens", "tokens_more", "tokens_total", "epoch", "where", "setting", "sequence", "enqueued", "completed",
        "virtual_bytes", "anon_bytes", "file_bytes", "shmem_bytes", "used_bytes",
    }
)


@dataclass(frozen=True, slots=True)
class Match:
    """What a signature found in a line."""

    signature: Signature
    values: Mapping[str, Value]
    rounding_bytes: float
    start: int = 0
    """Where in the line it begins."""

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
        if not isinstance(value, tuple) or not value or not isinstance(value[0], int):
            return ()
        return value  # as stored: it may be long, and a list holds numbers alone


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
    means: Kind = _FRAMING
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
    engine: str = ""
    reports: frozenset[Event] = frozenset()
    of_a_rank: str = ""
    """What a consequence says of the rank whose line it is."""
    incomplete: bool = False
    stands: str = ""
    """Where in a line its words are no quotation (see `is_quoted`): AT_START, OUTSIDE_PROSE; "" is anywhere."""
    opening: str = ""
    """Expression of the speaker's name that may stand in front of it; of AT_START."""
    general: bool = False
    """It reads the shape of a failure whoever printed it: tried only where no other signature matches."""
    of: str = ""
    """The general signature whose lines it tells apart: the first such one that matches stands in its place."""
    kinds: Kinds = field(default_factory=Kinds, repr=False, compare=False)
    """Of the playbook that it belongs to: what a line means in its place may be another one of them."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.expression)

    @cached_property
    def opening_pattern(self) -> re.Pattern[str] | None:
        return re.compile(self.opening) if self.opening else None

    @cached_property
    def encoded(self) -> tuple[bytes, ...]:
        return tuple(literal.encode() for literal in self.literals)

    @property
    def whole(self) -> bool:
        """It reads a complete message."""
        return not self.fallback and not self.incomplete

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
        return None if found is None else self.read(found)

    def read(self, found: re.Match[str]) -> Match:
        """What the pattern found, in units."""
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
        return Match(self, values, rounding, found.start())


@dataclass(frozen=True)
class FieldWords:
    """How the words around a figure or a number say what it is: an amount's role, whose rank it is."""

    expression: str
    units: Mapping[str, str]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.expression)


@dataclass(frozen=True)
class PrefixForm(FieldWords):
    """A way in which something in front of a line says who says it: rank, local_rank, node, pid, voice, level."""

    opens: str = ""
    """The characters with which it may begin."""
    learned: bool = False
    """It could be something else (a counter, a list): it counts in files whose lines show that it is no such thing."""


@dataclass(frozen=True, slots=True)
class Words:
    """Expressions that hold whatever a signature matched."""

    figures: Sequence[FieldWords] = ()
    """What gives an amount of memory its role."""
    who: Sequence[FieldWords] = ()
    """What names a speaker in front of a message."""
    behind: Sequence[FieldWords] = ()
    """What names one in the message itself, or behind it."""
    went_on: str = ""
    """What a program says near a failure that it handled."""


_NEAR = 500
"""Characters in front of a message's words that may hold its figures; behind them three times as many."""
_NEVER_NOTHING = frozenset({"process_bytes", "allocated_bytes"})
"""What a process that runs out of memory holds: a row of zeros in an allocator's table is not it."""
_TOLD = 2
"""Figures of a message that leaves none to be looked for around it."""


class Signatures:
    """All signatures of a folder, indexed by the literal that a line must hold."""

    def __init__(
        self, entries: Iterable[Signature], phases: Iterable[PhaseRule], frameworks: Iterable[Framework], kinds: Kinds,
        words: Words = Words(),
        forms: Iterable[PrefixForm] = (),
    ) -> None:
        self.forms = tuple(forms)
        self.all = tuple(entries)
        self.figures = tuple(words.figures)
        self.who = tuple(words.who)
        self.behind = tuple(words.behind)
        self.went_on = re.compile(words.went_on or "(?!)")
        """What a program says near a failure that it handled."""
        self.phases = tuple(phases)
        self.frameworks = tuple(frameworks)
        self.kinds = kinds
        self.by_id = {entry.id: entry for entry in self.all}
        self.progress = tuple(entry for entry in self.all if entry.means == PROGRESS)
        self.events = tuple(entry for entry in self.all if entry.means != PROGRESS and not entry.of and entry.literals)
        self.last_words = tuple(entry for entry in self.all if Event.LAST_WORD in entry.reports)
        self._told_apart: dict[str, list[Signature]] = {}
        for entry in self.all:
            if entry.of:
                self._told_apart.setdefault(entry.of, []).append(entry)

    def compile(self) -> int:
        """Compile all expressions now, for processes that begin from this one; else each is when it is first needed.
        Returns how many there are."""
        patterns = [
            *(pattern for one in self.all for pattern in (one.pattern, one.opening_pattern)),
            *(one.pattern for one in (*self.figures, *self.who, *self.behind)),
            *(
                pattern for rule in self.phases
                for pattern in (rule.in_frames, rule.also_in_frames, rule.in_words, rule.in_line)
            ),
        ]
        return sum(pattern is not None for pattern in patterns)

    @cached_property
    def exception(self) -> Signature | None:
        """What stands for an exception of whatever name."""
        failed = (one for one in self.events if Event.EXCEPTION in one.reports and one.means != CONSEQUENCE)
        return next(failed, None)

    @cached_property
    def meanings(self) -> Meanings:
        """What a diagnosis asks of them."""
        traits = {one.id: SignatureTraits(one.reports, one.engine, one.general) for one in self.all}
        return Meanings(self.kinds, traits, self.frameworks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signatures) and (
            (self.all, self.phases, self.frameworks, self.figures, self.who, self.behind, self.forms,
             self.went_on.pattern)
            == (other.all, other.phases, other.frameworks, other.figures, other.who, other.behind, other.forms,
                other.went_on.pattern)
        )

    def first_match(self, text: str, candidates: Iterable[Signature]) -> Match | None:
        """The first candidate that matches; fallbacks are tried last, and general ones behind those."""
        waiting: list[Signature] = []
        for signature in candidates:
            if signature.fallback:
                waiting.append(signature)
                continue
            found = signature.pattern.search(text)
            if found is not None:
                return signature.read(found)
        for signature in sorted(waiting, key=lambda one: one.general):
            found = signature.pattern.search(text)
            if found is not None:
                return self._told(signature.read(found), text)
        return None

    def _told(self, match: Match, text: str) -> Match:
        """What a general signature's line means by its other words. Where no whole message was read, the words around a
        figure give it its role."""
        for one in self._told_apart.get(match.signature.id, ()):
            found = one.pattern.search(text)
            if found is not None:
                own = one.read(found)
                match = replace(own, values={**match.values, **own.values}, start=match.start)
                break
        return self.with_figures(match, text[max(0, match.start - _NEAR):])

    def with_figures(self, match: Match, text: str) -> Match:
        """A shortage of memory with the figures of a text that its own message does not tell, by the words around
        them; a message that tells several knows best what it left out."""
        told = len(MEMORY_FIELDS & match.values.keys())
        if not match.signature.means.entry.died.of_memory or (match.signature.whole and told > _TOLD):
            return match
        values, rounding = _read_fields(self.figures, text[:4 * _NEAR])
        if values.keys() <= match.values.keys():
            return match
        return replace(match, values={**values, **match.values}, rounding_bytes=match.rounding_bytes + rounding)

    def speaker(self, before: str) -> Mapping[str, Value]:
        """Who says a message, by the words of its line in front of it: rank, local rank, whichever they name."""
        return _read_fields(self.who, before)[0] if before else {}

    def speaker_within(self, message: str) -> Mapping[str, Value]:
        """The same by the words of the message itself, or behind it."""
        return _read_fields(self.behind, message)[0]

    def ranks_named(self, text: str) -> set[int]:
        """All ranks that a line's words name, whether as its speaker or otherwise."""
        return {
            number for one in (*self.who, *self.behind) if "rank" in one.units and not one.expression.startswith("^")
            for found in one.pattern.finditer(text) if (number := int(found["rank"])) >= 0
        }


def _read_fields(every: Iterable[FieldWords], text: str) -> tuple[dict[str, Value], float]:
    """The first value of each field that the words give, and the rounding of all of them."""
    values: dict[str, Value] = {}
    rounding = 0.0
    for one in every:
        found = one.pattern.search(text)
        for group, written in found.groupdict().items() if found is not None else ():
            reading = UNITS[one.units.get(group, "text")].read(written)
            if group not in values and reading.value is not None and (reading.value or group not in _NEVER_NOTHING):
                values[group] = reading.value
                rounding += reading.rounding_bytes
    return values, rounding
