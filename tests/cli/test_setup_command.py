"""`runbook setup` on a site of stand-in commands: what it finds, writes, prints, and leaves alone."""

from __future__ import annotations

import grp
import io
import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from runbook.cli.checks import private_state
from runbook.cli.wiring import Application
from runbook.config import load_inventory
from runbook.model.incident import Policy
from tests.cli.conftest import Shell
from tests.cli.test_doctor_command import Site
from tests.json_answers import check_answer
from tests.slurm.test_slurm_site import CONFIG

SERVICE = "nobody"
GROUP = grp.getgrgid(pwd.getpwnam(SERVICE).pw_gid).gr_name


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


class Setup:
    """`runbook setup` with the site's commands on the PATH."""

    def __init__(self, site: Site, shell: Shell) -> None:
        self.site, self.shell = site, shell
        self.target = site.folder / "made.yaml"
        self.state = site.folder / "incidents"

    def run(self, *more: str, stdin: str = "") -> str:
        """Its answer, as it reads however it is wrapped."""
        done = self.fails(*more, stdin=stdin)
        assert done[0] == 0, done
        return " ".join(done[1].split())

    def fails(self, *more: str, stdin: str = "") -> tuple[int, str, str]:
        given = (
            "--conf", str(self.site.folder / "slurm.conf"), "--user", SERVICE, "--group", "training",
            "--spool", str(self.site.folder / "spool"), "--ssh-user", "none", "--state", str(self.state),
            "-o", str(self.target),
        )  # fmt: skip
        path = f"{self.site.folder}/bin:/usr/bin:/bin"
        done = self.shell("setup", *given, *more, stdin=stdin, PATH=path, RUNBOOK_INVENTORY="", SLURM_CONF="")
        return done.returncode, done.stdout, done.stderr

    def document(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.run("--json"))
        check_answer("schemas/setup.json", made)
        return made


@pytest.fixture
def setup(site: Site, shell: Shell) -> Setup:
    return Setup(site, shell)


def test_it_writes_an_inventory_that_only_plans(setup: Setup) -> None:
    told = setup.run("--yes")
    made = load_inventory(str(setup.target))
    assert (made.cluster, made.policy.mode, made.nodes.kind) == ("training", Policy.PLAN, "none")
    assert made.spool_folder == setup.site.folder / "spool" and made.state_folder == setup.state
    assert setup.target.stat().st_mode & 0o007 == 0
    # They are on this PATH alone, not on a service's.
    assert made.scheduler.commands_folder == f"{setup.site.folder}/bin"
    assert not setup.state.exists(), "the service makes its own folder"
    assert "EpilogSlurmctld=/usr/local/libexec/runbook-epilog-here" in told
    assert f"RUNBOOK_SPOOL={setup.site.folder}/spool exec" in told
    assert f"install -d -o slurm -g {GROUP} -m 2770 {setup.site.folder}/spool" in told
    assert f"{SERVICE} ALL=(%training) NOPASSWD: ALL" in told
    assert "targets: ['127.0.0.1:8642']" in told
    assert "noticing failures by itself: there is no" in told and "checking nodes for GPU faults" in told


def test_a_key_of_the_services_own_is_named_and_made_by_a_person(setup: Setup) -> None:
    key = setup.site.folder / "keys of this site" / "id_ed25519"
    told = setup.run("--yes", "--ssh-user", "probe", "--ssh-key", str(key))
    assert load_inventory(str(setup.target)).nodes.key_file == str(key) and not key.parent.exists()
    assert f"ssh-keygen -q -t ed25519 -N '' -C {SERVICE} -f '{key}' && chown {SERVICE}: '{key}'" in told
    assert f"{key}.pub: into the authorized_keys of probe on the nodes" in told
    key.parent.mkdir()
    key.write_text("a key")
    assert "ssh-keygen" not in setup.run("--yes", "--ssh-user", "probe", "--ssh-key", str(key))


@pytest.mark.skipif(os.geteuid() != 0, reason="to root alone: the key of another user is no use to the service")
def test_root_is_told_of_the_services_key_without_being_asked(setup: Setup) -> None:
    told = setup.run("--yes", "--ssh-user", "probe")
    assert load_inventory(str(setup.target)).nodes.key_file == "/etc/runbook/id_ed25519"
    assert "-f /etc/runbook/id_ed25519 && chown nobody: /etc/runbook/id_ed25519" in told


def test_run_again_it_changes_nothing_that_a_person_changed(setup: Setup) -> None:
    setup.run("--yes")
    same = setup.run("--yes")
    assert "just what setup would write" in same
    changed = setup.target.read_text().replace("mode: plan", "mode: apply") + "workers: 2\n"
    setup.target.write_text(changed)
    again = setup.run("--yes")
    assert setup.target.read_text() == changed
    if os.geteuid() == 0:
        assert f"chgrp {GROUP} {setup.target}" in again, "what nobody has done yet is said again"
        os.chown(setup.target, 0, grp.getgrnam(GROUP).gr_gid)
        assert "chgrp" not in setup.run("--yes")
    for words in ("left as it is", "- mode: apply", "+ mode: plan", "-workers: 2"):
        assert words in again


def test_a_site_where_all_is_there(setup: Setup) -> None:
    config = CONFIG.replace("(null)", "/usr/libexec/runbook/runbook-epilog").replace("slurm(64030)", "root(0)")
    (setup.site.folder / "config").write_text(config)
    spool = setup.site.folder / "spool"
    spool.mkdir()
    spool.chmod(0o777)
    setup.site.answer("sacctmgr", f"echo '{SERVICE}|Administrator|'")
    made = setup.document()
    assert f"install -d -o {SERVICE} -g {GROUP} -m 711 {setup.state}" in made["commands"]
    assert made["slurm_conf_lines"] == [] and made["written"] is True and made["slurm"] == "22.05.8"
    marks = {(check["title"], check["mark"]) for check in made["checks"]}
    assert ("cancel, drain", "ok") in marks and ("spool", "problem") in marks, "anybody may write there"


def test_what_accounting_and_the_controller_should_keep(setup: Setup) -> None:
    text = CONFIG.replace("job_comment,job_env,job_script", "job_env,no_stdio").replace("300 sec", "120 sec")
    (setup.site.folder / "config").write_text(text.replace("(null)", "/opt/site/epilog.sh"))
    made = setup.document()
    assert made["slurm_conf_lines"] == ["AccountingStoreFlags=no_stdio,job_script,job_env,job_comment", "MinJobAge=300"]
    assert any("to /opt/site/epilog.sh" in command for command in made["commands"])


def test_a_controller_that_hangs_is_told(setup: Setup) -> None:
    (setup.site.folder / "slurm.conf").write_text("ClusterName=training\n")
    setup.site.answer("scontrol", "exec sleep 600")
    told = setup.run("--yes")
    assert "the controller did not tell how the cluster is set up: " in told and "did not answer within 4 s" in told
    assert load_inventory(str(setup.target)).cluster == "training"


def test_nobody_to_ask_no_slurm_no_such_file(setup: Setup, tmp_path: Path) -> None:
    code, _, said = setup.fails()
    assert code == 2 and "nobody can be asked here" in said and "--yes" in said
    code, _, said = setup.fails("--yes", "--conf", str(tmp_path / "no.conf"))
    assert code == 3 and "no.conf" in said
    (setup.site.folder / "bin" / "scontrol").unlink()
    done = setup.shell("setup", "--yes", "-o", str(setup.target), PATH=f"{setup.site.folder}/bin")
    assert done.returncode == 3 and "run it on the controller or a login node" in done.stderr
    assert not setup.target.exists()


def test_no_password_of_an_inventory_is_shown(setup: Setup) -> None:
    assert "hunter2" not in setup.run("--json", "--notify", "slack://hunter2/a/b")
    setup.target.write_text(
        setup.target.read_text().partition("notify:")[0]
        + "database: postgresql://runbook:hunter2@db/runbook\nnotify:\n  urls:\n    - mailto://me:hunter2@example.org\n"
    )
    told = setup.run("--yes", "--notify", "slack://hunter2/a/b")
    assert "-database: postgresql://***" in told and "- mailto://***" in told and "hunter2" not in told


def test_an_address_comes_by_standard_input_where_command_lines_are_read_by_others(setup: Setup) -> None:
    setup.run("--json", "--notify", "-", stdin="slack://hunter2/a/b\n")
    assert "slack://hunter2/a/b" in setup.target.read_text()


def test_nobody_is_asked_to_mend_what_others_may_read(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.run("--yes")
    setup.state.mkdir(mode=0o700)
    (setup.state / "workflows.sqlite").write_text("")
    (setup.state / "workflows.sqlite").chmod(0o644)
    monkeypatch.setattr("sys.stdin", Terminal())
    app = Application(load_inventory(str(setup.target)))
    found = list(private_state(app, mending=False, asking=False))
    assert any(one.next_step == "runbook doctor --mend" for one in found)
    assert (setup.state / "workflows.sqlite").stat().st_mode & 0o777 == 0o644


class Terminal(io.StringIO):
    """Of somebody who says yes."""

    def __init__(self) -> None:
        super().__init__("y\n")

    def isatty(self) -> bool:
        return True
