"""Launcher logs into one story: which rank failed first and what it said, who followed, and how far the job came."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO

from runbook.evidence import log_story
from runbook.evidence.framing_files import frame_of_file, frames_of_family
from runbook.evidence.framing_prefixes import site_prefixes
from runbook.evidence.framing_values import FileFrame
from runbook.evidence.log_crew import Crew
from runbook.evidence.log_lines import with_lines
from runbook.evidence.log_pass import Pass, Sources
from runbook.evidence.log_reading import Reading
from runbook.evidence.log_search import Search
from runbook.evidence.log_tails import Tails, tails, worth_it
from runbook.evidence.signatures import Signatures
from runbook.model.job import JobRecord
from runbook.model.log import LogStory

THREADS = 2
_TIE_S = 1.0


class LogReader:
    """Reads the logs of one job. Made once for a set of signatures, used for any number of jobs."""

    def __init__(self, signatures: Signatures, *, engine: str | None = None) -> None:
        """`engine` names the library that searches ("hyperscan", "automata"); None is the fastest that is there."""
        self._signatures = signatures
        steps = [literal for one in signatures.progress for literal in one.literals]
        self._events = Search((literal for one in signatures.events for literal in one.literals), steps, engine)
        self._progress = Search(steps, (), engine)

    def read(
        self,
        sources: Sequence[tuple[str, BinaryIO, int]],
        *,
        job: JobRecord | None = None,
        progress: Callable[[int, int], None] | None = None,
        threads: int = THREADS,
        tail_first: bool | None = None,
        prefixes: Sequence[str] = (),
    ) -> LogStory:
        """(path, stream, size in bytes) each; `.gz` and `.zst` are unpacked on the way. The caller opens and closes.

        Plain files are read by `threads` threads that search ahead. `tail_first` reads of many large files only the
        ends, as far back as the story needs (None: where the set is large enough for it); the notes of the sources
        say what was not read. `prefixes` are a site's own: regular expressions with groups named rank, local_rank,
        node or pid, for what its launcher puts in front of a line; ValueError in words for one that is none.
        `progress` gets bytes done and bytes in all. A stream that breaks off is a note of its source, not an error."""
        given = Sources.of(sources, self._frames(sources, job, site_prefixes(prefixes)))
        crew = Crew(self._events, threads if given.total_bytes > (1 << 20) else 1)

        def fresh() -> Reading:
            return Reading(self._signatures, self._events, self._progress, _started_s(job), job.nodes if job else ())

        def told(plan: Tails) -> tuple[LogStory, Pass]:
            one = Pass(given, fresh(), crew, plan.starts, progress, plan.twins)
            one.run()
            one.reading.tables.settle()
            return log_story.tell(one.reading, one.notes, job), one

        sizes = [size for _, size in given.plain.values()]
        if tail_first or (tail_first is None and worth_it(sizes)):
            plan = tails(given.plain, given.frames, crew, fresh())
            story = self._from_ends(plan, given, told) if plan is not None and plan.starts else None
            if story is not None:
                return with_lines(story, given)
        return with_lines(told(Tails({}))[0], given)

    def _from_ends(
        self, plan: Tails, given: Sources, told: Callable[[Tails], tuple[LogStory, Pass]]
    ) -> LogStory | None:
        """The story by the files' ends, or None where it needs all of them."""
        index_of = {path: index for index, path in enumerate(given.paths)}
        for _ in range(3):
            story, one = told(plan)
            root = story.root_cause
            if root is None or one.restarted:
                return None  # only all of the logs can tell, or attempts have to be counted through all of them
            known = self._signatures.by_id.get(root.signature)
            if known is None or known.weak or known.late:
                return None
            if root.time_s is not None and any(
                index in plan.starts and stamp_s >= root.time_s for index, stamp_s in plan.healthy_s.items()
            ):
                return None
            tied = [
                each.file for each in story.candidates[:8]
                if root.time_s is None or each.time_s is None or abs(each.time_s - root.time_s) < _TIE_S
            ]
            wanted = {index_of[path] for path in (root.file, *tied)} & plan.starts.keys()
            if index_of[root.file] not in wanted:
                return replace(story, notes=(*story.notes, _said(plan, given)))
            plan = replace(plan, starts={
                index: start for index, start in plan.starts.items() if index not in wanted
            })
        return None

    def _frames(
        self, sources: Sequence[tuple[str, BinaryIO, int]], job: JobRecord | None,
        prefixes: tuple[re.Pattern[str], ...],
    ) -> tuple[FileFrame, ...]:
        nodes = job.nodes if job else ()
        frames = [replace(frame_of_file(path, nodes), prefixes=prefixes) for path, _, _ in sources]
        return frames_of_family([path for path, _, _ in sources], frames, job)


def _said(plan: Tails, given: Sources) -> str:
    left_out = sum(plan.starts.values())
    return (
        f"Of {len(plan.starts)} of {len(given.paths)} files only the beginning and the end were read "
        f"({left_out >> 20} MiB left out), back to a completed step or a time before the first failure."
    )


def _started_s(job: JobRecord | None) -> float | None:
    return (job.start_time_s or job.submit_time_s) if job else None
