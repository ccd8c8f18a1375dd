"""Literals of a Python module: assignments, dict literals, keyword arguments, dataclass defaults. Code is not run.

A leaf's path is everything that leads to it: `args = T.TrainingArguments(x=4)` inside `main()` gives
`main().args.TrainingArguments().x`. What stands in an `if`, a loop or an `except` may not run and is not known.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace

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
from runbook.template.config.python_flow import (
    Reassignment,
    builds_something,
    code_without_keys,
    through_variables,
    written_over,
)
from runbook.template.text_files import Language, to_bytes

_LITERALS = {
    "integer": Form.NUMBER, "float": Form.NUMBER, "true": Form.BOOLEAN, "false": Form.BOOLEAN, "none": Form.NULL,
    "string": Form.STRING, "unary_operator": Form.NUMBER, "list": Form.LIST, "tuple": Form.LIST,
}
_MAIN = re.compile(r"""^__name__\s*==\s*["']__main__["']$""")
_PLAIN_STATEMENTS = frozenset({"expression_statement", "import_statement", "import_from_statement", "comment"})


def read_python(file: TemplateFile) -> Config:
    """The leaves of a Python module. What Python itself does not compile is broken."""
    data = to_bytes(file.text)
    root = parsed(Language.PYTHON, data)
    try:
        ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = error.lineno or 1 if isinstance(error, SyntaxError) else 1
        trouble = ParseProblem(line, "the Python is not understood here")
        return Config(file, data, Language.PYTHON, broken=trouble, loose=True)
    if root.has_error:
        return Config(file, data, Language.PYTHON, broken=ParseProblem(1, "the Python is not understood"), loose=True)
    reader = _Reader(data)
    simple = all(child.type in _PLAIN_STATEMENTS and not builds_something(child) for child in root.children)
    reader.block(root, _Place(()))
    entries = tuple(
        Entry(reader.text(child), child.start_byte, child.end_byte, on_one_line(child))
        for child in root.children if child.type == "expression_statement"
    )
    if simple:
        reader.mapping_nodes.append(MappingNode((), "module", 0, len(data), 1, entries))
    if reader.full:
        trouble = ParseProblem(1, "the file is larger or deeper than anybody writes")
        return Config(file, data, Language.PYTHON, broken=trouble, loose=True)
    leaves = through_variables(written_over(reader.leaves, reader.changes, reader.budget), root)
    return Config(
        file, data, Language.PYTHON, tuple(leaves), tuple(reader.mapping_nodes), loose=True,
        mentions=code_without_keys(data, root, reader.keys, reader.budget),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    path: tuple[str, ...]
    condition: str = ""
    entry: tuple[int, int] = (-1, -1)
    depth: int = 0
    trail: tuple[str, ...] = ()
    function: str = ""

    def below(self, *parts: str) -> _Place:
        return replace(self, path=(*self.path, *parts), depth=self.depth + 1, entry=(-1, -1))


_CHANGING = frozenset(
    {"update", "merge", "merge_with", "merge_from_dict", "merge_from_list", "merge_from_file", "setdefault", "pop",
     "clear", "popitem", "override", "update_from_flattened_dict", "__setitem__", "__setattr__", "__dict__"}
)
"""Methods that change what they are called on: dict, OmegaConf, ml_collections, mmengine, yacs."""


@dataclass(slots=True)
class _Reader(TreeReader):
    keys: list[tuple[int, int]] = field(default_factory=list)
    """Where the keys stand whose values were read."""
    changes: list[Reassignment] = field(default_factory=list)
    full: bool = False

    def block(self, node: Node, place: _Place, in_class: bool = False) -> None:
        if place.depth > MOST_LEVELS or len(self.leaves) > MOST_LEAVES:
            self.full = True
            return
        for child in node.named_children:
            self.statement(child, place, in_class)

    def statement(self, node: Node, place: _Place, in_class: bool) -> None:
        kind = node.type
        if kind in ("expression_statement", "return_statement"):
            for child in node.named_children:
                self.expression(child, place, in_class)
        elif kind == "decorated_definition":
            definition = node.child_by_field_name("definition")
            if definition is not None:
                self.statement(definition, place, in_class)
        elif kind in ("class_definition", "function_definition"):
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None:
                inside = place.below(self.text(name))
                if kind == "function_definition":
                    called = f"{self.text(name)}()"
                    trail = (*place.trail, f"inside {called} at line {node_line(node)}")
                    inside = replace(place.below(called), trail=trail, function=called)
                self.block(body, inside, kind == "class_definition")
        elif kind == "if_statement":
            self._branches(node, place)
        elif kind in ("for_statement", "while_statement", "match_statement"):
            self._maybe(node, place, f"inside the `{kind.split('_')[0]}` at line {node_line(node)}")
        elif kind == "with_statement":
            for child in node.named_children:
                if child.type == "block":
                    self.block(child, place.below())
                else:
                    self._calls(child, place)
        elif kind == "try_statement":
            for child in node.named_children:
                if child.type == "block":
                    self.block(child, place.below())
                else:
                    self._maybe(child, place, f"inside the `{child.type.split('_')[0]}` at line {node_line(child)}")
        elif kind not in ("import_statement", "import_from_statement", "comment", "global_statement"):
            self._calls(node, place)

    def _branches(self, node: Node, place: _Place) -> None:
        condition = node.child_by_field_name("condition")
        if condition is not None and _MAIN.match(self.text(condition)) and len(node.named_children) == 2:
            self.block(node.named_children[1], place.below())
            return
        self._maybe(node, place, f"inside the `if` at line {node_line(node)}")

    def _maybe(self, node: Node, place: _Place, condition: str) -> None:
        """Statements that may not run, or run more than once."""
        inside = replace(place.below(), condition=place.condition or condition)
        for child in node.named_children:
            if child.type == "block":
                self.block(child, inside)
            elif child.type.endswith("_clause"):
                self._maybe(child, place, condition)
            else:
                self._calls(child, inside)

    def expression(self, node: Node, place: _Place, in_class: bool) -> None:
        if node.type == "augmented_assignment":
            target = node.child_by_field_name("left")
            if target is not None:
                self._changed((*place.path, *self._target(target)), node)
                self._computed(node, place.below(*self._target(target)), "changes it")
        elif node.type == "assignment":
            target, value = node.child_by_field_name("left"), node.child_by_field_name("right")
            if target is None or value is None:
                return
            path = self._target(target)
            inside = replace(place.below(*path), entry=(node.start_byte, node.end_byte))
            if value.type == "assignment":  # a = b = 4
                self._computed(value, inside, "assigns it several times")
                self.expression(value, place, in_class)
            elif not path:
                self._calls(value, place)
            else:
                self.keys.append((target.start_byte, target.end_byte))
                self._changed((*place.path, *path), node)
                self.value(value, inside, in_class)
        else:
            self._calls(node, place)

    def _changed(self, path: tuple[str, ...], node: Node, by_call: bool = False) -> None:
        self.changes.append(Reassignment(path, node.start_byte, node_line(node), by_call))

    def _changing_call(self, function: Node, arguments: Node, place: _Place) -> None:
        """`config.update(…)`, `setattr(config, "flag", 3)`."""
        if function.type == "attribute":
            inner, name = function.child_by_field_name("object"), function.child_by_field_name("attribute")
            if inner is not None and name is not None and self.text(name) in _CHANGING and self._target(inner):
                self._changed((*place.path, *self._target(inner)), function, by_call=True)
        elif self.text(function) in ("setattr", "delattr") and len(arguments.named_children) > 1:
            path, key = self._target(arguments.named_children[0]), _string(self.text(arguments.named_children[1]))
            if path:
                self._changed((*place.path, *path, *([key] if key else [])), function, by_call=True)

    def _target(self, node: Node) -> tuple[str, ...]:
        """`a.b["c"]` as a path; empty when it is computed."""
        if node.type == "identifier":
            return (self.text(node),)
        if node.type == "attribute":
            inner, name = node.child_by_field_name("object"), node.child_by_field_name("attribute")
            front = self._target(inner) if inner is not None else ()
            return (*front, self.text(name)) if front and name is not None else ()
        if node.type == "subscript":
            inner = node.child_by_field_name("value")
            keys = node.children_by_field_name("subscript")
            front = self._target(inner) if inner is not None else ()
            key = _string(self.text(keys[0])) if len(keys) == 1 and keys[0].type == "string" else None
            return (*front, key) if front and key is not None else ()
        return ()

    def value(self, node: Node, place: _Place, in_class: bool = False) -> None:
        if place.depth > MOST_LEVELS or len(self.leaves) > MOST_LEAVES:
            self.full = True
            return
        kind = node.type
        if kind == "dictionary":
            self._dictionary(node, place)
        elif kind == "call":
            self._call(node, place, in_class)
        elif kind == "parenthesized_expression" and len(node.named_children) == 1:
            self.value(node.named_children[0], replace(place, depth=place.depth + 1), in_class)
        elif kind in ("list", "tuple") and not _literal(self.text(node)):
            self._computed(node, place, "is not all literals")
            for at, child in enumerate(node.named_children):
                self.value(child, place.below(str(at)))
        elif kind in _LITERALS and _literal(self.text(node)):
            self._literal(node, place)
        else:
            self._computed(node, place, "is computed", by_code=True)
            self._calls(node, place)

    def _literal(self, node: Node, place: _Place) -> None:
        raw = self.text(node)
        form = _LITERALS[node.type]
        text: str | None = raw
        reason = pinned = ""
        if form is Form.STRING:
            text = _string(raw)
            if text is None or "\n" in raw:
                text, reason, pinned = None, f"a text of bytes or lines (line {node_line(node)})", "it is no plain text"
        elif form is Form.NUMBER and len(raw) > MOST_DIGITS and node.type != "float":
            text, reason = None, f"a number of {len(raw)} digits (line {node_line(node)})"
        elif form is Form.NUMBER:
            number = ast.literal_eval(raw)
            text = str(number) if isinstance(number, int) else raw
        elif form is Form.BOOLEAN or form is Form.NULL:
            text = {"True": "true", "False": "false"}.get(raw, "null")
        elif "\n" in raw:
            text, reason = None, f"a list over several lines (line {node_line(node)})"
        self._add(node, place, text, form, reason, pinned)

    def _computed(self, node: Node, place: _Place, what: str, *, by_code: bool = False) -> None:
        raw = " ".join(self.text(node).split())[:60]
        pinned = "" if node.type == "identifier" else f"code {what}"
        self._add(node, place, None, Form.OTHER, f"{raw!r} at line {node_line(node)} {what}", pinned)
        if by_code and not place.condition:
            self.leaves[-1] = replace(self.leaves[-1], computed=True)

    def _add(
        self, node: Node, place: _Place, text: str | None, form: Form, reason: str, pinned: str
    ) -> None:
        if place.condition:
            text, reason, pinned = None, f"it is set only {place.condition}", f"it is set only {place.condition}"
        self.leaves.append(
            Leaf(
                place.path, text if not reason else None, form, node.start_byte, node.end_byte, node_line(node),
                self.text(node), place.trail, reason, pinned, None, place.entry, function=place.function,
            )
        )

    def _dictionary(self, node: Node, place: _Place) -> None:
        entries, closed = [], ""
        for pair in node.named_children:
            key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
            if pair.type == "comment":
                continue
            entries.append(Entry(self.text(key) if key is not None else "**", pair.start_byte, pair.end_byte))
            name = _string(self.text(key)) if key is not None and key.type == "string" else None
            if name is None or value is None:
                closed = f"{self.text(pair)[:40]!r} at line {node_line(pair)} may set it"
                self._calls(pair, place)
            elif key is not None:
                self.keys.append((key.start_byte, key.end_byte))
                self.value(value, replace(place.below(name), entry=(pair.start_byte, pair.end_byte)))
        self._add_mapping(node, place, entries, closed, call=False)

    def _call(self, node: Node, place: _Place, in_class: bool = False) -> None:
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if function is None or arguments is None:
            return
        self._changing_call(function, arguments, place)
        name = self.text(function).rsplit(".", 1)[-1] if function.type in ("identifier", "attribute") else ""
        if function.type not in ("identifier", "attribute"):
            self._calls(function, place)
        if arguments.type != "argument_list":  # a generator
            self._calls(arguments, replace(place.below(name), condition=place.condition or "inside a comprehension"))
            return
        if in_class and name in ("field", "Field"):
            self._default(node, arguments, place)
            return
        inside = place.below() if name == "dict" and function.type == "identifier" else place.below(f"{name}()")
        entries, closed = [], ""
        for child in arguments.named_children:
            if child.type == "comment":
                continue
            entries.append(Entry("", child.start_byte, child.end_byte))
            if child.type == "keyword_argument":
                key, value = child.child_by_field_name("name"), child.child_by_field_name("value")
                if key is not None and value is not None:
                    entries[-1] = Entry(self.text(key), child.start_byte, child.end_byte)
                    self.keys.append((key.start_byte, key.end_byte))
                    self.value(value, replace(inside.below(self.text(key)), entry=(child.start_byte, child.end_byte)))
            elif child.type in ("dictionary_splat", "list_splat"):
                closed = f"{self.text(child)[:40]!r} at line {node_line(child)} may set it"
                self._calls(child, inside)
            elif child.type in ("dictionary", "call"):
                self.value(child, inside.below())
            else:
                closed = closed or f"the arguments at line {node_line(child)} go by their place and may set it"
                self._calls(child, inside)
        self._add_mapping(arguments, inside, entries, closed, call=True)

    def _default(self, node: Node, arguments: Node, place: _Place) -> None:
        """`field(default=4)` of a dataclass."""
        for child in arguments.named_children:
            key, value = child.child_by_field_name("name"), child.child_by_field_name("value")
            if key is not None and value is not None and self.text(key) == "default":
                self.value(value, replace(place, entry=(-1, -1)))
                return
        self._computed(node, place, "is computed", by_code=True)

    def _add_mapping(self, node: Node, place: _Place, entries: list[Entry], closed: str, call: bool) -> None:
        reason = f"it stands {place.condition}" if place.condition else closed
        self.mapping_nodes.append(
            MappingNode(
                place.path, "brackets", node.start_byte, node.end_byte, node_line(node), tuple(entries), closed=reason,
                call=call,
            )
        )

    def _calls(self, node: Node, place: _Place) -> None:
        """Calls and dict literals anywhere below."""
        stack = [(node, place.condition)]
        while stack:
            current, condition = stack.pop()
            if current.type in ("call", "dictionary"):
                self.value(current, replace(place.below(), condition=condition))
                continue
            if current.type in (
                "conditional_expression", "lambda", "boolean_operator", "list_comprehension",
                "dictionary_comprehension", "set_comprehension", "generator_expression",
            ):
                condition = condition or f"inside an expression at line {node_line(current)}"
            stack.extend((child, condition) for child in reversed(current.named_children))


def _literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _string(text: str) -> str | None:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, str) else None
