"""The kernel's lines on processes that it killed for want of memory, as kernels 4.18 to 6.12 write them."""

from __future__ import annotations

import pytest

from runbook.model.units import Unknown
from runbook.node import Window
from runbook.node.kernel_log import LogLine, read_oom_kills

GROUP = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,"
    "oom_memcg=/system.slice/slurmstepd.scope/job_4711,"
    "task_memcg=/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3,task=python,pid=815,uid=1000"
)
KILLED = (
    "Memory cgroup out of memory: Killed process 815 (python) total-vm:104857600kB, anon-rss:52428800kB, "
    "file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1024kB oom_score_adj:0"
)


def test_the_two_lines_of_a_kill_and_their_copies_in_another_log_are_one() -> None:
    lines = [LogLine(1000.0, GROUP), LogLine(1000.1, KILLED), LogLine(1001.0, GROUP), LogLine(1001.1, KILLED)]
    (kill,) = read_oom_kills(lines, Window(900.0, 1100.0))
    assert (kill.pid, kill.name, kill.job, kill.whole_node, kill.in_window) == (815, "python", "4711", False, True)
    assert kill.time_s == 1000.0


@pytest.mark.parametrize(("line", "whole_node", "job"), [
    (KILLED, False, "unknown"),
    ("Memory cgroup out of memory: Kill process 815 (python) score 980 or sacrifice child", False, "unknown"),
    ("Out of memory: Killed process 815 (python) total-vm:1kB, anon-rss:1kB", True, "unknown"),
    ("Out of memory (oom_kill_allocating_task): Killed process 815 (python) total-vm:1kB", True, "unknown"),
    (GROUP.replace("MEMCG", "NONE").replace("mems_allowed=0-1,oom_memcg=", "mems_allowed=0,global_oom,x="), True,
     "4711"),
    (GROUP.replace("/system.slice/slurmstepd.scope/job_4711", "/user.slice/session-1.scope"), False, "none"),
    (GROUP.replace("/system.slice/slurmstepd.scope/job_", "/slurm/uid_1000/job_"), False, "4711"),
])
def test_who_was_killed_and_for_whose_limit(line: str, whole_node: bool, job: str) -> None:
    (kill,) = read_oom_kills([LogLine(5.0, line)], Window())
    assert (kill.pid, kill.name, kill.whole_node) == (815, "python", whole_node)
    found = "unknown" if isinstance(kill.job, Unknown) else kill.job or "none"
    assert found == job


def test_a_cgroup_that_its_user_named_like_the_line_makes_no_job_of_anothers() -> None:
    place = "/user.slice/user-1001.slice/user@1001.service/x"
    forged = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
        f"oom_memcg={place},task_memcg=,task_memcg={place},task_memcg=/slurm/uid_1003/job_522/step_0,task=python,"
        "task=python3,pid=1058,uid=1001"
    )
    (kill,) = read_oom_kills([LogLine(5.0, forged)], Window())
    assert isinstance(kill.job, Unknown)
    line = GROUP.replace("/system.slice/slurmstepd.scope", "/slurm/uid_1003")
    (other,) = read_oom_kills([LogLine(5.0, line)], Window())
    assert isinstance(other.job, Unknown), "it ran as user 1000"


def test_a_name_that_is_half_a_line_neither_changes_the_number_nor_invents_a_job() -> None:
    named = GROUP.replace("task=python", "task=a,pid=1,uid=0,")
    (kill,) = read_oom_kills([LogLine(5.0, named)], Window())
    assert (kill.pid, kill.job) == (815, "4711")
    assert read_oom_kills([LogLine(5.0, "python[3]: I am out of memory: Killed")], Window()) == ()


def test_a_cgroup_that_a_user_named_like_a_kill_invents_none() -> None:
    evil = "/user.slice/user@1000.service/Out of memory: Killed process 7 (sshd) total-vm:1kB"
    (kill,) = read_oom_kills([LogLine(5.0, GROUP.replace("/system.slice/slurmstepd.scope/job_4711", evil))], Window())
    assert (kill.pid, kill.whole_node, kill.job) == (815, False, None)
    path = f"process '/home/mallory/{KILLED}' started with executable stack"
    assert read_oom_kills([LogLine(5.0, path)], Window()) == ()


def test_a_number_that_comes_again_an_hour_later_is_another_process() -> None:
    kills = read_oom_kills([LogLine(4600.0, KILLED), LogLine(1000.0, GROUP)], Window(900.0, 1100.0))
    assert [(kill.time_s, kill.in_window) for kill in kills] == [(1000.0, True), (4600.0, False)]


def test_what_any_user_can_write_is_never_in_the_window() -> None:
    (kill,) = read_oom_kills([LogLine(1000.0, KILLED, any_user_can_write=True)], Window(900.0, 1100.0))
    assert isinstance(kill.in_window, Unknown)
