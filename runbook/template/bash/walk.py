"""Follow a script statement by statement, without running it, to every command with what reaches it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from runbook.template.bash.execution import heredoc_text, run_command
from runbook.template.bash.expansion import Expander, Scope
from runbook.template.bash.state import (
    Binding,
    Command,
    Quote,
    Sourced,
    State,
    Token,
    change_by_arithmetic,
    merge,
    not_known,
    text_of,
    unplaced,
)
from runbook.template.bash.syntax import Source, tree_nodes
from runbook.template.bash.written_files import WrittenFile, written_by

# Which branch of a `case` or an `if` runs, where the words that decide it are known. Nothing is run for it.

_PLAIN = re.compile(r"[\w./:+@%,=-]+")
_GLOB = re.compile(r"[\w./:+@%,=*?-]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,15})")
_NUMERIC = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}


def chosen_item(expander: Expander, node: Node, scope: Scope) -> Node | None | bool:
    """The item of a `case` that runs, None where none does, False where that is not known."""
    word = node.child_by_field_name("value")
    text = known_text(expander, word, scope) if word is not None else None
    if text is None:
        return False
    for item in node.named_children:
        if item.type != "case_item":
            continue
        if any(child.type in (";&", ";;&") for child in item.children):
            return False
        answers = [_fits(text, pattern, scope) for pattern in item.children_by_field_name("value")]
        if True in answers:
            return item
        if None in answers:
            return False
    return None


def condition_holds(expander: Expander, conditions: Sequence[Node], scope: Scope) -> bool | None:
    """Whether the condition of an `if` is met: one comparison of known words. None: not known."""
    if len(conditions) != 1 or conditions[0].type != "test_command" or len(conditions[0].named_children) != 1:
        return None
    return _met(expander, conditions[0].named_children[0], scope)


def _met(expander: Expander, node: Node, scope: Scope) -> bool | None:
    parts = node.children
    if node.type == "unary_expression" and len(parts) == 2:
        operator = scope.text(parts[0])
        if operator == "!":
            inner = _met(expander, parts[1], scope)
            return None if inner is None else not inner
        if operator not in ("-z", "-n"):
            return None
        text = known_text(expander, parts[1], scope)
        return None if text is None else (text == "") is (operator == "-z")
    if node.type != "binary_expression" or len(parts) != 3:
        return None
    left, operator, right = parts[0], scope.text(parts[1]), parts[2]
    if operator not in ("=", "==", "!=", *_NUMERIC):
        return None
    first, second = known_text(expander, left, scope), known_text(expander, right, scope)
    if first is None or second is None:
        return None
    if operator in _NUMERIC:
        both = _NUMBER.fullmatch(first) and _NUMBER.fullmatch(second)
        return bool(_NUMERIC[operator](int(first), int(second))) if both else None
    if second and not _PLAIN.fullmatch(second):
        return None  # between double brackets it is a pattern
    return (first == second) is (operator != "!=")


def known_text(expander: Expander, node: Node, scope: Scope) -> str | None:
    """A single word's text. What a default of an unknown environment decides counts as not known."""
    if node.type in ("binary_expression", "unary_expression", "parenthesized_expression"):
        return None
    if node.type == "extglob_pattern":
        shown = scope.text(node)
        return shown if _PLAIN.fullmatch(shown) else None
    tokens = expander.tokens(node, scope)
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


def _fits(text: str, pattern: Node, scope: Scope) -> bool | None:
    shown = scope.text(pattern)
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


_STATEMENT = 5
"""What a statement costs of a script's budget."""


@dataclass(slots=True)
class Walker:
    """Collects the commands of a script."""

    expander: Expander
    commands: list[Command] = field(default_factory=list)
    quiet: list[tuple[int, int]] = field(default_factory=list)
    """Stretches of the file that set nothing: comments, printed text."""
    writes: list[WrittenFile] = field(default_factory=list)
    """Texts that the script writes into files."""
    final: State = field(default_factory=State)
    depth: int = 0
    root: Source = field(default_factory=lambda: Source(b""))
    texts: Mapping[str, str] = field(default_factory=dict)

    def block(self, nodes: Iterable[Node], scope: Scope) -> None:
        for node in nodes:
            if scope.state.stopped:
                return
            self.statement(node, scope)

    def statement(self, node: Node, scope: Scope) -> None:
        kind = node.type
        line = scope.line(node)
        scope.state.budget.spend(_STATEMENT)
        if kind == "comment":
            self.hush(node, scope)
        elif kind in ("variable_assignment", "variable_assignments"):
            self.assignments(node, scope, exporting=False)
        elif kind == "declaration_command":
            self._declaration(node, scope)
        elif kind == "unset_command":
            self._unset(node, scope)
        elif scope.text(node).startswith("(("):
            change_by_arithmetic(scope.state, scope.text(node), line)
        elif kind == "command":
            run_command(self, node, scope, None)
        elif kind == "redirected_statement":
            self._redirected(node, scope)
        elif kind == "pipeline":
            for child in node.named_children:
                self.statement(child, scope.branch())
        elif kind == "list":
            self._list(node, scope)
        elif kind == "if_statement":
            self._if(node, scope)
        elif kind == "case_statement":
            self._case(node, scope)
        elif kind in ("for_statement", "while_statement", "c_style_for_statement", "select_statement"):
            self._loop(node, scope)
        elif kind == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None and scope.source.atoms is None:
                scope.state.functions[scope.text(name)] = body
        elif kind == "subshell":
            self.block(node.named_children, scope.branch())
        elif kind in ("compound_statement", "negated_command", "program", "do_group", "ERROR"):
            self.block(node.named_children, scope)

    def hush(self, node: Node, scope: Scope) -> None:
        start, end = scope.place(node.start_byte, node.end_byte)
        if start >= 0:
            self.quiet.append((start, end))

    def _unset(self, node: Node, scope: Scope) -> None:
        for child in node.named_children:
            name, element, _ = scope.text(child).strip("'\"").partition("[")
            if element and name in scope.state.variables:
                scope.state.forget(name, f"an element of {name} is taken out", scope.line(child))
            elif not element:
                scope.state.variables.pop(name, None)
                scope.state.exported.discard(name)

    def _list(self, node: Node, scope: Scope) -> None:
        left, right = node.named_children[0], node.named_children[-1]
        self.statement(left, scope)
        if scope.state.stopped or right == left:
            return
        operator = next((child.type for child in node.children if not child.is_named), "&&")
        where = f"the `{operator}` at line {scope.line(right)}"
        branch = scope.branch(f"after {where}")
        self.statement(right, branch)
        merge(scope.state, [branch.state], False, where)

    def _case(self, node: Node, scope: Scope) -> None:
        chosen = chosen_item(self.expander, node, scope)
        where = f"the `case` at line {scope.line(node)}"
        bodies = [
            (item, [child for child in item.named_children if child not in item.children_by_field_name("value")])
            for item in node.named_children if item.type == "case_item"
        ]
        taken = next((body for item, body in bodies if item == chosen), [])
        if chosen is not False and self._taken(taken, scope):
            for item, body in bodies:
                if item != chosen:
                    self._dead(body, scope)
            return
        self._branches([body for _, body in bodies], scope, False, where)

    def _if(self, node: Node, scope: Scope) -> None:
        where = f"the `if` at line {scope.line(node)}"
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
                        self.statement(child, scope)
            runs = clause.type == "else_clause" or condition_holds(self.expander, conditions, scope)
            if over or runs is False:
                self._dead(body, scope)
            elif runs and not open_above and self._taken(body, scope):
                over = True
            else:
                open_above = True
                bodies.append(body)
        if not bodies:
            return
        self._branches(bodies, scope, has_else, where)

    def _branches(self, bodies: Sequence[Sequence[Node]], scope: Scope, covers_all: bool, where: str) -> None:
        """Bodies of which one runs, or none, and it is not known which."""
        branches = [replace(scope, state=scope.state.copy(), condition=f"inside {where}") for _ in bodies]
        for body, branch in zip(bodies, branches):
            self.block(body, branch)
        merge(scope.state, [branch.state for branch in branches], covers_all, where)

    def _taken(self, nodes: Sequence[Node], scope: Scope) -> bool:
        """Go on in the branch that runs. False, and nothing is done, where it would end the script: the training did
        start, so what we know of the condition cannot be all."""
        branch, commands, quiet = scope.branch(), len(self.commands), len(self.quiet)
        self.block(nodes, branch)
        if branch.state.stopped == "exit":
            del self.commands[commands:], self.quiet[quiet:]
            return False
        scope.state.become(branch.state)
        return True

    def _dead(self, nodes: Iterable[Node], scope: Scope) -> None:
        """A branch that certainly does not run sets nothing."""
        for node in nodes:
            self.hush(node, scope)

    def _loop(self, node: Node, scope: Scope) -> None:
        where = f"the loop at line {scope.line(node)}"
        branch = scope.branch(f"inside {where}")
        body = node.child_by_field_name("body")
        for child in tree_nodes(node):
            if child.type == "variable_assignment" and any(part.type == "=" for part in child.children):
                name = scope.text(child).split("=", 1)[0]
                if name in branch.state.variables:
                    branch.state.forget(name, f"{name} is set again inside {where}", scope.line(child))
        variable = node.child_by_field_name("variable")
        if variable is not None:
            name = scope.text(variable)
            branch.state.forget(name, f"{name} changes with {where}", scope.line(node))
        conditions = ("command", "list", "pipeline", "redirected_statement", "negated_command")
        for child in node.named_children:
            if child == body or child.type in conditions:
                self.statement(child, branch)
        merge(scope.state, [branch.state], False, where)

    # ---- assignments

    def assignments(self, node: Node, scope: Scope, exporting: bool) -> None:
        parts = [node] if node.type == "variable_assignment" else node.named_children
        for part in parts:
            name = part.child_by_field_name("name")
            if part.type != "variable_assignment" or name is None:
                continue
            self._substitutions(part, scope)
            if name.type == "subscript":
                base = scope.text(name).split("[", 1)[0]
                if base in scope.state.variables:
                    scope.state.forget(base, f"an element of {base} is set on its own", scope.line(part))
                continue
            self._bind(scope.text(name), part, scope, exporting)

    def _bind(self, name: str, part: Node, scope: Scope, exporting: bool) -> None:
        state, binding = scope.state, self.binding(part, scope)
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
                binding = not_known(f"{name} goes on from the submitting environment", binding.line, name)
            state.budget.spend((len(binding.atoms) + len(binding.elements or ())) // 8)
        state.variables[name] = binding
        inherited_name = name in (self.expander.environment or {})
        if exporting or state.export_all or inherited_name:
            state.exported.add(name)

    def binding(self, part: Node, scope: Scope) -> Binding:
        """The right side of `NAME=…`."""
        line = scope.line(part)
        value = part.child_by_field_name("value")
        if value is None:
            start, end = scope.place(part.end_byte - 1, part.end_byte)
            return Binding((), None, line, (end, end) if start >= 0 else (-1, -1))
        site = scope.place(value.start_byte, value.end_byte)
        if value.type != "array":
            return Binding(self.expander.atoms(value, scope), None, line, site)
        for child in value.named_children:
            if child.type == "comment":
                self.hush(child, scope)
        words = [child for child in value.named_children if child.type != "comment"]
        elements = self.expander.words(words, scope)
        return Binding((), tuple(elements), line, site)

    def _declaration(self, node: Node, scope: Scope) -> None:
        words = [scope.text(child) for child in node.children]
        keyword = words[0]
        options = "".join(word[1:] for word in words[1:] if word.startswith("-"))
        exporting = (keyword == "export" and "n" not in options) or "x" in options
        local = keyword == "local" or (keyword in ("declare", "typeset") and "g" not in options)
        for child in node.named_children:
            name = scope.text(child).split("=", 1)[0].rstrip("+")
            if local and scope.state.local is not None and name.isidentifier():
                scope.state.local.setdefault(name, scope.state.variables.get(name))
            if child.type == "variable_assignment":
                self.assignments(child, scope, exporting)
                self._attributes(name, keyword, options, scope.line(child), scope.state)
                after = child.next_sibling
                if after is not None and after.start_byte == child.end_byte:  # the grammar cut the word in two
                    scope.state.forget(name, f"what {name} is set to is not followed", scope.line(child))
            elif child.type in ("string", "concatenation", "simple_expansion", "expansion", "command_substitution"):
                scope.state.sourced += (Sourced("the computed name", scope.line(child)),)
            elif child.type == "variable_name":
                if exporting:
                    scope.state.exported.add(scope.text(child))
                elif keyword == "export":
                    scope.state.exported.discard(scope.text(child))

    def _attributes(self, name: str, keyword: str, options: str, line: int, state: State) -> None:
        """`declare -i` calculates, `declare -n` makes another name for a variable."""
        if keyword not in ("declare", "typeset", "local") or name not in state.variables:
            return
        text = text_of(state.variables[name].atoms)
        if "n" in options:
            for other in {name, text or name}:
                state.forget(other, f"{name} at line {line} is another name for {text}", line)
        elif "i" in options and not re.fullmatch(r"0|[1-9][0-9]*", text or ""):
            state.forget(name, f"{name} at line {line} is calculated", line)

    def _substitutions(self, node: Node, scope: Scope) -> None:
        """Commands inside `$( … )` run too."""
        for child in tree_nodes(node):
            if child.type == "command_substitution":
                inside = Scope(scope.source, scope.state.copy(), "inside a command substitution")
                self.block(child.named_children, inside)

    def _redirected(self, node: Node, scope: Scope) -> None:
        body = node.child_by_field_name("body")
        heredoc = next((child for child in node.named_children if child.type == "heredoc_redirect"), None)
        if body is None:
            return
        if body.type != "command":
            self.statement(body, scope)
            return
        run_command(self, body, scope, heredoc)
        whole = heredoc_text(self, heredoc, scope, Quote.SINGLE, Quote.DOUBLE) if heredoc is not None else None
        self.writes += written_by(self.expander, node, scope, whole)
        if heredoc is None:
            return
        piped = [child for child in heredoc.named_children if child.type == "pipeline"]
        for child in piped:
            self.block(child.named_children, scope.branch())
        text = next((child for child in heredoc.named_children if child.type == "heredoc_body"), None)
        to_file = any(child.type == "file_redirect" for child in (*heredoc.named_children, *node.named_children))
        name = body.child_by_field_name("name")
        printed = name is not None and scope.text(name) in ("cat", ":")
        if text is not None and printed and not piped and not to_file:
            self.hush(text, scope)


def follow_script(
    data: bytes, root: Node, environment: dict[str, str] | None, arguments: tuple[str, ...] | None,
    header: dict[str, Binding], texts: Mapping[str, str],
) -> Walker:
    """Follow the script from its first line. `header` holds variables that `#SBATCH --export` sets, `texts` the files
    that it may source."""
    source = Source(data)
    walker = Walker(Expander(environment), root=source, texts=texts)
    positional = None
    if arguments is not None:
        positional = tuple(Token(unplaced(text), -1, -1, Quote.NOWHERE, 0) for text in arguments)
    state = State(dict(header), set(header), positional=positional)
    state.budget.spend(sum(len(value) for value in (environment or {}).values()))
    for name, value in (environment or {}).items():
        state.variables.setdefault(name, Binding(unplaced(value)))
        state.exported.add(name)
    walker.statement(root, Scope(source, state))
    walker.final = state
    return walker
