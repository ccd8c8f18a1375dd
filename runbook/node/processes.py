"""Processes: who holds memory on the GPUs, whose they are, and how a job's own processes were started.

A process's Slurm job is read from its cgroup path, else from SLURM_JOB_ID in its environment. Layouts (Slurm's
sources): v1 `/slurm[_NODE]/uid_N/job_ID/step_S`, v2 `…/[NODE_]slurmstepd.scope/job_ID/step_S`, v2 of Slurm 26.05 with
a SLUID (`sEKNKTV3WPV500`) for `job_ID`. The environment is the process's own word: a cgroup always wins over it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runbook.model.node import EndedHow, GpuProcess, ProcessEnd, ProcessView
from runbook.model.units import Bytes, JobId, NodeName, Unknown, UserName
from runbook.node.check_script import PYTHONS, RANK_VARIABLES, whole_script
from runbook.node.gpus import mebibytes
from runbook.node.sections import NodeAnswers, printable

_CGROUP_JOB = re.compile(r"/(?:slurm[^/]*/uid_(?P<uid>\d+)|[^/]*slurmstepd\.scope)/job_(?P<job>\d+)(?:/|$)")
_CGROUP_SLUID = re.compile(r"/[^/]*slurmstepd\.scope/(?P<sluid>s[0-9A-HJKMNP-TV-Z]{13})(?:/|$)")
_USERS_OWN = re.compile(r"/user\.slice(?:/|$)|/user@\d+\.service(?:/|$)")
"""Where a user makes cgroups as he likes, with Slurm's names as well."""
_ANY_SLURM = re.compile(r"/slurm(?:[_/]|$)|slurmstepd\.scope")
NOT_THERE = "no such process on the node: it has ended, or it lives in another PID namespace"


@dataclass(slots=True)
class ProcEntry:
    """What `/proc` said about one process while its lines are read."""

    gone: bool = False
    uid: int | None = None
    user: str = ""
    stat: str = ""
    cgroups: list[str] = field(default_factory=list)
    environ_readable: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()


def read_gpu_processes(answers: NodeAnswers) -> dict[str, tuple[GpuProcess, ...]] | Unknown:
    """GPU UUID → the processes that nvidia-smi lists on it; a GPU without any is not in the answer."""
    section = answers.get("apps")
    if section is None:
        return Unknown("the node did not come to the list of processes on its GPUs")
    if section.timed_out:
        return Unknown("nvidia-smi did not list the processes within the time that was given")
    if section.exit_code != 0:
        first = printable(section.lines[0], 120) if section.lines else "no output"
        return Unknown(f"nvidia-smi could not list the processes: {first}")
    owners = owners_of(answers)
    found: dict[str, list[GpuProcess]] = {}
    for line in section.lines:
        cells = [cell.strip() for cell in line.split(", ", 3)]
        if len(cells) != 4 or not cells[1].isdecimal():
            if "No running processes" in line or line.startswith("gpu_uuid"):
                continue
            return Unknown(f"a line of nvidia-smi's process list cannot be read: {printable(line, 80)}")
        uuid, pid, used, name = cells
        process = owned(int(pid), mebibytes(used), name, owners, answers)
        found.setdefault(uuid, []).append(process)
    return {uuid: tuple(processes) for uuid, processes in found.items()}


def owned(
    pid: int, used: Bytes | Unknown, name: str, owners: dict[int, ProcEntry], answers: NodeAnswers
) -> GpuProcess:
    """A process on a GPU with owner, Slurm job and age as far as `/proc` told them."""
    seen = owners.get(pid)
    shown = printable(name, 120)
    if seen is None or seen.gone:
        why = Unknown(NOT_THERE if seen else "not looked up")
        return GpuProcess(pid=pid, used_bytes=used, name=shown, owner=why, job=why, age_s=why)
    user = seen.user or (str(seen.uid) if seen.uid is not None else "")
    return GpuProcess(
        pid=pid,
        used_bytes=used,
        name=shown,
        owner=UserName(printable(user, 60)) if user else Unknown("no Uid line in /proc"),
        job=_job(seen, slurm_has_cgroups=bool(answers.value("node", "slurm_cgroup"))),
        age_s=_age_s(seen.stat, answers),
        local_rank=_first_number(seen.environment, ("LOCAL_RANK", "SLURM_LOCALID")),
        start_ticks=_start_ticks(seen.stat),
        cgroup=_telling_cgroup(seen.cgroups),
    )


def owners_of(answers: NodeAnswers) -> dict[int, ProcEntry]:
    """The `owners` section by PID."""
    section = answers.get("owners")
    return _seen(section.lines if section else ())


def start_times(answers: NodeAnswers) -> dict[int, float]:
    """PID → epoch seconds of its start by the node's clock, for the processes of the `owners` section."""
    now = answers.value("node", "now")
    started: dict[int, float] = {}
    for pid, seen in owners_of(answers).items():
        age_s = _age_s(seen.stat, answers)
        if isinstance(age_s, float) and now.isdecimal():
            started[pid] = int(now) - age_s
    return started


def job_of_cgroup(path: str, uid: int | None = None) -> JobId | Unknown | None:
    """The Slurm job of one line of `/proc/PID/cgroup`, of a process of this user number; None when the line is in no
    Slurm cgroup. The first name of Slurm's in a path is Slurm's own: a user makes his below it, or below user.slice."""
    match = _CGROUP_JOB.search(path)
    slurms = match or _CGROUP_SLUID.search(path) or _ANY_SLURM.search(path)
    own = _USERS_OWN.search(path)
    if slurms is not None and own is not None and own.start() < slurms.start():
        return None
    if match:
        if match["uid"] is not None and uid is not None and int(match["uid"]) != uid:
            return Unknown(f"it is in a cgroup of user {match['uid']} and runs as user {uid}")
        return JobId(match["job"])
    match = _CGROUP_SLUID.search(path)
    if match:
        return Unknown(f"its Slurm job is known by the SLUID {match['sluid']} only")
    return Unknown("in a Slurm cgroup that names no job") if _ANY_SLURM.search(path) else None


def read_job_processes(
    answers: NodeAnswers, node: NodeName, variables: Sequence[str]
) -> tuple[ProcessView, ...] | Unknown:
    """The job's processes in PID order, those with its owner's user number only (slurmstepd belongs to root and is no
    rank). A user has tens of thousands of numbers without a name, and SLURM_JOB_ID is anybody's word.

    Unknown when the node did not finish, or when a process's environment may not be read: then nothing can be said
    on what reached the ranks."""
    section = answers.get("processes")
    if section is None or section.exit_code is None:
        return Unknown("the node did not list the job's processes within the time that was given")
    owner = answers.value("node", "owner_uid")
    if not owner.isdecimal():
        return Unknown(f"{node} does not know the job's owner")
    views: list[ProcessView] = []
    for pid, seen in sorted(_seen(section.lines).items()):
        if seen.uid != int(owner):
            continue
        if not seen.argv:
            continue
        if not seen.environ_readable:
            user = printable(answers.value("node", "user"), 40) or "this user"
            refused = " (sudo -n was refused)" if answers.value("node", "as") == "sudo-refused" else ""
            return Unknown(
                f"the environment of process {pid} on {node} may not be read by {user}{refused}: "
                "log in as root or as its owner, or allow `sudo -n`"
            )
        views.append(
            ProcessView(
                node=node,
                pid=pid,
                argv=seen.argv,
                environment={name: seen.environment[name] for name in variables if name in seen.environment},
                rank=_first_number(seen.environment, RANK_VARIABLES),
            )
        )
    return tuple(views)


def _seen(lines: Sequence[str]) -> dict[int, ProcEntry]:
    """Of what is said once of a process (whose it is, its state) the first line counts: a later one would be words of a
    process's own."""
    found: dict[int, ProcEntry] = {}
    for line in lines:
        pid, _, rest = line.partition(" ")
        kind, _, value = rest.partition(" ")
        if not pid.isdecimal():
            continue
        seen = found.setdefault(int(pid), ProcEntry())
        match kind:
            case "gone" if seen.uid is None:
                seen.gone = True
            case "owner" if seen.uid is None and not seen.gone:
                uid, _, user = value.partition(" ")
                seen.uid = int(uid) if uid.isdecimal() else None
                seen.user = user.strip()
            case "stat" if not seen.stat:
                seen.stat = value
            case "cgroup":
                seen.cgroups.append(value)
            case "environ":
                seen.environ_readable = True
            case "env":
                name, _, text = value.partition("=")
                seen.environment.setdefault(name, text.replace("\x01", "\n"))
            case "argv":
                # The shell's $(…) takes newlines off the end; the arguments were separated by 1, newlines became 2.
                parts = value.replace("\x02", "\n").split("\x01")
                seen.argv = tuple(parts[:-1] if parts[-1] == "" else parts)
    return found


def _job(seen: ProcEntry, *, slurm_has_cgroups: bool) -> JobId | None | Unknown:
    array, task = seen.environment.get("SLURM_ARRAY_JOB_ID", ""), seen.environment.get("SLURM_ARRAY_TASK_ID", "")
    by_environment = seen.environment.get("SLURM_JOB_ID", "")
    in_array = array.isdecimal() and task.isdecimal()
    by_cgroup = [job for path in seen.cgroups if (job := job_of_cgroup(path, seen.uid)) is not None]
    named = next((job for job in by_cgroup if not isinstance(job, Unknown)), None)
    if named is not None:
        return JobId(f"{array}_{task}") if in_array and by_environment == named else named
    if by_environment.isdecimal() and len(by_environment) < 13:
        return JobId(f"{array}_{task}") if in_array else JobId(by_environment)
    unknown = next(iter(by_cgroup), None)
    if unknown is not None:
        return unknown
    if not seen.cgroups:
        return Unknown("its cgroup could not be read")
    if slurm_has_cgroups or seen.environ_readable:
        return None
    return Unknown("Slurm keeps no cgroups on this node and the process's environment may not be read")


def _age_s(stat: str, answers: NodeAnswers) -> float | Unknown:
    """Field 22 of /proc/PID/stat: start in ticks after boot. The name in field 2 may hold blanks and brackets."""
    start = _start_ticks(stat)
    if isinstance(start, Unknown):
        return start
    try:
        ticks = float(answers.value("node", "ticks"))
        uptime_s = float(answers.value("node", "uptime"))
        return max(0.0, uptime_s - start / ticks)
    except (ValueError, ZeroDivisionError):
        return Unknown("its start time could not be read")


def _start_ticks(stat: str) -> int | Unknown:
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or not re.fullmatch(r"\d{1,18}", fields[19]):
        return Unknown("its start time could not be read")
    return int(fields[19])


def _telling_cgroup(lines: Sequence[str]) -> str | Unknown:
    """The path that names the job, else the last one; cgroup v1 has one a controller."""
    if not lines:
        return Unknown("its cgroup could not be read")
    telling = next((line for line in lines if isinstance(job_of_cgroup(line), str)), lines[-1])
    return printable(telling, 300)


def _first_number(environment: dict[str, str], names: Sequence[str]) -> int | None:
    values = (environment.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal() and len(value) < 8), None)


# Ending one process on a node: the script that does it, and the reading of its answer.

KILL_WAIT_S = 5.0
"""How long SIGKILL may take. A process that sits in the driver takes none at all."""
_SECTION = "end_process"


def end_script(marker: str, process: GpuProcess, spared: Iterable[str], grace_s: float, program: str) -> str:
    """A script that hands `program` (`runbook/probe/end_process.py`) and what it must find to a Python there.
    `spared`: programs that are never ended.

    Raises `ValueError` for a process of which start time, owner, cgroup or job are not known: it could be any."""
    if isinstance(process.start_ticks, Unknown) or isinstance(process.owner, Unknown):
        raise ValueError(f"process {process.pid}: its start time and owner must be known")
    if isinstance(process.cgroup, Unknown):
        raise ValueError(f"process {process.pid}: its cgroup must be known")
    if not isinstance(process.job, str):
        raise ValueError(f"process {process.pid}: its Slurm job must be known")
    target = json.dumps(
        {
            "pid": process.pid, "start_ticks": process.start_ticks, "owner": process.owner, "cgroup": process.cgroup,
            "job": process.job, "spared": sorted(spared), "grace_s": grace_s, "kill_s": KILL_WAIT_S,
        }
    )
    limit_s = int(grace_s + KILL_WAIT_S) + 3
    return whole_script(marker, f"""
begin node
printf 'user=%s\\nas=%s\\n' "$(id -un)" "$AS"
end node 0
for p in {' '.join(PYTHONS)}; do
  "$p" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null || continue
  begin {_SECTION}
  printf '%s\\n' {shlex.quote(program)} | limit {limit_s} "$p" -I -S -B - {shlex.quote(target)} 2>&1
  end {_SECTION} $?
  finish
done
begin no_python; end no_python 0
finish
""")


def end_limit_s(grace_s: float) -> float:
    """How long the whole question may take."""
    return grace_s + KILL_WAIT_S + 10


def read_end(answers: NodeAnswers) -> ProcessEnd:
    """What the node said. An answer that broke off is unknown: the signal may have been sent."""
    if answers.get("no_python") is not None:
        return ProcessEnd(EndedHow.REFUSED, "the node has no Python to end a process with")
    section = answers.get(_SECTION)
    if section is None:
        return ProcessEnd(EndedHow.UNKNOWN, "the node did not answer")
    said = section.lines[-1] if section.lines else ""
    try:
        document = json.loads(said)
        how, detail = EndedHow(document["how"]), printable(str(document["detail"]), 200)
    except (ValueError, KeyError, TypeError):
        return ProcessEnd(EndedHow.UNKNOWN, f"the node's answer broke off: {printable(said, 120) or 'nothing'}")
    refused = answers.value("node", "as") == "sudo-refused" and how is EndedHow.REFUSED
    return ProcessEnd(how, detail + (" (sudo -n was refused)" if refused else ""))
