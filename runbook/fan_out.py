"""Many nodes at once: bounded, each name once, with a word to whoever watches as the answers come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from runbook.model.node import NodeFacts, Reach
from runbook.model.units import NodeName
from runbook.ports import Nodes

Answer = TypeVar("Answer")
FAN_OUT = 32
"""Nodes asked at a time where the inventory says nothing: more gain nothing, the key exchanges fill two cores."""
_WORTH_TELLING = 9
"""From this many nodes on there is a line every eighth of them."""


def check_many(
    nodes: Nodes,
    names: Sequence[NodeName],
    *,
    since_s: float | None,
    until_s: float | None,
    limit: int = FAN_OUT,
    on_done: Callable[[NodeFacts], None] = lambda _facts: None,
) -> tuple[NodeFacts, ...]:
    """Facts of the nodes, as `ask_many` asks them."""

    def check(name: NodeName) -> NodeFacts:
        return nodes.check(name, since_s=since_s, until_s=until_s)

    return ask_many(check, names, limit=limit, on_done=on_done)


def ask_many(
    ask: Callable[[NodeName], Answer],
    names: Sequence[NodeName],
    *,
    limit: int = FAN_OUT,
    on_done: Callable[[Answer], None] = lambda _answer: None,
) -> tuple[Answer, ...]:
    """Ask nodes, at most `limit` at a time; answers in the order of `names`, each name once.

    `on_done` is called from the calling thread as each answer comes. An interrupt drops the nodes not yet asked."""
    wanted = tuple(dict.fromkeys(names))
    if not wanted:
        return ()
    executor = ThreadPoolExecutor(max_workers=max(1, min(limit, len(wanted))), thread_name_prefix="node-check")
    try:
        futures = [executor.submit(ask, name) for name in wanted]
        for future in as_completed(futures):
            on_done(future.result())
        return tuple(future.result() for future in futures)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


class Progress:
    """Lines for a person while many nodes are asked: each that is not reached, and how many are done. A few nodes are
    asked without a word."""

    def __init__(self, total: int, tell: Callable[[str], None]) -> None:
        self._total = total
        self._tell = tell
        self._done = 0
        self._silent = 0

    def __call__(self, facts: NodeFacts) -> None:
        self._done += 1
        if self._total < _WORTH_TELLING:
            return
        if facts.reach is not Reach.OK:
            self._silent += 1
            self._tell(f"{facts.node}: not reached: {facts.reach_detail}")
        if self._done % max(1, self._total // 8) == 0 or self._done == self._total:
            silent = f", {self._silent} not reached" if self._silent else ""
            self._tell(f"{self._done} of {self._total} nodes checked{silent}")
