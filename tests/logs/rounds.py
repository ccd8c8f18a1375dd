"""How the reader does on logs that its authors had not seen: one score for each round under `rounds/`.

    python -m tests.logs.rounds            # every round
    python -m tests.logs.rounds 2026-11-a  # one

A round's first score stands in README.md. A later one says what was mended since, and no longer how unseen logs fare.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.logs.labels import FIGURES, RIGHT, same_figure

ROUNDS = Path(__file__).parent / "rounds"
REPOSITORY = Path(__file__).resolve().parents[2]
_NOT_MEMORY = frozenset({"not_oom", "undetermined", "hardware_fault"})
_HIGH, _FIRM = 0.7, 0.8


@dataclass(frozen=True)
class Answer:
    """A label, and what the tool said of its log."""

    label: dict[str, Any]
    said: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.said["diagnosis"]["kind"])

    @property
    def confidence(self) -> float:
        return float(self.said["diagnosis"]["confidence"])

    @property
    def is_right(self) -> bool:
        return self.kind in RIGHT[self.label["kind"]]

    @property
    def rank(self) -> int | None:
        """Of the first failure by its own line; where no line tells it, of the process that a launcher reports to have
        ended first; else the one that is suspected, by who waited for whom and whose end is told first."""
        return (self.said["first_failed"] or {}).get("rank")

    @property
    def rank_of_the_cause(self) -> int | None:
        """Of the first failure whose own line stands in the log."""
        return (self.said.get("root_cause") or {}).get("rank")

    @property
    def rank_or_suspect(self) -> int | None:
        """Where no line tells the first failure, the rank that the answer says to look at first."""
        if self.said.get("root_cause"):
            return self.rank
        return next((one["rank"] for one in self.said.get("candidates", ()) if one["rank"] is not None), None)

    def figures(self) -> list[bool]:
        read = self.said.get("fields") or {}
        return [
            same_figure(name, value, read.get) for name, value in self.label["figures"].items()
            if name in FIGURES and value is not None
        ]


def main() -> int:
    chosen = sys.argv[1:] or sorted(path.name for path in ROUNDS.iterdir())
    for name in chosen:
        labels = [json.loads(line) for line in (ROUNDS / name / "labels.jsonl").read_text().splitlines()]
        show(name, [Answer(label, told(ROUNDS / name / label["file"])) for label in labels])
    return 0


def told(log: Path) -> dict[str, Any]:
    """`runbook diagnose --json` of one log."""
    words = [sys.executable, "-m", "runbook", "diagnose", str(log), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def show(name: str, answers: list[Answer]) -> None:
    ranked = [one for one in answers if one.label["first_rank"] is not None]
    figures = [right for one in answers for right in one.figures()]
    others = [one for one in answers if one.label["kind"] in ("not_oom", "disk_full", "undetermined")]
    claimed = [one for one in others if one.kind not in _NOT_MEMORY and one.confidence >= _HIGH]
    firm = [one for one in answers if one.confidence >= _FIRM]
    print(f"{name}: {len(answers)} logs")
    for what, right, of in (
        ("kind", sum(one.is_right for one in answers), len(answers)),
        ("first failing rank", sum(one.rank == one.label["first_rank"] for one in ranked), len(ranked)),
        ("of these by the failure's own line",
         sum(one.rank_of_the_cause == one.label["first_rank"] for one in ranked), len(ranked)),
        ("of these as a suspicion alone", sum(
            one.rank == one.label["first_rank"] and (one.said["first_failed"] or {}).get("told_by") == "suspicion"
            for one in ranked
        ), len(ranked)),
        ("the same, or the first to look at", sum(one.rank_or_suspect == one.label["first_rank"] for one in ranked),
         len(ranked)),
        ("figures", sum(figures), len(figures)),
        ("no memory failure, and called one (>= 0.7)", len(claimed), len(others)),
        ("right, of those said with >= 0.8", sum(one.is_right for one in firm), len(firm)),
    ):
        print(f"  {what:<44} {right:>4} of {of}")
    for one in answers:
        if not one.is_right:
            print(f"  {one.label['file']}: {one.kind} ({one.confidence:.2f}), and it is {one.label['kind']}")


if __name__ == "__main__":
    sys.exit(main())
