"""What `scontrol show config` and `sacctmgr show user` say, read by name; layouts of 22.05 and of 24.11."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.slurm.site import Level, Privileges, SlurmConfig, privileges_without_asking, read_config, read_privileges

RECORDED = Path(__file__).parents[1] / "recorded" / "slurm"
CONFIG = """\
Configuration data as of 2026-11-23T16:00:00
AccountingStorageType   = accounting_storage/slurmdbd
AccountingStoreFlags    = job_comment,job_env,job_script
ClusterName             = training
EpilogSlurmctld         = (null)
MinJobAge               = 300 sec
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 22.05.8
SlurmUser               = slurm(64030)
SlurmctldHost[0]        = ctl-1(10.0.0.1)
SlurmctldHost[1]        = ctl-2
TaskPlugin              = task/affinity,task/cgroup

Cgroup Support Configuration:
ConstrainCores          = no
ConstrainRAMSpace       = yes

Slurmctld(primary) at ctl-1 is UP
"""


def test_names_of_the_configuration() -> None:
    config = read_config(CONFIG)
    assert (config.cluster, config.slurm_user, config.version) == ("training", "slurm", "22.05.8")
    assert config.controllers == ("ctl-1", "ctl-2")
    assert config.has_accounting and config.kept_of_jobs == {"job_comment", "job_env", "job_script"}
    assert config.get("epilogslurmctld") == "" and config.get("NoSuchName") == ""
    assert read_config("SlurmctldHost = only(10.0.0.1)\nEpilogSlurmctld[0] = /usr/e\n").controllers == ("only",)
    assert read_config("EpilogSlurmctld[0]       = /usr/e\n").get("EpilogSlurmctld") == "/usr/e"


def test_a_recorded_answer() -> None:
    config = read_config((RECORDED / "22.05.8" / "scontrol_config.txt").read_text())
    assert (config.cluster, config.slurm_user, config.version) == ("sandbox", "slurm", "22.05.8")
    assert config.controllers == ("sandbox-ctl",) and config.has_accounting and config.kills_at_memory_limit is True
    assert config.get("EpilogSlurmctld") == "/var/lib/runbook-sandbox/etc/epilog-slurmctld"


@pytest.mark.parametrize(
    ("before", "after", "kills"),
    [
        ("", "", True), ("= yes", "= no", False), ("task/cgroup", "task/none", False),
        ("ConstrainRAMSpace", "Other", None),
    ],
)
def test_whether_a_job_over_its_memory_is_killed(before: str, after: str, kills: bool | None) -> None:
    assert read_config(CONFIG.replace(before, after)).kills_at_memory_limit is kills


@pytest.mark.parametrize(
    ("answer", "level", "coordinates", "cancel", "drain"),
    [
        ("runbook|Administrator|\n", Level.ADMINISTRATOR, (), True, True),
        ("runbook|Operator|\n", Level.OPERATOR, (), True, False),
        ("runbook|None|research,inference\n", Level.NONE, ("research", "inference"), False, False),
        ("", Level.NONE, (), False, False),
        ("runbook2|Administrator|\n", Level.NONE, (), False, False),
        ("runbook|Emperor|\n", Level.UNKNOWN, (), False, False),
    ],
)
def test_rights_by_the_accounting(
    answer: str, level: Level, coordinates: tuple[str, ...], cancel: bool, drain: bool
) -> None:
    rights = read_privileges(answer, "runbook")
    assert rights == Privileges("runbook", level, coordinates, known=answer.startswith("runbook|"))
    assert (rights.may_cancel, rights.may_drain) == (cancel, drain)


def test_whom_nobody_is_asked_about() -> None:
    config = read_config(CONFIG)
    for user in ("root", "slurm"):
        known = privileges_without_asking(user, config)
        assert known is not None and known.may_cancel and known.may_drain
    assert privileges_without_asking("runbook", config) is None
    without = privileges_without_asking("runbook", SlurmConfig({"slurmuser": "slurm(1)"}))
    assert without is not None and not without.may_cancel
