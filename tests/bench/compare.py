"""Two commits measured in one run: the commit named BEFORE, in a worktree and a virtual environment of its own, and the
tree that this file is in. They take turns round by round, so that what else the machine does meets both.

    make bench BEFORE=eb5fbf5
    RUNBOOK_BENCH_ONLY=start make bench BEFORE=…      one of start, logs, templates, service
    RUNBOOK_BENCH_SIZE=middle make bench BEFORE=…     2 GB of log instead of 10; small: 0.4 GB and 1,000 incidents

A row has the medians of both and after/before: wall time, and the processor's where a whole process is measured. Parts
that ask inside a process (templates, service) are each commit's own `tests/bench/bench.py`, whose rows are paired by
their place: interfaces and wordings differ between commits, what is measured does not.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))
from tests.bench.bench_logs import SIZES, Contender, Size  # noqa: E402 (found through the line above)
from tests.bench.bench_templates import script  # noqa: E402
from tests.bench.log_generator import a_file_a_rank, combined  # noqa: E402

_ROUNDS = 3
_COMMANDS = (
    "oom --log small.log --template job.sbatch --output out",
    "--help", "oom --help", "approve --help", "serve --help", "diagnose --help", "patch --help", "node --help",
    "incidents", "history", "diagnose small.log", "template show job.sbatch", "levers", "playbooks check",
)
"""The first leaves an incident for those after it."""
_ROW = re.compile(r"^ *(\S.*?) {2,}([\d.]+) (ms|s) +\(")
"""A row of `bench.py`: name, median, unit, and in brackets the smallest and largest."""


@dataclass(frozen=True)
class Side:
    """One commit, with an environment whose caches and state are its own."""

    name: str
    root: Path
    home: Path

    @property
    def python(self) -> str:
        return str(self.root / ".venv" / "bin" / "python")

    @property
    def environment(self) -> Mapping[str, str]:
        homes = {name: str(self.home / name) for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")}
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "PYTHONPATH": str(self.root), "HOME": str(self.home), **homes}


def take_turns(
    name: str, sides: Sequence[Side], words: Sequence[str], folder: Path, rounds: int, expects: str = ""
) -> None:
    """A command of both sides, one round after the other; the first warms caches. Both have to answer as expected."""
    contenders = [
        Contender(side.name, (side.python, "-m", "runbook", *words), may_exit=(0, 4), expects=expects, folder=folder)
        for side in sides
    ]
    for number in range(rounds + 1):
        for side, one in zip(sides, contenders, strict=True):
            one.run(folder / "answer", side.environment, keep=number > 0)
    _show(name, contenders)


def _show(name: str, contenders: Sequence[Contender]) -> None:
    wall = [statistics.median(one.seconds) for one in contenders]
    processor = [statistics.median(one.processor_s) for one in contenders]
    print(f"{name:<56} {_pair(wall, 's')}   processor {_pair(processor, 's')}", flush=True)


def _pair(before_after: Sequence[float], unit: str) -> str:
    before, after = before_after
    ratio = after / before if before else float("nan")
    return f"{before:9.3f} {after:9.3f} {unit:<2} {ratio:5.2f}"


def start_up(sides: Sequence[Side], folder: Path) -> None:
    """From the start of a process to its end."""
    combined(folder / "small.log", 1_000_000, ranks=64)
    (folder / "job.sbatch").write_text(script(60), encoding="utf-8")
    for command in _COMMANDS:
        take_turns(f"runbook {command.partition(' --output')[0]}", sides, command.split(), folder, _size().runs)


def logs(sides: Sequence[Side], folder: Path) -> None:
    """Whole scans of one log and of a file a rank, and many files from their ends."""
    size = _size()
    log, ranks = folder / "combined.log", folder / "ranks"
    full = ("diagnose", "--full", "--threads", "2")
    failed = combined(log, size.log_bytes)
    gigabytes = f"{log.stat().st_size / 1e9:.1f} GB"
    take_turns(f"diagnose --full, one log of {gigabytes}", sides, (*full, str(log)), folder, size.runs, _found(failed))
    log.unlink()
    ranks.mkdir()
    a_file_a_rank(ranks, size.files, size.file_bytes)
    for name, words in ((f"diagnose --full, {size.files} files", full), ("diagnose, the same, ends first", full[:1])):
        take_turns(name, sides, (*words, str(ranks)), folder, size.runs, _found(size.files // 3))


def _size() -> Size:
    return SIZES[os.environ.get("RUNBOOK_BENCH_SIZE", "full")]


def _found(rank: int) -> str:
    return rf"first failure rank {rank}\b"


def own_bench(part: str, sides: Sequence[Side], folder: Path) -> None:
    """A part of each commit's `bench.py`, whose rows are read from what it prints."""
    runs: list[list[list[tuple[str, float, str]]]] = [[] for _ in sides]
    contenders = [Contender(side.name, (side.python, "tests/bench/bench.py"), folder=side.root) for side in sides]
    for _ in range(_ROUNDS):
        for side, one, rows in zip(sides, contenders, runs, strict=True):
            answer = folder / "answer"
            one.run(answer, {**side.environment, "RUNBOOK_BENCH_ONLY": part}, keep=True)
            found = map(_ROW.match, answer.read_text(encoding="utf-8").splitlines())
            rows.append([(row[1], float(row[2]), row[3]) for row in found if row])
    before, after = (list(zip(*rows, strict=True)) for rows in runs)
    if len(before) != len(after):
        raise RuntimeError(f"{part}: {len(before)} rows before, {len(after)} after: they cannot be paired")
    for old, new in zip(before, after, strict=True):
        name, _, unit = new[0]
        medians = [statistics.median(figure for _, figure, _ in rows) for rows in (old, new)]
        note = f"   before: {old[0][0]}" if old[0][0] != name else ""
        print(f"{name:<56} {_pair(medians, unit)}{note}")
    _show(f"all of {part}, with making what is asked", contenders)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worktree goes, too
    parts: dict[str, Callable[[Sequence[Side], Path], None]] = {
        "start": start_up, "logs": logs, "templates": partial(own_bench, "templates"),
        "service": partial(own_bench, "service"),
    }
    chosen = os.environ.get("RUNBOOK_BENCH_ONLY")
    if len(sys.argv) != 2 or chosen not in (None, *parts) or os.environ.get("RUNBOOK_BENCH_SIZE", "full") not in SIZES:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory(prefix="runbook-bench-", dir=os.environ.get("RUNBOOK_BENCH_FOLDER")) as name:
        folder = Path(name)
        before = folder / "before"
        _run("git", "worktree", "add", "--quiet", "--detach", str(before), sys.argv[1])
        try:
            _run("make", "-s", "-C", str(before), "setup")
            sides = [Side("before", before, folder / "home-before"), Side("after", REPOSITORY, folder / "home-after")]
            for side in sides:
                side.home.mkdir()
            print(f"{'median of both, after/before':<56} {'before':>9} {'after':>9}    ratio")
            for part, measure in parts.items():
                if chosen in (None, part):
                    work = folder / part
                    work.mkdir()
                    measure(sides, work)
                    shutil.rmtree(work)
        finally:
            _run("git", "worktree", "remove", "--force", str(before))


def _run(*argv: str) -> None:
    subprocess.run(argv, cwd=REPOSITORY, check=True)


if __name__ == "__main__":
    main()
