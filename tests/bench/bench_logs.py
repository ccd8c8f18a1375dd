"""Reading logs, measured as processes: one combined log, a file a rank, a small log from process start to answer.

ripgrep gets the same literals (`rg -F -f`) on the same files: it finds lines; `runbook diagnose` finds lines, reads
what they say, and judges. The two take turns, so that what else the machine does meets both; a first round of each is
left out. ripgrep searches one file on one thread and has no way to use two; of a folder it gets two threads as well. It
gets only the literals of failures, the reader looks for those of training steps too.

    RUNBOOK_BENCH_SIZE=small make bench           two or three minutes, for trying out; middle: 2 GB instead of 10
    RUNBOOK_BENCH_ONLY=logs make bench            nothing but this file's figures
    RUNBOOK_BENCH_FOLDER=/scratch make bench      where the logs are made (10 GB at a time; default: the temp folder)
    RUNBOOK_BENCH_RG=/usr/bin/rg make bench       another ripgrep than the one beside this Python
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.log_generator import a_file_a_rank, combined

REPOSITORY = Path(__file__).resolve().parents[2]
_SPARE_BYTES = 2_000_000_000
_PEAK_AIM_MB = 150
_FOUND = 0
"""Exit code of `runbook diagnose` where a cause was found."""

_LITERALS = """
from runbook.logs.signatures import load_signatures
from runbook.locations import data_folder
signatures = load_signatures(data_folder("playbooks") / "oom" / "signatures")
print("\\n".join(sorted({literal for one in signatures.events for literal in one.literals})))
"""

_LAUNCHER = """
import os, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
actions = [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
started = time.perf_counter()
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ, file_actions=actions)
status, used = os.wait4(child, 0)[1:]
print(time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss, os.waitstatus_to_exitcode(status))
"""
"""A small process between this one and what is measured: at its start a process has its parent's largest memory."""


@dataclass(frozen=True)
class Size:
    """What is measured on how much."""

    log_bytes: int
    files: int
    file_bytes: int
    runs: int


SIZES = {
    "full": Size(10_000_000_000, 16_384, 500_000, 5),
    "middle": Size(2_000_000_000, 2_048, 500_000, 3),
    "small": Size(400_000_000, 512, 500_000, 3),
}


@dataclass
class Contender:
    """One command, and how its runs went."""

    name: str
    argv: tuple[str, ...]
    aim: str = ""
    may_exit: tuple[int, ...] = (0,)
    mapped: bool = False
    """Its memory is the file's own pages."""
    expects: str = ""
    """A pattern: where it is not found in the answer, that is wrong and its time worth nothing."""
    folder: Path = REPOSITORY
    """Where it is run."""
    seconds: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)
    peak_mb: float = 0.0

    def run(self, out: Path, environment: Mapping[str, str], keep: bool) -> None:
        """One process, its answer into a file."""
        launched = (sys.executable, "-I", "-S", "-c", _LAUNCHER, str(out), *self.argv)
        done = subprocess.run(launched, capture_output=True, text=True, check=True, cwd=self.folder, env=environment)
        seconds, processor_s, peak_kib, code = (float(word) for word in done.stdout.split())
        if int(code) not in self.may_exit:
            raise RuntimeError(f"{self.name}: exit code {int(code)}")
        answer = out.read_text(errors="replace") if self.expects else ""
        if not re.search(self.expects, answer):
            raise RuntimeError(f"{self.name}: {self.expects!r} is not in its answer: {answer[:400]}")
        self.peak_mb = max(self.peak_mb, peak_kib * 1024 / 1e6)
        if keep:
            self.seconds.append(seconds)
            self.processor_s.append(processor_s)


class Bench:
    """The folder, the two programs, and the turns they take."""

    def __init__(self, folder: Path, size: Size) -> None:
        self.size = size
        self.folder = folder
        self.rg = ripgrep()
        self._environment = {
            name: value for name, value in os.environ.items()
            if name not in ("PYTHONDONTWRITEBYTECODE", "RIPGREP_CONFIG_PATH")
        }
        self.patterns = folder / "literals"
        done = subprocess.run(
            (sys.executable, "-c", _LITERALS), capture_output=True, text=True, check=True, cwd=REPOSITORY,
            env=self._environment,
        )
        self.patterns.write_text(done.stdout)
        self.literals = len(done.stdout.splitlines())

    def ripgreps(self, name: str, *options: str, mapped: bool = False) -> Contender:
        assert self.rg is not None
        argv = (self.rg, "--no-config", "-F", "-f", str(self.patterns), *options)
        return Contender(name, argv, may_exit=(0, 1), mapped=mapped)

    def ours(self, name: str, path: Path, *options: str, aim: str = "", rank: int) -> Contender:
        argv = (sys.executable, "-m", "runbook", "diagnose", *options, str(path))
        return Contender(name, argv, aim, may_exit=(_FOUND,), expects=rf"first failure rank {rank}\b")

    def take_turns(self, contenders: Sequence[Contender], runs: int) -> None:
        """One round after the other; the first warms the cache."""
        for number in range(runs + 1):
            for one in contenders:
                one.run(self.folder / "answer", self._environment, keep=number > 0)

    def show(
        self, contenders: Sequence[Contender], size_bytes: int, against: Sequence[Contender] = (),
    ) -> None:
        """A row each, and where it is ours the ratios to ripgrep's runs of the same rounds."""
        for one in contenders:
            middle, low, high = statistics.median(one.seconds), min(one.seconds), max(one.seconds)
            peak = "file's own pages" if one.mapped else f"peak {one.peak_mb:.0f} MB"
            print(
                f"  {one.name:<38} {middle:8.3f} s   ({low:.3f} to {high:.3f}, {len(one.seconds)} runs)   "
                f"{size_bytes / middle / 1e9:6.2f} GB/s   "
                f"processor {statistics.median(one.processor_s):6.2f} s   {peak}",
                flush=True,
            )
            if one in against or not one.aim:
                continue
            for other in against:
                ratios = [theirs / own for theirs, own in zip(other.seconds, one.seconds, strict=True)]
                print(
                    f"      {statistics.median(ratios):6.2f} times as fast as {other.name} "
                    f"({min(ratios):.2f} to {max(ratios):.2f})"
                )
            print(f"      aim: {one.aim}, peak under {_PEAK_AIM_MB} MB", flush=True)


def ripgrep() -> str | None:
    """The ripgrep to compare with."""
    named = os.environ.get("RUNBOOK_BENCH_RG")
    beside = Path(sys.executable).parent / "rg"
    return named or (str(beside) if beside.exists() else shutil.which("rg"))


def cached(paths: Sequence[Path], probes: int = 400) -> str:
    """How much of some files is in the page cache, by reading bytes here and there without waiting for the disk."""
    here = asked = 0
    for path in paths[:: max(1, len(paths) // probes)]:
        with path.open("rb") as file:
            size = path.stat().st_size
            number = max(1, probes // len(paths))
            for at in range(number):
                asked += 1
                try:
                    here += os.preadv(file.fileno(), [bytearray(1)], size * at // number, os.RWF_NOWAIT)
                except BlockingIOError:
                    pass
                except OSError:
                    return "page cache: not known here"
    share = 100 * here // max(1, asked)
    return f"{share} % in the page cache" + (": NOT WARM, times are those of the disk" if share < 99 else "")


def logs() -> None:
    """All measurements of reading logs."""
    chosen = os.environ.get("RUNBOOK_BENCH_SIZE", "full")
    if chosen not in SIZES:
        raise SystemExit(f"RUNBOOK_BENCH_SIZE is one of {', '.join(SIZES)}")
    size = SIZES[chosen]
    with tempfile.TemporaryDirectory(prefix="runbook-bench-", dir=os.environ.get("RUNBOOK_BENCH_FOLDER")) as name:
        folder = Path(name)
        needed = max(size.log_bytes, size.files * size.file_bytes) + _SPARE_BYTES
        if shutil.disk_usage(folder).free < needed:
            print(f"reading logs: left out, {folder} has no room for {needed / 1e9:.0f} GB (RUNBOOK_BENCH_FOLDER)")
            return
        bench = Bench(folder, size)
        version = "no ripgrep found (RUNBOOK_BENCH_RG names one)"
        if bench.rg:
            done = subprocess.run((bench.rg, "--version"), capture_output=True, text=True, check=True)
            version = done.stdout.split("\n")[0]
        print(f"reading logs: {bench.literals} literals, engine {_engine()}, against {version}")
        _small_log(bench)
        _one_log(bench)
        _many_files(bench)


def _engine() -> str:
    from runbook.logs.search import LiteralSearch

    return LiteralSearch(("a literal",)).engine


def _said(what: str, paths: Sequence[Path], started: float) -> None:
    total = sum(path.stat().st_size for path in paths)
    print(
        f" {what}: {total / 1e9:.2f} GB, made in {time.monotonic() - started:.0f} s, {cached(paths)}, "
        f"load {os.getloadavg()[0]:.1f}", flush=True,
    )


def _one_log(bench: Bench) -> None:
    path = bench.folder / "combined.log"
    started = time.monotonic()
    failed = combined(path, bench.size.log_bytes)
    size = path.stat().st_size
    rivals = []
    if bench.rg:
        rivals = [
            bench.ripgreps("rg -F -N", "-N", str(path), mapped=True),
            bench.ripgreps("rg -F -n, with line numbers", "-n", str(path), mapped=True),
        ]
    full = bench.ours(
        "runbook diagnose --full --threads 2", path, "--full", "--threads", "2", aim="never slower than ripgrep",
        rank=failed,
    )
    contenders = [*rivals, full]
    bench.take_turns(contenders, bench.size.runs)
    _said("one combined log, a failure and what followed it", [path], started)
    bench.show(contenders, size, rivals)
    _see_cache([path])
    path.unlink()


def _many_files(bench: Bench) -> None:
    ranks = bench.folder / "ranks"
    ranks.mkdir()
    started = time.monotonic()
    a_file_a_rank(ranks, bench.size.files, bench.size.file_bytes)
    paths = sorted(ranks.iterdir())
    size = sum(path.stat().st_size for path in paths)
    rivals = []
    if bench.rg:
        rivals = [
            bench.ripgreps("rg -F -N -j 2", "-N", "-j", "2", str(ranks)),
            bench.ripgreps("rg -F -n -j 2, with line numbers", "-n", "-j", "2", str(ranks)),
        ]
    failed = bench.size.files // 3
    ends = bench.ours("runbook diagnose (ends first)", ranks, aim="at least 3 times as fast as ripgrep", rank=failed)
    full = bench.ours(
        "runbook diagnose --full --threads 2", ranks, "--full", "--threads", "2", aim="never slower than ripgrep",
        rank=failed,
    )
    contenders = [*rivals, ends, full]
    bench.take_turns(contenders, bench.size.runs)
    _said(f"{len(paths)} files, one a rank", paths, started)
    bench.show(contenders, size, rivals)
    _see_cache(paths)
    shutil.rmtree(ranks)


def _see_cache(paths: Sequence[Path]) -> None:
    print(f"      afterwards {cached(paths)}, load {os.getloadavg()[0]:.1f}", flush=True)


def _small_log(bench: Bench) -> None:
    path = bench.folder / "small.log"
    started = time.monotonic()
    failed = combined(path, 50_000_000, ranks=64)
    size = path.stat().st_size
    rivals = [Contender("python -c pass", (sys.executable, "-c", "pass"))]
    if bench.rg:
        rivals.append(bench.ripgreps("rg -F -n", "-n", str(path), mapped=True))
    ours = bench.ours("runbook diagnose", path, aim="under 0.2 s from process start to answer", rank=failed)
    bench.take_turns([*rivals, ours], 3 * bench.size.runs)
    _said("a small log", [path], started)
    bench.show([*rivals, ours], size, rivals)
    path.unlink()


if __name__ == "__main__":
    logs()
