"""The probe's document as input that may hold anything: never an exception, never a healthy figure out of nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.model.node import NodeFacts, Reach
from runbook.model.units import NodeName, Unknown
from runbook.node import Window, read_left_document, read_node

NODE = NodeName("n")
MARKER = "@@0123456789abcdef"

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
GPU = st.dictionaries(
    st.sampled_from([
        "index", "uuid", "bus_id", "lost", "total_bytes", "row_remap_failed", "row_remap_pending", "processes",
        "recovery_action", "retired_pages_pending", "mig_enabled", "ecc_uncorrectable_volatile",
    ]),
    VALUES,
)
DOCUMENT = st.fixed_dictionaries({
    "document": st.just("runbook-node"),
    "version": st.just(1),
    "node": st.dictionaries(
        st.sampled_from(["now_s", "uptime_s", "user", "inside", "driver_gpus", "pci_gpus"]), VALUES
    ) | VALUES,
    "nvml": st.fixed_dictionaries({"driver": VALUES, "gpus": st.lists(GPU | VALUES, max_size=3) | VALUES}) | VALUES,
    "kernel_log": st.fixed_dictionaries({"sources": st.lists(
        st.dictionaries(st.sampled_from(["source", "lines", "covers_since_s", "unknown"]), VALUES), max_size=3
    )}) | VALUES,
    "processes": st.lists(
        st.dictionaries(st.sampled_from(["pid", "uid", "stat", "cgroups", "environment", "gone"]), VALUES), max_size=3
    ) | VALUES,
})


def read(document: Any) -> NodeFacts:
    return read_left_document(json.dumps(document), NODE, Window(0.0, 1e10))


@settings(max_examples=150, deadline=None)
@given(DOCUMENT)
def test_anything_is_read_without_an_exception(document: Any) -> None:
    facts = read(document)
    assert facts.reach is Reach.OK
    if not isinstance(facts.gpus, Unknown):
        for gpu in facts.gpus:
            assert gpu.row_remap_failed in (True, False) or isinstance(gpu.row_remap_failed, Unknown)


def test_an_empty_document_knows_nothing() -> None:
    facts = read({"document": "runbook-node", "version": 1})
    for value in (facts.driver, facts.gpus, facts.xids, facts.log_covers_since_s):
        assert value == Unknown("the probe's answer does not have it")


def test_an_empty_gpu_is_neither_lost_nor_healthy() -> None:
    facts = read({"document": "runbook-node", "version": 1, "nvml": {"gpus": [{}]}})
    assert not isinstance(facts.gpus, Unknown)
    (gpu,) = facts.gpus
    assert (gpu.index, gpu.lost) == (-1, False)
    assert all(isinstance(value, Unknown) for value in (gpu.row_remap_failed, gpu.total_bytes, gpu.processes))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "wrote no document"),
        ("Traceback (most recent call last):", "wrote no document"),
        ('{"document": "runbook-node", "version": 1, "nvml": {"gp', "cut off or no JSON"),
        ('{"document": "other"}', "not a document of a node"),
        ('{"document": "runbook-node", "version": 2}', "version 2, not 1"),
        ("{" * 100000, "cut off or no JSON"),
        ('{"a":' * 50000, "cut off or no JSON"),
    ],
)
def test_what_is_no_document_is_said(text: str, words: str) -> None:
    facts = read_left_document(text, NODE)
    assert facts.reach is Reach.ERROR
    assert words in facts.reach_detail
    assert isinstance(facts.gpus, Unknown)


def test_times_are_put_on_our_clock() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
    document = {
        "document": "runbook-node", "version": 1, "node": {"now_s": 1000100.0},
        "kernel_log": {"sources": [{
            "source": "dmesg", "any_user_can_write": False, "covers_since_s": 900100.0,
            "lines": [{"time_s": 1000050.0, "line": line}],
        }]},
    }
    text = (
        f"{MARKER} begin node\nnow=1000100\n{MARKER} end node 0\n"
        f"{MARKER} begin probe\n{json.dumps(document)}\n{MARKER} end probe 0\n{MARKER} done\n"
    )
    facts = read_node(text, MARKER, NODE, Window(999940, 999960), 1000000.0)
    assert not isinstance(facts.xids, Unknown)
    assert [(event.time_s, event.in_window) for event in facts.xids] == [(999950.0, True)]
    assert facts.log_covers_since_s == 900000.0
    assert "+100 s off ours" in facts.reach_detail
