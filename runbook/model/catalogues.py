"""What vendors published, as the catalogue documents say it: what Xid codes mean, how much memory a GPU model has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from runbook.model.units import Bytes

_SWITCH = re.compile(r"nvidia-nvswitch\d+:\s+SXid\b")


class XidClass(StrEnum):
    """What follows from one code alone. The words are explained at the top of a playbook's `xid.yaml`."""

    APPLICATION = "application"
    INFORMATIONAL = "informational"
    WATCH = "watch"
    PENDING_RESET = "pending_reset"
    RESTART_ELSEWHERE = "restart_elsewhere"
    RESET = "reset"
    DRAIN = "drain"
    LINK = "link"
    RECOVERY_ACTION = "recovery_action"
    QUALIFIER = "qualifier"
    UNDETERMINED = "undetermined"


@dataclass(frozen=True, slots=True)
class MilderText:
    """A text, in lower case, that makes a line's code another class."""

    text: str
    xid_class: XidClass
    title: str


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """One entry of the catalogue."""

    xid_class: XidClass
    title: str
    action: str = ""
    """The vendor's action, in the vendor's words."""
    note: str = ""
    source: str = ""
    """Where it was read: title, address and date."""
    milder: tuple[MilderText, ...] = ()

    def for_line(self, line: str) -> XidMeaning:
        """The meaning of the code in this line: a text of it can make it less than the code alone says. A process's
        own name is none of its text."""
        before, named, rest = line.lower().partition(" name=")
        lower = before + rest.partition(",")[2] if named else before
        for one in self.milder:
            if one.text in lower:
                return replace(self, xid_class=one.xid_class, title=one.title, milder=())
        return self


def is_switch_event(line: str) -> bool:
    """Whether a line tells of an NVSwitch (SXid). The words are longer than what a process may call itself."""
    return _SWITCH.search(line) is not None


class LinkAsk(StrEnum):
    """What the vendor asks for after an NVLink event."""

    RESET = "reset"
    BY_154 = "by_154"
    """What Xid 154 says; without one, only the program is started again."""
    NOTHING = "nothing"
    WATCH = "watch"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class LinkBits:
    """Bits of Xid 74's first register that mean the same."""

    mask: int
    asks: LinkAsk
    why: str


@dataclass(frozen=True, slots=True)
class LinkUnit:
    """A unit of the GPU that reports NVLink 5 events (Xid 144 to 150), and what its registers ask for."""

    code: int
    names: frozenset[str]
    ids: frozenset[int]
    """Its number in the low bits of the first register: ten bits before R575, seven from then on."""
    flags: bool
    """The error status is a set of flags; else a number."""
    statuses: Mapping[int, LinkAsk]
    reasons: Mapping[int, tuple[LinkAsk, str]]
    """Of a link that went down: what bits 25 to 20 of the first register ask for, and where to look."""

    def asks(self, first: int, status: int) -> tuple[LinkAsk, str] | None:
        """What these registers ask for and why, the heaviest flag deciding. None: the vendor's sheet does not say."""
        if first & 0x3FF not in self.ids and first & 0x7F not in self.ids:
            return None
        reason = first >> 20 & 0x3F
        if self.reasons:
            return self.reasons.get(reason) if status == 0 else None
        if reason:
            return None
        if not self.flags:
            asks = self.statuses.get(status)
            return (asks, "") if asks is not None else None
        known = {flag: asks for flag, asks in self.statuses.items() if status & flag}
        if LinkAsk.RESET in known.values():
            return LinkAsk.RESET, ""
        if not known or status & ~sum(known):
            return None
        return (LinkAsk.BY_154 if LinkAsk.BY_154 in known.values() else LinkAsk.NOTHING), ""


@dataclass(frozen=True, slots=True)
class XidCatalogue:
    """All known codes with source and date."""

    meanings: Mapping[int, XidMeaning] = field(default_factory=dict)
    source: str = ""
    date: str = ""
    recovery_actions: Mapping[str, str] = field(default_factory=dict)
    """Name of a recovery action in lower case → what it asks for."""
    link_bits: tuple[LinkBits, ...] = ()
    """Of `link_bits_code`: the first row with a bit that is set decides."""
    link_bits_code: int = 0
    link_units: tuple[LinkUnit, ...] = ()
    link_source: str = ""
    """Where `link_units` was read."""

    def asked_by(self, action: str) -> str | None:
        """What a recovery action asks for, however it is capitalised. None: nobody published it."""
        return self.recovery_actions.get(action.strip().lower())

    def meaning(self, code: int) -> XidMeaning:
        """An unknown code is undetermined, never harmless and never a reason to drain."""
        return self.meanings.get(code) or XidMeaning(XidClass.UNDETERMINED, "not in the catalogue")


_MAKERS = ("nvidia ", "tesla ")


@dataclass(frozen=True, slots=True)
class GpuModels:
    """Model name → the least total memory that a sound one of it shows, with source and date."""

    least_bytes: Mapping[str, Bytes] = field(default_factory=dict)
    source: str = ""
    date: str = ""

    def capacity(self, name: str) -> Bytes | None:
        """None: the model is not in the catalogue, or is a slice or virtual GPU of one."""
        return self.least_bytes.get(model_key(name))


def model_key(name: str) -> str:
    """ "NVIDIA A100-SXM4-80GB" and "A100-SXM4-80GB" are one model: drivers before 470 leave the maker out."""
    key = " ".join(name.lower().split())
    for maker in _MAKERS:
        key = key.removeprefix(maker)
    return key
