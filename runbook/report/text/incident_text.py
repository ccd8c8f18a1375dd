"""The report for a terminal or a mail: plain text of 100 columns, most urgent first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from runbook.model.incident import Attempt, Incident, IncidentState
from runbook.model.node import NodeVerdict, Reach
from runbook.model.units import duration, moment, size
from runbook.report import narrative
from runbook.report.charts.flow_chart import stays
from runbook.report.memory_picture import memory_after, memory_at_failure, shortfall
from runbook.report.text import paragraph
from runbook.report.vocabulary import titles
from runbook.report.vocabulary.clean import clean, clean_line, shorten, shorten_lines
from runbook.report.vocabulary.nodes import oom_kill_words
from runbook.report.vocabulary.sentences import in_words

WIDTH = 100
_ITEM = 500
_ITEMS = 12
_LINES = 600

_VERDICTS = {
    NodeVerdict.CLEAN: "no fault found",
    NodeVerdict.FAULTY: "faulty",
    NodeVerdict.OCCUPIED: "occupied",
    NodeVerdict.UNKNOWN: "unknown",
}


def one_line(incident: Incident) -> str:
    """"oom-alpha-884213  Recovered  Job 884213 ran out …": at most 200 characters, no line break."""
    told = f"{narrative.what_happened(incident)} {narrative.how_it_stands(incident)}"
    head = f"{incident.id}  {titles.STATE_TITLES[incident.state]}  "
    line = head + clean_line(told)
    return line if len(line) <= 200 else line[:199].rstrip() + "…"


def render_text(incident: Incident) -> str:
    """The report as plain text; ends with a newline. Control characters are gone, lines are at most 100 wide
    (a diff's and an excerpt's lines keep their breaks and are cut instead)."""
    lines: list[str] = []
    lines.append(f"{incident.id}  [{titles.STATE_TITLES[incident.state]}]")
    if narrative.is_simulated(incident):
        lines.append("SIMULATION: the GPUs of this incident are simulated. No real hardware was involved.")
    lines.append("")
    lines += _wrapped(narrative.what_happened(incident))
    lines += _wrapped(narrative.how_it_stands(incident))
    lines += _wrapped(f"Done: {narrative.what_was_done(incident)}", "  ", "")
    again = f"Runs again: {titles.AGAIN_TITLES[narrative.runs_again(incident)]}."
    lines += _wrapped(f"{again} {narrative.again_sentence(incident)}", "  ", "")
    lines += _section("What to do first", _numbered(narrative.to_do(incident)))
    lines += _section("What died", _died(incident))
    lines += _section("Diagnosis", _diagnosis(incident))
    lines += _section("Change", _change(incident))
    lines += _section("Attempts", _attempts(incident))
    lines += _section("Path", _path(incident))
    lines += _section("Node check", _node(incident))
    lines += _section("Acts", _acts(incident))
    lines += _section("Evidence", _evidence(incident))
    lines += _section("Keep or undo", _undo(incident))
    if len(lines) > _LINES:
        lines = [*lines[:_LINES], "", f"… ({len(lines) - _LINES} more lines; the page has more)"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _section(title: str, body: Iterable[str]) -> list[str]:
    lines = list(body)
    return ["", title, "-" * len(title), *lines] if lines else []


def _wrapped(text: str, indent: str = "", first: str | None = None) -> list[str]:
    return paragraph(shorten(clean_line(text), _ITEM), WIDTH, indent, first, cut_words=True, fill_first=True)


def _items(items: tuple[str, ...], mark: str = "- ", indent: str = "  ") -> Iterator[str]:
    for item in items[:_ITEMS]:
        yield from _wrapped(item, indent + " " * len(mark), indent + mark)
    if len(items) > _ITEMS:
        yield f"{indent}… and {len(items) - _ITEMS} more"


def _numbered(items: tuple[str, ...]) -> Iterator[str]:
    for number, item in enumerate(items[:_ITEMS], start=1):
        yield from _wrapped(item, "   ", f"{number}. ")
    if len(items) > _ITEMS:
        yield f"… and {len(items) - _ITEMS} more"


def _died(incident: Incident) -> Iterator[str]:
    failure = narrative.first_failure(incident)
    if failure is None:
        yield "The job has not been looked up yet."
        return
    yield from _wrapped(f"job {failure.job.id}, {failure.job.name}, of {failure.job.owner}")
    finding = narrative.root_cause(incident)
    if finding is None:
        yield "No log line was found that says what failed first."
        return
    yield from _wrapped(
        f"{narrative.place_of_finding(finding) or 'place unknown'}, phase {finding.phase.replace('_', ' ')}, step "
        f"{finding.step if finding.step is not None else 'unknown'}, "
        + (moment(finding.time_s) if finding.time_s is not None else "at a time that the log does not tell")
    )
    picture = memory_at_failure(finding.fields)
    if picture is None:
        yield "The log does not give the GPU's memory in figures."
        return
    rows = [(part.words, size(part.bytes)) for part in picture.parts]
    rows.append(("Capacity", size(picture.capacity_bytes)))
    rows.append(("Asked for", size(picture.tried_bytes)))
    if picture.limit_bytes is not None:
        rows.append(("Limit of this process", size(picture.limit_bytes)))
    width = max(len(name) for name, _ in rows)
    yield from (f"  {name:<{width}}  {value:>12}" for name, value in rows)
    yield from _wrapped(shortfall(picture))
    proven = narrative.proven_attempt(incident)
    sample = narrative.peak_sample(proven, finding.rank) if proven else None
    after = memory_after(sample, picture.capacity_bytes) if sample else None
    if proven is not None and after is not None:
        told = ", ".join(f"{part.words} {size(part.bytes)}" for part in after.parts)
        who = f", rank {sample.rank}" if sample is not None and sample.rank is not None else ""
        yield from _wrapped(f"After the change, job {proven.job}{who}: {told}.")


def _diagnosis(incident: Incident) -> Iterator[str]:
    failure = narrative.first_failure(incident)
    diagnosis = failure.diagnosis if failure else None
    if diagnosis is None:
        yield "There is no diagnosis yet."
        return
    best = diagnosis.best
    yield from _wrapped(
        f"{titles.diagnosis_title(best)} ({titles.percent(best.confidence)}): {titles.diagnosis_meaning(best)}."
    )
    for heading, items in (("for it", best.reasons), ("against it", best.against), ("missing", best.missing)):
        if items:
            yield f"  {heading}:"
            yield from _items(tuple(map(in_words, items)), indent="    ")
    if diagnosis.runners_up:
        told = ", ".join(
            f"{titles.diagnosis_title(other)} {titles.percent(other.confidence)}"
            for other in diagnosis.runners_up[:_ITEMS]
        )
        yield from _wrapped(f"runners-up: {told}", "  ")


def _change(incident: Incident) -> Iterator[str]:
    parts: tuple[Attempt, ...] = incident.attempts
    if not parts and (incident.plan or incident.patch):
        parts = (Attempt(0, incident.whole_plan, incident.patch),)
    for part in parts[:_ITEMS]:
        if part.number:
            yield f"attempt {part.number}:"
        for use in (part.plan.uses if part.plan else ())[:_ITEMS]:
            yield from _items((f"{use.title}. {titles.EFFECT_WORDS[use.effect]}. {use.cost}",))
            yield from _items(tuple(f"Before: {told}." for told in use.seen_before[:_ITEMS]), indent="      ")
        yield from _items(tuple(filter(None, (narrative.what_is_foreseen(part.plan),))))
        yield from _items(narrative.foreseen_too_small(part.plan)[:_ITEMS])
        if part.excluded_nodes:
            yield from _items((f"Kept off {', '.join(part.excluded_nodes)}.",))
        if part.patch and part.patch.diff:
            text = shorten_lines(clean(part.patch.diff[:20_000]), 40, WIDTH - 6)
            yield from (f"    {line}" for line in text.rstrip("\n").split("\n"))
            yield from _items(part.patch.notes[:_ITEMS])
    if incident.no_plan:
        yield from _wrapped(f"{in_words(incident.no_plan.why)} {in_words(incident.no_plan.question)}")
        yield from _items(narrative.passed_over(incident)[:_ITEMS])


def _attempts(incident: Incident) -> Iterator[str]:
    for attempt in incident.attempts[:_ITEMS]:
        passed = narrative.worked(attempt)
        state = "passed" if passed else "not known yet" if passed is None else "failed"
        start = "the beginning"
        if attempt.checkpoint is not None:
            start = f"step {attempt.checkpoint.step}" if attempt.checkpoint.step is not None else "a checkpoint"
        yield from _wrapped(
            f"{attempt.number}. job {attempt.job or 'not submitted'} from {start}, "
            f"{moment(attempt.submitted_s)}: {state}. "
            + ("; ".join(part for part in (attempt.verdict.why.rstrip("."), attempt.verdict.headroom) if part)
               if attempt.verdict else ""),
            "   ", "",
        )
        yield from _items(tuple(filter(None, (narrative.foreseen_and_measured(attempt),))), indent="   ")
        yield from _items(
            tuple(
                f"{receipt.lever} {'seen' if receipt.seen else 'not seen'} in {receipt.where}: {receipt.detail}"
                for receipt in attempt.receipts
            ),
            indent="   ",
        )


def _path(incident: Incident) -> Iterator[str]:
    path = stays(incident.visits)
    for stay in path[:60]:
        lasted = duration(stay.duration_s) if stay.ended_s is not None else "now"
        yield from _wrapped(f"{stay.box} -> {stay.outcome or '…'} ({lasted})", "    ", f"{stay.number:>2}. ")
    if len(path) > 60:
        yield f"… and {len(path) - 60} more"


def _node(incident: Incident) -> Iterator[str]:
    failure = narrative.first_failure(incident)
    judged = {judgement.node: judgement for judgement in failure.judgements} if failure else {}
    for facts in failure.nodes[:_ITEMS] if failure else ():
        judgement = judged.get(facts.node)
        verdict = _VERDICTS[judgement.verdict] if judgement else "not judged"
        to_do = f"; what to do: {judgement.action.replace('_', ' ')}" if judgement and judgement.findings else ""
        yield from _wrapped(f"{facts.node}: {verdict}{to_do}")
        if facts.reach is not Reach.OK:
            yield from _items((f"it did not answer ({facts.reach}): {facts.reach_detail}; nothing is known",))
        elif facts.left_by_epilog:
            yield from _items((facts.reach_detail,))
        if judgement:
            yield from _items((*judgement.reasons, *judgement.warnings))
            yield from _items(tuple(f"not known: {item}" for item in judgement.missing))
        kills = tuple(oom_kill_words(facts, windowed=True))
        yield from _items(tuple(f"killed by the kernel for want of main memory: {kill}" for kill in kills[-3:]))


def _acts(incident: Incident) -> Iterator[str]:
    if not incident.acts:
        yield "Nothing was done outside the incident's own folder."
    for act in incident.acts[:40]:
        result = "planned, not done" if act.planned_only else act.result
        yield from _wrapped(
            f"{moment(act.time_s)}  {act.what} {act.target}: {result}"
            + (f"  [{act.token}]" if act.token else "")
        )
    if len(incident.acts) > 40:
        yield f"… and {len(incident.acts) - 40} more"


def _evidence(incident: Incident) -> Iterator[str]:
    finding = narrative.root_cause(incident)
    if finding is not None:
        yield from _wrapped(f"{finding.file}:{finding.line}")
        lines = clean(finding.excerpt[:20_000]).rstrip("\n").split("\n")
        if len(lines) > 9:
            # The error stands at the end of a traceback, and its frames are nearest there.
            lines = [lines[0], f"  … {len(lines) - 9} lines", *lines[-8:]]
        for line in (line[:1000] for line in lines):
            # The figures stand at the end of a long line: it is folded, not cut.
            yield from textwrap.wrap(line, WIDTH, initial_indent="    ", subsequent_indent="      ") or [""]
    yield from _items(tuple(f"kept: {name}" for name in incident.evidence_files))


def _undo(incident: Incident) -> Iterator[str]:
    if not any(not act.planned_only for act in incident.acts):
        yield "There is nothing to undo."
        return
    if incident.promoted:
        yield f"put the old template back:  runbook rollback {incident.id}"
    elif incident.state is IncidentState.RECOVERED:
        yield f"keep the change:  runbook promote {incident.id}"
        yield "drop it: nothing to do, the owner's template is as it was"
    else:
        yield "The owner's template is as it was."
    if incident.drained_nodes:
        yield f"give drained nodes back, once mended:  runbook rollback {incident.id} --undrain"
