"""Which files of a folder are logs: by their names, as launchers, Slurm, torchrun, Ray and the engines give them."""

from __future__ import annotations

import re

_PACKED = re.compile(r"\.(?:gz|zst|zstd)$", re.IGNORECASE)
_LOG = re.compile(
    r"""(?:
        \.(?:log|out|err|txt|stdout|stderr)(?:\.\d{1,6})?        # train.log, slurm-1.out, raylet.out.1
      | \.(?:log|out|err)[._-][\w.-]{1,80}                       # out.0, train.log-20261121
      | (?:^|[._-])[oe]\d{1,12}(?:[._-]\d{1,6})?                 # job.o123456, PBS and SGE style, also used on Slurm
      | ^(?:stdout|stderr|nohup|dmesg|syslog|messages|journal)[\w.-]{0,60}
      | ^(?:rank|task|node|out|err|log)[._-]?\d{1,6}             # rank.3, one file a task
    )$""",
    re.VERBOSE | re.IGNORECASE,
)
_NOT_A_LOG = re.compile(
    r"\.(?:py|pyc|sh|sbatch|slurm|ya?ml|toml|jsonl?|csv|tsv|parquet|arrow|npy|npz|pt|pth|bin|safetensors|ckpt|distcp"
    r"|pkl|pickle|model|png|svg|html|tar|zip|db|sqlite|so|md|lock|pid|sock|nsys-rep|ncu-rep)$|^core\.\d+$"
    r"|\.tfevents\.|^requirements[\w.-]*\.txt$|^(?:vocab|merges)\.txt$",
    re.IGNORECASE,
)
_JOB = re.compile(r"^slurm-(\d{1,12}(?:_\d{1,9})?)(?!\d)")
ERROR_FILE = "error.json"
"""torchelastic's own record of a failure: the whole message with its time."""


def is_log_name(name: str) -> bool:
    """Whether a file of this name (without its folder) is read when a folder is given. Files that are named one by
    one are always read."""
    plain = _PACKED.sub("", name)
    if plain == ERROR_FILE:
        return True
    return bool(_LOG.search(plain)) and not _NOT_A_LOG.search(plain)


def job_of_name(name: str) -> str | None:
    """The job (or task of an array) that Slurm's own name for an output file speaks of: slurm-123_4.out."""
    found = _JOB.search(name)
    return found.group(1) if found else None


def natural_order(path: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts rank 2 before rank 10."""
    return tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d{1,18})", path) if part
    )
