"""What a word means: whoever types it at night gets an answer, however it is spelt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runbook.documents import DocumentsInvalid
from runbook.explain.terms import load_terms
from runbook.explain.topics import near, topics_of
from runbook.locations import data_folder


def told(word: str) -> dict[str, str]:
    """Name of each topic, and all that is told of it."""
    return {topic.name: " ".join(text for _, text in topic.rows) for topic in topics_of(word)}


@pytest.mark.parametrize("word", [
    "79", "xid 79", "XID-79", "Xid79", "xid: 79", "Xid (79)", "xid_79",
    "NVRM: Xid (PCI:0000:c1:00): 79, pid=12, name=python, GPU has fallen off the bus.",
    "[12.3] NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.",
])
def test_an_xid_in_any_spelling(word: str) -> None:
    (topic,) = topics_of(word)
    assert topic.name == "xid 79" and topic.title == "GPU has fallen off the bus"
    assert "the node is drained" in dict(topic.rows)["class"]


def test_an_xid_that_nobody_published_is_for_a_person() -> None:
    assert "a person decides" in told("xid 999")["xid 999"]
    assert not topics_of("999")  # a number alone is nothing in particular


def test_an_xid_that_a_program_causes_drains_nothing() -> None:
    (topic,) = topics_of("xid 31")
    assert "nothing is drained" in dict(topic.rows)["class"] and "drains" not in dict(topic.rows)


@pytest.mark.parametrize(("word", "name", "says"), [
    ("0:53", "0:53", "output file"),
    ("0:125", "0:125", "out of memory"),
    ("137:0", "exit code 137", "no proof of memory"),
    ("exit code 139", "exit code 139", "native code"),
    ("rc=134", "exit code 134", "SIGABRT"),
    ("-9", "exit code 137", "SIGKILL"),
    ("0:7", "SIGBUS", "/dev/shm"),
    ("exit code 3", "exit code", "its own affair"),
    ("oom_kill", "", ""),
    ("out-of-memory", "OUT_OF_MEMORY", "not of the GPU"),
    ("NODE_FAIL", "NODE_FAIL", "stopped answering"),
    ("dependencyneversatisfied", "DependencyNeverSatisfied", "never start"),
    ("row remap", "row remapping", "spare row"),
    ("SXid", "SXid", "NVSwitch"),
    ("ncclRemoteError", "ncclRemoteError", "first failing rank"),
    ("CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "others hold the card"),
    ("Segmentation fault", "SIGSEGV", "Native code"),
    ("RunbookEscalated", "RunbookEscalated", "The tool stopped"),
    ("choose_lever", "choose_lever", "least invasive"),
    ("limit_reached", "limit_reached", "relaunch"),
])
def test_words_from_around_a_job(word: str, name: str, says: str) -> None:
    found = told(word)
    assert (says in found[name]) if name else not found


def test_a_code_of_two_figures_is_put_together_from_both() -> None:
    assert set(told("1:9")) == {"exit code 1", "SIGKILL"}


def test_one_word_for_several_things_is_told_for_each() -> None:
    assert [topic.what for topic in topics_of("143")] == ["Xid", "exit code"]
    for topic in topics_of("143"):
        assert [one.what for one in topics_of(topic.name)] == [topic.what], "each can be asked for alone"


def test_whatever_a_topic_leads_to_is_there() -> None:
    terms = load_terms()
    names = {name for group in terms.begin for name in group.names}
    names |= {name for term in terms.terms for name in (*term.names, *term.see)}
    assert [name for name in sorted(names) if not topics_of(name)] == []


def test_every_alert_that_can_ring_is_explained() -> None:
    rules = "".join(path.read_text() for path in (data_folder("deploy") / "prometheus").glob("*.rules.yml"))
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) > 10
    for alert in alerts:
        (topic,) = topics_of(alert)
        assert {"means", "asked"} <= {label for label, _ in topic.rows}, alert


@pytest.mark.parametrize(("word", "close"), [
    ("trueoom", "true_oom"), ("xid 7", "xid 74"), ("ncclSystemEror", "ncclSystemError"), ("NODE_FIAL", "NODE_FAIL"),
    ("fragmantation", "fragmentation"), ("smaler_micro_batch", "smaller_micro_batch"),
])
def test_a_slip_of_the_fingers_is_answered_with_the_name(word: str, close: str) -> None:
    found = near(word)
    assert close in found or topics_of(word)[0].what == "Xid"


@pytest.mark.parametrize("word", ["", " ", "(" * 300, "xid " * 100, "\x1b[31m79", "a" * 5000, "0:" * 200])
def test_hostile_words_are_no_topics(word: str) -> None:
    assert [topic for topic in topics_of(word) if topic.what != "Xid"] == []


def test_a_document_of_terms_says_all_that_is_wrong_with_it(tmp_path: Path) -> None:
    document = tmp_path / "terms.yaml"
    document.write_text(
        "version: 1\nid: t\ntitle: t\nwhy: w\nsource: s\ngroups: {a: {title: A, source: s}}\nterms:\n"
        "- {names: [X], group: a, means: m}\n- {names: [x], group: a, means: m}\n- {names: [Y], group: b, means: m}\n"
    )
    with pytest.raises(DocumentsInvalid) as wrong:
        load_terms(document)
    assert "'x' stands twice" in str(wrong.value) and "no group 'b'" in str(wrong.value)
