"""`runbook canary` without Slurm: real jobs of this machine fail, and the chain is shown; what it says of gaps."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.cli.first_hour.canary_chain import Link, Seen, Surroundings, Works, links
from runbook.cli.first_hour.canary_jobs import TRIALS, script
from runbook.model.job import JobClass
from runbook.model.units import JobId
from tests.cli.conftest import Shell
from tests.json_answers import check_answer

HERE = Surroundings(
    slurm=True, plans=False, watched=False, epilog="/usr/e", spool="/var/spool/runbook", spool_there=True, targets=0
)
FAILING = TRIALS[0]


def test_a_job_that_fails_is_brought_back_and_nothing_is_left(shell: Shell) -> None:
    shell.write_inventory("apply")
    done = shell("canary", "--folder", str(shell.work), "--only", "gpu-oom", "--only", "healthy", "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    made = json.loads(done.stdout)
    check_answer("schemas/canary.json", made)
    assert (made["gpus"], made["policy"], made["daemon"]) == ("simulated", "apply", False)
    works = {one["part"]: one["works"] for one in made["chain"]}
    for part in ("jobs", "healthy jobs", "log", "patch", "relaunch", "proof", "report"):
        assert works[part] == "works", made["chain"]
    patch = next(one["what"] for one in made["chain"] if one["part"] == "patch")
    # Which is expected to cost less hangs on how many steps had told of their memory when the rank died.
    assert "+ --activation-checkpointing selective" in patch or "+ --micro-batch-size" in patch, patch
    failed, healthy = made["jobs"]
    assert failed["ended"] == "recovered" and len(failed["relaunched"]) == 1
    assert healthy["incident"] is None and Path(failed["report"]).is_file()
    assert made["left_behind"] == [] and os.listdir(shell.work) == []
    # It counts among no incidents of the site.
    assert shell("incidents", "--json").stdout.strip() == "[]"


def test_where_the_inventory_only_plans_nothing_is_relaunched(shell: Shell) -> None:
    shell.write_inventory("plan")
    done = shell("canary", "--folder", str(shell.work), "--only", "gpu-oom")
    assert done.returncode == 0, (done.stdout, done.stderr)
    told = " ".join(done.stdout.split())
    assert "policy plan" in told and "planned patch: - --" in told
    assert "planned relaunch: would be submitted as its owner → policy.mode: approve or apply" in told
    # What is relaunched would be a folder of its own beside the job's.
    held = shell.state / "canary" / "scheduler"
    assert len(list(held.glob("jobs/*"))) == 1, list(held.rglob("*"))


def test_whom_it_does_not_run_for(shell: Shell) -> None:
    done = shell("canary", "--as", "nobody", "--folder", str(shell.work))
    assert done.returncode == 2 and "local jobs run as whoever starts them" in done.stderr
    done = shell("canary", "--folder", str(shell.work / "missing"), "--only", "healthy")
    assert done.returncode == 3 and "name a folder that this user may write to" in done.stderr


def of(part: str, made: list[Link]) -> Link:
    return next(link for link in made if link.part == part)


@pytest.mark.parametrize(
    ("site", "event", "part", "words"),
    [
        (replace(HERE, epilog=""), "", "epilog", "slurm.conf has no EpilogSlurmctld"),
        (replace(HERE, spool_there=False), "", "spool", "cannot be read by this user"),
        (HERE, "", "epilog", "/usr/e left nothing in /var/spool/runbook for 1 failed jobs"),
    ],
)
def test_what_keeps_a_failure_from_being_noticed(site: Surroundings, event: str, part: str, words: str) -> None:
    seen = Seen(FAILING, job=JobId("7"), state="FAILED", job_class=JobClass.FAILED, event=event)
    link = of(part, links([seen], site))
    assert link.works is Works.NO and words in link.what and link.next_step


def test_a_healthy_job_that_is_told_of_is_a_fault() -> None:
    healthy = next(trial for trial in TRIALS if not trial.fails)
    good = Seen(healthy, job=JobId("8"), state="COMPLETED", job_class=JobClass.SUCCEEDED)
    assert of("healthy jobs", links([good], HERE)).works is Works.YES
    told = Seen(healthy, job=JobId("8"), state="COMPLETED", job_class=JobClass.SUCCEEDED, event="c-8-0.event")
    assert of("healthy jobs", links([told], HERE)).works is Works.NO


def test_a_healthy_job_that_failed_is_a_fault() -> None:
    healthy = next(trial for trial in TRIALS if not trial.fails)
    link = of("healthy jobs", links([Seen(healthy, job=JobId("8"), state="FAILED", job_class=JobClass.FAILED)], HERE))
    assert link.works is Works.NO and "ended as FAILED" in link.what and link.next_step


def test_a_job_that_was_cancelled_has_not_failed_as_it_should() -> None:
    seen = Seen(FAILING, job=JobId("7"), state="CANCELLED", job_class=JobClass.CANCELLED)
    made = links([seen], replace(HERE, watched=True))
    assert of("jobs", made).works is Works.NO and "ended as CANCELLED" in of("jobs", made).what
    assert of("incident", made).works is Works.NO and "no incident came of job 7" in of("incident", made).what


def test_what_was_left_out_is_no_fault() -> None:
    assert not [link for link in links([], HERE) if link.works is Works.NO]


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_every_script_says_that_its_gpus_are_simulated(trial: object) -> None:
    assert isinstance(trial, type(FAILING))
    text = script(trial, slurm=True)
    assert "The GPUs are simulated" in text and "#SBATCH --time=00:05:00" in text and "--gpus" not in text
    assert ("--kill-on-bad-exit=1" in text) is not trial.hangs
