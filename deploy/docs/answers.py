"""What each command prints with `--json`, as types: those of the program where it has one, and the shapes of the rest.

`reference.py` makes a JSON Schema of each. That the commands print just that is held by `tests/docs/test_answers.py`
with real answers: no field more, none less.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import JsonValue, TypeAdapter
from typing_extensions import TypedDict

from runbook.model.incident import IncidentState
from runbook.model.node import NodeCheck
from runbook.remedy import LeverDocument
from runbook.report.past_incidents import NodeHistory
from runbook.report.summary import IncidentSummary


class Hypothesis(TypedDict):
    kind: str
    detail: str | None
    confidence: float


class Diagnosis(Hypothesis):
    reasons: list[str]
    against: list[str]
    missing: list[str]


class Place(TypedDict):
    """A line of a log; `offset` in bytes."""

    signature: str
    rank: int | None
    node: str | None
    file: str
    line: int | None
    offset: int


class RootCause(Place):
    pid: int | None
    device: int | None
    node_device: str | None
    phase: str
    step: int | None
    time: str | None
    excerpt: str


class FirstFailed(TypedDict):
    """Who failed first, and by whose word."""

    rank: int | None
    node: str | None
    pid: int | None
    told_by: Literal["line", "launcher", "suspicion"]


class Collateral(TypedDict):
    rank: int | None
    node: str | None
    why: str


class Progress(TypedDict):
    last_step: int | None
    total_steps: int | None
    step_duration_s: float | None
    resumed_from_step: int | None
    saved_steps: list[int]
    last_step_by_rank: dict[str, int]


class Source(TypedDict):
    path: str
    size_bytes: int
    bytes_read: int
    note: str


class LineRead(TypedDict):
    """With `--why`: a line that the answer rests on, or that was set aside."""

    file: str | None
    line: int | None
    text: str | None
    signature: str
    says: str | None
    who: dict[str, JsonValue]
    memory: bool
    figures: dict[str, JsonValue]
    taken_as: Literal["first failure", "set aside", "another failure", "consequence"]
    because: str


class Diagnosed(TypedDict):
    version: int
    diagnosis: Diagnosis
    runners_up: list[Hypothesis]
    root_cause: RootCause | None
    first_failed: FirstFailed | None
    fields: dict[str, JsonValue]
    """Figures of the message in bytes; null: it does not say."""
    collateral: list[Collateral]
    progress: Progress
    candidates: list[Place]
    harmless: list[Place]
    framework: str | None
    framework_version: str | None
    world_size: int | None
    notes: list[str]
    sources: list[Source]
    lines: NotRequired[list[LineRead]]


class SignatureRow(TypedDict):
    id: str
    document: str
    means: str
    versions: str | None
    title: str


class LeverOfGroup(TypedDict):
    lever: str
    worked: int
    failed: int
    not_proven: int


class HistoryGroup(TypedDict):
    """Incidents alike in framework, model, card, batch, sequence and kind; "" or null: not known."""

    system: str
    model: str
    gpu: str
    gpu_gib: int | None
    micro_batch: int | None
    sequence_length: int | None
    kind: str
    incidents: int
    recovered: int
    newest_s: float
    levers: list[LeverOfGroup]
    foreseen_to_fit: int
    foreseen_wrong: int
    newest: list[str]


class TemplateFile(TypedDict):
    path: str
    source: str
    named: str | None
    """How the script names it; null: the script itself."""


class TemplateParameter(TypedDict):
    parameter: str
    spelling: str
    state: Literal["set", "not set", "not known"]
    value: str | None
    default: str | None
    file: str | None
    line: int | None
    trail: list[str]
    unresolved: str


class TemplateCheckpoint(TypedDict):
    notes: list[str]
    to_do: list[str]
    stops: list[dict[str, JsonValue]]


class TemplateRestarters(TypedDict):
    notes: list[str]
    to_do: list[str]


class TemplateShown(TypedDict):
    system: str | None
    recognised_by: list[dict[str, JsonValue]]
    could_be: list[str]
    versions: list[str]
    files: list[TemplateFile]
    unread: list[str]
    parameters: list[TemplateParameter]
    other_settings: list[dict[str, JsonValue]] | None
    """With `--all`."""
    checkpoint: TemplateCheckpoint | None
    restarters: TemplateRestarters | None


class Patched(TypedDict):
    system: str
    failure: str | None
    uses: list[dict[str, JsonValue]]
    edits: list[dict[str, JsonValue]]
    files: list[str]
    unread: list[str]
    notes: list[str]
    diff: str
    written: list[str]


class PatchRefused(TypedDict):
    system: str
    refused: str
    question: str


class Bounds(TypedDict):
    low_bytes: int
    middle_bytes: int
    high_bytes: int


class MemoryTerm(TypedDict):
    title: str
    how: str
    counts_in: str
    low_bytes: int
    middle_bytes: int
    high_bytes: int


class Forecast(TypedDict):
    run: dict[str, JsonValue]
    verdict: str
    card_bytes: int | None
    peaks: dict[str, Bounds]
    terms: list[MemoryTerm]
    anchors: list[JsonValue]
    missing: list[str]
    assumed: list[str]
    open: list[str]


class Foreseen(TypedDict):
    version: int
    model: str | None
    found: dict[str, str]
    forecast: Forecast
    before: Forecast | None
    largest: Forecast | None
    too_large: Forecast | None
    notes: list[str]


class SnapshotDevice(TypedDict):
    device: int
    entries: int
    most_allocated: int
    at_the_end: dict[str, int]
    refused: dict[str, JsonValue] | None
    shortage: str
    missing: int
    alive: dict[str, JsonValue]
    growth: dict[str, JsonValue]
    replay: dict[str, JsonValue]


class SnapshotFile(TypedDict):
    file: str
    recorded: bool
    allocator_settings: str
    devices: list[SnapshotDevice]


class Snapshots(TypedDict):
    version: int
    snapshots: list[SnapshotFile]


class Pruned(TypedDict):
    incidents: int
    evidence_of: int
    bytes: int


class PrunedOwner(Pruned):
    owner: str
    stored_bytes: int


class PrunedIncident(TypedDict):
    incident: str
    what: Literal["all", "evidence"]
    why: str
    bytes: int


class Stays(TypedDict):
    incident: str
    why: str


class PrunedAtLast(Pruned):
    workflows: int


class Prune(TypedDict):
    version: int
    removes: bool
    keep: dict[str, JsonValue]
    stored_bytes: int
    going: Pruned
    by_owner: list[PrunedOwner]
    incidents: list[PrunedIncident]
    stays: list[Stays]
    removed: PrunedAtLast


class CanaryJob(TypedDict):
    name: str
    what: str
    job: str | None
    state: str
    event: str
    skipped: str
    problem: str
    report: str
    incident: str | None
    ended: IncidentState | None
    relaunched: list[str]


class CanaryLink(TypedDict):
    part: str
    works: str
    what: str
    next: str


Canary = TypedDict("Canary", {
    "cluster": str, "as": str, "policy": str, "daemon": bool, "gpus": Literal["simulated"], "jobs": list[CanaryJob],
    "chain": list[CanaryLink], "left_behind": list[str],
})


class SetupCheck(TypedDict):
    title: str
    mark: str
    what: str
    next: str


class NotYet(TypedDict):
    what: str
    why: str


class Setup(TypedDict):
    cluster: str
    slurm: str
    slurm_conf: str
    inventory: str
    written: bool
    inventory_text: str
    choices: dict[str, str]
    checks: list[SetupCheck]
    commands: list[str]
    drop_in: str
    slurm_conf_lines: list[str]
    sudoers: str
    prometheus: str
    not_possible_yet: list[NotYet]


Entry = dict[str, JsonValue]
ANSWERS: dict[str, tuple[str, Any]] = {
    "canary": ("which part of the chain works", Canary),
    "diagnose": ("the diagnosis contract, and what the logs say beside it", Diagnosed),
    "explain": ("the entry; a list where the word stands for several", Entry | list[Entry]),
    "history": ("groups of incidents", list[HistoryGroup]),
    "history --nodes": ("nodes beside their peers", list[NodeHistory]),
    "incidents": ("one row an incident, newest first", list[IncidentSummary]),
    "incidents --watch": ("a row a line, for each change", IncidentSummary),
    "levers": ("the documents of the systems", list[LeverDocument]),
    "node": ("facts and verdict of each node", NodeCheck),
    "patch": ("the change, or the question that is in its way", Patched | PatchRefused),
    "predict": ("the memory by term, and whether it fits", Foreseen),
    "prune": ("what goes, and what stays", Prune),
    "setup": ("what was found, written and is still to do", Setup),
    "signatures": ("the table of lines", list[SignatureRow]),
    "snapshot": ("what each file tells", Snapshots),
    "template show": ("what the script sets, and where", TemplateShown),
}
"""Of the commands but those that print incident.json."""
INCIDENT = {
    "oom": "incident.json at the end",
    "show": "incident.json",
    "follow": "incident.json on one line, each time that it changes",
}


def schema_of(command: str) -> dict[str, Any]:
    """JSON Schema 2020-12 of what the command prints. All of it is required; a newer version may print more."""
    says, shape = ANSWERS[command]
    made = TypeAdapter(shape).json_schema(mode="serialization")
    if command == "node":
        made["properties"] = {"version": {"type": "integer"}} | {
            name: value for name, value in made["properties"].items() if name != "reports"
        }
        made["required"] = ["version", *(name for name in made["required"] if name != "reports")]
    made.pop("description", None)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": f"runbook {command} --json: {says}", **made}


def file_of(command: str) -> str:
    """Below docs/."""
    return f"schemas/{command.replace(' --', '-').replace(' ', '-')}.json"
