"""The judgement on a node from its facts: faulty, occupied, unknown or clean, and what to do.

`verdict` brings the signs together: of the GPUs' own figures (`hardware`), of the kernel log (`xid_signs`), of other
processes (`tenants`), weighed by the rules' document (`signs`) and by which GPUs were the job's (`job_gpus`).
"""

from runbook.diagnosis.nodes.signs import FailureClues, NodePolicy, SchedulerView
from runbook.diagnosis.nodes.tenants import (
    SECOND_LOOK_S,
    LeakContext,
    end_refused,
    node_in_use,
    second_look_refused,
)
from runbook.diagnosis.nodes.verdict import judge_node, judge_node_alone
from runbook.diagnosis.nodes.xid_signs import recovery_action_of

__all__ = [
    "SECOND_LOOK_S", "FailureClues", "LeakContext", "NodePolicy", "SchedulerView", "end_refused", "judge_node",
    "judge_node_alone", "node_in_use", "recovery_action_of", "second_look_refused",
]
