"""How Slurm's commands write their answers: single figures, and columns that a random separator tells apart.

Figures are times, limits, memory, exit codes, GPU counts; what is not understood is None. Columns: job names,
comments, paths and drain reasons are free text of users: spaces, `=`, `|` and line breaks in them make
`scontrol show job` and any fixed separator ambiguous (a job name can hold a whole forged record). So `squeue`,
`sinfo` and `sacct` are asked with a random separator, made anew for each question: it ends every column of every row,
and only it is looked for. `rows` says what that is worth.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.model.units import Bytes

NOT_SET = frozenset({
    "", "(null)", "n/a", "none", "unknown", "not_set", "partition_limit", "invalid", "none assigned",
})  # fmt: skip
_UNITS = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


def text_or_empty(value: str | None) -> str:
    """A text column with Slurm's words for "nothing" made empty."""
    stripped = (value or "").strip()
    return "" if stripped.lower() in ("", "(null)", "n/a") else (value or "")


def number(value: str | None) -> int | None:
    """A whole number; "2-4" (a range of nodes) is not one."""
    stripped = (value or "").strip()
    return int(stripped) if stripped.isascii() and stripped.isdecimal() and len(stripped) < 19 else None


def epoch_s(value: str | None) -> float | None:
    """A time printed with SLURM_TIME_FORMAT=%s. 0 and words stand for "not yet"."""
    seconds = number(value)
    return float(seconds) if seconds else None


def duration_s(value: str | None) -> float | None:
    """"30" (minutes), "10:30" (minutes:seconds), "1:00:00", "2-01", "2-01:30", "2-01:30:15"; None for UNLIMITED."""
    stripped = (value or "").strip()
    if not re.fullmatch(r"(\d{1,9}-)?\d{1,9}(:\d{1,9}){0,2}(\.\d+)?", stripped):
        return None
    days, dash, rest = stripped.partition("-") if "-" in stripped else ("0", "", stripped)
    parts = [int(part) for part in rest.partition(".")[0].split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return float(((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds)


def exit_and_signal(value: str | None) -> tuple[int | None, int | None]:
    """"1:0" → (1, 0): exit status and signal."""
    status, colon, signal = (value or "").strip().partition(":")
    return (number(status), number(signal)) if colon else (number(status), None)


def memory_bytes(value: str | None) -> Bytes | None:
    """"64G", "1000" (MiB), "1.50T"; None for 0, which means the whole node, and for what is per CPU ("4Gc")."""
    found = re.fullmatch(r"(\d{1,15})(?:\.(\d{1,6}))?([KMGTP]?)(?:i?B)?n?", (value or "").strip(), re.IGNORECASE)
    if found is None:
        return None
    figure = float(f"{found[1]}.{found[2] or 0}")
    return Bytes(int(figure * _UNITS[found[3].upper()])) or None


def resident_bytes(value: str | None) -> Bytes | None:
    """sacct's MaxRSS: "15908K", "1.2G"; a bare number is bytes; 0 was not sampled."""
    stripped = (value or "").strip()
    if stripped.isdecimal() and len(stripped) < 19:
        return Bytes(int(stripped)) or None
    return memory_bytes(stripped)


def gpu_count(value: str | None) -> int | None:
    """GPUs in a GRES or TRES text: "gpu:2", "gres/gpu=8", "gres:gpu:a100:4(IDX:0-3)", "cpu=4,gres/gpu:h100=2".

    With and without a type in one text the untyped figure is the total. None when no GPU is named."""
    plain: list[int] = []
    typed: list[int] = []
    for part in re.split(r",(?![^(]*\))", (value or "").strip()):
        found = re.fullmatch(
            r"(?:gres[:/])?gpu(?:[:/](?!\d+(?:\(|$))([^:=()]+))?(?:[:=](\d{1,9}))?(?:\(.*\))?", part.strip()
        )
        if found:
            (typed if found[1] else plain).append(int(found[2] or 1))
    return sum(plain) if plain else (sum(typed) if typed else None)


def per_node_gpus(requested: str, allocated: str, num_nodes: int | None) -> int | None:
    """GPUs a node: the allocation's total where it divides evenly, or else as requested. `--gpus-per-node=1` beside
    `--gres=gpu:2` are two entries of one request, of which Slurm takes one."""
    total = gpu_count(allocated)
    if total and num_nodes and total % num_nodes == 0:
        return total // num_nodes
    return gpu_count(requested)


def per_node_memory(allocated: str, num_nodes: int | None) -> Bytes | None:
    """Memory a node of an allocation ("cpu=2,mem=2G,node=2"), where it divides evenly."""
    for part in allocated.split(","):
        if part.startswith("mem="):
            total = memory_bytes(part[4:])
            if total and num_nodes and total % num_nodes == 0:
                return Bytes(total // num_nodes)
    return None


def variables(text: str) -> dict[str, str]:
    """An environment printed as NAME=VALUE lines; a line that starts no variable goes on with the one before.

    A value that holds a line of the form NAME=… itself cannot be told from two variables: Slurm prints no other
    separator."""
    found: dict[str, str] = {}
    name = ""
    for line in text.split("\n"):
        start = re.match(r"([A-Za-z_][A-Za-z0-9_]*(?:%%|\(\))?)=", line)
        if start:
            name = start[1]
            found[name] = line[start.end() :]
        elif name:
            found[name] += "\n" + line
    if name:
        found[name] = found[name].rstrip("\n")
    return found


def exported(environment: dict[str, str], export: str | None) -> dict[str, str]:
    """What sbatch's `--export` lets through of an environment: ALL, NONE, NIL, or a list of names and NAME=VALUE."""
    if export is None:
        return dict(environment)
    words = [word for word in re.split(r",(?=[A-Za-z_])", export) if word]
    chosen: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            chosen[name] = value
        elif name.upper() == "ALL":
            chosen = {**environment, **chosen}
        elif name.upper() not in ("NONE", "NIL") and name in environment:
            chosen[name] = environment[name]
    return chosen


#: Letters first: squeue and sinfo read leading digits as a width (and cut there); no comma, colon or percent sign.
SEPARATOR_FORM = re.compile(r"~[a-z]{4,40}~")


def long_format(columns: Sequence[str], separator: str) -> str:
    """The argument of `squeue -O` and `sinfo -O`. Without a width a column is not cut (seen in 22.05.8; the parser in
    `src/squeue/opts.c` is the same in later versions). A column that a version lacks is left empty there."""
    _check(separator)
    return ",".join(f"{column}:{separator}" for column in columns)


def rows(text: str, columns: Sequence[str], separator: str) -> list[dict[str, str]]:
    """Rows as column → text. A row cut short (at the output limit) is dropped.

    The separator is made anew for each question, and is no secret: it stands among the arguments of the command that
    asks, which everybody can read, and a job's name can be changed before Slurm has been asked. Whoever does that
    writes all that follows his name: the rest of his row, and further rows. So columns that a user can write have to be
    the last ones, and of several rows of one job the first is Slurm's. That holds for the jobs of one user: an answer
    on several users' jobs has no such column at all."""
    _check(separator)
    pieces = text.split(separator)
    width = len(columns)
    found = []
    for start in range(0, len(pieces) - width, width):
        values = pieces[start : start + width]
        # The line break that ends the row before stands at the head of the first column.
        values[0] = values[0].lstrip("\r\n")
        found.append(dict(zip(columns, values, strict=True)))
    return found


def _check(separator: str) -> None:
    if not SEPARATOR_FORM.fullmatch(separator):
        raise ValueError(f"not a separator: {separator!r}")
