"""The whole loop on a real Slurm with real sshd: every kind of failure, from the job that died to its end."""

from __future__ import annotations

import re
import subprocess
import time

import pytest

from tests.cluster.conftest import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def outcomes(incident: dict[str, object]) -> dict[str, str]:
    visits = incident["visits"]
    assert isinstance(visits, list)
    return {visit["box"]: visit["outcome"] for visit in visits}


def test_true_oom_comes_back_with_a_smaller_micro_batch(cluster: Cluster) -> None:
    job = cluster.submit("true-oom.sbatch")
    after = cluster.submit("healthy.sbatch", f"--dependency=afterok:{job}", "--job-name=export")
    cluster.until_dead(job, "true-oom")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert incident["state"] == "recovered"
    assert f"Now waiting for job {incident['attempts'][0]['job']} instead: {after}." in incident["notes"]
    assert incident["original"]["diagnosis"]["best"]["kind"] == "true_oom"
    cause = incident["original"]["story"]["root_cause"]
    assert (cause["rank"], cause["node"], cause["step"]) == (5, "gpu-22", 40)
    assert cluster.state_of(job) == "CANCELLED"
    (attempt,) = incident["attempts"]
    relaunched = attempt["job"]
    assert cluster.field(relaunched, "UserId").startswith("sb-alice(")
    assert re.fullmatch(rf"runbook:oom-sandbox-{job}:1:[0-9a-f]{{32}}", cluster.field(relaunched, "Comment"))
    assert cluster.field(relaunched, "JobName") == "true-oom"
    script = cluster.slurm("scontrol", "write", "batch_script", relaunched, "-")
    assert "--micro-batch-size 2" in script
    assert "--gradient-accumulation-steps 2" in script
    assert {receipt["where"] for receipt in attempt["receipts"] if receipt["seen"]} == {"script", "process arguments"}
    log = cluster.log(relaunched, "true-oom")
    assert "successfully loaded checkpoint" in log
    assert "at iteration 30" in log
    original = (cluster.jobs / "true-oom.sbatch").read_text(encoding="utf-8")
    assert "--micro-batch-size 4" in original, "the owner's file must stay as it was"
    report = (cluster.state / "incidents" / incident["id"] / "report.html").read_text(encoding="utf-8")
    assert "gpu-22" in report
    # Keep the change, then take it back: the owner's file changes and returns to the byte.
    assert cluster.runbook("promote", incident["id"], "--yes").returncode == 0
    promoted = (cluster.jobs / "true-oom.sbatch").read_text(encoding="utf-8")
    assert "--micro-batch-size 2" in promoted
    assert cluster.runbook("rollback", incident["id"], "--yes").returncode == 0
    assert (cluster.jobs / "true-oom.sbatch").read_text(encoding="utf-8") == original


def test_a_job_that_slurm_starts_again_is_cancelled_before_it_does(cluster: Cluster) -> None:
    job = cluster.submit("true-oom.sbatch", "--requeue")
    cluster.until_dead(job, "true-oom")
    cluster.slurm("scontrol", "requeue", job, user="sb-alice")
    cluster.until(lambda: cluster.state_of(job) == "PENDING", "the job waits to start again")
    # Longer than a machine with other work takes to begin; Slurm itself makes it wait for two minutes or not at all.
    cluster.slurm("scontrol", "update", f"JobId={job}", "StartTime=now+600")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert incident["state"] == "recovered"
    assert outcomes(incident)["cancel_job"] == "cancelled" and cluster.state_of(job) == "CANCELLED"
    assert cluster.field(job, "Restarts") == "1", "it did not start again as it was"
    assert any("is held while this is worked on" in note for note in incident["notes"])
    assert len(cluster.relaunches(job)) == 1


def test_fragmentation_comes_back_with_expandable_segments(cluster: Cluster) -> None:
    job = cluster.submit("fragmentation.sbatch")
    cluster.until_dead(job, "fragmentation")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert incident["state"] == "recovered"
    assert incident["original"]["diagnosis"]["best"]["kind"] == "fragmentation"
    (attempt,) = incident["attempts"]
    edits = [edit for use in attempt["plan"]["uses"] for edit in use["edits"]]
    assert [(edit["spellings"][0], edit["new"]) for edit in edits] == [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    ]
    seen = {receipt["where"] for receipt in attempt["receipts"] if receipt["seen"]}
    assert "process environment" in seen


def test_what_took_two_relaunches_down_the_ladder_takes_one(cluster: Cluster) -> None:
    """One sequence at a time does not fit, and neither does selective checkpointing alone: rung by rung the job ran out
    again after its first relaunch."""
    job = cluster.submit("two-levers.sbatch")
    cluster.until_dead(job, "two-levers")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert incident["state"] == "recovered"
    (attempt,) = incident["attempts"]
    assert attempt["verdict"]["passed"] is True
    assert attempt["plan"]["foreseen"]["fit"] != "does not fit"
    assert len(cluster.relaunches(job)) == 1


def test_exhausted_ladder_goes_to_a_person(cluster: Cluster) -> None:
    job = cluster.submit("exhausted.sbatch")
    cluster.until_dead(job, "exhausted")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 4, done.stderr
    incident = cluster.incident(job)
    assert incident["state"] == "escalated"
    assert incident["to_do"]
    assert "a smaller batch frees nothing" in incident["conclusion"], incident["conclusion"]
    assert "--shard-degree is 8: all 8 ranks share the states already" in incident["conclusion"]
    assert not cluster.slurm("squeue", "--noheader", "--user=sb-alice"), "nothing may be left running"


def test_gpu_fault_drains_the_node_and_the_job_runs_elsewhere(cluster: Cluster) -> None:
    cluster.sandbox("gpu", "gpu-22", "--gpu", "1", "--usable-gib", "30")
    job = cluster.submit("healthy.sbatch")
    cluster.until(lambda: cluster.state_of(job) == "RUNNING", "the job runs")
    cluster.sandbox("gpu", "gpu-22", "--gpu", "1", "--xid", "79")
    cluster.until_dead(job, "healthy")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert incident["original"]["diagnosis"]["best"]["kind"] == "hardware_fault"
    assert "DRAIN" in cluster.node_field("gpu-22", "State")
    assert cluster.node_field("gpu-22", "Reason").startswith(f"runbook:oom-sandbox-{job}")
    (attempt,) = incident["attempts"]
    assert (
        "gpu-22"
        not in cluster.slurm("scontrol", "show", "hostnames", cluster.field(attempt["job"], "NodeList")).split()
    )
    assert not attempt["patch"]["diff"], "the template has no part in a fault"
    assert cluster.runbook("rollback", incident["id"], "--undrain", "--yes").returncode == 0
    assert "DRAIN" not in cluster.node_field("gpu-22", "State")


def test_co_tenant_is_named_and_avoided_not_drained(cluster: Cluster) -> None:
    tenant = cluster.submit(
        "--wrap=python3 ../train/tenant.py --gib 60 --gpu-index 1 --seconds 120",
        "--nodelist=gpu-22",
        "--output=/dev/null",
        "--job-name=bobs-server",
        user="sb-bob",
    )
    cluster.until(
        lambda: any(
            path.is_file() for path in (cluster.state.parents[1] / "gpus" / "gpu-22" / "processes" / "1").glob("*")
        ),
        "the tenant holds its memory",
    )
    job = cluster.submit("healthy.sbatch")
    cluster.until_dead(job, "healthy")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert incident["original"]["diagnosis"]["best"]["kind"] == "co_tenant"
    (judgement,) = incident["original"]["judgements"]
    assert judgement["verdict"] == "occupied"
    (named,) = judgement["tenants"]
    assert (named["owner"], named["job"]) == ("sb-bob", tenant)
    page = (cluster.state / "incidents" / incident["id"] / "report.html").read_text(encoding="utf-8")
    for text in (cluster.runbook("show", incident["id"]).stdout, page):
        words = " ".join(re.sub("<[^>]*>", " ", text).split())
        assert re.search(rf"of sb-bob\b.{{0,80}}\bjob {tenant}\b", words), words
    assert incident["excluded_nodes"] == ["gpu-22"]
    assert incident["drained_nodes"] == []
    assert "DRAIN" not in cluster.node_field("gpu-22", "State")
    assert cluster.state_of(tenant) == "RUNNING", "somebody else's job is none of ours"


def test_host_oom_by_a_real_kill_goes_to_a_person(cluster: Cluster) -> None:
    job = cluster.submit("host-oom.sbatch")
    cluster.until_dead(job, "host-oom", "Detected 1 oom")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 4, done.stderr
    incident = cluster.incident(job)
    assert incident["original"]["diagnosis"]["best"]["kind"] == "host_oom"
    assert incident["attempts"] == []
    assert any("--mem" in item for item in incident["to_do"])


def test_too_many_workers_come_back_as_half_after_a_real_kill(cluster: Cluster) -> None:
    job = cluster.submit("too-many-workers.sbatch")
    cluster.until_dead(job, "too-many-workers", "Detected 1 oom")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, (done.stdout, done.stderr)
    incident = cluster.incident(job)
    assert incident["original"]["diagnosis"]["best"]["kind"] == "host_oom"
    (attempt,) = incident["attempts"]
    script = cluster.slurm("scontrol", "write", "batch_script", attempt["job"], "-")
    assert "--num-workers 4" in script and "--micro-batch-size 2" in script


def test_a_failure_of_the_resume_alone_comes_back_with_its_batch(cluster: Cluster) -> None:
    first = cluster.submit("resume-only.sbatch", ITERS="20")
    cluster.until(lambda: cluster.state_of(first) == "COMPLETED", "a run with these settings trains")
    job = cluster.submit("resume-only.sbatch")
    cluster.until_dead(job, "resume-only")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, (done.stdout, done.stderr)
    incident = cluster.incident(job)
    assert incident["original"]["story"]["root_cause"]["phase"] == "resume"
    (attempt,) = incident["attempts"]
    script = cluster.slurm("scontrol", "write", "batch_script", attempt["job"], "-")
    assert "--map-location cpu" in script
    assert "--micro-batch-size 1" in script and "--gradient-accumulation-steps 2" in script
    assert "at iteration 20" in cluster.log(attempt["job"], "resume-only")


def test_ssh_down_is_unknown_and_never_a_drain(cluster: Cluster) -> None:
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    cluster.sandbox("ssh-down", "gpu-22")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    incident = cluster.incident(job)
    assert outcomes(incident)["check_node"] == "unknown"
    assert "drain_node" not in outcomes(incident)
    (facts,) = incident["original"]["nodes"]
    assert facts["reach"] == "refused"
    assert incident["original"]["diagnosis"]["best"]["missing"], "the diagnosis must say what it did not see"


def test_controller_restarted_in_the_middle(cluster: Cluster) -> None:
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    running = cluster.start_runbook("oom", "--job", job, "--yes")
    incident_file = cluster.state / "incidents" / f"oom-sandbox-{job}" / "incident.json"
    cluster.until(incident_file.exists, "the incident is open")
    cluster.sandbox("stop-slurmctld")
    time.sleep(4)
    cluster.sandbox("start-slurmctld")
    out, err = running.communicate(timeout=150)
    assert running.returncode == 0, (out, err)
    incident = cluster.incident(job)
    assert incident["state"] == "recovered"
    assert len(cluster.relaunches(job)) == len(incident["attempts"]) == 1


def test_cancelled_by_its_user_while_watched(cluster: Cluster) -> None:
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    running = cluster.start_runbook("oom", "--job", job, "--yes")
    cluster.until(lambda: cluster.relaunches(job), "the relaunch is submitted")
    relaunched = cluster.relaunches(job)[0].partition("JobId=")[2].partition(" ")[0]
    cluster.slurm("scancel", relaunched, user="sb-alice")
    out, err = running.communicate(timeout=120)
    assert running.returncode == 5, (out, err)
    incident = cluster.incident(job)
    assert incident["state"] == "closed"
    assert "cancelled" in incident["conclusion"]
    assert len(cluster.relaunches(job)) == 1, "a person's cancel is respected"


def test_plan_touches_nothing(cluster: Cluster) -> None:
    job = cluster.submit("true-oom.sbatch")
    cluster.until_dead(job, "true-oom")
    done = cluster.runbook("oom", "--job", job, "--plan")
    assert done.returncode == 0, done.stderr
    assert cluster.state_of(job) == "RUNNING"
    incident = cluster.incident(job)
    assert incident["state"] == "planned"
    assert all(act["planned_only"] for act in incident["acts"])
    assert cluster.relaunches(job) == []
    # The plan is then carried out by typing the same without --plan.
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 0, done.stderr
    assert cluster.incident(job)["state"] == "recovered"


def test_healthy_and_unknown_jobs_are_left_alone(cluster: Cluster) -> None:
    script = cluster.jobs / "healthy.sbatch"
    # Longer than it takes to look at it on a machine that is busy.
    script.write_text(script.read_text(encoding="utf-8").replace("--train-iters 100", "--train-iters 100000"))
    job = cluster.submit("healthy.sbatch")
    cluster.until(lambda: "iteration        3/" in cluster.log(job, "healthy"), "the job trains")
    done = cluster.runbook("oom", "--job", job, "--yes")
    assert done.returncode == 5, done.stderr
    assert cluster.state_of(job) == "RUNNING"
    missing = cluster.runbook("oom", "--job", "999999", "--yes")
    assert missing.returncode == 3
    assert "999999" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_epilog_alone_brings_a_job_back(cluster: Cluster) -> None:
    """Nobody types anything: Slurm's epilog leaves a file, the daemon does the rest."""
    cluster.inventory.write_text(
        cluster.inventory.read_text(encoding="utf-8").replace(
            f"spool: {cluster.state}/spool", f"spool: {cluster.state.parents[1]}/spool"
        ),
        encoding="utf-8",
    )
    for left in (cluster.state.parents[1] / "spool").glob("*.event"):
        left.unlink()
    daemon = subprocess.Popen(
        cluster.argv("serve", "--port", "0"),
        cwd=cluster.state,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        job = cluster.submit("true-oom.sbatch", SLURM_KILL_BAD_EXIT="1")
        incident_file = cluster.state / "incidents" / f"oom-sandbox-{job}" / "incident.json"
        cluster.until(incident_file.exists, "the daemon opened the incident", 90)
        cluster.until(lambda: cluster.incident(job)["state"] in ("recovered", "escalated", "closed"), "it ended", 90)
        incident = cluster.incident(job)
        assert incident["state"] == "recovered", incident["conclusion"]
        assert incident["trigger"] == "epilog"
        assert len(cluster.relaunches(job)) == 1
    finally:
        daemon.terminate()
        out, err = daemon.communicate(timeout=60)
    assert daemon.returncode == 0, (out, err)
    assert "Traceback" not in err
