"""`runbook explain`: what a word of this program, Slurm, CUDA or the driver means, and where that is known from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from runbook.cli.files.levers import terminal_width
from runbook.cli.say import echo
from runbook.errors import NotFound
from runbook.explain import Row, Topic
from runbook.explain.topics import near, topics_of
from runbook.report.text import labelled
from runbook.report.vocabulary.clean import clean_line, shorten

_WHOLE_UP_TO = 3
"""So many topics of one system are told in full; others in short, and how to ask for one."""
_SHOWN_WORD = 80


def explain(words: Sequence[str], as_json: bool, playbook: Path | None) -> int:
    """`runbook explain`."""
    word = " ".join(words)
    found = topics_of(word, playbook)
    if not found:
        close = near(word, playbook)
        raise NotFound(
            f"nothing here is called {shorten(clean_line(word), _SHOWN_WORD)!r}",
            next_step=f"perhaps {', '.join(close)}" if close else "`runbook signatures` and `runbook levers` list some",
        )
    if as_json:
        told = [dict(topic.data) for topic in found]
        echo(json.dumps(told[0] if len(told) == 1 else told, indent=2, ensure_ascii=False))
        return 0
    width = min(120, terminal_width())
    systems = list(dict.fromkeys(topic.system or topic.name for topic in found))
    if len(found) == 1 or (len(systems) == 1 and len(found) <= _WHOLE_UP_TO):
        for at, topic in enumerate(found):
            if at:
                echo()
            _in_full(topic, width)
        return 0
    of_systems = all(topic.system for topic in found)
    where = f", in {len(systems)} system{'s' if len(systems) > 1 else ''}: {', '.join(systems)}" if of_systems else ""
    echo(f"{len(found)} entries have this name{where}.")
    for topic in found:
        echo()
        _heading(topic)
        _tell(topic.short, width)
    echo(f"\n`runbook explain {found[0].name}` tells all about one")
    return 0


def _in_full(topic: Topic, width: int) -> None:
    _heading(topic)
    _tell(topic.rows, width)
    for line in topic.lines:
        echo(f"  {line}" if line else "")
    if topic.see:
        _tell((("see also", ", ".join(topic.see)),), width)
    if topic.hint:
        echo(f"\n{topic.hint}")


def _heading(topic: Topic) -> None:
    echo("  ".join(dict.fromkeys((topic.name, topic.title))), bold=True)


def _tell(told: Sequence[Row], width: int) -> None:
    for label, text in told:
        for line in labelled(label, " ".join(text.split()), width):
            echo(line)
