"""Changes to a log that must not change what is said of it: another launcher's prefix, a collector's stamp, JSON
records, colours, carriage returns, a head or a tail less, other host names, other sizes.

    python -m tests.logs.unchanged    # how often kind and first rank stay, change by change

The cases were drawn by lot from those of the corpus that are read right (`DRAW`, by the lot's `SEED`); the draw stays
as it is, whatever is mended.
"""

from __future__ import annotations

import io
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from runbook.diagnosis import diagnose
from runbook.model.job import JobRecord
from runbook.model.log import LogStory
from runbook.model.units import NodeName
from tests.kinds import MEANINGS
from tests.logs import corpus
from tests.logs.corpus import Case

SEED, DRAWN_CASES = 20261123, 60
DRAW = Path(__file__).parent / "unchanged_draw.txt"
OWN_RANK = 5
"""Of a process that nothing in its log names."""
_ESC = "\x1b"
_HOOK = re.compile(r"\[rank(\d{1,4})\]:? ?(?=\S|$| )")
_LABEL = re.compile(r" {0,3}(\d{1,4}): ")
_RANKED = re.compile(r"(?i)rank|^ {0,3}\d{1,4}: |local_rank|\btasks? \d|pid=|<std|\[\w{1,12}\d\]:|process \d")
_SIZE = re.compile(r"\b(\d{1,4}\.\d\d) (GiB|MiB)\b")


@dataclass(frozen=True)
class Drawn:
    """A case of the draw: its files as text, and what is said of it as it stands."""

    case: Case
    texts: tuple[str, ...]
    kind: str
    rank: int | None
    line: str
    """The line of the first failure, to be found again after a change; "" where there is none."""

    @property
    def names_nobody(self) -> bool:
        """No line of it says which of several processes speaks."""
        return self.rank is None and not any(_RANKED.search(text) for text in self.texts) and self.case.job is None


Change = Callable[[Drawn], tuple[tuple[str, ...], int | None] | None]
"""The files' new text and the rank that is expected then; None where the change does not apply."""


def _lines(one: Drawn, change: Callable[[str], str]) -> tuple[tuple[str, ...], int | None]:
    return tuple("".join(f"{change(line)}\n" for line in text.splitlines()) for text in one.texts), one.rank


def _each(change: Callable[[str], str]) -> Change:
    return lambda one: _lines(one, change)


def _respelled(spelling: str) -> Change:
    """The prefixes of ranks in another spelling; a log that names nobody becomes that of one rank among others."""

    def change(one: Drawn) -> tuple[tuple[str, ...], int | None] | None:
        for form in (_HOOK, _LABEL):
            prefixed = sum(form.match(line) is not None for text in one.texts for line in text.splitlines())
            if prefixed >= 3 and one.rank is not None:
                return _lines(one, lambda line, form=form: form.sub(  # type: ignore[misc]
                    lambda found: spelling.format(rank=int(found[1])), line, count=1) if form.match(line) else line)
        if not one.names_nobody or not one.line:
            return None
        others = "".join(f"{spelling.format(rank=rank)}loading shard {part} of the data set\n"
                         for part in range(4) for rank in (2, OWN_RANK, 0, 7))
        texts, _ = _lines(one, lambda line: spelling.format(rank=OWN_RANK) + line)
        return (others + texts[0], *texts[1:]), OWN_RANK

    return change


def _around(before: int, behind: int) -> Change:
    """Only so many lines in front of the first failure, and behind it."""

    def change(one: Drawn) -> tuple[tuple[str, ...], int | None] | None:
        if len(one.texts) > 1 or not one.line:
            return None
        lines = one.texts[0].splitlines()
        if one.line not in lines or len(lines) < 12:
            return None
        at = lines.index(one.line)
        kept = lines[max(0, at - before):at + 1 + behind]
        return ("".join(f"{line}\n" for line in kept),), one.rank

    return change


def _record(line: str) -> str:
    return json.dumps({"timestamp": "2026-03-01T10:00:00Z", "stream": "stderr", "log": f"{line}\n"})


def _other_hosts(one: Drawn) -> tuple[tuple[str, ...], int | None] | None:
    nodes = {*(one.case.job.nodes if one.case.job else ()), *([one.case.expect.node] if one.case.expect.node else ())}
    if not nodes:
        return None
    texts = list(one.texts)
    for node in nodes:
        texts = [re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", renamed(node), text) for text in texts]
    return tuple(texts), one.rank


def renamed(node: str) -> str:
    return f"n{sum(node.encode()) % 900 + 100}-{re.sub(r'[^0-9]', '', node)[-4:] or 0}-hx"


def _other_sizes(one: Drawn) -> tuple[tuple[str, ...], int | None] | None:
    if not any(_SIZE.search(text) for text in one.texts):
        return None
    halved = [_SIZE.sub(lambda found: f"{float(found[1]) / 2:.2f} {found[2]}", text) for text in one.texts]
    return tuple(halved), one.rank


SPELLINGS = {
    "PyTorch's hook": "[rank{rank}]: ",
    "srun": "{rank:>2}: ",
    "[rank=5]": "[rank={rank}] ",
    "[Rank 5]": "[Rank {rank}] ",
    "[rank: 5]": "[rank: {rank}] ",
    "rank 5:": "rank {rank}: ",
    "rank5:": "rank{rank}: ",
    "Rank 5 |": "Rank {rank} | ",
    "mpirun": "[1,{rank}]<stderr>:",
    "prterun": "[1,{rank}]<stderr>: ",
    "(5/16)": "({rank}/16) ",
    "[5/16]": "[{rank}/16] ",
    "[R5]": "[R{rank}] ",
    "[r5]": "[r{rank}]: ",
    "rank5/16": "[rank{rank}/16] ",
    "RANK5": "RANK{rank} ",
    "<5>": "<{rank}>: ",
    "5 |": "{rank} | ",
    "[5]": "[{rank}]: ",
    "a logger's field": "[ERROR] [rank {rank}] ",
    "(rank 5)": "(rank {rank}) ",
    "(rank=5, pid=)": "(rank={rank}, pid=40{rank:02}) ",
    "Ray's actor": "(Trainer(rank={rank}) pid=40{rank:02}) ",
    "vLLM's worker": "(VllmWorker rank={rank} pid=40{rank:02}) ",
    "the rank as a key": "rank={rank} ",
    "[Process 5]": "[Process {rank}] ",
    "worker 5:": "worker {rank}: ",
    "[worker-5]": "[worker-{rank}] ",
    "kubectl": "[pod/train-worker-{rank}/pytorch] [rank{rank}]: ",
}
"""The rank's number in what a launcher, a hook or a logger puts in front of a line."""

CHANGES: Mapping[str, Change] = {
    **{f"prefix: {name}": _respelled(spelling) for name, spelling in SPELLINGS.items()},
    "a collector's stamp": _each(lambda line: f"2026-03-01T10:00:00.123456789Z {line}"),
    "a container's stamp and stream": _each(lambda line: f"2026-03-01T10:00:00.123456789Z stderr F {line}"),
    "a JSON record a line": _each(_record),
    "colours": _each(lambda line: f"{_ESC}[36m{line}{_ESC}[0m"),
    "CRLF": _each(lambda line: f"{line}\r"),
    "a bar and a carriage return": _each(lambda line: f" 12%|#2        | 12/100 [00:10<01:10,  1.25it/s]\r{line}"),
    "blank lines between": _each(lambda line: f"{line}\n"),
    "the head cut": _around(60, 1_000_000),
    "the tail cut": _around(1_000_000, 60),
    "head and tail cut": _around(40, 40),
    "other host names": _other_hosts,
    "other sizes": _other_sizes,
}


def read(case: Case, texts: tuple[str, ...], job: JobRecord | None) -> tuple[LogStory, str]:
    encoded = [(part.path, text.encode()) for part, text in zip(case.logs, texts, strict=True)]
    sources = [(path, io.BytesIO(content), len(content)) for path, content in encoded]
    story = corpus.reader().read(sources, job=job)
    judgements = [one.value() for one in case.judgements]
    return story, diagnose(story, meanings=MEANINGS, job=job, judgements=judgements, settings=case.settings).best.kind


def draw() -> Iterator[str]:
    """The lot: cases of text that are read right, and whose files are not too large to be changed often."""
    able = []
    for case in sorted(corpus.cases(), key=lambda one: one.id):
        sources = [part.source() for part in case.logs]
        small = sum(size for _, _, size in sources) < 64 << 10
        if small and not any(path.endswith((".gz", ".zst", "error.json")) for path, _, _ in sources):
            able.append(case)
    right = [case for case in able if not corpus.wrong(case, corpus.told(case))]
    yield from sorted(case.id for case in random.Random(SEED).sample(right, DRAWN_CASES))


@cache
def drawn() -> tuple[Drawn, ...]:
    wanted = set(DRAW.read_text().split())
    found = []
    for case in corpus.cases():
        if case.id not in wanted:
            continue
        texts = tuple(stream.read().decode(errors="replace") for _, stream, _ in (part.source() for part in case.logs))
        story, kind = read(case, texts, case.job.record() if case.job else None)
        root, line = story.root_cause, ""
        if root is not None and root.line:
            index = next(index for index, part in enumerate(case.logs) if part.path == root.file)
            line = texts[index].splitlines()[root.line - 1] if root.line <= len(texts[index].splitlines()) else ""
        found.append(Drawn(case, texts, kind, root.rank if root else None, line))
    return tuple(found)


@dataclass(frozen=True)
class Outcome:
    """What became of a case under a change."""

    case: str
    kind_stays: bool
    rank_stays: bool
    says: str


def outcomes(name: str) -> Iterator[Outcome]:
    for one in drawn():
        changed = CHANGES[name](one)
        if changed is None:
            continue
        texts, rank = changed
        job = one.case.job.record() if one.case.job else None
        if name == "other host names" and job is not None:
            job = replace(job, nodes=tuple(NodeName(renamed(node)) for node in job.nodes))
        story, kind = read(one.case, texts, job)
        got = story.root_cause.rank if story.root_cause else None
        yield Outcome(one.case.id, kind == one.kind, got == rank, f"{kind} rank {got}, was {one.kind} rank {rank}")


def main() -> int:
    if "--draw" in sys.argv:
        DRAW.write_text("".join(f"{name}\n" for name in draw()))
    totals = [0, 0, 0]
    for name in CHANGES:
        all_of = list(outcomes(name))
        kinds, ranks = sum(one.kind_stays for one in all_of), sum(one.rank_stays for one in all_of)
        totals = [totals[0] + len(all_of), totals[1] + kinds, totals[2] + ranks]
        print(f"{name:<34} {len(all_of):>3} cases   kind {kinds:>3}   rank {ranks:>3}")
        if "-v" in sys.argv:
            for one in all_of:
                if not (one.kind_stays and one.rank_stays):
                    print(f"    {one.case}: {one.says}")
    print(f"{'all':<34} {totals[0]:>3} cases   kind {totals[1] / totals[0]:.1%}   rank {totals[2] / totals[0]:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
