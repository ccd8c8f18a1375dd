"""`runbook node`: what a node's GPUs look like now, and what to do about it. It touches nothing."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import time
from dataclasses import replace
from datetime import datetime

from rich.text import Text

from runbook.cli.main import DONE, INTERRUPTED, NEEDS_PERSON, UNAVAILABLE
from runbook.cli.node_gather import Gathering
from runbook.cli.say import clean_console, echo, say_json
from runbook.cli.wiring import Application, application
from runbook.errors import BadInput, NotFound
from runbook.host_lists import expand_hosts
from runbook.model.job import JobRecord
from runbook.model.node import NodeCheck, NodeVerdict
from runbook.model.units import JobId, NodeName
from runbook.report.json_documents import dump_node_check
from runbook.report.text.node_text import render
from runbook.report.vocabulary.clean import clean_line, shorten

_MOST_NODES = 4096


def node(nodes: tuple[str, ...], job: str | None, since: str | None, as_json: bool, inventory: str | None) -> int:
    """`runbook node`."""
    names = _expanded(nodes)
    since_s = _since(since, time.time())
    app = application(inventory)
    if not names and job is None:
        raise BadInput("no node is named", next_step="runbook node gpu-21, or --job ID for all nodes of a job")
    if app.inventory.nodes.kind == "none":
        raise BadInput(
            "the inventory reaches no nodes", where=app.inventory.id, next_step="set nodes.kind to ssh in the inventory"
        )
    record = app.scheduler.job(JobId(job)) if job is not None else None
    if record is not None:
        names = _of_job(record, names)
    elif app.inventory.nodes.kind == "local":
        _only_this_machine(names)
    if record is not None and since_s is not None:
        record = replace(record, start_time_s=since_s)
    check, interrupted = _check(app, names, record, since_s)
    _show(check, as_json)
    if interrupted:
        echo("interrupted; what is not known yet is said above", err=True)
        return INTERRUPTED
    return code_of(check)


def code_of(check: NodeCheck) -> int:
    """4 where a node is faulty or occupied; 6 where none is but one is unknown; 0 where all are clean."""
    verdicts = {one.judgement.verdict for one in check.nodes}
    if verdicts & {NodeVerdict.FAULTY, NodeVerdict.OCCUPIED}:
        return NEEDS_PERSON
    return UNAVAILABLE if NodeVerdict.UNKNOWN in verdicts else DONE


def _expanded(texts: tuple[str, ...]) -> tuple[NodeName, ...]:
    found: dict[NodeName, None] = {}
    for text in texts:
        names = expand_hosts(text)
        if not names or not all(_is_name(name) for name in names):
            raise BadInput(
                f"not a node: {shorten(clean_line(text), 60)!r}",
                next_step="name it as Slurm does: gpu-21, gpu-[21-24]; the user to log in as is the inventory's",
            )
        found.update(dict.fromkeys(names))
        if len(found) > _MOST_NODES:
            raise BadInput(f"more than {_MOST_NODES} nodes are named", next_step="check fewer at a time")
    return tuple(found)


def _is_name(name: str) -> bool:
    """A host name or an address of IPv4; nothing that an SSH library could take for something else."""
    plain = name.isascii() and all(letter.isalnum() or letter in "-._" for letter in name)
    return plain and name[0].isalnum() and len(name) <= 253


def _of_job(job: JobRecord, named: tuple[NodeName, ...]) -> tuple[NodeName, ...]:
    if not job.nodes:
        raise NotFound(
            f"Slurm names no node of job {job.id}", where=job.source, next_step="name the node without --job"
        )
    chosen = []
    for name in named:
        own = job.own_node(name)
        if own is None:
            raise BadInput(
                f"{name} is no node of job {job.id}", next_step=f"its nodes: {', '.join(job.nodes[:16])}; or leave "
                "--job out",
            )
        chosen.append(own)
    return tuple(dict.fromkeys(chosen)) or job.nodes


def _only_this_machine(names: tuple[NodeName, ...]) -> None:
    """A local inventory asks this machine whatever it is called: no other name may be shown for it."""
    own = socket.gethostname()
    for name in names:
        if name not in (own, own.partition(".")[0], "localhost"):
            raise BadInput(
                f"the inventory knows this machine ({own}) alone, not {name}",
                next_step="name an inventory with nodes.kind ssh: --inventory NAME, or RUNBOOK_INVENTORY",
            )


def _since(text: str | None, now_s: float) -> float | None:
    if text is None:
        return None

    found = moment_of(text, now_s)
    if found is None:
        raise BadInput(
            f"not a time: {text[:40]!r}", next_step="2h, 30m, 3d (ago), 2026-11-21T02:00 (local time), or epoch seconds"
        )
    if found > now_s:
        raise BadInput(f"{text} is in the future", next_step="name the time from which events count")
    return found


def _check(
    app: Application, names: tuple[NodeName, ...], job: JobRecord | None, since_s: float | None
) -> tuple[NodeCheck, bool]:
    gathering = Gathering(app, names, job, since_s)
    interrupted = False
    try:
        gathering.ask()
        gathering.look_up_jobs()
    except KeyboardInterrupt:
        interrupted = True
    return gathering.judged(), interrupted


def _show(check: NodeCheck, as_json: bool) -> None:
    if as_json:
        say_json(dump_node_check(check).decode("utf-8"), nl=False)
        return

    styles = {"title": "bold", "good": "green", "bad": "bold red", "warn": "yellow", "dim": "dim"}
    width = max(40, shutil.get_terminal_size((100, 24)).columns) if sys.stdout.isatty() else 100
    console = clean_console(sys.stdout, soft_wrap=True, width=width)
    for line in render(check, min(width, 160)):
        console.print(Text(line.text, style=styles.get(line.style, "")))


_AGO = re.compile(r"(?P<number>\d{1,6})\s?(?P<unit>s|m|min|h|d)\Z")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_EPOCH = re.compile(r"@?(?P<seconds>\d{9,11})(?:\.\d{1,9})?\Z")


def moment_of(text: str, now_s: float) -> float | None:
    """Epoch seconds of "2h" (ago), an ISO date and time (local where it has no zone), or epoch seconds themselves.
    None: none of these."""
    text = text.strip()
    ago = _AGO.match(text)
    if ago:
        return now_s - int(ago["number"]) * _SECONDS[ago["unit"]]
    epoch = _EPOCH.match(text)
    if epoch:
        return float(text.removeprefix("@"))
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
