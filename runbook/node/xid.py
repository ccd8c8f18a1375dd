"""Xid: lines of the NVIDIA driver in the kernel log (GPU, NVSwitch, a lost GPU), and the catalogue of their codes.

Line formats: driver sources 515 to 595 (`NVRM: Xid (PCI:dddd:bb:dd): N, pid=P, name=NAME, text`). Before 570 an
unknown process is `pid='<unknown>', name=<unknown>`, from 570 both are left out; MIG instances stand inside the
parentheses; very old drivers write no `PCI:`. A name is the process's own word and may hold anything: nothing is
decided on it. The kernel prints other words of users too (the path of a cgroup whose memory is spent, the name of a
program with an executable stack), so that the driver's word counts at the start of a message only.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from runbook.documents import Document, DocumentsInvalid, Problem, load_document
from runbook.model.catalogues import LinkAsk, LinkBits, LinkUnit, MilderText, XidCatalogue, XidClass, XidMeaning

FALLEN_OFF_THE_BUS = 79

PREFIX = (
    r"(?:\d{4}-\d\d-\d\dT[\d:.,]{8,20}(?:Z|[+-][\d:]{4,5})? |\d{9,11}\.\d{1,9} |[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?"
    r"(?:[\w.-]{1,253} kernel: )?(?:\[[ \w:.]{1,40}\] ?){0,2}"
)
"""What the log's own programs write in front of a message: time, host, time since the start, the caller."""
_XID = re.compile(
    PREFIX + r"NVRM:\s+Xid\s+\((?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
    r"(?:\s+(?P<mig>GPU-I:\d+(?:\s+GPU-CI:\d+)?))?\):\s*(?P<code>\d{1,6})(?:,\s*(?P<rest>.*))?$"
)
_PROCESS = re.compile(r"pid=(?P<pid>'[^']*'|[^,]*)(?:,\s*(?:name=(?P<name>.*?)(?:,\s+|$))?|$)(?P<text>.*)$")
_SXID = re.compile(
    PREFIX + r"nvidia-nvswitch\d+:\s+SXid\s+\((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\):\s*(?P<code>\d{1,6}),\s*"
    r"(?P<severity>Correctable|Non-fatal|Fatal)\b,?\s*(?P<text>.*)$"
)
_LOST = re.compile(
    PREFIX + r"NVRM:.*?\bGPU (?:at )?(?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?):? .*"
    r"fallen off the bus"
)
_BUS = re.compile(r"(?P<domain>[0-9a-fA-F]{4,8}):(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})(?:\.[0-7])?$")


@dataclass(frozen=True, slots=True)
class XidLine:
    """One line as the driver meant it. `bus_id` is "dddd:bb:dd" in lower case, as every bus id is kept here."""

    code: int
    bus_id: str
    text: str
    pid: int | None = None
    process_name: str = ""
    instance: str = ""
    """MIG: "GPU-I:05 GPU-CI:02"."""
    switch_severity: str = ""
    """Set for an NVSwitch's SXid only: "Correctable", "Non-fatal", "Fatal"; its code is no Xid code."""


def read_xid(line: str) -> XidLine | None:
    """Read the message part of a kernel log line, with or without a time stamp in front. None: no such event."""
    match = _XID.match(line)
    if match:
        return _xid(match)
    match = _SXID.match(line)
    if match:
        return XidLine(
            int(match["code"]), bus_id(match["bus"]), match["text"].strip(), switch_severity=match["severity"]
        )
    match = _LOST.match(line)
    if match:
        return XidLine(FALLEN_OFF_THE_BUS, bus_id(match["bus"]), "GPU has fallen off the bus.")
    return None


def bus_id(text: str) -> str:
    """A PCI address in one spelling: "00000000:C1:00.0" and "0000:c1:00" are both "0000:c1:00"."""
    match = _BUS.search(text.strip())
    if not match:
        return text.strip().lower()
    return f"{int(match['domain'], 16):04x}:{match['bus']}:{match['device']}".lower()


class XidSource(Document):
    """Where codes were read, and when."""

    title: str = Field(min_length=1)
    url: str = Field(pattern=r"^https://")
    date: datetime.date


class XidReading(Document):
    """What must be read from a sample."""

    code: int
    bus: str
    pid: int | None = None
    instance: str = ""
    switch_severity: str = ""
    recovery_action: str = ""


class XidFormat(Document):
    """A form in which driver branches write an event."""

    branch: str
    why: str = Field(min_length=1)
    sample: str = Field(min_length=1)
    reads: XidReading | None = None
    """None: not an event."""


class RecoveryAction(Document):
    """A value of Xid 154 and of NVML's recovery action."""

    value: int = Field(ge=0)
    names: tuple[str, ...] = Field(min_length=1)
    asks: str = Field(min_length=1)


class MilderEntry(Document):
    """A text of the line that makes the code another class."""

    text: str = Field(min_length=4)
    xid_class: XidClass = Field(alias="class")
    title: str = Field(min_length=1)


class XidEntry(Document):
    """One row of the catalogue: codes that mean the same."""

    codes: tuple[Annotated[int, Field(ge=1, le=9999)], ...] = Field(min_length=1)
    xid_class: XidClass = Field(alias="class")
    title: str = Field(min_length=1)
    action: str = Field(min_length=1)
    hardware: str = Field(min_length=1)
    """Whether the code alone counts as evidence of faulty hardware: no, weak, yes, or under which condition."""
    note: str = ""
    source: str
    """A key of the document's `sources`."""
    with_154: str = Field(default="", pattern=r"^(R\d{3})?$")
    """The driver branch from which Xid 154 follows the code; empty: no link is published."""
    milder: MilderEntry | None = None


class LinkBitsEntry(Document):
    """Bits of Xid 74's first register."""

    bits: tuple[Annotated[int, Field(ge=0, le=31)], ...] = Field(min_length=1)
    asks: LinkAsk
    why: str = Field(min_length=1)


class LinkBitsTable(Document):
    source: str
    rows: tuple[LinkBitsEntry, ...] = Field(min_length=1)


_Word = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]


class LinkStatuses(Document):
    """Error statuses by what they ask for."""

    reset: tuple[_Word, ...] = ()
    by_154: tuple[_Word, ...] = ()
    nothing: tuple[_Word, ...] = ()


class LinkReason(Document):
    """Reasons for which a link went down."""

    numbers: tuple[Annotated[int, Field(ge=0, le=63)], ...] = Field(min_length=1)
    asks: LinkAsk
    why: str = Field(min_length=1)


class LinkUnitEntry(Document):
    """A unit; one of `bits`, `statuses` and `reasons` is given."""

    code: int = Field(ge=144, le=150)
    units: tuple[str, ...] = Field(min_length=1)
    ids: tuple[Annotated[int, Field(ge=0, le=0x3FF)], ...] = Field(min_length=1)
    bits: LinkStatuses | None = None
    statuses: LinkStatuses | None = None
    reasons: tuple[LinkReason, ...] = ()


class LinkUnitTable(Document):
    source: str
    units: tuple[LinkUnitEntry, ...] = Field(min_length=1)


class XidDocument(Document):
    """`playbooks/oom/xid.yaml`."""

    version: Literal[1]
    id: str
    title: str
    why: str
    source: str = Field(min_length=1)
    date: datetime.date
    """When the vendor's catalogue was read."""
    sources: dict[str, XidSource] = Field(min_length=1)
    formats: tuple[XidFormat, ...] = ()
    recovery_actions: tuple[RecoveryAction, ...] = ()
    link_bits: LinkBitsTable | None = None
    link_units: LinkUnitTable | None = None
    codes: tuple[XidEntry, ...] = Field(min_length=1)


def load_xids(path: Path) -> XidCatalogue:
    """The catalogue. Raises `DocumentsInvalid`, also for a code that stands in it twice."""
    document = load_document(path, XidDocument)
    meanings: dict[int, XidMeaning] = {}
    problems: list[Problem] = []
    for number, entry in enumerate(document.codes):
        for code in entry.codes:
            if code in meanings:
                problems.append(Problem(str(path), 0, f"codes.{number}", f"code {code} stands here a second time"))
            meanings[code] = _meaning(entry, document.sources.get(entry.source))
        if entry.source not in document.sources:
            problems.append(Problem(str(path), 0, f"codes.{number}.source", f"{entry.source!r} is not among sources"))
    bits, units = document.link_bits, document.link_units
    for number, unit in enumerate(units.units if units else ()):
        if sum((unit.bits is not None, unit.statuses is not None, bool(unit.reasons))) != 1:
            where = f"link_units.units.{number}"
            problems.append(Problem(str(path), 0, where, "exactly one of bits, statuses and reasons is needed"))
    for key, table in (("link_bits", bits), ("link_units", units)):
        if table is not None and table.source not in document.sources:
            problems.append(Problem(str(path), 0, f"{key}.source", f"{table.source!r} is not among sources"))
    if problems:
        raise DocumentsInvalid(problems)
    actions = {name.lower(): action.asks for action in document.recovery_actions for name in action.names}
    return XidCatalogue(
        meanings, document.source, document.date.isoformat(), actions,
        link_bits=tuple(
            LinkBits(sum({1 << bit for bit in row.bits}), row.asks, row.why) for row in (bits.rows if bits else ())
        ),
        link_units=tuple(_unit(unit) for unit in (units.units if units else ())),
        link_source=_told(document.sources[units.source]) if units else "",
    )


def _unit(entry: LinkUnitEntry) -> LinkUnit:
    given = entry.bits or entry.statuses or LinkStatuses()
    by_ask = {LinkAsk.NOTHING: given.nothing, LinkAsk.BY_154: given.by_154, LinkAsk.RESET: given.reset}
    return LinkUnit(
        code=entry.code,
        names=frozenset(entry.units),
        ids=frozenset(entry.ids),
        flags=entry.bits is not None,
        statuses={status: ask for ask, statuses in by_ask.items() for status in statuses},
        reasons={number: (reason.asks, reason.why) for reason in entry.reasons for number in reason.numbers},
    )


def _told(source: XidSource) -> str:
    return f"{source.title}, {source.url}, {source.date.isoformat()}"


def _meaning(entry: XidEntry, source: XidSource | None) -> XidMeaning:
    read = _told(source) if source else ""
    milder = entry.milder
    texts = (MilderText(milder.text.lower(), milder.xid_class, milder.title),) if milder else ()
    return XidMeaning(entry.xid_class, entry.title, entry.action, entry.note, read, texts)


def _xid(match: re.Match[str]) -> XidLine:
    rest = (match["rest"] or "").strip()
    process = _PROCESS.match(rest) if rest.startswith("pid=") else None
    pid, name = None, ""
    if process:
        digits = process["pid"].strip("' ")
        pid = int(digits) if digits.isdecimal() and len(digits) < 10 else None
        name = process["name"] or ""
        rest = process["text"].strip()
    return XidLine(int(match["code"]), bus_id(match["bus"]), rest, pid, name, match["mig"] or "")
