"""What only a playbook's folder knows: a kind of failure (one entry in its kinds.yaml, a signature that means it), and
an inference engine."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from runbook.adapters.store.totals import figures_of
from runbook.cli.command_line import explain, playbooks
from runbook.diagnosis import diagnose
from runbook.documents import DocumentsInvalid
from runbook.kinds import load_kinds
from runbook.locations import data_folder
from runbook.logs.reader import LogReader
from runbook.logs.signatures import Signatures, load_signatures
from runbook.model.diagnosis import Died, Hypothesis
from runbook.model.log import LogStory
from runbook.report.json_documents import dump_incident, load_incident
from runbook.report.narrative import what_happened
from runbook.report.summary import summarize
from runbook.report.text.diagnosis_text import render_diagnosis
from runbook.report.vocabulary.sentences import in_words
from runbook.steps import classify
from runbook.steps.shared.base import load_playbook
from tests.flow.test_nodes_of_a_log import begun

KIND = """\
  - id: scratch_full
    title: Scratch file system full
    meaning: no room was left on the node's scratch file system
    named: a full scratch file system
    short: scratch ran out
    died: main_memory
    outcome: host_oom
    confidence: 0.77
    reason: Neither the card nor main memory is the question.
    why: Nothing of a template changes it but where it writes.
    source: a test
"""
SIGNATURE = """\
version: 1
id: scratch
title: Scratch file systems
why: a test
source: a test
signatures:
  - id: SCRATCH-01
    title: The scratch file system is full
    why: a test
    source: a test
    literal: scratch is full
    pattern: 'scratch is full on rank <rank:int>'
    means: scratch_full
"""
LINE = "iteration 1 | loss 2.0\nscratch is full on rank 3\n"


@pytest.fixture
def playbook(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(data_folder("playbooks") / "oom", tmp_path / "own"))
    with (folder / "kinds.yaml").open("a", encoding="utf-8") as document:
        document.write("\n" + KIND)
    (folder / "signatures" / "scratch.yaml").write_text(SIGNATURE, encoding="utf-8")
    return folder


def signatures(playbook: Path) -> Signatures:
    return load_signatures(playbook / "signatures", load_kinds(playbook))


def read(playbook: Path) -> LogStory:
    text = LINE.encode()
    reader = LogReader(signatures(playbook))
    return reader.read([("train.out", io.BytesIO(text), len(text))])


def best(playbook: Path) -> Hypothesis:
    return diagnose(read(playbook), meanings=signatures(playbook).meanings, job=None).best


def test_it_is_diagnosed_and_titled(playbook: Path) -> None:
    found = best(playbook)
    assert (found.kind, found.confidence) == ("scratch_full", 0.77)
    assert found.kind.entry.reason in map(in_words, found.reasons)
    meanings = signatures(playbook).meanings
    told = render_diagnosis(read(playbook), diagnose(read(playbook), meanings=meanings, job=None), meanings)
    assert told.startswith("Scratch file system full, confidence 0.77\n")
    assert "No room was left on the node's scratch file system." in told


def test_it_is_explained(playbook: Path) -> None:
    for name in ("scratch_full", "SCRATCH-01"):
        told = CliRunner().invoke(explain, [name, "--playbook", str(playbook)], standalone_mode=False).output
        assert "no room was left on the node's scratch file system" in told


def test_it_leads_to_its_outcome_and_is_counted(playbook: Path) -> None:
    context = begun(LINE, ("gpu-21",))
    kinds = load_kinds(playbook)
    failure = replace(context.failure, story=read(playbook))
    context = replace(context, playbook=load_playbook(playbook), incident=replace(context.incident, failure=failure))
    result = classify.run(context)
    assert result.outcome == "host_oom"
    assert result.summary == "a full scratch file system, confidence 0.77"
    stored = load_incident(dump_incident(result.incident), kinds=kinds)
    assert dump_incident(stored) == dump_incident(result.incident)
    assert "ran out of main memory" in what_happened(stored)
    counted = figures_of(summarize(stored))
    assert any("scratch_full" in key and count == 1 for key, count in counted.items())


def test_a_signature_that_means_no_kind_is_refused_with_what_there_is(playbook: Path) -> None:
    (playbook / "signatures" / "scratch.yaml").write_text(SIGNATURE.replace("scratch_full", "scratch_ful"), "utf-8")
    with pytest.raises(DocumentsInvalid, match=r"'scratch_ful' is none of .*scratch_full"):
        load_signatures(playbook / "signatures", load_kinds(playbook))


@pytest.mark.parametrize(("old", "new", "said"), [
    ("died: main_memory\n    outcome: host_oom\n    confidence: 0.77", "died: disk\n    outcome: host_oom", "died:"),
    ("outcome: host_oom\n    confidence: 0.77", "outcome: sunny", "outcome:"),
    ("    confidence: 0.77", "    remedy: person", "no_lever"),
    ("    confidence: 0.77", "    rule: no_such_rule", "there is no rule 'no_such_rule' for a line"),
    ("    confidence: 0.77", "    perhaps: nothing_known", "no kind 'nothing_known'"),
    ("    confidence: 0.77", "    read_from: [absurd_size]", "2 kinds have absurd_size in read_from"),
    ("id: scratch_full", "id: shm", "the kind shm is described twice"),
    ("  - faulty_node\n", "", "'faulty_node' is missing"),
    ("  - faulty_node\n", "  - faulty_node\n  - sunny\n", "there is no rule 'sunny'"),
])
def test_what_is_wrong_with_the_document_is_said_with_its_line(
    playbook: Path, old: str, new: str, said: str
) -> None:
    file = playbook / "kinds.yaml"
    text = file.read_text(encoding="utf-8")
    head, _, tail = text.rpartition(old)
    assert head
    file.write_text(f"{head}{new}{tail}", encoding="utf-8")
    with pytest.raises(DocumentsInvalid) as raised:
        CliRunner().invoke(
            playbooks, ["check", "--folder", str(playbook)], standalone_mode=False, catch_exceptions=False
        )
    assert said in str(raised.value)
    assert f"{file}:" in str(raised.value)


def test_every_kind_of_the_installed_playbook_says_how_it_is_handled() -> None:
    for kind in load_kinds().values():
        assert kind.entry.title and kind.entry.meaning and kind.entry.named and kind.entry.short
        assert (kind.entry.died is Died.UNKNOWN) == (kind == "undetermined")


ENGINE = """\
version: 1
id: own_engine
title: An inference engine of the site's own
why: a test
source: a test
frameworks:
  - {id: own-engine, role: engine}
signatures:
  - id: OWN-01
    title: The engine finds no room
    why: a test
    source: a test
    literal: engine finds no room
    pattern: 'engine finds no room'
    means: inference_reservation
    engine: own-engine
"""
SHARED = "runs its trainer on the same cards"


@pytest.mark.parametrize(("document", "shared"), [
    (ENGINE, True),
    (ENGINE.replace("    engine: own-engine\n", ""), False),
])
def test_a_new_engine_beside_a_trainer_shares_its_card(playbook: Path, document: str, shared: bool) -> None:
    (playbook / "signatures" / "own_engine.yaml").write_text(document, encoding="utf-8")
    known = signatures(playbook)
    step = " iteration {}/ 100 | consumed samples: 12 | elapsed time per iteration (ms): 1230.5 | lm loss: 2.0 |\n"
    text = f"{''.join(map(step.format, range(1, 9)))}engine finds no room\n".encode()
    told = LogReader(known).read([("train.out", io.BytesIO(text), len(text))])
    found = diagnose(told, meanings=known.meanings, job=None).best
    assert found.kind == "inference_reservation"
    assert any(SHARED in in_words(reason) for reason in found.reasons) is shared


def test_an_engine_that_no_document_describes_is_refused(playbook: Path) -> None:
    document = ENGINE.replace("    engine: own-engine\n", "    engine: own_engin\n")
    (playbook / "signatures" / "own_engine.yaml").write_text(document, encoding="utf-8")
    with pytest.raises(DocumentsInvalid, match="'own_engin' is no engine among the frameworks"):
        signatures(playbook)
