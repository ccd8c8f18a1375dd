"""How much an incident may do: relaunches, waiting between them, nodes drained. "" means allowed, else why not."""

from __future__ import annotations

import math


def relaunch_refused(done: int, most: int) -> str:
    """Whether another relaunch is over the policy's number, all attempts of the incident together."""
    if done < most:
        return ""
    return f"the job was relaunched {done} times, as often as the policy allows ({most})"


def cool_off_left_s(last_relaunch_s: float | None, now_s: float, cool_off_s: float) -> float:
    """Seconds to wait before the next relaunch. A clock that went back never makes it longer than the cool-off."""
    if last_relaunch_s is None:
        return 0.0
    passed = max(0.0, now_s - last_relaunch_s)
    return max(0.0, cool_off_s - passed)


def drain_refused(drained_by_us: int, nodes: int | None, share: float, *, may_drain: bool = True) -> str:
    """Whether one more drained node is over the policy's share of the cluster.

    One node is always allowed where draining is; with an unknown number of nodes no second one is.
    """
    if not may_drain:
        return "the policy does not let this tool drain nodes"
    if drained_by_us == 0:
        return ""
    if nodes is None:
        return f"{drained_by_us} drained already, and how many nodes the cluster has is not known"
    most = max(1, math.floor(nodes * share))
    if drained_by_us < most:
        return ""
    return f"{drained_by_us} of {nodes} nodes are drained by this tool already; the policy allows {most}"
