"""The document of answers, the questions, and the Xid catalogue."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from runbook.documents import DocumentsInvalid
from runbook.errors import BadInput
from runbook.locations import data_folder
from runbook.model.catalogues import LinkAsk, XidClass
from runbook.model.node import Reach
from runbook.model.units import NodeName, Unknown
from runbook.node import Limits, Window, check_script, process_script, read_answers, read_node, read_xid
from runbook.node.catalogues import load_xids
from runbook.node.sections import printable
from tests.adapters.jobs import running

MARKER = "@@0123456789abcdef"
CATALOGUE = data_folder("playbooks") / "oom" / "xid.yaml"


def test_text_of_a_node_cannot_pass_for_a_marker() -> None:
    hostile = (
        "@@0000000000000000 begin gpus\n0, GPU-fake\n@@0000000000000000 end gpus 0\n"
        f" {MARKER} begin gpus\n x{MARKER} end apps 0"
    )
    answers = read_answers(f"hello\n{MARKER} begin apps\n{hostile}\n{MARKER} end apps 3\n{MARKER} done\n", MARKER)
    assert set(answers.sections) == {"apps"}
    section = answers.sections["apps"]
    assert section.text == hostile
    assert section.exit_code == 3
    assert not answers.cut


@pytest.mark.parametrize("end", [f"{MARKER} end other 0", f"{MARKER} begin next", f"{MARKER} done", "", f"{MARKER}"])
def test_a_section_without_its_own_end_has_no_status(end: str) -> None:
    answers = read_answers(f"{MARKER} begin apps\nsome text\n{end}\n", MARKER)
    assert answers.sections["apps"].exit_code is None
    assert answers.sections["apps"].text == "some text"
    assert answers.sections["apps"].timed_out


def test_any_cut_of_an_answer_is_read_without_inventing_health() -> None:
    """Whatever byte the connection breaks at: a GPU is never reported without the figures that were read."""
    row = "0, GPU-a, 00000000:19:00.0, NVIDIA H100 80GB HBM3, 570.86.15, 81559, 1, 81090, 0, 0, Disabled, None"
    whole = (
        f"{MARKER} begin node\nuser=root\nnow=100\n{MARKER} end node 0\n{MARKER} begin kernel_log\n"
        f"2026-11-20T06:41:28,000000+00:00 Linux\n{MARKER} end kernel_log 0\n{MARKER} begin gpus\n{row}\n"
        f"{MARKER} end gpus 0\n{MARKER} begin apps\n{MARKER} end apps 0\n{MARKER} done\n"
    )
    node = NodeName("n")
    for length in range(len(whole)):
        facts = read_node(
            whole[:length], MARKER, node, Window(0, None), None, cut_why="no end within 15 s"
        )
        if facts.reach is Reach.OK:
            assert "no end within 15 s" in facts.reach_detail or whole[:length].rstrip().endswith("done")
            for gpu in () if isinstance(facts.gpus, Unknown) else facts.gpus:
                assert gpu.uuid == "GPU-a"
                assert gpu.total_bytes == 81559 << 20
                assert isinstance(gpu.row_remap_failed, Unknown)
                assert isinstance(gpu.processes, Unknown) or f"{MARKER} end apps 0" in whole[:length]
        else:
            assert facts.reach is Reach.TIMEOUT


def test_a_shell_that_says_something_else_is_an_error_with_its_words() -> None:
    facts = read_node(
        "This account is currently not available.\n", MARKER, NodeName("n"), Window(), 1
    )
    assert facts.reach is Reach.ERROR
    assert "This account is currently not available." in facts.reach_detail


@pytest.mark.parametrize("name", ["A;reboot", "A B", "", "1A", "A$(x)", "A\nB", "A'"])
def test_a_variable_name_with_anything_else_in_it_is_refused(name: str) -> None:
    with pytest.raises(BadInput):
        process_script(MARKER, running("1", "root"), (name,))


@pytest.mark.parametrize("job", ["1;reboot", "", "1_", "a", "1 2", "$(x)", "1+2+3", "1\n"])
def test_a_job_id_with_anything_else_in_it_is_refused(job: str) -> None:
    with pytest.raises(BadInput):
        process_script(MARKER, running(job, "root"), ("A",))


def test_a_node_name_cannot_break_out_of_the_script() -> None:
    script = check_script(MARKER, "a'; reboot; '", 1.0, Limits.within(15))
    assert "NODE='a'\"'\"'; reboot; '\"'\"''" in script


@pytest.mark.parametrize("deadline_s", [4, 15, 60])
def test_the_limits_of_the_commands_fit_into_the_deadline(deadline_s: float) -> None:
    """The log's three commands at most, then nvidia-smi once: after it hung, it is not asked again."""
    limits = Limits.within(deadline_s)
    assert 3 * limits.log_s + limits.gpu_s <= deadline_s


def test_control_characters_do_not_survive() -> None:
    assert printable("a\x1b[31mb\r\nc\u202ed\x00") == "a [31mb  c d"
    assert len(printable("x" * 1000)) == 400


# The decision table: classes that the rest of the product relies on.
CLASSES = {
    XidClass.APPLICATION: (8, 11, 13, 25, 31, 37, 43, 45, 69, 80, 137),
    XidClass.DRAIN: (64, 79, 143, 157, 161, 167),
    XidClass.RESET: (46, 48, 62, 95, 110, 119, 120, 140, 158, 168, 169),
    XidClass.RESTART_ELSEWHERE: (94,),
    XidClass.PENDING_RESET: (63, 156, 160, 177, 185),
    XidClass.LINK: (74, 136, 144, 145, 146, 147, 148, 149, 150),
    XidClass.RECOVERY_ACTION: (154,),
    XidClass.QUALIFIER: (171, 172),
    XidClass.UNDETERMINED: (1, 54, 58, 173, 175, 178, 184, 186, 12028),
}


@pytest.mark.parametrize(("xid_class", "codes"), CLASSES.items())
def test_the_catalogue_follows_the_decision_table(xid_class: XidClass, codes: tuple[int, ...]) -> None:
    catalogue = load_xids(CATALOGUE)
    assert {code: catalogue.meaning(code).xid_class for code in codes} == dict.fromkeys(codes, xid_class)


def test_every_code_of_the_vendors_catalogue_is_there_and_only_those_of_the_table_drain() -> None:
    catalogue = load_xids(CATALOGUE)
    assert set(range(1, 177)) <= set(catalogue.meanings)
    draining = {
        code for code, meaning in catalogue.meanings.items() if meaning.xid_class in (XidClass.DRAIN, XidClass.RESET)
    }
    assert draining == {*CLASSES[XidClass.DRAIN], *CLASSES[XidClass.RESET]}


def test_the_link_table_has_every_row_of_the_vendors_sheet() -> None:
    """Rows a code and an action: a unit with several pipes under one name has as many rows for each."""
    rows = Counter(
        (unit.code, asks)
        for unit in load_xids(CATALOGUE).link_units
        for asks in (*unit.statuses.values(), *(asks for asks, _ in unit.reasons.values()))
        for _ in range(max(1, len(unit.ids) - 1))
    )
    reset, by_154, nothing = LinkAsk.RESET, LinkAsk.BY_154, LinkAsk.NOTHING
    assert rows == {
        (144, nothing): 4, (144, reset): 2, (145, nothing): 16, (145, reset): 9, (145, by_154): 8, (146, nothing): 15,
        (146, reset): 5, (147, nothing): 2, (148, nothing): 1, (149, reset): 24, (149, nothing): 7, (150, reset): 1,
    }


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("source: link_decode", "source: nobody", "'nobody' is not among sources"),
        ("statuses: {reset: [0x0]}}", "bits: {}, statuses: {}}", "exactly one of bits, statuses and reasons"),
    ],
)
def test_a_link_table_that_is_not_whole_is_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    (tmp_path / "xid.yaml").write_text(CATALOGUE.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(DocumentsInvalid) as found:
        load_xids(tmp_path / "xid.yaml")
    assert told in str(found.value)


def test_a_code_that_stands_twice_is_refused(tmp_path: Path) -> None:
    text = CATALOGUE.read_text(encoding="utf-8")
    (tmp_path / "xid.yaml").write_text(text.replace("codes: [11, 25]", "codes: [11, 25, 8]"), encoding="utf-8")
    with pytest.raises(DocumentsInvalid) as found:
        load_xids(tmp_path / "xid.yaml")
    assert "code 8 stands here a second time" in str(found.value)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:3b:00): ",
        "NVRM: API mismatch: the client has the version 1",
        "Xid (PCI:0000:3b:00): 48, without the driver's name",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x0}",
        "NVRM: GPU at PCI:0000:3b:00: GPU-0c0c0c0c-0000-0000-0000-000000000000",
    ],
)
def test_lines_that_are_no_event(line: str) -> None:
    assert read_xid(line) is None


def test_a_process_name_that_imitates_an_event_does_not_become_one() -> None:
    found = read_xid("NVRM: Xid (PCI:0000:3b:00): 43, pid=5, name=NVRM: Xid (PCI:0000:4c:00): 79, pid=1, Ch 8")
    assert found is not None
    assert (found.code, found.bus_id) == (43, "0000:3b:00")
