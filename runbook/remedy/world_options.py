"""The submission's own options that go with the number of nodes: sbatch's totals, which stand for all nodes together.

Source: sbatch(1). A number for each node (`--ntasks-per-node`, `--gpus-per-node`, `--mem`, `--cpus-per-task`) stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from runbook.model.units import NodeName
from runbook.remedy.situation import Refusal

_GPUS = re.compile(r"(?P<kind>[A-Za-z][\w.]{0,63}:)?(?P<count>[1-9][0-9]{0,5})\Z")


def world_options(
    asked: Mapping[str, str], nodes: int, left: int, *, wanted_nodes: Sequence[NodeName] = (),
    gone: Sequence[NodeName] = (),
) -> tuple[str, ...] | Refusal:
    """What has to be said anew on sbatch's command line for `left` of `nodes` nodes, beside `--nodes` itself.

    `asked`: the options in force by long name, of whatever source; `wanted_nodes`: `--nodelist` as a list."""
    if "nodefile" in asked:
        return Refusal("--nodefile names the job's nodes", "Submit it with the nodes that are left in that file.")
    if asked.get("distribution", "").startswith("arbitrary"):
        return Refusal("--distribution=arbitrary places the ranks on named nodes")
    segment = asked.get("segment", "")
    if segment.isdecimal() and int(segment) and left % int(segment):
        return Refusal(f"--segment={segment} does not divide {left} nodes")
    options: list[str] = []
    tasks = asked.get("ntasks")
    if tasks is not None:
        if not tasks.isdecimal() or int(tasks) * left % nodes:
            return Refusal(f"--ntasks={tasks} does not go with {left} of {nodes} nodes")
        options.append(f"--ntasks={int(tasks) * left // nodes}")
    gpus = asked.get("gpus")
    if gpus is not None:
        fewer = _gpus(gpus, nodes, left)
        if fewer is None:
            return Refusal(f"--gpus={gpus} does not go with {left} of {nodes} nodes")
        options.append(f"--gpus={fewer}")
    if wanted_nodes:
        kept = [node for node in wanted_nodes if node not in set(gone)]
        if len(kept) > left:
            named = asked.get("nodelist", "")
            return Refusal(f"--nodelist={named} asks for {len(kept)} of the nodes, and {left} are free")
        if kept:
            options.append(f"--nodelist={','.join(kept)}")
    return tuple(options)


def _gpus(text: str, nodes: int, left: int) -> str | None:
    parts: list[str] = []
    for part in text.split(","):
        match = _GPUS.match(part)
        if match is None or int(match["count"]) * left % nodes:
            return None
        parts.append(f"{match['kind'] or ''}{int(match['count']) * left // nodes}")
    return ",".join(parts)
