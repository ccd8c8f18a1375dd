"""Stories: logs and circumstances in, what must be found out; each case is a file under cases/."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Literal

import pytest

from runbook.diagnosis import diagnose
from runbook.diagnosis.contract import to_contract
from runbook.documents import Document, load_folder
from runbook.evidence.logs import LogReader
from runbook.evidence.signatures import load_signatures
from runbook.locations import data_folder
from runbook.model.diagnosis import Diagnosis
from runbook.model.job import JobClass, JobRecord, JobState, StepRecord
from runbook.model.log import Finding, LogStory
from runbook.model.node import GpuProcess, NodeJudgement, NodeVerdict
from runbook.model.units import Bytes, JobId, NodeName, UserName

READER = LogReader(load_signatures(data_folder("playbooks") / "oom" / "signatures"))
HERE = Path(__file__).parent
LOGS = HERE.parent / "logs"


class LogPart(Document):
    path: str
    file: str = ""
    """Name under tests/logs, or `text` here."""
    text: str = ""

    def source(self) -> tuple[str, BinaryIO, int]:
        content = (LOGS / self.file).read_bytes() if self.file else self.text.encode()
        return self.path, io.BytesIO(content), len(content)


class Step(Document):
    id: str
    state: str


class Job(Document):
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
    """Only what is named is checked. `signature: null` means that no line may be called the first failure."""

    kind: str
    confidence_at_least: float = 0.0
    confidence_at_most: float = 1.0
    runners_up: tuple[str, ...] = ()
    signature: str | None = ""
    rank: int | None = -1
    node: str | None = ""
    pid: int | None = None
    device: int | None = None
    phase: str | None = None
    step: int | None = -1
    line: int | None = None
    last_step: int | None = -1
    saved_steps: tuple[int, ...] | None = None
    resumed_from_step: int | None = None
    world_size: int | None = None
    version: str | None = None
    fields: dict[str, int | None] = {}
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
    evidence: Literal["captured", "written"]
    """Captured: the log came from a program that ran. Written: after the message shapes of the sources."""
    logs: tuple[LogPart, ...]
    job: Job | None = None
    judgements: tuple[Judgement, ...] = ()
    settings: dict[str, str] = {}
    expect: Expected


CASES = tuple(case for _, case in load_folder(HERE / "cases", Case))


def told(case: Case) -> tuple[LogStory, Diagnosis]:
    job = case.job.record() if case.job else None
    story = READER.read([part.source() for part in case.logs], job=job)
    judgements = [one.value() for one in case.judgements]
    return story, diagnose(story, job=job, judgements=judgements, settings=case.settings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_story(case: Case) -> None:
    story, diagnosis = told(case)
    expect = case.expect
    best = diagnosis.best
    assert best.kind == expect.kind, (best, story.root_cause)
    assert expect.confidence_at_least <= best.confidence <= expect.confidence_at_most
    assert {one.kind.value for one in diagnosis.runners_up} >= set(expect.runners_up)
    assert best.confidence + sum(one.confidence for one in diagnosis.runners_up) <= 1.0 + 1e-9
    check_root(expect, story)
    check_progress(expect, story)
    if expect.candidate_ranks is not None:
        assert tuple(one.rank for one in story.candidates) == expect.candidate_ranks
    if expect.collateral_ranks is not None:
        assert tuple(one.rank for one in story.collateral) == expect.collateral_ranks
    if expect.harmless is not None:
        assert tuple(one.signature for one in story.harmless) == expect.harmless
    says(expect.reasons_say, best.reasons)
    says(expect.against_says, best.against)
    says(expect.missing_says, best.missing)
    says(expect.notes_say, story.notes)
    json.dumps(to_contract(story, diagnosis))


def check_root(expect: Expected, story: LogStory) -> None:
    root = story.root_cause
    if expect.signature is None:
        assert root is None
        return
    if expect.signature == "":
        return
    assert root is not None
    assert root.signature == expect.signature
    for name in ("pid", "device", "phase", "line"):
        wanted = getattr(expect, name)
        assert wanted is None or getattr(root, name) == wanted, name
    for name, unset in (("rank", -1), ("step", -1), ("node", "")):
        wanted = getattr(expect, name)
        assert wanted == unset or getattr(root, name) == wanted, name
    check_fields(expect, root)


def check_fields(expect: Expected, root: Finding) -> None:
    for name, value in expect.fields.items():
        assert getattr(root.fields, name) == value, name


def check_progress(expect: Expected, story: LogStory) -> None:
    assert expect.last_step == -1 or story.progress.last_step == expect.last_step
    assert expect.saved_steps is None or story.progress.saved_steps == expect.saved_steps
    assert expect.resumed_from_step is None or story.progress.resumed_from_step == expect.resumed_from_step
    assert expect.world_size is None or story.world_size == expect.world_size
    assert expect.version is None or story.framework_version == expect.version


def says(wanted: Sequence[str], said: Sequence[str]) -> None:
    for words in wanted:
        assert any(words in sentence for sentence in said), f"{words!r} is not in {list(said)}"


def test_there_are_enough_stories_of_every_sort() -> None:
    """The floor that the set must not fall below."""
    assert len(CASES) >= 40
    assert sum(1 for case in CASES if case.expect.kind in ("not_oom", "hardware_fault", "undetermined")) >= 12
