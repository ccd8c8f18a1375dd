"""`runbook signatures`: the log lines that the tool knows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from runbook.cli.say import echo
from runbook.errors import NotFound
from runbook.explain.lines import entries
from runbook.logs.signatures.signature_document import SignatureEntry


def signatures(words: tuple[str, ...], means: str | None, as_json: bool, playbook: Path | None) -> int:
    """`runbook signatures`."""
    found = [(document, entry) for document, entry in entries(playbook) if _wanted(document, entry, words, means)]
    if not found:
        known = ", ".join(sorted({entry.means for _, entry in entries(playbook)}))
        raise NotFound("no signature matches", next_step=f"meanings are: {known}")
    if as_json:
        echo(json.dumps([
            {"id": entry.id, "document": document, "means": entry.means, "versions": entry.versions or None,
             "title": entry.title} for document, entry in found
        ], indent=2, ensure_ascii=False))
        return 0
    columns = ("id", "means", "versions")
    rows = [(entry.id, entry.means, entry.versions, entry.title) for _, entry in found]
    widths = [max(len(name), *(len(row[index]) for row in rows)) for index, name in enumerate(columns)]
    room = max(20, shutil.get_terminal_size((120, 24)).columns - sum(widths) - 2 * len(widths))
    echo("  ".join(f"{name:<{width}}" for name, width in zip(columns, widths)) + "  title", bold=True)
    for row in rows:
        title = row[3] if len(row[3]) <= room else row[3][: room - 1] + "…"
        echo("  ".join(f"{value:<{width}}" for value, width in zip(row, widths)) + f"  {title}")
    echo(f"{len(rows)} signature{'s' if len(rows) > 1 else ''}; runbook explain ID tells more about one")
    return 0


def _wanted(document: str, entry: SignatureEntry, words: tuple[str, ...], means: str | None) -> bool:
    if means is not None and entry.means != means:
        return False
    text = f"{document} {entry.id} {entry.means} {entry.title} {entry.why} {entry.source}".lower()
    return all(word.lower() in text for word in words)
