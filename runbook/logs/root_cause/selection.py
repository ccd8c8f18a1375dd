"""Which failure came first, and which lines are no failure at all. The reasons are said in notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runbook.logs.collect import TEARDOWN_CODES, Collection, LogMatch, RankLocations
from runbook.logs.root_cause import secondary_failures, suspects
from runbook.logs.root_cause.evidence import LogEvidence
from runbook.logs.root_cause.failure_order import Orderer, skew
from runbook.logs.root_cause.suspects import Kill, Suspect
from runbook.logs.signatures import ABSURD_BYTES, CONSEQUENCE, HARMLESS
from runbook.model.diagnosis import Detail, Died, Kind, LogReading
from runbook.model.job import JobRecord
from runbook.model.log import DerivedSignature, Event
from runbook.model.sentences import NOTHING, Sentence
from runbook.model.sentences.of_logs import Say


@dataclass(frozen=True, slots=True)
class RootCause:
    """The first failure, the others that could be first, and the failures that were handled."""

    root: LogMatch | None
    candidates: tuple[LogMatch, ...] = ()
    fallout: tuple[LogMatch, ...] = ()
    """Failures that others brought about; candidates where nothing better is known."""
    handled: tuple[LogMatch, ...] = ()
    notes: tuple[Sentence, ...] = ()
    kills: tuple[Kill, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    """Where no line tells the first failure: ranks to look at."""


def meaning(seen: LogMatch) -> Kind:
    """What a match means in its place: an absurd size is no shortage (R-13)."""
    tried = seen.match.integer("tried_bytes")
    if seen.means.entry.by_figures and tried is not None and tried >= ABSURD_BYTES:
        return seen.match.signature.kinds.read_from(LogReading.ABSURD_SIZE)
    return seen.means


def select_root_cause(evidence: LogEvidence) -> RootCause:
    """Pick the first failure of the last attempt that has one."""
    failures = [
        one for one in evidence.matches if meaning(one) not in (CONSEQUENCE, HARMLESS)
        and (Event.OWN_STATUS not in one.reports or _left_as_said(one, evidence))
        and not _of_another_day(one, evidence)
    ]
    kills = suspects.kills(evidence.matches, evidence.where)
    failures = _without_last_words(failures, evidence)
    handled, notes = _handled(failures, evidence)
    failures = _others(failures, handled)
    fallout = secondary_failures.secondary_failures(failures, evidence.matches, evidence.where)
    notes += fallout.notes
    causes = {id(one) for one in fallout.causes}
    kept, cascade = _without_cascade(fallout.kept, evidence.collection)
    notes += cascade
    strong = [one for one in kept if not one.match.signature.weak or id(one) in causes]
    weak = _others(kept, strong)
    pool, note = _last_attempt(strong, evidence.last_attempt)
    if not pool or (note and any(one.attempt == evidence.last_attempt for one in kept)):
        later, later_note = _last_attempt(weak, evidence.last_attempt)
        if not pool or not later_note:
            pool, note = (later, later_note) if later else (pool, note)
    pool, helpers, helped = _without_helpers(pool, weak, kills, evidence.where)
    notes += helped
    if not pool and (by_accounting := _killed_for_memory(kills, evidence.job)) is not None:
        notes.append(Say.ACCOUNTING_SAYS_OUT_OF_MEMORY())
        pool, note = [by_accounting], NOTHING
    if not pool:
        nobody = _nobody(evidence, kills, may_follow=not fallout.dropped)
        return replace(nobody, fallout=fallout.dropped, handled=tuple(handled), notes=(*notes, *nobody.notes))
    notes += [note] if note else []
    ordered, said = _in_order(pool, kills, evidence)
    notes += said
    ordered, said = _hardware_first(ordered, evidence.where)
    notes += said
    root = ordered[0]
    notes += _absurd(root)
    company = _one_a_rank([*ordered[1:], *helpers], evidence.where, evidence.where.rank(root))
    return RootCause(root, tuple(company), fallout.dropped, tuple(handled), tuple(notes), tuple(kills))


def _of_another_day(one: LogMatch, evidence: LogEvidence) -> bool:
    """Whether a kernel's line is older than the job: a script that prints the kernel's log prints what is left in it.

    The stamp has no time zone, so a day is what tells for sure."""
    job = evidence.job
    started_s = job.start_time_s if job is not None and job.start_time_s is not None else evidence.collection.started_s
    return (
        Event.KERNEL_XID in one.reports and one.time_exact and one.time_s is not None and started_s is not None
        and one.time_s < started_s - 86_400
    )


def _left_as_said(one: LogMatch, evidence: LogEvidence) -> bool:
    """Whether a launcher reports, behind the program's own word, the very status that it said."""
    code = one.match.integer("exit_code")
    if code is None or code == 0 or code in TEARDOWN_CODES:
        return False
    reported = [(row.file, row.offset) for row in evidence.where.rows if row.exit_code == code]
    reported += [(other.file, other.offset) for other in evidence.matches
                 if other.means == CONSEQUENCE and other.match.integer("exit_code") == code]
    return any(file != one.file or offset > one.offset for file, offset in reported)


def _without_last_words(failures: Sequence[LogMatch], evidence: LogEvidence) -> list[LogMatch]:
    """The failures without errors that a program reports at its end, unless these are all there is: where another
    failure speaks, or something that followed from one, they are part of its end. An exit code says no more."""
    last = [one for one in failures if Event.LAST_WORD in one.reports]
    others = _others(failures, last)
    followed = any(
        one.means == CONSEQUENCE and (one.match.integer("exit_code") in (None, *TEARDOWN_CODES))
        for one in evidence.matches
    )
    return others if others or followed else last[-1:]


def _handled(failures: Sequence[LogMatch], evidence: LogEvidence) -> tuple[list[LogMatch], list[Sentence]]:
    notes: list[Sentence] = []
    last = secondary_failures.last_failures(failures)
    handled = [one for one in failures if secondary_failures.was_handled(one, last, evidence)]
    if any(Event.PROBES not in one.reports for one in _others(failures, handled)):
        handled += [one for one in _others(failures, handled) if Event.PROBES in one.reports]
    if handled and len(handled) == len(failures):
        died, why = secondary_failures.died_with(handled, evidence)
        if not died:
            died, why = secondary_failures.perhaps_quoted(handled, evidence)
        if died:
            notes.append(why)
            handled = _others(handled, died)
    quoted = [one for one in handled if one.quoted]
    if quoted:
        kinds = ", ".join(sorted({one.match.signature.id for one in quoted}))
        notes.append(Say.WORDS_MAY_BE_QUOTED(kinds=kinds))
    survived = _others(handled, quoted)
    if survived:
        notes.append(_handled_note(survived, evidence))
    return handled, notes


def _handled_note(handled: Sequence[LogMatch], evidence: LogEvidence) -> Sentence:
    kinds = ", ".join(sorted({one.match.signature.id for one in handled}))
    reason = (
        Say.JOB_ENDED_WELL() if evidence.succeeded
        else Say.JOB_WENT_ON_BEHIND_IT() if len(handled) == 1
        else Say.JOB_WENT_ON_BEHIND_THEM()
    )
    return Say.DID_NOT_END_THE_JOB(handled=len(handled), s="s" if len(handled) != 1 else "", kinds=kinds, reason=reason)


def _without_cascade(failures: Sequence[LogMatch], collection: Collection) -> tuple[list[LogMatch], list[Sentence]]:
    """A restart that fails while starting, and not of memory, follows from what it restarted after (an address still in
    use, a peer that is gone): the attempt before holds the first cause."""
    newest = max((one.attempt for one in failures), default=0)
    last = [one for one in failures if one.attempt == newest]
    before = [one for one in failures if one.attempt < newest and meaning(one).entry.died is not Died.PROGRAM]
    if not before or any(meaning(one).entry.died is not Died.PROGRAM for one in last):
        return list(failures), []
    if collection.progress.last_step(newest) is not None:
        return list(failures), []
    return [one for one in failures if one.attempt < newest], [
        Say.LAST_ATTEMPT_FAILED_AT_START(id=last[0].match.signature.id)
    ]


def _last_attempt(failures: Sequence[LogMatch], last: int) -> tuple[list[LogMatch], Sentence]:
    """The failures of the last attempt that has any; earlier attempts are said to exist."""
    if not failures:
        return [], NOTHING
    newest = max(one.attempt for one in failures)
    pool = [one for one in failures if one.attempt == newest]
    earlier = len({one.attempt for one in failures}) - 1
    if newest < last:
        return pool, Say.FROM_EARLIER_ATTEMPT()
    if earlier:
        return pool, Say.EARLIER_ATTEMPTS_FAILED()
    return pool, NOTHING


def _without_helpers(
    pool: Sequence[LogMatch], weak: Sequence[LogMatch], kills: Sequence[Kill], where: RankLocations
) -> tuple[list[LogMatch], list[LogMatch], list[Sentence]]:
    """An OOM kill in the step's cgroup may have hit a helper (R-24): where no rank died by SIGKILL and a process says
    itself what ended it, the report does not lead."""
    late = [one for one in pool if one.match.signature.late and Event.OWN_TASK not in one.reports]
    prompt = _others(pool, late)
    if not late or prompt or kills or any(where.rank(one) is not None for one in late):
        return list(pool), [], []
    spoken = [one for one in weak if one.raised and one.attempt == late[0].attempt]
    if not spoken:
        return list(pool), [], []
    return spoken, late, [Say.OOM_KILL_MAY_BE_A_HELPER(id=late[0].match.signature.id)]


def _killed_for_memory(kills: Sequence[Kill], job: JobRecord | None) -> LogMatch | None:
    """The line that reports a kill, as a failure of host memory, where Slurm's accounting has the kernel's word for it
    (R-22)."""
    states = {job.state.name, *(step.state.name for step in job.steps)} if job is not None else set()
    reported = next((kill.seen for kill in kills if kill.seen is not None), None)
    if "OUT_OF_MEMORY" not in states or reported is None:
        return None
    signature = reported.match.signature
    killed = signature.kinds.read_from(LogReading.KILLED_FOR_MEMORY)
    signature = replace(signature, means=killed, detail=Detail.CGROUP)
    return replace(reported, match=replace(reported.match, signature=signature))


def _nobody(evidence: LogEvidence, kills: Sequence[Kill], *, may_follow: bool) -> RootCause:
    """No line tells the first failure: who is worth looking at. `may_follow`: nothing better than the first consequence
    is known for a candidate."""
    notes: list[Sentence] = []
    followers = [one for one in evidence.matches if meaning(one) == CONSEQUENCE]
    found: list[Suspect] = []
    words: list[Sentence] = []
    if followers or kills or evidence.where.rows:
        found, words = suspects.suspects(evidence, kills)
    if followers:
        notes.append(Say.ONLY_CONSEQUENCES())
    named = any(one.signature is not DerivedSignature.RANK_SPOKE for one in found)
    candidates = followers[:1] if may_follow and not named else []
    return RootCause(None, tuple(candidates), notes=(*notes, *words), kills=tuple(kills), suspects=tuple(found))


def _in_order(
    pool: Sequence[LogMatch], kills: Sequence[Kill], evidence: LogEvidence
) -> tuple[list[LogMatch], list[Sentence]]:
    """First failure first. Slurm's and the kernel's reports come after what they report, so they do not lead where a
    process speaks for itself; unless the tables say that a rank had been killed more than a second before that."""
    where = evidence.where
    prompt = [one for one in pool if not one.match.signature.late]
    late = sorted(
        (one for one in pool if one.match.signature.late),
        key=lambda one: ("tasks" not in one.match.values, where.rank(one) is None, one.file, one.offset),
    )
    if not prompt:
        return late, []
    paths = [source.path for source in evidence.sources]
    orderer = Orderer(where, skew(evidence.collection.clocks, evidence.matches, where), paths)
    firsts = _one_a_rank(prompt, where, None)
    ordered = orderer.order(firsts)
    notes = list(ordered.notes)
    rest = _others(prompt, firsts)
    if late and kills:
        first, killed = orderer.stamp(ordered.failures[0]), kills[0]
        if first is not None and killed.time_s is not None and killed.time_s + 1.0 < first:
            notes.append(Say.VICTIM_ENDED_BEFORE(first=first - killed.time_s))
            return [*late, *ordered.failures, *rest], notes
        named = {where.rank(one) for one in prompt}
        if killed.rank is not None and killed.rank not in named:
            notes.append(Say.RANK_KILLED_TOO(rank=killed.rank))
    return [*ordered.failures, *rest, *late], notes


def _hardware_first(ordered: Sequence[LogMatch], where: RankLocations) -> tuple[list[LogMatch], list[Sentence]]:
    """The kernel's word that a card failed settles what a program's exception left open, wherever the two stand: which
    of them reaches the log first is chance. It names no rank, so it takes the one whose CUDA call failed."""
    kernel = next((
        one for one in ordered if Event.KERNEL_XID in one.reports and one.means.entry.died is Died.GPU
        and not one.match.signature.weak
    ), None)
    if kernel is None or (kernel is not ordered[0] and meaning(ordered[0]).entry.died is not Died.PROGRAM):
        return list(ordered), []
    short = next((one for one in ordered if meaning(one).entry.by_figures and where.rank(one) is not None), None)
    if short is not None and where.rank(kernel) is None and not any(
        Event.CUDA_CALL in one.reports for one in ordered
    ):
        return [short, *(one for one in ordered if one is not short)], [
            Say.KERNEL_LINE_NAMES_NO_RANK(
                id=kernel.match.signature.id, title=kernel.match.signature.title, rank=where.rank(short)
            )
        ]
    notes = []
    if kernel is not ordered[0]:
        notes.append(Say.EXPLAINS_EXCEPTION(id=kernel.match.signature.id, title=kernel.match.signature.title))
    rest = [one for one in ordered if one is not kernel]
    failed = [one for one in rest if Event.CUDA_CALL in one.reports]
    if where.rank(kernel) is None and len({where.rank(one) for one in failed}) == 1:
        pid = kernel.match.integer("pid")
        kernel = replace(kernel, log_line=replace(
            failed[0].log_line, text=kernel.log_line.text, pid=pid if pid is not None else failed[0].log_line.pid,
        ))
    return [kernel, *rest], notes


def _others(every: Sequence[LogMatch], without: Sequence[LogMatch]) -> list[LogMatch]:
    taken = {id(one) for one in without}
    return [one for one in every if id(one) not in taken]


def _one_a_rank(seen: Sequence[LogMatch], where: RankLocations, without: int | None) -> list[LogMatch]:
    """The first of each rank (of each speaker where the rank is unknown)."""
    chosen: dict[object, LogMatch] = {}
    for one in seen:
        rank = where.rank(one)
        if rank is not None and rank == without:
            continue
        unnamed = (one.file, one.log_line.speaker, one.match.signature.id, one.match.integer("device"))
        chosen.setdefault(rank if rank is not None else unnamed, one)
    return list(chosen.values())


def _absurd(root: LogMatch) -> list[Sentence]:
    if meaning(root).entry.died is Died.PROGRAM and root.means.entry.by_figures:
        return [Say.ABSURD_SIZE()]
    return []
