"""What the driver's Xid codes mean for a node, as the catalogue document says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class XidClass(StrEnum):
    """What follows from one code alone. The words are explained at the top of `playbooks/oom/xid.yaml`."""

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
        """The meaning of the code in this line: a text of it can make it less than the code alone says."""
        lower = line.lower()
        for one in self.milder:
            if one.text in lower:
                return replace(self, xid_class=one.xid_class, title=one.title, milder=())
        return self


@dataclass(frozen=True, slots=True)
class XidCatalogue:
    """All known codes with source and date."""

    meanings: Mapping[int, XidMeaning] = field(default_factory=dict)
    source: str = ""
    date: str = ""
    recovery_actions: Mapping[str, str] = field(default_factory=dict)
    """Name of a recovery action in lower case → what it asks for."""

    def asked_by(self, action: str) -> str | None:
        """What a recovery action asks for, however it is capitalised. None: nobody published it."""
        return self.recovery_actions.get(action.strip().lower())

    def meaning(self, code: int) -> XidMeaning:
        """An unknown code is undetermined, never harmless and never a reason to drain."""
        return self.meanings.get(code) or XidMeaning(XidClass.UNDETERMINED, "not in the catalogue")
