"""`runbook setup`: looks at this cluster, asks little, writes an inventory that only plans, and prints what a person
puts into Slurm's, sudo's and Prometheus' files. It changes nothing of theirs, and never an inventory that is there.
"""

from __future__ import annotations

import difflib
import grp
import json
import os
import pwd
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from runbook.adapters.identity import LOGIN_PATH, program_on_path
from runbook.adapters.slurm.commands import SlurmCommands
from runbook.adapters.whole_file import whole_file
from runbook.cli import checks, slurm_checks
from runbook.cli.checks import Found, Mark
from runbook.cli.doctor import WAIT_S, Asked, hurried
from runbook.cli.first_hour import heading, say, site_texts
from runbook.cli.first_hour.site_texts import Choices
from runbook.cli.monitoring import prometheus_files
from runbook.cli.say import echo
from runbook.cli.wiring import Application
from runbook.config import SITE_INVENTORY, Inventory, load_inventory
from runbook.documents import parse_document
from runbook.errors import BadInput, NotAllowed, NotFound, RunbookError
from runbook.masking import MASK, masked
from runbook.slurm.site import CONFIG_ARGUMENTS, SlurmConfig, read_config

_USUAL = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf",
          "/usr/local/etc/slurm.conf", "/opt/slurm/etc/slurm.conf")  # fmt: skip
_STATE = "/var/lib/runbook"
_SPOOL = "/var/spool/runbook"
_SERVICE = "runbook"
_KEY = Path("/etc/runbook/id_ed25519")
_NODES_TRIED = 2


@dataclass(frozen=True, slots=True)
class Answers:
    """What options have said; None: nothing."""

    conf: str | None
    user: str | None
    group: str | None
    spool: str | None
    ssh_user: str | None
    notify: str | None
    ssh_key: str | None
    state: str | None


def setup(
    conf: str | None,
    user: str | None,
    group: str | None,
    spool: str | None,
    ssh_user: str | None,
    notify: str | None,
    ssh_key: str | None,
    state: str | None,
    output: Path | None,
    yes: bool,
    as_json: bool,
) -> int:
    """`runbook setup`."""
    if notify == "-":
        notify = sys.stdin.readline().strip() or None
    answers = Answers(conf, user, group, spool, ssh_user, notify, ssh_key, state)
    target = (output or (SITE_INVENTORY if os.geteuid() == 0 else Path("runbook-inventory.yaml"))).absolute()
    there = load_inventory(str(target)) if target.is_file() else None
    site = _look(conf or (there.scheduler.slurm_conf if there else ""), there)
    choices = _choices(answers, site, there, asking=not yes and not as_json)
    text = site_texts.inventory_text(choices, site.cluster, site.config.version or site.version, site.commands)
    inventory = parse_document(text, Inventory, str(target))
    written = _write(target, text) if there is None else False
    used = there or inventory
    marks = _checked(used, choices)
    commands, lines = site_texts.epilog_lines(choices, site.config)
    commands = [
        *site_texts.user_commands(choices, known=_known(choices.user)), *site_texts.key_commands(choices), *commands
    ]
    if os.geteuid() == 0 and choices.user != "root" and not _is_of(target, group := site_texts.group_of(choices.user)):
        commands.append(f"chgrp {group} {target}")
    told = Told(
        site, choices, str(target), written, text, marks, commands, lines, site_texts.sudoers_text(choices),
        prometheus_files(used)["runbook-scrape.yml"], _not_yet(marks, site, lines),
    )
    echo(json.dumps(told.document(), indent=2)) if as_json else _tell(told)
    return 0


@dataclass(frozen=True, slots=True)
class Site:
    """What was found without asking anybody."""

    config: SlurmConfig
    cluster: str
    version: str
    conf: str
    """The file that Slurm reads."""
    named: str
    """The same, where an inventory has to name it."""
    commands: str
    problem: str = ""
    """Why the controller did not tell; "" where it did."""


@dataclass(frozen=True, slots=True)
class Told:
    """All that setup says."""

    site: Site
    choices: Choices
    target: str
    written: bool
    text: str
    marks: list[tuple[str, Found]]
    commands: list[str]
    lines: list[str]
    sudoers: str
    scrape: str
    not_yet: list[tuple[str, str]]

    def document(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "cluster": self.site.cluster, "slurm": self.site.version, "slurm_conf": self.site.conf,
            "inventory": self.target, "written": self.written, "inventory_text": _shown(self.text),
            "choices": {key: str(value) for key, value in asdict(self.choices).items() if key != "notify"},
            "checks": [
                {"title": title, "mark": found.mark.value, "what": found.what, "next": found.next_step}
                for title, found in self.marks
            ],
            "commands": self.commands, "drop_in": site_texts.drop_in_command() if self.sudoers else "",
            "slurm_conf_lines": self.lines, "sudoers": self.sudoers,
            "prometheus": self.scrape,
            "not_possible_yet": [{"what": what, "why": why} for what, why in self.not_yet],
        }  # fmt: skip


def _look(conf: str, there: Inventory | None) -> Site:
    """Slurm's configuration and version. Raises `NotFound` where there is no Slurm."""
    folder = there.scheduler.commands_folder if there else ""
    if conf and not Path(conf).is_file():
        raise NotFound(f"there is no {conf}", where="--conf", next_step="name the cluster's slurm.conf")
    tool = program_on_path("scontrol", then="")
    if folder == "" and tool is None:
        raise NotFound(
            "Slurm's commands are not on the PATH", where="scontrol",
            next_step="run it on the controller or a login node, with them on the PATH; a machine without Slurm "
            "needs no set-up: `runbook serve` and `runbook submit` work with the inventory `local`",
        )
    if folder == "" and tool is not None and str(Path(tool).absolute().parent) not in LOGIN_PATH.split(":"):
        folder = str(Path(tool).absolute().parent)  # on this person's PATH, and not on the service's
    named = conf or os.environ.get("SLURM_CONF", "")
    commands = SlurmCommands(bin_dir=folder, slurm_conf=named, timeout_s=4.0, patience_s=0.0)
    version = problem = ""
    config = SlurmConfig()
    try:
        config = read_config(commands.ask("scontrol", CONFIG_ARGUMENTS))
    except RunbookError as error:
        problem = error.what
    try:
        version = commands.ask("scontrol", ("--version",)).strip().rpartition(" ")[2]
    except RunbookError as error:
        problem = problem or error.what
    file = named or config.get("SLURM_CONF") or next((path for path in _USUAL if Path(path).is_file()), "")
    cluster = config.cluster or _in_file(file, "ClusterName")
    if not cluster:
        raise NotFound(
            f"the cluster's name is not known: {problem or 'the controller does not tell it'}",
            where=file or "no slurm.conf was found", next_step="see whether slurmctld runs, or name the file by --conf",
        )
    return Site(config, cluster, version, file, named, folder, problem)


def _in_file(path: str, name: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace") if path else ""
    except OSError:
        return ""
    found = re.search(rf"^\s*{name}\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    return found[1] if found else ""


def _choices(answers: Answers, site: Site, there: Inventory | None, *, asking: bool) -> Choices:
    """Six questions at most, each with an option that answers it before it is asked."""
    if asking and not sys.stdin.isatty():
        raise BadInput("nobody can be asked here", next_step="add --yes, which takes what is not said as it finds best")
    nodes = there.nodes if there else None
    reaches = "root" if nodes is None else nodes.user if nodes.kind == "ssh" else "none"

    def asked(question: str, given: str | None, default: str) -> str:
        if given is not None:
            return given
        return str(click.prompt(question, default=default, show_default=bool(default))).strip() if asking else default

    as_root = os.geteuid() == 0
    kept = there.paths.state if there else _STATE if as_root else ""
    conf = asked("Slurm's configuration", answers.conf, site.conf)
    spool = str(there.spool_folder) if there else _SPOOL
    user = asked("User that the service runs as", answers.user, _SERVICE if as_root else slurm_checks.ourselves())
    own_key = _own_key(to_be_made=as_root and user != "root")
    return Choices(
        slurm_conf=conf if site.named or conf != site.conf else "",
        user=user,
        group=asked("Group whose members' jobs it may bring back", answers.group, "users"),
        spool=Path(asked("Folder that Slurm's epilog writes into", answers.spool, spool)),
        ssh_user=_none(asked("User that reaches the nodes by SSH, or none", answers.ssh_user, reaches)),
        notify=_none(asked("Address to tell people at (apprise's form), or none", answers.notify, "none")),
        state=answers.state if answers.state is not None else kept,
        ssh_key=answers.ssh_key if answers.ssh_key is not None else nodes.key_file if nodes else own_key,
    )


def _none(answer: str) -> str:
    return "" if answer.lower() == "none" else answer


def _own_key(*, to_be_made: bool) -> str:
    """The service's, where there is one or root makes one for it: what ssh would offer for root is not the service's.
    "" leaves it to ssh's own configuration."""
    try:
        return str(_KEY) if to_be_made or _KEY.is_file() else ""
    except PermissionError:
        return ""


def _write(target: Path, text: str) -> bool:
    """Readable for its owner alone: addresses to tell people at hold passwords. The folder has to be open to the
    service, which is another user than the one that writes this."""
    try:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with whole_file(target, 0o640 if os.geteuid() == 0 else 0o600) as stream:
            stream.write(text.encode("utf-8"))
    except OSError as error:
        raise NotAllowed(
            f"the inventory cannot be written: {error.strerror}", where=str(target),
            next_step="run as root, or name a file of your own with --output",
        ) from error
    return True


def _checked(used: Inventory, choices: Choices) -> list[tuple[str, Found]]:
    """Everything that others have to answer, side by side. Asking takes a state folder: one that goes again, so that
    the service's own is made by the service."""
    with tempfile.TemporaryDirectory(prefix="runbook-setup-") as folder:
        paths = used.paths.model_copy(update={"state": folder, "spool": str(used.spool_folder)})
        app = hurried(Application(used.model_copy(update={"paths": paths})))
        return _answers(app, used, choices)


def _answers(app: Application, used: Inventory, choices: Choices) -> list[tuple[str, Found]]:
    user = choices.user if _known(choices.user) else ""
    asked = [
        Asked("reads", slurm_checks.scheduler, elsewhere=True),
        Asked("cancel, drain", partial(slurm_checks.acting, user=choices.user), elsewhere=True),
        Asked("sudo to owners", partial(slurm_checks.owners, user=choices.user), elsewhere=True),
        Asked("SSH to nodes", _two_nodes, elsewhere=True),
        Asked("spool", partial(slurm_checks.spool, user=user), elsewhere=True),
        Asked("database", lambda _: _database(used, choices)),
        Asked("notifications", checks.notifications, elsewhere=True),
    ]
    until_s = time.monotonic() + WAIT_S
    for one in asked:
        if one.elsewhere:
            one.begin(app)
    return [(one.title, found) for one in asked for found in one.answer(app, until_s)]


def _two_nodes(app: Application) -> Iterator[Found]:
    if app.inventory.nodes.kind == "none":
        yield from slurm_checks.nodes(app)
        return
    names = [state.name for state in app.scheduler.nodes()]
    chosen = [names[0], names[-1]][: len(set(names))] if names else []
    if not chosen:
        yield Found(Mark.WARNING, "the scheduler names no node")
    tried = [Asked(name, partial(slurm_checks.nodes, wanted=name), elsewhere=True) for name in chosen[:_NODES_TRIED]]
    for one in tried:
        one.begin(app)
    for one in tried:
        yield from one.answer(app, time.monotonic() + WAIT_S)


def _is_of(target: Path, group: str) -> bool:
    """Whether the service's group may read its inventory; a group that is still to be made may not."""
    try:
        return target.stat().st_gid == grp.getgrnam(group).gr_gid
    except KeyError:
        return False


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _database(used: Inventory, choices: Choices) -> Iterator[Found]:
    """Whether incidents and their database are the service's alone; nothing is made."""
    folder = used.state_folder
    if not folder.is_dir():
        yield Found(Mark.GOOD, f"{folder} is not there yet: it is made private, by the service or as below")
        return
    yield from checks.private_state(Application(used), mending=False, asking=False)
    owner = folder.stat().st_uid
    if _known(choices.user) and owner != pwd.getpwnam(choices.user).pw_uid:
        yield Found(
            Mark.BAD, f"{folder} does not belong to {choices.user}", f"chown -R {choices.user}: {folder}, if it is its"
        )


_MEANS: tuple[tuple[str, str], ...] = (
    ("reads", "reading jobs"),
    ("cancel, drain", "cancelling others' jobs, draining nodes"),
    ("sudo to owners", "reading logs and relaunching as the jobs' owners"),
    ("SSH to nodes", "checking nodes for GPU faults and co-tenants"),
    ("spool", "noticing failures by itself"),
    ("database", "keeping incidents private"),
    ("notifications", "telling people"),
)


def _not_yet(marks: list[tuple[str, Found]], site: Site, lines: list[str]) -> list[tuple[str, str]]:
    """(what is not possible, why)."""
    missing, works = [], set()
    for named, one in marks:
        if one.mark is Mark.GOOD:
            works.add(named)
        elif one.mark is Mark.BAD or named not in works:  # a warning after what is right is a remark
            missing.append((named, one.what))
    firsts = {title: next((what for named, what in missing if named == title), "") for title, _ in _MEANS}
    found = [(means, firsts[title]) for title, means in _MEANS if firsts[title]]
    if any(line.startswith("AccountingStoreFlags") for line in lines):
        found.append(("reading a script that the controller has forgotten", "accounting keeps none"))
    if not site.config.has_accounting and not site.problem:
        found.append(("knowing jobs minutes after their end", "this Slurm keeps no accounting (AccountingStorageType)"))
    if site.config.kills_at_memory_limit is False and not site.problem:
        why = "no control group holds a job to its --mem (cgroup.conf: ConstrainRAMSpace)"
        found.append(("seeing a host out-of-memory as one", why))
    return found


def _tell(told: Told) -> None:
    site = told.site
    conf = f", {site.conf}" if site.conf else ""
    say(f"cluster {site.cluster}, Slurm {site.version or 'of a version that is not told'}{conf}")
    if site.problem:
        say(f"the controller did not tell how the cluster is set up: {site.problem}")
    heading("Inventory")
    _tell_inventory(told)
    heading("Rights, asked and not tried")
    for title, found in told.marks:
        say(f"{title}: {found.what}", " " * 10, first=f"{found.mark.value:>8}  ")
        if found.next_step:
            say(f"→ {found.next_step}", " " * 12, first=" " * 10)
    _copied("As root, on the controller", told.commands)
    _copied("Into slurm.conf, then `scontrol reconfigure`", told.lines, "nothing: what runbook needs is there")
    if told.sudoers:
        _copied("Into /etc/sudoers.d/runbook (visudo -f)", [*told.sudoers.splitlines()])
        if command := site_texts.drop_in_command():
            _copied("So that the service may use it", [command])
    _copied("Into prometheus.yml; rules and routes: runbook deploy prometheus -o DIR", told.scrape.splitlines())
    heading("Not possible yet")
    for what, why in told.not_yet:
        say(f"{what}: {why}", "    ", first="  - ")
    if not told.not_yet:
        say("nothing is missing", first="  ")
    heading("Next")
    named = "" if Path(told.target) == SITE_INVENTORY else f" --inventory {told.target}"
    say(f"runbook doctor{named}", first="  ")
    say(f"runbook canary{named} --as USER: tiny jobs of that user fail, and show which part works", first="  ")
    say(f"runbook serve{named}: it only plans, until policy.mode is `approve` or `apply`", first="  ")


def _tell_inventory(told: Told) -> None:
    if told.written:
        say(f"{told.target} is written, policy `plan`: it decides and reports, and touches nothing", first="  ")
        return
    try:
        present = Path(told.target).read_text(encoding="utf-8")
    except OSError:
        present = ""
    changes = list(difflib.unified_diff(
        present.splitlines(), told.text.splitlines(), "as it is", "as setup would have written it", lineterm="", n=1
    ))  # fmt: skip
    if not changes:
        say(f"{told.target} is there, and just what setup would write", first="  ")
        return
    say(f"{told.target} is there and left as it is. Setup would have written:", first="  ")
    for line in changes:
        echo(f"    {_shown(line)}")


def _shown(text: str) -> str:
    """Without what stands in addresses, to their lines' ends: those of chats and databases are or hold secrets."""
    return masked(re.sub(r"(?<=://).+", MASK, text))


def _copied(title: str, lines: list[str], otherwise: str = "") -> None:
    """Lines for a person to copy, unwrapped."""
    if not lines and not otherwise:
        return
    heading(title)
    for line in lines:
        echo(f"  {line}")
    if not lines:
        say(otherwise, first="  ")



