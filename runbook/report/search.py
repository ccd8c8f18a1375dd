"""What a person looks for in the list of incidents: words and filters, as an address that can be shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, partial
from urllib.parse import urlencode

from runbook.model.diagnosis import Kind
from runbook.model.incident import IncidentState
from runbook.report.clean import clean_line
from runbook.report.diagnosis_words import KIND_MEANING, KIND_TITLES
from runbook.report.summary import IncidentSummary
from runbook.report.words import AGAIN_TITLES, STATE_TITLES

STATES: dict[str, tuple[str, frozenset[IncidentState]]] = {
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

PERIODS: dict[str, tuple[str, int]] = {
    "day": ("Last 24 hours", 1), "week": ("Last 7 days", 7), "month": ("Last 30 days", 30),
}
"""Title and length in days."""
_DAY_S = 86_400.0
LONGEST = 200
_WORDS = 12


def asked(parameters: Mapping[str, str], name: str) -> str:
    """A text that an address asks for; "" where it does not."""
    return clean_line(parameters.get(name, "")[:LONGEST]).strip()


@dataclass(frozen=True)
class IndexQuery:
    """One view of the list. "" is no filter; times are days of UTC, both ends within."""

    words: str = ""
    state: str = "all"
    diagnosis: str = ""
    user: str = ""
    node: str = ""
    period: str = ""
    since: str = ""
    until: str = ""
    page: int = 1

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> IndexQuery:
        """From an address's parameters; what is not understood is as if it were not there."""

        text = partial(asked, parameters)
        state = text("state")
        number = parameters.get("page", "1")
        since, until = _day(text("from")), _day(text("to"))
        return cls(
            words=text("q"),
            state=state if state in STATES or state in frozenset(IncidentState) else "all",
            diagnosis=text("diagnosis") if text("diagnosis") in frozenset(Kind) else "",
            user=text("user"),
            node=text("node"),
            period=text("period") if text("period") in PERIODS and not since and not until else "",
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
        return STATES[self.state][1] if self.state in STATES else frozenset({IncidentState(self.state)})

    @property
    def state_title(self) -> str:
        return STATES[self.state][0] if self.state in STATES else STATE_TITLES[IncidentState(self.state)]

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
            told.append((KIND_TITLES[Kind(self.diagnosis)].lower(), self.but(diagnosis="")))
        if self.user:
            told.append((f"user {self.user}", self.but(user="")))
        if self.node:
            told.append((f"node {self.node}", self.but(node="")))
        if self.period:
            told.append((PERIODS[self.period][0].lower(), self.but(period="")))
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
            and (not node or node in (name.casefold() for name in nodes_of(row)))
            and (not self._words or self._fits(row))
        ]

    def _fits(self, row: IncidentSummary) -> bool:
        text = _searched(row)
        return all(word in text for word in self._words)

    def _span(self, now_s: float) -> tuple[float, float]:
        if self.period:
            return now_s - PERIODS[self.period][1] * _DAY_S, float("inf")
        begin_s = _start_s(self.since) if self.since else float("-inf")
        return begin_s, _start_s(self.until) + _DAY_S if self.until else float("inf")


def nodes_of(row: IncidentSummary) -> Sequence[str]:
    """The nodes of a row by name: those of the job as far as the row holds them, and the failing one."""
    return (*row.nodes, row.node) if row.node else row.nodes


def _searched(row: IncidentSummary) -> str:
    """Everything that free text is looked for in."""
    kind = (row.kind.replace("_", " "), KIND_TITLES[row.kind], KIND_MEANING[row.kind]) if row.kind else ()
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
