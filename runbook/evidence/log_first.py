"""Which failure came first, and which lines are no failure at all. The reasons are said in notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.evidence.log_file import UNKNOWN_EXCEPTION, Reading
from runbook.evidence.log_places import Places
from runbook.evidence.log_seen import Seen
from runbook.evidence.signatures import CONSEQUENCE, HARMLESS
from runbook.evidence.units import ABSURD_BYTES
from runbook.model.diagnosis import Kind
from runbook.model.job import JobClass, JobRecord

_FOLLOWS = re.compile(
    r"^(?:[\w.]{0,80}\.)?(?:KeyboardInterrupt|BrokenPipeError|ConnectionResetError|ConnectionRefusedError|EOFError"
    r"|SignalException|CalledProcessError|DistNetworkError|DistStoreError|ChildFailedError|SystemExit)\b"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The first failure, the others that could be first, and the failures that were handled."""

    root: Seen | None
    candidates: tuple[Seen, ...] = ()
    handled: tuple[Seen, ...] = ()
    notes: tuple[str, ...] = ()


def meaning(seen: Seen) -> str:
    """What a match means in its place: an absurd size is no shortage (R-13), some exceptions only follow others."""
    tried = seen.match.integer("tried_bytes")
    if seen.means == Kind.TRUE_OOM and tried is not None and tried >= ABSURD_BYTES:
        return Kind.NOT_OOM
    if seen.match.signature.id == UNKNOWN_EXCEPTION and _FOLLOWS.match(seen.match.text("detail") or ""):
        return CONSEQUENCE
    return seen.means


def choose(
    seen: Sequence[Seen], where: Places, reading: Reading, job: JobRecord | None, paths: Sequence[str]
) -> Choice:
    """Pick the first failure of the last attempt that has one. `seen` is in the order of files and places."""
    failures = [one for one in seen if meaning(one) not in (CONSEQUENCE, HARMLESS)]
    handled = [one for one in failures if _handled(one, reading, job)]
    notes: list[str] = []
    remaining = _others(failures, handled)
    died = [one for one in handled if one.raised and not one.remark]
    if not remaining and died and _ended_badly(seen, job):
        # Output that a process buffers stands behind the traceback although it was printed before.
        notes.append(
            "Steps stand behind the failure in the log, as they do when a process buffers its output; the job ended "
            "badly and nothing else explains it, so the failure counts."
        )
        handled = _others(handled, died)
    failures = _others(failures, handled)
    if handled:
        notes.append(_handled_note(handled, job))
    strong = _after_no_collapse([one for one in failures if not one.match.signature.weak], seen)
    pool, note = _last_attempt(strong, reading.last_attempt)
    if not pool or (note and [one for one in failures if one.attempt == reading.last_attempt]):
        weak, weak_note = _last_attempt([one for one in failures if one.match.signature.weak], reading.last_attempt)
        if not pool or not weak_note:
            pool, note = (weak, weak_note) if weak else (pool, note)
    if not pool:
        followers = [one for one in seen if meaning(one) == CONSEQUENCE]
        if followers:
            notes.append("The logs show only consequences; the rank that failed first left no line of its own.")
        return Choice(None, tuple(followers[:1]), tuple(handled), tuple(notes))
    notes += [note] if note else []
    ordered, how = _in_order(pool, paths, where)
    root = ordered[0]
    notes += how
    rank = where.rank(root)
    company = _one_a_rank(ordered[1:], where, rank)
    notes += _absurd(root)
    return Choice(root, tuple(company), tuple(handled), tuple(notes))


def _ended_badly(seen: Sequence[Seen], job: JobRecord | None) -> bool:
    """Whether the job is known to have failed: by Slurm's state, or by processes that ended after a failure."""
    if job is not None and job.state.job_class is not JobClass.UNKNOWN:
        return job.state.job_class is JobClass.FAILED
    return any(meaning(one) == CONSEQUENCE for one in seen)


def _handled(seen: Seen, reading: Reading, job: JobRecord | None) -> bool:
    """Whether the job went on: it ended well, steps went on behind the failure, or the line itself says so."""
    if seen.match.signature.late:
        return job is not None and job.state.job_class is JobClass.SUCCEEDED
    if job is not None and job.state.job_class is JobClass.SUCCEEDED:
        return True
    before = reading.progress.step_before(seen.file, seen.offset)
    after = reading.progress.steps_after(seen.file, seen.attempt, seen.offset)
    if before is None:
        return len(after) >= 2
    if any(step >= before + 2 for step in after):
        return True
    return bool(seen.remark) and not seen.raised


def _handled_note(handled: Sequence[Seen], job: JobRecord | None) -> str:
    kinds = ", ".join(sorted({one.match.signature.id for one in handled}))
    reason = (
        "the job ended well" if job is not None and job.state.job_class is JobClass.SUCCEEDED
        else "the job went on behind them, or the lines themselves say that they were handled"
    )
    return f"{len(handled)} line{'s' if len(handled) != 1 else ''} ({kinds}) did not end the job: {reason}."


def _after_no_collapse(strong: Sequence[Seen], seen: Sequence[Seen]) -> list[Seen]:
    """Leave out garbage sizes that follow a failed collective (NCCL-08): the collective is what matters then."""
    kept = []
    timeouts: dict[int, int] = {}
    for other in seen:
        if other.match.signature.id in ("NCCL-05", "NCCL-06"):
            timeouts[other.file] = min(other.offset, timeouts.get(other.file, other.offset))
    for one in strong:
        garbage = meaning(one) == Kind.NOT_OOM and (
            one.match.signature.id == "PT-CUDA-10" or (one.match.integer("tried_bytes") or 0) >= ABSURD_BYTES
        )
        if not (garbage and timeouts.get(one.file, one.offset) < one.offset):
            kept.append(one)
    return kept


def _last_attempt(failures: Sequence[Seen], last: int) -> tuple[list[Seen], str]:
    """The failures of the last attempt that has any; earlier attempts are said to exist."""
    if not failures:
        return [], ""
    newest = max(one.attempt for one in failures)
    pool = [one for one in failures if one.attempt == newest]
    earlier = len({one.attempt for one in failures}) - 1
    if newest < last:
        return pool, "The failure is from an earlier attempt; the last attempt in the logs shows none of its own."
    if earlier:
        return pool, "Earlier attempts in the same logs failed too; the failure named is the last attempt's."
    return pool, ""


def _in_order(pool: Sequence[Seen], paths: Sequence[str], where: Places) -> tuple[list[Seen], list[str]]:
    """First failure first. Slurm's and the kernel's reports come after what they report, so they do not lead."""
    prompt = [one for one in pool if not one.match.signature.late]
    late = [one for one in pool if one.match.signature.late]
    if not prompt:
        return sorted(late, key=lambda one: (one.match.signature.id != "SL-TASK-01", one.file, one.offset)), []
    firsts = _one_a_rank(prompt, where, None)
    files = {one.file for one in firsts}
    stamps = {id(one): _stamp(one, where) for one in firsts}
    if len(firsts) == 1:
        return [*prompt, *late], []
    if all(stamp is not None for stamp in stamps.values()):
        ordered = sorted(firsts, key=lambda one: (stamps[id(one)] or 0.0, one.file, one.offset))
        rest = _others(prompt, ordered)
        return [*ordered, *rest, *late], _time_note(ordered, stamps, where, paths)
    rest = _others(prompt, firsts)
    if len(files) == 1:
        return [*firsts, *rest, *late], [
            f"{_count(firsts, where)} report a failure; {_who(firsts[0], where)} is named because its line comes "
            f"first in {paths[firsts[0].file]}."
        ]
    return [*firsts, *rest, *late], [
        f"{_count(firsts, where)} report a failure in different files without time stamps, so which was first is "
        f"not known; {_who(firsts[0], where)} is named because {paths[firsts[0].file]} was read first."
    ]


def _others(every: Sequence[Seen], without: Sequence[Seen]) -> list[Seen]:
    taken = {id(one) for one in without}
    return [one for one in every if id(one) not in taken]


def _time_note(
    ordered: Sequence[Seen], stamps: dict[int, float | None], where: Places, paths: Sequence[str]
) -> list[str]:
    first = stamps[id(ordered[0])]
    tied = [one for one in ordered[1:] if first is not None and abs((stamps[id(one)] or 0.0) - first) < 1.0]
    if not tied:
        return [f"{_count(ordered, where)} report a failure; {_who(ordered[0], where)} did so first by its time stamp."]
    ranks = sorted(rank for rank in {where.rank(one) for one in tied} if rank is not None)
    names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:16]))}" if ranks else "other processes"
    return [
        f"A tie: {names} failed within the same second as {_who(ordered[0], where)}, which is named because its line "
        f"comes first in {paths[ordered[0].file]}; clocks of several nodes do not order them further."
    ]


def _stamp(seen: Seen, where: Places) -> float | None:
    if seen.time_exact:
        return seen.time_s
    row = where.row(where.rank(seen))
    return row.time_s if row is not None else None


def _one_a_rank(seen: Sequence[Seen], where: Places, without: int | None) -> list[Seen]:
    """The first of each rank (of each speaker where the rank is unknown)."""
    chosen: dict[object, Seen] = {}
    for one in seen:
        rank = where.rank(one)
        if rank is not None and rank == without:
            continue
        unnamed = (one.file, one.frame.speaker, one.match.signature.id, one.match.integer("device"))
        chosen.setdefault(rank if rank is not None else unnamed, one)
    return list(chosen.values())


def _who(seen: Seen, where: Places) -> str:
    rank = where.rank(seen)
    return f"rank {rank}" if rank is not None else "a process without rank"


def _count(seen: Sequence[Seen], where: Places) -> str:
    ranks = {where.rank(one) for one in seen}
    return f"{len(ranks)} ranks" if None not in ranks else f"{len(seen)} processes"


def _absurd(root: Seen) -> list[str]:
    if meaning(root) == Kind.NOT_OOM and root.means == Kind.TRUE_OOM:
        return ["The size that was asked for is absurd, so nothing ran out of memory (R-13)."]
    return []
