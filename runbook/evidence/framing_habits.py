"""How a file's lines begin: learned from samples of them, where the launcher leaves the shape of its prefix open."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from runbook.evidence.framing import frame, without_escapes
from runbook.evidence.framing_prefixes import BARE, CONTAINER, HOST, LABEL, MPI, PIPED, RANK_AS_ROLE, ROLE, TEMPLATE
from runbook.evidence.framing_records import record_of
from runbook.evidence.framing_stamps import COLLECTOR, LEADING, STREAM, TAGGED
from runbook.evidence.framing_values import FileFrame, Habits, shape_of, short_name

RANKS_A_NODE = 8
"""What a number alone must reach before it can be no local rank."""

_LAUNCHER = ("srun:", "slurmstepd", "mpirun:", "prterun", "pdsh@", "clush:", "---", "===")
_COUNTERS = re.compile(
    r"(?i)(?:global_?|local_?)?(?:rank|task|epoch|step|iter|iteration|layer|stage|cuda|device|batch|loss|phase|fold|trial"
    r"|expert|param|test|round|seed|shard)[-_.]?\d*$|.*\.(?:py|cc|cpp|cu|h)$"
)
_POD_NAME = re.compile(r"[a-z0-9]+-[a-z0-9]+(?:-[a-z0-9]+){1,12}$")
_RANK_ALONE = re.compile(r"(?i)(?:global[ _]|local[ _-]?)?rank[:=_ ]{0,2}\d{1,6}$")
_PREFIX_CHARACTERS = 200
_INSIDE = re.compile(
    r'  File "[^"\n]{1,160}", line \d|  (?:time      : \d{4}-|rank      : \d|exitcode  : |error_file: |traceback : )'
)
"""Lines in the middle of a traceback, and of torchrun's table."""
_RANK = re.compile(r"\[rank(\d{1,6})\]")


def learn(lines: Sequence[str], nodes: frozenset[str]) -> Habits:
    """Habits of a file from sampled lines in their order; `nodes` are the job's, by short name, where known."""
    every = [
        record.lines[0] if (record := record_of(line)) is not None else line for line in map(without_escapes, lines)
    ]
    own = [line for line in every if line.strip() and not line.startswith(_LAUNCHER)]
    if len(own) < 2:
        return Habits()
    stamped, tagged = _of_each_line(own)
    collected = stamped or (sum(1 for line in own if COLLECTOR.match(line)) * 5 >= len(own) * 4 and len(own) >= 3)
    bare = [line[found.end():] if (found := LEADING.match(line)) else line for line in own]
    outer = Habits(
        label_widths=_label_widths(bare),
        roles=frozenset(),
        hosts=frozenset() if nodes else _hosts(bare),
        piped=_piped(bare),
        containers=_containers(bare),
        collected=collected,
        tagged=tagged,
    )
    rest = [frame(line, FileFrame(nodes=nodes, habits=outer)).text for line in own]
    return Habits(
        outer.label_widths, _roles(rest) | {"default"}, _bare(rest, nodes), _spaced(own, rest), outer.hosts,
        outer.piped, outer.containers, collected, tagged, _templates(rest),
    )


def _of_each_line(lines: Sequence[str]) -> tuple[bool, bool]:
    """Whether a stamp, and whether tags stand in front of each line: those inside a traceback or a table tell, which
    no program stamps itself."""
    inside = stamped = tagged = 0
    for line in lines:
        found = _INSIDE.search(line[:_PREFIX_CHARACTERS])
        if found is None:
            continue
        before = line[: found.start()]
        stamp = LEADING.match(before)
        rest = before[stamp.end():] if stamp else before
        stream = STREAM.match(rest)
        rest = rest[stream.end():] if stream else rest
        tags = TAGGED.match(f"{rest.rstrip()} " if rest.strip() else "")
        inside += 1
        stamped += stamp is not None
        tagged += tags is not None and tags.end() > 0
    return 0 < inside * 4 <= stamped * 5, 0 < inside * 4 <= tagged * 5


def _label_widths(lines: Sequence[str]) -> frozenset[int]:
    """Widths of srun's labels: right-aligned, so that all tasks of a step have the same. A counter has none."""
    found = [(index, match) for index, line in enumerate(lines) if (match := LABEL.match(line))]
    if len(found) < 2 or len(found) * 2 <= len(lines) - found[0][0]:
        return frozenset()
    numbers = [int(match[2]) for _, match in found]
    counting = all(later > earlier for earlier, later in pairwise(numbers))
    if counting and len(numbers) > 8 and not any(match[2].startswith(" ") or match[1] for _, match in found):
        return frozenset()
    widths = Counter(len(match[2]) for _, match in found)
    return frozenset(width for width, count in widths.items() if count >= 2 or len(found) <= 4)


def _hosts(lines: Sequence[str]) -> frozenset[str]:
    """Names in front of most lines that look like hosts and come again."""
    names = Counter(
        found[1] for line in lines
        if (found := HOST.match(line)) and any(one.isalpha() for one in found[1])
        and any(one.isdigit() for one in found[1]) and not _COUNTERS.match(found[1])
    )
    total = sum(names.values())
    again = sum(1 for count in names.values() if count >= 2)
    if total < 4 or total * 5 < len(lines) * 3 or again * 2 < len(names):
        return frozenset()
    return frozenset(names) | frozenset(short_name(name) for name in names)


def _piped(lines: Sequence[str]) -> bool:
    named = sum(1 for line in lines if (found := PIPED.match(line)) and any(one.isdigit() for one in found[1])
                and any(one.isalpha() for one in found[1]))
    return named >= 4 and named * 5 >= len(lines) * 3


def _containers(lines: Sequence[str]) -> frozenset[str]:
    found = [match for line in lines if (match := CONTAINER.match(line)) and _POD_NAME.match(match[1])]
    if len(found) < 6 or len(found) * 10 < len(lines) * 9 or len({one[1] for one in found}) * 3 > len(found):
        return frozenset()
    second = Counter(match[2] for match in found)
    return frozenset(second) if len(second) <= 3 else frozenset()


def _roles(lines: Sequence[str]) -> frozenset[str]:
    counts: Counter[str] = Counter()
    members: dict[str, set[str]] = {}
    for line in lines:
        if (found := ROLE.match(line)) and not _COUNTERS.match(found[1]):
            counts[found[1]] += 1
            members.setdefault(found[1], set()).add(found[2])
    if any(found[1] != found[2] for line in lines if (found := RANK_AS_ROLE.match(line))):
        counts["rank"] = len(lines)
    return frozenset(
        role for role, count in counts.items()
        if count * 10 >= len(lines) * 3 or (count >= 4 and len(members[role]) >= 2)
    )


def _templates(lines: Sequence[str]) -> frozenset[str]:
    """Shapes of brackets in front of most lines that name a rank and something else."""
    shapes = Counter(
        shape_of(found[1]) for line in lines
        if (found := TEMPLATE.match(line)) and "rank" in found[1].lower() and not _RANK_ALONE.match(found[1])
    )
    return frozenset(shape for shape, count in shapes.items() if "#" in shape and count >= 3 and count * 2 > len(lines))


def _bare(lines: Sequence[str], nodes: frozenset[str]) -> str:
    """What "[3]:" in front of most lines is. torchrun's template can put the rank or the local rank there."""
    found = [(int(match[1]), line) for line in lines if (match := BARE.match(line))]
    if len(found) < 3 or len(found) * 2 <= len(lines):
        return ""
    pairs = [(number, int(rank[1])) for number, line in found if (rank := _RANK.search(line[:40]))]
    if pairs:
        return "rank" if all(number == rank for number, rank in pairs) else "local_rank"
    if len(nodes) > 1 and max(number for number, _ in found) < RANKS_A_NODE:
        return "local_rank"  # the rank could be on any of the nodes
    return "rank"


def _spaced(lines: Sequence[str], rest: Sequence[str]) -> bool:
    behind: list[str] = []
    for line, text in zip(lines, rest, strict=True):
        if found := MPI.search(line[:300]):
            behind.append(line[found.end():])
        elif found := ROLE.match(text) or BARE.match(text):
            behind.append(text[found.end():])
    behind = [text for text in behind if text.strip()]
    return len(behind) >= 3 and all(text.startswith(" ") for text in behind)
