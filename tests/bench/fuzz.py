"""A million lines made to break the reader, other ones each time: no crash, bounded memory, time in proportion.

    make fuzz
    RUNBOOK_FUZZ_SEED=7 RUNBOOK_FUZZ_LINES=250000 make fuzz      the same lines again; fewer

One line in twenty is a splice: real messages and near misses cut anywhere, put together with others and with bytes of
any kind, behind launchers' labels. A quarter of the lines is read first, then all, each in a process of its own.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))
from tests.logs.test_logs_hostile import FRAMINGS, NEAR_MISSES, SAMPLES, measured  # noqa: E402 (found as above)

_PEAK_MIB = 150
_SPLICES = 0.05
_SLOWER = 2.0
"""Four times as many lines may take this many times four times as long, as other work disturbs the figures."""


def line(chance: random.Random) -> bytes:
    if chance.random() > _SPLICES:
        return b"%d tokens, %d ms" % (chance.getrandbits(30), chance.getrandbits(12))
    one, other = chance.choice(SAMPLES), chance.choice(NEAR_MISSES if chance.random() < 0.3 else SAMPLES)
    kind = chance.randrange(4)
    if kind == 0:
        text = one
    elif kind == 1:
        text = one[:chance.randrange(len(one) + 1)] + other[chance.randrange(len(other) + 1):]
    elif kind == 2:
        text = one[:chance.randrange(len(one) + 1)] + chance.randbytes(chance.randrange(40)) + other
    else:
        text = chance.randbytes(chance.randrange(200)) + chance.choice((b"", b"\r", b"\x1b[31m", b"\0" * 9)) + other
    return chance.choice(FRAMINGS) + text


def write(path: Path, lines: int, seed: int) -> int:
    """Make the log. Returns how many lines it really has: samples of several lines are more than one."""
    chance = random.Random(seed)
    ends = 0
    with path.open("wb") as file:
        for _ in range(lines):
            text = line(chance) + b"\n"
            ends += text.count(b"\n")
            file.write(text)
    return ends


def main() -> None:
    seed = int(os.environ.get("RUNBOOK_FUZZ_SEED", str(time.time_ns() % 1_000_000)))
    lines = int(os.environ.get("RUNBOOK_FUZZ_LINES", "1000000"))
    print(f"seed {seed} (RUNBOOK_FUZZ_SEED={seed} repeats this run)", flush=True)
    figures = []
    with tempfile.TemporaryDirectory(prefix="runbook-fuzz-") as name:
        for number in (lines // 4, lines):
            path = Path(name) / "train.log"
            written = write(path, number, seed)
            seconds, peak_mib = measured(path)
            figures.append((seconds, peak_mib))
            print(
                f"{written:9} lines, {path.stat().st_size / 1e6:6.1f} MB: {seconds:7.2f} s of the processor, "
                f"peak {peak_mib:.0f} MiB", flush=True,
            )
    (quarter_s, _), (whole_s, peak_mib) = figures
    wrong = []
    if peak_mib >= _PEAK_MIB:
        wrong.append(f"peak of {peak_mib:.0f} MiB, not under {_PEAK_MIB}")
    if whole_s > 4 * _SLOWER * quarter_s:
        wrong.append(f"{whole_s / quarter_s:.1f} times the time for 4 times the lines")
    print("; ".join(wrong) or f"as it should be: {whole_s / quarter_s:.1f} times the time for 4 times the lines")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    try:
        main()
    except subprocess.SubprocessError as error:
        raise SystemExit(str(error)) from error
