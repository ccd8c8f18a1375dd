"""The corpus: logs and circumstances in, what must be found out. One file a case under cases/, long logs under files/.

A case is `captured` (real output of programs that ran, with their versions in `program`), `simulated` (real programs,
in which only the device memory is simulated) or `written` (in the format of the named version, after its sources).
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import model_validator

from runbook.diagnosis import diagnose
from runbook.documents import Document, load_folder
from runbook.locations import data_folder
from runbook.logs.reader import LogReader
from runbook.logs.signatures import load_signatures
from runbook.model.diagnosis import Detail, Diagnosis
from runbook.model.job import JobClass, JobRecord, JobState, StepRecord
from runbook.model.log import LogStory, Phase
from runbook.model.node import GpuProcess, NodeJudgement, NodeVerdict
from runbook.model.units import Bytes, JobId, NodeName, UserName
from runbook.report.vocabulary.sentences import in_words
from tests.kinds import MEANINGS, Kind

HERE = Path(__file__).parent
FILES = HERE / "files"
UNSET = -1
"""A number that a case does not speak of; null means "must not be known"."""

NOT_MEMORY = frozenset({Kind.NOT_OOM, Kind.HARDWARE_FAULT, Kind.UNDETERMINED})


class LogPart(Document):
    """One file of the job: the path that the reader is told, and its content."""

    path: str
    file: str = ""
    """Name under files/, or `text` here."""
    text: str = ""

    def source(self) -> tuple[str, BinaryIO, int]:
        content = (FILES / self.file).read_bytes() if self.file else self.text.encode()
        return self.path, io.BytesIO(content), len(content)


class Step(Document):
    id: str
    state: str


class Job(Document):
    """What Slurm says of the job, where the case has Slurm's word."""

    state: str = "FAILED"
    job_class: JobClass = JobClass.FAILED
    nodes: tuple[str, ...] = ()
    num_tasks: int | None = None
    gpus_per_node: int | None = None
    start_time_s: float | None = None
    steps: tuple[Step, ...] = ()

    def record(self) -> JobRecord:
        return JobRecord(
            JobId("123"), "cluster", "train", UserName("ada"), JobState(self.state, self.job_class),
            nodes=tuple(NodeName(name) for name in self.nodes), num_nodes=len(self.nodes) or None,
            num_tasks=self.num_tasks, gpus_per_node=self.gpus_per_node, start_time_s=self.start_time_s,
            steps=tuple(StepRecord(step.id, JobState(step.state, JobClass.FAILED)) for step in self.steps),
        )


class Tenant(Document):
    pid: int
    bytes: int
    owner: str = "bob"


class Judgement(Document):
    """A node check's answer, where the case has one."""

    node: str
    verdict: NodeVerdict
    reasons: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    tenants: tuple[Tenant, ...] = ()

    def value(self) -> NodeJudgement:
        return NodeJudgement(
            NodeName(self.node), self.verdict, self.reasons, missing=self.missing,
            tenants=tuple(
                GpuProcess(one.pid, Bytes(one.bytes), "python3", UserName(one.owner)) for one in self.tenants
            ),
        )


class Expected(Document):
    """What is named is checked and counted. `signature: null` means that no line may be called the first failure."""

    kind: str
    detail: Detail | None = None
    confidence_at_least: float = 0.0
    confidence_at_most: float = 1.0
    runners_up: tuple[str, ...] = ()
    signature: str | None = ""
    rank: int | None = UNSET
    local_rank: int | None = UNSET
    node: str | None = ""
    pid: int | None = None
    device: int | None = None
    node_device: str | None = None
    phase: Phase | None = None
    step: int | None = UNSET
    line: int | None = None
    last_step: int | None = UNSET
    total_steps: int | None = None
    last_step_by_rank: dict[int, int] | None = None
    step_duration_s: float | None = None
    saved_steps: tuple[int, ...] | None = None
    resumed_from_step: int | None = None
    memory_samples_at_least: int = 0
    world_size: int | None = None
    version: str | None = None
    framework: str | None = None
    fields: dict[str, int | None | list[tuple[int, int | None]]] = {}
    """Names of `MemoryFields`; `other_processes` as [[pid, bytes], …]."""
    candidate_ranks: tuple[int | None, ...] | None = None
    collateral_ranks: tuple[int | None, ...] | None = None
    harmless: tuple[str, ...] | None = None
    reasons_say: tuple[str, ...] = ()
    against_says: tuple[str, ...] = ()
    missing_says: tuple[str, ...] = ()
    notes_say: tuple[str, ...] = ()


class Case(Document):
    version: Literal[1]
    id: str
    title: str
    why: str
    source: str
    evidence: Literal["captured", "simulated", "written"]
    program: str = ""
    """Captured: the programs that ran, with their versions."""
    ranks: int | None = None
    """How many ranks the job had."""
    logs: tuple[LogPart, ...]
    job: Job | None = None
    judgements: tuple[Judgement, ...] = ()
    settings: dict[str, str] = {}
    expect: Expected
    known_wrong: str = ""
    """Why the tool does not get this case right yet. Counted as wrong; the test fails when it becomes right."""

    @model_validator(mode="after")
    def _captured_names_its_program(self) -> Case:
        if self.evidence == "captured" and not self.program:
            raise ValueError("a captured case names the programs that ran and their versions in `program`")
        return self

    @property
    def multi_rank(self) -> bool:
        return (self.ranks or self.expect.world_size or 1) > 1


@dataclass(frozen=True, slots=True)
class Told:
    """What the tool made of a case."""

    story: LogStory
    diagnosis: Diagnosis


@cache
def reader() -> LogReader:
    return LogReader(load_signatures(data_folder("playbooks") / "oom" / "signatures"))


@cache
def cases() -> tuple[Case, ...]:
    return tuple(case for _, case in load_folder(HERE / "cases", Case))


def told(case: Case) -> Told:
    """Read the case's logs and judge them."""
    job = case.job.record() if case.job else None
    story = reader().read([part.source() for part in case.logs], job=job)
    judgements = [one.value() for one in case.judgements]
    return Told(story, diagnose(story, meanings=MEANINGS, job=job, judgements=judgements, settings=case.settings))


def field_value(story: LogStory, name: str) -> object:
    """A figure of the first failure as a case writes it."""
    if story.root_cause is None:
        return None
    value = getattr(story.root_cause.fields, name)
    if name == "other_processes":
        return [(one.pid, one.bytes) for one in value]
    return value


def wrong(case: Case, result: Told) -> list[str]:
    """Every expectation of the case that is not met, in words."""
    story, best, expect = result.story, result.diagnosis.best, case.expect
    root, found = story.root_cause, []

    def check(name: str, wanted: object, got: object) -> None:
        if wanted != got:
            found.append(f"{name}: expected {wanted!r}, got {got!r}")

    check("kind", expect.kind, best.kind)
    if expect.detail is not None:
        check("detail", expect.detail.value, best.detail.value)
    if not expect.confidence_at_least <= best.confidence <= expect.confidence_at_most:
        found.append(f"confidence: {best.confidence} is not in "
                     f"{expect.confidence_at_least} to {expect.confidence_at_most}")
    for kind in set(expect.runners_up) - {one.kind for one in result.diagnosis.runners_up}:
        found.append(f"runners-up: {kind} is not among them")
    if expect.signature != "":
        check("signature", expect.signature, root.signature if root else None)
    for name in ("rank", "local_rank", "step"):
        if getattr(expect, name) != UNSET:
            check(name, getattr(expect, name), getattr(root, name) if root else None)
    if expect.node != "":
        check("node", expect.node, root.node if root else None)
    for name in ("pid", "device", "node_device", "phase", "line"):
        if getattr(expect, name) is not None:
            check(name, getattr(expect, name), getattr(root, name) if root else None)
    for name, value in expect.fields.items():
        check(f"fields.{name}", value, field_value(story, name))
    progress = story.progress
    if expect.last_step != UNSET:
        check("last_step", expect.last_step, progress.last_step)
    for name in ("total_steps", "last_step_by_rank", "step_duration_s", "saved_steps", "resumed_from_step"):
        if getattr(expect, name) is not None:
            check(name, getattr(expect, name), getattr(progress, name))
    if len(progress.memory) < expect.memory_samples_at_least:
        found.append(f"memory samples: {len(progress.memory)}, expected {expect.memory_samples_at_least} or more")
    for name, got in (("world_size", story.world_size), ("framework", story.framework),
                      ("version", story.framework_version)):
        if getattr(expect, name) is not None:
            check(name, getattr(expect, name), got)
    for name, wanted_ranks, members in (
        ("candidate_ranks", expect.candidate_ranks, tuple(one.rank for one in story.candidates)),
        ("collateral_ranks", expect.collateral_ranks, tuple(one.rank for one in story.collateral)),
    ):
        if wanted_ranks is not None:
            check(name, wanted_ranks, members)
    if expect.harmless is not None:
        check("harmless", expect.harmless, tuple(one.signature for one in story.harmless))
    for name, words, told in (
        ("reasons", expect.reasons_say, best.reasons), ("against", expect.against_says, best.against),
        ("missing", expect.missing_says, best.missing), ("notes", expect.notes_say, story.notes),
    ):
        sentences = tuple(map(in_words, told))
        found += [f"{name}: {one!r} is not in {list(sentences)}" for one in words
                  if not any(one in sentence for sentence in sentences)]
    return found
