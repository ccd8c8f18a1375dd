"""The process beside each local job: starts it, waits for it, records how it ended.

Run as `python -S -P supervisor.py FOLDER`; it detaches itself and outlives whoever started it. What it knows it
writes into the job's folder by rename: `started.json` before and after the start, `ended.json` at the end. It holds a
lock on `supervisor.lock` for as long as it lives, so that a reader needs no process number to see whether it is there.
SIGTERM means "cancel": every process of the job gets SIGTERM, and after `kill_wait_s` SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from runbook.adapters.process import Streams, start
from runbook.adapters.whole_file import whole_file

_PR_SET_CHILD_SUBREAPER = 36


def write_json(path: Path, value: dict[str, Any], durable: bool = True) -> None:
    """By rename; `durable`: on the disk before the name is, so that it outlives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(value, stream)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    temporary.replace(path)


def process_start(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def descendants(of: int) -> list[int]:
    """Live processes below a process. With the supervisor as subreaper, none of a job's can slip away."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()
                if fields[0] != "Z":
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    level = [of]
    while level:
        level = [child for parent in level for child in children.get(parent, [])]
        found += level
    return found


class Supervisor:
    """One job from start to end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        # A cancel that came while the supervisor was starting left only its file.
        self.cancelled = (folder / "cancel.json").exists()
        self.timed_out = False
        self.process: subprocess.Popen[bytes] | None = None
        self.told = 0.0

    def run(self, ready: int) -> None:
        signal.signal(signal.SIGTERM, self.cancel)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(ImportError, OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        started = {
            "start_s": time.time(), "pid": None, "pid_start": None, "boot_id": boot_id(), "supervisor": os.getpid(),
        }  # fmt: skip
        write_json(self.folder / "started.json", started)
        reason = ""
        try:
            self.process = self.start()
        except OSError as error:
            reason = f"the job could not be started: {error.strerror}: {error.filename}"
        else:
            started.update(pid=self.process.pid, pid_start=process_start(self.process.pid))
            write_json(self.folder / "started.json", started, durable=False)
        os.close(ready)
        status = 1 << 8 if self.process is None else self.wait(self.process.pid)
        self.end(status, reason)

    def start(self) -> subprocess.Popen[bytes]:
        environment = json.loads((self.folder / "environment.json").read_text(encoding="utf-8"))
        environment.update(self.job["slurm_variables"])
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if self.job["append"] else os.O_TRUNC)
        # O_APPEND also for a truncated file: output and error may be the same file by two names.
        output = os.open(self.job["stdout"], flags | os.O_APPEND, 0o666)
        error = os.open(self.job["stderr"], flags | os.O_APPEND, 0o666) if self.job["stderr"] else output
        try:
            return start(
                (str(self.folder / "script"), *self.job["arguments"]),
                Streams(subprocess.DEVNULL, output, error),
                env=environment,
                cwd=self.job["work_dir"],
            )
        finally:
            os.close(output)
            if error != output:
                os.close(error)

    def cancel(self, *_: object) -> None:
        self.cancelled = True

    def wait(self, pid: int) -> int:
        """Wait for the job's own process; strays that came to us are reaped on the way. Returns its wait status."""
        limit_s = self.job["time_limit_s"]
        deadline = time.monotonic() + limit_s if limit_s else None
        pause_s = 0.002
        while True:
            with contextlib.suppress(ChildProcessError):
                while True:
                    reaped, status = os.waitpid(-1, os.WNOHANG)
                    if reaped == pid:
                        self.end_strays()
                        return status
                    if reaped == 0:
                        break
            if deadline and time.monotonic() >= deadline and not self.cancelled:
                self.timed_out = True
            if self.cancelled or self.timed_out:
                self.tell()
            # Short jobs are noticed at once, long ones cost nothing.
            time.sleep(pause_s)
            self.cancelled = self.cancelled or (self.folder / "cancel.json").exists()
            pause_s = min(pause_s * 1.2, 0.05)

    def tell(self) -> None:
        """SIGTERM once, SIGKILL when the patience is over."""
        if not self.told:
            self.told = time.monotonic()
            why = "DUE TO TIME LIMIT " if self.timed_out else ""
            when = time.strftime("%Y-%m-%dT%H:%M:%S")
            self.note(f"*** JOB {self.job['id']} ON {self.job['node']} CANCELLED AT {when} {why}***")
            self.signal_all(signal.SIGTERM)
        elif time.monotonic() - self.told > self.job["kill_wait_s"]:
            self.signal_all(signal.SIGKILL)

    def note(self, text: str) -> None:
        """In the job's log, in the words of Slurm's own stepd, as readers of logs know them."""
        with contextlib.suppress(OSError), open(self.job["stderr"] or self.job["stdout"], "ab") as stream:
            stream.write(f"slurmstepd: error: {text}\n".encode())

    def signal_all(self, number: signal.Signals) -> None:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def end_strays(self) -> None:
        """A job is over when its script is: what it left behind is killed, as Slurm does."""
        for _ in range(100):
            if not descendants(os.getpid()):
                break
            self.signal_all(signal.SIGKILL)
            time.sleep(0.01)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def end(self, status: int, reason: str) -> None:
        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
        if self.cancelled:
            state, exit_code, signal_number = "CANCELLED", 0, signal_number or int(signal.SIGTERM)
        elif self.timed_out:
            state = "TIMEOUT"
        else:
            state = "COMPLETED" if (exit_code, signal_number) == (0, 0) else "FAILED"
        write_json(
            self.folder / "ended.json",
            {"end_s": time.time(), "state": state, "exit_code": exit_code, "signal": signal_number, "reason": reason},
        )
        if self.job["spool"] and state != "COMPLETED":
            with contextlib.suppress(OSError):
                self.tell_the_spool(f"{exit_code}:{signal_number}")

    def tell_the_spool(self, exit_code: str) -> None:
        """The same small file that the Slurm epilog leaves."""
        stem = f"{self.job['cluster']}-{self.job['id']}-0"
        lines = {
            "format": "1", "job_id": self.job["id"], "array_job_id": "", "array_task_id": "", "uid": str(os.getuid()),
            "exit_code": exit_code, "derived_exit_code": exit_code, "restart_count": "0",
            "cluster": self.job["cluster"],
        }  # fmt: skip
        spool = Path(self.job["spool"])
        with whole_file(spool / f"{stem}.event", 0o640, durable=False) as stream:
            stream.write("".join(f"{name}={value}\n" for name, value in lines.items()).encode("ascii"))


def main(folder: Path) -> NoReturn:
    """Detach, and return to the caller once the job runs (or could not be started)."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.chdir("/")
    lock = os.open(folder / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # A job is started once: whoever comes second, or after a crash, leaves it alone.
    if not (folder / "started.json").exists() and not (folder / "ended.json").exists():
        Supervisor(folder).run(writing)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
