"""What files and documents say → what an assistant is told of it: `diagnose`, `predict`, `explain`, `levers`.

Only files of this program's own documents are opened here, to find the line on which something is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runbook.assistant import Answer, Evidence, Outside, Place, Told
from runbook.assistant.shaping import chosen, commands, failed, said, unread
from runbook.errors import NothingToDo

_FIRST = 2
_UNDETERMINED = 4
"""`runbook diagnose`: no cause could be named."""


def diagnosis(told: Told, words: Sequence[str]) -> Answer:
    """Of `runbook diagnose --json --why`. `words`: the command's, with the paths behind `--`."""
    found = told.data
    if found is None:
        return failed(told, ("diagnose", *words))
    root = found["root_cause"]
    answer = {
        **chosen(found, (
            "diagnosis", "runners_up", "progress", "framework", "framework_version", "world_size", "collateral",
        )),
        "fields": {name: value for name, value in (found["fields"] or {}).items() if value not in (None, [])},
        "first_failure": {name: value for name, value in (root or {}).items() if name != "excerpt"} or None,
        "other_failures": [chosen(one, ("signature", "rank", "node", "file", "line")) for one in found["candidates"]],
        "lines": [chosen(one, ("file", "line", "signature", "says", "taken_as", "because")) for one in found["lines"]],
    }
    first = (root["file"], root["line"]) if root else None
    lines = sorted(found["lines"], key=lambda one: (one["file"], one["line"]) != first)
    not_seen = [
        "Only what stands in these files is judged: no node, no scheduler and no other file of the job was looked at.",
        *map(Outside, (*found["diagnosis"]["missing"], *found["notes"])), *unread(found["sources"]), *said(told),
    ]
    if told.exit_code == NothingToDo.exit_code:
        not_seen.append("No memory failure was found in what was read. That does not say that the job is well.")
    elif told.exit_code == _UNDETERMINED:
        not_seen.append("The cause could not be determined from what was read. That does not say that the job is well.")
    logs = [f"--log={word}" for word in words[words.index("--") + 1:]] if "--" in words else []
    return Answer(
        answer, tuple(Evidence(one["file"], one["line"], one["text"]) for one in lines), tuple(not_seen),
        commands(
            ("diagnose", "--why", *words), *((("explain", root["signature"]),) if root else ()),
            *((("node", "NODE"),) if root and root["node"] else ()),
            ("oom", "--plan", *logs, "--template=TEMPLATE"),
        ),
    )


def explanation(told: Told, topic: str, place: Place) -> Answer:
    """Of `runbook explain --json`."""
    if told.data is None:
        return failed(told, ("explain", "--", topic))
    found = told.data if isinstance(told.data, list) else [told.data]
    index = _Documents(place)
    evidence = [one for entry in found if (one := index.place_of(entry)) is not None]
    return Answer(
        found, tuple(evidence),
        ("This is what the word means in general: no job, no log and no node was looked at.", *said(told)),
        commands(("explain", "--", topic)), ours=True,
    )


def levers(told: Told, words: Sequence[str], place: Place, *, in_full: bool) -> Answer:
    """Of `runbook levers --json`. `in_full`: each lever with what it does and costs."""
    if told.data is None:
        return failed(told, ("levers", *words))
    answer, named = [], []
    for document in told.data:
        used = dict.fromkeys(name for ladder in document["ladders"] for name in ladder["levers"])
        if in_full:
            of_one = ("id", "kinds", "phases", "levers", "why", "question")
            ladders = [chosen(one, of_one) for one in document["ladders"]]
        else:
            ladders = [
                chosen(one, ("id", "kinds")) | {"first_levers": one["levers"][:_FIRST], "levers": len(one["levers"])}
                for one in document["ladders"]
            ]
        told_levers = [
            chosen(one, ("id", "title", "why", "relieves", "effect", "cost", "consent"))
            for one in document["levers"] if one["id"] in used
        ]
        answer.append({"system": document["id"], "title": document["title"], "ladders": ladders}
                      | ({"levers": told_levers} if in_full else {}))
        named += [{"system": document["id"], **one} for one in (told_levers if in_full else [{"id": document["id"]}])]
    index = _Documents(place)
    evidence = [one for entry in named if (one := index.place_of(entry)) is not None]
    return Answer(
        answer, tuple(evidence),
        ("No launch script was looked at: which of these fits a job, and with which value, is not said here.",
         *(() if in_full else ("Single levers are left out: ask for one system.",)), *said(told)),
        commands(("levers", *words), ("patch", "--lever=NAME", "--template=TEMPLATE")), ours=True,
    )


def forecast(told: Told, shown: Told, words: Sequence[str], template: str) -> Answer:
    """Of `runbook predict --json`, with the lines of `runbook template show --json`."""
    found = told.data
    settings = [one for one in (shown.data or {}).get("parameters", ()) if one["file"] and one["line"]]
    evidence = [Evidence(one["file"], one["line"], f"{one['spelling']} {one['value'] or ''}") for one in settings]
    not_seen = [
        "Nothing was run: these are sums of a model of the training, with the bounds that are told.", *said(told),
    ]
    for one in filter(None, (found["forecast"], found["before"])):
        not_seen += [f"not known: {name}" for name in (*one["missing"], *one["open"])]
        not_seen += [f"taken for granted: {name}" for name in one["assumed"]]
    if not found["forecast"]["anchors"]:
        not_seen.append("No log corrected the sum: formulas alone miss by an eighth to a fifth in the median.")
    if shown.data is None:
        not_seen.append("On which lines the script sets what was read could not be told.")
    not_seen += map(Outside, (*found["notes"], *map(str, (shown.data or {}).get("unread") or ())))
    asked = ("forecast", "before", "largest", "too_large")
    told_of = {
        name: one | {"verdict": "_".join(one["verdict"].split())} for name in asked if (one := found[name]) is not None
    }
    return Answer(
        found | told_of, tuple(evidence) or (Evidence(template, None, "read as a whole"),),
        tuple(dict.fromkeys(not_seen)),
        commands(("predict", *words), ("template", "show", "--", template)),
    )


_DOCUMENT_OF = {
    "xid": "xid.yaml", "term": "terms.yaml", "alert": "alerts.md", "box": "flow.yaml", "id": "", "kind": "kinds.yaml",
}
"""Which entry stands in which document, by the name that it goes by; "": in that of its system, or in any."""


class _Documents:
    """Where the documents of the playbooks say something."""

    def __init__(self, place: Place) -> None:
        files = sorted(path for path in place.documents.rglob("*.yaml") if not path.name.endswith(".samples.yaml"))
        self._files = (*files, place.docs / "alerts.md")
        self._lines: dict[Path, list[str]] = {}

    def place_of(self, entry: Mapping[str, Any]) -> Evidence | None:
        """Of an entry that `explain` or `levers` told of; None where no document has a line for it."""
        key = next((key for key in _DOCUMENT_OF if entry.get(key) is not None), "")
        name, document = str(entry.get(key, "")), _DOCUMENT_OF.get(key) or f"{entry.get('system') or ''}.yaml"
        word = re.escape(name)
        defines = re.compile(
            rf"\s*(?:- )?id: [\"']?{word}[\"']?\s*$|\s*{word}:|#+ {word}\s*$"
            rf"|\s*(?:- )?\{{?(?:codes|names): \[(?:[^]]*[\s\"',])?{word}[\"',\]]"
        )
        for path in sorted(self._files, key=lambda one: one.name != document):
            for number, line in enumerate(self._read(path), start=1):
                if name and defines.match(line):
                    return Evidence(str(path), number, line.strip())
        return None

    def _read(self, path: Path) -> list[str]:
        if path not in self._lines:
            self._lines[path] = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return self._lines[path]
