"""`sacct`: which jobs had a node at a moment."""

from __future__ import annotations

from runbook.evidence import slurm_fields as fields
from runbook.evidence.slurm_columns import rows
from runbook.evidence.slurm_hosts import expand_hosts
from runbook.model.units import JobId, NodeName

COLUMNS = ("JobID", "Start", "End", "NodeList")
_MARGIN_S = 60


def on_node_arguments(node: NodeName, ago_s: float, separator: str) -> tuple[str, ...]:
    """Arguments of sacct for everybody's jobs on a node around a moment so many seconds ago. Times are relative, so
    that no time zone and no summer time come in between."""
    since = f"now-{max(int(ago_s), 0) + _MARGIN_S}seconds"
    until = f"now-{int(ago_s) - _MARGIN_S}seconds" if ago_s > _MARGIN_S else "now"
    return (
        "--noheader", "--allusers", "--allocations", "--parsable", f"--delimiter={separator}", f"--nodelist={node}",
        f"--starttime={since}", f"--endtime={until}", f"--format={','.join(COLUMNS)}",
    )  # fmt: skip


def jobs_on_node(text: str, node: NodeName, at_s: float, separator: str) -> tuple[JobId, ...]:
    """The jobs that had the node at that moment, each once. A job without a start did not run; one without an end
    runs."""
    found: list[JobId] = []
    for row in rows(text, COLUMNS, separator):
        start_s, end_s = fields.epoch_s(row["Start"]), fields.epoch_s(row["End"])
        ran = start_s is not None and start_s <= at_s and (end_s is None or at_s <= end_s)
        if ran and node in expand_hosts(row["NodeList"]):
            found.append(JobId(row["JobID"].strip()))
    return tuple(dict.fromkeys(found))
