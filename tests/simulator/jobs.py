"""Runs the example jobs for the tests: all ranks on this machine, without waiting between the steps."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRAIN = EXAMPLES / "train" / "train.py"
LAUNCH = EXAMPLES / "train" / "launch.py"
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_CLEARED = ("PYTORCH_", "SLURM", "CUDA_VISIBLE", "SIMULATED_GPU", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without a launcher's variables, and ``extra``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLEARED)}
    return {**kept, **extra}


@dataclass(frozen=True)
class Result:
    """What a job left behind."""

    status: int
    log: str

    def iterations(self) -> list[int]:
        """The iterations that were finished, in the order of the log."""
        return [int(text) for text in re.findall(r"\] iteration +(\d+)/", self.log)]

    def failed_ranks(self) -> set[int]:
        """Ranks that wrote an out-of-memory error."""
        return {int(text) for text in re.findall(r"\[rank(\d+)\]: torch\.OutOfMemoryError", self.log)}

    def figure(self, before: str, after: str) -> float:
        """The first size between two pieces of the out-of-memory text, in bytes."""
        match = re.search(rf"{before}([\d.]+) (bytes|KiB|MiB|GiB){after}", self.log)
        assert match, self.log[-2000:]
        return float(match.group(1)) * UNITS[match.group(2)]

    def tried_bytes(self) -> float:
        return self.figure("Tried to allocate ", "")

    def available_bytes(self) -> float:
        """Free memory and what is reserved but unallocated: a perfect allocator could use both."""
        free_bytes = self.figure("of which ", " is free")
        return free_bytes + self.figure("and ", " is reserved by PyTorch but unallocated")


def script_arguments(script: str) -> list[str]:
    """The options that a job script gives to train.py, as bash reads its arrays."""
    text = (EXAMPLES / "jobs" / script).read_text()
    arrays = "\n".join(re.findall(r"^[A-Z]+_ARGS=\(.*?^\)", text, flags=re.MULTILINE | re.DOTALL))
    command = f'{arrays}\nprintf "%s\\n" "${{MODEL_ARGS[@]}}" "${{TRAIN_ARGS[@]}}"'
    answer = subprocess.run(
        ["bash", "-c", command], env={"CHECKPOINTS": "-"}, capture_output=True, text=True, check=True
    )
    arguments = answer.stdout.split("\n")[:-1]
    while "-" in arguments:  # --save and --load are the caller's
        place = arguments.index("-")
        del arguments[place - 1 : place + 1]
    return [argument for argument in arguments if argument]


def run_job(
    arguments: list[str],
    ranks: int = 8,
    extra_environment: dict[str, str] | None = None,
    launcher: tuple[str, ...] = (),
) -> Result:
    """Run train.py under launch.py and wait for it."""
    command = [sys.executable, str(LAUNCH), "--nproc-per-node", str(ranks), *launcher, str(TRAIN), *arguments]
    command += ["--step-seconds", "0"]
    done = subprocess.run(
        command,
        env=environment(**(extra_environment or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )
    return Result(done.returncode, done.stdout)


def run_script(
    script: str, checkpoints: Path, *changes: str, conf: str | None = None, iterations: int | None = None
) -> Result:
    """Run a job script's train.py, with options that replace the script's (the last one counts)."""
    arguments = [*script_arguments(script), "--save", str(checkpoints), "--load", str(checkpoints), *changes]
    if iterations is not None:
        arguments += ["--train-iters", str(iterations)]
    return run_job(arguments, extra_environment={"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else None)


def stop(process: subprocess.Popen[str]) -> None:
    """End a process that a test started."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
