"""Launcher logs into one story: which rank failed first and what it said, who followed, and how far the job came."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO

from runbook.evidence import log_story
from runbook.evidence.error_file import NOTE, opened_error_file
from runbook.evidence.framing import FileFrame, site_prefixes
from runbook.evidence.framing_files import frame_of_file, frames_of_family
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
        prefixes: Sequence[str] = (),
    ) -> LogStory:
        """One pass over (path, stream, size in bytes) each; `.gz` is unpacked on the way. The caller opens and closes.

        `prefixes` are a site's own: regular expressions with groups named rank, local_rank, node or pid, for what its
        launcher puts in front of a line. Raises ValueError in words for one that is none.
        `progress` gets bytes done and bytes in all. A stream that breaks off is a note of its source, not an error."""
        total = sum(size for _, _, size in sources)
        reading = Reading(self._signatures, self._events, self._progress, _started_s(job), job.nodes if job else ())
        frames = self._frames(sources, job, site_prefixes(prefixes))
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
                error_file = opened_error_file(path, stream)
                if error_file is None:
                    scanned = scan(stream, self._events, handler, buffer, report)
                    notes.append(LogSource(path, size, scanned.bytes_read, scanned.note))
                else:
                    converted = replace(frames[index], time_s=error_file.time_s, converted=True)
                    handler = FileHandler(reading, index, converted)
                    scan(error_file.stream(), self._events, handler, buffer)
                    notes.append(LogSource(path, size, size, NOTE))
            except (OSError, ValueError) as error:
                notes.append(LogSource(path, size, handler.read_to, f"could not be read to its end: {error}"))
            handler.finish()
            done += size
        reading.tables.settle()
        return log_story.tell(reading, notes, job)

    def _frames(
        self, sources: Sequence[tuple[str, BinaryIO, int]], job: JobRecord | None,
        prefixes: tuple[re.Pattern[str], ...],
    ) -> tuple[FileFrame, ...]:
        nodes = job.nodes if job else ()
        frames = [replace(frame_of_file(path, nodes), prefixes=prefixes) for path, _, _ in sources]
        return frames_of_family([path for path, _, _ in sources], frames, job)


def _started_s(job: JobRecord | None) -> float | None:
    return (job.start_time_s or job.submit_time_s) if job else None
