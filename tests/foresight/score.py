"""How well peaks are foreseen: published measurements, each predicted by formulas alone and from another row of its
family.

    python tests/foresight/score.py [FILE.jsonl…] [--each]      # `make foresight`; default: rows_*.jsonl beside this

A figure is compared on the basis on which it was measured (allocated, reserved, nvidia-smi). A verdict is asked for the
card of the row; and, as few rows lie at the edge of their card, for made-up cards from 0.8 to 1.25 times the measured
peak, where "fits" is wrong below 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from runbook.foresight import MemoryDocument, forecast
from runbook.foresight.training_run import Anchor, Forecast, Interval
from runbook.model.remedy import Fit, MemoryFigure
from tests.foresight.published import Row, memory_document, read_rows

ROWS = tuple(Path(__file__).with_name(f"rows_{half}.jsonl") for half in ("dev", "blind", "third"))
_ANCHORS = 5
_CARDS = (0.8, 0.9, 0.95, 1.05, 1.1, 1.25)
NOTHING = "nothing that is published"
_SIZES = frozenset({"micro", "accumulation", "sequence", "world", "shards", "context"})
_NO_CHANGE = frozenset({"system"})


@dataclass(frozen=True, slots=True)
class Scored:
    """One prediction beside what was measured."""

    row: Row
    anchor: Row | None
    told: Forecast
    interval: Interval | None

    @property
    def error(self) -> float | None:
        """As a share of the measured peak; None where nothing was predicted, or the row ran out of memory."""
        if self.interval is None or self.row.measured_bytes is None:
            return None
        return self.interval.middle / self.row.measured_bytes - 1

    @property
    def changed(self) -> str:
        """Which fields differ from the anchor's."""
        if self.anchor is None:
            return ""
        names = [item.name for item in fields(self.row.run) if item.name not in _NO_CHANGE
                 and getattr(self.row.run, item.name) != getattr(self.anchor.run, item.name)]
        return "+".join(names) or NOTHING

    @property
    def right(self) -> bool | None:
        """Whether the verdict on the row's own card is right; None: it was none."""
        if self.told.verdict is Fit.CANNOT_SAY:
            return None
        return (self.told.verdict is Fit.FITS) == (self.row.measured_bytes is not None)

    def made_up(self) -> Iterable[tuple[Fit, bool]]:
        """The verdict on each made-up card, and whether the row fits it."""
        if self.interval is None or self.row.measured_bytes is None:
            return
        for share in _CARDS:
            card = share * self.row.measured_bytes
            verdict = Fit.CANNOT_SAY
            if self.interval.high <= card:
                verdict = Fit.FITS
            elif self.interval.low > card:
                verdict = Fit.DOES_NOT_FIT
            yield verdict, share > 1


def scored(rows: Sequence[Row], document: MemoryDocument) -> tuple[list[Scored], list[Scored]]:
    """By formulas alone, and anchored on other rows of the family that were measured, at most five for each row: in the
    order of a hash, so that large families do not outweigh the others."""
    alone = [_scored(row, None, document) for row in rows]
    families = defaultdict(list)
    for row in rows:
        families[row.family].append(row)
    pairs = []
    for row in rows:
        others = [one for one in families[row.family] if one is not row and one.measured_bytes is not None]
        others.sort(key=lambda one: hashlib.sha1(f"{row.id} {one.id}".encode()).hexdigest())
        pairs += [_scored(row, anchor, document) for anchor in others[:_ANCHORS]]
    return alone, pairs


def _scored(row: Row, anchor: Row | None, document: MemoryDocument) -> Scored:
    anchors = () if anchor is None or anchor.measured_bytes is None else (
        Anchor(anchor.run, MemoryFigure(anchor.measured_bytes, anchor.basis, source=anchor.id)),)
    told = forecast(row.run, document, anchors, row.card_bytes)
    return Scored(row, anchor, told, told.peaks.get(row.basis))


def lines_of(title: str, items: Sequence[Scored]) -> list[str]:
    """One block of the table."""
    errors = [abs(item.error) for item in items if item.error is not None]
    verdicts = Counter(_word(item) for item in items if item.row.card_bytes is not None)
    made_up = [each for item in items for each in item.made_up()]
    inside = [item for item in items if item.error is not None and item.interval is not None
              and item.row.measured_bytes is not None
              and item.interval.low <= item.row.measured_bytes <= item.interval.high]
    if not items:
        return []
    head = f"{title:42} {len(items):5} predicted {len(errors):5}"
    if errors:
        head += (f"  median {_percent(statistics.median(errors))}"
                 f"  within 5 % {_share(sum(each <= 0.05 for each in errors), len(errors))}"
                 f"  10 % {_share(sum(each <= 0.10 for each in errors), len(errors))}"
                 f"  inside the interval {_share(len(inside), len(errors))}")
    on_card = ", ".join(f"{name} {count}" for name, count in sorted(verdicts.items()))
    fits = [truth for verdict, truth in made_up if verdict is Fit.FITS]
    nots = [truth for verdict, truth in made_up if verdict is Fit.DOES_NOT_FIT]
    silent = sum(verdict is Fit.CANNOT_SAY for verdict, _ in made_up)
    tail = (f"    own card: {on_card or 'not known'}; made-up cards: wrong fits {fits.count(False)} of {len(fits)}, "
            f"wrong does-not-fit {nots.count(True)} of {len(nots)}, cannot say {_share(silent, len(made_up))}")
    return [head, tail]


def beside(python: str, alone: Sequence[Scored], pairs: Sequence[Scored]) -> list[str]:
    """Other programs on the rows for which they have an answer, and this one on the same rows."""
    asked = [item for item in alone if item.error is not None]
    text = "".join(
        json.dumps({"run": asdict(item.told.run), "card_bytes": item.row.card_bytes}) + "\n" for item in asked)
    done = subprocess.run(
        (python, str(Path(__file__).with_name("peers.py"))), input=text, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    lines = []
    for name in answers[0] if answers else ():
        theirs, ours = [], []
        refused: Counter[str] = Counter()
        for item, answer in zip(asked, answers, strict=True):
            if isinstance(answer[name], int) and item.row.measured_bytes and item.error is not None:
                theirs.append(abs(answer[name] / item.row.measured_bytes - 1))
                ours.append(item.row.id)
            elif isinstance(answer[name], str):
                refused[answer[name]] += 1
        same = frozenset(ours)
        for title, errors in (
            (name, theirs), ("  formulas alone, same rows", _errors(alone, same)),
            ("  anchored, same rows", _errors(pairs, same)),
        ):
            if errors:
                lines.append(f"{title:42} {len(errors):5}  median {_percent(statistics.median(errors))}  within 5 % "
                             f"{_share(sum(each <= 0.05 for each in errors), len(errors))}")
        lines += [f"    refused {count}: {why}" for why, count in refused.most_common(3)]
    return lines


def _errors(items: Sequence[Scored], rows: frozenset[str]) -> list[float]:
    return [abs(item.error) for item in items if item.error is not None and item.row.id in rows]


def _word(item: Scored) -> str:
    if item.right is None:
        return "cannot say"
    said = "fits" if item.told.verdict is Fit.FITS else "does not fit"
    return said if item.right else f"WRONG {said}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.0f} %" if of else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=list(ROWS))
    parser.add_argument("--peers", metavar="PYTHON", help="also other programs, installed in another environment")
    parser.add_argument("--each", action="store_true", help="also every prediction by formulas alone, and every pair")
    chosen = parser.parse_args()
    document = memory_document()
    rows = [row for file in chosen.files for row in read_rows(file, document)]
    alone, pairs = scored(rows, document)
    told = [item for item in pairs if item.changed != NOTHING]
    sizes = [item for item in told if set(item.changed.split("+")) <= _SIZES]
    same = [item for item in pairs if item.anchor is not None and item.anchor.run.tensor == item.row.run.tensor]
    print(f"{len(rows)} rows of {len({row.family for row in rows})} families and {len({row.source for row in rows})} "
          f"sources, {sum(row.measured_bytes is None for row in rows)} of which ran out of memory")
    blocks = [("formulas alone", alone), ("anchored", pairs), ("anchored, the change published", told),
              ("anchored, batch, length or ranks changed", sizes),
              ("anchored, tensor parallelism the same", same)]
    for source in sorted({row.source for row in rows}):
        blocks.append((f"alone: {source}", [item for item in alone if item.row.source == source]))
        blocks.append((f"anchored: {source}", [item for item in pairs if item.row.source == source]))
    for title, items in blocks:
        for line in lines_of(title, items):
            print(line)
    missing = Counter(name for item in alone for name in item.told.missing)
    print("not published, so not predicted: " + ", ".join(f"{name} {count}" for name, count in missing.most_common()))
    if chosen.peers:
        for line in beside(chosen.peers, alone, pairs):
            print(line)
    if chosen.each:
        for item in (*alone, *pairs):
            print(_one(item))
    return 0


def _one(item: Scored) -> str:
    row, gib = item.row, 2.0**30
    seen = "ran out" if row.measured_bytes is None else f"{row.measured_bytes / gib:.2f}"
    told = "missing " + ",".join(item.told.missing) if item.interval is None else (
        f"{item.interval.middle / gib:7.2f} [{item.interval.low / gib:.2f}, {item.interval.high / gib:.2f}]")
    error = f"{100 * item.error:+.1f} %" if item.error is not None else ""
    by = f" from {item.anchor.id} ({item.changed})" if item.anchor is not None else ""
    return f"{row.id:24} {seen:>8} {told:34} {error:>9} {_word(item):18}{by}"


if __name__ == "__main__":
    sys.exit(main())
