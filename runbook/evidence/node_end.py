"""Ending one process on a node: the script that does it, and the reading of its answer."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

from runbook.evidence.node_answers import NodeAnswers, printable
from runbook.evidence.node_script import PYTHONS, whole_script
from runbook.model.node import GpuProcess
from runbook.model.process_end import EndedHow, ProcessEnd
from runbook.model.units import Unknown

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
