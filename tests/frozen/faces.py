"""Everything of the program, and of the tests' case files, that the frozen answers are asked through.

The parts ask through the command line and the web pages where they can. What has no such face is asked here, and only
here: a module that moves changes this file and no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from runbook.adapters.metrics import IncidentMetrics, Labels, ServiceFigures
from runbook.adapters.store import IncidentStore
from runbook.adapters.store.read_model import ReadModel
from runbook.cli.main import main
from runbook.diagnosis.nodes import NodePolicy, judge_node, judge_node_alone
from runbook.flow import load_flow
from runbook.kinds import load_kinds
from runbook.locations import data_folder
from runbook.logs.signatures import compiled_signatures
from runbook.model.incident import Incident, IncidentState, Message
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.node import CheckedNode, NodeCheck, NodeFacts, NodeJudgement
from runbook.model.remedy import NoPlan, Plan
from runbook.model.template import Edit, ParameterNames, Patch, Setting, SubmitContext, TemplateFile
from runbook.model.units import IncidentId, JobId, NodeName, Unknown, UserName
from runbook.node import read_left_document
from runbook.remedy import find_restarters, resume_edits, resume_findings
from runbook.remedy.loading import compiled_levers
from runbook.report.contract import story_to_contract, to_contract
from runbook.report.json_documents import dump_node_check as dump_check
from runbook.report.text.diagnosis_text import render_diagnosis
from runbook.report.text.incident_text import one_line
from runbook.report.text.node_text import render as render_check
from runbook.report.text.notifications import messages, reminder
from runbook.report.vocabulary.sentences import in_words
from runbook.service.app import Shown, create_app
from runbook.template import CannotEdit, all_settings, apply, find_settings, named_files, settings_in_force
from tests.checkpoints import test_checkpoints_judged as checkpoint_cases
from tests.diagnosis import test_nodes as node_cases
from tests.kinds import MEANINGS
from tests.levers import test_lever_cases as lever_cases
from tests.levers.lever_cases import LeverCase
from tests.logs import corpus
from tests.node import test_node_recorded as recorded_cases
from tests.nvml import standin
from tests.remedy import test_remedy_proposals as proposal_cases
from tests.remedy import test_remedy_world_and_resume as world_cases
from tests.remedy import test_resume_checks as resume_cases
from tests.report.sample_incidents import FLOW, OPENED_S, SAMPLES
from tests.template import template_cases
from tests.template import test_config_cases as config_cases

WIDTH = 100
PLAYBOOK = data_folder("playbooks") / "oom"
LATER_S = OPENED_S + 20_000
URL = "https://runbook.example/"
Parts = list[tuple[str, str]]
"""Heads, and the text that stands below each."""


_HOW_FAR = re.compile(r"(?m)^reading [^\n]* GB/s\n")
"""What a reader of logs prints every five seconds: only a busy machine takes so long."""


def command(*words: str) -> str:
    """What the command prints, and its exit code where it is not 0."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", "", write_through=True) for _ in "oe"]
    code: object = 0
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            main(list(words))
        except SystemExit as ending:
            code = ending.code
    said, complained = (stream.detach().getvalue().decode() for stream in streams)
    complained = _HOW_FAR.sub("", complained)
    return said + (f"--- standard error\n{complained}" if complained else "") + (f"--- exit {code}\n" if code else "")


def compile_playbook(folder: Path) -> None:
    """As the wheel's build does it, so that a command does not read the documents each time."""
    kinds = load_kinds(folder)
    compiled_signatures(folder / "signatures", kinds).keep()
    compiled_levers(folder / "levers", kinds).keep()


# Logs


def log_cases() -> tuple[corpus.Case, ...]:
    return corpus.cases()


def judged_logs(case: corpus.Case) -> Parts:
    """The diagnosis with all that the case knows of the job, the nodes and the template."""
    if not (case.job or case.judgements or case.settings):
        return []
    told = corpus.told(case)
    contract = {**to_contract(told.story, told.diagnosis), **story_to_contract(told.story)}
    return [("with all that is known, json", as_json(contract)),
            ("with all that is known", render_diagnosis(told.story, told.diagnosis, MEANINGS, WIDTH))]


def as_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def read_json(text: str) -> Any:
    return json.loads(text)


# Templates and levers


def lever_files() -> dict[str, list[LeverCase]]:
    """The cases by the file that they stand in."""
    found: dict[str, list[LeverCase]] = {}
    for case in lever_cases.ALL:
        found.setdefault(case.system_file, []).append(case)
    return found


def lever_answers(case: LeverCase) -> tuple[Parts, str, tuple[str, ...]]:
    """What is read, proposed and written; the system, and the names of the levers."""
    system = lever_cases.system_of(case)
    outcome = lever_cases.proposed(case)
    parts = [("system", f"{system.id}: {system.title}"), ("values", settings(lever_cases.settings_of(case, system))),
             ("outcome", proposal(outcome))]
    if isinstance(outcome, NoPlan):
        return parts, system.id, ()
    parts += patched(partial(lever_cases.patched, case, outcome))
    return parts, system.id, tuple(use.lever for use in outcome.uses)


def settings(found: Iterable[Setting]) -> str:
    lines = []
    for item in found:
        value = f"= {item.value}" if item.value is not None else f"? {item.unresolved}"
        trail = f" ({'; '.join(item.trail)})" if item.trail else ""
        lines.append(f"{item.parameter} {value} @ {item.file}:{item.line} {item.kind} {item.spelling}{trail}")
    return "\n".join(lines)


def proposal(outcome: Plan | NoPlan) -> str:
    lines = []
    if isinstance(outcome, NoPlan):
        lines += [f"no plan: {in_words(outcome.why)}", f"question: {in_words(outcome.question)}",
                  f"exhausted: {outcome.exhausted}"]
    else:
        lines.append(f"plan of {outcome.system}, ladder {outcome.ladder}")
        for use in outcome.uses:
            lines += [
                f"lever {use.lever}: {use.title}", f"  key: {use.key}", f"  why: {use.why}", f"  source: {use.source}",
                f"  effect: {use.effect}", f"  cost: {use.cost}", f"  expectation: {in_words(use.expectation)}",
                f"  needs reshard: {use.needs_reshard}", *(f"  seen before: {text}" for text in use.seen_before),
            ]
            lines += [f"  {line}" for line in edits(use.edits)]
    for item in outcome.refused:
        asks = f"; needs a person: {in_words(item.question)}" if item.needs_person or item.question else ""
        lines.append(f"refused {item.lever}: {in_words(item.why)}{asks}")
    return "\n".join(lines)


def edits(found: Iterable[Edit]) -> list[str]:
    return [
        f"edit {item.parameter}: {item.old} -> {item.new} ({item.kind}{', flag' if item.flag else ''}: "
        f"{' | '.join(item.spellings)})" for item in found
    ]


def patched(edit: Callable[[], Patch]) -> Parts:
    try:
        patch = edit()
    except CannotEdit as refused:
        return [("refused", str(refused))]
    return [("diff", patch.diff), *([("notes", "\n".join(patch.notes))] if patch.notes else [])]


def shell_cases() -> Iterator[tuple[str, Parts]]:
    for case in template_cases.ALL:
        names = () if "without names" in case.parts else template_cases.NAMES
        parts = _values((case.file,), template_cases.NAMES, case.known)
        if case.edits:
            parts += patched(partial(apply, (case.file,), case.edits, names=names, known=case.known))
        yield case.title, parts


def configuration_cases() -> Iterator[tuple[str, Parts]]:
    for case in config_cases.ALL:
        shown = [line.split(" ", 1)[0] for part in ("settings", "together")
                 for line in case.parts.get(part, "").splitlines()]
        parts = _values(case.files, [config_cases.name_of(one) for one in shown], None)
        yield case.title, [*parts, *(patched(partial(apply, case.files, case.edits)) if case.edits else [])]


def _values(
    files: tuple[TemplateFile, ...], names: Sequence[ParameterNames], known: SubmitContext | None
) -> Parts:
    parts = [(f"values of {file.path}", settings(find_settings(file, names, known))) for file in files if names]
    parts += [("values together", settings(settings_in_force(files, names, known))),
              ("all values", settings(all_settings(files, known)))]
    for file in files:
        named = [
            f"{item.line}: {item.option} {item.path} program={item.program} script={item.script} "
            f"folder={item.folder.said if item.folder else ''} {item.unresolved}".rstrip()
            for item in named_files(file, known)
        ]
        parts += [(f"files that {file.path} names", "\n".join(named))] if named else []
    return parts


# Plans from values alone


def proposals() -> Iterator[tuple[str, Parts]]:
    for case in proposal_cases.CASES:
        yield case["title"], [("outcome", proposal(proposal_cases.proposed(case)))]


def worlds() -> Iterator[tuple[str, Parts]]:
    for case in world_cases.WORLDS:
        files, names, outcome = world_cases.reduced(case)
        parts = [("outcome", proposal(outcome))]
        if files and isinstance(outcome, Plan):
            parts += patched(partial(apply, files, outcome.edits, names=names))
        yield case["title"], parts


def resumes() -> Iterator[tuple[str, Parts]]:
    for case in resume_cases.CASES:
        told = resume_cases.told_of(case["template"], case.get("submitted", ""))
        checkpoint = resume_cases.checkpoint_of(case)
        found = resume_findings(told, checkpoint, made_steps=not case.get("died_at_once", False))
        others = find_restarters(told, resume_cases.COMMON)
        lines = [*(f"refused: {in_words(item.why)} {in_words(item.question)}" for item in found.refusals),
                 *(f"note: {in_words(text)}" for text in (*found.notes, *others.notes)),
                 *(f"to do: {in_words(text)}" for text in (*found.to_do, *others.to_do)),
                 *edits((*others.edits, *found.edits))]
        if checkpoint is not None:
            resumed = resume_edits(told, checkpoint)
            lines += [f"resume {line}" for line in edits(resumed)]
        yield case["title"], [("outcome", "\n".join(lines))]


def checkpoints() -> Iterator[tuple[str, Parts]]:
    for case in checkpoint_cases.CASES:
        lines = [
            f"{one.path}: step {one.step}, complete {one.complete}, {one.format}, world {one.world_size}, reshardable "
            f"{one.reshardable}, latest {one.latest}; {one.why}" for one in checkpoint_cases.judged(case)
        ]
        yield case["title"], [("found", "\n".join(lines))]


def flow() -> Iterator[tuple[str, Parts]]:
    graph = load_flow(PLAYBOOK / "flow.yaml")
    yield f"{graph.id}: {graph.title}, from {graph.start}", []
    for box in graph.boxes.values():
        after = [f"{outcome} -> {graph.after(box.name, outcome)}" for outcome in box.next]
        yield f"{box.name}{' (acts)' if box.acts else ''}", [(box.title, "\n".join([box.why.strip(), *after]))]


# Nodes


def node_scenarios() -> Iterator[tuple[str, Parts]]:
    for (case,) in (param.values for param in node_cases.cases()):
        yield case["name"], _node(node_cases.facts_of(case), node_cases.judgement_of(case))


def recorded_nodes() -> Iterator[tuple[str, Parts]]:
    for kind in ("nvidia_smi", "kernel_log"):
        for param in recorded_cases.load(kind):
            facts = recorded_cases.facts_of(param.values[0])
            for since_s in (None, facts.log_covers_since_s):
                if isinstance(since_s, Unknown) or (kind == "nvidia_smi" and since_s is not None):
                    continue
                judgement = judge_node_alone(facts, node_cases.DOCUMENTS, NodePolicy(), since_s=since_s)
                title = f"{kind}: {param.id}{', from the beginning of its log' if since_s else ''}"
                yield title, _node(facts, judgement)


def _node(facts: NodeFacts, judgement: NodeJudgement) -> Parts:
    reports = node_cases.DOCUMENTS.rules.reports_by_rule
    check = NodeCheck((CheckedNode(facts, judgement),), node_cases.START_S + 3700, reports=reports)
    told = json.loads(dump_check(check))["nodes"][0]
    return [("text", "\n".join(line.text for line in render_check(check, WIDTH))),
            ("judgement", as_json(told["judgement"]))]


def probe_scenarios() -> list[str]:
    """Names of the stand-in library's scenarios, but for those where a call hangs: how far the probe comes is a matter
    of the machine's speed. None where no compiler can build the library."""
    found = sorted(path.stem for path in standin.SCENARIOS.glob("*.txt")) if standin.GCC else []
    return [name for name in found if "hung" not in name]


def probed(scenario: str) -> Parts:
    """The node check's judgement of what the probe finds, the kernel log taken as read and empty."""
    text = json.dumps(standin.document_of(scenario))
    facts = read_left_document(text, NodeName("gpu-21"))
    facts = replace(facts, xids=(), log_covers_since_s=0.0, partial_view="")
    job = JobRecord(
        JobId("4711"), "test", "train", UserName("alice"), JobState("FAILED", JobClass.FAILED),
        gpus_per_node=None if isinstance(facts.gpus, Unknown) else len(facts.gpus), start_time_s=1000.0,
        end_time_s=2000.0,
    )
    judgement = judge_node(facts, job, node_cases.DOCUMENTS, NodePolicy())
    told = json.loads(dump_check(NodeCheck((CheckedNode(facts, judgement),), 2000.0)))["nodes"][0]
    return [("gpus", as_json(told["facts"]["gpus"])), ("judgement", as_json(told["judgement"]))]


# Incidents


def sample_incidents() -> dict[str, Incident]:
    """Each under an id of its own."""
    return {
        name: replace(make(), id=IncidentId(f"oom-alpha-{number}"), root_job=JobId(str(number)))
        for number, (name, make) in enumerate(sorted(SAMPLES.items()))
    }


def store(state: Path, incidents: Iterable[Incident]) -> None:
    kept = IncidentStore(state)
    for incident in incidents:
        kept.save(incident, {"version": 1})


def told_people(incident: Incident) -> Parts:
    """Messages from nothing, from the moment before, and before a question lapses."""
    before = replace(incident, state=IncidentState.RUNNING, awaiting="", conclusion="")
    opened = replace(before, attempts=(), acts=(), drained_nodes=())
    day_s = 86_400.0
    late = reminder(incident, incident.updated_s + day_s - 3600, day_s, URL)
    return [
        ("one line", one_line(incident)),
        ("from nothing", _messages(messages(None, incident, URL))),
        ("from the moment before", _messages(messages(before, incident, URL))),
        ("from its beginning", _messages(messages(opened, incident))),
        ("reminder", _messages([late] if late is not None else [])),
    ]


def _messages(found: Iterable[Message]) -> str:
    return "\n\n".join(
        f"{one.event}: {one.severity}, question {one.question}, link {one.link}"
        f"{one.answer and f', answer {one.answer}'}\n{one.title}\n{one.body}\n{one.about}"
        for one in found
    )


def metrics(state: Path) -> str:
    figures = ServiceFigures(
        now_s=OPENED_S + 100, version="0.1.0", heartbeat_s=OPENED_S + 99, spool_depth=3, spool_oldest_s=OPENED_S + 40,
        spool_bad=1, events_opened=7, notifications=(("oncall", "failed", 2),),
    )
    labels = Labels("alpha", "oom", report_url=URL)
    exposed = IncidentMetrics(ReadModel(IncidentStore(state)), labels, lambda: figures, now=lambda: LATER_S)
    return exposed.text().decode()


def page(state: Path, address: str) -> str:
    """What the service answers, without signing in."""
    kept = IncidentStore(state)
    shown = Shown(
        kept, ReadModel(kept), lambda _incident: FLOW, lambda: {"ok": True}, lambda: metrics(state).encode()
    )
    app = create_app(shown, hosts=("testserver",), now=lambda: LATER_S)

    async def asked() -> httpx2.Response:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://testserver") as client:
            return await client.get(address)

    answer = asyncio.run(asked())
    for thread in threading.enumerate():
        # Those that rendered the page end by themselves, but a command that ends before them ends the process.
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(10)
    return f"{answer.status_code} {answer.headers.get('location', '')}".strip() + f"\n{answer.text}"
