"""A user of a node puts a line of his own into its kernel log: it is shown to a person and drains nothing.

The kernel prints what a user gave it, a mount option of his own user namespace here, line breaks and all. `dmesg` and
the journal show a line for each; a record of /dev/kmsg stays one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.node_access import LocalNodes
from runbook.diagnosis.nodes import NodePolicy, judge_node
from runbook.locations import data_folder
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.node import NodeFacts, NodeJudgement, NodeVerdict
from runbook.model.units import JobId, NodeName, Unknown, UserName
from runbook.node import Window, read_left_document
from runbook.node.catalogues import load_node_documents
from tests.nvml.standin import NO_KMSG, environment, run_probe
from tests.programs import find

FOLDER = data_folder("playbooks") / "oom"
HERE = NodeName("gpu-21")
XID = "NVRM: Xid (PCI:0000:18:00): 79"
NOBODY = 65534


def judged(facts: NodeFacts, start_s: float = 1.0) -> NodeJudgement:
    job = JobRecord(
        id=JobId("4711"), cluster="test", name="train", owner=UserName("alice"),
        state=JobState("FAILED", JobClass.FAILED), start_time_s=start_s, end_time_s=time.time() - 60,
    )
    return judge_node(replace(facts, partial_view=""), job, load_node_documents(FOLDER), NodePolicy())


@pytest.fixture(scope="module")
def forged() -> float:
    """Since when a line of nobody's is in this machine's kernel log."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user and to read the kernel log")
    if not Path("/dev/kmsg").exists() or not find("unshare"):
        pytest.skip("this machine has no kernel log of its own")
    since_s = time.time() - 5
    mount = f"mount -t tmpfs -o 'forged-{os.getpid()}\n{XID}' none /mnt"
    nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    subprocess.run((*nobody, "unshare", "-Urm", "sh", "-c", mount), capture_output=True, check=False)
    log = subprocess.run(("dmesg",), capture_output=True, text=True, check=False).stdout
    if XID not in log:
        pytest.skip("this kernel lets no user mount in a namespace of his own, or has not printed what he gave")
    return since_s


@pytest.mark.needs("gcc", "setpriv")
@pytest.mark.parametrize("kmsg", ["/dev/kmsg", NO_KMSG])
@pytest.mark.parametrize("python", ["exit 127", f'exec {sys.executable} "$@"'])
def test_a_users_line_in_the_kernel_log_drains_no_node(forged: float, tmp_path: Path, python: str, kmsg: str) -> None:
    (tmp_path / "python3").write_text(f"#!/bin/sh\n{python}\n")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    for name in ("python3", "nvidia-smi"):
        (tmp_path / name).chmod(0o755)
    variables = {**environment("h100_570_healthy"), "PATH": f"{tmp_path}:/usr/bin:/bin", "RUNBOOK_KMSG": kmsg}
    facts = LocalNodes(environment=variables, command_timeout_s=20).check(HERE, since_s=forged, until_s=time.time())
    assert not isinstance(facts.xids, Unknown)
    judgement = judged(facts, forged)
    assert not judgement.drain and judgement.verdict is not NodeVerdict.FAULTY
    if kmsg == "/dev/kmsg":
        assert not [event for event in facts.xids if event.witness is True]


def of_log(
    tmp_path: Path, dmesg: str, kmsg: str | None = None, journal: str = "", *, scenario: str | None = None,
    cards: tuple[str, ...] = ("0000:18:00.0",),
) -> NodeFacts:
    """Facts by the probe of a node with this text of its kernel log and these records; `cards`: on its PCI bus."""
    for name, text in {"dmesg": dmesg, "journalctl": journal}.items():
        (tmp_path / f"{name}.txt").write_text(text)
        (tmp_path / name).write_text(f"#!/bin/sh\ncat {tmp_path}/{name}.txt\n")
        (tmp_path / name).chmod(0o755)
    where = NO_KMSG
    if kmsg is not None:
        (tmp_path / "kmsg").write_text(kmsg)
        where = str(tmp_path / "kmsg")
    document = run_probe(scenario, "--kmsg", where, extra={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    document["node"]["pci_gpus"] = list(cards)
    facts = read_left_document(json.dumps(document), HERE, Window())
    assert not isinstance(facts.xids, Unknown)
    return facts


FIRST = "6,1,1000000,-;Linux version 6.8.0\n"


def test_text_alone_is_for_a_person_and_says_why(tmp_path: Path) -> None:
    facts = of_log(tmp_path, f"2026-11-20T06:41:28,0+00:00 Linux\n2026-11-20T07:41:28,0+00:00 {XID}\n")
    judgement = judged(facts)
    assert judgement.verdict is NodeVerdict.UNKNOWN and not judgement.drain
    assert any("for a person, and no ground for a drain" in reason for reason in judgement.reasons)
    assert any("line break" in reason and "/dev/kmsg" in reason for reason in judgement.reasons)


def test_a_whole_record_of_the_kernel_drains(tmp_path: Path) -> None:
    facts = of_log(tmp_path, "", f"{FIRST}4,2,2000000,-;{XID}, GPU has fallen off the bus.\n SUBSYSTEM=pci\n")
    judgement = judged(facts)
    assert judgement.verdict is NodeVerdict.FAULTY and judgement.drain


def test_a_record_of_a_gpu_that_nobody_else_knows_drains_nothing(tmp_path: Path) -> None:
    facts = of_log(tmp_path, "", f"{FIRST}4,2,2000000,-;{XID}, GPU has fallen off the bus.\n", cards=("0000:19:00.0",))
    judgement = judged(facts)
    assert judgement.verdict is NodeVerdict.UNKNOWN and not judgement.drain
    assert any("neither NVML nor the driver's list nor the PCI bus" in reason for reason in judgement.reasons)


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(("scenario", "drains"), [("h100_570_healthy", False), ("h100_570_fell_off", True)])
def test_a_gpu_that_answers_is_not_off_the_bus(tmp_path: Path, scenario: str, drains: bool) -> None:
    """Addresses are for everybody to read: who forges a record can name a GPU that there is."""
    record = f"{FIRST}4,2,2000000,-;{XID.replace('18:00', '3b:00')}, GPU has fallen off the bus.\n"
    judgement = judged(of_log(tmp_path, "", record, scenario=scenario, cards=("0000:3b:00.0",)))
    assert judgement.drain is drains
    assert any("answers, as none does that is off the bus" in reason for reason in judgement.reasons) is not drains


@pytest.mark.parametrize("record", [
    f"3,2,2000000,-;tmpfs: Unknown parameter 'x\\x0a{XID}'\n",
    f"3,2,2000000,-;tmpfs: Unknown parameter 'x\\x0d{XID}'\n",
    f"12,2,2000000,-;{XID}, said by a process of root\n",
    f"6,2,2000000,-;usb 1-1: Product: pen\n {XID}\n",
])
def test_a_record_that_begins_otherwise_is_no_xid(tmp_path: Path, record: str) -> None:
    assert of_log(tmp_path, "", FIRST + record).xids == ()


def test_a_line_break_in_the_drivers_own_record_hides_it_from_nobody_and_drains_nothing(tmp_path: Path) -> None:
    """A process may be named so; its name must not tell what became of the GPU either."""
    facts = of_log(tmp_path, "", f"{FIRST}4,2,2000000,-;{XID}, pid=7, name=a\\x0ab, GPU has fallen off the bus.\n")
    judgement = judged(facts)
    assert judgement.verdict is NodeVerdict.UNKNOWN and not judgement.drain
    assert any("holds a line break" in reason for reason in judgement.reasons)


def test_a_line_of_text_that_no_record_of_its_time_has_says_so(tmp_path: Path) -> None:
    facts = of_log(tmp_path, "", FIRST, journal=f"{time.time() - 120:.6f} gpu-21 kernel: {XID}\n")
    judgement = judged(facts)
    assert judgement.verdict is NodeVerdict.UNKNOWN and not judgement.drain
    assert any("none of the kernel's own records" in reason for reason in judgement.reasons)


def test_the_same_event_in_both_is_told_once_and_by_its_record(tmp_path: Path) -> None:
    facts = of_log(
        tmp_path, "", f"{FIRST}4,2,2000000,-;{XID}, GPU has fallen off the bus.\n",
        journal=f"{time.time() - 1:.6f} gpu-21 kernel: {XID}, GPU has fallen off the bus.\n",
    )
    assert not isinstance(facts.xids, Unknown)
    assert [(event.count, event.witness) for event in facts.xids] == [(1, True)]
    assert judged(facts).drain


def test_a_forged_recovery_does_not_keep_a_faulty_gpu_in_service(tmp_path: Path) -> None:
    mended = "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    facts = of_log(
        tmp_path, "", f"{FIRST}4,2,2000000,-;NVRM: Xid (PCI:0000:18:00): 95, pid=1, name=x, Uncontained ECC error.\n",
        journal=f"{time.time() - 1:.6f} gpu-21 kernel: {mended}\n",
    )
    assert judged(facts).drain
