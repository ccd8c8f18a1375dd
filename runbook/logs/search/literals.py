"""Many literals searched at once, at memory speed: hyperscan where its wheel exists, automata elsewhere.

Measured on 113 and 168 literals (x86-64, one thread, Megatron's lines): hyperscan 2.9 GB/s for either, 2.4 with the
steps' literals beside them; the automata 1.8 GB/s for 113, 0.3 for 168. Both let other threads run while they search.
hyperscan misses what lies past 4 GiB of one text: callers hand in pieces of some megabytes. It takes 0.18 s to be made
ready for our 518 literals, the automata 0.012: these search the first megabytes, which is all that most logs have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Protocol

from ahocorasick_rs import BytesAhoCorasick, MatchKind

LONGEST_LITERAL = 256
_FIRST_BYTES = 4 << 20
"""Searched by automata before hyperscan is made ready."""
_LITERALS_AN_AUTOMATON = 20
"""Measured: automata of 20 neighbours in the alphabet run at 6 to 14 GB/s each (lower-case ones at 2); two of 60 ran
at 0.5 together, and above 64 the engine takes a slower algorithm still."""


class LiteralSearch:
    """Several literals searched at once. Which of overlapping literals is reported does not matter to the caller.

    `once` are further literals of which only the presence counts: they stand on every other line of a log, and a
    report of each would cost more than the search. May be used by several threads at a time."""

    def __init__(self, literals: Iterable[str], once: Iterable[str] = (), engine: str | None = None) -> None:
        self.literals = tuple(sorted({literal.encode() for literal in literals}))
        self.once = tuple(sorted({literal.encode() for literal in once}))
        self._wanted = engine
        self._begun_bytes = _FIRST_BYTES if engine is not None else 0

    @property
    def engine(self) -> str:
        """Which library searches all but the first megabytes: "hyperscan" or "automata"."""
        return _engine(self.literals, self.once, self._wanted).name

    def positions(self, text: memoryview) -> list[int]:
        """Where a literal begins, in order."""
        return self.find(text)[0]

    def find(self, text: memoryview) -> tuple[list[int], bool | None]:
        """Where a literal begins, in order, and whether one of `once` is there; None: not looked for."""
        if not len(text):
            return [], False
        found, present = self._engine_for(len(text)).find(text)
        found.sort()
        return found, present

    def within(self, line: bytes) -> list[bytes]:
        """All literals that a line holds."""
        return self._engine_for(len(line)).within(line)

    def _engine_for(self, more_bytes: int) -> _Engine:
        if self._begun_bytes < _FIRST_BYTES:
            self._begun_bytes += more_bytes
        few = self._begun_bytes < _FIRST_BYTES
        return _engine(self.literals, self.once, "automata" if few else self._wanted)


class _Engine(Protocol):
    @property
    def name(self) -> str:
        """The library."""

    def find(self, text: memoryview) -> tuple[list[int], bool | None]:
        """Beginnings of literals in any order, and the presence of those that are reported once."""

    def within(self, line: bytes) -> list[bytes]:
        """The literals in a line."""


class _Hyperscan:
    name = "hyperscan"

    def __init__(self, literals: tuple[bytes, ...], once: tuple[bytes, ...]) -> None:
        import hyperscan

        self._hyperscan = hyperscan
        self._lengths = [len(literal) for literal in literals]
        self._local = threading.local()
        every = [*literals, *once]
        self._database: Any = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        if every:
            flags = [0] * len(literals) + [hyperscan.HS_FLAG_SINGLEMATCH] * len(once)
            self._database.compile(
                expressions=every, ids=list(range(len(every))), elements=len(every), flags=flags, literal=True
            )
        self._empty = not every
        self._literals = literals

    def find(self, text: memoryview) -> tuple[list[int], bool | None]:
        if self._empty:
            return [], False
        found: list[int] = []
        append, lengths, events = found.append, self._lengths, len(self._lengths)
        present = False

        def told(identity: int, start: int, end: int, flags: int, context: object) -> None:
            nonlocal present
            if identity < events:
                append(end - lengths[identity])
            else:
                present = True

        self._database.scan(text, match_event_handler=told, scratch=self._scratch())
        return found, present

    def within(self, line: bytes) -> list[bytes]:
        if self._empty or not line:
            return []
        found: set[int] = set()
        add = found.add
        self._database.scan(line, match_event_handler=lambda identity, *_: add(identity), scratch=self._scratch())
        return [self._literals[identity] for identity in sorted(found) if identity < len(self._literals)]

    def _scratch(self) -> Any:
        """A scratch serves one search at a time, so each thread has its own."""
        scratch = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = self._hyperscan.Scratch(self._database)
        return scratch


class _Automata:
    name = "automata"

    def __init__(self, literals: tuple[bytes, ...]) -> None:
        groups = -(-len(literals) // _LITERALS_AN_AUTOMATON)
        size = -(-len(literals) // groups) if groups else 1
        self._literals = literals
        self._automata = [
            BytesAhoCorasick(list(literals[start:start + size]), matchkind=MatchKind.LeftmostFirst)
            for start in range(0, len(literals), size)
        ]

    def find(self, text: memoryview) -> tuple[list[int], bool | None]:
        return [
            start for automaton in self._automata for _, start, _ in automaton.find_matches_as_indexes(text)
        ], None

    def within(self, line: bytes) -> list[bytes]:
        return [literal for literal in self._literals if literal in line]


@lru_cache(maxsize=8)
def _engine(literals: tuple[bytes, ...], once: tuple[bytes, ...], wanted: str | None) -> _Engine:
    if wanted == "automata":
        return _Automata(literals)
    try:
        import hyperscan
    except (ImportError, OSError):
        if wanted is not None:
            raise
        return _Automata(literals)  # no wheel for this platform
    try:
        return _Hyperscan(literals, once)
    except hyperscan.HyperscanError:  # a processor that it does not know
        if wanted is not None:
            raise
        return _Automata(literals)
