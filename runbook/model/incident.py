"""An incident: everything known and done about one failed job; `incident.json` is this, published. And what people are
told of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from runbook.model.checkpoint import Checkpoint
from runbook.model.diagnosis import Diagnosis
from runbook.model.job import Claim, JobRecord, JobScript, NodeState
from runbook.model.log import LogStory, Progress
from runbook.model.node import NodeFacts, NodeJudgement
from runbook.model.remedy import Answers, Circumstances, MemoryFigure, NoPlan, Plan
from runbook.model.template import Companion, Patch, TemplateFile
from runbook.model.units import IncidentId, JobId, NodeName
from runbook.model.units import IncidentState as IncidentState

SCHEMA_VERSION = 1
RESTORED = "restored.json"
"""In an incident's folder: it came back from a backup, which was made at `made_s`."""
NOBODY = "nobody answered"
"""Who said no, where a question lapsed."""


def declined(by: str) -> str:
    """The summary of a box that was not entered because somebody said no."""
    return f"declined: {by}"


class Policy(StrEnum):
    PLAN = "plan"
    """Decide and report; touch nothing."""
    APPROVE = "approve"
    """A person says yes to each act."""
    APPLY = "apply"


class Milestone(StrEnum):
    """Outcomes by which an incident's path is read, whatever its flow calls the boxes."""

    PASSED = "passed"
    """A relaunched job is proven."""
    PLANNED = "planned"
    """It would have been done."""
    LIMIT_REACHED = "limit_reached"
    """The job was relaunched as often as the policy allows."""
    TOLD = "told"
    """A person was."""
    WRITTEN = "written"
    """The report: this run is over."""


@dataclass(frozen=True, slots=True)
class BoxVisit:
    """One box of the flow, entered and left. `outcome` is "" while it runs."""

    box: str
    attempt: int
    started_s: float
    ended_s: float | None = None
    outcome: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Act:
    """Something done outside: what, on what, when, with which token, and how it ended."""

    what: str
    """"cancel", "end_process", "drain", "submit", "promote", "rollback", "undrain"."""
    target: str
    time_s: float
    token: str = ""
    result: str = ""
    planned_only: bool = False
    approved_by: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a lever was seen in the relaunched job."""

    lever: str
    where: str
    """"script", "process arguments", "process environment"."""
    seen: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended."""

    passed: bool | None
    """None: not known yet."""
    why: str = ""
    progress: Progress | None = None
    headroom: str = ""
    measured: tuple[MemoryFigure, ...] = ()
    """Peaks of memory that the relaunched job's log tells, past the step where the first one died."""


@dataclass(frozen=True, slots=True)
class LogMark:
    """A log as it was before a relaunch that may write to the same file."""

    path: str
    size_bytes: int
    tail_sha256: str
    """Of the last bytes before `size_bytes`: still there when the file was appended to, gone when it was begun anew."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One relaunch: what was changed, what was submitted, how it ended. Number 1 is the first relaunch."""

    number: int
    plan: Plan | None = None
    patch: Patch | None = None
    checkpoint: Checkpoint | None = None
    excluded_nodes: tuple[NodeName, ...] = ()
    submit_command: tuple[str, ...] = ()
    job: JobId | None = None
    claim: Claim | None = None
    """What was written down before it was submitted, by which the job is known to be ours."""
    submitted_s: float | None = None
    receipts: tuple[Receipt, ...] = ()
    verdict: Verdict | None = None
    story: LogStory | None = None
    """The relaunched job's own logs, when it failed again."""
    diagnosis: Diagnosis | None = None
    failed_step: int | None = None
    """The step that has to be passed."""
    log_marks: tuple[LogMark, ...] = ()
    waiting_since_s: float | None = None
    """Since when it waits in the queue; None while it runs, and once it has ended."""
    queued_s: float = 0.0
    """How long it waited in the queue before that, all its waits together."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure that is being worked on: the job that failed last and what was found out about it."""

    job: JobRecord
    story: LogStory | None = None
    nodes: tuple[NodeFacts, ...] = ()
    judgements: tuple[NodeJudgement, ...] = ()
    node_states: tuple[NodeState, ...] = ()
    diagnosis: Diagnosis | None = None
    freed_nodes: tuple[NodeName, ...] = ()
    """Nodes whose memory was in other hands and is free again: a leaked process was ended, or a tenant's job has.
    What the check found before stays in `nodes` and `judgements`."""
    no_step_since_s: float | None = None
    """Of a job that runs: since when its logs were seen to count no further step, whatever else it writes."""
    whole_ranks: int | None = None
    """Of a job that runs: of how many ranks every one was seen alive; None: never."""


GUESSES = frozenset({"alert", "watch"})
"""Triggers that say that something is wrong with a job, and not that it has ended: somebody's alert, and the watch."""


@dataclass(frozen=True, slots=True)
class Incident:
    """The whole story. Immutable: every box returns a new one."""

    id: IncidentId
    cluster: str
    root_job: JobId
    policy: Policy
    trigger: str
    """"person", "epilog", "alert", "watch", "files"."""
    opened_s: float
    version: int = SCHEMA_VERSION
    tool_version: str = ""
    run: int = 1
    """How many times work on it was begun: 1, and one more for each time it was taken up again."""
    state: IncidentState = IncidentState.RUNNING
    box: str = ""
    """The box that is running or was left last."""
    awaiting: str = ""
    """What a person is asked to approve, in a sentence; "" when nothing is."""
    updated_s: float = 0.0
    closed_s: float | None = None
    failure: Failure | None = None
    """The failure under work: the original job's, later a relaunched job's."""
    original: Failure | None = None
    """The first failure, kept when `failure` moves on."""
    script: JobScript | None = None
    templates: tuple[TemplateFile, ...] = ()
    """The template as it stands for the next attempt: the script, then the files that it names. Starts as submitted."""
    companions: tuple[Companion, ...] = ()
    """The files that the script names, as they were found."""
    answers: Answers = Answers()
    """What a person has said of the job, so that the lever that comes first can be used."""
    unread: tuple[str, ...] = ()
    """Files that it names and that could not be read, each with the reason: what they set is not known."""
    evidence_files: tuple[str, ...] = ()
    """Copies in the incident's folder, relative to it."""
    checkpoint: Checkpoint | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    plan: Plan | None = None
    no_plan: NoPlan | None = None
    patch: Patch | None = None
    not_written: dict[str, str] = field(default_factory=dict)
    """Keys of levers that could not be written into the template, each with the reason: they are not chosen again."""
    excluded_nodes: tuple[NodeName, ...] = ()
    drained_nodes: tuple[NodeName, ...] = ()
    num_nodes: int | None = None
    """Set when the job resumes on another number of nodes than it had."""
    world_plan: Plan | None = None
    """The edits that keep the global batch when `num_nodes` changes."""
    world_options: tuple[str, ...] = ()
    """sbatch options that go with `num_nodes`: totals over all nodes (`--ntasks`, `--gpus`)."""
    attempts: tuple[Attempt, ...] = ()
    visits: tuple[BoxVisit, ...] = ()
    acts: tuple[Act, ...] = ()
    conclusion: str = ""
    """One sentence: how it ended."""
    to_do: tuple[str, ...] = ()
    """What a person should do, most urgent first."""
    promoted: str = ""
    """The backup that a promotion left; "" when nothing was promoted."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    circumstances: Circumstances | None = None
    """What the first job was told to do, by which later failures are compared with it."""

    @property
    def whole_plan(self) -> Plan | None:
        """What is changed together: the levers, and what goes with another number of nodes."""
        if self.world_plan is None:
            return self.plan
        return replace(self.plan, uses=(*self.plan.uses, *self.world_plan.uses)) if self.plan else self.world_plan

    @property
    def finished(self) -> bool:
        """Its verdict stands and its report is written. Between the two a killed process can still be resumed."""
        return self.state.ended and self.closed_s is not None


class Severity(StrEnum):
    """What is asked of a person; the words of the alerts (docs/alerts.md)."""

    INFO = "info"
    """Nothing: it is being handled, or it is done."""
    WARNING = "warning"
    """Look today."""
    PAGE = "page"
    """A person is needed now."""


@dataclass(frozen=True, slots=True)
class About:
    """The job that a message is about, for targets that want some only. "" where it is not known."""

    incident: str = ""
    owner: str = ""
    partition: str = ""
    account: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """Short: a title for a subject line, a body of a few lines, one link. Cleaned and masked already."""

    event: str
    """What happened, the same word each time that it is told of: nobody is told of one event twice."""
    severity: Severity
    title: str
    body: str
    link: str = ""
    about: About = About()
    question: bool = False
    """A question that a person at the terminal is asked there, too."""
    answer: str = ""
    """Where it is answered; "" where nothing is asked."""
