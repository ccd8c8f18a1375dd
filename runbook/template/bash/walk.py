"""Follow a script statement by statement, without running it, to every command with what reaches it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from runbook.template.bash.commands import Command, run_command
from runbook.template.bash.expansion import Expander
from runbook.template.bash.state import (
    Binding,
    Quote,
    State,
    Token,
    change_by_arithmetic,
    merge,
    not_known,
    text_of,
    unplaced,
)
from runbook.template.bash.syntax import Source, tree_nodes

# Which branch of a `case` or an `if` runs, where the words that decide it are known. Nothing is run for it.

_PLAIN = re.compile(r"[\w./:+@%,=-]+")
_GLOB = re.compile(r"[\w./:+@%,=*?-]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,15})")
_NUMERIC = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}


def chosen_item(expander: Expander, node: Node, source: Source, state: State) -> Node | None | bool:
    """The item of a `case` that runs, None where none does, False where that is not known."""
    word = node.child_by_field_name("value")
    text = known_text(expander, word, source, state) if word is not None else None
    if text is None:
        return False
    for item in node.named_children:
        if item.type != "case_item":
            continue
        if any(child.type in (";&", ";;&") for child in item.children):
            return False
        answers = [_fits(text, pattern, source) for pattern in item.children_by_field_name("value")]
        if True in answers:
            return item
        if None in answers:
            return False
    return None


def condition_holds(expander: Expander, conditions: Sequence[Node], source: Source, state: State) -> bool | None:
    """Whether the condition of an `if` is met: one comparison of known words. None: not known."""
    if len(conditions) != 1 or conditions[0].type != "test_command" or len(conditions[0].named_children) != 1:
        return None
    return _met(expander, conditions[0].named_children[0], source, state)


def _met(expander: Expander, node: Node, source: Source, state: State) -> bool | None:
    parts = node.children
    if node.type == "unary_expression" and len(parts) == 2:
        operator = source.text(parts[0])
        if operator == "!":
            inner = _met(expander, parts[1], source, state)
            return None if inner is None else not inner
        if operator not in ("-z", "-n"):
            return None
        text = known_text(expander, parts[1], source, state)
        return None if text is None else (text == "") is (operator == "-z")
    if node.type != "binary_expression" or len(parts) != 3:
        return None
    left, operator, right = parts[0], source.text(parts[1]), parts[2]
    if operator not in ("=", "==", "!=", *_NUMERIC):
        return None
    first, second = known_text(expander, left, source, state), known_text(expander, right, source, state)
    if first is None or second is None:
        return None
    if operator in _NUMERIC:
        both = _NUMBER.fullmatch(first) and _NUMBER.fullmatch(second)
        return bool(_NUMERIC[operator](int(first), int(second))) if both else None
    if second and not _PLAIN.fullmatch(second):
        return None  # between double brackets it is a pattern
    return (first == second) is (operator != "!=")


def known_text(expander: Expander, node: Node, source: Source, state: State) -> str | None:
    """A single word's text. What a default of an unknown environment decides counts as not known."""
    if node.type in ("binary_expression", "unary_expression", "parenthesized_expression"):
        return None
    if node.type == "extglob_pattern":
        shown = source.text(node)
        return shown if _PLAIN.fullmatch(shown) else None
    tokens = expander.tokens(node, source, state)
    if len(tokens) != 1 or tokens[0].condition or tokens[0].several:
        return None
    atoms = tokens[0].atoms
    text = text_of(atoms)
    open_ended = expander.environment is None and (
        not text or any(use.default for atom in atoms for use in atom.uses)
    )
    if text is None or open_ended or any(atom.condition for atom in atoms):
        return None
    return text


def _fits(text: str, pattern: Node, source: Source) -> bool | None:
    shown = source.text(pattern)
    if pattern.type in ("string", "raw_string"):
        inner = shown[1:-1]
        return text == inner if not re.search(r"[$`\\]", inner) else None
    if not _GLOB.fullmatch(shown):
        return None
    if _PLAIN.fullmatch(shown):
        return text == shown
    if shown.count("*") > 2:
        return None
    expression = "".join(".*" if char == "*" else "." if char == "?" else re.escape(char) for char in shown)
    return re.fullmatch(expression, text, re.DOTALL) is not None


@dataclass(slots=True)
class Walker:
    """Collects the commands of a script."""

    expander: Expander
    commands: list[Command] = field(default_factory=list)
    quiet: list[tuple[int, int]] = field(default_factory=list)
    """Stretches of the file that set nothing: comments, printed text."""
    final: State = field(default_factory=State)
    depth: int = 0
    root: Source = field(default_factory=lambda: Source(b""))

    def block(self, nodes: Iterable[Node], source: Source, state: State, condition: str, outer: Command | None) -> None:
        for node in nodes:
            if state.stopped:
                return
            self.statement(node, source, state, condition, outer)

    def statement(self, node: Node, source: Source, state: State, condition: str, outer: Command | None) -> None:
        kind = node.type
        line = source.line(node)
        if kind == "comment":
            self.hush(node, source)
        elif kind in ("variable_assignment", "variable_assignments"):
            self.assignments(node, source, state, exporting=False)
        elif kind == "declaration_command":
            self._declaration(node, source, state)
        elif kind == "unset_command":
            self._unset(node, source, state)
        elif source.text(node).startswith("(("):
            change_by_arithmetic(state, source.text(node), line)
        elif kind == "command":
            run_command(self, node, source, state, condition, outer, None)
        elif kind == "redirected_statement":
            self._redirected(node, source, state, condition, outer)
        elif kind == "pipeline":
            for child in node.named_children:
                self.statement(child, source, state.copy(), condition, outer)
        elif kind == "list":
            self._list(node, source, state, condition, outer)
        elif kind == "if_statement":
            self._if(node, source, state, condition, outer)
        elif kind == "case_statement":
            self._case(node, source, state, condition, outer)
        elif kind in ("for_statement", "while_statement", "c_style_for_statement", "select_statement"):
            self._loop(node, source, state, condition, outer)
        elif kind == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None and source.atoms is None:
                state.functions[source.text(name)] = body
        elif kind == "subshell":
            self.block(node.named_children, source, state.copy(), condition, outer)
        elif kind in ("compound_statement", "negated_command", "program", "do_group", "ERROR"):
            self.block(node.named_children, source, state, condition, outer)

    def hush(self, node: Node, source: Source) -> None:
        start, end = source.place(node.start_byte, node.end_byte)
        if start >= 0:
            self.quiet.append((start, end))

    def _unset(self, node: Node, source: Source, state: State) -> None:
        for child in node.named_children:
            name, element, _ = source.text(child).strip("'\"").partition("[")
            if element and name in state.variables:
                state.variables[name] = not_known(f"an element of {name} is taken out", source.line(child))
            elif not element:
                state.variables.pop(name, None)
                state.exported.discard(name)

    def _list(self, node: Node, source: Source, state: State, condition: str, outer: Command | None) -> None:
        left, right = node.named_children[0], node.named_children[-1]
        self.statement(left, source, state, condition, outer)
        if state.stopped or right == left:
            return
        operator = next((child.type for child in node.children if not child.is_named), "&&")
        where = f"the `{operator}` at line {source.line(right)}"
        branch = state.copy()
        self.statement(right, source, branch, condition or f"after {where}", outer)
        merge(state, [branch], False, where)

    def _case(self, node: Node, source: Source, state: State, condition: str, outer: Command | None) -> None:
        chosen = chosen_item(self.expander, node, source, state)
        where = f"the `case` at line {source.line(node)}"
        bodies = [
            (item, [child for child in item.named_children if child not in item.children_by_field_name("value")])
            for item in node.named_children if item.type == "case_item"
        ]
        taken = next((body for item, body in bodies if item == chosen), [])
        if chosen is not False and self._taken(taken, source, state, condition, outer):
            for item, body in bodies:
                if item != chosen:
                    self._dead(body, source)
            return
        branches = []
        for _, body in bodies:
            branch = state.copy()
            self.block(body, source, branch, f"inside {where}", outer)
            branches.append(branch)
        merge(state, branches, False, where)

    def _if(self, node: Node, source: Source, state: State, condition: str, outer: Command | None) -> None:
        where = f"the `if` at line {source.line(node)}"
        bodies: list[list[Node]] = []
        has_else = False
        open_above = over = False
        for clause in [node, *(child for child in node.named_children if child.type in ("elif_clause", "else_clause"))]:
            body: list[Node] = []
            conditions: list[Node] = []
            past_then = clause.type == "else_clause"
            has_else = has_else or past_then
            for child in clause.children:
                if child.type == "then":
                    past_then = True
                elif child.type in ("elif_clause", "else_clause", "fi"):
                    break
                elif child.is_named and past_then:
                    body.append(child)
                elif child.is_named:
                    conditions.append(child)
                    if not over:
                        self.statement(child, source, state, condition, outer)
            runs = clause.type == "else_clause" or condition_holds(self.expander, conditions, source, state)
            if over or runs is False:
                self._dead(body, source)
            elif runs and not open_above and self._taken(body, source, state, condition, outer):
                over = True
            else:
                open_above = True
                bodies.append(body)
        if not bodies:
            return
        branches = []
        for body in bodies:
            branch = state.copy()
            self.block(body, source, branch, f"inside {where}", outer)
            branches.append(branch)
        merge(state, branches, has_else, where)

    def _taken(
        self, nodes: Sequence[Node], source: Source, state: State, condition: str, outer: Command | None
    ) -> bool:
        """Go on in the branch that runs. False, and nothing is done, where it would end the script: the training did
        start, so what we know of the condition cannot be all."""
        branch, commands, quiet = state.copy(), len(self.commands), len(self.quiet)
        self.block(nodes, source, branch, condition, outer)
        if branch.stopped == "exit":
            del self.commands[commands:], self.quiet[quiet:]
            return False
        state.become(branch)
        return True

    def _dead(self, nodes: Iterable[Node], source: Source) -> None:
        """A branch that certainly does not run sets nothing."""
        for node in nodes:
            self.hush(node, source)

    def _loop(self, node: Node, source: Source, state: State, condition: str, outer: Command | None) -> None:
        where = f"the loop at line {source.line(node)}"
        branch = state.copy()
        body = node.child_by_field_name("body")
        for child in tree_nodes(node):
            if child.type == "variable_assignment" and any(part.type == "=" for part in child.children):
                name = source.text(child).split("=", 1)[0]
                if name in branch.variables:
                    branch.variables[name] = not_known(f"{name} is set again inside {where}", source.line(child))
        variable = node.child_by_field_name("variable")
        if variable is not None:
            name = source.text(variable)
            branch.variables[name] = not_known(f"{name} changes with {where}", source.line(node))
        conditions = ("command", "list", "pipeline", "redirected_statement", "negated_command")
        for child in node.named_children:
            if child == body or child.type in conditions:
                self.statement(child, source, branch, condition or f"inside {where}", outer)
        merge(state, [branch], False, where)

    # ---- assignments

    def assignments(self, node: Node, source: Source, state: State, exporting: bool) -> None:
        parts = [node] if node.type == "variable_assignment" else node.named_children
        for part in parts:
            name = part.child_by_field_name("name")
            if part.type != "variable_assignment" or name is None:
                continue
            self._substitutions(part, source, state)
            if name.type == "subscript":
                base = source.text(name).split("[", 1)[0]
                if base in state.variables:
                    state.variables[base] = not_known(f"an element of {base} is set on its own", source.line(part))
                continue
            self._bind(source.text(name), self.binding(part, source, state), source, part, state, exporting)

    def _bind(
        self, name: str, binding: Binding, source: Source, part: Node, state: State, exporting: bool
    ) -> None:
        before = state.variables.get(name)
        if any(child.type == "+=" for child in part.children):
            if binding.elements is not None:
                kept = before.elements if before is not None and before.elements is not None else None
                if kept is None and before is not None:
                    kept = (Token(before.atoms, *before.site, Quote.BARE, before.line),)
                binding = replace(binding, elements=(kept or ()) + binding.elements)
            elif before is not None and before.elements is None:
                binding = replace(binding, atoms=before.atoms + binding.atoms)
            elif before is None and (self.expander.environment or {}).get(name):
                inherited = unplaced((self.expander.environment or {})[name])
                binding = replace(binding, atoms=inherited + binding.atoms)
            elif before is None and self.expander.environment is None:
                binding = not_known(f"{name} goes on from the submitting environment", binding.line)
        state.variables[name] = binding
        inherited_name = name in (self.expander.environment or {})
        if exporting or state.export_all or inherited_name:
            state.exported.add(name)

    def binding(self, part: Node, source: Source, state: State) -> Binding:
        """The right side of `NAME=…`."""
        line = source.line(part)
        value = part.child_by_field_name("value")
        if value is None:
            start, end = source.place(part.end_byte - 1, part.end_byte)
            return Binding((), None, line, (end, end) if start >= 0 else (-1, -1))
        site = source.place(value.start_byte, value.end_byte)
        if value.type != "array":
            return Binding(self.expander.atoms(value, source, state), None, line, site)
        for child in value.named_children:
            if child.type == "comment":
                self.hush(child, source)
        words = [child for child in value.named_children if child.type != "comment"]
        elements = self.expander.words(words, source, state)
        return Binding((), tuple(elements), line, site)

    def _declaration(self, node: Node, source: Source, state: State) -> None:
        words = [source.text(child) for child in node.children]
        keyword = words[0]
        options = "".join(word[1:] for word in words[1:] if word.startswith("-"))
        exporting = (keyword == "export" and "n" not in options) or "x" in options
        local = keyword == "local" or (keyword in ("declare", "typeset") and "g" not in options)
        for child in node.named_children:
            name = source.text(child).split("=", 1)[0].rstrip("+")
            if local and state.local is not None and name.isidentifier():
                state.local.setdefault(name, state.variables.get(name))
            if child.type == "variable_assignment":
                self.assignments(child, source, state, exporting)
                self._attributes(name, keyword, options, source.line(child), state)
                after = child.next_sibling
                if after is not None and after.start_byte == child.end_byte:  # the grammar cut the word in two
                    state.variables[name] = not_known(f"what {name} is set to is not followed", source.line(child))
            elif child.type in ("string", "concatenation", "simple_expansion", "expansion", "command_substitution"):
                state.sourced += (f"the computed name at line {source.line(child)}",)
            elif child.type == "variable_name":
                if exporting:
                    state.exported.add(source.text(child))
                elif keyword == "export":
                    state.exported.discard(source.text(child))

    def _attributes(self, name: str, keyword: str, options: str, line: int, state: State) -> None:
        """`declare -i` calculates, `declare -n` makes another name for a variable."""
        if keyword not in ("declare", "typeset", "local") or name not in state.variables:
            return
        text = text_of(state.variables[name].atoms)
        if "n" in options:
            for other in {name, text or name}:
                state.variables[other] = not_known(f"{name} at line {line} is another name for {text}", line)
        elif "i" in options and not re.fullmatch(r"0|[1-9][0-9]*", text or ""):
            state.variables[name] = not_known(f"{name} at line {line} is calculated", line)

    def _substitutions(self, node: Node, source: Source, state: State) -> None:
        """Commands inside `$( … )` run too."""
        for child in tree_nodes(node):
            if child.type == "command_substitution":
                self.block(child.named_children, source, state.copy(), "inside a command substitution", None)

    def _redirected(self, node: Node, source: Source, state: State, condition: str, outer: Command | None) -> None:
        body = node.child_by_field_name("body")
        heredoc = next((child for child in node.named_children if child.type == "heredoc_redirect"), None)
        if body is None:
            return
        if body.type != "command":
            self.statement(body, source, state, condition, outer)
            return
        run_command(self, body, source, state, condition, outer, heredoc)
        if heredoc is None:
            return
        piped = [child for child in heredoc.named_children if child.type == "pipeline"]
        for child in piped:
            self.block(child.named_children, source, state.copy(), condition, outer)
        text = next((child for child in heredoc.named_children if child.type == "heredoc_body"), None)
        to_file = any(child.type == "file_redirect" for child in (*heredoc.named_children, *node.named_children))
        name = body.child_by_field_name("name")
        printed = name is not None and source.text(name) in ("cat", ":")
        if text is not None and printed and not piped and not to_file:
            self.hush(text, source)


def follow_script(
    data: bytes, root: Node, environment: dict[str, str] | None, arguments: tuple[str, ...] | None,
    header: dict[str, Binding],
) -> Walker:
    """Follow the script from its first line. `header` holds variables that `#SBATCH --export` sets."""
    source = Source(data)
    walker = Walker(Expander(environment), root=source)
    positional = None
    if arguments is not None:
        positional = tuple(Token(unplaced(text), -1, -1, Quote.NOWHERE, 0) for text in arguments)
    state = State(dict(header), set(header), positional=positional)
    for name, value in (environment or {}).items():
        state.variables.setdefault(name, Binding(unplaced(value)))
        state.exported.add(name)
    walker.statement(root, source, state, "", None)
    walker.final = state
    return walker
