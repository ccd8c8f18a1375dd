"""The node's own epilog under a real slurmd: what it leaves before the node is handed on; it never costs a node.

The GPUs that the probe sees there are those of the stand-in NVML library.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import NODES, ROOT, Cluster
from tests.nvml.standin import SCENARIOS, library_folder, probe_file

pytestmark = [
    pytest.mark.cluster, pytest.mark.timeout(240),
    pytest.mark.needs("gcc"),
]
LEFT = ROOT / "spool" / "nodes"
PLACE = ROOT / "node-epilog"
NODE = "gpu-22"
STUCK = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('{', flush=True)\ntime.sleep(60)\n"


@pytest.fixture
def epilog(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with a spool for the nodes' answers, the probe, and stand-in GPUs; gone again whatever happens."""
    text = cluster.inventory.read_text(encoding="utf-8")
    text = text.replace(f"spool: {cluster.state}/spool", f"spool: {ROOT}/spool")
    cluster.inventory.write_text(text, encoding="utf-8")
    LEFT.mkdir(mode=0o750)
    (PLACE / "lib").mkdir()
    shutil.copy(library_folder() / "libnvidia-ml.so.1", PLACE / "lib")
    shutil.copy(probe_file(), PLACE / "runbook-probe.pyz")
    for node in NODES:
        stand_in(node, "h100_570_healthy")
    try:
        yield cluster
    finally:
        subprocess.run((*on_node(cluster), "umount", str(LEFT)), capture_output=True, check=False, timeout=30)
        shutil.rmtree(LEFT, ignore_errors=True)
        for path in PLACE.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def stand_in(node: str, scenario: str) -> None:
    shutil.copy(SCENARIOS / f"{scenario}.txt", PLACE / f"{node}.txt")


def on_node(cluster: Cluster) -> tuple[str, ...]:
    return ("ssh", "-F", str(ROOT / "ssh" / "ssh_config"), NODE)


def fails(cluster: Cluster, *options: str) -> str:
    return cluster.submit(f"--nodelist={NODE}", "--wrap=exit 3", "--output=/dev/null", "--mem=64M", *options)


def seconds(cluster: Cluster, job: str, name: str) -> float:
    return time.mktime(time.strptime(cluster.field(job, name), "%Y-%m-%dT%H:%M:%S"))


def in_service(cluster: Cluster, node: str) -> bool:
    return not re.search("DRAIN|DOWN|FAIL", cluster.node_field(node, "State"))


def ended(cluster: Cluster, job: str) -> bool:
    return cluster.state_of(job) in ("FAILED", "COMPLETED")


def test_the_answer_is_there_before_the_node_is_handed_on_and_speaks_when_ssh_is_down(epilog: Cluster) -> None:
    stand_in(NODE, "h100_570_sram_threshold")
    job = epilog.submit("true-oom.sbatch", SLURM_KILL_BAD_EXIT="1")
    nodes = ("gpu-21", NODE)
    following = epilog.submit(
        f"--nodelist={NODE}", "--exclusive", "--wrap=sleep 1", "--output=/dev/null", "--job-name=next-one"
    )
    epilog.until(lambda: ended(epilog, job), "the job failed")
    epilog.until(lambda: epilog.state_of(following) in ("RUNNING", "COMPLETED"), "the next job has the node")
    left = {node: LEFT / f"sandbox-{job}-0.{node}.json" for node in nodes}
    for path in left.values():
        assert path.is_file(), sorted(item.name for item in LEFT.iterdir())
    assert left[NODE].stat().st_mtime <= seconds(epilog, following, "StartTime") + 1.0
    # The next job ends well, and nothing is left of that.
    epilog.until(lambda: ended(epilog, following), "the next job ended")
    assert sorted(LEFT.glob("*.json")) == sorted(left.values())
    assert not list(LEFT.glob(f"*-{following}-*")) and not list(LEFT.glob(".*")), "nothing of it, and nothing half done"
    document = json.loads(left[NODE].read_text(encoding="utf-8"))
    assert [gpu["name"] for gpu in document["nvml"]["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 2
    # SSH to the node is gone: the incident takes what the epilog left, and says so.
    epilog.sandbox("ssh-down", NODE)
    done = epilog.runbook("oom", "--job", job, "--yes")
    incident = epilog.incident(job)
    (facts,) = incident["original"]["nodes"]
    assert (facts["node"], facts["reach"]) == (NODE, "ok"), facts["reach_detail"]
    assert "left by the epilog" in facts["reach_detail"]
    assert "now the node does not answer" in facts["reach_detail"]
    assert [gpu["sram_threshold_exceeded"] for gpu in facts["gpus"]] == [False, True]
    (judgement,) = incident["original"]["judgements"]
    assert (judgement["node"], judgement["verdict"]) == (NODE, "faulty"), judgement
    assert incident["drained_nodes"] == [NODE]
    assert done.returncode == 0, (done.stdout, done.stderr)
    shown = epilog.runbook("show", incident["id"]).stdout
    page = (epilog.state / "incidents" / incident["id"] / "report.html").read_text(encoding="utf-8")
    for text in (page, " ".join(shown.split())):
        assert "left by the epilog; ran as root" in text
        assert "now the node does not answer" in text


def test_an_epilog_whose_probe_hangs_holds_the_node_for_its_deadline_at_most(epilog: Cluster) -> None:
    (PLACE / "runbook-probe.pyz").write_text(STUCK)
    (PLACE / "deadline").write_text("2\n")
    job = fails(epilog, "--exclusive")
    following = epilog.submit(f"--nodelist={NODE}", "--exclusive", "--wrap=true", "--output=/dev/null")
    epilog.until(lambda: ended(epilog, following), "the next job ran")
    # Two seconds, one more before the probe is told to end, one more before it is killed, and Slurm's own rounds.
    waited_s = seconds(epilog, following, "StartTime") - seconds(epilog, job, "EndTime")
    assert 2.0 <= waited_s <= 12.0
    assert in_service(epilog, NODE)
    assert not list(LEFT.glob("*.json")) and not list(LEFT.glob(".*"))


@pytest.mark.parametrize("spool", ["missing", "full", "no-probe"])
def test_a_spool_that_takes_nothing_changes_nothing(epilog: Cluster, spool: str) -> None:
    if spool == "missing":
        LEFT.rmdir()
    elif spool == "full":
        # Only this node's view of the folder is full; one page of memory is all that there is.
        script = f"mount -t tmpfs -o size=4k none {LEFT} && dd if=/dev/zero of={LEFT}/fill bs=4k count=2 2>/dev/null; :"
        subprocess.run((*on_node(epilog), script), check=True, timeout=30)
    else:
        (PLACE / "runbook-probe.pyz").unlink()
    job = fails(epilog)
    following = epilog.submit(f"--nodelist={NODE}", "--exclusive", "--wrap=true", "--output=/dev/null")
    epilog.until(lambda: ended(epilog, following), "the next job ran")
    assert epilog.state_of(job) == "FAILED"
    assert in_service(epilog, NODE)
    if spool == "full":
        listed = subprocess.run((*on_node(epilog), f"ls -A {LEFT}"), capture_output=True, text=True, check=True)
        assert listed.stdout.split() == ["fill"]
    elif spool == "missing":
        assert not Path(LEFT).exists()
    else:
        assert not list(LEFT.glob("*.json")) and not list(LEFT.glob(".*"))
