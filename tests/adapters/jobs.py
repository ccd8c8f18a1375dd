"""Records of jobs that run, as far as a node is asked about them."""

from __future__ import annotations

import pwd

from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.units import JobId, UserName


def running(job: str, owner: str, *, uid: int | None = None) -> JobRecord:
    """`uid`: as Slurm tells it; None: the owner's here."""
    return JobRecord(
        id=JobId(job), cluster="test", name="train", owner=UserName(owner), state=JobState("RUNNING", JobClass.ACTIVE),
        uid=pwd.getpwnam(owner).pw_uid if uid is None else uid,
    )
