"""JSON, with the comments that some readers (hjson, as DeepSpeed's) allow; and TOML."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field

from tree_sitter import Node

from runbook.model.template import TemplateFile
from runbook.template.budget import MOST_DIGITS
from runbook.template.config.config_tree import (
    MOST_LEAVES,
    MOST_LEVELS,
    Config,
    Entry,
    Form,
    Leaf,
    MappingNode,
    ParseProblem,
    TreeReader,
    node_line,
    on_one_line,
    parsed,
)
from runbook.template.text_files import Language, to_bytes

# JSON, with the comments that some readers (hjson, as DeepSpeed's) allow.

_JSON_FORMS = {
    "number": Form.NUMBER, "true": Form.BOOLEAN, "false": Form.BOOLEAN, "null": Form.NULL, "string": Form.STRING,
}


def read_json(file: TemplateFile) -> Config:
    """The leaves of a JSON file."""
    return read_json_bytes(file, to_bytes(file.text))


def read_json_bytes(file: TemplateFile, data: bytes) -> Config:
    """The same for JSON that stands inside another file."""
    root = parsed(Language.JSON, data)
    values = [child for child in root.children if child.type != "comment"]
    if root.has_error or len(values) != 1:
        return Config(file, data, Language.JSON, broken=_broken(data, root))
    reader = _JsonReader(data)
    if not reader.value(values[0], (), (-1, -1), 0):
        problem = ParseProblem(1, "the file is larger or deeper than anybody writes")
        return Config(file, data, Language.JSON, broken=problem)
    return Config(file, data, Language.JSON, tuple(reader.leaves), tuple(reader.mapping_nodes))


def _broken(data: bytes, root: Node) -> ParseProblem:
    line = node_line(root)
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return ParseProblem(error.lineno, f"the JSON is not understood here: {error.msg}")
    except (ValueError, RecursionError):
        pass
    return ParseProblem(line, "the JSON is not understood")


@dataclass(slots=True)
class _JsonReader(TreeReader):
    def value(self, node: Node, path: tuple[str, ...], entry: tuple[int, int], depth: int) -> bool:
        """False when there is more than anybody writes."""
        if depth > MOST_LEVELS or len(self.leaves) > MOST_LEAVES:
            return False
        if node.type == "object":
            return self._object(node, path, depth)
        line = node_line(node)
        raw = self.text(node)
        if node.type == "array":
            one_line = on_one_line(node)
            self.leaves.append(
                Leaf(
                    path, raw if one_line else None, Form.LIST, node.start_byte, node.end_byte, line, raw,
                    unresolved="" if one_line else f"a list over several lines (line {line})", entry=entry,
                )
            )
            items = [child for child in node.named_children if child.type != "comment"]
            return all(self.value(item, (*path, str(at)), (-1, -1), depth + 1) for at, item in enumerate(items))
        text: str | None = raw
        if node.type == "string":
            text = _decoded(raw)
        form = _JSON_FORMS.get(node.type, Form.OTHER)
        reason = "" if text is not None else f"a text with escapes (line {line})"
        self.leaves.append(
            Leaf(path, text, form, node.start_byte, node.end_byte, line, raw, unresolved=reason, entry=entry)
        )
        return True

    def _object(self, node: Node, path: tuple[str, ...], depth: int) -> bool:
        entries = []
        pairs = []
        for pair in node.named_children:
            key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
            if pair.type != "pair" or key is None or value is None:
                continue
            name = _decoded(self.text(key)) or "?"
            entries.append(Entry(name, pair.start_byte, pair.end_byte))
            pairs.append((name, pair, value))
        self.mapping_nodes.append(
            MappingNode(path, "brackets", node.start_byte, node.end_byte, node_line(node), tuple(entries))
        )
        return all(
            self.value(value, (*path, name), (pair.start_byte, pair.end_byte), depth + 1)
            for name, pair, value in pairs
        )



def _decoded(written: str) -> str | None:
    try:
        return str(json.loads(written))
    except ValueError:
        return None


# TOML: tables, dotted keys, inline tables, arrays of tables.

_KEYS = ("bare_key", "quoted_key", "dotted_key")
_TOML_FORMS = {"integer": Form.NUMBER, "float": Form.NUMBER, "boolean": Form.BOOLEAN, "string": Form.STRING}


def read_toml(file: TemplateFile) -> Config:
    """The leaves of a TOML file. What `tomllib` refuses is broken: a key given twice, a table given twice."""
    data = to_bytes(file.text)
    root = parsed(Language.TOML, data)
    try:
        tomllib.loads(file.text)
    except (ValueError, RecursionError) as error:
        return Config(file, data, Language.TOML, broken=ParseProblem(1, f"the TOML is not understood: {error}"))
    if root.has_error:
        return Config(file, data, Language.TOML, broken=ParseProblem(1, "the TOML is not understood"))
    reader = _TomlReader(data)
    pairs: list[Node] = []
    for child in root.children:
        if child.type == "pair":
            pairs.append(child)
    first = next((child for child in root.children if child.type in ("table", "table_array_element")), None)
    end = first.start_byte if first is not None else len(data)
    reader.mapping((), "table", 0, end, 1, pairs)
    reader.pairs(pairs, (), 0)
    for child in root.children:
        if child.type in ("table", "table_array_element"):
            reader.table(child)
    if len(reader.leaves) > MOST_LEAVES:
        return Config(file, data, Language.TOML, broken=ParseProblem(1, f"the file has more than {MOST_LEAVES} values"))
    return Config(file, data, Language.TOML, tuple(reader.leaves), tuple(reader.mapping_nodes))


@dataclass(slots=True)
class _TomlReader(TreeReader):
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
        self.mapping(path, "table", close.end_byte, node.end_byte, node_line(node), pairs)
        self.pairs(pairs, path, 0)

    def _placed(self, segments: tuple[str, ...]) -> tuple[str, ...]:
        """A header's path: a name of an array of tables means the array's last element."""
        path: tuple[str, ...] = ()
        for at, segment in enumerate(segments):
            path = (*path, segment)
            if path in self.arrays and at < len(segments) - 1:
                path = (*path, str(self.arrays[path] - 1))
        return path

    def mapping(
        self, path: tuple[str, ...], shape: str, start: int, end: int, line: int, pairs: list[Node]
    ) -> None:
        entries = []
        for pair in pairs:
            key = next(child for child in pair.children if child.type in _KEYS)
            value = _value(pair)
            one_line = pair.start_point[0] == value.end_point[0]
            entries.append(Entry(".".join(self._segments(key)), pair.start_byte, value.end_byte, one_line))
        self.mapping_nodes.append(MappingNode(path, shape, start, end, line, tuple(entries)))

    def pairs(self, pairs: list[Node], path: tuple[str, ...], depth: int) -> None:
        for pair in pairs:
            key = next(child for child in pair.children if child.type in _KEYS)
            value = _value(pair)
            self.value(value, (*path, *self._segments(key)), (pair.start_byte, value.end_byte), depth)

    def value(self, node: Node, path: tuple[str, ...], entry: tuple[int, int], depth: int) -> None:
        line = node_line(node)
        if depth > MOST_LEVELS or len(self.leaves) > MOST_LEAVES:
            return
        if node.type == "inline_table":
            pairs = [child for child in node.children if child.type == "pair"]
            self.mapping(path, "brackets", node.start_byte, node.end_byte, line, pairs)
            self.pairs(pairs, path, depth + 1)
            return
        raw = self.text(node)
        form = _TOML_FORMS.get(node.type, Form.OTHER)
        text: str | None = raw
        reason = ""
        if node.type == "array":
            form = Form.LIST
            if not on_one_line(node):
                text, reason = None, f"a list over several lines (line {line})"
        elif node.type == "integer" and len(raw) > MOST_DIGITS:
            text, reason = None, f"a number of {len(raw)} digits (line {line})"
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
        text = self.text(node)
        if node.type == "quoted_key":
            return (next(iter(tomllib.loads(f"{text} = 0"))),)
        return (text,)


def _value(pair: Node) -> Node:
    """A pair's value; the pair itself goes on over the carriage return behind it."""
    return next(child for child in reversed(pair.children) if child.is_named and child.type != "comment")
