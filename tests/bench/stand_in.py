"""A stand-in for Slurm's commands: `stand-in-slurm` under each name, and the files that it answers from."""

from __future__ import annotations

import pwd
import shutil
import time
from functools import cache
from pathlib import Path

from runbook.slurm.accounting import COLUMNS, known_columns

_RECORDED = Path(__file__).parents[1] / "recorded" / "slurm" / "22.05.8" / "sacct_helpformat.txt"


def write_commands(folder: Path, nodes: int) -> None:
    """The commands of a cluster of so many nodes, for any user of this machine, and a place for its jobs."""
    (folder / "jobs").mkdir(parents=True)
    for name in ("squeue", "sacct", "scontrol", "sinfo"):
        shutil.copy(Path(__file__).with_name("stand-in-slurm"), folder / name)
    shutil.copy(_RECORDED, folder / "helpformat")
    node = "gpu-{}@@idle@@none@@gpu:8@@gpu:0@@gpu*@@\n"
    (folder / "nodes").write_text("".join(node.format(number) for number in range(1, nodes + 1)))
    asked = folder / "asked"
    asked.touch()
    asked.chmod(0o666)


def write_failed_job(
    folder: Path, number: int, owner: pwd.struct_passwd, log: Path, script: str, state: str = "FAILED",
    code: str = "1:0",
) -> None:
    """What accounting tells of a job of that owner's that ended a moment ago."""
    (folder / "jobs" / f"{number}.sh").write_text(script)
    now_s = int(time.time())
    told = {
        "JobID": number, "JobIDRaw": number, "JobName": "train", "User": owner.pw_name, "UID": owner.pw_uid,
        "GID": owner.pw_gid, "State": state, "ExitCode": code, "DerivedExitCode": code, "Reason": "None",
        "NodeList": f"gpu-{number % _nodes(folder) + 1}", "NNodes": 1, "AllocTRES": "gres/gpu=8,node=1",
        "ReqTRES": "gres/gpu=8,node=1", "Submit": now_s - 9000, "Start": now_s - 9000, "End": now_s - 5,
        "TimelimitRaw": 600, "WorkDir": log.parent,
        "SubmitLine": f"sbatch -o {log} {folder / 'jobs' / f'{number}.sh'}", "Partition": "gpu", "Account": "research",
        "QOS": "normal", "Cluster": "alpha",
    }
    known = known_columns((folder / "helpformat").read_text())
    row = "@@".join(str(told.get(column, "")) for column in COLUMNS if column.lower() in known)
    (folder / "jobs" / f"{number}.sacct").write_text(f"{row}@@\n")


@cache
def _nodes(folder: Path) -> int:
    return len((folder / "nodes").read_text().splitlines())


def write_event(folder: Path, number: int, uid: int, code: str = "") -> None:
    """What the cluster's epilog says of it, in a spool: whole from its first moment on."""
    made = folder.parent / f"alpha-{number}-0.event"
    codes = f"exit_code={code}\nderived_exit_code={code}\n" if code else ""
    made.write_text(f"format=1\njob_id={number}\nuid={uid}\n{codes}restart_count=0\ncluster=alpha\n")
    made.rename(folder / made.name)
