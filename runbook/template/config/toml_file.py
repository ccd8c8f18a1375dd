"""TOML: tables, dotted keys, inline tables, arrays of tables."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache

from tree_sitter import Node, Parser

from runbook.model.template import TemplateFile
from runbook.template.config.document import DEEPEST, LARGEST, Config, Entry, Form, Holder, Leaf, Trouble
from runbook.template.language import Language
from runbook.template.splices import to_bytes

_KEYS = ("bare_key", "quoted_key", "dotted_key")
_FORMS = {"integer": Form.NUMBER, "float": Form.NUMBER, "boolean": Form.BOOLEAN, "string": Form.STRING}


@cache
def _parser() -> Parser:
    import tree_sitter_toml
    from tree_sitter import Language as Grammar

    return Parser(Grammar(tree_sitter_toml.language()))


def read(file: TemplateFile) -> Config:
    """The leaves of a TOML file. What `tomllib` refuses is broken: a key given twice, a table given twice."""
    data = to_bytes(file.text)
    try:
        tomllib.loads(file.text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Config(file, data, Language.TOML, broken=Trouble(1, f"the TOML is not understood: {error}"))
    root = _parser().parse(data).root_node
    if root.has_error:
        return Config(file, data, Language.TOML, broken=Trouble(1, "the TOML is not understood"))
    reader = _Reader(data)
    pairs: list[Node] = []
    for child in root.children:
        if child.type == "pair":
            pairs.append(child)
    first = next((child for child in root.children if child.type in ("table", "table_array_element")), None)
    end = first.start_byte if first is not None else len(data)
    reader.holder((), "table", 0, end, 1, pairs)
    reader.pairs(pairs, (), 0)
    for child in root.children:
        if child.type in ("table", "table_array_element"):
            reader.table(child)
    if len(reader.leaves) > LARGEST:
        return Config(file, data, Language.TOML, broken=Trouble(1, f"the file has more than {LARGEST} values"))
    return Config(file, data, Language.TOML, tuple(reader.leaves), tuple(reader.holders))


@dataclass(slots=True)
class _Reader:
    data: bytes
    leaves: list[Leaf] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    arrays: dict[tuple[str, ...], int] = field(default_factory=dict)

    def table(self, node: Node) -> None:
        header = next(child for child in node.children if child.type in _KEYS)
        path = self._placed(self._segments(header))
        if node.type == "table_array_element":
            count = self.arrays.get(path, 0)
            self.arrays[path] = count + 1
            path = (*path, str(count))
        pairs = [child for child in node.children if child.type == "pair"]
        close = next(child for child in reversed(node.children) if child.type in ("]", "]]"))
        self.holder(path, "table", close.end_byte, node.end_byte, node.start_point[0] + 1, pairs)
        self.pairs(pairs, path, 0)

    def _placed(self, segments: tuple[str, ...]) -> tuple[str, ...]:
        """A header's path: a name of an array of tables means the array's last element."""
        path: tuple[str, ...] = ()
        for at, segment in enumerate(segments):
            path = (*path, segment)
            if path in self.arrays and at < len(segments) - 1:
                path = (*path, str(self.arrays[path] - 1))
        return path

    def holder(
        self, path: tuple[str, ...], shape: str, start: int, end: int, line: int, pairs: list[Node]
    ) -> None:
        entries = []
        for pair in pairs:
            key = next(child for child in pair.children if child.type in _KEYS)
            value = _value(pair)
            one_line = pair.start_point[0] == value.end_point[0]
            entries.append(Entry(".".join(self._segments(key)), pair.start_byte, value.end_byte, one_line))
        self.holders.append(Holder(path, shape, start, end, line, tuple(entries)))

    def pairs(self, pairs: list[Node], path: tuple[str, ...], depth: int) -> None:
        for pair in pairs:
            key = next(child for child in pair.children if child.type in _KEYS)
            value = _value(pair)
            self.value(value, (*path, *self._segments(key)), (pair.start_byte, value.end_byte), depth)

    def value(self, node: Node, path: tuple[str, ...], entry: tuple[int, int], depth: int) -> None:
        line = node.start_point[0] + 1
        if depth > DEEPEST or len(self.leaves) > LARGEST:
            return
        if node.type == "inline_table":
            pairs = [child for child in node.children if child.type == "pair"]
            self.holder(path, "brackets", node.start_byte, node.end_byte, line, pairs)
            self.pairs(pairs, path, depth + 1)
            return
        raw = self.data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")
        form = _FORMS.get(node.type, Form.OTHER)
        text: str | None = raw
        reason = ""
        if node.type == "array":
            form = Form.LIST
            if node.start_point[0] != node.end_point[0]:
                text, reason = None, f"a list over several lines (line {line})"
        elif node.type == "string" or node.type == "integer":
            text = str(tomllib.loads(f"v = {raw}")["v"])
        pinned = "it is a text over several lines" if form is Form.STRING and "\n" in raw else ""
        self.leaves.append(
            Leaf(
                path, text, form, node.start_byte, node.end_byte, line, raw, unresolved=reason, pinned=pinned,
                entry=entry,
            )
        )
        if node.type == "array":
            items = [child for child in node.children if child.is_named and child.type != "comment"]
            for at, item in enumerate(items):
                self.value(item, (*path, str(at)), (-1, -1), depth + 1)

    def _segments(self, node: Node) -> tuple[str, ...]:
        if node.type == "dotted_key":
            return tuple(
                part for child in node.children if child.type in _KEYS for part in self._segments(child)
            )
        text = self.data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")
        if node.type == "quoted_key":
            return (next(iter(tomllib.loads(f"{text} = 0"))),)
        return (text,)


def _value(pair: Node) -> Node:
    """A pair's value; the pair itself goes on over the carriage return behind it."""
    return next(child for child in reversed(pair.children) if child.is_named and child.type != "comment")
