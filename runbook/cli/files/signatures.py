"""`runbook signatures` and `runbook explain`: the log lines and levers that the tool knows, and why they are so."""

from __future__ import annotations

import difflib
import json
import shutil
import textwrap
from pathlib import Path

import click

from runbook.documents import load_document
from runbook.errors import NotFound
from runbook.kinds import load_kinds
from runbook.locations import playbook_folder
from runbook.logs.signatures import load_signatures
from runbook.logs.signatures.signature_document import SampleEntry, SignatureDocument, SignatureEntry, load_samples
from runbook.model.diagnosis import Kinds
from runbook.model.log import DerivedSignature
from runbook.model.units import size

_MOST_SAMPLES = 3
_NOT_LINES: dict[str, tuple[str, str]] = {
    DerivedSignature.UNKNOWN_EXCEPTION: (
        "A Python exception that no signature knows",
        "A traceback's last line. It is a failure of the program, not of memory, unless something stronger speaks.",
    ),
    DerivedSignature.RANK_SILENT: (
        "A rank that printed no timeout while the others waited",
        "A suspicion, no proof: who waits in a collective says so; who does not may be the one they wait for.",
    ),
    DerivedSignature.RANK_BEHIND: (
        "A rank whose collectives are behind the others'",
        "A suspicion from the work numbers of NCCL's watchdog (NCCL-06).",
    ),
    DerivedSignature.RANK_ENDED: (
        "A rank that ended by itself without a word",
        "Its exit is the first, or its output stops first; why is not in the logs.",
    ),
    DerivedSignature.RANK_KILLED: (
        "A rank that was killed by SIGKILL",
        "SIGKILL has many senders; without the kernel's or Slurm's word it is no out-of-memory kill.",
    ),
}
"""Findings that follow from several lines, so that no signature document holds them."""
_NO_KINDS = {
    "consequence": "another process failed first",
    "harmless": "looks like a failure and is none by itself",
    "framing": "says who speaks, where, or from which checkpoint",
    "progress": "a step of the training",
}
"""What a line means where it is no kind of failure."""


def signatures(words: tuple[str, ...], means: str | None, as_json: bool, playbook: Path | None) -> int:
    """`runbook signatures`."""
    found = [(document, entry) for document, entry in _entries(playbook) if _wanted(document, entry, words, means)]
    if not found:
        known = ", ".join(sorted({entry.means for _, entry in _entries(playbook)}))
        raise NotFound("no signature matches", next_step=f"meanings are: {known}")
    if as_json:
        click.echo(json.dumps([
            {"id": entry.id, "document": document, "means": entry.means, "versions": entry.versions or None,
             "title": entry.title} for document, entry in found
        ], indent=2, ensure_ascii=False))
        return 0
    columns = ("id", "means", "versions")
    rows = [(entry.id, entry.means, entry.versions, entry.title) for _, entry in found]
    widths = [max(len(name), *(len(row[index]) for row in rows)) for index, name in enumerate(columns)]
    room = max(20, shutil.get_terminal_size((120, 24)).columns - sum(widths) - 2 * len(widths))
    click.echo(click.style(
        "  ".join(f"{name:<{width}}" for name, width in zip(columns, widths)) + "  title", bold=True
    ))
    for row in rows:
        title = row[3] if len(row[3]) <= room else row[3][: room - 1] + "…"
        click.echo("  ".join(f"{value:<{width}}" for value, width in zip(row, widths)) + f"  {title}")
    click.echo(f"{len(rows)} signature{'s' if len(rows) > 1 else ''}; runbook explain ID tells more about one")
    return 0


def _wanted(document: str, entry: SignatureEntry, words: tuple[str, ...], means: str | None) -> bool:
    if means is not None and entry.means != means:
        return False
    text = f"{document} {entry.id} {entry.means} {entry.title} {entry.why} {entry.source}".lower()
    return all(word.lower() in text for word in words)


def explain(name: str, as_json: bool, playbook: Path | None) -> int:
    """`runbook explain`."""
    every = _entries(playbook)
    wanted = name.strip().lower()
    for document, entry in every:
        if entry.id.lower() == wanted:
            _explain(document, entry, playbook, as_json=as_json)
            return 0
    if name.strip().upper() in _NOT_LINES:
        title, why = _NOT_LINES[name.strip().upper()]
        if as_json:
            click.echo(json.dumps({"id": name.strip().upper(), "title": title, "why": why}, ensure_ascii=False))
        else:
            click.echo(click.style(f"{name.strip().upper()}  {title}", bold=True))
            click.echo(f"  {why}")
        return 0
    if _explain_kind(wanted.replace("-", "_"), every, load_kinds(playbook), as_json=as_json):
        return 0

    from runbook.cli.files.explain_lever import answers, near, tell
    from runbook.cli.files.levers import lever_documents

    documents = lever_documents(playbook)
    found = answers(name, documents)
    if found:
        tell(found, as_json=as_json)
        return 0
    if _explain_node_rule(wanted.replace("-", "_"), playbook, as_json=as_json):
        return 0
    names = [*load_kinds(playbook), *_NO_KINDS, *(entry.id for _, entry in every), *_NOT_LINES]
    close = _near(wanted, names) or near(name, documents)
    raise NotFound(
        f"no signature, kind, lever or parameter is called {name!r}",
        next_step=f"perhaps {', '.join(close)}" if close else "`runbook signatures` and `runbook levers` list them",
    )


def _near(wanted: str, names: list[str]) -> list[str]:
    """Names that hold what was typed ("oom"), else those that differ by a slip of the fingers."""
    plain = {name.lower(): name for name in names}
    words = wanted.replace("_", "-")
    holding = [name for low, name in plain.items() if words and words in low.replace("_", "-")]
    if holding:
        return holding[:6]
    found = difflib.get_close_matches(wanted, plain, 3, 0.6)
    found.sort(key=lambda name: sorted(name) != sorted(wanted))
    return [plain[name] for name in found]


def _explain(document: str, entry: SignatureEntry, playbook: Path | None, *, as_json: bool) -> None:
    samples = next((one for one in _samples(playbook) if one.id == entry.id), None)
    if as_json:
        told = entry.model_dump(mode="json") | {"document": document}
        told |= {"samples": [one.model_dump(mode="json") for one in samples.samples] if samples else []}
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    click.echo(click.style(f"{entry.id}  {entry.title}", bold=True))
    for label, text in (
        ("means", f"{entry.means}{f', {entry.detail}' if entry.detail else ''}{_meaning(entry, load_kinds(playbook))}"),
        ("why", entry.why),
        ("versions", f"PyTorch {entry.versions}" if entry.versions else ""),
        ("source", entry.source),
        ("document", f"{document}.yaml"),
        ("special", "; ".join(_special(entry))),
    ):
        if text:
            click.echo(textwrap.fill(
                " ".join(text.split()), max(60, min(120, shutil.get_terminal_size((120, 24)).columns)),
                initial_indent=f"  {label:<13} ", subsequent_indent=" " * 16, break_on_hyphens=False,
                break_long_words=False,
            ))
    literals = [entry.literal] if isinstance(entry.literal, str) else entry.literal
    click.echo(f"  {'searched for':<13} {' or '.join(repr(one) for one in literals)}")
    if entry.pattern:
        click.echo(f"  {'pattern':<13} {entry.pattern.strip()}")  # as it is, to be copied
    for sample in samples.samples[:_MOST_SAMPLES] if samples else ():
        click.echo(f"\n  line  {_visible(sample.line)}")
        for name, value in sample.fields.items():
            click.echo(f"        {name} = {_value(name, value)}")
    for miss in samples.near_misses[:_MOST_SAMPLES] if samples else ():
        click.echo(f"\n  not   {_visible(miss)}")


def _special(entry: SignatureEntry) -> list[str]:
    told = []
    if entry.weak:
        told.append("speaks only where nothing stronger does")
    if entry.late:
        told.append("printed after what it reports, so its place in the log does not say what came first")
    if entry.fallback:
        told.append("tried only on lines that no other signature matches")
    if entry.lines > 1:
        told.append(f"looks at up to {entry.lines} lines")
    return told


def _meaning(entry: SignatureEntry, kinds: Kinds) -> str:
    said = _NO_KINDS.get(entry.means) or kinds.of(entry.means).entry.meaning_of(entry.detail)
    return f": {said}" if said else ""


def _explain_kind(name: str, every: list[tuple[str, SignatureEntry]], kinds: Kinds, *, as_json: bool) -> bool:
    if name in _NO_KINDS:
        title, meaning = "No kind of failure", _NO_KINDS[name]
    elif name in kinds:
        title, meaning = kinds[name].entry.title, kinds[name].entry.meaning
    else:
        return False
    own = [entry for _, entry in every if entry.means == name]
    if as_json:
        click.echo(json.dumps({
            "kind": name, "title": title, "meaning": meaning,
            "signatures": [one.id for one in own],
        }, indent=2, ensure_ascii=False))
        return True
    click.echo(click.style(f"{name}  {title}", bold=True))
    click.echo(f"  {meaning}")
    if own:
        click.echo("  lines that say so:")
        for one in own:
            click.echo(f"    {one.id:<14} {one.title}")
    else:
        click.echo("  no line says so by itself: it follows from figures, the node check or the course of the run")
    return True


def _explain_node_rule(name: str, playbook: Path | None, *, as_json: bool) -> bool:
    """What a finding of the node check stands for."""
    from runbook.node.catalogues import load_node_rules

    rules = load_node_rules(playbook_folder(playbook) / "node_rules.yaml")
    rule = rules.rules.get(name)
    if rule is None:
        return False
    cases = [case for found in rules.cases.values() for case in found if case.rule == name]
    if as_json:
        click.echo(json.dumps({
            "rule": name, "shows": rule.shows, "weight": rule.weight.name.lower(), "action": rule.action.value,
            "says": [case.says for case in cases], "sources": list(dict.fromkeys(case.source for case in cases)),
        }, indent=2, ensure_ascii=False))
        return True
    click.echo(click.style(f"{name}  a finding of the node check", bold=True))
    click.echo(f"  {'found':<13} {rule.shows}")
    click.echo(f"  {'weight':<13} {rule.weight.name.lower()}; what to do: {rule.action.value.replace('_', ' ')}")
    for case in cases:
        differs = "" if case.action is rule.action else f" ({case.action.value.replace('_', ' ')})"
        click.echo(f"  {'says':<13} {case.says}{differs}")
        if case.policy:
            click.echo(f"  {'':<13} a reason to drain where the inventory says policy.{case.policy}")
    for source in dict.fromkeys(case.source for case in cases if case.source):
        click.echo(f"  {'source':<13} {source}")
    return True


def _value(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value} ({size(value)})"
    if name == "other_processes" and isinstance(value, list):
        return ", ".join(f"process {pid} with {size(held)}" for pid, held in value)
    return "not a size" if value is None else str(value)


def _visible(line: str) -> str:
    """A sample as it can be shown: control characters as escapes, not sent to the terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)


def _folder(playbook: Path | None) -> Path:
    return playbook_folder(playbook) / "signatures"


def _entries(playbook: Path | None) -> list[tuple[str, SignatureEntry]]:
    """Every entry with its document's name. Raises `DocumentsInvalid` with all problems."""
    folder = _folder(playbook)
    load_signatures(folder, load_kinds(playbook))  # all that is wrong with them is said at once
    paths = [path for path in sorted(folder.glob("*.yaml")) if not path.name.endswith(".samples.yaml")]
    return [(path.stem, entry) for path in paths for entry in load_document(path, SignatureDocument).signatures]


def _samples(playbook: Path | None) -> tuple[SampleEntry, ...]:
    return load_samples(_folder(playbook))
