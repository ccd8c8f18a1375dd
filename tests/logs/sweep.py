"""How the reader does on messages as their sources have them, each alone: the share of right answers by project.

    python -m tests.logs.sweep FILE        # one JSON record a line: id, project, release_or_commit, path, line, form,
    python -m tests.logs.sweep FILE -v     # filled, truth, figures, why; -v: every message that is read wrong

`form` is the format string of the source, `filled` what a job's log holds of it, `truth` what a careful reader says of
a log with nothing else in it; "none" is a message that tells of no failure by itself.
"""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from runbook.diagnosis import diagnose
from runbook.locations import data_folder
from runbook.logs.reader import LogReader
from runbook.logs.signatures import Signatures, load_signatures
from tests.logs.labels import RIGHT, same_figure

_GPU = frozenset().union(*(RIGHT[name] for name in ("gpu_oom", "gpu_fragmentation", "gpu_cotenant")))
TRUTH = {
    **RIGHT, "gpu_oom": _GPU, "not_oom": {"not_oom", "hardware_fault", "undetermined"},
    "none": {"not_oom", "hardware_fault", "undetermined"},
}
"""A message alone cannot tell a shortage from fragmentation; one that is no shortage may leave open what it is."""


@dataclass(frozen=True)
class Message:
    """A message of a source and what the reader makes of it alone."""

    record: dict[str, Any]
    kind: str
    signature: str
    figures: tuple[bool, ...]

    @property
    def is_right(self) -> bool:
        return self.kind in TRUTH[self.record["truth"]]


@cache
def _signatures() -> Signatures:
    return load_signatures(data_folder("playbooks") / "oom" / "signatures")


@cache
def _reader() -> LogReader:
    return LogReader(_signatures())


def read(record: dict[str, Any]) -> Message:
    """Read a message as a log of its own."""
    content = (record["filled"] + "\n").encode()
    story = _reader().read([("job.out", io.BytesIO(content), len(content))])
    best = diagnose(story, job=None, meanings=_signatures().meanings).best
    root = story.root_cause
    figures = tuple(
        root is not None and same_figure(name, value, lambda field: getattr(root.fields, field))
        for name, value in (record.get("figures") or {}).items() if value is not None
    ) if record["truth"] not in ("none", "not_oom", "disk_full") else ()
    return Message(record, best.kind, root.signature if root is not None else "", figures)


def show(messages: Iterable[Message], loud: bool) -> float:
    """Print the shares; the share of all."""
    every = list(messages)
    right, of = Counter[str](), Counter[str]()
    for one in every:
        of[one.record["project"]] += 1
        right[one.record["project"]] += one.is_right
    for project in sorted(of, key=str.lower):
        print(f"  {project:<32} {right[project]:>4} of {of[project]:>4}   {right[project] / of[project]:6.1%}")
    figures = [each for one in every for each in one.figures]
    for name, good, all_ in (
        ("all messages", right.total(), of.total()), ("their figures", sum(figures), len(figures)),
    ):
        print(f"  {name:<32} {good:>4} of {all_:>4}   {good / max(1, all_):6.1%}")
    for one in every if loud else ():
        if not one.is_right:
            print(f"  {one.record['id']}: {one.kind} ({one.signature}), and it is {one.record['truth']}")
            print("    " + one.record["filled"].replace("\n", "\n    "))
    return right.total() / max(1, of.total())


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "-v"]
    if len(words) != 1:
        print(__doc__)
        return 2
    records = [json.loads(line) for line in Path(words[0]).read_text().splitlines() if line.strip()]
    show(map(read, records), "-v" in sys.argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
