"""Whose job is it? The one place that decides whether a job is the one that we mean, before anything is done to it.

Threat model. Users of the cluster are hostile to each other and to us: they choose every name, comment, path and line
of output of their own jobs, read those of others where the site lets them, keep jobs ready that carry a copied or
guessed comment, and have whatever they put into a job's environment run inside a program that is started with it. What
an owner does to jobs of his own costs nobody else anything and is not defended against. Slurm's controller is believed
for a job's number, owner, cluster and moment of submission, since it has them from the kernel and its own clock.

From that follows:

- A job is ours only if the controller says that its owner is the original job's owner, its cluster ours, its comment
  begins with the attempt's token, and that it was submitted after the attempt was written down. The token is random and
  kept before the job is submitted; as others can read the comments of running jobs, it proves nothing alone.
- What sbatch prints is a hint: it runs as the owner, who could have put anything there. The controller is asked.
- A number can be given away again: before a job is cancelled, the controller is asked once more for that number, and
  its owner and run have to be those of the record that was judged.
- A copy of a script belongs to the original owner, whoever a later job of that number belongs to.
- What runs as the owner starts from a clean environment of ours; the job's own reaches the job through sbatch's
  `--export-file`, where no program that we start loads it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

from runbook.errors import NotAllowed
from runbook.model.incident import Incident
from runbook.model.job import Claim, JobRecord
from runbook.model.units import IncidentId

CLOCKS_APART_S = 60.0
"""How far the controller's clock may be behind ours."""


class Doubt(StrEnum):
    """Why a job is not the one that was submitted."""

    OWNER = "owner"
    CLUSTER = "cluster"
    COMMENT = "comment"
    TIME = "time"


def new_claim(incident: IncidentId, attempt: int, original: JobRecord, now_s: float) -> Claim:
    """What is written down before an attempt is submitted, for the owner of `original`."""
    return Claim(
        owner=original.owner,
        uid=original.uid,
        cluster=original.cluster,
        token=f"{attempt_mark(incident, attempt)}:{secrets.token_hex(16)}",
        written_s=now_s,
    )


def attempt_mark(incident: IncidentId, attempt: int) -> str:
    """How the comments of an attempt's job begin, for people who look for it: `runbook:<incident>:<attempt>`."""
    return f"runbook:{incident}:{attempt}"


def carries(comment: str, token: str) -> bool:
    """Whether a comment begins with a token: equal, or followed by a space, never by more of a word; but one that ends
    with a colon is the beginning of tokens whose random part is not known."""
    if not token or not comment.startswith(token):
        return False
    return token.endswith(":") or comment[len(token) : len(token) + 1] in ("", " ")


def same_owner(job: JobRecord, uid: int | None, owner: str) -> bool:
    """By number and by name, as far as both are told; a job of which neither is told is nobody's."""
    if job.uid is not None and uid is not None and job.uid != uid:
        return False
    if job.owner and owner and job.owner != owner:
        return False
    return bool(job.owner and owner) or (job.uid is not None and uid is not None)


def lost_claim(claim: Claim, mark: str, jobs: Iterable[JobRecord], since_s: float) -> Claim | None:
    """The claim of a job that was submitted as this attempt after a backup was made: what was written down of it is
    lost, and the controller alone knows. It is of the same owner and cluster, its comment begins with the attempt's
    `mark` and a random part, and it is no older than the backup. None: there is no such job."""
    for job in jobs:
        token = job.comment.partition(" ")[0]
        if re.fullmatch(f"{re.escape(mark)}:[0-9a-f]{{32}}", token):
            found = replace(claim, token=token, written_s=since_s)
            if not doubts(job, found):
                return found
    return None


def doubts(job: JobRecord, claim: Claim) -> tuple[Doubt, ...]:
    """Why the controller's record is not the job that was submitted under the claim; () when it is."""
    found = []
    if not same_owner(job, claim.uid, claim.owner):
        found.append(Doubt.OWNER)
    if job.cluster and claim.cluster and job.cluster != claim.cluster:
        found.append(Doubt.CLUSTER)
    if not carries(job.comment, claim.token):
        found.append(Doubt.COMMENT)
    if job.submit_time_s is None or job.submit_time_s < claim.written_s - CLOCKS_APART_S:
        found.append(Doubt.TIME)
    return tuple(found)


def in_words(job: JobRecord, claim: Claim, found: tuple[Doubt, ...]) -> str:
    """What does not fit, for a person."""
    words = {
        Doubt.OWNER: f"it belongs to {job.owner or job.uid or 'nobody'} and not to {claim.owner}",
        Doubt.CLUSTER: f"it is on cluster {job.cluster} and not on {claim.cluster}",
        Doubt.COMMENT: "its comment is not the one that this attempt was given",
        Doubt.TIME: "it was submitted before this attempt was written down",
    }
    return "; ".join(words[doubt] for doubt in found)


def submitted_under(job: JobRecord, claim: Claim) -> bool:
    """Whether the controller's record is of a job that was submitted under the claim. Another's is not, and neither is
    an older one without the token: a process of the owner may have named it. Raises `NotAllowed` for one of the same
    owner of which only a part fits, such as one that carries the token and is older, as where the controller's clock is
    behind: a person has to look at it, as to submit again could run the job twice."""
    wrong = doubts(job, claim)
    if Doubt.OWNER in wrong or {Doubt.COMMENT, Doubt.TIME} <= set(wrong):
        return False
    if wrong:
        raise NotAllowed(
            f"job {job.id} seems to be this attempt's, but {in_words(job, claim, wrong)}",
            where=claim.token,
            next_step=f"see whether job {job.id} is the relaunch, and whether this Slurm changes comments; cancel it "
            "if it is not, then `runbook resume`",
        )
    return True


def check_ours(incident: Incident, job: JobRecord) -> None:
    """Raises `NotAllowed` where the controller's record is not of the job that the incident is about: the first one's
    owner, and for a relaunch all that was written down before it."""
    claim = next((attempt.claim for attempt in incident.attempts if attempt.job == job.id), None)
    wrong = ""
    if claim is not None and (found := doubts(job, claim)):
        wrong = in_words(job, claim, found)
    elif incident.original is not None and not same_owner(job, incident.original.job.uid, incident.original.job.owner):
        wrong = f"it belongs to {job.owner or job.uid or 'nobody'} and not to {incident.original.job.owner}"
    if wrong:
        raise NotAllowed(
            f"job {job.id} is not this incident's job: {wrong}",
            where=f"incident {incident.id}",
            next_step="see whose job it is (`scontrol show job`); nothing is done to it",
        )


def check_same_run(now: JobRecord, judged: JobRecord, deed: str = "cancelled") -> None:
    """Raises `NotAllowed` where the controller's record of a number is no longer the run that was judged. A run that
    waits has no start yet: which one it is, the count of restarts says."""
    if not same_owner(now, judged.uid, judged.owner):
        raise NotAllowed(
            f"job {judged.id} is not {deed}: its owner changed from {judged.owner} to {now.owner or now.uid}",
            next_step="look at the job, then `runbook resume`",
        )
    started_anew = judged.start_time_s is not None and now.start_time_s != judged.start_time_s
    if now.restarts != judged.restarts or started_anew:
        raise NotAllowed(
            f"job {judged.id} was restarted since its error was read, so it is not {deed}",
            next_step="look at it; `runbook resume` reads its log anew",
        )
