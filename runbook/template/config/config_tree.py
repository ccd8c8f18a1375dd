"""What every configuration language becomes: leaves with their byte ranges, and mappings that can take a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib import import_module

from tree_sitter import Language as Grammar
from tree_sitter import Node, Parser

from runbook.model.template import ParameterNames, TemplateFile, condition_of
from runbook.template.budget import MOST_CONFIG_BYTES, Budget, TooMuch, refuse_deep, refuse_large
from runbook.template.text_files import Language

MOST_LEAVES = 100_000
"""Leaves of one file; aliases of aliases could make any number of them."""
MOST_LEVELS = 60

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")


class Form(StrEnum):
    """How a value is typed, whatever the language."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"
    STRING = "string"
    LIST = "list"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class MappingNode:
    """A mapping, table, dict literal or call that can take a further key."""

    path: tuple[str, ...]
    shape: str
    """"block" (YAML lines), "brackets" (`{…}` and `(…)`), "table" (a TOML table), "module" (a Python file)."""
    start: int
    end: int
    line: int
    entries: tuple[Entry, ...]
    document: int = 0
    closed: str = ""
    """Why nothing can be added here; "" when it can."""
    call: bool = False
    """A Python call: keys are keywords."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value as it is written."""

    key: str
    start: int
    end: int
    simple: bool = True
    """The value is one scalar on one line."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that is not a mapping. Replacing bytes `start` to `end` sets this leaf; -1: it is not written here."""

    path: tuple[str, ...]
    value: str | None
    form: Form
    start: int
    end: int
    line: int
    raw: str = ""
    trail: tuple[str, ...] = ()
    unresolved: str = ""
    pinned: str = ""
    """Why it cannot be replaced where it stands."""
    override_target: MappingNode | None = None
    """The mapping that inherits this value; writing the key there overrides it."""
    entry: tuple[int, int] = (-1, -1)
    """Bytes of key and value together."""
    document: int = 0
    lead: bytes = b""
    """What has to stand in front of a value that is written here: the blank behind the colon of an empty key."""
    flow: bool = False
    """Inside `{…}` or `[…]`."""
    references: tuple[str, ...] = ()
    """The keys, or the variable, from which the value comes."""
    computed: bool = False
    """Python code makes the value."""
    function: str = ""
    """The Python function in which it stands: "main()"."""


@dataclass(frozen=True, slots=True)
class ParseProblem:
    """Why nothing can be said of a file, or of what is absent in it."""

    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration file, read once."""

    file: TemplateFile
    data: bytes
    language: Language
    leaves: tuple[Leaf, ...] = ()
    mapping_nodes: tuple[MappingNode, ...] = ()
    broken: ParseProblem | None = None
    open_ended: ParseProblem | None = None
    """Why a key that is absent here may be set elsewhere."""
    loose: bool = False
    """Keys are matched by the end of their path: Python, where variables, functions and calls stand in front."""
    mentions: bytes = b""
    """The text without comments, in which an absent key must not stand; empty: not looked for."""
    by_key: Mapping[str, list[Leaf]] = field(default_factory=dict)
    """Leaves by dotted path; of a loose file by the last part."""
    mappings: Mapping[str, MappingNode] = field(default_factory=dict)
    """Holders by dotted path."""


@cache
def _parser(grammar: str) -> Parser:
    return Parser(Grammar(import_module(f"tree_sitter_{grammar}").language()))


def parsed(language: Language, data: bytes) -> Node:
    """The root of the syntax tree. A grammar is loaded when a file of its language is read. Raises `TooMuch`."""
    refuse_large(len(data), MOST_CONFIG_BYTES)
    if language is Language.YAML:
        _refuse_indented(data)
    root = _parser(language.lower()).parse(data).root_node
    refuse_deep(root)
    return root


_MOST_COLUMNS = 200
_INDENTED = re.compile(rb"(?:[ \t]|[-?:](?=[ \t\r\n]|\Z)){%d}" % _MOST_COLUMNS)
"""What stands in front of a block's first word: blanks, and the marks of lists and keys that begin on the same line."""


def _refuse_indented(data: bytes) -> None:
    """The scanner of tree-sitter-yaml 0.7 keeps the columns of 250 blocks inside each other and writes past its memory
    with more (`- - - …`), which ends the process. A block begins further right than the one around it."""
    match = _INDENTED.search(data)
    if match:
        line = data.count(b"\n", 0, match.start()) + 1
        raise TooMuch(f"what stands at line {line} is indented by more than {_MOST_COLUMNS} columns")


def node_line(node: Node) -> int:
    return int(node.start_point[0]) + 1


def on_one_line(node: Node) -> bool:
    return bool(node.start_point[0] == node.end_point[0])


@dataclass(slots=True)
class TreeReader:
    """What a reader of one language collects."""

    data: bytes
    leaves: list[Leaf] = field(default_factory=list)
    mapping_nodes: list[MappingNode] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)

    def text(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")


def with_index(config: Config) -> Config:
    """The same with its tables filled: a file of thousands of lines is asked for dozens of keys."""
    by_key: dict[str, list[Leaf]] = {}
    for leaf in config.leaves:
        key = leaf.path[-1] if config.loose and leaf.path else ".".join(leaf.path)
        by_key.setdefault(key, []).append(leaf)
    return replace(config, by_key=by_key, mappings={".".join(item.path): item for item in config.mapping_nodes})


def leaves_of(config: Config, wanted: tuple[str, ...]) -> list[Leaf]:
    """The leaves that a dotted key means."""
    if not config.loose:
        return config.by_key.get(".".join(wanted), [])
    return [leaf for leaf in config.by_key.get(wanted[-1], []) if is_wanted_key(config, leaf.path, wanted)]


def last_of_mapping(config: Config, leaves: Sequence[Leaf]) -> Leaf | None:
    """Of values that one mapping of YAML or JSON gives a key more than once the last, as their readers have it; None
    where they stand in several mappings, or a language refuses it."""
    last = leaves[-1]
    holders = [item for item in config.mapping_nodes if item.path == last.path[:-1] and item.document == last.document]
    alike = all(item.path == last.path and item.document == last.document and not item.trail for item in leaves)
    taken = config.language in (Language.YAML, Language.JSON) and alike and len(holders) == 1
    return last if taken else None


def key_paths(name: ParameterNames, config: Config | None = None) -> tuple[tuple[str, ...], ...]:
    """The spellings that are keys, as paths, without the prefix of a Hydra override; those that hold in this file."""
    return tuple(
        tuple(bare_key(item).split("."))
        for item in name.spellings
        if not item.startswith("-") and (config is None or holds_in(item, config))
    )


def bare_key(spelling: str) -> str:
    """The key itself: without what stands in front of an override, and without the files in which it holds."""
    return condition_of(spelling.lstrip("+~"))[0]


def holds_in(spelling: str, config: Config) -> bool:
    """Whether a spelling is meant for this file (`condition_of`)."""
    _, word, marks = condition_of(spelling)
    there = any(mark in config.by_key or mark in config.mappings for mark in marks)
    return not word or there is (word == "beside")


def is_wanted_key(config: Config, path: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether a path of the file is the wanted key. Keys that hold dots themselves count as written out."""
    if not config.loose:
        return ".".join(path) == ".".join(wanted)
    return bool(path) and path[-1] == wanted[-1] and ends_with(path, wanted)


def ends_with(path: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether a loose path ends with the wanted parts; names of functions and calls (`main()`) may be left out."""
    left = len(wanted)
    for part in reversed(path):
        if not left:
            return True
        if part.removesuffix("()") == wanted[left - 1]:
            left -= 1
        elif not part.endswith("()"):
            return False
    return not left


def form_of(text: str) -> Form:
    """What a wanted value is when nothing else is known of its type."""
    if text in ("true", "false", "True", "False"):
        return Form.BOOLEAN
    if text in ("null", "None"):
        return Form.NULL
    if _NUMBER.fullmatch(text):
        return Form.NUMBER
    if text[:1] == "[" and text[-1:] == "]":
        return Form.LIST
    return Form.STRING


def has_value(leaf: Leaf, wanted: str) -> bool:
    """Whether the leaf has the wanted value; `True` and `true` are one, blanks in a list do not count."""
    if leaf.value is None:
        return False
    if leaf.form in (Form.BOOLEAN, Form.NULL):
        return form_of(wanted) is leaf.form and _lower_literal(wanted) == _lower_literal(leaf.value)
    if leaf.form is Form.LIST:
        return re.sub(r"\s+", "", leaf.value) == re.sub(r"\s+", "", wanted)
    return leaf.value == wanted


def _lower_literal(text: str) -> str:
    return "null" if text == "None" else text.lower()


def wanted_form(leaf: Leaf | None, new: str) -> Form:
    """The form in which a new value is written: a number that somebody put in quotes stays in quotes."""
    form = form_of(new)
    if leaf is not None and leaf.form is Form.STRING and form is not Form.LIST:
        quoted_on_purpose = leaf.value is not None and form_of(leaf.value) is not Form.STRING
        if quoted_on_purpose:
            return Form.STRING
    return form


def json_text(new: str, form: Form) -> str:
    """A value in JSON, which YAML and TOML read as well."""
    if form is Form.STRING:
        return json.dumps(new, ensure_ascii=False)
    if form in (Form.BOOLEAN, Form.NULL):
        return _lower_literal(new)
    return new


def newline(data: bytes, at: int) -> bytes:
    """The line break in use around a place."""
    end = data.find(b"\n", at)
    if end < 0:
        end = data.rfind(b"\n", 0, at)
    return b"\r\n" if end > 0 and data[end - 1 : end] == b"\r" else b"\n"


# `${a.b}` in a value: OmegaConf's references within one document, followed to the value they lead to.

_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_MOST_REFERENCES = 8


def with_references_resolved(leaves: Sequence[Leaf], budget: Budget) -> Iterator[Leaf]:
    """The leaves with the value that their references lead to, or where the trail ended. Raises `TooMuch`."""
    if not any("${" in (leaf.value or "") for leaf in leaves):
        yield from leaves
        return
    table: dict[tuple[int, str], list[Leaf]] = {}
    for leaf in leaves:
        table.setdefault((leaf.document, ".".join(leaf.path)), []).append(leaf)
    for leaf in leaves:
        yield _followed(leaf, table, 0, budget) if "${" in (leaf.value or "") else leaf


def _followed(leaf: Leaf, table: dict[tuple[int, str], list[Leaf]], depth: int, budget: Budget) -> Leaf:
    text = leaf.value or ""
    whole = _REFERENCE.fullmatch(text)
    trail, references = leaf.trail, leaf.references
    pieces: list[str] = []
    position = 0
    form = Form.STRING
    for match in _REFERENCE.finditer(text):
        target = _reference_target(leaf, match[1])
        found = table.get((leaf.document, target), []) if target else []
        if len(found) == 1 and found[0].value is not None and depth < _MOST_REFERENCES:
            other = found[0]
            if "${" in (other.value or ""):
                other = _followed(other, table, depth + 1, budget)
        else:
            other = None
        if other is None or other.value is None:
            return replace(leaf, value=None, unresolved=f"the reference {match[0]} decides (line {leaf.line})")
        budget.spend(10 + len(other.value) + len(trail))
        trail = (*trail, f"{match[0]} at line {leaf.line}", f"{target} at line {other.line}")
        references = (*references, target)
        pieces += [text[position : match.start()], other.value]
        position = match.end()
        form = other.form if whole else Form.STRING
    rest = text[position:]
    if "${" in rest or not pieces:
        return replace(leaf, value=None, unresolved=f"the reference in {text[:60]!r} decides (line {leaf.line})")
    return replace(leaf, value="".join([*pieces, rest]), form=form, trail=trail, references=references)


def _reference_target(leaf: Leaf, name: str) -> str:
    """The dotted path that a reference names; leading dots go up from the key's own mapping."""
    if not re.fullmatch(r"\.*[A-Za-z_][\w-]*(?:\.[\w-]+)*", name):
        return ""
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    base = leaf.path[:-dots]
    return ".".join([*base, name[dots:]])
