"""YAML: block and flow mappings, several documents, anchors, aliases and merge keys, `${…}` of OmegaConf."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from runbook.model.template import TemplateFile
from runbook.template.budget import TooMuch
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
    form_of,
    node_line,
    on_one_line,
    parsed,
    with_references_resolved,
)
from runbook.template.text_files import Language, to_bytes

_SCALARS = ("plain_scalar", "double_quote_scalar", "single_quote_scalar", "block_scalar")
_BUILDS_ON = ("defaults", "_base_", "_BASE_")
"""Keys by which a file says that it goes on from others: Hydra, mmengine, detectron2."""


def read_yaml(file: TemplateFile) -> Config:
    """The leaves of all documents, with aliases, merge keys and references followed."""
    data = to_bytes(file.text)
    root = parsed(Language.YAML, data)
    if root.has_error:
        return Config(file, data, Language.YAML, broken=_broken(root))
    reader = _Reader(data)
    for number, document in enumerate(child for child in root.children if child.type == "document"):
        reader.document(document, number)
    leaves = tuple(with_references_resolved(reader.leaves, reader.budget))
    return Config(
        file, data, Language.YAML, leaves, tuple(reader.mapping_nodes), reader.broken, reader.open_ended
    )


def _broken(root: Node) -> ParseProblem:
    node = root
    while True:
        inner = next((child for child in node.children if child.has_error or child.is_missing), None)
        if inner is None or node.is_error:
            return ParseProblem(node_line(node), "the YAML is not understood here")
        node = inner


@dataclass(slots=True)
class _Value:
    """A node's content without its anchor and tag."""

    node: Node | None
    anchor: str = ""
    tag: str = ""


@dataclass(slots=True)
class _Pair:
    """A key with its value, its parts looked up once."""

    node: Node
    start: int
    end: int
    key: Node | None
    colon: Node | None
    value: Node | None
    content: _Value | None
    explicit: bool
    """Written with `?`."""
    simple: bool
    """The value is one scalar on one line."""


@dataclass(slots=True)
class _Place:
    """How a node was reached: what a leaf below it has to say."""

    path: tuple[str, ...]
    trail: tuple[str, ...] = ()
    pinned: str = ""
    entry: tuple[int, int] = (-1, -1)
    flow: bool = False
    override_target: MappingNode | None = None
    depth: int = 0


@dataclass(slots=True)
class _Reader(TreeReader):
    anchors: dict[str, tuple[Node, int]] = field(default_factory=dict)
    number: int = 0
    broken: ParseProblem | None = None
    open_ended: ParseProblem | None = None

    def document(self, document: Node, number: int) -> None:
        self.number, self.anchors = number, {}
        first = len(self.leaves)
        content = next((child for child in document.children if child.type in ("block_node", "flow_node")), None)
        if content is None:
            return
        self.value(content, _Place(()))
        self._builds_on(first)

    def _builds_on(self, first: int) -> None:
        """A Hydra `defaults` list: other files set what is absent here, and what is present where `_self_` is early."""
        mine = [(at, leaf) for at, leaf in enumerate(self.leaves) if at >= first]
        base = [leaf for _, leaf in mine if leaf.path[:1] and leaf.path[0] in _BUILDS_ON]
        if not base:
            return
        line = base[0].line
        self.open_ended = ParseProblem(line, f"the file goes on from others (`{base[0].path[0]}` at line {line})")
        items = [leaf for leaf in base if leaf.path[0] == "defaults" and len(leaf.path) > 1]
        last = items[-1] if items else None
        own = next((leaf for leaf in items if leaf.value == "_self_"), None)
        if own is None or last is None or last.path[1] == own.path[1]:
            return
        for at, leaf in mine:
            if leaf.path[0] != "defaults":
                reason = f"`_self_` at line {own.line} is not the last of `defaults`, so a later one may set it too"
                self.leaves[at] = replace(leaf, unresolved=leaf.unresolved or reason, value=None)

    def value(self, node: Node | None, place: _Place, known: _Value | None = None) -> None:
        self.budget.spend(1 + len(place.trail))
        if place.depth > MOST_LEVELS:
            raise TooMuch(f"the file is nested deeper than {MOST_LEVELS} levels")
        if len(self.leaves) > MOST_LEAVES:
            raise TooMuch(f"the file has more than {MOST_LEAVES} values, aliases counted")
        found = known or _content(node)
        content = found.node
        if found.anchor and node is not None:
            self.anchors[found.anchor] = (node, node_line(node))
        if content is not None and content.type == "alias":
            self._alias(content, place)
        elif content is not None and content.type in ("block_mapping", "flow_mapping") and not found.tag:
            self._mapping(content, place)
        elif content is not None and content.type in ("block_sequence", "flow_sequence") and not found.tag:
            self._sequence(content, place)
        else:
            self._scalar(content, found.tag, node, place)

    def _alias(self, node: Node, place: _Place) -> None:
        name = self.text(node)[1:]
        line = node_line(node)
        if name not in self.anchors:
            self._leaf(place, None, Form.OTHER, node, unresolved=f"*{name} at line {line} leads to no anchor")
            return
        target, at = self.anchors[name]
        trail = (*place.trail, f"*{name} at line {line}", f"&{name} at line {at}")
        inner = _content(target).node
        if inner is None or inner.type in _SCALARS:
            first = len(self.leaves)
            self.value(target, replace(place, trail=trail, depth=place.depth + 1))
            if place.pinned or place.override_target is not None:
                return
            for index in range(first, len(self.leaves)):  # written over as a literal where the alias stands
                self.leaves[index] = replace(
                    self.leaves[index], start=node.start_byte, end=node.end_byte, line=line, pinned="", lead=b"",
                    raw=self.text(node), entry=place.entry, flow=place.flow,
                )
            return
        pinned = f"*{name} at line {line} leads to &{name} at line {at}, and what stands there serves both places"
        first = len(self.mapping_nodes)
        self.value(target, replace(place, trail=trail, pinned=pinned, depth=place.depth + 1))
        self.budget.spend(len(self.mapping_nodes) - first)
        for index in range(first, len(self.mapping_nodes)):
            self.mapping_nodes[index] = replace(self.mapping_nodes[index], closed=pinned)

    def _mapping(self, node: Node, place: _Place) -> None:
        flow = node.type == "flow_mapping"
        pairs = [
            _parts(child) for child in node.children
            if child.type in ("block_mapping_pair", "flow_pair", "flow_node")
        ]
        named = [(self._key(pair), pair) for pair in pairs]
        entries = tuple(
            Entry(key if key is not None else "?", pair.start, pair.end, pair.simple) for key, pair in named
        )
        explicit = any(pair.explicit for pair in pairs)
        mapping = MappingNode(
            place.path, "brackets" if flow else "block", node.start_byte, node.end_byte, node_line(node), entries,
            self.number, place.pinned or ("a key is written with `?`" if explicit else ""),
        )
        self.mapping_nodes.append(mapping)
        own = {key for key, _ in named}
        for key, pair in named:
            if key == "<<":
                self._merged(pair, mapping, own, place)
            elif key is not None:
                self._pair(key, pair, place, flow)
            else:
                strange = replace(place, path=(*place.path, "?"))
                self._leaf(strange, None, Form.OTHER, pair.node, unresolved="the key is no plain text")

    def _pair(self, key: str, pair: _Pair, place: _Place, flow: bool) -> None:
        pinned = place.pinned or ("the key is written with `?`" if pair.explicit else "")
        inside = replace(
            place, path=(*place.path, key), pinned=pinned, entry=(pair.start, pair.end), flow=flow or place.flow,
            depth=place.depth + 1,
        )
        if pair.value is None:
            at = pair.colon.end_byte if pair.colon is not None else -1
            missing = "" if pair.colon is not None else "the key has no colon"
            self._empty(inside, at, node_line(pair.node), pinned=missing)
        else:
            self.value(pair.value, inside, pair.content)

    def _merged(self, pair: _Pair, mapping: MappingNode, own: set[str | None], place: _Place) -> None:
        """What `<<` brings in, as far as the mapping does not set it itself; of several, the first wins."""
        line = node_line(pair.node)
        content = pair.content.node if pair.content is not None else None
        items = [content] if content is not None and content.type == "alias" else []
        if content is not None and content.type in ("flow_sequence", "block_sequence"):
            items = [inner for item in _items(content) if (inner := _content(item).node) is not None]
        taken = set(own)
        for item in items:
            name = self.text(item)[1:]
            target, at = self.anchors.get(name, (None, 0))
            source = _content(target).node if target is not None else None
            if item.type != "alias" or source is None or source.type not in ("block_mapping", "flow_mapping"):
                reason = f"`<<` at line {line} leads to no mapping"
                self._leaf(replace(place, path=(*place.path, "<<")), None, Form.OTHER, item, unresolved=reason)
                continue
            first, first_mapping = len(self.leaves), len(self.mapping_nodes)
            trail = (*place.trail, f"<<: *{name} at line {line}", f"&{name} at line {at}")
            pinned = f"it comes from &{name} at line {at}, which serves other places too"
            inside = replace(place, trail=trail, pinned=pinned, override_target=None, depth=place.depth + 1)
            self._mapping(source, inside)
            depth = len(place.path)
            kept = [leaf for leaf in self.leaves[first:] if leaf.path[depth] not in taken]
            direct = None if place.pinned else mapping
            self.leaves[first:] = [
                replace(leaf, start=-1, end=-1, override_target=direct if len(leaf.path) == depth + 1 else None)
                for leaf in kept
            ]
            self.mapping_nodes[first_mapping:] = [
                replace(item, closed=pinned)
                for item in self.mapping_nodes[first_mapping:]
                if len(item.path) > depth and item.path[depth] not in taken
            ]
            taken |= {leaf.path[depth] for leaf in kept}
            self.budget.spend(len(kept) + len(self.mapping_nodes) - first_mapping)

    def _sequence(self, node: Node, place: _Place) -> None:
        flow = node.type == "flow_sequence"
        one_line = on_one_line(node)
        if flow:
            reason = "" if one_line else f"a list over several lines (line {node_line(node)})"
            self._leaf(place, self.text(node), Form.LIST, node, reason)
        for index, item in enumerate(_items(node)):
            element = replace(
                place, path=(*place.path, str(index)), entry=(-1, -1), flow=flow or place.flow, depth=place.depth + 1
            )
            self.value(item, element)

    def _scalar(self, content: Node | None, tag: str, node: Node | None, place: _Place) -> None:
        if content is None:
            reason = f"the tag {tag} decides (line {node_line(node)})" if tag and node is not None else ""
            end = node.end_byte if node is not None else -1
            self._empty(place, end, node_line(node) if node is not None else 1, unresolved=reason)
            return
        text, form, reason = self._decoded(content)
        if tag:
            text, reason = None, f"the tag {tag} decides (line {node_line(content)})"
        self._leaf(place, text, form, content, unresolved=reason)

    def _decoded(self, node: Node) -> tuple[str | None, Form, str]:
        written = self.text(node)
        kind = node.type
        line = node_line(node)
        if kind == "plain_scalar":
            text = written if "\n" not in written else " ".join(part.strip() for part in written.split("\n"))
            form = Form.NULL if text in ("~", "null", "Null", "NULL") else form_of(text)
            if text in ("TRUE", "FALSE"):
                form = Form.BOOLEAN
            shown = {Form.NULL: "null", Form.BOOLEAN: text.lower()}.get(form, text)
            return shown, form if form is not Form.LIST else Form.STRING, ""
        if kind in ("double_quote_scalar", "single_quote_scalar") and "\n" not in written:
            if kind == "single_quote_scalar":
                return written[1:-1].replace("''", "'"), Form.STRING, ""
            try:
                return str(json.loads(written)), Form.STRING, ""
            except ValueError:
                return None, Form.STRING, f"a text with escapes (line {line})"
        return None, Form.OTHER, f"a text over several lines (line {line})"

    def _leaf(self, place: _Place, value: str | None, form: Form, node: Node, unresolved: str = "") -> None:
        raw = self.text(node)
        pinned = place.pinned or ("it is a text over several lines" if form is Form.OTHER and "\n" in raw else "")
        self.leaves.append(
            Leaf(
                place.path, None if unresolved else value, form, node.start_byte, node.end_byte, node_line(node), raw,
                place.trail, unresolved, pinned, place.override_target, place.entry, self.number, flow=place.flow,
            )
        )

    def _empty(self, place: _Place, at: int, line: int, unresolved: str = "", pinned: str = "") -> None:
        """A key without a value. `at`: where one is written, -1 where it cannot be."""
        self.leaves.append(
            Leaf(
                place.path, None if unresolved else "null", Form.NULL, at, at, line, "", place.trail, unresolved,
                place.pinned or pinned, place.override_target, place.entry, self.number, b" ", place.flow,
            )
        )

    def _key(self, pair: _Pair) -> str | None:
        found = _content(pair.key)
        if found.node is None or found.tag or found.node.type == "alias":
            return None
        if found.anchor and pair.key is not None:
            self.anchors[found.anchor] = (pair.key, node_line(pair.key))
        if found.node.type not in _SCALARS:
            return None
        if found.node.type == "plain_scalar":
            return self.text(found.node)
        return self._decoded(found.node)[0]


def _parts(pair: Node) -> _Pair:
    start, end = pair.start_byte, pair.end_byte
    if pair.type == "flow_node":  # a key alone, in a flow mapping
        return _Pair(pair, start, end, pair, None, None, None, False, on_one_line(pair))
    colon = None
    explicit = False
    for child in pair.children:
        if child.type == ":":
            colon = child
        elif child.type == "?":
            explicit = True
    value = pair.child_by_field_name("value")
    content = _content(value) if value is not None else None
    inner = content.node if content is not None else None
    simple = on_one_line(pair) and (
        inner is None or inner.type not in ("block_mapping", "block_sequence", "block_scalar")
    )
    return _Pair(pair, start, end, pair.child_by_field_name("key"), colon, value, content, explicit, simple)


def _content(node: Node | None) -> _Value:
    found = _Value(node)
    if node is None or node.type not in ("block_node", "flow_node"):
        return found
    found.node = None
    for child in node.children:
        if child.type == "anchor":
            found.anchor = (child.text or b"")[1:].decode("utf-8", "surrogateescape")
        elif child.type == "tag":
            found.tag = (child.text or b"").decode("utf-8", "surrogateescape")
        elif child.type != "comment":
            found.node = child
    return found


def _items(node: Node) -> Iterator[Node]:
    for child in node.children:
        if child.type == "block_sequence_item":
            yield next((part for part in child.children if part.type in ("block_node", "flow_node")), child)
        elif child.type in ("flow_node", "flow_pair"):
            yield child


_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*(?: [A-Za-z0-9_./+-]+)*")
_WORDS = re.compile(r"(?:y|n|yes|no|on|off|true|false|null|nan|inf)", re.IGNORECASE)


def is_bare_text(text: str) -> bool:
    """Whether a text can stand in YAML without quotes and stays a text for every reader."""
    return bool(_PLAIN.fullmatch(text)) and not _WORDS.fullmatch(text) and not text.startswith(".")
