"""Run a launch template in the real bash with stand-ins for every launcher, and see what the training program gets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runbook.model.template import TemplateFile

_RECORD = """#!/bin/bash
{ flock 9; printf '%s\\0' "${0##*/}" "$@" >&9; printf '\\n' >&9; } 9>> "$RECORD"  # two may start at once
"""
_PASS_ON = """#!/bin/bash
while [[ "$1" == -* ]]; do
  case "$1" in
    --*=*|--overlap|--label|--exclusive|--exact|-l|--kill-on-bad-exit|--unbuffered|-u) shift;;
    *) shift 2;;
  esac
done
exec "$@"
"""
_RECORDED = (
    "python", "python3", "torchrun", "accelerate", "deepspeed", "ray", "trl", "apptainer", "singularity", "docker",
)
_QUIET = ("scontrol", "module", "conda", "pkill", "sleep", "nvidia-smi", "pip", "ssh", "hostname", "wait")


@dataclass(frozen=True)
class Launched:
    """A program that the template starts."""

    words: tuple[str, ...]

    def after(self, *names: str) -> tuple[str, ...] | None:
        """The words behind the training program, named by module, file or end of path."""
        for index, word in enumerate(self.words):
            if any(word == name or word.endswith(f"/{name}") for name in names):
                return self.words[index + 1 :]
        return None


def launch(files: Sequence[TemplateFile], folder: Path, environment: dict[str, str]) -> list[Launched]:
    """Everything that the first file, a shell script, starts. Files with relative paths lie beside it."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name in _RECORDED:
        _write(programs / name, _RECORD)
    for name in _QUIET:
        _write(programs / name, "#!/bin/bash\nexit 0\n")
    _write(programs / "srun", _PASS_ON)
    work = folder / "work"
    for file in files:
        path = work / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
    record = folder / "record"
    subprocess.run(
        ["bash", str(work / files[0].path.lstrip("/"))], cwd=work, capture_output=True, timeout=20, check=False,
        env={**environment, "PATH": f"{programs}:{os.environ['PATH']}", "RECORD": str(record)},
    )
    if not record.exists():
        return []
    lines = record.read_bytes().split(b"\0\n")
    return [Launched(tuple(line.decode("utf-8").split("\0"))) for line in lines if line]


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
