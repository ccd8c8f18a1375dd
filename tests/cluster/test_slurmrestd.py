"""slurmrestd beside Slurm's commands, on a Slurm whose slurmrestd speaks a format that is read (`make test-slurm`).

The same jobs are read both ways and compared field by field; nothing is asked elsewhere where slurmrestd says no.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.slurm.commands import SlurmCommands
from runbook.adapters.slurm.scheduler import SlurmCli
from runbook.adapters.slurm.slurmrestd import RestLine, RestSettings, SlurmRest
from runbook.errors import NotAllowed, NotFound, RunbookError, Unavailable
from runbook.model.job import JobRecord
from runbook.model.units import JobId, NodeName
from tests.cluster.conftest import SLURM, Cluster

SOCKET = Path("/run/runbook-sandbox/rest/slurmrestd.sock")
VERSION = "v0.0.43"
pytestmark = [
    pytest.mark.cluster, pytest.mark.timeout(300),
    pytest.mark.skipif(not SOCKET.exists(), reason="this Slurm has no slurmrestd that is read"),
]

NOT_COMPARED = {
    "source": "names who told it",
    "more_log_paths": "patterns of steps: only accounting's commands tell them by version",
    "gpu_indices": "of a job that has ended, the commands' are those that the node's epilog left",
}
"""Fields, and why."""


def token_of(user: str, folder: Path, seconds: int = 600) -> Path:
    told = subprocess.run(
        ("scontrol", "token", f"username={user}", f"lifespan={seconds}"), env={**os.environ, **SLURM},
        capture_output=True, text=True, check=True,
    ).stdout
    path = folder / f"token-{user}"
    path.touch(mode=0o600)
    path.write_text(told, encoding="ascii")
    return path


def rest_of(folder: Path, user: str = "sb-runbook", **other: str) -> SlurmRest:
    settings = RestSettings(f"unix:{SOCKET}", VERSION, str(token_of(user, folder)), timeout_s=10.0)
    settings = dataclasses.replace(settings, **other)  # type: ignore[arg-type]
    return SlurmRest(RestLine(settings), settings.version, cluster="sandbox")


def commands() -> SlurmCli:
    return SlurmCli(SlurmCommands(slurm_conf=SLURM["SLURM_CONF"]), cluster="sandbox")


def compared(record: JobRecord) -> dict[str, object]:
    told = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    told["reason"] = record.reason.partition(":")[0]  # the commands say which signal
    told["steps"] = tuple(replace(step, max_rss_bytes=None) for step in record.steps)
    return {name: value for name, value in told.items() if name not in NOT_COMPARED}


def script(cluster: Cluster, name: str, text: str, *options: str) -> str:
    path = cluster.jobs / f"{name}.sh"
    path.write_text("#!/bin/bash\n" + "".join(f"#SBATCH {option}\n" for option in options) + text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_both_ways_tell_the_same_of_every_sort_of_job(cluster: Cluster, tmp_path: Path) -> None:
    two_nodes = ("--gres=gpu:2", "-N2", "-n4", "--mem=300", "-t", "10", "--exclude=gpu-24")
    jobs = {
        "failed": cluster.submit(script(cluster, "failed", "srun true; exit 3\n", "--comment='of mine'"), *two_nodes),
        "by a signal": cluster.submit(script(cluster, "signal", "kill -9 $$\n"), "-o", "%x-%j-%N.log", "-e", "e-%j"),
        "done": cluster.submit(script(cluster, "done", "true\n")),
        "requeued": cluster.submit(script(cluster, "again", '[ "$SLURM_RESTART_COUNT" ] || exec sleep 300\nexit 7\n')),
        "runs": cluster.submit(script(cluster, "runs", "sleep 300\n"), *two_nodes),
    }
    array = cluster.submit(script(cluster, "array", "sleep 300\n"), "--array=1-3%1", "-o", "a_%A_%a.log")
    jobs["a task"] = f"{array}_1"
    jobs["waits"] = cluster.submit(script(cluster, "waits", "true\n"), "-d", f"afterok:{jobs['runs']}")
    cluster.until(lambda: cluster.state_of(jobs["requeued"]) == "RUNNING", "it runs for the first time")
    cluster.slurm("scontrol", "requeue", jobs["requeued"])
    cancelled = jobs["cancelled"] = cluster.submit(script(cluster, "cancelled", "sleep 300\n"))
    cluster.until(lambda: cluster.state_of(cancelled) == "RUNNING", "it runs")
    cluster.slurm("scancel", cancelled)
    ends = [jobs[name] for name in ("failed", "by a signal", "done", "requeued", "cancelled")]
    going = ("RUNNING", "PENDING", "COMPLETING")
    cluster.until(lambda: not any(cluster.state_of(job) in going for job in ends), "they are over", 120.0)
    by_rest, by_commands = rest_of(tmp_path), commands()

    def differences() -> dict[str, dict[str, tuple[object, object]]]:
        found = {}
        for name, job in jobs.items():
            one, other = (compared(way.job(JobId(job))) for way in (by_commands, by_rest))
            unlike = {field: (one[field], other[field]) for field in one if one[field] != other[field]}
            if unlike:
                found[name] = unlike
        return found

    # Accounting is behind for a moment, for either.
    try:
        cluster.until(lambda: not differences(), "both tell the same", 30.0)
    except AssertionError:
        raise AssertionError(json.dumps(differences(), indent=1, default=str)) from None
    assert by_rest.job(JobId(jobs["runs"])).gpu_indices == by_commands.job(JobId(jobs["runs"])).gpu_indices != ()
    assert [(one.name, one.node_class, one.reason, one.gpus, one.gpus_allocated, one.partitions)
            for one in by_rest.nodes()] == [
        (one.name, one.node_class, one.reason, one.gpus, one.gpus_allocated, one.partitions)
        for one in by_commands.nodes()
    ]
    with pytest.raises(RunbookError, match="is several"):
        by_rest.job(JobId(array))


def test_it_cancels_what_was_judged_and_nothing_else(cluster: Cluster, tmp_path: Path) -> None:
    job = JobId(cluster.submit(script(cluster, "runs", "sleep 300\n")))
    cluster.until(lambda: cluster.state_of(job) == "RUNNING", "it runs")
    by_rest = rest_of(tmp_path)
    judged = by_rest.job(job)
    with pytest.raises(NotAllowed, match="denied"):
        rest_of(tmp_path, "sb-bob").cancel(judged)
    with pytest.raises(NotAllowed, match="owner changed"):
        by_rest.cancel(replace(judged, owner="sb-bob", uid=77002))  # type: ignore[arg-type]
    with pytest.raises(NotAllowed, match="restarted"):
        by_rest.cancel(replace(judged, start_time_s=1.0))
    assert cluster.state_of(job) == "RUNNING"
    by_rest.cancel(judged)
    cluster.until(lambda: cluster.state_of(job) == "CANCELLED", "it is cancelled")
    by_rest.cancel(judged)
    by_rest.cancel(replace(judged, id=JobId("999999")))


def test_what_is_wrong_is_said_and_nobody_else_is_asked(cluster: Cluster, tmp_path: Path) -> None:
    by_rest = rest_of(tmp_path)
    with pytest.raises(NotFound, match="999999"):
        by_rest.job(JobId("999999"))
    with pytest.raises(NotFound, match="nosuch"):
        by_rest.nodes([NodeName("nosuch")])
    with pytest.raises(Unavailable, match="does not serve"):
        rest_of(tmp_path, version="v0.0.39").nodes()
    with pytest.raises(Unavailable, match="does not answer"):
        rest_of(tmp_path, url=f"unix:{tmp_path}/nobody.sock").nodes()
    token = tmp_path / "token-sb-runbook"
    good = token.read_text()
    for spoilt, wanted in (("", "no token"), (good[:-4] + "abcd", "does not take the token"), ("x y", "no token")):
        token.write_text(spoilt)
        line = RestLine(RestSettings(f"unix:{SOCKET}", VERSION, str(token)))
        with pytest.raises(RunbookError, match=wanted) as told:
            line.ask("slurm/nodes/")
        assert good.strip().removeprefix("SLURM_JWT=") not in str(told.value)
    token.write_text(good)
    token.chmod(0o644)
    with pytest.raises(NotAllowed, match="others than its user"):
        RestLine(RestSettings(f"unix:{SOCKET}", VERSION, str(token))).ask("slurm/nodes/")


def test_the_whole_command_reads_and_plans_over_it(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    text = cluster.inventory.read_text(encoding="utf-8")
    known = f"{{kind: slurm, slurm_conf: {SLURM['SLURM_CONF']}}}"
    assert known in text
    rest = f"{{url: 'unix:{SOCKET}', version: {VERSION}, token_file: {token_of('sb-runbook', tmp_path)}}}"
    text = text.replace(known, f"{{kind: slurm, adapter: rest, rest: {rest}}}").replace("mode: apply", "mode: plan")
    cluster.inventory.write_text(text, encoding="utf-8")
    done = cluster.runbook("oom", "--job", job)
    assert "Traceback" not in done.stderr, done.stderr
    incident = cluster.incident(job)
    assert incident["original"]["job"]["source"].startswith("slurmrestd"), incident["original"]["job"]
    doctor = cluster.runbook("doctor")
    assert "slurmrestd at unix:" in doctor.stdout and "Traceback" not in doctor.stderr
