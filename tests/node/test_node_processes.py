"""Whose a process on a GPU is: Slurm's cgroup layouts, the environment, the owner, the age."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from runbook.model.node import GpuProcess
from runbook.model.units import MIB, Bytes, JobId, NodeName, Unknown, UserName
from runbook.node import NodeAnswers, job_of_cgroup, read_answers, read_gpu_processes, read_job_processes
from runbook.node.check_script import whole_script
from runbook.node.processes import owners_of

MARKER = "@@0123456789abcdef"
STAT = "200 (a) b (python3) S 1 200 200 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 9 0 900000 1 1 1"


def answers(owners: str, *, cgroups: bool = True, apps: str = "GPU-1, 200, 1024, python3") -> NodeAnswers:
    node = "uptime=10000.00\nticks=100\nnow=1700000000" + ("\nslurm_cgroup=/sys/fs/cgroup/x" if cgroups else "")
    sections = {"node": node, "apps": apps, "owners": owners}
    text = "".join(f"{MARKER} begin {name}\n{body}\n{MARKER} end {name} 0\n" for name, body in sections.items())
    return read_answers(text, MARKER)


def only(found: dict[str, tuple[GpuProcess, ...]] | Unknown) -> GpuProcess:
    assert not isinstance(found, Unknown)
    ((process,),) = found.values()
    return process


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("11:memory:/slurm/uid_1000/job_123/step_0/task_0", "123"),
        ("4:devices:/slurm_gpu-22/uid_0/job_4/step_batch", "4"),
        ("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", "123"),
        ("0::/system.slice/gpu-22_slurmstepd.scope/job_77/step_extern/user/task_special", "77"),
        ("0::/slurm.slice/slurmstepd.scope/job_9", "9"),
        ("0::/user.slice/user-1000.slice/session-4.scope", None),
        ("0::/system.slice/docker-aaaa.scope", None),
        ("0::/home/job_5/x", None),
        ("0::/", None),
    ],
)
def test_the_job_of_a_cgroup(path: str, job: str | None) -> None:
    assert job_of_cgroup(path) == job


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0", "SLUID sEKNKTV3WPV500"),
        ("0::/system.slice/slurmstepd.scope/system", "names no job"),
        ("5:freezer:/slurm_gpu-21", "names no job"),
    ],
)
def test_a_slurm_cgroup_without_a_job_number_is_unknown(path: str, words: str) -> None:
    found = job_of_cgroup(path)
    assert isinstance(found, Unknown)
    assert words in found.unknown


def test_owner_age_and_job_of_a_process() -> None:
    process = only(
        read_gpu_processes(
            answers(
                f"200 owner 1000 alice\n200 stat {STAT}\n200 cgroup 11:cpu:/\n"
                "200 cgroup 4:memory:/slurm/uid_1000/job_55/step_0\n200 environ readable\n200 env SLURM_LOCALID=3"
            )
        )
    )
    assert process == GpuProcess(
        pid=200, used_bytes=Bytes(1024 * MIB), name="python3", owner=UserName("alice"), job=JobId("55"), age_s=1000.0,
        local_rank=3, start_ticks=900000, cgroup="4:memory:/slurm/uid_1000/job_55/step_0",
    )


@pytest.mark.parametrize(
    ("owners", "cgroups", "job"),
    [
        # A cgroup wins over what the process says of itself.
        ("200 owner 1 bob\n200 cgroup 0::/a/slurmstepd.scope/job_9/step_0\n200 environ readable\n"
         "200 env SLURM_JOB_ID=4711", True, "9"),
        # Without cgroups its environment is all there is.
        ("200 owner 1 bob\n200 cgroup 0::/\n200 environ readable\n200 env SLURM_JOB_ID=4711", False, "4711"),
        # An array task is named as squeue names it, where its environment agrees with the cgroup.
        ("200 owner 1 bob\n200 cgroup 0::/a/slurmstepd.scope/job_130/step_0\n200 environ readable\n"
         "200 env SLURM_JOB_ID=130\n200 env SLURM_ARRAY_JOB_ID=128\n200 env SLURM_ARRAY_TASK_ID=2", True, "128_2"),
        # An environment taken over from another job's task does not rename the job of the cgroup.
        ("200 owner 1 bob\n200 cgroup 0::/a/slurmstepd.scope/job_9/step_0\n200 environ readable\n"
         "200 env SLURM_JOB_ID=130\n200 env SLURM_ARRAY_JOB_ID=128\n200 env SLURM_ARRAY_TASK_ID=2", True, "9"),
        # SLUID directories: the environment has the number.
        ("200 owner 1 bob\n200 cgroup 0::/a/slurmstepd.scope/sEKNKTV3WPV500/step_0\n200 environ readable\n"
         "200 env SLURM_JOB_ID=77", True, "77"),
        # Outside every Slurm cgroup, on a node that has them.
        ("200 owner 1 bob\n200 cgroup 0::/user.slice", True, None),
        # Outside, no cgroups of Slurm, but the environment was read and names no job.
        ("200 owner 1 bob\n200 cgroup 0::/user.slice\n200 environ readable", False, None),
    ],
)
def test_the_job_of_a_process(owners: str, cgroups: bool, job: str | None) -> None:
    assert only(read_gpu_processes(answers(owners, cgroups=cgroups))).job == job


@pytest.mark.parametrize("path", [
    "0::/user.slice/user-1001.slice/user@1001.service/slurm/uid_1003/job_522/step_0",
    "5:memory:/user.slice/user-1001.slice/slurm_n1/uid_1001/job_522",
    "0::/user.slice/user-1001.slice/user@1001.service/app.slice/slurmstepd.scope/job_522/step_0",
])
def test_a_users_own_cgroup_with_slurms_names_is_no_job(path: str) -> None:
    assert job_of_cgroup(path, 1001) is None


def test_slurms_own_name_comes_first_and_its_user_is_the_processs() -> None:
    below = "5:memory:/slurm/uid_1001/job_7/step_0/slurm/uid_1003/job_522/step_0"
    assert job_of_cgroup(below, 1001) == "7"
    assert isinstance(job_of_cgroup("5:memory:/slurm/uid_1003/job_522/step_0", 1001), Unknown)


@pytest.mark.parametrize(
    ("owners", "cgroups", "words"),
    [
        ("200 owner 1 bob\n200 cgroup 0::/user.slice", False, "may not be read"),
        ("200 owner 1 bob", True, "cgroup could not be read"),
        ("200 owner 1 bob\n200 cgroup 0::/a/slurmstepd.scope/sEKNKTV3WPV500/step_0", True, "SLUID"),
        ("200 gone", True, "no such process"),
        ("", True, "not looked up"),
    ],
)
def test_a_job_that_cannot_be_told_is_unknown(owners: str, cgroups: bool, words: str) -> None:
    job = only(read_gpu_processes(answers(owners, cgroups=cgroups))).job
    assert isinstance(job, Unknown)
    assert words in job.unknown


def test_a_user_without_a_name_is_shown_by_number() -> None:
    assert only(read_gpu_processes(answers("200 owner 77001 "))).owner == "77001"


def document(lines: str, node: str = "user=probe\nas=plain", owner: str = "7") -> NodeAnswers:
    text = f"{MARKER} begin node\n{node}\nowner_uid={owner}\n{MARKER} end node 0\n{MARKER} begin processes\n{lines}\n"
    return read_answers(f"{text}{MARKER} end processes 0\n{MARKER} done\n", MARKER)


def test_job_processes_are_the_owners_only_and_the_rank_is_the_launchers() -> None:
    lines = (
        "10 owner 0 root\n10 argv slurmstepd: [4.0]\x01\n"
        "30 owner 7 alice\n30 argv python\x01train.py\x01a\x02b\x01\x01\n30 environ readable\n"
        "30 env SLURM_PROCID=1\n30 env RANK=9\n30 env X=1\n30 env SECRET=s\n"
        "20 owner 7 alice\n20 argv bash\x01\n20 environ readable\n20 env SLURM_PROCID=0\n"
        "40 owner 7 alice\n40 argv \n40 environ readable\n"
    )
    views = read_job_processes(document(lines), NodeName("n"), ("X", "RANK"))
    assert not isinstance(views, Unknown)
    assert [(view.pid, view.argv, view.rank, view.environment) for view in views] == [
        (20, ("bash",), 0, {}),
        (30, ("python", "train.py", "a\nb", ""), 9, {"X": "1", "RANK": "9"}),
    ]


def test_a_process_of_a_number_without_a_name_is_not_the_jobs() -> None:
    """Each user has tens of thousands of those, for containers; SLURM_JOB_ID is anybody's word."""
    line = "argv python\x01\n{0} environ readable\n{0} env RANK=0\n{0} env WORLD_SIZE=2\n"
    lines = "".join(f"{pid} owner {uid} {name}\n{pid} {line.format(pid)}" for pid, uid, name in (
        (30, "100001", ""), (31, "8", "alice"), (32, "7", ""),
    ))
    views = read_job_processes(document(lines), NodeName("n"), ("RANK",))
    assert not isinstance(views, Unknown) and [view.pid for view in views] == [32]
    assert isinstance(read_job_processes(document(lines, owner=""), NodeName("n"), ("RANK",)), Unknown)


@pytest.mark.parametrize(
    ("node", "words"),
    [("user=probe\nas=plain", "by probe:"), ("user=probe\nas=sudo-refused", "sudo -n was refused")],
)
def test_an_environment_that_may_not_be_read_makes_the_answer_unknown(node: str, words: str) -> None:
    found = read_job_processes(
        document("30 owner 7 alice\n30 argv python\x01", node), NodeName("gpu-21"), ("X",)
    )
    assert isinstance(found, Unknown)
    assert "process 30 on gpu-21" in found.unknown
    assert words in found.unknown


def test_an_answer_that_was_cut_off_is_unknown_and_not_an_empty_list() -> None:
    cut = read_answers(f"{MARKER} begin processes\n30 owner 7 alice\n30 argv python\x01\n", MARKER)
    assert isinstance(read_job_processes(cut, NodeName("n"), ()), Unknown)
    assert isinstance(read_job_processes(read_answers("", MARKER), NodeName("n"), ()), Unknown)


def test_a_process_that_calls_itself_a_line_of_the_answer_says_nothing_of_another() -> None:
    """The kernel shows a process's name as it is, line breaks and all."""
    named = "import sys, time; open('/proc/self/comm', 'w').write(sys.argv[1]); print(flush=True); time.sleep(60)"
    with contextlib.ExitStack() as ended:
        honest = subprocess.Popen(("sleep", "60"))
        ended.callback(honest.kill)
        for name in (f"\n{honest.pid} owner 0 ", f"\n{honest.pid} gone "):
            liar = subprocess.Popen((sys.executable, "-c", named, name), stdout=subprocess.PIPE)
            ended.callback(liar.kill)
            assert liar.stdout is not None and liar.stdout.readline() == b"\n"
            script = whole_script(MARKER, f"owners {honest.pid} {liar.pid}\nfinish\n")
            told = subprocess.run(("sh", "-c", script), capture_output=True, check=True, timeout=60, text=True)
            seen = owners_of(read_answers(told.stdout, MARKER))
            assert set(seen) == {honest.pid, liar.pid}
            assert all(one.uid == os.getuid() and not one.gone for one in seen.values())
            assert all(len(one.stat.rpartition(")")[2].split()) > 40 for one in seen.values())


def test_the_first_word_on_a_process_counts() -> None:
    (forged,) = owners_of(answers(
        f"200 owner 1000 alice\n200 stat {STAT}\n200 owner 0 root\n200 gone\n200 stat 200 (x) S 1"
    )).values()
    assert (forged.uid, forged.user, forged.gone, forged.stat) == (1000, "alice", False, STAT)
