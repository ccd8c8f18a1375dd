"""What a site puts into its own files: the inventory, slurm.conf, sudoers; and the commands that make the rest."""

from __future__ import annotations

import grp
import json
import pwd
import shlex
from dataclasses import dataclass
from pathlib import Path

from runbook.cli.slurm_checks import make_spool
from runbook.locations import data_folder
from runbook.slurm.site import SlurmConfig

_PACKAGED = Path("/usr/libexec/runbook")
"""Where a package has put the epilogs."""
_COPIED = Path("/usr/local/libexec")
_SPOOL = Path("/var/spool/runbook")
"""Where the epilog writes unless it is told another place."""
_AS_OWNERS = Path("/usr/share/runbook/as-owners.conf")
_WANTED = ("job_script", "job_env", "job_comment")
_LEAST_AGE_S = 300


@dataclass(frozen=True, slots=True)
class Choices:
    """What was asked and answered."""

    slurm_conf: str
    """"": Slurm's own default."""
    user: str
    group: str
    spool: Path
    ssh_user: str
    """"": no node is reached."""
    notify: str
    state: str
    ssh_key: str


def inventory_text(choices: Choices, cluster: str, version: str, commands: str) -> str:
    """The inventory as YAML. Words of people are quoted as JSON, which YAML reads."""
    quoted = json.dumps
    name = "".join(letter if letter.isalnum() or letter in "_.-" else "-" for letter in cluster)
    scheduler = ["  kind: slurm"]
    if choices.slurm_conf:
        scheduler.append(f"  slurm_conf: {quoted(choices.slurm_conf)}")
    if commands:
        scheduler.append(f"  commands_folder: {quoted(commands)}")
    nodes = ["  kind: ssh", f"  user: {quoted(choices.ssh_user)}"] if choices.ssh_user else ["  kind: none"]
    if choices.ssh_user and choices.ssh_key:
        nodes.append(f"  key_file: {quoted(choices.ssh_key)}")
    paths = [f"  spool: {quoted(str(choices.spool))}"]
    if choices.state:
        paths.insert(0, f"  state: {quoted(choices.state)}")
    notify = ["notify:", f"  urls: [{quoted(choices.notify)}]"] if choices.notify else []
    return "\n".join((
        f"# Written by `runbook setup` for Slurm {version or '(version not told)'}. Change it as you like: setup never",
        "# writes over it. docs/inventory.md has every key.",
        "version: 1",
        f"id: {quoted(name)}",
        f"title: {quoted(f'The cluster {name}')}",
        f"cluster: {quoted(name)}",
        "scheduler:", *scheduler,
        "nodes:", *nodes,
        "# It decides and reports, and touches nothing. Then `approve`, which asks before each act, or `apply`.",
        "policy:", "  mode: plan",
        "paths:", *paths, *notify, "",
    ))  # fmt: skip


def epilog_lines(choices: Choices, config: SlurmConfig) -> tuple[list[str], list[str]]:
    """(commands that put the epilog in place, lines for slurm.conf). Both empty where nothing is missing."""
    commands, lines = [], []
    epilog = _PACKAGED / "runbook-epilog"
    there = config.get("EpilogSlurmctld")
    if "runbook" not in there:
        if not epilog.is_file():
            shipped, epilog = data_folder("deploy") / "slurm" / "runbook-epilog", _COPIED / "runbook-epilog"
            commands.append(f"install -D -o root -g root -m 755 {shipped} {epilog}")
        if choices.spool != _SPOOL:
            wrapper = _COPIED / "runbook-epilog-here"
            text = f"#!/bin/sh\\nRUNBOOK_SPOOL={choices.spool} exec {epilog}\\n"
            commands.append(f"install -d {_COPIED} && printf '{text}' >{wrapper} && chmod 755 {wrapper}")
            epilog = wrapper
        if there:
            commands.append(f"# this site has an EpilogSlurmctld: add the line `{epilog}` to {there}")
        else:
            lines.append(f"EpilogSlurmctld={epilog}")
    if not choices.spool.is_dir():
        commands.append(make_spool(choices.spool, config.slurm_user or "slurm", group_of(choices.user)))
    if config.has_accounting and not config.kept_of_jobs.issuperset(_WANTED):
        kept = [*sorted(config.kept_of_jobs.difference(_WANTED)), *_WANTED]
        lines.append(f"AccountingStoreFlags={','.join(kept)}")
    age = config.get("MinJobAge").split()
    if age and age[0].isdecimal() and int(age[0]) < _LEAST_AGE_S:
        lines.append(f"MinJobAge={_LEAST_AGE_S}")
    return commands, lines


def user_commands(choices: Choices, *, known: bool) -> list[str]:
    """What makes the service's user and its folders, where they are missing."""
    commands = []
    if not known:
        home = choices.state or "/var/lib/runbook"
        commands.append(f"useradd --system --home-dir {home} --shell /usr/sbin/nologin {choices.user}")
    if choices.state and not Path(choices.state).is_dir():
        commands.append(f"install -d -o {choices.user} -g {group_of(choices.user)} -m 711 {choices.state}")
    return commands


def key_commands(choices: Choices) -> list[str]:
    """What makes the key that reaches the nodes, where it is missing, and where its other half goes."""
    key = shlex.quote(choices.ssh_key)
    if not choices.ssh_user or not choices.ssh_key or Path(choices.ssh_key).exists():
        return []
    return [
        f"ssh-keygen -q -t ed25519 -N '' -C {choices.user} -f {key} && chown {choices.user}: {key}",
        f"# {choices.ssh_key}.pub: into the authorized_keys of {choices.ssh_user} on the nodes; their host keys, from "
        "a place that you trust: into /etc/ssh/ssh_known_hosts here",
    ]


def group_of(user: str) -> str:
    """The user's own group; of one who is still to be made, useradd gives it the user's name."""
    try:
        return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
    except KeyError:
        return user


def sudoers_text(choices: Choices) -> str:
    """For /etc/sudoers.d/runbook; "" where the service is root, who needs none."""
    if choices.user == "root":
        return ""
    return (
        f"Defaults:{choices.user} !requiretty, !log_input, !use_pty\n"
        f"{choices.user} ALL=(%{choices.group}) NOPASSWD: ALL\n"
    )


def drop_in_command() -> str:
    """What lets the packaged unit become owners by sudo; "" where there is no package."""
    place = "/etc/systemd/system/runbook.service.d/as-owners.conf"
    return f"install -D -m 644 {_AS_OWNERS} {place} && systemctl daemon-reload" if _AS_OWNERS.is_file() else ""
