"""What the root cause is judged by, when reading is over: matches in order, who is where, how far the job came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.logs.collect import Collection, LogMatch, RankLocations, rank_locations
from runbook.model.job import JobClass, JobRecord
from runbook.model.log import LogSource


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """The matches of all files of a job, and what they are read by."""

    matches: tuple[LogMatch, ...]
    """In the order of files and places."""
    where: RankLocations
    collection: Collection
    job: JobRecord | None
    sources: tuple[LogSource, ...]
    """The files, in the order of their numbers."""

    @classmethod
    def of(cls, collection: Collection, sources: Sequence[LogSource], job: JobRecord | None) -> LogEvidence:
        """Of logs that were read to their ends."""
        matches = sorted(
            (one for group in collection.kept.values() for one in (*group.first, *group.last)),
            key=lambda one: (one.file, one.offset),
        )
        where = rank_locations(collection.tables, matches, job)
        return cls(tuple(matches), where, collection, job, tuple(sources))

    @property
    def succeeded(self) -> bool:
        """The scheduler says that the job ended well."""
        return self.job is not None and self.job.state.job_class is JobClass.SUCCEEDED

    @property
    def last_attempt(self) -> int:
        return self.collection.last_attempt

    def steps_behind(self, one: LogMatch) -> set[int]:
        """The steps that a failure's file shows behind it, within its attempt."""
        return self.collection.progress.steps_after(one.file, one.attempt, one.offset)
