"""The sandbox cluster as tests use it: a workspace with the examples, jobs of a user, the real `runbook` command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = Path("/var/lib/runbook-sandbox")
SANDBOX = REPOSITORY / "deploy" / "sandbox" / "sandbox"
SLURM = {"SLURM_CONF": str(ROOT / "etc" / "slurm.conf")}
NODES = ("gpu-21", "gpu-22", "gpu-23", "gpu-24")

INVENTORY = """\
version: 1
id: {name}
title: The sandbox cluster, for one test
cluster: sandbox
scheduler: {{kind: slurm, slurm_conf: {root}/etc/slurm.conf}}
nodes:
  kind: ssh
  user: root
  key_file: {root}/ssh/id_ed25519
  known_hosts_file: {root}/ssh/known_hosts
  connect_timeout_s: 2
  gpus_per_node: 8
policy:
  mode: apply
  max_drained_share: 0.5
  verify: {{longest_poll_s: 1}}
{more_policy}
paths: {{state: {state}, spool: {state}/spool}}
"""


@dataclass
class Cluster:
    """One test's place on the cluster."""

    name: str
    home: Path
    state: Path
    inventory: Path

    @property
    def jobs(self) -> Path:
        return self.home / "jobs"

    def slurm(self, *argv: str, user: str | None = None, environment: Mapping[str, str] = SLURM) -> str:
        words = tuple(f"{key}={value}" for key, value in environment.items())
        prefix = () if user is None else ("sudo", "-n", "-u", user, *words)
        done = subprocess.run(
            (*prefix, *argv),
            env={**os.environ, **SLURM},
            cwd=self.jobs,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout.strip()

    def submit(self, script: str, *options: str, user: str = "sb-alice", **environment: str) -> str:
        answer = self.slurm("sbatch", "--parsable", *options, script, user=user, environment={**SLURM, **environment})
        return answer.partition(";")[0]

    def state_of(self, job: str) -> str:
        return self.slurm("scontrol", "show", "job", "-o", job).partition("JobState=")[2].partition(" ")[0]

    def field(self, job: str, name: str) -> str:
        return self.slurm("scontrol", "show", "job", "-o", job).partition(f" {name}=")[2].partition(" ")[0]

    def node_field(self, node: str, name: str) -> str:
        text = self.slurm("scontrol", "show", "node", "-o", node)
        return text.partition(f" {name}=")[2].partition(" [")[0].partition(" Comment=")[0].strip()

    def log(self, job: str, name: str) -> str:
        try:
            return (self.jobs / f"{name}-{job}.out").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def until(self, ready: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
            time.sleep(0.2)

    def until_dead(self, job: str, name: str, text: str = "OutOfMemoryError") -> None:
        self.until(lambda: text in self.log(job, name), f"{text} in the log of {name} {job}")

    def runbook(self, *arguments: str, timeout_s: float = 150.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*arguments), cwd=self.state, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def argv(self, *arguments: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "runbook", arguments[0], "--inventory", str(self.inventory), *arguments[1:])

    def start_runbook(self, *arguments: str, stderr: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*arguments), cwd=self.state, stdout=subprocess.PIPE, stderr=stderr, text=True
        )

    def incident(self, job: str) -> dict[str, Any]:
        path = self.state / "incidents" / f"oom-sandbox-{job}" / "incident.json"
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document

    def relaunches(self, job: str) -> list[str]:
        """Every job, by the controller's word, that carries a token of this incident."""
        listed = self.slurm("scontrol", "show", "job", "-o")
        return [line for line in listed.splitlines() if f"Comment=runbook:oom-sandbox-{job}:" in line]

    def sandbox(self, *arguments: str) -> None:
        done = subprocess.run((str(SANDBOX), *arguments), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A clean cluster: healthy GPUs, ssh up, no drained node, and nothing of this test left afterwards."""
    if os.geteuid() != 0 or not ROOT.exists():
        pytest.fail("the sandbox cluster is not up: `make cluster` (Debian, root)")
    marker = request.node.get_closest_marker("policy")
    name = request.node.name.replace("[", "-").replace("]", "")
    yield from prepared(name, *(marker.args if marker else ()))


def prepared(name: str, *more_policy: str) -> Iterator[Cluster]:
    """A place of its own on the cluster under a name, taken down when the caller goes on."""
    home = ROOT / "home" / "sb-alice" / name
    state = ROOT / "tests" / name
    for folder in (home, state):
        shutil.rmtree(folder, ignore_errors=True)
    state.mkdir(parents=True, mode=0o711)
    (ROOT / "tests").chmod(0o711)
    (state / "spool").mkdir()
    subprocess.run(("sh", str(REPOSITORY / "examples" / "copy-to.sh"), str(home)), check=True)
    shutil.chown(home, "sb-alice", "sb-alice")
    written_s = time.time() - 60  # of Slurm's moments only whole seconds are told, and some jobs start within one
    for path in home.rglob("*"):
        shutil.chown(path, "sb-alice", "sb-alice")
        os.utime(path, (written_s, written_s))
    inventory = state / "inventory.yaml"
    more = "".join(f"  {line}\n" for line in more_policy)
    inventory.write_text(INVENTORY.format(name=name, root=ROOT, state=state, more_policy=more), encoding="utf-8")
    place = Cluster(name, home, state, inventory)
    _heal(place)
    yield place
    _heal(place)
    shutil.rmtree(home, ignore_errors=True)


def _heal(place: Cluster) -> None:
    place.sandbox("heal")
    for user in ("sb-alice", "sb-bob"):
        subprocess.run(("scancel", f"--user={user}"), env={**os.environ, **SLURM}, check=False, capture_output=True)
    place.until(
        lambda: not place.slurm("squeue", "--noheader", "--user=sb-alice,sb-bob", "--format=%i"), "the queue is empty"
    )
