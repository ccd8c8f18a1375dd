"""Run a job script in the real bash with stand-ins for the launchers, and read what the program would get."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = """#!/bin/bash
{ printf '%s\\0' "$0" "$@"
  printf 'PYTORCH_CUDA_ALLOC_CONF=%s\\0\\n' "${PYTORCH_CUDA_ALLOC_CONF-(unset)}"
} >> "$RECORD"
"""

_SRUN = """#!/bin/bash
export_mode="${SLURM_EXPORT_ENV-ALL}"
while [[ "$1" == -* ]]; do
  case "$1" in
    --export=*) export_mode="${1#--export=}"; shift;;
    --export) export_mode="$2"; shift 2;;
    --nodes|-N|-n) shift 2;;
    *) shift;;
  esac
done
kept=(RECORD="$RECORD" PATH="$PATH")
all=
IFS=, read -ra parts <<< "$export_mode"
for part in "${parts[@]}"; do
  case "$part" in
    ALL) all=1;;
    NONE) ;;
    *=*) kept+=("$part");;
    *) [[ -v "$part" ]] && kept+=("$part=${!part}");;
  esac
done
if [[ $all ]]; then exec env "${kept[@]}" "$@"; else exec env -i "${kept[@]}" "$@"; fi
"""

_WRAPPER = """#!/bin/bash
while [[ "$1" == -* ]]; do case "$1" in --standalone|--*=*) shift;; *) shift 2;; esac; done
exec "$@"
"""


_SBATCH = """#!/bin/bash
exec bash /dev/stdin
"""
"""The job that is handed over on standard input."""


@dataclass(frozen=True)
class Started:
    """One program that was started: its arguments and the allocator's variable as it saw it."""

    argv: tuple[str, ...]
    allocator: str | None

    def value(self, spellings: tuple[str, ...]) -> str | None:
        """As argparse reads it: the last one wins."""
        found = None
        for index, word in enumerate(self.argv):
            for spelling in spellings:
                if word == spelling:
                    found = self.argv[index + 1] if index + 1 < len(self.argv) else "true"
                elif word.startswith(f"{spelling}="):
                    found = word.split("=", 1)[1]
        return found


def run_script(
    text: str, folder: Path, environment: dict[str, str] | None = None, arguments: tuple[str, ...] = (),
    export: str | None = None,
) -> list[Started]:
    """Everything that the script starts. `export` stands for `#SBATCH --export`."""
    programs = folder / "bin"
    if not programs.exists():
        programs.mkdir()
        for name, body in (("srun", _SRUN), ("sbatch", _SBATCH), ("torchrun", _PROGRAM), ("python", _PROGRAM)):
            path = programs / name
            path.write_text(body)
            path.chmod(0o755)
    record = folder / "record"
    record.unlink(missing_ok=True)
    script = folder / "job.sh"
    script.write_bytes(text.encode("utf-8", "surrogateescape"))
    variables = {**(environment or {}), "PATH": f"{programs}:{os.environ['PATH']}", "RECORD": str(record)}
    for part in (export or "ALL").split(","):
        if "=" in part:
            name, _, value = part.partition("=")
            variables[name] = value
    if export is not None and "ALL" not in export.split(","):
        variables["SLURM_EXPORT_ENV"] = export
    subprocess.run(
        ["bash", str(script), *arguments], cwd=folder, env=variables, capture_output=True, timeout=10, check=False
    )
    started = []
    for line in record.read_bytes().split(b"\0\n")[:-1] if record.exists() else []:
        *argv, last = line.decode("utf-8", "surrogateescape").split("\0")
        allocator = last.split("=", 1)[1]
        started.append(Started(tuple(argv), None if allocator == "(unset)" else allocator))
    return started
