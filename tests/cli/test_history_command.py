"""`runbook history`, as it is typed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

from runbook.adapters.store import IncidentStore
from runbook.model.remedy import Circumstances
from runbook.model.units import IncidentId, NodeName, UserName
from tests.cli.conftest import Shell
from tests.report.sample_incidents import recovered


def fill(shell: Shell, nodes: int = 0, owners: tuple[str, ...] = ("ana",)) -> None:
    store = IncidentStore(shell.state)
    ran_with = Circumstances("megatron", model="llama\x1b[31m-70b", micro_batch=4, sequence_length=8192)
    for number in range(3 + nodes):
        made = recovered()
        assert made.failure is not None
        job = replace(made.failure.job, name=f"job{number}", nodes=tuple(NodeName(f"gpu-{n}") for n in (21, 22, 23)))
        job = replace(job, num_nodes=3, owner=UserName(owners[number % len(owners)]))
        made = replace(made, failure=replace(made.failure, job=job))
        store.save(replace(made, id=IncidentId(f"oom-here-{number}"), circumstances=ran_with))


def test_an_empty_past_is_no_error(shell: Shell) -> None:
    done = shell("history")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no incident whose cause is known fits" in done.stderr


def test_what_died_of_what_and_what_worked(shell: Shell) -> None:
    fill(shell)
    done = shell("history", "--since", "100y")
    assert done.returncode == 0, done.stderr
    assert "llama-70b" in done.stdout and "3/3" in done.stdout and "\x1b" not in done.stdout
    (group,) = json.loads(shell("history", "--json", "--user", "ana", "--node", "gpu-23").stdout)
    assert (group["system"], group["micro_batch"], group["incidents"], group["recovered"]) == ("megatron", 4, 3, 3)
    assert group["levers"] == [{"lever": "micro_batch_size", "worked": 3, "failed": 0, "not_proven": 0}]
    assert json.loads(shell("history", "--json", "--kind", "fragmentation").stdout) == []


def test_the_second_death_of_a_script_names_the_first(shell: Shell) -> None:
    first = shell.failed_job()
    assert shell("oom", "--job", first, "--yes").returncode == 0
    shutil.rmtree(shell.work / "ckpt")
    second = shell.failed_job()
    assert shell("oom", "--job", second).returncode == 0
    incident = json.loads((shell.state / "incidents" / f"oom-here-{second}" / "incident.json").read_text())
    assert incident["circumstances"]["micro_batch"] == 8
    (use,) = incident["plan"]["uses"]
    assert use["seen_before"] == [
        f"worked in 1 of 1 with the same script: oom-here-{first} (the same values); one case proves little"
    ]
    assert f"Before: worked in 1 of 1 with the same script: oom-here-{first}" in " ".join(
        shell("show", f"oom-here-{second}").stdout.split()
    )


def test_nodes_beside_their_peers(shell: Shell) -> None:
    fill(shell, nodes=9, owners=("ana", "ben", "cyn"))
    done = shell("history", "--nodes")
    assert done.returncode == 0, done.stderr
    assert "more than its peers" in done.stdout and "counts 1/n as expected" in " ".join(done.stdout.split())
    (worst,) = json.loads(shell("history", "--nodes", "--json").stdout)
    assert (worst["node"], worst["verdict"], worst["observed"], worst["expected"]) == ("gpu-22", "more", 12, 4.0)


def test_one_users_jobs_alone_name_no_node(shell: Shell) -> None:
    fill(shell, nodes=9)
    (worst,) = json.loads(shell("history", "--nodes", "--json").stdout)
    assert (worst["verdict"], worst["owners"], worst["most_of"]) == ("one_owner", 1, "ana")


def test_what_is_mistyped_is_said(shell: Shell) -> None:
    for arguments in (("--since", "soon"), ("--nodes", "--user", "ana"), ("--kind", "oom")):
        done = shell("history", *arguments)
        assert done.returncode == 2 and done.stderr, arguments
