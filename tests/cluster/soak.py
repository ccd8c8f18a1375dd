"""Many jobs over a while on the sandbox cluster, of which some fail in each way and most are healthy, under the daemon
with its watch and the cluster's own epilog. At the end every failure has one incident, nothing was done to a healthy
job, and Slurm's own accounting stands beside ours, in one table. Nothing but the GPUs is simulated.

    make soak                          40 jobs over 10 minutes
    make soak MINUTES=60 JOBS=200
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.conftest import ROOT, Cluster, prepared

_CLOSED = "closed"
_OPT_IN = "--comment=runbook"
_STEP = "echo step $step/$1 loss 2.1; step=$((step + 1))"
_TRACEBACK = (
    'm="[rank$SLURM_PROCID]: "; echo "${m}Traceback (most recent call last):"; '
    'echo "${m}  File \\"/home/a/train.py\\", line 7, in step"; echo "${m}torch.OutOfMemoryError: CUDA '
    'out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.20 GiB is free. Of '
    'the allocated memory 74.00 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated."'
)
RANK = f"""\
# One rank of a small job: what it prints, and how it ends, by its kind.
step=1
steps() {{ for _ in $(seq $1); do [ $SLURM_PROCID != 0 ] || {{ {_STEP.replace("$1", "90")}; }}; sleep 1; done; }}
oom() {{ {_TRACEBACK}; }}
case $KIND in
    healthy) steps $((20 + RANDOM % 30)) ;;
    caught) steps 10; [ $SLURM_PROCID != 1 ] || {{ oom; echo "caught, half of it now"; }}; steps 20 ;;
    caught-still) steps 10; [ $SLURM_PROCID != 1 ] || oom; sleep 60; steps 20 ;;
    one-by-one) [ $SLURM_PROCID != 1 ] || oom; sleep $((15 * SLURM_PROCID + 5)) ;;
    small-hang) steps 10; [ $SLURM_PROCID != 1 ] || {{ oom; exit 1; }}; exec sleep 900 ;;
    noisy-hang) steps 10; [ $SLURM_PROCID != 1 ] || {{ oom; exit 1; }}; while sleep 2; do echo heartbeat; done ;;
    small-death | array) steps 5; [ $SLURM_PROCID != 1 ] || {{ oom; exit 1; }}; sleep 2; exit 1 ;;
    no-memory) steps 5; echo "Traceback (most recent call last):"; echo "ValueError: no such column"; exit 1 ;;
    cancelled) exec sleep 900 ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job, as many of a hundred."""

    name: str
    share: int
    fails: bool
    script: str = "small.sbatch"
    options: tuple[str, ...] = (_OPT_IN,)
    end: tuple[str, ...] = ("COMPLETED",)
    """Slurm's words for its end."""


KINDS = (
    Kind("healthy", 36, fails=False),
    Kind("caught", 8, fails=False),
    Kind("caught-still", 8, fails=False),
    Kind("one-by-one", 6, fails=False),
    Kind("cancelled", 4, fails=False, end=("CANCELLED",)),
    Kind("true-oom", 5, fails=True, script="true-oom.sbatch", end=("CANCELLED",)),
    Kind("true-oom-ends", 5, fails=True, script="true-oom-ends.sbatch", end=("FAILED",)),
    Kind("host-oom", 4, fails=True, script="host-oom.sbatch", end=("OUT_OF_MEMORY", "FAILED", "CANCELLED")),
    Kind("small-hang", 5, fails=True, end=("CANCELLED",)),
    Kind("noisy-hang", 4, fails=True, end=("CANCELLED",)),
    Kind("small-death", 9, fails=True, end=("FAILED",)),
    Kind("array", 3, fails=True, options=("--array=1-2",), end=("FAILED",)),
    Kind("no-memory", 3, fails=True, end=("FAILED",)),
)  # fmt: skip
SMALL = """\
#!/bin/bash
#SBATCH --nodes=1 --ntasks=3 --gpus-per-node=1 --time=00:30:00 --output=%x-%j.out
export KIND=$SLURM_JOB_NAME
srun --label bash rank.sh
"""


def plan(jobs: int) -> list[Kind]:
    """As many of each kind as its share says, at least one, in an order that is always the same."""
    chosen = [kind for kind in KINDS for _ in range(max(1, round(kind.share * jobs / 100)))]
    shuffled = random.Random(jobs)
    shuffled.shuffle(chosen)
    return chosen


@contextmanager
def served(place: Cluster) -> Iterator[Path]:
    """The daemon; its log."""
    text = place.inventory.read_text(encoding="utf-8").replace(f"spool: {place.state}/spool", f"spool: {ROOT}/spool")
    place.inventory.write_text(text + "watch: {opt_in: runbook}\n", encoding="utf-8")
    for left in (ROOT / "spool").glob("*.event"):
        left.unlink()
    log = place.state / "daemon.log"
    with log.open("w") as stream:
        daemon = place.start_runbook("serve", "--port", "0", stderr=stream)
        try:
            yield log
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=120)


def soak(place: Cluster, minutes: float, jobs: int) -> int:
    """How many things were wrong."""
    (place.jobs / "rank.sh").write_text(RANK)
    (place.jobs / "small.sbatch").write_text(SMALL)
    ends = (place.jobs / "true-oom.sbatch").read_text().replace("srun --label", "srun --label --kill-on-bad-exit=1")
    (place.jobs / "true-oom-ends.sbatch").write_text(ends)
    began_s = time.time()
    kinds = plan(jobs)
    of: dict[str, Kind] = {}
    with served(place) as log:
        for number, kind in enumerate(kinds):
            time.sleep(max(0.0, began_s + number * 60 * minutes / len(kinds) - time.time()))
            script = place.jobs / f"{number}.sbatch"  # each has checkpoints of its own
            text = (place.jobs / kind.script).read_text()
            script.write_text(text.replace("_DIR/checkpoints/", f"_DIR/checkpoints/{number}/"))
            job = place.submit(script.name, *kind.options, f"--job-name={kind.name}")
            for task in ("_1", "_2") if kind.name == "array" else ("",):
                of[f"{job}{task}"] = kind
            if kind.name == "cancelled":
                place.until(lambda job=job: place.state_of(job) == "RUNNING", "it runs", 600)  # type: ignore[misc]
                place.slurm("scancel", job, user="sb-alice")
        _wait(place, of, 900)
        found = _incidents(place)
        wrong = _compared(of, _accounting(place, began_s), found)
        if wrong:
            shutil.copy(log, "/tmp/runbook-soak.log")
            print("the daemon's log: /tmp/runbook-soak.log")
    print(f"{len(of)} jobs, {sum(kind.fails for kind in of.values())} of which failed, over {minutes:g} minutes and "
          f"{(time.time() - began_s) / 60 - minutes:.1f} until the last had ended: {wrong} wrong")
    return wrong


def _wait(place: Cluster, of: dict[str, Kind], longest_s: float) -> None:
    """Until all incidents are closed, every failure has one, and no job runs."""
    until_s = time.time() + longest_s
    while time.time() < until_s:
        found = _incidents(place)
        roots = Counter(one["root_job"] for one in found)
        busy = [one["id"] for one in found if one["closed_s"] is None]
        lacking = [job for job, kind in of.items() if kind.fails and not roots[job]]
        left = place.slurm("squeue", "--noheader", "--user=sb-alice", "--format=%i")
        if not busy and not lacking and not left:
            return
        time.sleep(5)
    print(f"not all had ended after {longest_s:.0f} s: incidents {busy}, without one {lacking}, jobs {left.split()}")


def _incidents(place: Cluster) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (place.state / "incidents").glob("*/incident.json")]


def _accounting(place: Cluster, since_s: float) -> dict[str, tuple[str, str]]:
    """Job to name and state, by sacct: of a requeued job its last run."""
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since_s - 5))
    told = place.slurm(
        "sacct", "-X", "--noheader", "--parsable2", f"--starttime={since}", "--user=sb-alice",
        "--format=JobID,State,JobName",
    )
    rows = [line.split("|") for line in told.splitlines()]
    return {job: (name, state.partition(" ")[0]) for job, state, name in rows}


def _compared(of: dict[str, Kind], slurms: dict[str, tuple[str, str]], found: list[dict[str, Any]]) -> int:
    """The table: a row for each kind. Says what is wrong, and how much that is."""
    wrong: list[str] = []
    roots = Counter(one["root_job"] for one in found)
    ours = {attempt["job"]: one["id"] for one in found for attempt in one["attempts"]}
    print(f"{'kind':<15}{'jobs':>5}  {'by sacct':<34}{'incidents':>10}{'relaunches':>11}  ended")
    for kind in KINDS:
        jobs = [job for job, one in of.items() if one is kind]
        own = [one for one in found if of.get(one["root_job"]) is kind]
        states = Counter(slurms.get(job, ("", "unknown"))[1] for job in jobs)
        relaunches = sum(len(one["attempts"]) for one in own)
        ended = Counter(f"{one['state']} ({one['trigger']})" for one in own)
        print(f"{kind.name:<15}{len(jobs):>5}  {_words(states):<34}{len(own):>10}{relaunches:>11}  {_words(ended)}")
        wrong += [f"{job} ({kind.name}): Slurm says {state}" for job in jobs
                  if (state := slurms.get(job, ("", "unknown"))[1]) not in kind.end]
        if kind.fails:
            wrong += [f"{job} ({kind.name}): {roots[job]} incidents" for job in jobs if roots[job] != 1]
        else:
            wrong += [f"{one['root_job']} ({kind.name}): {act['what']}" for one in own for act in one["acts"]]
            wrong += [f"{one['root_job']} ({kind.name}): {one['conclusion']}" for one in own if one["state"] != _CLOSED]
    wrong += [f"{one['id']}: of no job of ours" for one in found if one["root_job"] not in of]
    wrong += [f"{one['id']}: {one['state']}" for one in found if one["closed_s"] is None]
    strange = set(slurms) - set(of) - set(ours)
    wrong += [f"job {job} ({slurms[job][0]}) was submitted by nobody" for job in sorted(strange)]
    print(f"sacct knows {len(slurms)} jobs: {len(of)} of ours, {len(set(slurms) & set(ours))} relaunches")
    for one in wrong:
        print(f"WRONG {one}")
    return len(wrong)


def _words(counted: Counter[str]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counted.most_common())


def main() -> int:
    minutes, jobs = float(sys.argv[1]), int(sys.argv[2])
    places = prepared("soak")
    place = next(places)
    try:
        return min(soak(place, minutes, jobs), 1)
    finally:
        next(places, None)


if __name__ == "__main__":
    raise SystemExit(main())
