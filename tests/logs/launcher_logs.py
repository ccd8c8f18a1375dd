"""Pieces of launcher logs for the tests of framing: a failing rank's lines under any prefix, read into a story."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache

from runbook.locations import data_folder
from runbook.logs.lines import FileProfile
from runbook.logs.reader import LogReader
from runbook.logs.signatures import load_signatures
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import Finding, LogStory
from runbook.model.units import JobId, NodeName, UserName

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB "
    "of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the "
    "allocated memory 75.20 GiB is allocated by PyTorch, and 730.00 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)
STACK = (
    "Traceback (most recent call last):",
    '  File "/home/ada/train.py", line 120, in train',
    "    loss.backward()",
    '  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 581, in backward',
    "    torch.autograd.backward(",
)
FAILURE = (*STACK, OOM)


SIGNATURES = load_signatures(data_folder("playbooks") / "oom" / "signatures")
PLAIN = FileProfile(forms=SIGNATURES.forms)
"""A file of which nothing is known."""


@cache
def reader() -> LogReader:
    return LogReader(SIGNATURES)


def job(
    nodes: Sequence[str] = (), tasks: int | None = None, gpus: int | None = None, start_time_s: float | None = None,
    job_id: str = "123", array_job_id: str | None = None,
) -> JobRecord:
    return JobRecord(
        JobId(job_id), "cluster", "train", UserName("ada"), JobState("FAILED", JobClass.FAILED),
        nodes=tuple(NodeName(node) for node in nodes), num_nodes=len(nodes) or None, num_tasks=tasks,
        gpus_per_node=gpus, start_time_s=start_time_s,
        array_job_id=JobId(array_job_id) if array_job_id else None,
    )


def story(*files: tuple[str, str], job: JobRecord | None = None, prefixes: Sequence[str] = ()) -> LogStory:
    sources = [(path, io.BytesIO(text.encode()), len(text.encode())) for path, text in files]
    return reader().read(sources, job=job, prefixes=prefixes)


def root(*files: tuple[str, str], job: JobRecord | None = None, prefixes: Sequence[str] = ()) -> Finding:
    """The first failure of files given as (path, text)."""
    found = story(*files, job=job, prefixes=prefixes).root_cause
    assert found is not None
    return found


def prefixed(prefix: str, lines: Sequence[str]) -> str:
    return "".join(f"{prefix}{line}\n" for line in lines)


def chatter(prefix: str, count: int = 4) -> str:
    """Ordinary lines of a process."""
    return prefixed(prefix, [f"loading shard {index} of the data set" for index in range(count)])
