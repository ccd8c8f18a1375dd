"""What becomes of the values of a Python module after they are written: changed, passed on by a name, mentioned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tree_sitter import Node

from runbook.template.budget import Budget
from runbook.template.config.config_tree import Leaf


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A statement that sets or changes everything below a path."""

    path: tuple[str, ...]
    start: int
    line: int
    by_call: bool = False


def builds_something(statement: Node) -> bool:
    """A call that is the statement, or that takes settings as its keywords: the module does more than hold values."""
    if statement.type != "expression_statement":
        return False
    if any(child.type == "call" for child in statement.named_children):
        return True
    stack = list(statement.named_children)
    while stack:
        node = stack.pop()
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        takes = node.type == "call" and function is not None and function.text != b"dict" and arguments is not None
        if takes and arguments is not None and any(child.type == "keyword_argument" for child in arguments.children):
            return True
        stack.extend(node.named_children)
    return False


def written_over(leaves: Sequence[Leaf], changes: Sequence[Reassignment], budget: Budget) -> list[Leaf]:
    """A value is not known where a later statement sets or changes what holds it: `c = dict(a=1)`, `c.update(d)`."""
    later: dict[tuple[str, ...], list[Reassignment]] = {}
    for change in changes:
        later.setdefault(change.path, []).append(change)
    found = []
    for leaf in leaves:
        budget.spend(sum(len(later.get(leaf.path[:size], ())) for size in range(1, len(leaf.path) + 1)) // 8)
        over = [
            change for size in range(1, len(leaf.path)) for change in later.get(leaf.path[:size], ())
            if change.start > leaf.start
        ]
        over += [change for change in later.get(leaf.path, ()) if change.start > leaf.start and change.by_call]
        if over and not leaf.unresolved:
            name = ".".join(over[0].path)
            reason = f"{name} is changed at line {over[0].line}"
            leaf = replace(leaf, value=None, unresolved=reason, pinned=leaf.pinned or reason)
        found.append(leaf)
    return found


def code_without_keys(data: bytes, root: Node, keys: list[tuple[int, int]], budget: Budget) -> bytes:
    """The text with comments, docstrings, the keys that were read and what is only looked at blanked: what is left of a
    name may set it."""
    blanked = bytearray(data)
    for start, end in keys:
        blanked[start:end] = b" " * (end - start)
    stack = [(root, False)]
    while stack:
        node, bound = stack.pop()
        documentation = node.type == "expression_statement" and [child.type for child in node.children] == ["string"]
        looked_at = _looked_at(node, bound)
        if node.type == "comment" or documentation:
            looked_at = (node,)
        for part in looked_at:
            budget.spend((part.end_byte - part.start_byte) // 8)
            for at in range(part.start_byte, part.end_byte):
                if blanked[at] != 10:
                    blanked[at] = 32
        if node.type == "comment" or documentation:
            continue
        targets = _targets(node, bound)
        stack.extend((child, child.id in targets) for child in node.children)
    return bytes(blanked)


_BINDING = {
    "assignment": "left", "augmented_assignment": "left", "for_statement": "left", "for_in_clause": "left",
    "named_expression": "name", "as_pattern": "alias",
}
_LOOKING = frozenset({b"get", b"getattr", b"hasattr"})
_READING = frozenset(
    {"argument_list", "assert_statement", "binary_operator", "boolean_operator", "call", "comparison_operator",
     "conditional_expression", "elif_clause", "if_statement", "interpolation", "not_operator", "return_statement",
     "unary_operator", "while_statement"}
)
"""Where a variable that stands by itself is read."""


def _targets(node: Node, bound: bool) -> set[int]:
    """The children that are bound by this node: `x.a` of `x.a = 1`, both of `a, b = …`."""
    if node.type in _BINDING:
        child = node.child_by_field_name(_BINDING[node.type])
        return {child.id} if child is not None else set()
    if node.type == "delete_statement" or (bound and node.type in ("pattern_list", "tuple_pattern", "list_pattern")):
        return {child.id for child in node.children}
    return set()


def _looked_at(node: Node, bound: bool) -> tuple[Node, ...]:
    """The name of an attribute, a key or a variable that is read here: `args.size`, `given["size"]`,
    `given.get("size")`, `"size" in given`."""
    if node.type == "attribute" and not bound:
        name = node.child_by_field_name("attribute")
        return (name,) if name is not None else ()
    if node.type == "subscript" and not bound:
        return tuple(node.children_by_field_name("subscript"))
    if node.type == "comparison_operator":
        return tuple(child for child in node.children if child.type == "string")
    if node.type == "identifier" and not bound and node.parent is not None:
        return (node,) if node.parent.type in _READING else ()
    if node.type in ("function_definition", "class_definition"):
        name = node.child_by_field_name("name")
        return (name,) if name is not None else ()
    if node.type == "raise_statement":
        return (node,)
    if node.type == "call":
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        name = function.child_by_field_name("attribute") or function if function is not None else None
        if name is not None and name.text in _LOOKING and arguments is not None:
            return tuple(child for child in arguments.children if child.type == "string")
    return ()


def through_variables(leaves: list[Leaf], root: Node) -> list[Leaf]:
    """`x=MBS` where `MBS = 4` stands once at the module's level and nothing else binds the name."""
    wanted = {leaf.raw for leaf in leaves if leaf.computed and leaf.raw.isidentifier()}
    if not wanted:
        return leaves
    bound = _bindings(root)
    values = {
        leaf.path[0]: leaf for leaf in leaves
        if len(leaf.path) == 1 and leaf.path[0] in wanted and bound.get(leaf.path[0]) == 1 and leaf.value is not None
    }
    found = []
    for leaf in leaves:
        source = values.get(leaf.raw) if leaf.computed else None
        if source is not None:
            trail = (*leaf.trail, f"{leaf.raw} at line {source.line}")
            leaf = replace(
                leaf, value=source.value, form=source.form, unresolved="", trail=trail, references=(leaf.raw,),
                computed=False,
            )
        found.append(leaf)
    return found


def _bindings(root: Node) -> dict[str, int]:
    """How often each name is bound anywhere in the module: by assignments, parameters, loops, imports."""
    counts: dict[str, int] = {}

    def bind(node: Node | None) -> None:
        stack = [node] if node is not None else []
        while stack:
            current = stack.pop()
            if current.type == "identifier":
                name = (current.text or b"").decode("utf-8", "surrogateescape")
                counts[name] = counts.get(name, 0) + 1
            elif current.type not in ("attribute", "subscript", "call"):
                stack.extend(current.named_children)

    stack = [root]
    while stack:
        node = stack.pop()
        if node.type in ("assignment", "augmented_assignment", "for_statement", "for_in_clause"):
            bind(node.child_by_field_name("left"))
        elif node.type in ("function_definition", "class_definition", "named_expression", "aliased_import"):
            bind(node.child_by_field_name("name") or node.child_by_field_name("alias"))
        elif node.type in (
            "parameters", "lambda_parameters", "as_pattern_target", "global_statement", "nonlocal_statement",
            "import_statement", "import_from_statement", "delete_statement",
        ):
            bind(node)
        stack.extend(node.children)
    return counts
