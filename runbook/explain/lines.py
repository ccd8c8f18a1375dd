"""Topics of what is read: signatures of log lines, kinds of failure, findings of the node check."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from runbook.documents import load_document
from runbook.explain import Topic, listed, rows
from runbook.kinds import load_kinds
from runbook.locations import playbook_folder
from runbook.logs.signatures import load_signatures
from runbook.logs.signatures.signature_document import SampleEntry, SignatureDocument, SignatureEntry, load_samples
from runbook.model.diagnosis import Kinds
from runbook.model.log import DerivedSignature
from runbook.model.node_rules import NodeRules
from runbook.model.units import size
from runbook.node.catalogues import load_node_rules

Entry = tuple[str, SignatureEntry]
"""The name of a signature's document, and the signature."""

_MOST_SAMPLES = 3
_NOT_LINES: dict[str, tuple[str, str]] = {
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
    DerivedSignature.RANK_SPOKE: (
        "The rank whose end is told first",
        "A suspicion: torchrun saw it end first, or it says before all others that a collective broke. It may have "
        "lost another rank.",
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


@cache
def entries(playbook: Path | None) -> list[Entry]:
    """Every signature. Raises `DocumentsInvalid` with all problems."""
    folder = playbook_folder(playbook) / "signatures"
    load_signatures(folder, load_kinds(playbook))  # all that is wrong with them is said at once
    paths = [path for path in sorted(folder.glob("*.yaml")) if not path.name.endswith(".samples.yaml")]
    return [(path.stem, entry) for path in paths for entry in load_document(path, SignatureDocument).signatures]


@cache
def _samples(playbook: Path | None) -> tuple[SampleEntry, ...]:
    return load_samples(playbook_folder(playbook) / "signatures")


def names(every: list[Entry], playbook: Path | None) -> list[str]:
    """All that `topics_of` knows by name."""
    return [*load_kinds(playbook), *_NO_KINDS, *(entry.id for _, entry in every), *_NOT_LINES]


def topics_of(word: str, every: list[Entry], playbook: Path | None) -> list[Topic]:
    """What a word means: a signature's id, a kind, a meaning that is no kind, a finding of the node check."""
    wanted = word.strip().lower()
    found = [_signature(document, entry, playbook) for document, entry in every if entry.id.lower() == wanted]
    for name, (title, why) in _NOT_LINES.items():
        if str(name).lower() == wanted:
            data = {"id": str(name), "title": title, "why": why}
            found.append(Topic(str(name), "finding", title, rows(("why", why)), rows(("why", why)), data=data))
    plain = wanted.replace("-", "_").replace(" ", "_")
    return [*found, *_kind(plain, every, load_kinds(playbook)), *_node_rule(plain, playbook)]


def _signature(document: str, entry: SignatureEntry, playbook: Path | None) -> Topic:
    samples = next((one for one in _samples(playbook) if one.id == entry.id), None)
    kinds = load_kinds(playbook)
    data = entry.model_dump(mode="json") | {"document": document}
    data |= {"samples": [one.model_dump(mode="json") for one in samples.samples] if samples else []}
    means = f"{entry.means}{f', {entry.detail}' if entry.detail else ''}{_meaning(entry, kinds)}"
    literals = [entry.literal] if isinstance(entry.literal, str) else entry.literal
    return Topic(
        entry.id, "signature", entry.title,
        rows(
            ("means", means), ("why", entry.why), ("versions", f"PyTorch {entry.versions}" if entry.versions else ""),
            ("source", entry.source), ("document", f"{document}.yaml"), ("special", "; ".join(_special(entry))),
            ("searched for", " or ".join(repr(one) for one in literals)),
        ),
        rows(("means", means)),
        _lines(entry, samples),
        data=data,
    )


def _lines(entry: SignatureEntry, samples: SampleEntry | None) -> tuple[str, ...]:
    found = [f"pattern       {entry.pattern.strip()}"] if entry.pattern else []
    for sample in samples.samples[:_MOST_SAMPLES] if samples else ():
        found += ["", f"line  {_visible(sample.line)}"]
        found += [f"      {name} = {_value(name, value)}" for name, value in sample.fields.items()]
    for miss in samples.near_misses[:_MOST_SAMPLES] if samples else ():
        found += ["", f"not   {_visible(miss)}"]
    return tuple(found)


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


def _kind(name: str, every: list[Entry], kinds: Kinds) -> list[Topic]:
    if name in _NO_KINDS:
        title, meaning = "No kind of failure", _NO_KINDS[name]
    elif name in kinds:
        title, meaning = kinds[name].entry.title, kinds[name].entry.meaning
    else:
        return []
    own = [entry for _, entry in every if entry.means == name]
    said = "lines that say so:" if own else (
        "no line says so by itself: it follows from figures, the node check or the course of the run"
    )
    data = {"kind": name, "title": title, "meaning": meaning, "signatures": [one.id for one in own]}
    return [Topic(
        name, "kind", title, rows(("means", meaning)), rows(("means", meaning)),
        (said, *(f"  {one.id:<14} {one.title}" for one in own)),
        hint="" if name in _NO_KINDS else f"`runbook levers --kind {name}` shows what is changed for it", data=data,
    )]


@cache
def _node_rules(playbook: Path | None) -> NodeRules | None:
    """Of a playbook's folder; None where it has none."""
    path = playbook_folder(playbook) / "node_rules.yaml"
    return load_node_rules(path) if path.exists() else None


def _node_rule(name: str, playbook: Path | None) -> list[Topic]:
    """What a finding of the node check stands for."""
    rules = _node_rules(playbook)
    rule = rules.rules.get(name) if rules else None
    if rules is None or rule is None:
        return []
    cases = [case for found in rules.cases.values() for case in found if case.rule == name]
    sources = list(dict.fromkeys(case.source for case in cases if case.source))
    weight, action = rule.weight.name.lower(), rule.action.value.replace("_", " ")
    says = []
    for case in cases:
        differs = "" if case.action is rule.action else f" ({case.action.value.replace('_', ' ')})"
        says.append(f"{case.says}{differs}")
        if case.policy:
            says.append(f"a reason to drain where the inventory says policy.{case.policy}")
    told = ("weight", f"{weight}; what to do: {action}")
    return [Topic(
        name, "finding of the node check", "a finding of the node check",
        rows(("found", rule.shows), told, *listed("says", says), *listed("source", sources)),
        rows(("found", rule.shows), told),
        data={
            "rule": name, "shows": rule.shows, "weight": weight, "action": rule.action.value,
            "says": [case.says for case in cases], "sources": sources,
        },
    )]


def _value(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value} ({size(value)})"
    if name == "other_processes" and isinstance(value, list):
        return ", ".join(f"process {pid} with {size(held)}" for pid, held in value)
    return "not a size" if value is None else str(value)


def _visible(line: str) -> str:
    """A sample as it can be shown: control characters as escapes, not sent to the terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)
