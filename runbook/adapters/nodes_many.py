"""Many nodes at once, over any Nodes port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from runbook.model.node import NodeFacts
from runbook.model.units import NodeName
from runbook.ports import Nodes


def check_many(
    nodes: Nodes,
    names: Sequence[NodeName],
    *,
    since_s: float | None,
    until_s: float | None,
    limit: int = 16,
    on_done: Callable[[NodeFacts], None] = lambda _facts: None,
) -> tuple[NodeFacts, ...]:
    """Check nodes, at most `limit` at a time; facts in the order of `names`, each name once.

    `on_done` is called from the calling thread as each answer comes. An interrupt drops the nodes not yet asked."""
    wanted = tuple(dict.fromkeys(names))
    if not wanted:
        return ()
    found: dict[NodeName, NodeFacts] = {}
    executor = ThreadPoolExecutor(max_workers=max(1, min(limit, len(wanted))), thread_name_prefix="node-check")
    try:
        futures = [executor.submit(nodes.check, name, since_s=since_s, until_s=until_s) for name in wanted]
        for future in as_completed(futures):
            facts = future.result()
            found[facts.node] = facts
            on_done(facts)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
    return tuple(found[name] for name in wanted)
