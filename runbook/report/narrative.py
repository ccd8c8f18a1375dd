"""The story of an incident in single sentences: what happened, how it stands, what a person does first."""

from __future__ import annotations

from runbook.model.diagnosis import Hypothesis, Kind
from runbook.model.incident import Attempt, Failure, Incident, IncidentState
from runbook.model.log import Finding, MemorySample
from runbook.report.diagnosis_words import KIND_MEANING, PHASE_WORDS


def first_failure(incident: Incident) -> Failure | None:
    """The failure that opened the incident, also when the work has moved on to a relaunched job's."""
    return incident.original or incident.failure


def root_cause(incident: Incident) -> Finding | None:
    """The finding that the first failure is put down to."""
    failure = first_failure(incident)
    return failure.story.root_cause if failure and failure.story else None


def cause(incident: Incident) -> Hypothesis | None:
    """The best hypothesis of the first failure."""
    failure = first_failure(incident)
    return failure.diagnosis.best if failure and failure.diagnosis else None


def place(finding: Finding) -> str:
    """"rank 3 on gpu-22 (GPU 3)", as far as it is known; "" when nothing is."""
    parts = [f"rank {finding.rank}" if finding.rank is not None else "", finding.node or ""]
    named = " on ".join(part for part in parts if part)
    if finding.device is None:
        return named
    return f"{named} (GPU {finding.device})" if named else f"GPU {finding.device}"


def what_happened(incident: Incident) -> str:
    """One sentence: who died, where, when and of what."""
    found = cause(incident)
    finding = root_cause(incident)
    job = f"Job {incident.root_job}"
    if found is None and finding is None and incident.finished:
        return f"{job} on {incident.cluster}: {incident.conclusion or 'its logs show no memory error.'}"
    if found is None and finding is None:
        return f"{job} on {incident.cluster} failed; what it died of has not been read yet."
    if found is not None and found.kind is Kind.NOT_OOM:
        verb = "did not die of memory"
    elif found is not None and found.kind is Kind.HOST_OOM:
        verb = "ran out of main memory"
    elif found is not None and found.kind is Kind.SHM:
        verb = "ran out of shared memory"
    else:
        verb = "ran out of GPU memory"
    sentence = f"{job} {verb}"
    if finding is not None:
        where = place(finding)
        phase = PHASE_WORDS[finding.phase]
        step = f"at step {finding.step}" if finding.step is not None else ""
        sentence = " ".join(part for part in (sentence, f"on {where}" if where else "", phase, step) if part)
    if found is not None and found.kind not in (Kind.NOT_OOM, Kind.HOST_OOM, Kind.SHM):
        sentence += f": {KIND_MEANING[found.kind]}"
    return sentence + "."


def how_it_stands(incident: Incident) -> str:
    """One sentence on the outcome, or on what goes on now."""
    if incident.conclusion:
        return incident.conclusion
    last = incident.attempts[-1] if incident.attempts else None
    match incident.state:
        case IncidentState.RECOVERED:
            return f"Job {last.job} runs past the failing step." if last and last.job else "The job runs again."
        case IncidentState.PLANNED:
            return "A plan was made; nothing was touched."
        case IncidentState.ESCALATED:
            return incident.no_plan.why if incident.no_plan else "It could not be settled without a person."
        case IncidentState.CLOSED:
            return "There was nothing to do."
        case IncidentState.AWAITING_APPROVAL:
            return "The next act waits for a person's yes."
        case IncidentState.INTERRUPTED:
            return "The work on this incident was interrupted; nothing is lost."
        case _:
            return f"At work in box “{incident.box}”." if incident.box else "At work."


def to_do(incident: Incident) -> tuple[str, ...]:
    """What a person should do, most urgent first; never empty."""
    if incident.state is IncidentState.AWAITING_APPROVAL and incident.awaiting:
        ask = f"Say yes with `runbook approve {incident.id}`, or no with `--no`: {incident.awaiting.rstrip('.')}."
        return (ask, *incident.to_do)
    if incident.to_do:
        return incident.to_do
    match incident.state:
        case IncidentState.RECOVERED:
            if incident.promoted:
                return ("Nothing.",)
            return (
                "Nothing is urgent. Read the change below and, if it is to stay, keep it: "
                f"`runbook promote {incident.id}`.",
            )
        case IncidentState.PLANNED:
            if incident.trigger == "files":
                return ("Read the plan below and, if you agree, submit the patched template yourself.",)
            return (f"Read the plan below and, if you agree, carry it out: `runbook resume {incident.id}`.",)
        case IncidentState.INTERRUPTED:
            return (f"Go on where it stopped: `runbook resume {incident.id}`.",)
        case IncidentState.ESCALATED:
            question = incident.no_plan.question if incident.no_plan else ""
            return (question or "Read the diagnosis below and decide; the job has not been relaunched since.",)
        case IncidentState.CLOSED:
            return ("Nothing.",)
        case _:
            return ("Nothing now: the runbook is at work.",)


def worked(attempt: Attempt) -> bool | None:
    """Whether the relaunch got past the failing step; None while that is not known."""
    return attempt.verdict.passed if attempt.verdict else None


def proven_attempt(incident: Incident) -> Attempt | None:
    """The relaunch that passed, the last one if several did."""
    return next((attempt for attempt in reversed(incident.attempts) if worked(attempt)), None)


def peak_sample(attempt: Attempt, rank: int | None) -> MemorySample | None:
    """The relaunched job's highest reported reserve, on the failing rank if it reported, else over all ranks."""
    samples = attempt.verdict.progress.memory if attempt.verdict and attempt.verdict.progress else ()
    known = [sample for sample in samples if _reserve(sample) is not None]
    same_rank = [sample for sample in known if sample.rank == rank and rank is not None]
    return max(same_rank or known, key=lambda sample: _reserve(sample) or 0, default=None)


def _reserve(sample: MemorySample) -> int | None:
    return sample.max_reserved_bytes if sample.max_reserved_bytes is not None else sample.reserved_bytes


def is_simulated(incident: Incident) -> bool:
    """Facts of a node or a log that say of themselves that they come from the simulator."""
    for failure in (incident.original, incident.failure):
        if failure is None:
            continue
        if any(facts.simulated for facts in failure.nodes):
            return True
        story = failure.story
        if story is not None and any("simulat" in note.lower() for note in story.notes):
            return True
    return any("simulat" in note.lower() for note in incident.notes)
