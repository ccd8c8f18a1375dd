"""What a person looks for in the list of incidents: words and filters, as an address that can be shared."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from runbook.model.diagnosis import Kind, Kinds
from runbook.model.incident import IncidentState
from runbook.model.remedy import Remembered
from runbook.model.units import GIB
from runbook.report.summary import IncidentSummary
from runbook.report.vocabulary.clean import clean_line
from runbook.report.vocabulary.titles import AGAIN_TITLES, STATE_TITLES, Again

STATE_FILTERS: dict[str, tuple[str, frozenset[IncidentState]]] = {
    "all": ("All", frozenset(IncidentState)),
    "person": (
        "Need a person",
        frozenset({IncidentState.ESCALATED, IncidentState.AWAITING_APPROVAL, IncidentState.INTERRUPTED}),
    ),
    "running": ("Running", frozenset({IncidentState.RUNNING})),
    "recovered": ("Recovered", frozenset({IncidentState.RECOVERED})),
    "planned": ("Planned", frozenset({IncidentState.PLANNED})),
    "closed": ("Closed", frozenset({IncidentState.CLOSED})),
}
"""What the page offers. A single state that is not among them ("escalated") is understood, too."""

PERIOD_FILTERS: dict[str, tuple[str, int]] = {
    "day": ("Last 24 hours", 1), "week": ("Last 7 days", 7), "month": ("Last 30 days", 30),
}
"""Title and length in days."""
_DAY_S = 86_400.0
LONGEST_TEXT = 200
_WORDS = 12


def asked_text(parameters: Mapping[str, str], name: str) -> str:
    """A text that an address asks for; "" where it does not."""
    return clean_line(parameters.get(name, "")[:LONGEST_TEXT]).strip()


ANY_KIND = Kind("")


@dataclass(frozen=True)
class IndexQuery:
    """One view of the list. "" is no filter; times are days of UTC, both ends within."""

    words: str = ""
    state: str = "all"
    diagnosis: Kind = ANY_KIND
    user: str = ""
    node: str = ""
    period: str = ""
    since: str = ""
    until: str = ""
    page: int = 1

    @classmethod
    def read(cls, parameters: Mapping[str, str], kinds: Kinds) -> IndexQuery:
        """From an address's parameters; what is not understood is as if it were not there."""

        text = partial(asked_text, parameters)
        state = text("state")
        number = parameters.get("page", "1")
        since, until = _day(text("from")), _day(text("to"))
        return cls(
            words=text("q"),
            state=state if state in STATE_FILTERS or state in frozenset(IncidentState) else "all",
            diagnosis=kinds.get(text("diagnosis"), ANY_KIND),
            user=text("user"),
            node=text("node"),
            period=text("period") if text("period") in PERIOD_FILTERS and not since and not until else "",
            since=since,
            until=until,
            page=int(number) if number.isascii() and number.isdecimal() and 0 < len(number) < 7 else 1,
        )

    @property
    def address(self) -> str:
        """The same view again."""
        named = {
            "q": self.words, "state": "" if self.state == "all" else self.state, "diagnosis": self.diagnosis,
            "user": self.user, "node": self.node, "period": self.period, "from": self.since, "to": self.until,
            "page": str(self.page) if self.page > 1 else "",
        }
        told = urlencode({name: value for name, value in named.items() if value})
        return f"/?{told}" if told else "/"

    def but(self, **changes: str | int) -> IndexQuery:
        """Another view, from its first page."""
        return replace(self, **{"page": 1, **changes})  # type: ignore[arg-type]

    @property
    def states(self) -> frozenset[IncidentState]:
        return STATE_FILTERS[self.state][1] if self.state in STATE_FILTERS else frozenset({IncidentState(self.state)})

    @property
    def state_title(self) -> str:
        return STATE_FILTERS[self.state][0] if self.state in STATE_FILTERS else STATE_TITLES[IncidentState(self.state)]

    @property
    def narrowed(self) -> bool:
        """Whether a filter beside the words and the state is set."""
        return bool(self.diagnosis or self.user or self.node or self.period or self.since or self.until)

    @property
    def filters(self) -> tuple[tuple[str, IndexQuery], ...]:
        """Each thing that narrows the list in words, with the view without it."""
        told: list[tuple[str, IndexQuery]] = []
        if self.words:
            told.append((f"“{self.words}”", self.but(words="")))
        if self.state != "all":
            told.append((self.state_title.lower(), self.but(state="all")))
        if self.diagnosis:
            told.append((self.diagnosis.entry.title.lower(), self.but(diagnosis=ANY_KIND)))
        if self.user:
            told.append((f"user {self.user}", self.but(user="")))
        if self.node:
            told.append((f"node {self.node}", self.but(node="")))
        if self.period:
            told.append((PERIOD_FILTERS[self.period][0].lower(), self.but(period="")))
        if self.since or self.until:
            span = " ".join(
                part for part in (f"from {self.since}" if self.since else "", f"to {self.until}" if self.until else "")
                if part
            )
            told.append((span, self.but(since="", until="")))
        return tuple(told)

    @cached_property
    def _words(self) -> tuple[str, ...]:
        return tuple(self.words.casefold().split()[:_WORDS])

    def choose(self, rows: Iterable[IncidentSummary], now_s: float) -> list[IncidentSummary]:
        """Rows that fit, in their order; the state is left out of it, as the page counts each of them."""
        begin_s, end_s = self._span(now_s)
        user, node, kind = self.user.casefold(), self.node.casefold(), self.diagnosis
        return [
            row
            for row in rows
            if begin_s <= row.opened_s < end_s
            and (not kind or row.kind == kind)
            and (not user or row.owner.casefold() == user)
            and (not node or node in (name.casefold() for name in row_nodes(row)))
            and (not self._words or self._fits(row))
        ]

    def _fits(self, row: IncidentSummary) -> bool:
        text = _searched(row)
        return all(word in text for word in self._words)

    def _span(self, now_s: float) -> tuple[float, float]:
        if self.period:
            return now_s - PERIOD_FILTERS[self.period][1] * _DAY_S, float("inf")
        begin_s = _start_s(self.since) if self.since else float("-inf")
        return begin_s, _start_s(self.until) + _DAY_S if self.until else float("inf")


def row_nodes(row: IncidentSummary) -> Sequence[str]:
    """The nodes of a row by name: those of the job as far as the row holds them, and the failing one."""
    return (*row.nodes, row.node) if row.node else row.nodes


def _searched(row: IncidentSummary) -> str:
    """Everything that free text is looked for in."""
    kind = (row.kind.replace("_", " "), row.kind.entry.title, row.kind.entry.meaning) if row.kind else ()
    return "\n".join((
        row.id, *row.jobs, row.job_name, row.owner, row.node, *row.nodes, *kind, STATE_TITLES[row.state], row.headline,
        row.done, row.asked, AGAIN_TITLES[row.again],
        *(f"{use.lever} {use.lever.replace('_', ' ')}" for use in row.levers),
    )).casefold()


def _day(text: str) -> str:
    """A day as ISO 8601 has it, "" for anything else."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        return ""


def _start_s(day: str) -> float:
    begin = datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)
    return (begin - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1)


# What died of what, how often, and what worked: incidents by framework, model, GPU, batch and sequence.

DAY_S = 86_400.0
_NAMED = 3
_MOST_DAYS = 36_500


class GroupKey(NamedTuple):
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
    figures: GroupKey
    count: int
    recovered: int
    newest_s: float
    levers: tuple[LeverRecord, ...]
    """The one that worked most often first."""
    incidents: tuple[str, ...]
    """The newest, by id."""
    fits_foreseen: int
    """Relaunches that were said to fit."""
    fits_wrong: int
    """Those of them that ran out again."""
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
    def read(cls, parameters: Mapping[str, str], kinds: Kinds) -> HistoryQuery:
        """From an address's parameters; what is not understood is as if it were not there."""

        text = partial(asked_text, parameters)
        days = text("days")
        return cls(
            text("user"), text("node"), text("system"), text("model"),
            text("kind") if text("kind") in kinds else "",
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
                and (not node or node in (name.casefold() for name in row_nodes(row)))
                and (not system or told.system.casefold() == system)
                and (not model or model in told.model.casefold())
            ):
                chosen.append(row)
        return chosen


def groups(
    rows: Sequence[IncidentSummary], remembered: Mapping[str, Remembered], query: HistoryQuery | None = None
) -> tuple[Group, ...]:
    """The groups of these rows, the most frequent first. `rows`: as `HistoryQuery.choose` gives them."""
    members: dict[GroupKey, list[IncidentSummary]] = defaultdict(list)
    for row in rows:
        members[group_key(remembered[row.id])].append(row)
    told = [_group_of_rows(figures, held, remembered, query or HistoryQuery()) for figures, held in members.items()]
    return tuple(sorted(told, key=lambda group: (-group.count, -group.newest_s)))


def group_key(past: Remembered) -> GroupKey:
    told = past.circumstances
    # The driver's figure and PyTorch's differ by a share of a GiB; both lie just below what the card is sold as.
    gib = math.ceil(past.gpu_bytes / GIB / 4) * 4 if past.gpu_bytes else None
    return GroupKey(told.system, told.model, past.gpu, gib, told.micro_batch, told.sequence_length, past.kind)


def _group_of_rows(
    figures: GroupKey, rows: Sequence[IncidentSummary], remembered: Mapping[str, Remembered], query: HistoryQuery
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
        fits_foreseen=sum(remembered[row.id].fits_foreseen for row in rows),
        fits_wrong=sum(remembered[row.id].fits_wrong for row in rows),
        address=_list_address(figures, newest, query),
    )


def _list_address(figures: GroupKey, rows: Sequence[IncidentSummary], query: HistoryQuery) -> str:
    """A single incident's own page, else the list by what it can be narrowed by."""
    if len(rows) == 1:
        return f"/incidents/{rows[0].id}"
    narrowed = IndexQuery(diagnosis=figures.kind, user=query.user, node=query.node)
    owners = {row.owner for row in rows}
    if not narrowed.user and len(owners) == 1:
        narrowed = replace(narrowed, user=owners.pop())
    names = {row.job_name for row in rows}
    if len(names) == 1:
        narrowed = replace(narrowed, words=names.pop()[:LONGEST_TEXT])
    return narrowed.address


def groups_document(found: Sequence[Group]) -> list[dict[str, Any]]:
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
            "foreseen_to_fit": group.fits_foreseen,
            "foreseen_wrong": group.fits_wrong,
            "newest": list(group.incidents),
        }
        for group in found
    ]
