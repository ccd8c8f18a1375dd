"""How often the reader and the diagnosis are right on the corpus: `make accuracy`.

Captured (and simulated) cases and written ones are counted apart: written ones come from the same reading of the
sources as the signatures, so that only the captured ones are independent of it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.kinds import KINDS
from tests.logs import corpus
from tests.logs.corpus import NOT_MEMORY, UNSET, Case, Told

HIGH_CONFIDENCE = 0.7
Pair = tuple[Case, Told]


def main() -> int:
    pairs = [(case, corpus.told(case)) for case in corpus.cases()]
    for name in ("captured", "simulated", "written"):
        group(name, [pair for pair in pairs if pair[0].evidence == name])
    print("\nall cases")
    figures(pairs)
    confidence(pairs)
    missed = [(case, corpus.wrong(case, told)) for case, told in pairs]
    missed = [(case, wrong) for case, wrong in missed if wrong]
    for case, wrong in missed:
        known = f" (known: {case.known_wrong})" if case.known_wrong else ""
        print(f"  wrong: {case.id}: {'; '.join(wrong[:3])}{known}")
    missed_ones = {case.id for case, _ in missed}
    stale = [case.id for case, _ in pairs if case.known_wrong and case.id not in missed_ones]
    for name in stale:
        print(f"  right, though marked as wrong: {name}")
    return 1 if stale or any(not case.known_wrong for case, _ in missed) else 0


def group(name: str, pairs: Sequence[Pair]) -> None:
    """Confusion matrix and figures of one sort of case."""
    print(f"\n{name}: {len(pairs)} cases")
    if not pairs:
        return
    counts = Counter((case.expect.kind, told.diagnosis.best.kind) for case, told in pairs)
    kinds = [kind for kind in KINDS.values() if any(kind in pair for pair in counts)]
    short = {kind: f"{index}" for index, kind in enumerate(kinds, start=1)}
    print(f"  {'expected, down; found, across':<34}" + "".join(f"{short[kind]:>4}" for kind in kinds))
    for kind in kinds:
        cells = "".join(f"{counts[kind, other] or '·':>4}" for other in kinds)
        print(f"  {short[kind]:>3} {kind:<30}{cells}")
    figures(pairs)


def figures(pairs: Sequence[Pair]) -> None:
    """Shares of right answers, each over the cases that state the thing."""
    rows: list[tuple[str, list[bool]]] = [
        ("diagnosis", [told.diagnosis.best.kind == case.expect.kind for case, told in pairs]),
        ("what kind of its kind", [told.diagnosis.best.detail is case.expect.detail for case, told in pairs
                                   if case.expect.detail is not None]),
        ("first-failing rank, several ranks", [_root(told, "rank") == case.expect.rank for case, told in pairs
                                              if case.expect.rank != UNSET and case.multi_rank]),
        ("node", [_root(told, "node") == case.expect.node for case, told in pairs if case.expect.node != ""]),
        ("phase", [_root(told, "phase") == case.expect.phase for case, told in pairs
                   if case.expect.phase is not None]),
        ("figures of the message", [corpus.field_value(told.story, name) == value for case, told in pairs
                                    for name, value in case.expect.fields.items()]),
        ("last step", [told.story.progress.last_step == case.expect.last_step for case, told in pairs
                       if case.expect.last_step != UNSET]),
    ]
    for name, right in rows:
        if right:
            print(f"  {name:<34} {sum(right):4d} of {len(right):4d}   {sum(right) / len(right):6.1%}")
    others = [(case, told) for case, told in pairs if case.expect.kind in NOT_MEMORY]
    called = [case.id for case, told in others
              if told.diagnosis.best.kind not in NOT_MEMORY and told.diagnosis.best.confidence >= HIGH_CONFIDENCE]
    print(f"  no memory failure: {len(others)} cases, called one with confidence {HIGH_CONFIDENCE} or more: "
          f"{len(called)}{' (' + ', '.join(called) + ')' if called else ''}")


def confidence(pairs: Sequence[Pair]) -> None:
    """Whether a confidence means something: the share of right diagnoses at each level of it."""
    print("  confidence said, and share right:")
    for low, high in ((0.0, 0.5), (0.5, 0.7), (0.7, 0.85), (0.85, 0.95), (0.95, 1.01)):
        inside = [told.diagnosis.best.kind == case.expect.kind for case, told in pairs
                  if low <= told.diagnosis.best.confidence < high]
        if inside:
            print(f"    {low:.2f} to {min(high, 1.0):.2f}: {sum(inside):4d} of {len(inside):4d}   "
                  f"{sum(inside) / len(inside):6.1%}")


def _root(told: Told, name: str) -> object:
    return getattr(told.story.root_cause, name) if told.story.root_cause is not None else None


if __name__ == "__main__":
    sys.exit(main())
