"""Submit lines taken apart and put together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.errors import BadInput, NotAllowed
from runbook.model.job import JobEnvironment, JobRecord, Submission
from runbook.model.units import JobId, NodeName, UserName
from runbook.slurm.ownership import carries
from runbook.slurm.sbatch_options import SbatchOption, header_options, parse_arguments, parse_submit_line, wrapped_text
from runbook.slurm.states import job_state
from runbook.slurm.submit import (
    check_relaunchable,
    environment_file,
    read_submitted,
    sbatch_command,
    submit_environment,
)
from tests.contract.fakes import claimed

TOKEN = "runbook:oom-c-7:1"
CLAIM = claimed("alice", TOKEN, cluster="c")


def original(submit_line: str, **changes: object) -> JobRecord:
    values: dict[str, object] = {"id": JobId("7"), "cluster": "c", "name": "llm", "owner": UserName("alice"),
                                 "state": job_state("FAILED"), "submit_line": submit_line, **changes}  # fmt: skip
    return JobRecord(**values)  # type: ignore[arg-type]


def command(submit_line: str, *options: str, environment: dict[str, str] | None = None, **changes: object) -> list[str]:
    kept = JobEnvironment(environment) if environment is not None else None
    submission = Submission(CLAIM, "/data", "/inc/patched.sh", options, (), kept)
    argv = list(sbatch_command(submission, original(submit_line, **changes)).argv)
    assert argv[:2] == ["sbatch", "--parsable"]
    assert "--chdir=/data" in argv
    argv.remove("--chdir=/data")
    return argv[2:]


def notes(submit_line: str, *options: str, **changes: object) -> str:
    submission = Submission(CLAIM, "/data", "/inc/patched.sh", options, ())
    return "\n".join(sbatch_command(submission, original(submit_line, **changes)).notes)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "sbatch -N2 -n 8 --gpus-per-node=4 -p gpu train.sh --lr 1e-4",
            ["--nodes=2", "--ntasks=8", "--gpus-per-node=4", "--partition=gpu"],
        ),
        ("/usr/bin/sbatch --exclusive --nice=5 -HW train.sh", ["--exclusive", "--nice=5"]),
        ("sbatch -d afterok:3 -b now+1hour --parsable --test-only train.sh", []),
        ("sbatch --dependency afterok:3 --mem 4G train.sh", ["--mem=4G"]),
        ("sbatch --part gpu train.sh", ["--partition=gpu"]),
        ("sbatch --container-image=a:b --no-container-mount-home train.sh",
         ["--container-image=a:b", "--no-container-mount-home"]),
        ("sbatch --site-thing=x -k train.sh", ["--site-thing=x", "--no-kill"]),
        ("sbatch -D /elsewhere --workdir=x --comment mine -J other train.sh", []),
        ("sbatch --export=ALL,A=1 -o %x-%j.out train.sh", ["--export=ALL,A=1", "--output=%x-%j.out"]),
    ],
)  # fmt: skip
def test_the_originals_options_are_kept(line: str, expected: list[str]) -> None:
    arguments = ["--lr", "1e-4"] if "--lr" in line else []
    assert command(line) == [*expected, "--job-name=llm", f"--comment={TOKEN}", "/inc/patched.sh", *arguments]


def test_the_plans_options_replace_the_originals() -> None:
    made = command("sbatch --nodes=4 -t 60 -x gpu-21 train.sh", "--nodes=3", "--exclude=gpu-22,gpu-30")
    assert made[:-3] == ["--time=60", "--nodes=3", "--exclude=gpu-[21-22,30]"]


def test_excluded_nodes_leave_the_node_list() -> None:
    made = command("sbatch -w gpu-[21-24] train.sh", "--exclude=gpu-22")
    assert made[:-3] == ["--exclude=gpu-22", "--nodelist=gpu-[21,23-24]"]
    assert "--nodelist" in notes("sbatch -w gpu-[21-24] train.sh", "--exclude=gpu-22")
    assert command("sbatch -w gpu-22 train.sh", "--exclude=gpu-22")[:-3] == ["--exclude=gpu-22"]


def test_the_original_comment_stays_behind_the_token_once() -> None:
    first = command("sbatch train.sh", comment="my run; v=2")
    assert f"--comment={TOKEN} my run; v=2" in first
    again = command("sbatch train.sh", comment="runbook:oom-c-7:0 my run; v=2")
    assert f"--comment={TOKEN} my run; v=2" in again


def test_free_text_with_spaces_is_recognised_whole() -> None:
    line = "sbatch -J my big run --comment a b --mem=1G -c 2 train.sh one two"
    made = command(line, name="my big run", comment="a b")
    assert made[:4] == ["--mem=1G", "--cpus-per-task=2", "--job-name=my big run", f"--comment={TOKEN} a b"]
    assert made[4:] == ["/inc/patched.sh", "one", "two"]


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("sbatch --constraint a b train.sh", {"command": "/home/alice/train.sh"}),
        ("sbatch --site-option maybe train.sh", {}),
        ("sbatch -N1 : -N2 train.sh", {}),
        ("srun -N2 python train.py", {}),
        ("sbatch -Z train.sh", {}),
        ("sbatch --wrap python train.py --nodes 2", {}),
        ("sbatch --exclude=/etc/bad-nodes train.sh", {}),
    ],
)
def test_a_line_that_cannot_be_told_apart_is_refused(line: str, changes: dict[str, object]) -> None:
    with pytest.raises(BadInput) as refused:
        command(line, environment=None, **changes)
    assert refused.value.next_step


def test_the_controllers_script_settles_a_site_option() -> None:
    made = command("sbatch --site-flag train.sh 7", command="/home/alice/train.sh 7")
    assert made[0] == "--site-flag" and made[-2:] == ["/inc/patched.sh", "7"]


def test_wrapped_commands() -> None:
    script = "#!/bin/sh\n# This script was created by sbatch --wrap.\n\nsrun python -c 'x = 1' --nodes 2\n"
    wrapped = wrapped_text(script)
    assert wrapped == "srun python -c 'x = 1' --nodes 2"
    line = f"sbatch -N2 --wrap {wrapped} --mem=1G"
    submission = Submission(CLAIM, "/data", "/inc/patched.sh", (), ())
    made = sbatch_command(submission, original(line), wrapped=wrapped).argv
    assert made[2:4] == ("--nodes=2", "--mem=1G")
    assert made[-1] == "/inc/patched.sh"


def test_variables_that_sbatch_reads_become_options() -> None:
    environment = {"SBATCH_ACCOUNT": "nlp", "SBATCH_PARTITION": "big", "SBATCH_EXCLUSIVE": "", "SLURM_JOB_ID": "3"}
    made = command("sbatch -p gpu train.sh", environment=environment)
    assert made[:-3] == ["--account=nlp", "--exclusive", "--partition=gpu"]
    assert submit_environment({**environment, "HOME": "/home/alice"}) == {"HOME": "/home/alice"}


def test_without_a_submit_line_the_record_has_to_do_and_says_so() -> None:
    made = command("", partition="gpu", num_nodes=2, time_limit_s=90.0, gpus_per_node=4)
    assert made[:-3] == ["--partition=gpu", "--nodes=2", "--time=1", "--gpus-per-node=4"]
    assert "did not keep the submit line" in notes("")


def test_a_task_of_an_array_becomes_an_array_of_that_index() -> None:
    made = command("sbatch -p gpu --array=0-99%4 train.sh", id=JobId("7_3"), array_job_id=JobId("7"))
    assert made[:2] == ["--partition=gpu", "--array=3"] and "--array=0-99%4" not in made
    assert "SLURM_ARRAY_TASK_COUNT is 1" in notes("sbatch train.sh", id=JobId("7_3"), array_job_id=JobId("7"))


@pytest.mark.parametrize("name", ["SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MAX"])
def test_a_task_that_asks_how_many_there_are_is_refused(name: str) -> None:
    task = original("sbatch --array=0-99 train.sh", id=JobId("7_3"), array_job_id=JobId("7"))
    with pytest.raises(NotAllowed, match=name):
        check_relaunchable(task, f"python train.py --shards=${{{name}}}\n")
    check_relaunchable(task, "python train.py --shard=$SLURM_ARRAY_TASK_ID\n")


@pytest.mark.parametrize(
    "changes", [{"id": JobId("7_[3-9%2]")}, {"array_job_id": JobId("7")}, {"id": JobId("7+1")}]
)
def test_members_of_a_family_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(NotAllowed):
        command("sbatch train.sh", environment=None, **changes)


def test_an_array_named_in_the_submit_line_is_refused() -> None:
    with pytest.raises(NotAllowed):
        command("sbatch --array=0-3 train.sh")


def test_one_file_for_every_run_is_noted() -> None:
    assert "overwrites" in notes("sbatch -o train.log train.sh")
    assert "appends" in notes("sbatch -o train.log --open-mode=append train.sh")
    assert notes("sbatch -o train-%j.log train.sh") == ""


@pytest.mark.parametrize(
    ("comment", "token", "matches"),
    [
        (TOKEN, TOKEN, True), (f"{TOKEN} mine", TOKEN, True), (f"{TOKEN}2", TOKEN, False),
        (TOKEN, "runbook:oom-c-7", False), (f"{TOKEN}2:0f", f"{TOKEN}:", False),
        (f"{TOKEN}:0f", f"{TOKEN}:", True), (f"x{TOKEN}", TOKEN, False), ("", "", False), (TOKEN, "", False),
    ],
)  # fmt: skip
def test_tokens(comment: str, token: str, matches: bool) -> None:
    assert carries(comment, token) is matches


@pytest.mark.parametrize(
    ("answer", "job"),
    [("123\n", "123"), ("123;big\n", "123"), ("Welcome to BIG\n123;big\n", "123"), ("", None), ("error 5 x\n", None)],
)
def test_the_answer_of_sbatch(answer: str, job: str | None) -> None:
    assert read_submitted(answer) == job


def test_header_lines() -> None:
    script = (
        "#!/bin/bash\n#SBATCH --job-name='my run' # why\n\n# x\n#SBATCH -o %x-%j.out -N 2\n##SBATCH --mem=1\n"
        "echo x\n#SBATCH --mem=9G\n"
    )
    assert header_options(script) == (
        SbatchOption("job-name", "my run"), SbatchOption("output", "%x-%j.out"), SbatchOption("nodes", "2"),
    )  # fmt: skip


_WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="-:"), min_size=1, max_size=8)


@given(st.lists(st.sampled_from(["-N2", "--mem=1G", "-p gpu", "--exclusive", "-t 10"])), _WORD, st.lists(_WORD))
def test_a_line_without_spaces_in_values_is_told_apart(options: list[str], script: str, arguments: list[str]) -> None:
    line = " ".join(("sbatch", *options, script, *arguments))
    parsed = parse_submit_line(line)
    assert (parsed.script, list(parsed.arguments)) == (script, arguments)
    assert len(parsed.options) == len(options)


@given(st.lists(st.text(max_size=10)))
def test_no_arguments_break_the_reader(arguments: list[str]) -> None:
    try:
        parse_arguments(arguments)
        parse_submit_line(" ".join(("sbatch", *arguments)))
    except BadInput:
        return


def test_node_names_are_not_options() -> None:
    made = command("sbatch train.sh", f"--exclude={NodeName('gpu-21')}")
    assert made[0] == "--exclude=gpu-21"


def test_the_environment_that_sbatch_is_given_in_a_file() -> None:
    kept = {"A": "1\n2", "B": "\udcff", "LD_PRELOAD": "/home/alice/x.so", "odd=name": "x"}
    every = b"A=1\n2\0B=\xff\0LD_PRELOAD=/home/alice/x.so\0"
    for whole in (None, "all"):
        assert environment_file(kept, whole, "llm") == every + b"SLURM_JOB_NAME=llm\0"
    assert environment_file(kept, "ALL,C=3", "") == every + b"C=3\0SLURM_EXPORT_ENV=ALL,C=3\0"
    assert environment_file(kept, "A,C=3", "llm") == b"A=1\n2\0C=3\0SLURM_JOB_NAME=llm\0SLURM_EXPORT_ENV=A,C=3\0"
    assert environment_file(kept, "NONE", "llm") == b""
