"""The document of kinds of failure: its shape, how it is checked, and what is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from runbook.documents import Document, DocumentsInvalid, Problem, load_document
from runbook.model.diagnosis import DetailWords, DiagnosisOutcome, Died, Kind, KindEntry, Kinds, LogReading, Remedy

_ID = r"^[a-z][a-z0-9_]*$"


class DetailDocument(Document):
    id: str = Field(pattern=_ID)
    title: str
    meaning: str = ""
    reason: str = ""


class KindDocument(Document):
    """One kind; `KindEntry` says what the attributes do."""

    id: str = Field(pattern=_ID)
    title: str
    meaning: str
    named: str
    short: str
    died: Died
    outcome: DiagnosisOutcome
    confidence: float = Field(default=0.9, ge=0.0, le=1.0)
    reason: str = ""
    remedy: Remedy = Remedy.LEVERS
    no_plan: str = ""
    no_lever: str = ""
    read_from: tuple[LogReading, ...] = ()
    rule: str = ""
    perhaps: str = ""
    by_figures: bool = False
    on_the_card: bool = False
    in_the_allocator: bool = False
    why: str
    source: str
    details: tuple[DetailDocument, ...] = ()

    @model_validator(mode="after")
    def _says_why_not(self) -> KindDocument:
        if self.remedy is not Remedy.LEVERS and not self.no_lever:
            raise ValueError("without levers it has to say why none is used: no_lever")
        if self.remedy is Remedy.PERSON and not self.no_plan:
            raise ValueError("what only a person can mend has to say why nothing is planned: no_plan")
        return self


class KindsDocument(Document):
    version: Literal[1]
    id: str
    title: str
    why: str
    source: str
    rules: tuple[str, ...] = ()
    kinds: tuple[KindDocument, ...] = Field(min_length=1)


def read_kinds(file: Path) -> Kinds:
    """Every kind of the document. Raises `DocumentsInvalid` with all problems."""
    document = load_document(file, KindsDocument)
    problems = [
        Problem(str(file), _line_of(file, item.id), f"kinds.{index}", f"{what} is described twice", "remove one")
        for index, item in enumerate(document.kinds)
        for what in _twice(document.kinds[:index], item)
    ]
    known = {item.id for item in document.kinds}
    problems += [
        Problem(str(file), _line_of(file, item.id), f"kinds.{index}.perhaps", f"no kind {item.perhaps!r}", "name one")
        for index, item in enumerate(document.kinds) if item.perhaps and item.perhaps not in known
    ]
    claimed = [reading for item in document.kinds for reading in item.read_from]
    for reading in LogReading:
        if claimed.count(reading) != 1:
            said = f"{claimed.count(reading)} kinds have {reading!s} in read_from"
            problems.append(Problem(str(file), 1, "kinds", said, "give it to one"))
    if problems:
        raise DocumentsInvalid(problems)
    return Kinds((_kind(item, place) for place, item in enumerate(document.kinds)), document.rules)


def _twice(before: tuple[KindDocument, ...], item: KindDocument) -> list[str]:
    details = [one.id for one in item.details]
    found = [f"the kind {item.id}"] if any(one.id == item.id for one in before) else []
    return [*found, *(f"the detail {one}" for one in sorted(set(details)) if details.count(one) > 1)]


def _line_of(file: Path, kind: str) -> int:
    """The last line that begins the kind's entry: where one is named twice, the second is at fault."""
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
    return max((number for number, line in lines if line.strip() == f"- id: {kind}"), default=1)


def _kind(item: KindDocument, place: int) -> Kind:
    plain = {name: getattr(item, name) for name in KindDocument.model_fields if name not in ("id", "details")}
    details = {one.id: DetailWords(one.title, one.meaning, one.reason) for one in item.details}
    return Kind(item.id, KindEntry(**plain, details=details, place=place))
