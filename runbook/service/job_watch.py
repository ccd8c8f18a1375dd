"""The watch: running jobs' logs are followed; of one that wrote of a memory failure the nodes are asked which ranks
live; one of which a rank is gone while the others wait is told of in the spool, as an alert would be. What becomes of
it the flow decides, which reads the logs as a whole.

Slurm knows nothing of a rank that died while the others wait in a collective: it hears of it with NCCL's timeout or the
job's time limit. The watch does no act and judges no failure: it says which job to look at.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from runbook.adapters.log_watch import LogFollowers, Suspicion
from runbook.adapters.metrics import WatchFigures
from runbook.config import WatchDocument
from runbook.errors import NotAllowed, NotFound, RunbookError, Unavailable
from runbook.logs.signatures import Signatures
from runbook.logs.signatures.signature import NO_KINDS
from runbook.model.job import JobClass, JobRecord
from runbook.model.units import JobId, NodeName, Unknown, UserName
from runbook.ports import Clock, Nodes, Scheduler
from runbook.report.vocabulary.clean import clean_line, shorten
from runbook.service.spool import WATCH, SpoolEvent, alert_file
from runbook.steps.shared.ranks import RanksSeen, see_ranks

LOG = logging.getLogger("runbook.watch")
ALERT = "memory-failure-and-a-rank-gone"
"""What an event of the watch is called where an alert has its name."""
_ASKED_AT_A_TIME = 4
_ASKED_FOR_S = 0.5
"""So long a round waits for what is asked of jobs; what comes later the next one takes."""
_NEW_A_ROUND = 20
"""Jobs that are asked for one by one in a round; after a restart all are new."""
_LEAST_BETWEEN_LISTS_S = 1.0
"""Rounds may be a tenth of that apart."""
_TELL_AGAIN_S = 1800.0
CONFIRMED_S = 2.0
"""The same rank has to be missing in two looks that begin so far apart."""
_LEAST_PAUSE_S = 0.1
"""Between two rounds, however much is told."""
_FIRST_PAUSE_S = 6.0
_LONGEST_PAUSE_S = 300.0
_LOOKS_AT_A_TIME = 8
_LOOKS_OF_ONE = _LOOKS_AT_A_TIME // 2
"""At jobs of one owner."""
_FIRST_LOOKS = _LOOKS_AT_A_TIME // 2
_FIRST_LOOKS_OF_ONE = _FIRST_LOOKS // 2
"""At a job before its log tells of anything: most places are for those of which it does."""
_LONGEST_FIRST_PAUSE_S = 3600.0
_LOOKS_AFTER = 4
"""At a job that went on writing: its ranks may wait and print all the same, and a process may take its time to end."""
_STEPS_BEGUN_S = 60.0
_SHORTEST_WORD = 6


def memory_words(signatures: Signatures) -> frozenset[str]:
    """What lines that tell of a memory failure by themselves hold, by the signature documents."""
    return frozenset(
        word for each in signatures.all
        if each.means not in NO_KINDS and each.means.entry.died.of_memory and not each.weak
        for word in each.literals if len(word) >= _SHORTEST_WORD
    )


def memory_pattern(signatures: Signatures) -> re.Pattern[bytes]:
    """Any of `memory_words`."""
    return re.compile(b"|".join(re.escape(word.encode()) for word in sorted(memory_words(signatures))))


def is_watched(job: JobRecord, rule: WatchDocument) -> bool:
    """Whether the inventory takes a running job in. The partition and the account are Slurm's word; the comment is the
    owner's, who asks for his own job."""
    if job.state.job_class is not JobClass.ACTIVE:
        return False
    return (
        job.partition in rule.partitions
        or job.account in rule.accounts
        or (bool(rule.opt_in) and rule.opt_in in job.comment.replace(",", " ").split())
    )


def in_turn(jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """One of each owner after the other, each owner's in their order: who has many jobs keeps nobody waiting."""
    counted: Counter[UserName] = Counter()
    turns = []
    for job in jobs:
        turns.append((counted[job.owner], job))
        counted[job.owner] += 1
    turns.sort(key=lambda each: each[0])
    return [job for _, job in turns]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the scheduler said of a job that is followed."""

    owner: UserName
    submitted_s: float | None
    """Tells a number that was given out again."""
    paths: bytes
    """A hash of them: they may have megabytes, and who follows them has them."""
    again_s: float | None
    """When it is asked once more, by the clock that only goes on; None: not any more."""


@dataclass
class _Suspect:
    """A job whose nodes are asked which of its ranks live."""

    why: Suspicion
    due_s: float
    pause_s: float = _FIRST_PAUSE_S
    before: RanksSeen | None = None
    look: Future[RanksSeen | Unknown] | None = None
    looked_s: float = 0.0
    looks_left: int | None = None
    """Of a job that went on writing since: looks until it is forgotten. A step or a heartbeat: it is not known."""
    unknown: str = ""


@dataclass
class _FirstLook:
    """At a job of which not every rank was seen alive yet: what was never there is not gone later."""

    due_s: float
    pause_s: float = _FIRST_PAUSE_S
    look: Future[RanksSeen | Unknown] | None = None


@dataclass
class JobWatch:
    """Runs in a thread of its own until `stop`. It never raises, and its problems stand in `problem`."""

    rule: WatchDocument
    running: Callable[[], Iterable[JobRecord | Unknown]]
    """The jobs that run. Unknown: the list is not whole."""
    scheduler: Scheduler
    nodes: Nodes
    followers: LogFollowers
    leave: Callable[[SpoolEvent], object]
    """Puts an event into the spool, durably."""
    cluster: str
    playbook: str
    clock: Clock
    round_s: float = 1.0
    problem: str = ""
    figures: WatchFigures = field(default_factory=WatchFigures)
    _followed: dict[JobId, _Asked] = field(default_factory=dict, init=False)
    _told_s: dict[JobId, float] = field(default_factory=dict, init=False)
    _refused: dict[JobId, float] = field(default_factory=dict, init=False)
    """When each may be asked about again."""
    """Whose logs cannot be followed: said once."""
    _suspects: dict[JobId, _Suspect] = field(default_factory=dict, init=False)
    _first: dict[JobId, _FirstLook] = field(default_factory=dict, init=False)
    _whole: dict[JobId, int] = field(default_factory=dict, init=False)
    """Jobs of which every rank was seen alive, and how many ranks that were."""
    _looks: ThreadPoolExecutor = field(init=False, repr=False)
    _asking: dict[JobId, tuple[JobRecord, Future[tuple[JobRecord, bytes]]]] = field(default_factory=dict, init=False)
    """Jobs that are being asked for, as the list had them: the answer may be long and slow by its owner's doing."""
    _asks: ThreadPoolExecutor = field(init=False, repr=False)
    _listed_s: float | None = field(default=None, init=False)
    _listing: str = field(default="", init=False)
    """What was wrong with the last list of running jobs."""
    _stop: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def __post_init__(self) -> None:
        self._looks = ThreadPoolExecutor(_LOOKS_AT_A_TIME, thread_name_prefix="watch-nodes")
        self._asks = ThreadPoolExecutor(_ASKED_AT_A_TIME, thread_name_prefix="watch-jobs")

    def run(self) -> None:
        """Until `stop` is called."""
        try:
            while not self._stop.is_set():
                self.round()
                self._pause()
        finally:
            self._looks.shutdown(wait=False, cancel_futures=True)
            self._asks.shutdown(wait=False, cancel_futures=True)
            self.followers.close()

    def stop(self) -> None:
        self._stop.set()
        self.followers.woken.set()

    def _pause(self) -> None:
        """Until something is told, a look has ended or one is due; a round's time at most."""
        now_s = self.clock.elapsed()
        due_s = (one.due_s - now_s for one in self._suspects.values() if one.look is None and one.due_s > now_s)
        self._stop.wait(_LEAST_PAUSE_S)
        if self.followers.woken.wait(max(min((self.round_s, *due_s)) - _LEAST_PAUSE_S, 0.0)):
            self.followers.woken.clear()

    def round(self) -> None:
        """One look at what the followers told, and at times at which jobs run."""
        well = False
        try:
            now_s = self.clock.elapsed()
            problem = self._listing
            if self._listed_s is None or now_s - self._listed_s >= self.rule.list_s:
                problem = self._listing = self._list(now_s)
            self._answers(now_s)
            for one in self.followers.look():
                suspect = self._suspects.get(one.job)
                if suspect is not None:
                    suspect.looks_left = None if one.line else _LOOKS_AFTER
                elif one.line:
                    self._suspects[one.job] = _Suspect(one, now_s)
            for job, suspect in list(self._suspects.items()):
                try:
                    self._follow_up(job, suspect, now_s)
                except RunbookError:
                    raise
                except Exception:
                    # What one job shows keeps no other from being told of, and is not asked for again at once.
                    LOG.exception("the watch over job %s", job)
                    suspect.unknown = "a fault of this program; its log has it"
                    suspect.before, suspect.due_s = None, now_s + _LONGEST_PAUSE_S
            for job, first in list(self._first.items()):
                self._look_first(job, first, now_s)
            unknown = [f"job {job}: {one.unknown}" for job, one in self._suspects.items() if one.unknown]
            problem = problem or (f"which ranks live is not known: {unknown[0]}" if unknown else "")
            # What one owner's logs take too much of is said, and is no reason to mend the watch.
            well = not problem
            self._trouble(problem or self.followers.problem())
        except RunbookError as error:
            self._trouble(error.what)
        except Exception as error:
            LOG.exception("the watch")
            self._trouble(f"a fault of this program: {type(error).__name__}")
        self.figures = replace(self.followers.figures(), ok=well)

    def _trouble(self, what: str) -> None:
        if what and what != self.problem:
            LOG.warning("the watch: %s", what)
        self.problem = what

    def _list(self, now_s: float) -> str:
        """Which jobs run now. Returns what is wrong; the next look is soon where some are still to be asked for."""
        listed = list(self.running())
        unknown = [one.unknown for one in listed if isinstance(one, Unknown)]
        running = {job.id: job for job in listed if isinstance(job, JobRecord) and is_watched(job, self.rule)}
        kept = self._still_running(running) if unknown else ()
        self._refused = {
            job: again_s for job, again_s in self._refused.items() if job in running and now_s < again_s
        }
        wanted = [job for job in running.values() if job.id not in self._refused]
        wanted.sort(key=lambda job: job.id not in self._followed)
        chosen = {job.id: job for job in in_turn(wanted)[: self.rule.most_jobs]}
        for gone in [job for job, asked in self._followed.items() if job not in kept
                     and (job not in chosen or chosen[job].submit_time_s != asked.submitted_s)]:
            self._follow_anew(self.followers.forget(gone), now_s)
            for of_job in (self._suspects, self._first, self._whole):
                of_job.pop(gone, None)
            del self._followed[gone]
        self._told_s = {job: told_s for job, told_s in self._told_s.items() if job in running or job in kept}
        new = [job for job in chosen.values() if job.id not in self._followed]
        young = [chosen[job] for job, asked in self._followed.items() if asked.again_s is not None
                 and now_s >= asked.again_s and job not in kept]
        due = in_turn(job for job in (*new, *young) if job.id not in self._asking)
        for job in due[: max(_NEW_A_ROUND - len(self._asking), 0)]:
            self._asking[job.id] = job, self._asks.submit(self._whole_of, job.id)
        wait((answer for _, answer in self._asking.values()), timeout=_ASKED_FOR_S)
        # As long ago as lets the next be in a moment.
        more = len(due) > _NEW_A_ROUND
        self._listed_s = now_s - max(self.rule.list_s - _LEAST_BETWEEN_LISTS_S, 0.0) if more else now_s
        if left := len(wanted) - len(chosen):
            unknown.append(f"{left} running jobs are not watched: watch.most_jobs is {self.rule.most_jobs}")
        return "; ".join(unknown)

    def _follow_anew(self, cut: Iterable[JobId], now_s: float) -> None:
        """They are asked for once more: nobody has kept the paths for which there was no room."""
        for job in cut:
            if (asked := self._followed.get(job)) is not None:
                again_s = now_s if asked.again_s is None else asked.again_s
                self._followed[job] = replace(asked, paths=b"", again_s=again_s)

    def _still_running(self, listed: Container[JobId]) -> frozenset[JobId]:
        """Those followed jobs that a list which is not whole lacks, without the ones of which Slurm says by themselves
        that they do not run: it is asked for some of them a time, in turn."""
        missing = [job for job in self._followed if job not in listed]
        ended = set()
        for job in missing[:_NEW_A_ROUND]:
            self._followed[job] = self._followed.pop(job)
            try:
                if self.scheduler.job(job).state.job_class is not JobClass.ACTIVE:
                    ended.add(job)
            except NotFound:
                ended.add(job)
            except Unavailable:
                break
            except RunbookError:
                continue
        return frozenset(missing) - ended

    def _whole_of(self, job: JobId) -> tuple[JobRecord, bytes]:
        whole = self.scheduler.job(job)
        names = hashlib.blake2b(digest_size=16)
        for path in whole.log_paths:
            names.update(path.encode("utf-8", "surrogateescape") + b"\0")
        return whole, names.digest()

    def _answers(self, now_s: float) -> None:
        """What was told of jobs that were asked for."""
        for name, (job, answer) in list(self._asking.items()):
            if answer.done():
                del self._asking[name]
                self._follow(job, answer, now_s)

    def _follow(self, job: JobRecord, answer: Future[tuple[JobRecord, bytes]], now_s: float) -> None:
        """All of its logs, as far as they are known: those of its steps' tasks are when the steps have begun, so that a
        young job is asked for once more."""
        before = self._followed.get(job.id)
        try:
            whole, names = answer.result()
            if whole.log_paths and (before is None or before.paths != names):
                self.followers.follow(job.id, whole.owner, whole.log_paths)
            if before is None:
                self._first[job.id] = _FirstLook(now_s)
            again_s = now_s + _STEPS_BEGUN_S if before is None else None
            self._followed[job.id] = _Asked(whole.owner, job.submit_time_s, names, again_s)
        except RunbookError as error:
            again_s = math.inf if isinstance(error, NotAllowed) else now_s + _STEPS_BEGUN_S
            if before is not None and not isinstance(error, NotAllowed):
                self._followed[job.id] = replace(before, again_s=again_s)
                return
            self._refused[job.id] = again_s
            LOG.warning("job %s is not watched: %s", job.id, error.what)

    def _follow_up(self, job: JobId, suspect: _Suspect, now_s: float) -> None:
        """One more look, or what the last one showed."""
        told_s = self._told_s.get(job)
        if suspect.look is None:
            due = now_s >= suspect.due_s and (told_s is None or now_s - told_s > _TELL_AGAIN_S)
            if due and self._looks_of(job, self._suspects) < _LOOKS_OF_ONE:
                suspect.look, suspect.looked_s = self._looks.submit(self._ranks_of, job), now_s
                suspect.look.add_done_callback(lambda _look: self.followers.woken.set())
            return
        if not suspect.look.done():
            return
        look, suspect.look = suspect.look, None
        seen = look.result()
        suspect.unknown = seen.unknown if isinstance(seen, Unknown) else ""
        if isinstance(seen, RanksSeen) and seen.gone_of(self._whole.get(job)):
            if suspect.before is not None and seen.goes_on_missing(suspect.before):
                self._tell(job, suspect, seen, now_s)
            suspect.before, suspect.due_s = seen, max(now_s, suspect.looked_s + CONFIRMED_S)
            return
        if isinstance(seen, RanksSeen) and seen.missing:
            suspect.unknown = (
                f"{len(seen.missing)} of its {seen.world} ranks show no process, and were not seen alive before"
            )
        self._remember(job, seen)
        if suspect.looks_left is not None:
            suspect.looks_left -= 1
            if suspect.looks_left <= 0:
                del self._suspects[job]
                return
        suspect.before, suspect.due_s = None, now_s + suspect.pause_s
        suspect.pause_s = min(2 * suspect.pause_s, _LONGEST_PAUSE_S)

    def _look_first(self, job: JobId, first: _FirstLook, now_s: float) -> None:
        """At a job of which nothing is told yet, until all of its ranks were seen alive."""
        if first.look is None:
            at_work = sum(one.look is not None for one in self._first.values())
            free = at_work < _FIRST_LOOKS and self._looks_of(job, self._first) < _FIRST_LOOKS_OF_ONE
            if now_s >= first.due_s and free and job not in self._suspects:
                first.look = self._looks.submit(self._ranks_of, job)
            return
        if first.look.done():
            look, first.look, first.due_s = first.look, None, now_s + first.pause_s
            first.pause_s = min(2 * first.pause_s, _LONGEST_FIRST_PAUSE_S)
            if error := look.exception():
                LOG.error("the first look at job %s", job, exc_info=error)
                return
            self._remember(job, look.result())

    def _remember(self, job: JobId, seen: RanksSeen | Unknown) -> None:
        if isinstance(seen, RanksSeen) and not seen.missing:
            self._whole[job] = seen.world
            self._first.pop(job, None)

    def _looks_of(self, job: JobId, looks: Mapping[JobId, _Suspect | _FirstLook]) -> int:
        """How many of these looks, at jobs of the same owner, are at work or wait."""
        asked = self._followed.get(job)
        return 0 if asked is None else sum(
            one.look is not None and self._followed[other].owner == asked.owner
            for other, one in looks.items() if other in self._followed
        )

    def _ranks_of(self, job: JobId) -> RanksSeen | Unknown:
        try:
            return see_ranks(self.nodes, self.scheduler.job(job))
        except RunbookError as error:
            return Unknown(error.what)

    def _tell(self, job: JobId, suspect: _Suspect, seen: RanksSeen, now_s: float) -> None:
        self.leave(self._event(job))
        self._told_s[job] = now_s
        LOG.warning(
            "job %s: its log tells of a memory failure, and of its %d ranks %s is gone while others wait: %s",
            job, seen.world, ", ".join(map(str, seen.missing[:8])), shorten(clean_line(suspect.why.line), 200),
        )

    def _event(self, job: JobId) -> SpoolEvent:
        time_s = float(f"{self.clock.now():.0f}")
        asked = self._followed.get(job)
        run = f"{self.cluster} {job} {asked.submitted_s if asked else None}"
        return SpoolEvent(
            file=alert_file(self.cluster, hashlib.sha256(run.encode()).hexdigest()[:16], time_s),
            cluster=self.cluster[:40], job=job, raw_job_id=job, restart_count=0, time_s=time_s,
            trigger=WATCH, alert=ALERT, node=NodeName(""), playbook=self.playbook,
        )


