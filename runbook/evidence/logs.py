"""Launcher logs into one story: which rank failed first and what it said, who followed, and how far the job came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import BinaryIO

from runbook.evidence import log_story
from runbook.evidence.framing import FileFrame, frame_of_file, frames_of_family
from runbook.evidence.log_file import FileHandler, Reading
from runbook.evidence.log_scan import CHUNK_BYTES, KEPT_BYTES, Search, scan
from runbook.evidence.signatures import Signatures
from runbook.model.job import JobRecord
from runbook.model.log import LogSource, LogStory


class LogReader:
    """Reads the logs of one job. Made once for a set of signatures, used for any number of jobs."""

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures
        self._events = Search(literal for one in signatures.events for literal in one.literals)
        self._progress = Search(literal for one in signatures.progress for literal in one.literals)

    def read(
        self,
        sources: Sequence[tuple[str, BinaryIO, int]],
        *,
        job: JobRecord | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> LogStory:
        """One pass over (path, stream, size in bytes) each; `.gz` is unpacked on the way. The caller opens and closes.

        `progress` gets bytes done and bytes in all. A stream that breaks off is a note of its source, not an error."""
        total = sum(size for _, _, size in sources)
        reading = Reading(self._signatures, self._events, self._progress, _year(job), job.nodes if job else ())
        frames = self._frames(sources, job)
        largest = max((size for _, _, size in sources), default=0)
        buffer = bytearray(KEPT_BYTES + min(CHUNK_BYTES, max(largest + 1, 1 << 20)))
        notes: list[LogSource] = []
        done = 0
        for index, (path, stream, size) in enumerate(sources):
            handler = FileHandler(reading, index, frames[index])

            def report(bytes_of_file: int, before: int = done) -> None:
                if progress is not None:
                    progress(min(before + bytes_of_file, total), total)

            try:
                scanned = scan(stream, self._events, handler, buffer, report)
                notes.append(LogSource(path, size, scanned.bytes_read, scanned.note))
            except (OSError, ValueError) as error:
                notes.append(LogSource(path, size, handler.read_to, f"could not be read to its end: {error}"))
            handler.finish()
            done += size
        return log_story.tell(reading, notes, job)

    def _frames(self, sources: Sequence[tuple[str, BinaryIO, int]], job: JobRecord | None) -> tuple[FileFrame, ...]:
        nodes = job.nodes if job else ()
        frames = [frame_of_file(path, (), nodes) for path, _, _ in sources]
        return frames_of_family([path for path, _, _ in sources], frames, job.num_tasks if job else None)


def _year(job: JobRecord | None) -> int | None:
    moment = (job.start_time_s or job.submit_time_s) if job else None
    return datetime.fromtimestamp(moment, tz=UTC).year if moment else None
