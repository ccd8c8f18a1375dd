"""What died of what, how often, and what worked: incidents by framework, model, GPU, batch and sequence."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from runbook.model.diagnosis import Kind
from runbook.model.incident import IncidentState
from runbook.model.remedy import Remembered
from runbook.model.units import GIB
from runbook.report.narrative import Again
from runbook.report.search import LONGEST, IndexQuery, asked, nodes_of
from runbook.report.summary import IncidentSummary

DAY_S = 86_400.0
_NAMED = 3
_MOST_DAYS = 36_500


class Figures(NamedTuple):
    """What the incidents of a group have in common; "" and None are not known."""

    system: str
    model: str
    gpu: str
    gpu_gib: int | None
    """As it is sold: rounded up to 4 GiB."""
    micro_batch: int | None
    sequence_length: int | None
    kind: Kind


@dataclass(frozen=True, slots=True)
class LeverRecord:
    """A lever within a group: relaunches that it worked in, that died of memory again, and that are not proven."""

    lever: str
    worked: int
    failed: int
    open: int


@dataclass(frozen=True, slots=True)
class Group:
    figures: Figures
    count: int
    recovered: int
    newest_s: float
    levers: tuple[LeverRecord, ...]
    """The one that worked most often first."""
    incidents: tuple[str, ...]
    """The newest, by id."""
    address: str
    """The list of incidents, narrowed as far as it can be to those of the group."""


@dataclass(frozen=True)
class HistoryQuery:
    """One view of the past. "" is no filter; `days` 0 is all time."""

    user: str = ""
    node: str = ""
    system: str = ""
    model: str = ""
    kind: str = ""
    days: int = 0

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> HistoryQuery:
        """From an address's parameters; what is not understood is as if it were not there."""

        text = partial(asked, parameters)
        days = text("days")
        return cls(
            text("user"), text("node"), text("system"), text("model"),
            text("kind") if text("kind") in frozenset(Kind) else "",
            min(int(days), _MOST_DAYS) if days.isascii() and days.isdecimal() and len(days) < 7 else 0,
        )

    @property
    def address(self) -> str:
        told = urlencode({name: value for name, value in vars(self).items() if value})
        return f"/history?{told}" if told else "/history"

    @property
    def narrowed(self) -> bool:
        return self != HistoryQuery()

    def choose(
        self, rows: Iterable[IncidentSummary], remembered: Mapping[str, Remembered], now_s: float
    ) -> list[IncidentSummary]:
        """Rows that fit and whose first job is known to have died of something."""
        known = [row for row in rows if row.id in remembered and row.kind is not None]
        begin_s = now_s - self.days * DAY_S if self.days else float("-inf")
        user, node = self.user.casefold(), self.node.casefold()
        system, model = self.system.casefold(), self.model.casefold()
        chosen = []
        for row in known:
            told = remembered[row.id].circumstances
            if (
                row.opened_s >= begin_s
                and (not self.kind or row.kind == self.kind)
                and (not user or row.owner.casefold() == user)
                and (not node or node in (name.casefold() for name in nodes_of(row)))
                and (not system or told.system.casefold() == system)
                and (not model or model in told.model.casefold())
            ):
                chosen.append(row)
        return chosen


def groups(
    rows: Sequence[IncidentSummary], remembered: Mapping[str, Remembered], query: HistoryQuery | None = None
) -> tuple[Group, ...]:
    """The groups of these rows, the most frequent first. `rows`: as `HistoryQuery.choose` gives them."""
    members: dict[Figures, list[IncidentSummary]] = defaultdict(list)
    for row in rows:
        members[figures_of(remembered[row.id])].append(row)
    told = [_group(figures, held, remembered, query or HistoryQuery()) for figures, held in members.items()]
    return tuple(sorted(told, key=lambda group: (-group.count, -group.newest_s)))


def figures_of(past: Remembered) -> Figures:
    told = past.circumstances
    # The driver's figure and PyTorch's differ by a share of a GiB; both lie just below what the card is sold as.
    gib = math.ceil(past.gpu_bytes / GIB / 4) * 4 if past.gpu_bytes else None
    return Figures(told.system, told.model, past.gpu, gib, told.micro_batch, told.sequence_length, past.kind)


def _group(
    figures: Figures, rows: Sequence[IncidentSummary], remembered: Mapping[str, Remembered], query: HistoryQuery
) -> Group:
    newest = sorted(rows, key=lambda row: row.opened_s, reverse=True)
    tries = [tried for row in rows for tried in remembered[row.id].levers]
    ends: dict[str, Counter[bool | None]] = defaultdict(Counter)
    for tried in tries:
        ends[tried.lever][tried.worked] += 1
    levers = [LeverRecord(name, end[True], end[False], end[None]) for name, end in ends.items()]
    return Group(
        figures=figures,
        count=len(rows),
        recovered=sum(1 for row in rows if row.state is IncidentState.RECOVERED or row.again is Again.YES),
        newest_s=newest[0].opened_s,
        levers=tuple(sorted(levers, key=lambda item: (-item.worked, item.failed, item.lever))),
        incidents=tuple(row.id for row in newest[:_NAMED]),
        address=_list_address(figures, newest, query),
    )


def _list_address(figures: Figures, rows: Sequence[IncidentSummary], query: HistoryQuery) -> str:
    """A single incident's own page, else the list by what it can be narrowed by."""
    if len(rows) == 1:
        return f"/incidents/{rows[0].id}"
    narrowed = IndexQuery(diagnosis=figures.kind, user=query.user, node=query.node)
    owners = {row.owner for row in rows}
    if not narrowed.user and len(owners) == 1:
        narrowed = replace(narrowed, user=owners.pop())
    names = {row.job_name for row in rows}
    if len(names) == 1:
        narrowed = replace(narrowed, words=names.pop()[:LONGEST])
    return narrowed.address


def document(found: Sequence[Group]) -> list[dict[str, Any]]:
    """The groups as JSON has them."""
    return [
        {
            **group.figures._asdict(),
            "incidents": group.count,
            "recovered": group.recovered,
            "newest_s": group.newest_s,
            "levers": [
                {"lever": item.lever, "worked": item.worked, "failed": item.failed, "not_proven": item.open}
                for item in group.levers
            ],
            "newest": list(group.incidents),
        }
        for group in found
    ]
