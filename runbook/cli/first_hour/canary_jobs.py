"""The canary's jobs: real processes on CPUs whose GPU memory is simulated (examples/README.md), fit for any node.

Each ends within seconds, in one of the ways in which jobs end: nothing in them knows of runbook.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runbook.adapters.identity import Identity
from runbook.adapters.process import Command, run
from runbook.errors import NotAllowed, Unavailable
from runbook.locations import data_folder

PREFIX = "runbook-canary"
_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One job of the canary."""

    name: str
    what: str
    """What happens in it, in a few words."""
    fails: bool = True
    hangs: bool = False
    """Its other ranks wait for the one that died: Slurm sees a job that runs."""
    on_host: bool = False
    """It takes real memory until the kernel ends it: only where the site holds jobs to their --mem."""
    options: tuple[str, ...] = ()


_SIZE = (
    "--num-layers 8 --hidden-size 4096 --num-heads 32 --seq-length 4096",
    "--micro-batch-size 4",
    "--gradient-accumulation-steps 1",
    "--global-batch-size 8",
    "--activation-checkpointing none",
)
_GROWS = ("--sequence-growth 2048:20", "--rank-imbalance 0.3", "--seed 9425")
"""From step 20 on the sequences are longer than fits."""
TRIALS = (
    Trial("gpu-oom", "a rank runs out of simulated GPU memory; a smaller batch cures it",
          options=(*_GROWS, "--vocab-size 128256", "--gpu-gib 40")),
    Trial("hang", "the same, and the other rank waits for it", hangs=True,
          options=(*_GROWS, "--vocab-size 32000", "--gpu-gib 30")),
    Trial(
        "host-oom", "a rank takes more host memory than --mem, and the kernel ends it", on_host=True,
        options=("--vocab-size 32000", "--host-leak-mib 16"),
    ),
    Trial("healthy", "nothing: it completes", fails=False, options=("--vocab-size 32000",)),
)


def script(trial: Trial, *, slurm: bool) -> str:
    """The job's script, with simulated GPUs of its own. Without Slurm, torchrun's stand-in starts the ranks."""
    if slurm:
        launch = "srun --label --mpi=none" + ("" if trial.hangs else " --kill-on-bad-exit=1") + " python3"
    else:
        launch = 'python3 "$HERE/train/launch.py" --nproc-per-node 2'
    waits = "--hang-on-peer-failure" if trial.hangs else "--no-hang-on-peer-failure"
    arguments = [
        *_SIZE, *trial.options, "--train-iters 40", "--step-seconds 0.1", waits,
        '--save "$HERE/checkpoints/$NAME"', '--load "$HERE/checkpoints/$NAME"', "--save-interval 5",
    ]  # fmt: skip
    return "\n".join((
        "#!/bin/bash",
        f"# A trial of runbook: {trial.what}. The GPUs are simulated; `runbook canary` made this and removes it.",
        f"#SBATCH --job-name={PREFIX}-{trial.name}",
        "#SBATCH --nodes=1", "#SBATCH --ntasks=2", "#SBATCH --cpus-per-task=1",
        "#SBATCH --mem=300M" if trial.on_host else "#SBATCH --mem=600M",
        "#SBATCH --time=00:05:00", "#SBATCH --no-requeue", "#SBATCH --output=%x-%j.out", "",
        "set -euo pipefail", "export SIMULATED_GPU_ALONE=1", "",
        "HERE=${SLURM_SUBMIT_DIR:-$PWD}", f"NAME={trial.name}", "",
        "TRAIN_ARGS=(", *(f"    {argument}" for argument in arguments), ")", "",
        f'{launch} "$HERE/train/train.py" "${{TRAIN_ARGS[@]}}"', "",
    ))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of the jobs' owner, which goes when the canary ends."""

    owner: Identity
    folder: str

    def remove(self) -> None:
        """Raises `Unavailable`, `NotAllowed`."""
        _as_owner(self.owner, ("rm", "-rf", "--", self.folder))


def make_place(owner: Identity, parent: str, *, slurm: bool) -> Place:
    """A folder with the training program and a script a job, made with the owner's rights, where nodes see it. Raises
    `NotAllowed`, `Unavailable`."""
    made = _as_owner(owner, ("mktemp", "-d", f"{parent or owner.home}/{PREFIX}-XXXXXXXX"))
    place = Place(owner, made.strip())
    try:
        _as_owner(owner, ("tar", "-xf", "-", "-C", place.folder), _packed(lambda trial: script(trial, slurm=slurm)))
    except BaseException:
        place.remove()
        raise
    return place


def _packed(text_of: Callable[[Trial], str]) -> bytes:
    """A tar archive of what the jobs need."""
    held = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=held, mode="w") as archive:
        copy = ("sh", str(data_folder("examples") / "copy-to.sh"), folder)
        run(Command(copy), _LIMIT_S)
        train = Path(folder) / "train"
        if not (train / "simulator").is_dir():
            raise Unavailable(
                "the examples could not be copied", where=str(copy[1]), next_step="install runbook again"
            )
        archive.add(train, "train", filter=_nobody_s)
        for trial in TRIALS:
            entry = tarfile.TarInfo(f"{trial.name}.sbatch")
            content = text_of(trial).encode()
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return held.getvalue()


def _nobody_s(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return None if "__pycache__" in entry.name else entry


def _as_owner(owner: Identity, argv: tuple[str, ...], stdin: bytes = b"") -> str:
    done = run(Command(argv, stdin=stdin, as_user=owner, env=owner.login_environment(), cwd="/"), _LIMIT_S)
    if done.exit_code != 0:
        raise NotAllowed(
            f"{owner.name} cannot make the canary's folder: {done.error_text()[-200:]}", where=" ".join(argv)[:120],
            next_step="name a folder that this user may write to and the nodes see, with --folder",
        )
    return done.text()


