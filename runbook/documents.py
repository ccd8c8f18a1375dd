"""YAML documents: read, checked against a pydantic model, every problem reported at once with file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from runbook.compiled import Compiled
from runbook.errors import BadInput


class Document(BaseModel):
    """Base of every document and of every part of one: unknown keys are refused, values do not change. What checks one
    is made when the first of its kind is checked: most are read from their compiled form."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, defer_build=True)


def _compiles(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return value


Pattern = Annotated[str, AfterValidator(_compiles)]
"""The type of a document's key whose text has to be a regular expression."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a document."""

    file: str
    line: int
    path: str
    """Where inside it: "levers.2.edits.0.kind"."""
    expected: str
    next_step: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        path = f" {self.path}:" if self.path else ""
        return f"{place}:{path} {self.expected}" + (f" — {self.next_step}" if self.next_step else "")


class DocumentsInvalid(BadInput):
    """Every problem of every document that was read."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        super().__init__(
            f"{count} problem{'s' if count != 1 else ''} in documents:\n  "
            + "\n  ".join(str(problem) for problem in self.problems),
            next_step="mend what is named above, then `runbook playbooks check`",
        )


_Model = TypeVar("_Model", bound=BaseModel)
_SECRET = frozenset({"urls", "database", "notify"})
"""Keys of documents below which a value is never shown."""


def load_document(path: Path, model: type[_Model], shown_as: str | None = None, *, kept: bool = False) -> _Model:
    """Read one YAML file as `model`; `kept`: by way of what its YAML says as `keep_data` wrote it. Raises
    `DocumentsInvalid` with the lines at fault."""
    name = shown_as or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DocumentsInvalid([Problem(name, 1, "", f"expected UTF-8 text: {error}")]) from error
    except OSError as error:
        problem = Problem(name, 0, "", f"cannot be read: {error.strerror}", "let this user read it")
        raise DocumentsInvalid([problem]) from error
    compiled = compiled_data(path) if kept else None
    data = compiled.read() if compiled is not None else None
    if data is not None:
        try:
            return model.model_validate(data)
        except ValidationError:
            pass  # with the lines at fault, below
    return parse_document(text, model, name)


def compiled_data(path: Path) -> Compiled | None:
    """The place of what a document's YAML says, as plain JSON: parsing it takes longer than checking it."""
    return Compiled.of(path.with_name(f"{path.stem}_data.yaml"), [path], [])


def keep_data(path: Path) -> None:
    """Write it. Raises `OSError`."""
    from ruamel.yaml import YAML

    compiled = compiled_data(path)
    if compiled is not None:
        compiled.write(json.loads(json.dumps(YAML(typ="safe").load(path.read_text(encoding="utf-8")), default=str)))


def parse_document(text: str, model: type[_Model], name: str) -> _Model:
    """As `load_document`, for text at hand. `name` stands for the file in messages."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        data = YAML(typ="safe").load(text)
    except MarkedYAMLError as error:
        line = (error.problem_mark.line + 1) if error.problem_mark else 1
        raise DocumentsInvalid([Problem(name, line, "", f"not valid YAML: {error.problem}")]) from error
    except YAMLError as error:
        raise DocumentsInvalid([Problem(name, 1, "", f"not valid YAML: {error}")]) from error
    if not isinstance(data, dict):
        raise DocumentsInvalid([Problem(name, 1, "", "expected a mapping at the top of the document")])
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise DocumentsInvalid(list(_problems(error, text, name))) from error


def load_folder(folder: Path, model: type[_Model]) -> tuple[tuple[Path, _Model], ...]:
    """All `*.yaml` of a folder in name order. Every problem of every file is reported in one error."""
    loaded: list[tuple[Path, _Model]] = []
    problems: list[Problem] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            loaded.append((path, load_document(path, model)))
        except DocumentsInvalid as error:
            problems.extend(error.problems)
    if problems:
        raise DocumentsInvalid(problems)
    return tuple(loaded)


def _problems(error: ValidationError, text: str, name: str) -> Iterable[Problem]:
    """Line numbers are looked up only here: the fast parser keeps none."""
    from ruamel.yaml import YAML

    root = YAML(typ="rt").compose(text)
    for item in error.errors(include_url=False):
        location = list(item["loc"])
        line = _line(root, location)
        if item["type"] == "extra_forbidden":
            expected, next_step = "unknown key", "remove it, or check its spelling"
        elif item["type"] == "missing":
            expected, next_step = "required key is missing", "add it"
        else:
            # What stands there instead of an address with a password may be one all the same.
            shown = "a value not shown here" if _SECRET & set(map(str, location)) else repr(item.get("input"))
            expected = f"{item['msg']}, got {shown if len(shown) < 60 else shown[:57] + '...'}"
            next_step = ""
        yield Problem(name, line, ".".join(str(part) for part in location), expected, next_step)


def _line(node: object, location: Sequence[int | str]) -> int:
    """Line (from 1) of the deepest node that `location` reaches; union branch names in it are skipped."""
    line = getattr(getattr(node, "start_mark", None), "line", 0)
    for part in location:
        value = getattr(node, "value", None)
        if isinstance(part, int) and isinstance(value, list) and part < len(value):
            node = value[part]
        elif isinstance(value, list) and value and isinstance(value[0], tuple):
            for key, child in value:
                if key.value == str(part):
                    line = key.start_mark.line
                    node = child
                    break
            continue
        else:
            continue
        line = getattr(getattr(node, "start_mark", None), "line", line)
    return line + 1
