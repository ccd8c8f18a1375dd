"""What a line means: signature documents, made ready for searching; read from their compiled form, or read and checked.

Checking and compiling the documents takes longer than reading most logs, so the compiled form is read.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from runbook.compiled import Compiled, CompiledDocuments
from runbook.kinds import load_kinds
from runbook.logs.signatures.field_units import ABSURD_BYTES, SENTINEL_BYTES, UNITS
from runbook.logs.signatures.signature import (
    AT_START,
    CONSEQUENCE,
    FRAMING,
    HARMLESS,
    MEMORY_FIELDS,
    OTHER_FIELDS,
    OUTSIDE_PROSE,
    FieldWords,
    Match,
    PrefixForm,
    Signature,
    Signatures,
    Words,
)
from runbook.logs.tracebacks import PhaseRule
from runbook.model.diagnosis import Detail, Kinds
from runbook.model.log import Event, Framework, FrameworkRole, Phase

__all__ = [
    "ABSURD_BYTES",
    "AT_START",
    "CONSEQUENCE",
    "FRAMING",
    "HARMLESS",
    "MEMORY_FIELDS",
    "OTHER_FIELDS",
    "OUTSIDE_PROSE",
    "SENTINEL_BYTES",
    "Match",
    "PrefixForm",
    "Signature",
    "Signatures",
    "compiled_signatures",
    "load_signatures",
]


def load_signatures(folder: Path, kinds: Kinds | None = None) -> Signatures:
    """Every signature of a folder's `*.yaml`. Raises `DocumentsInvalid` with all problems of all files. `kinds`: what
    they may mean; the installed playbook's where none are given."""
    return compiled_signatures(folder, load_kinds() if kinds is None else kinds).load()


def compiled_signatures(folder: Path, kinds: Kinds) -> CompiledDocuments[Signatures]:
    paths = [path for path in sorted(folder.glob("*.yaml")) if not path.name.endswith(".samples.yaml")]
    made_by = [Path(__file__).with_name(name) for name in ("__init__.py", "signature.py", "signature_document.py")]
    units = [f"{name} {unit.expression}" for name, unit in sorted(UNITS.items())]
    words = (*units, *sorted(kinds), *sorted(Detail), *sorted(Event), *sorted(FrameworkRole))
    return CompiledDocuments(
        Compiled.of(folder, paths, made_by, words), lambda: _read(folder, kinds), _plain,
        lambda plain: _restored(plain, kinds),
    )


def _read(folder: Path, kinds: Kinds) -> Signatures:
    from runbook.logs.signatures.signature_document import read_signatures

    return read_signatures(folder, kinds)


def _plain(signatures: Signatures) -> dict[str, Any]:
    return {
        "signatures": [
            {one.name: getattr(each, one.name) for one in fields(each) if one.name != "kinds"}
            | {"reports": sorted(each.reports)}
            for each in signatures.all
        ],
        "phases": [{one.name: getattr(each, one.name) for one in fields(each)} for each in signatures.phases],
        "frameworks": [{one.name: getattr(each, one.name) for one in fields(each)} for each in signatures.frameworks],
        "figures": [[one.expression, one.units] for one in signatures.figures],
        "who": [[one.expression, one.units] for one in signatures.who],
        "behind": [[one.expression, one.units] for one in signatures.behind],
        "forms": [[one.expression, one.units, one.opens, one.learned] for one in signatures.forms],
        "went_on": signatures.went_on.pattern,
    }


def _restored(plain: Any, kinds: Kinds) -> Signatures:
    return Signatures(
        [
            Signature(**{
                **one, "literals": tuple(one["literals"]), "detail": Detail(one["detail"]),
                "reports": frozenset(map(Event, one["reports"])),
                "means": kinds.of(one["means"]), "kinds": kinds,
            })
            for one in plain["signatures"]
        ],
        [PhaseRule(**{**one, "phase": Phase(one["phase"])}) for one in plain["phases"]],
        [
            Framework(**{**one, "role": FrameworkRole(one["role"]), "words": tuple(one["words"])})
            for one in plain["frameworks"]
        ],
        kinds,
        Words(
            [FieldWords(*one) for one in plain["figures"]], [FieldWords(*one) for one in plain["who"]],
            [FieldWords(*one) for one in plain["behind"]], plain["went_on"],
        ),
        [PrefixForm(*one) for one in plain["forms"]],
    )
