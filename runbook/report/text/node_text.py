"""`runbook node` for a terminal: what a person reads at three in the morning, worst first, as wide as there is room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from runbook.model.catalogues import is_switch_event
from runbook.model.node import (
    CheckedNode,
    GpuFacts,
    NodeAction,
    NodeCheck,
    NodeFacts,
    NodeVerdict,
    Reach,
    Reports,
    XidEvent,
)
from runbook.model.units import Bytes, Unknown, moment, size
from runbook.report.text import cell_count, labelled, paragraph
from runbook.report.vocabulary import nodes
from runbook.report.vocabulary.clean import clean_line
from runbook.report.vocabulary.titles import counted

_ROWS = 40
_ITEMS = 20
_CELL = 24
_SHORTEST = 4
_LAST_AT_LEAST = 10
_ORDER = (NodeVerdict.FAULTY, NodeVerdict.OCCUPIED, NodeVerdict.UNKNOWN, NodeVerdict.CLEAN)


@dataclass(frozen=True, slots=True)
class Line:
    """One line; the style is "", "title", "good", "bad", "warn" or "dim"."""

    text: str
    style: str = ""


def render(check: NodeCheck, width: int) -> tuple[Line, ...]:
    """The whole answer. Clean nodes with nothing on them stand in the overview only, where there is one."""
    lines = [Line(text, "dim") for text in paragraph(nodes.window_words(check), width, "")]
    if check.scheduler_unknown:
        said = f"Node states and whether jobs run are not known: {check.scheduler_unknown}"
        lines += [Line(text, "warn") for text in paragraph(said, width, "")]
    if check.not_answered:
        said = f"Interrupted; not answered: {', '.join(check.not_answered)}"
        lines += [Line(text, "warn") for text in paragraph(said, width, "")]
    many = len(check.nodes) > 1
    if many:
        lines += [Line(""), *_overview(check, width)]
    ordered = sorted(check.nodes, key=lambda node: _ORDER.index(node.judgement.verdict))
    for node in ordered:
        if not many or _worth_a_look(node, check):
            lines += [Line(""), *_node(node, check, width)]
    return tuple(lines)


def _overview(check: NodeCheck, width: int) -> Iterator[Line]:
    counts = [
        f"{number} {nodes.VERDICTS[verdict]}" for verdict in _ORDER
        if (number := sum(node.judgement.verdict is verdict for node in check.nodes))
    ]
    yield Line(f"{counted(len(check.nodes), 'node')}: {', '.join(counts)}", "title")
    rows = [
        (
            str(node.facts.node), nodes.VERDICTS[node.judgement.verdict],
            nodes.action_words(node, check), _reason(node, check),
        )
        for node in check.nodes
    ]
    styles = [nodes.STYLES[node.judgement.verdict] for node in check.nodes]
    yield from _grid(("node", "verdict", "what to do", "why"), rows, width, styles, limit=len(rows))


def _reason(node: CheckedNode, check: NodeCheck) -> str:
    judgement = node.judgement
    clean = judgement.verdict is NodeVerdict.CLEAN
    first = nodes.warnings_of(node, check)[:1] if clean else judgement.reasons[:1]
    return next(iter(first), next(iter(judgement.reasons), ""))


def _worth_a_look(node: CheckedNode, check: NodeCheck) -> bool:
    quiet = node.judgement.verdict is NodeVerdict.CLEAN and not nodes.warnings_of(node, check)
    gpus = node.facts.gpus
    return not quiet or isinstance(gpus, Unknown) or any(gpu.processes for gpu in gpus)


def _node(node: CheckedNode, check: NodeCheck, width: int) -> Iterator[Line]:
    facts, judgement = node.facts, node.judgement
    to_do = nodes.action_words(node, check)
    yield Line(
        f"{clean_line(str(facts.node))}: {nodes.VERDICTS[judgement.verdict]}. What to do: {to_do}.",
        nodes.STYLES[judgement.verdict],
    )
    reasons = _why(node, check)
    for item in reasons:
        yield from _unstyled(paragraph(item, width, "    ", "  - "))
    for item in nodes.warnings_of(node, check)[:_ITEMS]:
        yield from (Line(text, "warn") for text in paragraph(item, width, "    ", "  ! "))
    if facts.reach is Reach.OK:
        for title, words in nodes.seen_words(node, check.job):
            yield from (Line(text, "dim") for text in labelled(title, words, width, size=11))
        yield from _gpus(node, check, width)
        kills = tuple(nodes.oom_kill_words(facts, windowed=_windowed(check)))
        yield from _section("Killed by the kernel for want of main memory", kills, width)
    yield from _section("Not known", [item for item in judgement.missing if item not in reasons], width)
    steps = tuple(nodes.next_steps(node, check))
    if steps:
        yield Line("  What to do", "title")
    for words, command in steps:
        yield from _unstyled(paragraph(words, width, "    ", "  - "))
        if command:
            # Whole, however long: it is there to be copied.
            yield Line(f"      {clean_line(command)}")


def _why(node: CheckedNode, check: NodeCheck) -> tuple[str, ...]:
    """The reasons; a running job's own processes stand in the table."""
    in_order = {
        finding.text for finding in node.judgement.findings
        if finding.action is NodeAction.IGNORE and check.says(finding, Reports.TENANT)
    }
    reasons = [reason for reason in node.judgement.reasons if reason not in in_order]
    missing = set(node.judgement.missing)
    return tuple(reason for at, reason in enumerate(reasons) if at == 0 or reason not in missing)[:_ITEMS]


def _section(title: str, items: Sequence[str], width: int) -> Iterator[Line]:
    if not items:
        return
    yield Line(f"  {title}", "title")
    for item in items[:_ITEMS]:
        yield from _unstyled(paragraph(item, width, "    ", "  - "))
    if len(items) > _ITEMS:
        yield Line(f"  … and {len(items) - _ITEMS} more", "dim")


def _gpus(node: CheckedNode, check: NodeCheck, width: int) -> Iterator[Line]:
    facts = node.facts
    if isinstance(facts.gpus, Unknown):
        return
    telling = [gpu for gpu in facts.gpus if _matters(gpu, node, check)]
    rest = [gpu for gpu in facts.gpus if gpu not in telling]
    if telling:
        rows = [
            (_number(gpu), nodes.memory_words(gpu.used_bytes, gpu.total_bytes), _state(gpu, node, check))
            for gpu in telling
        ]
        for number, memory, state in (("GPU", "memory in use", "state"), *rows):
            front = f"  {number:<4} {memory:<21} "
            style = "title" if number == "GPU" else ""
            yield from (Line(text, style) for text in paragraph(state, width, " " * len(front), front))
    if rest:
        yield from _unstyled(paragraph(_healthy(rest), width, "    ", "  "))
    yield from _mig(telling, width)
    yield from _processes(telling, check, width)
    yield from _xids(facts, check, width)


def _matters(gpu: GpuFacts, node: CheckedNode, check: NodeCheck) -> bool:
    found = any(
        finding.gpu == gpu.index and finding.action is not NodeAction.IGNORE for finding in node.judgement.findings
    )
    events = any(event.bus_id == gpu.bus_id for event in _events(node.facts, check))
    busy = isinstance(gpu.processes, tuple) and bool(gpu.processes)
    blind = isinstance(gpu.processes, Unknown) or not _health_read(gpu)
    return gpu.lost or found or busy or events or blind or gpu.mig_enabled is True


def _healthy(gpus: Sequence[GpuFacts]) -> str:
    names = sorted({gpu.name or "of an unknown model" for gpu in gpus})
    totals = sorted({gpu.total_bytes for gpu in gpus if not isinstance(gpu.total_bytes, Unknown)})
    memory = f", {' or '.join(size(total) for total in totals)} each" if totals else ""
    idle = "no process on them" if len(gpus) > 1 else "no process on it"
    return f"{_numbers(gpus)}: {', '.join(names)}{memory}; nothing found, {idle}"


def _numbers(gpus: Sequence[GpuFacts]) -> str:
    numbers = sorted(gpu.index for gpu in gpus)
    parts: list[str] = []
    start = previous = numbers[0]
    for number in (*numbers[1:], None):
        if number is not None and number == previous + 1:
            previous = number
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        if number is not None:
            start = previous = number
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(parts)}"


def _number(gpu: GpuFacts) -> str:
    return str(gpu.index) if gpu.index >= 0 else "?"


def _state(gpu: GpuFacts, node: CheckedNode, check: NodeCheck) -> str:
    """Model, place and health in a line; what is as it should be is not told one by one."""
    if gpu.lost:
        return f"{gpu.name or 'a GPU'} at {gpu.bus_id or 'an unknown place'}: LOST, the driver cannot reach it"
    words: list[str] = []
    volatile, ever = gpu.ecc_uncorrectable_volatile, gpu.ecc_uncorrectable_aggregate
    if gpu.row_remap_failed is True:
        words.append("row remapping FAILED")
    if gpu.row_remap_pending is True:
        words.append("row remapping or page retirement pending")
    if gpu.sram_threshold_exceeded is True:
        words.append("SRAM threshold EXCEEDED")
    if gpu.unrepairable_memory is True:
        words.append("memory that CANNOT be repaired")
    if gpu.repair_pending is True:
        words.append("repair pending")
    if isinstance(gpu.recovery_action, str) and gpu.recovery_action.lower() not in ("none", ""):
        words.append(f"recovery action {gpu.recovery_action}")
    if isinstance(gpu.retired_pages, int) and gpu.retired_pages:
        words.append(f"{gpu.retired_pages} retired pages")
    if (isinstance(volatile, int) and volatile) or (isinstance(ever, int) and ever):
        now = "?" if isinstance(volatile, Unknown) else volatile
        words.append(f"uncorrectable ECC errors {now} since the driver's start, {_or_question(ever)} ever")
    if gpu.ecc_enabled is False:
        words.append("ECC off")
    if gpu.mig_enabled is True:
        words.append("MIG on")
    if isinstance(gpu.compute_mode, str) and gpu.compute_mode not in ("default", ""):
        words.append(f"compute mode {gpu.compute_mode.replace('_', ' ')}")
    hidden = _hidden(gpu, node, check)
    if hidden:
        words.append(f"{size(hidden)} in use by no listed process")
    health = "; ".join(words) or ("nothing wrong in its own state" if _health_read(gpu) else "its state is NOT KNOWN")
    return f"{gpu.name or 'a GPU'} ({gpu.bus_id}): {health}"


def _health_read(gpu: GpuFacts) -> bool:
    """Whether anything is known of the state of its memory, as the judgement asks."""
    figures = (gpu.row_remap_failed, gpu.row_remap_pending, gpu.recovery_action)
    return not all(isinstance(figure, Unknown) for figure in figures)


def _hidden(gpu: GpuFacts, node: CheckedNode, check: NodeCheck) -> Bytes | None:
    found = any(
        finding.gpu == gpu.index and check.says(finding, Reports.HIDDEN_MEMORY) for finding in node.judgement.findings
    )
    if not found or isinstance(gpu.used_bytes, Unknown) or isinstance(gpu.processes, Unknown):
        return None
    listed = sum(one.used_bytes for one in gpu.processes if not isinstance(one.used_bytes, Unknown))
    return Bytes(max(gpu.used_bytes - listed, 0))


def _mig(gpus: Sequence[GpuFacts], width: int) -> Iterator[Line]:
    rows = [
        (
            _number(gpu), f"{_or_question(one.gpu_instance)}/{_or_question(one.compute_instance)}",
            nodes.memory_words(one.used_bytes, one.total_bytes), one.name.removeprefix(gpu.name).strip() or "MIG",
        )
        for gpu in gpus if not isinstance(gpu.mig_instances, Unknown) for one in gpu.mig_instances
    ]
    yield from _grid(("GPU", "instance", "memory in use", "profile"), rows, width)


def _processes(gpus: Sequence[GpuFacts], check: NodeCheck, width: int) -> Iterator[Line]:
    rows = []
    for gpu in gpus:
        for one in () if isinstance(gpu.processes, Unknown) else gpu.processes:
            place = _number(gpu) + (f" i{one.gpu_instance}" if one.gpu_instance is not None else "")
            rows.append((
                place, str(one.pid), "?" if isinstance(one.used_bytes, Unknown) else size(one.used_bytes),
                "?" if isinstance(one.owner, Unknown) else str(one.owner), nodes.age_words(one),
                nodes.job_words(one, check), (one.name or "unnamed") + (" (MPS)" if one.mps_client else ""),
            ))
    yield from _grid(("GPU", "PID", "memory", "owner", "age", "Slurm job", "command"), rows, width)


def _windowed(check: NodeCheck) -> bool:
    return check.since_s is not None or check.job is not None


def _events(facts: NodeFacts, check: NodeCheck) -> tuple[XidEvent, ...]:
    events = () if isinstance(facts.xids, Unknown) else facts.xids
    return tuple(event for event in events if not _windowed(check) or event.in_window is not False)


def _xids(facts: NodeFacts, check: NodeCheck, width: int) -> Iterator[Line]:
    index = {gpu.bus_id: _number(gpu) for gpu in facts.gpus} if isinstance(facts.gpus, tuple) else {}
    rows = []
    for event in _events(facts, check):
        words = check.xids.get(event.code)
        switch = is_switch_event(event.line)
        times = f" x{event.count}" if event.count > 1 else ""
        rows.append((
            index.get(event.bus_id, event.bus_id), ("SXid " if switch else "") + f"{event.code}{times}",
            moment(event.time_s).removesuffix(" UTC"),
            "NVSwitch" if switch or words is None else nodes.XID_CLASSES[words.xid_class],
            event.line.partition("): ")[2] or event.line if switch or words is None else words.title,
        ))
    yield from _grid(("GPU", "Xid", "first (UTC)", "class", "meaning"), rows, width)


def _grid(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, styles: Sequence[str] = (), limit: int = _ROWS
) -> Iterator[Line]:
    """A table of one line a row: the last column is cut to the room that is left. Nothing where there is no row."""
    if not rows:
        return
    told = [[clean_line(cell) for cell in row] for row in (heads, *rows[:limit])]
    sizes = [min(max(cell_count(row[at]) for row in told), _CELL) for at in range(len(heads) - 1)]
    while sum(sizes) + 2 * len(heads) > width - _LAST_AT_LEAST and max(sizes) > _SHORTEST:
        sizes[sizes.index(max(sizes))] -= 1
    for number, row in enumerate(told):
        front = "  " + "".join(_fit(cell, size) + "  " for cell, size in zip(row, sizes))
        room = max(width - cell_count(front), _LAST_AT_LEAST)
        style = "title" if number == 0 else styles[number - 1] if styles else ""
        yield Line((front + _cut(row[-1], room)).rstrip(), style)
    if len(rows) > limit:
        yield Line(f"  … and {len(rows) - limit} more", "dim")


def _fit(cell: str, room: int) -> str:
    cell = _cut(cell, room)
    return cell + " " * (room - cell_count(cell))


def _cut(text: str, room: int) -> str:
    if cell_count(text) <= room:
        return text
    kept = text[: room - 1]
    while cell_count(kept) > room - 1:
        kept = kept[:-1]
    return kept.rstrip() + "…"


def _or_question(value: int | Unknown | None) -> str:
    return "?" if value is None or isinstance(value, Unknown) else str(value)


def _unstyled(lines: Iterable[str]) -> Iterator[Line]:
    return (Line(text) for text in lines)
