"""Who hung or died because of the first failure, each with one reason."""

from __future__ import annotations

from collections.abc import Sequence, Set

from runbook.evidence.log_places import TEARDOWN_CODES, Places
from runbook.evidence.log_seen import Seen
from runbook.evidence.signatures import CONSEQUENCE
from runbook.model.log import Collateral, Finding

UNNAMED_KEPT = 20
_ANNOUNCEMENTS = frozenset({"FR-TE-CFE", "FR-TE-CLOSE", "SL-TASK-04", "FR-DS", "RAY-06"})
"""Lines of launchers that end the others: without a rank they say nothing of anybody."""
RANKS_KEPT = 20_000

_SIGNALS = {-6: "SIGABRT", -9: "SIGKILL", -15: "SIGTERM", -11: "SIGSEGV", -7: "SIGBUS"}
_WORDS = {
    "NCCL-02": "a collective failed after another rank was gone",
    "NCCL-05": "waited in a collective until the NCCL watchdog's timeout",
    "NCCL-06": "the NCCL watchdog saw the failure of another rank",
    "NCCL-07": "lost the connection to another rank",
    "SL-CANCEL-01": "cancelled with the job step",
    "HOST-06": "killed by SIGKILL; the log does not say by whom",
    "HOST-05": "a data loading worker went away",
}


def collateral(
    seen: Sequence[Seen], where: Places, root: Finding | None, taken: Set[int | None]
) -> tuple[Collateral, ...]:
    """One entry a rank, the first reason in the log's order; entries without a rank at the end."""
    found: dict[int, Collateral] = {}
    unnamed: dict[tuple[str, str | None], Collateral] = {}
    own = root.rank if root else None
    for one in seen:
        if one.means != CONSEQUENCE:
            continue
        identity = one.match.signature.id
        ranks: Sequence[int | None] = [where.rank(one)]
        hosts = one.match.text("hosts")
        if one.match.numbers("tasks"):
            ranks = one.match.numbers("tasks") if where.tasks_are_ranks else [None]
        for rank in ranks:
            if rank is not None and (rank == own or rank in taken or rank in found or len(found) > RANKS_KEPT):
                continue
            if rank is None and identity in _ANNOUNCEMENTS:
                continue
            if rank is None:
                node = one.frame.node or hosts
                if len(unnamed) < UNNAMED_KEPT:
                    unnamed.setdefault((identity, node), Collateral(None, one.frame.node, _why(one), identity))
            else:
                found[rank] = Collateral(rank, where.nodes.get(rank), _why(one), identity)
    for row in where.rows:
        if own is None and root is not None and row.exit_code not in TEARDOWN_CODES:
            continue  # one of these is the failure itself, and the log does not say which
        if row.rank != own and row.rank not in taken and row.rank not in found:
            found[row.rank] = Collateral(row.rank, row.node, f"ended with {_code(row.exit_code)}", "FR-TE-ROW")
    if own is None and root is not None:
        found = {rank: one for rank, one in found.items() if one.signature != "FR-TE-AGENT"}
    return (*(found[rank] for rank in sorted(found)), *unnamed.values())


def _why(seen: Seen) -> str:
    code, signal = seen.match.integer("exit_code"), seen.match.text("signal")
    if code is not None:
        return f"ended with {_code(code)}"
    if signal is not None:
        return f"ended by a signal ({signal.lower()})"
    return _WORDS.get(seen.match.signature.id, seen.match.signature.title[:1].lower() + seen.match.signature.title[1:])


def _code(code: int) -> str:
    return f"exit code {code} ({_SIGNALS[code]})" if code in _SIGNALS else f"exit code {code}"
