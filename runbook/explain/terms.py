"""Topics from around the job: Xids, terms of Slurm, CUDA, NCCL and shells, the alerts, boxes and their outcomes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from runbook.documents import Document, DocumentsInvalid, Problem, load_document
from runbook.explain import Topic, listed, rows
from runbook.flow import END, Box, load_flow
from runbook.locations import data_folder, playbook_folder
from runbook.model.catalogues import XidCatalogue, XidClass
from runbook.node.catalogues import load_xids

_XID = re.compile(r"(?:.*\bnvrm\b.*)?\bxid[\s:#_-]*(?:\(pci.{0,80}?\)[\s:]*|\()?(\d{1,5})\b.*|(\d{1,3})")
"""A code alone, with the word in any spelling, or in the driver's own line."""
_EXIT = re.compile(r"(?:exit[ _]?(?:code|status)|status|rc|code)[\s:=]*(-?\d{1,3}(?::\d{1,3})?)|(-?\d{1,3}:\d{1,3})")
_CLASSES: dict[XidClass, str] = {
    XidClass.APPLICATION: "a program's fault or a side effect of its death: cited as a consequence, nothing is drained",
    XidClass.INFORMATIONAL: "says nothing about the hardware",
    XidClass.WATCH: "weak evidence: a warning, nothing is drained",
    XidClass.PENDING_RESET: "takes effect at the next reset of the GPU: a warning; drained where the policy says so",
    XidClass.RESTART_ELSEWHERE: "a memory error hit this program: the job goes to another node",
    XidClass.RESET: "unusable until it is reset: the node is drained",
    XidClass.DRAIN: "faulty: the node is drained",
    XidClass.LINK: "NVLink: drained where the registers, or else the line's own word, ask for a reset",
    XidClass.RECOVERY_ACTION: "drained unless the action that the driver asks for is None",
    XidClass.QUALIFIER: "belongs to another code and says nothing alone",
    XidClass.UNDETERMINED: "nobody has published what to do: a person decides, nothing is drained",
}
OUTCOME = "outcome"
_DRAINS = frozenset({XidClass.RESET, XidClass.DRAIN, XidClass.LINK, XidClass.RECOVERY_ACTION})


class TermGroup(Document):
    title: str
    source: str = Field(min_length=1)


class Term(Document):
    """A word, with its other spellings."""

    names: tuple[str, ...] = Field(min_length=1)
    group: str
    means: str = Field(min_length=1)
    next: str = ""
    """What a person does with it."""
    see: tuple[str, ...] = ()
    codes: tuple[int, int] | None = None
    """First and last exit code of which it speaks where no other term does."""


class TermsToBeginWith(Document):
    """Where nobody knows yet what to ask for."""

    title: str
    names: tuple[str, ...]


class TermsDocument(Document):
    """`playbooks/terms.yaml`: what runbooks share."""

    version: Literal[1]
    id: str
    title: str
    why: str
    source: str
    begin: tuple[TermsToBeginWith, ...] = ()
    groups: dict[str, TermGroup]
    terms: tuple[Term, ...]


@cache
def load_terms(path: Path | None = None) -> TermsDocument:
    """Raises `DocumentsInvalid`, also for a spelling that stands twice in a group."""
    path = path or data_folder("playbooks") / "terms.yaml"
    document = load_document(path, TermsDocument)
    problems, seen = [], set()
    for number, term in enumerate(document.terms):
        where = f"terms.{number}"
        if term.group not in document.groups:
            problems.append(Problem(str(path), 0, f"{where}.group", f"no group {term.group!r}", "name one of groups"))
        for name in term.names:
            if (term.group, plain(name)) in seen:
                problems.append(Problem(str(path), 0, f"{where}.names", f"{name!r} stands twice", "remove one"))
            seen.add((term.group, plain(name)))
    if problems:
        raise DocumentsInvalid(problems)
    return document


def plain(word: str) -> str:
    """Without case, and with dashes, underscores and spaces alike; a sign in front stays."""
    return re.sub(r"(?<=\w)[\s_-]+(?=\w)", " ", " ".join(word.split())).lower().rstrip(".:")


def names(playbook: Path | None) -> Iterator[str]:
    """All that `topics_of` knows, Xids as `xid 79`."""
    yield from (f"xid {code}" for code in _xid_catalogue(playbook).meanings)
    yield from (name for term in load_terms().terms for name in term.names)
    yield from (title for title, _ in _alerts())
    for box in _all_boxes(playbook):
        yield box.name
        yield from box.next


def topics_of(word: str, playbook: Path | None) -> list[Topic]:
    """What a word means; several where it is several things."""
    wanted = plain(word)
    return [*_xids(wanted, playbook), *_terms(wanted), *_alert(wanted), *_boxes(wanted, playbook)]


def _xids(wanted: str, playbook: Path | None) -> Iterator[Topic]:
    found = _XID.fullmatch(wanted)
    if found is None or "sxid" in wanted:
        return
    catalogue = _xid_catalogue(playbook)
    code = int(found[1] or found[2])
    meaning = catalogue.meanings.get(code)
    if meaning is None and found[2]:
        return  # a number alone is an Xid only where there is one
    if meaning is None and not catalogue.source:
        return
    if meaning is None:
        yield Topic(
            f"xid {code}", "Xid", "not in the catalogue",
            rows(
                ("class", _CLASSES[XidClass.UNDETERMINED]), ("source", f"{catalogue.source} ({catalogue.date})"),
                ("next", "look into the vendor's list for your driver; `runbook node NODE` shows what else it says"),
            ),
            data={"xid": code, "class": str(XidClass.UNDETERMINED), "title": "", "source": catalogue.source},
        )
        return
    milder = [f"with {one.text!r} in the line: {one.title}; {_CLASSES[one.xid_class]}" for one in meaning.milder]
    drains = "only on a record of the kernel log itself or NVML's word; a text file is evidence for a person"
    yield Topic(
        f"xid {code}", "Xid", meaning.title,
        rows(
            ("class", _CLASSES[meaning.xid_class]), ("maker says", meaning.action), ("note", meaning.note),
            *listed("but", milder), ("drains", drains if meaning.xid_class in _DRAINS else ""),
            ("source", meaning.source), ("document", "xid.yaml"),
        ),
        rows(("class", _CLASSES[meaning.xid_class])),
        hint="`runbook node NODE` shows the Xids of a node with their times and jobs",
        data={
            "xid": code, "class": str(meaning.xid_class), "title": meaning.title, "action": meaning.action,
            "note": meaning.note, "source": meaning.source,
        },
    )


def _terms(wanted: str) -> Iterator[Topic]:
    document = load_terms()
    asked = _EXIT.fullmatch(wanted)
    code = (asked[1] or asked[2]) if asked else wanted
    found = [term for term in document.terms if code in map(plain, term.names) or wanted in map(plain, term.names)]
    if asked and not found:
        # Slurm's "code:signal", put together from what is known of either half; a shell's 128 + signal.
        by_code, _, by_signal = code.partition(":")
        number = int(by_code)
        signal = by_signal if by_signal not in ("", "0") else str(number - 128 if number > 128 else -min(number, 0))
        wanted_names = {by_code, f"signal {signal}"} - {"0", "signal 0"}
        found = [term for term in document.terms if wanted_names & set(map(plain, term.names))]
        found = found or [term for term in document.terms if term.codes and term.codes[0] <= number <= term.codes[1]]
    for term in found:
        group = document.groups[term.group]
        name, also = term.names[0], ", ".join(term.names[1:])
        yield Topic(
            f"{group.title} {name}" if name.isdigit() else name, group.title, group.title,
            rows(("means", term.means), ("also", also), ("next", term.next), ("source", group.source)),
            rows(("means", term.means)),
            see=term.see,
            data={"term": name, "what": group.title, **term.model_dump(mode="json"), "source": group.source},
        )


def _alert(wanted: str) -> Iterator[Topic]:
    for title, body in _alerts():
        if plain(title) == wanted:
            parts = [part.strip() for part in re.split(r"\*\*(Done|Asked):\*\*", body)]
            told = dict(zip(parts[1::2], parts[2::2]))
            means = re.sub(r"[*`]", "", parts[0])
            labels = [(name.lower(), re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)) for name, text in told.items()]
            yield Topic(
                title, "alert", "an alert of this program",
                rows(("means", means), *labels, ("document", "docs/alerts.md")), rows(("means", means)),
                data={"alert": title, "means": means, **dict(labels)},
            )


@cache
def _alerts() -> tuple[tuple[str, str], ...]:
    """The sections of the page on alerts."""
    path = data_folder("docs") / "alerts.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    parts = [section.partition("\n") for section in text.split("\n## ")[1:]]
    return tuple((title.strip(), " ".join(body.split())) for title, _, body in parts)


@cache
def _xid_catalogue(playbook: Path | None) -> XidCatalogue:
    """Of a playbook's folder; empty where it has none, as for its boxes."""
    path = playbook_folder(playbook) / "xid.yaml"
    return load_xids(path) if path.exists() else XidCatalogue()


@cache
def _all_boxes(playbook: Path | None) -> tuple[Box, ...]:
    path = playbook_folder(playbook) / "flow.yaml"
    return tuple(load_flow(path).boxes.values()) if path.exists() else ()


def _boxes(wanted: str, playbook: Path | None) -> Iterator[Topic]:
    boxes = _all_boxes(playbook)
    for box in boxes:
        if plain(box.name) == wanted:
            leads = [f"{outcome}: {target}" for outcome, target in box.next.items()]
            acts = ", ".join(box.acts)
            yield Topic(
                box.name, "box of the flow", box.title,
                rows(("why", box.why), ("acts", f"{acts}: asks the policy first" if acts else ""),
                     *listed("leads to", leads), ("document", "flow.yaml")),
                rows(("why", box.why)),
                data={"box": box.name, "title": box.title, "why": box.why, "next": dict(box.next)},
            )
    of = [(box, to) for box in boxes for outcome, to in box.next.items() if plain(outcome) == wanted]
    if of:
        leads = [f"{box.name} ({box.title}), then {'the end' if to == END else to}" for box, to in of]
        yield Topic(
            wanted.replace(" ", "_"), OUTCOME, "how a box of the flow can end",
            rows(*listed("of", leads), ("document", "flow.yaml")), rows(("of", leads[0])),
            data={"outcome": wanted.replace(" ", "_"), "of": {box.name: to for box, to in of}},
        )
