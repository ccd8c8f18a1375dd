"""Templates of other forms come back with the lever in the real processes' arguments: Hydra overrides, a YAML file."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.conftest import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def brought_back(cluster: Cluster, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    job = cluster.submit(f"{name}.sbatch")
    cluster.until_dead(job, name)
    done = cluster.runbook("oom", "--job", job, "--yes")
    incident = cluster.incident(job)
    assert done.returncode == 0, (done.stderr, incident["conclusion"], incident["no_plan"])
    assert incident["state"] == "recovered"
    (attempt,) = incident["attempts"]
    return incident, attempt


def seen(attempt: dict[str, Any]) -> dict[str, str]:
    return {receipt["where"]: receipt["detail"] for receipt in attempt["receipts"] if receipt["seen"]}


def test_hydra_overrides_come_back_with_half_the_token_budget(cluster: Cluster) -> None:
    before = (cluster.jobs / "hydra-overrides.sbatch").read_bytes()
    _, attempt = brought_back(cluster, "hydra-overrides")
    (use,) = attempt["plan"]["uses"]
    assert [(edit["parameter"], edit["old"], edit["new"]) for edit in use["edits"]] == [
        ("actor_token_budget", "16384", "8192")
    ]
    script = cluster.slurm("scontrol", "write", "batch_script", attempt["job"], "-")
    assert "\nTOKEN_BUDGET=8192\n" in script, "the variable is changed where it is set"
    receipts = seen(attempt)
    assert "script" in receipts
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu 8192: in " in receipts["process arguments"]
    assert "micro-batch 2 x" in cluster.log(attempt["job"], "hydra-overrides")
    assert (cluster.jobs / "hydra-overrides.sbatch").read_bytes() == before


def test_a_yaml_configuration_comes_back_in_a_copy_that_the_processes_read(cluster: Cluster) -> None:
    before = {name: (cluster.jobs / name).read_bytes() for name in ("yaml-config.sbatch", "yaml-config.yaml")}
    incident, attempt = brought_back(cluster, "yaml-config")
    edits = {edit["spellings"][0].split()[0]: edit["new"] for use in attempt["plan"]["uses"] for edit in use["edits"]}
    assert edits == {"per_device_train_batch_size": "2", "gradient_accumulation_steps": "2"}
    copy = cluster.state / "incidents" / incident["id"] / "attempts" / "1" / "runbook-yaml-config.yaml"
    assert b"per_device_train_batch_size: 2   # sequences on a GPU\n" in copy.read_bytes()
    assert str(copy) in seen(attempt)["process arguments"] or "the changed copy" in seen(attempt)["process arguments"]
    assert "micro-batch 2 x accumulation 2" in cluster.log(attempt["job"], "yaml-config")
    assert {name: (cluster.jobs / name).read_bytes() for name in before} == before
    # Kept and taken back, the owner's configuration changes and returns to the byte; the script never does.
    assert cluster.runbook("promote", incident["id"], "--yes").returncode == 0
    assert b"per_device_train_batch_size: 2 " in (cluster.jobs / "yaml-config.yaml").read_bytes()
    assert (cluster.jobs / "yaml-config.sbatch").read_bytes() == before["yaml-config.sbatch"]
    assert cluster.runbook("rollback", incident["id"], "--yes").returncode == 0
    assert {name: (cluster.jobs / name).read_bytes() for name in before} == before
