"""The documents that a node is judged by: Xid codes, GPU models, the rules of the node check."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from string import Formatter
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from runbook.documents import Document, DocumentsInvalid, Problem, load_document
from runbook.model.catalogues import (
    GpuModels,
    LinkAsk,
    LinkBits,
    LinkUnit,
    MilderText,
    XidCatalogue,
    XidClass,
    XidMeaning,
    model_key,
)
from runbook.model.node import NodeAction, NodeVerdict, Reports
from runbook.model.node_rules import (
    Condition,
    NodeDocuments,
    NodeRule,
    NodeRules,
    RuleCase,
    VerdictMeaning,
    Weight,
)
from runbook.model.units import MIB, Bytes


def load_node_documents(folder: Path) -> NodeDocuments:
    """All three of a playbook's folder. Raises `DocumentsInvalid`."""
    return NodeDocuments(
        load_node_rules(folder / "node_rules.yaml"),
        load_xids(folder / "xid.yaml"),
        load_gpu_models(folder / "gpu_models.yaml"),
    )


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
    """Bits of the first register of a link event."""

    bits: tuple[Annotated[int, Field(ge=0, le=31)], ...] = Field(min_length=1)
    asks: LinkAsk
    why: str = Field(min_length=1)


class LinkBitsTable(Document):
    code: int = Field(ge=1, le=9999)
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
    """A playbook's `xid.yaml`."""

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
    document = load_document(path, XidDocument, kept=True)
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
        link_bits_code=bits.code if bits else 0,
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


class GpuModelEntry(Document):
    """Models that show the same."""

    names: tuple[str, ...] = Field(min_length=1)
    """As nvidia-smi prints them, with or without the maker's name."""
    total_mib: tuple[int, ...] = Field(min_length=1)
    """Totals that sound ones were seen with: driver branches differ, and on GDDR memory ECC costs a sixteenth."""
    note: str = ""


class GpuModelDocument(Document):
    """A playbook's `gpu_models.yaml`."""

    version: Literal[1]
    id: str
    title: str
    why: str
    source: str = Field(min_length=1)
    date: datetime.date
    models: tuple[GpuModelEntry, ...] = Field(min_length=1)


def load_gpu_models(path: Path) -> GpuModels:
    """The catalogue. Raises `DocumentsInvalid`, also for a model that stands in it twice."""
    document = load_document(path, GpuModelDocument, kept=True)
    least: dict[str, Bytes] = {}
    problems: list[Problem] = []
    for number, entry in enumerate(document.models):
        for name in entry.names:
            key = model_key(name)
            if key in least:
                problems.append(Problem(str(path), 0, f"models.{number}", f"{name} stands here a second time"))
            least[key] = Bytes(min(entry.total_mib) * MIB)
    if problems:
        raise DocumentsInvalid(problems)
    return GpuModels(least, document.source, document.date.isoformat())


def _named(kind: type[Condition] | type[Weight]) -> BeforeValidator:
    """A member by its name in lower case."""

    def member(value: object) -> object:
        names = kind.__members__
        if not isinstance(value, str) or value.upper() not in names or value != value.lower():
            raise ValueError(f"one of {', '.join(name.lower() for name in names)} is expected")
        return names[value.upper()]

    return BeforeValidator(member)


_Condition = Annotated[Condition, _named(Condition)]
_Weight = Annotated[Weight, _named(Weight)]


class RuleCaseEntry(Document):
    """A condition under which the rule makes a finding, with what differs from the rule then."""

    when: _Condition
    says: str = Field(min_length=1)
    """The sentence, with the condition's words in braces."""
    source: str = ""
    """A key of the document's `sources`; "": the finding has none, or one of its own."""
    weight: _Weight | None = None
    action: NodeAction | None = None
    at_least: int = Field(default=0, ge=0)
    codes: tuple[Annotated[int, Field(ge=1, le=9999)], ...] = ()
    beside: tuple[Annotated[int, Field(ge=1, le=9999)], ...] = ()
    policy: Literal["", "drain_on_pending_reset", "drain_on_contained_error", "drain_on_hidden_memory"] = ""


class NodeRuleEntry(Document):
    """One rule."""

    id: str = Field(pattern=r"^[a-z][a-z_]*$")
    shows: str = Field(min_length=1)
    """What was found, as docs/node-check.md says it."""
    weight: _Weight
    action: NodeAction
    reports: tuple[Reports, ...] = ()
    cases: tuple[RuleCaseEntry, ...] = Field(min_length=1)


class DecisionRow(Document):
    """A row of the decision table."""

    row: str = Field(min_length=1)
    rules: tuple[NodeRuleEntry, ...] = Field(min_length=1)


class VerdictEntry(Document):
    """Where a verdict comes from, and which action outweighs which."""

    source: str = Field(min_length=1)
    actions: tuple[NodeAction, ...] = ()


class NodeRuleDocument(Document):
    """A playbook's `node_rules.yaml`."""

    version: Literal[1]
    id: str
    title: str
    why: str
    source: str = Field(min_length=1)
    sources: dict[str, str] = Field(min_length=1)
    actions: dict[_Weight, NodeAction]
    verdicts: dict[NodeVerdict, VerdictEntry]
    source_of_silence: str = Field(min_length=1)
    helpers: tuple[str, ...] = ()
    decisions: tuple[DecisionRow, ...] = Field(min_length=1)


def load_node_rules(path: Path) -> NodeRules:
    """The rules. Raises `DocumentsInvalid`, also where a condition has no rule, or a sentence names what its condition
    does not tell."""
    document = load_document(path, NodeRuleDocument, kept=True)
    entries = [(row.row, entry) for row in document.decisions for entry in row.rules]
    cases: dict[Condition, list[RuleCase]] = {condition: [] for condition in Condition}
    for _, entry in entries:
        for case in entry.cases:
            cases[case.when].append(_case(entry, case, document))
    problems = _rule_problems(str(path), document, [entry for _, entry in entries])
    if problems:
        raise DocumentsInvalid(problems)
    return NodeRules(
        rules={
            entry.id: NodeRule(entry.id, entry.shows, row, entry.weight, entry.action, frozenset(entry.reports))
            for row, entry in entries
        },
        cases={
            condition: tuple(sorted(found, key=lambda one: (bool(one.codes), one.at_least), reverse=True))
            for condition, found in cases.items()
        },
        verdicts={
            verdict: VerdictMeaning(entry.source, entry.actions) for verdict, entry in document.verdicts.items()
        },
        actions=document.actions,
        source_of_silence=document.source_of_silence,
        helpers=frozenset(document.helpers),
    )


def _case(entry: NodeRuleEntry, case: RuleCaseEntry, document: NodeRuleDocument) -> RuleCase:
    weight = entry.weight if case.weight is None else case.weight
    action = case.action or (entry.action if weight is entry.weight else document.actions.get(weight, entry.action))
    return RuleCase(
        rule=entry.id, condition=case.when, says=case.says, weight=weight, action=action,
        source=document.sources.get(case.source, ""), at_least=case.at_least, codes=frozenset(case.codes),
        beside=frozenset(case.beside), policy=case.policy,
    )


def _rule_problems(path: str, document: NodeRuleDocument, entries: Sequence[NodeRuleEntry]) -> list[Problem]:
    problems = [
        Problem(path, 0, "decisions", f"no rule says what follows from {condition.name.lower()}")
        for condition in Condition if condition not in {case.when for entry in entries for case in entry.cases}
    ]
    problems += [
        Problem(path, 0, "actions", f"{weight.name.lower()} is missing")
        for weight in Weight if weight not in document.actions and weight is not Weight.OCCUPIED
    ]
    problems += [
        Problem(path, 0, "verdicts", f"{verdict.value} is missing")
        for verdict in NodeVerdict if verdict not in document.verdicts and verdict is not NodeVerdict.FAULTY
    ]
    seen: set[str] = set()
    for entry in entries:
        where = f"decisions: {entry.id}"
        if entry.id in seen:
            problems.append(Problem(path, 0, where, "stands here a second time"))
        seen.add(entry.id)
        for case in entry.cases:
            if case.source and case.source not in document.sources:
                problems.append(Problem(path, 0, where, f"{case.source!r} is not among sources"))
            named = {word for _, word, _, _ in Formatter().parse(case.says) if word is not None}
            untold = sorted(named - case.when.words)
            if untold:
                told = ", ".join(sorted(case.when.words)) or "no words"
                problems.append(Problem(path, 0, where, f"{case.when.name.lower()} tells {told}, not {untold[0]}"))
    return problems
