"""`runbook doctor` on Slurm: what it says of rights and the spool, and that it waits for nobody; stand-in commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.cli.checks import Mark, notifications
from runbook.cli.slurm_checks import acting, spool
from runbook.cli.wiring import Application, application
from tests.cli.conftest import Shell
from tests.loopback import free_port
from tests.service.notify_servers import http_server, inventory_with
from tests.slurm.test_slurm_site import CONFIG

INVENTORY = """\
version: 1
id: site
title: A site, for a test
cluster: training
scheduler: {{kind: slurm, adapter: commands, commands_folder: {folder}/bin, slurm_conf: {folder}/slurm.conf}}
nodes: {{kind: none}}
policy: {{mode: {mode}}}
paths: {{state: {folder}/state, spool: {folder}/spool}}
"""


class Site:
    """A folder of stand-in commands, and an inventory that names it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "slurm.conf").write_text("")
        (folder / "config").write_text(CONFIG)
        self.answer("scontrol", f'case "$1" in --version) echo slurm 22.05.8;; *) cat {folder}/config;; esac')
        self.answer("sinfo", "exit 0")
        self.answer("sacctmgr", "exit 0")
        self.inventory = folder / "site.yaml"
        self.mode("apply")

    def answer(self, name: str, body: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def mode(self, mode: str) -> None:
        self.inventory.write_text(INVENTORY.format(folder=self.folder, mode=mode))

    @property
    def app(self) -> Application:
        return application(str(self.inventory))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_each_is_asked_before_the_first_has_answered(site: Site, shell: Shell) -> None:
    started = site.folder / "started"
    started.mkdir()
    # Answers once three questions stand side by side: of the scheduler, the rights and the spool.
    (site.folder / "spool").mkdir(mode=0o770)
    site.answer(
        "scontrol",
        f'echo >{started}/$$; until [ "$(ls {started} | wc -l)" -ge 3 ]; do sleep 0.05; done\n'
        f'case "$1" in --version) echo slurm 22.05.8;; *) cat {site.folder}/config;; esac',
    )
    done = shell("doctor", "--inventory", str(site.inventory))
    assert "Slurm's commands, slurm 22.05.8" in done.stdout
    assert "did not answer" not in done.stdout, done.stdout


def test_commands_that_hang_are_told_and_left(site: Site, shell: Shell) -> None:
    (site.folder / "spool").mkdir(mode=0o770)
    for name in ("scontrol", "sinfo", "sacctmgr"):
        site.answer(name, "exec sleep 600")
    done = shell("doctor", "--inventory", str(site.inventory))
    assert done.returncode == 6
    for title in ("scheduler", "cancel, drain", "spool"):
        lines = [line for line in done.stdout.splitlines() if f"problem  {title}: " in line]
        assert len(lines) == 1 and "scontrol` did not answer within 4 s" in lines[0], done.stdout
    assert "playbooks: 18 boxes" in done.stdout and "daemon: not running" in done.stdout


@pytest.mark.parametrize(
    ("answer", "mode", "marks", "words"),
    [
        ("svc|Administrator|", "apply", ("ok", "ok"), ("may cancel anybody's job", "may drain a node: its Admin")),
        ("svc|Operator|", "apply", ("ok", "problem"), ("may cancel", "may not drain a node: its Admin")),
        ("svc|Operator|", "plan", ("ok", "ok"), ("may cancel", "and the inventory asks for none")),
        ("svc|None|research", "plan", ("warning", "ok"), ("but those of research, which", "may not drain")),
    ],
)
def test_rights_are_asked_and_not_tried(
    site: Site, answer: str, mode: str, marks: tuple[str, str], words: tuple[str, str]
) -> None:
    site.answer("sacctmgr", f"echo '{answer}'")
    site.answer("scancel", f"echo >{site.folder}/cancelled")
    site.mode(mode)
    cancel, drain = acting(site.app, "svc")
    assert (cancel.mark, drain.mark) == marks
    assert words[0] in cancel.what and words[1] in drain.what
    assert not (site.folder / "cancelled").exists()


def test_a_user_whom_the_accounting_does_not_have_is_added_not_modified(site: Site) -> None:
    for answer, words in (("", "sacctmgr add user svc account=ACCOUNT"), ("svc|None|", "sacctmgr modify user svc set")):
        site.answer("sacctmgr", f"echo '{answer}'")
        assert words in next(iter(acting(site.app, "svc"))).next_step


def test_root_and_slurm_s_user_are_not_asked_about(site: Site) -> None:
    site.answer("sacctmgr", "exit 1")
    assert [found.mark for user in ("root", "slurm") for found in acting(site.app, user)] == [Mark.GOOD] * 4


def test_the_spool_as_slurm_s_user_finds_it(site: Site) -> None:
    place, config = site.folder / "spool", site.folder / "config"
    (missing,) = spool(site.app)
    assert missing.mark is Mark.WARNING and f"install -d -o slurm -g runbook -m 2770 {place}" in missing.next_step
    place.mkdir()
    place.chmod(0o770)
    config.write_text(CONFIG.replace("slurm(64030)", "nobody(65534)"))
    (refused,) = spool(site.app)
    assert refused.mark is Mark.BAD and "Slurm's user nobody cannot write" in refused.what
    config.write_text(CONFIG.replace("slurm(64030)", "root(0)"))
    (unused,) = spool(site.app)
    assert unused.mark is Mark.WARNING and "slurm.conf has no EpilogSlurmctld" in unused.what
    config.write_text(CONFIG.replace("slurm(64030)", "root(0)").replace("(null)", "/usr/local/libexec/runbook-epilog"))
    (good,) = spool(site.app)
    assert good.mark is Mark.GOOD and "runbook-epilog" in good.what
    place.chmod(0o777)
    assert "anybody can write" in next(iter(spool(site.app))).what
    place.chmod(0o770)
    (place / "bad").mkdir()
    (place / "bad" / "x.event").write_text("")
    assert list(spool(site.app))[1].what.startswith("1 files")


def told(tmp_path: Path, address: str, *, sending: bool = False) -> tuple[Mark, str]:
    path = inventory_with(tmp_path, f"  urls: ['{address}']\n")
    (found,) = notifications(application(str(path)), sending=sending)
    return found.mark, found.what


def test_targets_are_connected_to_and_sent_nothing(tmp_path: Path) -> None:
    with http_server() as server:
        mark, what = told(tmp_path, server.url())
        assert mark is Mark.GOOD and "JSON, reached" in what and server.received == []
        assert told(tmp_path, server.url(), sending=True) == (Mark.GOOD, "all: JSON took a message")
        assert server.titles == ["test from alpha: nothing has happened"]


@pytest.mark.parametrize(
    "service", ["json://127.0.0.1:{port}/hunter2", "mailto://127.0.0.1:{port}?from=a@b.example&to=c@d.example"]
)
def test_a_target_whose_host_refuses(tmp_path: Path, service: str) -> None:
    mark, what = told(tmp_path, service.format(port=free_port()))
    assert mark is Mark.BAD and "its host could not be reached: connection refused" in what
    assert "127.0.0.1" not in what and "hunter2" not in what


def test_what_only_a_message_would_tell(tmp_path: Path) -> None:
    mark, what = told(tmp_path, "pagerduty://key@api")
    assert mark is Mark.GOOD and "only a message would tell" in what

