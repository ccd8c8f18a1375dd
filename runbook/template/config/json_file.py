"""JSON, with the comments that some readers (hjson, as DeepSpeed's) allow."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache

from tree_sitter import Node, Parser

from runbook.model.template import TemplateFile
from runbook.template.config.document import DEEPEST, LARGEST, Config, Entry, Form, Holder, Leaf, Trouble
from runbook.template.language import Language
from runbook.template.splices import to_bytes

_FORMS = {"number": Form.NUMBER, "true": Form.BOOLEAN, "false": Form.BOOLEAN, "null": Form.NULL, "string": Form.STRING}


@cache
def _parser() -> Parser:
    import tree_sitter_json
    from tree_sitter import Language as Grammar

    return Parser(Grammar(tree_sitter_json.language()))


def read(file: TemplateFile) -> Config:
    """The leaves of a JSON file."""
    return read_bytes(file, to_bytes(file.text))


def read_bytes(file: TemplateFile, data: bytes) -> Config:
    """The same for JSON that stands inside another file."""
    root = _parser().parse(data).root_node
    values = [child for child in root.children if child.type != "comment"]
    if root.has_error or len(values) != 1:
        return Config(file, data, Language.JSON, broken=_broken(data, root))
    reader = _Reader(data)
    if not reader.value(values[0], (), (-1, -1), 0):
        return Config(file, data, Language.JSON, broken=Trouble(1, "the file is larger or deeper than anybody writes"))
    return Config(file, data, Language.JSON, tuple(reader.leaves), tuple(reader.holders))


def _broken(data: bytes, root: Node) -> Trouble:
    line = root.start_point[0] + 1
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return Trouble(error.lineno, f"the JSON is not understood here: {error.msg}")
    except (ValueError, RecursionError):
        pass
    return Trouble(line, "the JSON is not understood")


@dataclass(slots=True)
class _Reader:
    data: bytes
    leaves: list[Leaf] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)

    def value(self, node: Node, path: tuple[str, ...], entry: tuple[int, int], depth: int) -> bool:
        """False when there is more than anybody writes."""
        if depth > DEEPEST or len(self.leaves) > LARGEST:
            return False
        if node.type == "object":
            return self._object(node, path, depth)
        line = node.start_point[0] + 1
        raw = self._text(node)
        if node.type == "array":
            one_line = node.start_point[0] == node.end_point[0]
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
        form = _FORMS.get(node.type, Form.OTHER)
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
            name = _decoded(self._text(key)) or "?"
            entries.append(Entry(name, pair.start_byte, pair.end_byte))
            pairs.append((name, pair, value))
        self.holders.append(
            Holder(path, "brackets", node.start_byte, node.end_byte, node.start_point[0] + 1, tuple(entries))
        )
        return all(
            self.value(value, (*path, name), (pair.start_byte, pair.end_byte), depth + 1)
            for name, pair, value in pairs
        )

    def _text(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")


def _decoded(written: str) -> str | None:
    try:
        return str(json.loads(written))
    except ValueError:
        return None
