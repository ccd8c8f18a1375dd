"""The kinds of failure of a playbook, as they are used: read from their compiled form, or read and checked."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from runbook.compiled import Compiled, CompiledDocuments
from runbook.locations import playbook_folder
from runbook.model import diagnosis
from runbook.model.diagnosis import DetailWords, DiagnosisOutcome, Died, Kind, KindEntry, Kinds, LogReading, Remedy


@cache
def load_kinds(playbook: Path | None = None) -> Kinds:
    """The kinds of a playbook's folder; those of the installed one where no folder is named, or it has none of its own.
    Raises `DocumentsInvalid` with all problems."""
    return compiled_kinds(kinds_file(playbook)).load()


def kinds_file(playbook: Path | None) -> Path:
    own = playbook_folder(playbook) / "kinds.yaml"
    return own if own.exists() else playbook_folder() / "kinds.yaml"


def compiled_kinds(file: Path) -> CompiledDocuments[Kinds]:
    made_by = [Path(__file__).with_name("kinds_document.py"), Path(diagnosis.__file__)]
    return CompiledDocuments(Compiled.of(file, [file], made_by), lambda: _read(file), _plain, _restored)


def _read(file: Path) -> Kinds:
    from runbook.kinds.kinds_document import read_kinds

    return read_kinds(file)


def _plain(kinds: Kinds) -> dict[str, Any]:
    entries = [
        {
            "id": str(kind),
            **{one.name: getattr(kind.entry, one.name) for one in fields(KindEntry) if one.name != "details"},
            "details": {
                detail: [words.title, words.meaning, words.reason] for detail, words in kind.entry.details.items()
            },
        }
        for kind in kinds.values()
    ]
    return {"rules": list(kinds.rules), "kinds": entries}


def _restored(plain: Any) -> Kinds:
    entries = [
        Kind(one.pop("id"), KindEntry(**{
            **one, "died": Died(one["died"]), "outcome": DiagnosisOutcome(one["outcome"]),
            "remedy": Remedy(one["remedy"]),
            "read_from": tuple(map(LogReading, one["read_from"])),
            "details": {detail: DetailWords(*words) for detail, words in one["details"].items()},
        }))
        for one in plain["kinds"]
    ]
    return Kinds(entries, plain["rules"])
