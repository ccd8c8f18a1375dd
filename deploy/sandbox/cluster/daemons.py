"""Starting, finding and ending the sandbox's own processes, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.settings import LOGS, RUN, USER_MARK
from cluster.system import SandboxError, clean_environment

PIDS = RUN / "pids"


def start(name: str, argv: Sequence[str]) -> None:
    """Start a daemon in the foreground of a session of its own; its output goes to log/NAME.out."""
    PIDS.mkdir(parents=True, exist_ok=True)
    with (LOGS / f"{name}.out").open("ab") as output:
        process = subprocess.Popen(
            tuple(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=clean_environment(),
            cwd="/",
            start_new_session=True,
        )
    temporary = PIDS / f".{name}"
    temporary.write_text(f"{process.pid} {birth_ticks(process.pid)}\n", encoding="ascii")
    temporary.replace(PIDS / name)


def pid_of(name: str) -> int | None:
    """The process id of a running daemon; None when it does not run or its number is reused."""
    try:
        pid, ticks = (int(word) for word in (PIDS / name).read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return pid if birth_ticks(pid) == ticks else None


def names() -> tuple[str, ...]:
    """The names of all daemons that were started."""
    return tuple(sorted(path.name for path in PIDS.glob("[!.]*"))) if PIDS.is_dir() else ()


def birth_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None for one that is gone or a zombie."""
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def session_of(pid: int) -> int | None:
    """The session id of a process."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[3])


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command name: state, parent, group, session, ..."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def last_words(name: str, *logs: Path) -> str:
    """The last line that a daemon wrote, from its output or its logs, for an error message."""
    for path in (LOGS / f"{name}.out", *logs):
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            continue
        if lines:
            return lines[-1]
    return "it wrote nothing"


def wait_for(name: str, ready: Callable[[], bool], *, timeout_s: float = 30, log: Path | None = None) -> None:
    """Wait until a daemon answers; a SandboxError with its last words when it ends or stays silent."""
    deadline = time.monotonic() + timeout_s
    where = log or LOGS / f"{name}.out"
    while not ready():
        ended = pid_of(name) is None
        if ended or time.monotonic() > deadline:
            state = "ended at once" if ended else f"does not answer after {timeout_s:g} s"
            problem = f"{name} {state}: {last_words(name, where)}"
            raise SandboxError(problem, f"read {where}, then `sandbox up` again")
        time.sleep(0.05)


def stop(name: str, *, grace_s: float = 10) -> bool:
    """End one daemon, then what it left in its session; True when it was running."""
    pid = pid_of(name)
    if pid is not None:
        terminate({pid}, grace_s=grace_s)
        terminate(session_members(pid), grace_s=min(2, grace_s))
    (PIDS / name).unlink(missing_ok=True)
    return pid is not None


def terminate(pids: set[int], *, grace_s: float) -> None:
    """Ask processes to end, and after the grace period end them."""
    births = {pid: birth_ticks(pid) for pid in pids}
    deadline = time.monotonic() + grace_s
    send(births, signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
    killed = grace_s <= 0
    while any(ticks is not None and birth_ticks(pid) == ticks for pid, ticks in births.items()):
        if not killed and time.monotonic() > deadline:
            send(births, signal.SIGKILL)
            killed = True
        if time.monotonic() > deadline + 10:
            return
        time.sleep(0.02)


def send(births: dict[int, int | None], what: signal.Signals) -> None:
    """Signal each process that is still the one that was meant."""
    for pid, ticks in births.items():
        if ticks is not None and birth_ticks(pid) == ticks:
            try:
                os.kill(pid, what)
            except ProcessLookupError:
                continue


def all_pids() -> list[int]:
    """Every process on the machine."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def session_members(leader: int) -> set[int]:
    """The processes in the session of a daemon."""
    return {pid for pid in all_pids() if session_of(pid) == leader}


def network_namespace(pid: int | str) -> str | None:
    """The name of a process's network namespace, None when the process is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def sandbox_user_ids() -> set[int]:
    """The user ids that `up` created, by their mark in /etc/passwd."""
    rows = (line.split(":") for line in Path("/etc/passwd").read_text(encoding="utf-8").splitlines())
    return {int(row[2]) for row in rows if len(row) > 4 and row[4] == USER_MARK}


def sandbox_processes() -> set[int]:
    """All processes of the sandbox: daemons, everything inside the nodes, everything of its users."""
    started = {pid for name in names() if (pid := pid_of(name)) is not None}
    here = network_namespace("self")
    spaces = {network_namespace(pid) for name in names() if (pid := pid_of(name)) is not None} - {here, None}
    users = sandbox_user_ids()
    found = set(started)
    for pid in all_pids():
        try:
            owner = os.stat(f"/proc/{pid}").st_uid
        except OSError:
            continue
        if owner in users or session_of(pid) in started or network_namespace(pid) in spaces:
            found.add(pid)
    return found - {os.getpid()}


def end_everything() -> int:
    """End every process of the sandbox, and those that they start meanwhile; returns how many there were."""
    ended = 0
    for _ in range(20):
        found = {pid for pid in sandbox_processes() if birth_ticks(pid) is not None}
        if not found:
            return ended
        ended += len(found)
        terminate(found, grace_s=0)
    raise SandboxError(
        f"processes of the sandbox do not end: {sorted(sandbox_processes())}",
        "look at them with `ps`, end them, then run `sandbox down` again",
    )


def node_holder(name: str) -> str:
    """The daemon name of the process that keeps a node's namespaces alive."""
    return f"node-{name}"
