"""The same jobs as Slurm 24.11 and 26.05 tell of them: what differs is read by name, and comes to the same record."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runbook.model.job import JobClass, JobRecord
from runbook.slurm import accounting, controller
from runbook.slurm.job_record import merge_records
from runbook.slurm.sbatch_options import LONG_OPTIONS, Takes, parse_submit_line, step_options

RECORDED = Path(__file__).parents[1] / "recorded" / "slurm"
SEPARATOR = "~recordedseparator~"
HOME = "/var/lib/runbook-sandbox/home/sb-alice"
VERSIONS = ("24.11.5", "26.05.5")

pytestmark = pytest.mark.parametrize("version", VERSIONS)


def told(name: str, version: str) -> tuple[dict[str, JobRecord], dict[str, JobRecord]]:
    """What squeue and sacct say, by the job's id."""
    known = accounting.known_columns((RECORDED / version / "sacct_helpformat.txt").read_text())
    live = controller.read_jobs((RECORDED / version / f"squeue_{name}.txt").read_text(), SEPARATOR)
    kept = accounting.read_jobs((RECORDED / version / f"sacct_{name}.txt").read_text(), known, SEPARATOR)
    return {record.id: record for record in live}, {record.id: record for record in kept}


def test_a_job_without_an_output_option_has_its_log_in_its_working_directory(version: str) -> None:
    for told_by in told("tasks", version):
        ((job, record),) = told_by.items()
        assert (record.stdout_path, record.stderr_path) == (f"{HOME}/slurm-{job}.out", "")


def test_a_task_of_an_array_has_a_log_by_its_index(version: str) -> None:
    for told_by in told("array", version):
        assert sorted(job.partition("_")[2] for job in told_by) == ["3", "5"]
        assert all(record.stdout_path == f"{HOME}/slurm-{job}.out" for job, record in told_by.items())


def test_what_srun_was_told_to_write_to_is_read_too(version: str) -> None:
    live, kept = told("tasks", version)
    ((job, both),) = ((job, merge_records(record, kept[job])) for job, record in live.items())
    assert both is not None
    assert both.more_log_paths == (
        f"{HOME}/tasks-plain-{job}-0.log", f"{HOME}/tasks-{job}.0-gpu-21-0-0.err",
        f"{HOME}/tasks-plain-{job}-1.log", f"{HOME}/tasks-{job}.0-gpu-22-0-1.err",
    )
    assert both.log_paths[0] == f"{HOME}/slurm-{job}.out"


def test_of_a_job_that_runs_too(version: str) -> None:
    live, kept = told("running", version)
    ((job, record),) = kept.items()
    assert record.more_log_paths == (f"{HOME}/rank-0.log",)
    assert live[job].stdout_path == record.stdout_path == f"{HOME}/out/longer-{job}.out"


def test_the_gpus_are_those_of_the_allocation(version: str) -> None:
    for told_by in told("tasks", version):
        (record,) = told_by.values()
        assert (record.gpus_per_node, record.num_nodes, record.state.job_class) == (2, 2, JobClass.FAILED)


def test_a_job_that_has_not_run_has_no_start(version: str) -> None:
    live = told("child", version)[0]
    (record,) = live.values()
    assert (record.state.job_class, record.start_time_s, record.reason) == (
        JobClass.WAITING, None, "DependencyNeverSatisfied",
    )  # fmt: skip


def test_every_option_that_sbatch_of_this_version_has_is_known(version: str) -> None:
    text = (RECORDED / version / "sbatch_help.txt").read_text()
    listed = re.findall(r"^ {2}(?:-\w, |    )--([a-z-]+)(\[?)(=?)", text, re.MULTILINE)
    assert len(listed) > 70
    assert {name for name, _, _ in listed} - LONG_OPTIONS.keys() == set()
    needing = {name for name, bracket, equals in listed if equals and not bracket}
    assert {name for name in needing if LONG_OPTIONS[name] is Takes.NOTHING} == set()


@pytest.mark.parametrize("bare", ["--oom-kill-step", "--resv-ports", "--spread-segments", "--container-type runc"])
def test_new_options_in_their_bare_form_do_not_hide_the_script(version: str, bare: str) -> None:
    assert parse_submit_line(f"sbatch {bare} train.sh one").arguments == ("one",)


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("srun -o %t.log python train.py --output=weights", "%t.log"),
        ("/usr/bin/srun -l -u --mpi pmix -K1 --output %t.log python train.py", "%t.log"),
        ("srun -W 30 --kill-on-bad-exit -o%t.log ./train", "%t.log"),
        ("srun python train.py --output=weights", None),
        ("srun --site-option what --output=x ./train", None),
        ("sbatch --output=x train.sh", None),
        ("", None),
    ],
)
def test_a_program_s_own_options_name_no_log(version: str, line: str, output: str | None) -> None:
    assert next((option.value for option in step_options(line) if option.name == "output"), None) == output
