"""The Xid document: every code classified and sourced, every form of every driver branch read as it is meant."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from runbook.diagnosis.nodes import recovery_action_of
from runbook.documents import DocumentsInvalid, load_document
from runbook.locations import data_folder
from runbook.model.catalogues import XidClass
from runbook.model.node import XidEvent
from runbook.model.units import MIB, Unknown
from runbook.node import Window, read_xid
from runbook.node.catalogues import GpuModelDocument, XidDocument, XidFormat, load_gpu_models, load_xids
from runbook.node.kernel_log import merged

PATH = data_folder("playbooks") / "oom" / "xid.yaml"
MODELS = PATH.with_name("gpu_models.yaml")
DOCUMENT = load_document(PATH, XidDocument)
CATALOGUE = load_xids(PATH)
UNPUBLISHED = set(range(178, 185))
APPLICATION = {8, 11, 13, 25, 31, 37, 43, 45, 69, 80, 137}
DRAINS = {46, 48, 62, 64, 79, 95, 110, 119, 120, 140, 143, 157, 158, 161, 167, 168, 169}
PENDING = {63, 156, 160, 177, 185}
LINKS = {74, 136, *range(144, 151)}


def formats(*, events: bool) -> list[Any]:
    chosen = [one for one in DOCUMENT.formats if (one.reads is not None) is events]
    return [pytest.param(one, id=f"{one.branch}: {one.why}") for one in chosen]


@pytest.mark.parametrize("code", sorted(set(range(1, 186)) - UNPUBLISHED))
def test_every_code_is_classified_with_its_source(code: int) -> None:
    meaning = CATALOGUE.meanings[code]
    assert meaning.title and meaning.action
    assert "https://" in meaning.source
    assert datetime.date.fromisoformat(meaning.source[-10:]) <= datetime.date(2026, 11, 21)


@pytest.mark.parametrize("code", [0, *sorted(UNPUBLISHED), 186, 999, 9999])
def test_a_code_that_nobody_published_is_undetermined(code: int) -> None:
    assert CATALOGUE.meaning(code).xid_class is XidClass.UNDETERMINED


def test_the_classes_of_the_decision_table() -> None:
    def of(*classes: XidClass) -> set[int]:
        return {code for code, meaning in CATALOGUE.meanings.items() if meaning.xid_class in classes}

    assert of(XidClass.APPLICATION) == APPLICATION
    assert of(XidClass.DRAIN, XidClass.RESET) == DRAINS
    assert of(XidClass.PENDING_RESET) == PENDING
    assert of(XidClass.LINK) == LINKS
    assert of(XidClass.RESTART_ELSEWHERE) == {94}
    assert of(XidClass.RECOVERY_ACTION) == {154}
    assert of(XidClass.QUALIFIER) == {171, 172}


def test_a_row_that_is_pending_already_is_no_failed_remapping() -> None:
    failure = CATALOGUE.meaning(64)
    pending = failure.for_line("NVRM: Xid (PCI:0000:3b:00): 64, Row Remapper: row ALREADY PENDING remapping")
    assert pending.xid_class is XidClass.PENDING_RESET
    for text in ("table full", "all reserved rows of the bank are used", "internal error", "retirement failed"):
        assert failure.for_line(f"NVRM: Xid (PCI:0000:3b:00): 64, Row Remapper: {text}").xid_class is XidClass.DRAIN


@pytest.mark.parametrize("stamp", ["", "[93473.25] ", "gpu-21 kernel: "])
@pytest.mark.parametrize("form", formats(events=True))
def test_each_form_of_each_branch_is_read(form: XidFormat, stamp: str) -> None:
    found, wanted = read_xid(stamp + form.sample), form.reads
    assert found is not None and wanted is not None
    assert (found.code, found.bus_id, found.pid, found.instance, found.switch_severity) == (
        wanted.code, wanted.bus, wanted.pid, wanted.instance, wanted.switch_severity
    )
    if wanted.code == 154:
        assert recovery_action_of(form.sample) == wanted.recovery_action


@pytest.mark.parametrize("form", formats(events=False))
def test_other_lines_of_the_driver_are_no_events(form: XidFormat) -> None:
    assert read_xid(form.sample) is None


@pytest.mark.parametrize("stamp", ["", "2026-11-20T04:11:32,000000+00:00 ", "1763611892.000001 gpu-21 kernel: "])
@pytest.mark.parametrize("message", [
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=u,mems_allowed=0,oom_memcg=/user.slice/{}/x,task=a",
    "process '/home/mallory/{}' started with executable stack",
    "process '/home/mallory/[ 1.0] gpu-21 kernel: {}' started with executable stack",
    "  {}",
])
@pytest.mark.parametrize("words", [
    "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.",
    "NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Fatal, Link 32",
])
def test_words_of_a_user_that_the_kernel_prints_are_no_event(stamp: str, message: str, words: str) -> None:
    assert read_xid(stamp + words) is not None
    assert read_xid(stamp + message.format(words)) is None


@pytest.mark.parametrize("words", [
    "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.",
    "NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.",
    "NVRM: GPU at 0000:c1:00.0 has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Fatal, Link 32",
])
@pytest.mark.parametrize("length", range(1, 16))
def test_a_crash_of_a_program_with_such_a_name_in_such_a_file_is_no_event(words: str, length: int) -> None:
    """The record of a crash begins with 15 bytes that the user chose and ends with the file's name."""
    assert read_xid(words) is not None
    crash = "{}[21799]: segfault at 0 ip 401106 sp 7ffd error 6 in {}[116b,401000+1000] likely on CPU 0"
    for file in (words, words[length:], f"GPU 0000:18:00: it {words}", "GPU 0000:18:00: x has fallen off the bus"):
        assert read_xid(crash.format(words[:length], file)) is None
    assert read_xid(crash.format("NVRM: GPU", "GPU 0000:18:00: x has fallen off the bus")) is None


@pytest.mark.parametrize("line", [
    "NVRM: GPU at PCI:0000:41:00 has fallen off the bus.",
    "NVRM: The NVIDIA GPU 0000:41:00.0 (PCI ID: 10de:2330) NVRM: installed in this system has NVRM: fallen off the bus "
    "and is not responding to commands.",
    "NVRM: The NVIDIA GPU 0000:41:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and is not "
    "responding to commands.",
])
def test_the_drivers_own_words_for_a_gpu_that_is_lost(line: str) -> None:
    found = read_xid(line)
    assert found is not None and (found.code, found.bus_id) == (79, "0000:41:00")


def test_a_process_that_is_named_like_an_action_or_a_milder_text_decides_nothing() -> None:
    changed = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    line = f"NVRM: Xid (PCI:0000:c1:00): 154, pid=7, name=to 0x0 (None), {changed}"
    assert recovery_action_of(line) == "Node Reboot Required"
    failed = "NVRM: Xid (PCI:0000:3b:00): 64, pid=7, name=already pending, Row Remapper: table full"
    assert CATALOGUE.meaning(64).for_line(failed).xid_class is XidClass.DRAIN


@pytest.mark.parametrize("action", DOCUMENT.recovery_actions, ids=lambda action: action.names[0])
def test_every_recovery_action_is_read_from_its_line(action: Any) -> None:
    for name in action.names:
        change = f"GPU recovery action changed from 0x0 (None) to {action.value:#x} ({name})"
        line = f"NVRM: Xid (PCI:0000:c1:00): 154, {change}"
        assert recovery_action_of(line) == name
        assert CATALOGUE.recovery_actions[name.lower()] == action.asks


def test_the_recovery_actions_are_numbered_without_a_gap() -> None:
    assert [action.value for action in DOCUMENT.recovery_actions] == list(range(8))


@pytest.mark.parametrize("line", ["", "GPU recovery action changed", "changed from 0x0 (None) to (Reset)", "to 0x1 ()"])
def test_an_action_that_cannot_be_read_is_none(line: str) -> None:
    assert recovery_action_of(line) is None


def event(code: int, time_s: float, text: str, **changes: Any) -> XidEvent:
    bus = changes.pop("bus", "0000:3b:00")
    line = f"NVRM: Xid (PCI:{bus}): {code}, pid={int(time_s)}, name=python, {text}"
    return XidEvent(code, time_s, bus, line, **changes)


def test_repeated_lines_are_one_event_with_its_first_and_last_time() -> None:
    lines = [event(48, at, f"DBE at physAddr 0x{at * 4096:x}") for at in (10, 11, 14, 90)]
    (one,) = merged(lines)
    assert (one.count, one.time_s, one.last_time_s) == (4, 10, 90)


@pytest.mark.parametrize("other", [
    event(63, 11, "DBE at physAddr 0x1"),
    event(48, 11, "DBE at physAddr 0x1", bus="0000:4c:00"),
    event(48, 11, "DBE at physAddr 0x1", in_window=False),
    event(48, 11, "something else"),
])
def test_another_code_gpu_window_or_text_is_another_event(other: XidEvent) -> None:
    assert len(merged([event(48, 10, "DBE at physAddr 0x0"), other])) == 2


def test_the_steps_of_a_recovery_are_not_merged() -> None:
    there = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    assert [one.count for one in merged([event(154, 1, there), event(154, 2, there)])] == [1, 1]


@pytest.mark.parametrize(
    ("time_s", "inside"), [(99.9, False), (100.0, True), (150.0, True), (200.0, True), (200.1, False)]
)
def test_the_window_has_both_ends(time_s: float, inside: bool) -> None:
    assert Window(100.0, 200.0).holds(time_s) is inside


def test_a_line_without_a_time_is_neither_in_nor_out() -> None:
    assert isinstance(Window(100.0, 200.0).holds(None), Unknown)


def test_a_code_without_a_known_source_is_refused(tmp_path: Path) -> None:
    text = PATH.read_text(encoding="utf-8").replace("source: header", "source: hearsay", 1)
    broken = tmp_path / "xid.yaml"
    broken.write_text(text, encoding="utf-8")
    with pytest.raises(DocumentsInvalid, match="hearsay"):
        load_xids(broken)


@pytest.mark.parametrize(("name", "mib"), [
    ("NVIDIA H100 80GB HBM3", 81559), ("A100-SXM4-40GB", 40536), ("NVIDIA A100-SXM4-40GB", 40536),
    ("Tesla V100-SXM2-32GB", 32480), ("NVIDIA H200", 143771), ("NVIDIA B200", 183359), ("NVIDIA GB200", 189471),
])
def test_the_least_that_a_sound_gpu_shows(name: str, mib: int) -> None:
    assert load_gpu_models(MODELS).capacity(name) == mib * MIB


@pytest.mark.parametrize("name", ["", "Simulated GPU", "NVIDIA A100-10C", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"])
def test_a_slice_or_an_unknown_model_has_no_capacity(name: str) -> None:
    assert load_gpu_models(MODELS).capacity(name) is None


def test_capacities_are_of_the_order_that_the_name_says() -> None:
    """A typing error in the table would call every sound GPU short."""
    for entry in load_document(MODELS, GpuModelDocument).models:
        assert max(entry.total_mib) < 1.2 * min(entry.total_mib)
        for name in entry.names:
            said = [int(part.removesuffix("GB")) for part in name.replace("-", " ").split() if part.endswith("GB")]
            if said and "GH200" not in name:
                assert 0.9 < min(entry.total_mib) / (said[0] * 1024) <= 1.0, name
