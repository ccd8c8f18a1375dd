"""A node's answer, pure: the check's script, and the reading of what it prints into `NodeFacts`.

`check_script` asks, `sections` cuts the answer, `facts` brings its parts together: `gpus` (nvidia-smi), `processes`,
`kernel_log` with `xid`, `gres` (Slurm's numbers of GPUs), `probe_document` (what the node probe answers instead).
`catalogues` reads the documents that a node is judged by, which a look at a node does not need.
"""

from runbook.node.check_script import Limits, check_script, process_script, shell_arguments, shell_command
from runbook.node.facts import read_left_document, read_node, unreachable
from runbook.node.kernel_log import Window
from runbook.node.processes import (
    end_limit_s,
    end_script,
    job_of_cgroup,
    read_end,
    read_gpu_processes,
    read_job_processes,
)
from runbook.node.sections import NodeAnswers, read_answers
from runbook.node.xid import bus_id, read_xid

__all__ = [
    "Limits", "NodeAnswers", "Window", "bus_id", "check_script", "end_limit_s", "end_script", "job_of_cgroup",
    "process_script", "read_answers", "read_end", "read_gpu_processes", "read_job_processes", "read_left_document",
    "read_node", "read_xid", "shell_arguments", "shell_command", "unreachable",
]
