"""Slurm's answers as recorded: squeue, sacct and sinfo, hostile job names and all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runbook.errors import BadInput
from runbook.model.job import JobClass, JobRecord, NodeClass
from runbook.model.units import GIB, MIB, JobId, NodeName
from runbook.slurm import accounting as accounting
from runbook.slurm import controller as nodes
from runbook.slurm import controller as queue
from runbook.slurm.complaints import Complaint, complaint
from runbook.slurm.fields import long_format, rows
from runbook.slurm.job_record import choose_record, merge_records, with_log_paths, with_submit_line
from runbook.slurm.site import read_config

RECORDED = Path(__file__).parents[1] / "recorded" / "slurm"
SEPARATOR = "~recordedseparator~"
NAME = "x UserId=root(0)\n   JobState=COMPLETED Comment=a|b"
COMMENT = "my comment Command=/bin/false\nWorkDir=/etc"
HOME = "/var/lib/runbook-sandbox/home/sb-alice"


def recorded(name: str, version: str = "22.05.8") -> str:
    return (RECORDED / version / name).read_text()


def from_sacct(name: str, version: str = "22.05.8") -> tuple[JobRecord, ...]:
    known = accounting.known_columns(recorded("sacct_helpformat.txt", version))
    return accounting.read_jobs(recorded(name, version), known, SEPARATOR)


def from_squeue(name: str) -> tuple[JobRecord, ...]:
    return queue.read_jobs(recorded(name), SEPARATOR)


def test_a_job_whose_name_imitates_a_record() -> None:
    (live,) = from_squeue("squeue_failed.txt")
    (kept,) = from_sacct("sacct_failed.txt")
    for record in (live, kept):
        assert (record.id, record.name, record.comment) == ("115", NAME, COMMENT)
        assert (record.owner, record.uid, record.gid) == ("sb-alice", 77001, 77001)
        assert (record.state.name, record.state.job_class) == ("FAILED", JobClass.FAILED)
        assert (record.exit_code, record.signal, record.derived_exit_code) == (1, 0, 2)
        assert record.nodes == ("gpu-21", "gpu-22")
        assert (record.num_nodes, record.num_tasks, record.gpus_per_node) == (2, 2, 2)
        assert record.memory_limit_bytes_per_node == GIB
        assert record.work_dir == HOME
        assert record.time_limit_s == 3600
    assert live.command == "/tmp/oom.sh arg one two"
    assert live.stdout_path == "/dev/null"
    assert live.stderr_path == f"{HOME}/{NAME}-115.err"


def test_controller_and_accounting_together() -> None:
    (live,) = from_squeue("squeue_failed.txt")
    (kept,) = from_sacct("sacct_failed.txt")
    both = merge_records(live, kept)
    assert both is not None
    assert both.source == "squeue+sacct"
    assert both.submit_line.endswith("/tmp/oom.sh arg one two")
    assert [step.id for step in both.steps] == ["115.batch", "115.0"]
    assert both.stderr_path == live.stderr_path
    assert merge_records(None, kept) == kept
    assert merge_records(live, None) == live


def test_a_number_given_out_again_does_not_lend_its_submit_line() -> None:
    (live,) = from_squeue("squeue_failed.txt")
    (kept,) = from_sacct("sacct_failed.txt")
    older = replace(kept, submit_time_s=1_600_000_000.0)
    both = merge_records(live, older)
    assert both is not None and both.submit_line == ""


def test_log_paths_from_the_submit_line_and_the_script() -> None:
    (kept,) = from_sacct("sacct_failed.txt")
    script = accounting.read_stored_text(recorded("sacct_script.txt"))
    assert script is not None and script.startswith("#!/bin/bash\n#SBATCH --output")
    assert script.endswith("exit 1\n")
    known = with_log_paths(kept, script)
    assert (known.stdout_path, known.stderr_path) == ("/dev/null", f"{HOME}/{NAME}-115.err")


def test_log_paths_stay_unknown_when_the_submit_line_cannot_be_read() -> None:
    (kept,) = from_sacct("sacct_failed.txt")
    unclear = replace(kept, submit_line="sbatch --site-option maybe value.sh")
    assert with_log_paths(unclear, "").log_paths == ()
    by_other_program = replace(kept, submit_line="")
    assert with_log_paths(by_other_program, "").log_paths == ()


def test_a_cancelled_job_and_its_excluded_node() -> None:
    (live,) = from_squeue("squeue_cancelled.txt")
    (kept,) = from_sacct("sacct_cancelled.txt")
    assert live.state.job_class is kept.state.job_class is JobClass.CANCELLED
    assert with_submit_line(kept, "sleep 30").excluded_nodes == ("gpu-24",)
    assert live.stdout_path == f"{HOME}/long-116.out"
    assert with_log_paths(kept, "#!/bin/sh\n# This script was created by sbatch --wrap.\n\nsleep 30\n").stdout_path == (
        f"{HOME}/long-116.out"
    )


def test_host_memory_is_in_the_step() -> None:
    (kept,) = from_sacct("sacct_host_oom.txt")
    assert (kept.state.name, kept.exit_code) == ("FAILED", 1)
    assert [(step.id, step.state.name, step.signal) for step in kept.steps] == [
        ("118.batch", "FAILED", 0),
        ("118.0", "OUT_OF_MEMORY", 125),
    ]
    assert kept.memory_limit_bytes_per_node == 40 * MIB


def test_array_tasks() -> None:
    tasks = from_squeue("squeue_array.txt")
    assert sorted(task.id for task in tasks) == ["117_3", "117_4"]
    third = choose_record(tasks, JobId("117_3"))
    assert third is not None
    assert (third.array_job_id, third.stdout_path) == ("117", f"{HOME}/s.sh-117_3.out")
    assert third.exit_code is None and third.end_time_s is None
    with pytest.raises(BadInput, match="117_"):
        choose_record(tasks, JobId("117"))
    assert sorted(task.id for task in from_sacct("sacct_array.txt")) == ["117_3", "117_4"]


def test_the_number_of_a_heterogeneous_job_stands_for_its_first_component() -> None:
    (task, *_) = from_squeue("squeue_array.txt")
    components = [replace(task, id=JobId(f"117+{number}"), array_job_id=None) for number in (0, 1)]
    for asked, found in (("117", "117+0"), ("117+1", "117+1")):
        record = choose_record(components, JobId(asked))
        assert record is not None and record.id == found


def test_a_task_without_an_output_option_as_22_05_tells_it() -> None:
    text = recorded("squeue_array.txt")
    columns = text.split(SEPARATOR)
    width = len(queue.JOB_COLUMNS)
    rows_of = [columns[start : start + width] for start in range(0, len(columns) - width + 1, width)]
    for row in rows_of:
        raw, home = row[queue.JOB_COLUMNS.index("JobID")].strip(), row[queue.JOB_COLUMNS.index("WorkDir")]
        row[queue.JOB_COLUMNS.index("STDOUT")] = f"{home}/slurm-{raw}.out"
        row[queue.JOB_COLUMNS.index("STDERR")] = ""
    told = queue.read_jobs(SEPARATOR.join(value for row in rows_of for value in row) + SEPARATOR, SEPARATOR)
    assert sorted(task.stdout_path for task in told) == [f"{HOME}/slurm-117_3.out", f"{HOME}/slurm-117_4.out"]


def test_a_later_version_with_more_columns() -> None:
    (record,) = from_sacct("sacct_failed.txt", "24.11-written")
    assert record.nodes == ("gpu-009", "gpu-010", "gpu-011", "gpu-012", "big1")
    assert (record.restarts, record.gpus_per_node, record.num_tasks, record.time_limit_s) == (2, 8, 5, None)
    assert record.memory_limit_bytes_per_node == 1000 * GIB
    assert with_log_paths(record, "").stdout_path == "/home/alice/llm/logs/llm-8801.out"
    assert with_log_paths(record, "").stderr_path == ""
    last = record.steps[-1]
    assert (last.state.name, last.state.job_class) == ("SOME_NEW_STATE", JobClass.UNKNOWN)
    assert last.max_rss_bytes == int(180.52 * GIB)


def test_the_environment_as_stored() -> None:
    stored = accounting.read_stored_text(recorded("sacct_environment.txt"))
    assert stored is not None and "\nMARK=two words\n" in stored


@pytest.mark.parametrize("answer", ["", "Batch Script for 7\n-----\nNONE\n", "sacct: error: x\n"])
def test_a_script_that_was_not_kept(answer: str) -> None:
    assert accounting.read_stored_text(answer) is None


def test_what_accounting_keeps() -> None:
    assert read_config(recorded("scontrol_config.txt")).kept_of_jobs == {"job_comment", "job_env", "job_script"}
    assert read_config("AccountingStoreFlags    = (null)\n").kept_of_jobs == frozenset()
    assert read_config("").kept_of_jobs == frozenset()


def test_nodes_with_the_drain_reason_verbatim() -> None:
    found = {node.name: node for node in nodes.read_nodes(recorded("sinfo.txt"), SEPARATOR)}
    assert list(found) == ["gpu-21", "gpu-22", "gpu-23", "gpu-24"]
    drained = found[NodeName("gpu-24")]
    assert (drained.node_class, drained.states) == (NodeClass.DRAINED, ("IDLE", "DRAIN"))
    assert drained.reason == "runbook:oom-1 GPU 3: a=b | c"
    assert (drained.gpus, drained.gpus_allocated, drained.partitions) == (8, 0, ("gpu",))
    assert found[NodeName("gpu-21")].node_class is NodeClass.BUSY
    assert found[NodeName("gpu-22")].reason == ""


def test_a_token_is_found_in_the_submit_line_where_comments_are_not_kept() -> None:
    known = accounting.known_columns("JobID Submit Comment SubmitLine")
    text = "".join(
        SEPARATOR.join(row) + SEPARATOR + "\n"
        for row in (
            ("7", "1795000000", "", "sbatch --parsable --comment=runbook:oom-c-1:1 their words x.sh"),
            ("8", "1795000001", "said", "sbatch x.sh"),
        )
    )
    assert accounting.read_comments(text, known, SEPARATOR) == [
        (JobId("7"), 1795000000.0, "runbook:oom-c-1:1"),
        (JobId("8"), 1795000001.0, "said"),
    ]


def test_a_row_cut_at_the_output_limit_is_dropped() -> None:
    text = recorded("squeue_array.txt")
    assert len(queue.read_jobs(text[: len(text) - 200], SEPARATOR)) == 1


@pytest.mark.parametrize("separator", ["", "|", "~12~", "~a,b~", "~short", "~UPPER~"])
def test_a_separator_that_slurm_would_read_otherwise_is_refused(separator: str) -> None:
    with pytest.raises(ValueError):
        long_format(("JobID",), separator)
    with pytest.raises(ValueError):
        rows("", ("JobID",), separator)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (recorded("error_no_job.txt"), Complaint.NO_SUCH),
        ("scancel: error: Kill job error on job id 62: Access/permission denied", Complaint.DENIED),
        ("slurm_update error: Invalid user id", Complaint.DENIED),
        ("slurm_update error: Invalid node name specified", Complaint.NO_SUCH),
        ("Node gpu-99 does not exist", Complaint.NO_SUCH),
        ("Slurm accounting storage is disabled", Complaint.NO_ACCOUNTING),
        ("sacct: error: Problem talking to the database: Connection refused", Complaint.UNREACHED),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", Complaint.UNREACHED),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Complaint.LOST),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition", Complaint.REFUSED),
    ],
)
def test_what_slurm_complains_about(words: str, kind: Complaint) -> None:
    assert complaint(words) is kind
