"""How well drawn programs are read: `labels.jsonl` against what is read from their repositories.

    python -m tests.program.score FOLDER    # FOLDER/NN: the repository of draw.jsonl's line NN (from 00) at its commit

Says each difference and the sums that stand in README.md. The repositories are not kept here.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from runbook.model.program import OpenReason, ProgramOptions
from runbook.program import read_program

HERE = Path(__file__).parent


def main(folder: Path) -> None:
    places = {
        (row["repo"], row["path"]): number
        for number, row in enumerate(map(json.loads, (HERE / "draw.jsonl").read_text().splitlines()))
    }
    sums: Counter[str] = Counter()
    for label in map(json.loads, (HERE / "labels.jsonl").read_text().splitlines()):
        number = places[label["repo"], label["path"]]
        root = folder / f"{number:02}"

        def source_of(path: str, root: Path = root) -> bytes | None:
            file = root / path
            return file.read_bytes() if file.is_file() else None

        program = read_program(label["path"], source_of, search=[str(Path(label["path"]).parent), "."])
        for kind, what in judged(label, program):
            sums[kind] += 1
            if not kind.startswith("right"):
                print(f"{number:02} {label['repo']} {label['path']}: {kind}: {what}")
    for kind, count in sorted(sums.items()):
        print(f"{count:4} {kind}")


def judged(label: dict[str, Any], program: ProgramOptions | None) -> list[tuple[str, str]]:
    """What is right and what is not, by kind."""
    if program is None or label["parsers"] is None:
        none = program is None and label["parsers"] is None
        return [("right: no parser" if none else "wrong: parser", str(program and program.parsers))]
    named = set(label["parsers"]) <= set(program.parsers)
    found = [("right: parser" if named else "wrong: parser", str(program.parsers))]
    found += [_complete(label, program)] if label["complete"] is not None else []
    for name in label["inherits"]:
        held = any(one.endswith(name.rpartition(".")[2]) for one in program.inherits)
        found.append(("right: inherits" if held else "wrong: inherits", f"{name}: {program.inherits}"))
    for name, default in label["options"].items():
        option = program.option(name)
        if option is None:
            kind = "wrong: option missing" if program.complete else "missing: option, said to be open"
            found.append((kind, name))
        elif default not in ("*", option.default):
            kind = "unknown: default" if option.default is None else "wrong: default"
            found.append((kind, f"{name}: {option.default}, not {default}"))
        else:
            found.append(("right: option", name))
    for name in label["not_taken"]:
        taken = program.option(name) is not None
        found.append(("wrong: option not taken" if taken else "right: not taken", name))
    if label.get("config"):
        found.append(("right: config" if label["config"] in program.config else "wrong: config", str(program.config)))
    return found


def _complete(label: dict[str, Any], program: ProgramOptions) -> tuple[str, str]:
    if program.complete == label["complete"]:
        reasons = {reason.partition(" ")[0] for reason in program.open_because}
        inherited_only = reasons == {OpenReason.INHERITS.value}
        return "right: open by what it inherits" if inherited_only else "right: complete or open", ""
    kind = "wrong: said to be complete" if program.complete else "open: is complete"
    return kind, "; ".join(program.open_because)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
