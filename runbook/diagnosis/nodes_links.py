"""NVLink events: what their registers ask for by the vendor's tables, and else what the line's own word says.

Xid 74 (A100, H100) prints "fatal" for any error, so that its register decides and it never drains on its own. Of Xid
144 to 150 (NVLink 5) a line reads "145, RLW_REMAP Fatal XC0 i0 Link 01 (0x00000004 0x00000040 …)": unit, severity, and
registers, of which the first holds the unit's number and the second the error status.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runbook.diagnosis.nodes_rules import Rule, Weight
from runbook.model.node import XidEvent
from runbook.model.xid import LinkAsk, XidCatalogue

_NVLINK = 74
_SEVERITY = re.compile(r"\b(?:Non-?fatal|Fatal)\b", re.I)
_REGISTERS = re.compile(r"\(0x(?P<first>[0-9a-fA-F]{1,8})(?:[\s,]+0x(?P<second>[0-9a-fA-F]{1,8}))?[\s,)]")
_NAME = r"[A-Z][A-Z0-9_]{2,31}"
_UNIT = re.compile(rf"[\s,](?P<units>{_NAME}(?:/{_NAME})?)\s+(?:Link )?(?:Non-?)?fatal\b", re.I)
_WEIGHTS = {LinkAsk.PERSON: Weight.UNDETERMINED, LinkAsk.WATCH: Weight.WARN, LinkAsk.NOTHING: Weight.NOTE}


@dataclass(frozen=True, slots=True)
class LinkWord:
    """What follows from one event; `text` goes behind the code's title."""

    rule: Rule
    text: str
    weight: Weight | None = None
    """None: the rule's own."""
    source: str = ""
    """Where that was read, if not with the code itself."""


def judge_link(event: XidEvent, xids: XidCatalogue) -> LinkWord:
    """Registers before words. Where the two contradict each other a person looks: one of them was misread.

    A process may be named like a unit or a severity, but its name stands before them: the last one counts."""
    if event.code == _NVLINK:
        return _by_bits(event, xids)
    severities = _SEVERITY.findall(event.line)
    fatal = bool(severities) and severities[-1].lower() == "fatal"
    mild = bool(severities) and not fatal
    decoded = _decoded(event, xids)
    if decoded is None:
        return _by_word(event, fatal, mild)
    asks, why = decoded
    look = f"; {why}" if why else ""
    if asks is LinkAsk.RESET and not mild:
        return LinkWord(
            Rule.XID_LINK_FATAL, f", fatal; its registers ask for a reset{look}; look at the other end of the link too",
            source=xids.link_source,
        )
    if asks is not LinkAsk.RESET and (why or not fatal):
        then = "; what an Xid 154 beside it says is to be done" if asks is LinkAsk.BY_154 else ""
        return LinkWord(Rule.XID_LINK, f", not fatal by its registers{look}{then}", source=xids.link_source)
    return LinkWord(
        Rule.XID_LINK, f"; its word and its registers contradict each other, a person looks: {event.line}",
        Weight.UNDETERMINED,
    )


def _decoded(event: XidEvent, xids: XidCatalogue) -> tuple[LinkAsk, str] | None:
    """What the vendor's sheet asks for. None: the unit or its registers are not in it."""
    units, registers = _UNIT.findall(event.line), _registers(event)
    if not units or registers is None or registers["second"] is None:
        return None
    names = set(units[-1].split("/"))
    first, status = int(registers["first"], 16), int(registers["second"], 16)
    for one in xids.link_units:
        if one.code == event.code and names <= one.names:
            return one.asks(first, status)
    return None


def _registers(event: XidEvent) -> re.Match[str] | None:
    """The last ones in the line, as its other words."""
    found = tuple(_REGISTERS.finditer(event.line))
    return found[-1] if found else None


def _by_word(event: XidEvent, fatal: bool, mild: bool) -> LinkWord:
    if fatal:
        return LinkWord(Rule.XID_LINK_FATAL, ", fatal; reset needed, and look at the other end of the link too")
    if mild:
        return LinkWord(Rule.XID_LINK, ", not fatal")
    return LinkWord(Rule.XID_LINK, f"; its line names no severity: {event.line}", Weight.UNDETERMINED)


def _by_bits(event: XidEvent, xids: XidCatalogue) -> LinkWord:
    registers = _registers(event)
    first = int(registers["first"], 16) if registers else 0
    for row in xids.link_bits:
        if first & row.mask:
            return LinkWord(Rule.XID_LINK, f"; {row.why}", _WEIGHTS[row.asks])
    return LinkWord(
        Rule.XID_LINK, f"; its registers say nothing that is published: {event.line}", Weight.UNDETERMINED
    )
