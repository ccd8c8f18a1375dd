"""The documents of systems for the commands; `runbook levers`: what can be changed to free memory, by system, kind of
failure and phase, in the ladder's order.
"""

from __future__ import annotations

import difflib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from runbook.cli.say import echo
from runbook.errors import BadInput, NotFound
from runbook.explain.changes import when
from runbook.kinds import load_kinds
from runbook.locations import playbook_folder
from runbook.model.log import Phase
from runbook.remedy import Ladder, LeverDocument, load_levers
from runbook.report.text import paragraph, table


def levers(systems: tuple[str, ...], kind: str | None, phase: str | None, as_json: bool, playbook: Path | None) -> int:
    """`runbook levers`."""
    documents = lever_documents(playbook)
    ids = {named_system(name, documents).id for name in systems}
    chosen = tuple(item for item in documents if not ids or item.id in ids)
    wanted = _wanted(kind, phase, playbook)
    if as_json:
        told = [_plain(document, wanted) for document in chosen]
        echo(json.dumps(told, indent=2, ensure_ascii=False))
        return 0
    width = terminal_width()
    in_full = bool(systems or kind or phase)
    shown = 0
    for document in chosen:
        ladders = [ladder for ladder in document.ladders if _is_wanted(ladder, document, wanted)]
        if not ladders:
            continue
        if shown:
            echo()
        shown += 1
        _heading(document)
        for line in _rungs(document, ladders, width) if in_full else _overview(ladders, width):
            echo(line)
    if not shown:
        raise NotFound(
            "no ladder is for that", next_step="`runbook levers SYSTEM` shows all of one system; leave a filter out"
        )

    hint = "`runbook explain LEVER` tells all about one" if in_full else "`runbook levers SYSTEM` shows every rung"
    for line in ["", *paragraph(f"{hint}; `runbook patch` writes one into a copy of a launch script", width, "")]:
        echo(line)
    return 0


def lever_documents(playbook: Path | None) -> tuple[LeverDocument, ...]:
    """The systems of a playbook folder. Raises `NotFound` where it has none, `DocumentsInvalid`."""
    folder = playbook_folder(playbook) / "levers"
    documents = load_levers(folder)
    if not documents:
        raise NotFound(f"no lever document lies in {folder}", next_step="name a playbook folder with --playbook")
    return documents


def named_system(name: str, documents: Sequence[LeverDocument]) -> LeverDocument:
    """By its id, whatever its case. Raises `NotFound` with the names that there are."""
    wanted = name.strip().lower().replace("-", "_")
    for document in documents:
        if document.id == wanted:
            return document
    ids = [document.id for document in documents]
    near = difflib.get_close_matches(wanted, ids, 1, 0.6)
    raise NotFound(
        f"no system is called {name!r}",
        next_step=(f"perhaps {near[0]}; " if near else "") + f"there are {', '.join(ids)}",
    )


def titled(document: LeverDocument) -> str:
    """ "megatron: Megatron-LM, …": the word to type, and what it stands for."""
    return document.id if document.title.lower() == document.id else f"{document.id}: {document.title}"


def terminal_width() -> int:
    """Of the terminal; 120 where the output is piped."""
    return max(60, min(160, shutil.get_terminal_size((120, 24)).columns))


def _wanted(kind: str | None, phase: str | None, playbook: Path | None) -> tuple[str, str]:
    kind, phase = (kind or "").replace("-", "_").lower(), (phase or "").replace("-", "_").lower()
    for option, value, known in (("--kind", kind, list(load_kinds(playbook))), ("--phase", phase, list(Phase))):
        if value and value not in known:
            raise BadInput(f"{option}: there is no {value!r}", next_step=f"there are {', '.join(known)}")
    return kind, phase


def _is_wanted(ladder: Ladder, document: LeverDocument, wanted: tuple[str, str]) -> bool:
    kind, phase = wanted
    if kind and kind not in ladder.kinds:
        return False
    return not phase or phase in (ladder.phases or (phase,))


def _heading(document: LeverDocument) -> None:
    reach = f", {len(document.out_of_reach)} out of a template's reach" if document.out_of_reach else ""
    counts = f"{len(document.parameters)} parameters, {len(document.levers)} levers{reach}"
    title = document.id if document.title.lower() == document.id else f"{document.id}  {document.title}"
    echo(title, bold=True)
    echo(f"  {counts}")


def _overview(ladders: Sequence[Ladder], width: int) -> list[str]:
    rows = []
    seen: dict[tuple[str, ...], str] = {}
    for ladder in ladders:
        same = seen.setdefault(ladder.levers, ladder.id) if ladder.levers else ladder.id
        steps = " → ".join(ladder.levers[:4]) + (f" → {len(ladder.levers) - 4} more" if len(ladder.levers) > 4 else "")
        if same != ladder.id:
            steps = f"as {same}"
        rows.append((ladder.id, when(ladder), steps or "no lever: a person is asked"))
    lines: list[str] = []
    for name, failure, steps in rows:
        lines += table((), [(name, failure)], width)
        lines += table((), [("    ", steps)], width)
    return lines


def _rungs(document: LeverDocument, ladders: Sequence[Ladder], width: int) -> list[str]:
    lines: list[str] = []
    seen: dict[tuple[str, ...], str] = {}
    for ladder in ladders:
        lines += ["", *paragraph(f"{when(ladder)}  [{ladder.id}]", width, "    ", "  ")]
        if not ladder.levers:
            lines += paragraph(f"no lever: {ladder.why} {ladder.question}", width, "    ")
            continue
        first = seen.setdefault(ladder.levers, ladder.id)
        if first != ladder.id:
            lines += paragraph(f"the same rungs as {first}", width, "    ")
            continue
        rows = []
        for number, name in enumerate(ladder.levers, start=1):
            rule = document.lever(name)
            asks = " asks" if rule.consent and rule.effect != "training" else ""
            relieves = ", ".join(item.replace("_", " ") for item in rule.relieves)
            rows.append((f"{number:>2}", rule.id, relieves, f"{rule.effect}{asks}", rule.cost))
        lines += table(("", "lever", "relieves", "effect", "cost"), rows, width)
    return lines


def _plain(document: LeverDocument, wanted: tuple[str, str]) -> dict[str, object]:
    told = document.model_dump(mode="json", by_alias=True)
    told["ladders"] = [
        ladder.model_dump(mode="json") for ladder in document.ladders if _is_wanted(ladder, document, wanted)
    ]
    return told
