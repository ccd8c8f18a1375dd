"""Commands of a script: what they do to the state, and shells that they start on a text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tree_sitter import Node

from runbook.template.bash.expansion import Expander, Scope, joined_words
from runbook.template.bash.state import (
    Atom,
    Binding,
    Command,
    Quote,
    Sourced,
    State,
    Token,
    bytes_of,
    change_by_arithmetic,
    merge,
    not_known,
    unplaced,
)
from runbook.template.bash.syntax import Source, parse, tree_nodes

_DEPTH = 8
"""How deep functions and `bash -c` may stand inside each other before we stop following."""

_COMMAND = 50
"""What a command costs of a script's budget, beside its words: it is looked at for each parameter later."""

_PRINTING = ("echo", "printf", "logger", "print")
_SHELLS = re.compile(r"^(?:.*/)?(?:ba|da|k)?sh$")
_ENVIRONMENT_SCRIPTS = re.compile(
    r"(?:^|/)(?:activate|(?:conda|mamba|micromamba|modules?|lmod)\.sh|profile|bashrc|z\d+_\w+\.sh)$|^/etc/profile\.d/"
)
"""Files that are sourced to set up tools: they set PATH and their own variables, not a job's parameters."""

_SETS_VARIABLES = ("read", "mapfile", "readarray", "getopts")


class Walk(Protocol):
    """What a command asks of the walk over the script that meets it."""

    expander: Expander
    commands: list[Command]
    depth: int
    """How many texts and functions are being read inside each other."""
    root: Source
    texts: Mapping[str, str]
    """Files that may be sourced, by their paths."""

    def block(self, nodes: Iterable[Node], scope: Scope) -> None: ...

    def statement(self, node: Node, scope: Scope) -> None: ...

    def assignments(self, node: Node, scope: Scope, exporting: bool) -> None: ...

    def binding(self, part: Node, scope: Scope) -> Binding: ...

    def hush(self, node: Node, scope: Scope) -> None: ...


def run_command(walk: Walk, node: Node, scope: Scope, heredoc: Node | None) -> None:
    """Record a command, or do what it does to the state; go on into a shell that it starts."""
    name_node = node.child_by_field_name("name")
    name = scope.text(name_node) if name_node is not None else ""
    state = scope.state
    prefix, words = _parts(walk, node, scope)
    argv = walk.expander.words(words, scope)
    start, end = scope.place(node.start_byte, node.end_byte)
    line = scope.line(node)
    if name in _PRINTING:
        printed = [token.text or "" for token in argv]
        if "-v" in printed[1:-1]:
            target = printed[printed.index("-v") + 1]
            state.forget(target, f"{target} is set by printf at line {line}", line)
        walk.hush(node, scope)
        return
    if not argv or argv[0].prefix.startswith("-"):
        return
    if _read_heredoc(walk, argv, scope, heredoc, line):
        return
    if _builtin(walk, argv, scope, line):
        return
    state.budget.spend(_COMMAND + len(state.exported) // 2)
    exported = {key: state.variables[key] for key in state.exported if key in state.variables}
    command = Command(
        tuple(argv), tuple(prefix), exported, line, start, end, scope.condition, scope.outer,
        scope.source.atoms is not None, state.sourced,
    )
    walk.commands.append(command)
    _inner_shell(walk, command, scope, heredoc)
    if name == "exec" and not scope.condition and len(argv) > 1:
        state.stopped = "exit"


def _parts(walk: Walk, node: Node, scope: Scope) -> tuple[list[tuple[str, Binding]], list[Node]]:
    """The assignments in front, and the words. A newline between them ends the assignments' own statement:
    the grammar joins `A=1 B=2` with the command on the next line."""
    assigned = [child for child in node.named_children if child.type == "variable_assignment"]
    words = [
        child
        for child in node.children
        if child.type not in ("variable_assignment", "comment", "file_redirect", "herestring_redirect", "&")
    ]
    if assigned and words and assigned[-1].end_byte == words[0].start_byte:
        return _cut_in_two(walk, assigned, words, scope)
    if assigned and words:
        between = scope.source.data[assigned[-1].end_byte : words[0].start_byte].replace(b"\\\n", b"")
        if b"\n" in between:
            for part in assigned:
                walk.assignments(part, scope, exporting=False)
            return [], words
    prefix = []
    for part in assigned:
        name = part.child_by_field_name("name")
        if name is not None:
            prefix.append((scope.text(name), walk.binding(part, scope)))
    return prefix, words


def _cut_in_two(
    walk: Walk, assigned: list[Node], words: list[Node], scope: Scope
) -> tuple[list[tuple[str, Binding]], list[Node]]:
    """`X=$A/$B/c`, of which the grammar makes `X=$A/` in front of a command (tree-sitter-bash 0.25): the value is not
    known."""
    last = assigned[-1]
    name = scope.text(last).split("=", 1)[0].rstrip("+")
    shown = scope.text(last).partition("=")[2][-40:] + scope.text(words[0])[:40]
    value = not_known(f"the word {shown} is not followed (line {scope.line(last)})", scope.line(last), shown)
    front = [
        (scope.text(other), walk.binding(part, scope))
        for part in assigned[:-1] if (other := part.child_by_field_name("name")) is not None
    ]
    if len(words) > 1:
        return [*front, (name, value)], words[1:]
    for part in assigned[:-1]:
        walk.assignments(part, scope, exporting=False)
    scope.state.variables[name] = value
    return [], []


def _builtin(walk: Walk, argv: Sequence[Token], scope: Scope, line: int) -> bool:
    """Shell built-ins that change the state. True: nothing else is to be recorded."""
    name, state = argv[0].text, scope.state
    rest = [token.text for token in argv[1:]]
    if name == ":":
        return True
    if name in ("exit", "return"):
        state.stopped = name
        return True
    if name in ("source", "."):
        shown = (rest[0] if rest and rest[0] else argv[1].prefix if len(argv) > 1 else "") or "a file"
        if not _ENVIRONMENT_SCRIPTS.search(shown):
            text = walk.texts.get(shown)
            state.sourced += (Sourced(shown, line, text is not None and walk.depth < _DEPTH),)
            if text is not None:
                _sourced(walk, text, scope, argv[2:])
        return True
    if name == "set":
        if "--" in rest:
            state.positional = tuple(argv[2 + rest.index("--") :])
        if any(text in ("-a", "allexport") or (text or "").startswith("-ea") for text in rest):
            state.export_all = "+o" not in rest
        elif "+a" in rest:
            state.export_all = False
        return True
    if name == "let":
        change_by_arithmetic(state, " ".join(token.prefix for token in argv[1:]), line)
        return True
    if name == "shift":
        state.positional = None
        return True
    if name in _SETS_VARIABLES:
        for text in rest:
            if text and text.isidentifier():
                state.forget(text, f"{text} is read from input at line {line}", line)
        return True
    if name == "eval":
        _second_reading(walk, joined_words(argv[1:]), scope, line)
        return True
    if name in state.functions and walk.depth < _DEPTH:
        _call(walk, name, argv[1:], scope)
        return True
    return False


def _sourced(walk: Walk, text: str, scope: Scope, arguments: Sequence[Token]) -> None:
    """The shell reads a file as its own: what it sets is known, and stands in no line of the script. Arguments behind
    the file's name are its `$1`, and else it has the script's."""
    if walk.depth >= _DEPTH:
        return
    data, places = bytes_of(unplaced(text))
    scope.state.budget.spend(len(data))
    kept = scope.state.positional
    if arguments:
        scope.state.positional = tuple(arguments)
    walk.depth += 1
    walk.block(parse(data).children, replace(scope, source=Source(data, places, elsewhere=True)))
    walk.depth -= 1
    if arguments:
        scope.state.positional = kept
    if scope.state.stopped == "return":
        scope.state.stopped = ""


def _call(walk: Walk, name: str, arguments: Sequence[Token], scope: Scope) -> None:
    """A function of the script runs."""
    state = scope.state
    body = state.functions[name]
    before_call = state.copy()
    kept, outer_local = state.positional, state.local
    state.positional, state.local = tuple(arguments), {}
    walk.depth += 1
    walk.statement(body, replace(scope, source=walk.root))
    walk.depth -= 1
    for local, before in (state.local or {}).items():
        state.variables.pop(local, None)
        if before is not None:
            state.variables[local] = before
    state.positional, state.local = kept, outer_local
    state.stopped = "exit" if state.stopped == "exit" else ""
    if _may_return_early(body) and not state.stopped:
        after = state.copy()
        state.variables, state.exported = before_call.variables, before_call.exported
        merge(state, [after], False, f"the function {name} (it may return early)")


def _may_return_early(body: Node) -> bool:
    """A `return` anywhere but as the body's own last statement."""
    returns = [
        node for node in tree_nodes(body)
        if node.type == "command" and (node.text or b"").split()[:1] == [b"return"]
    ]
    return any(node != body.named_children[-1] for node in returns)


def _inner_shell(walk: Walk, command: Command, scope: Scope, heredoc: Node | None) -> None:
    """`bash -c TEXT` and `bash <<EOF` among the arguments; `sbatch <<EOF` and `sbatch --wrap TEXT`."""
    if command.argv[0].text == "sbatch":
        _submitted(walk, command, scope, heredoc)
        return
    for at, token in enumerate(command.argv):
        if token.text is None or not _SHELLS.match(token.text):
            continue
        rest = command.argv[at + 1 :]
        skipped = 0
        while skipped < len(rest) and (rest[skipped].text or "").startswith(("-", "+")):
            skipped += 1
        options = [word.text or "" for word in rest[:skipped]]
        if any(re.fullmatch(r"-[a-z]*c", option) for option in options) and skipped < len(rest):
            child = _child(command, scope, rest[skipped + 2 :])
            _second_reading(walk, rest[skipped].atoms, child, token.line)
        elif heredoc is not None and (skipped == len(rest) or "-s" in options):
            _child_reads(walk, heredoc, scope, _child(command, scope, rest[skipped:]))
        return


def _submitted(walk: Walk, command: Command, scope: Scope, heredoc: Node | None) -> None:
    """A job that this script submits: its text, when it has no `--export` of its own, which would need Slurm's eyes."""
    child = _child(command, scope, ())
    words = command.argv[1:]
    for at, token in enumerate(words):
        atoms = token.atoms[7:] if token.prefix.startswith("--wrap=") else ()
        if token.text == "--wrap" and at + 1 < len(words):
            atoms = words[at + 1].atoms
        if atoms:
            _second_reading(walk, atoms, child, token.line)
            return
    if heredoc is None or re.search(r"(?m)^#SBATCH\b.*--export\b", scope.text(heredoc)):
        return
    _child_reads(walk, heredoc, scope, child)


def _child(command: Command, scope: Scope, arguments: Sequence[Token]) -> Scope:
    """What a child shell knows: exported variables and its own arguments."""
    variables = {**command.exported, **dict(command.prefix)}
    state = State(variables, set(variables), positional=tuple(arguments), budget=scope.state.budget)
    return Scope(scope.source, state, command.condition, command)


def _child_reads(walk: Walk, heredoc: Node, scope: Scope, child: Scope) -> None:
    """A child shell reads a heredoc as its script."""
    body = _part(heredoc, "heredoc_body")
    atoms = heredoc_text(walk, heredoc, scope, Quote.NESTED, Quote.NESTED)
    if body is not None and atoms is not None:
        _second_reading(walk, atoms, child, scope.line(body))


def heredoc_text(
    walk: Walk, heredoc: Node, scope: Scope, literal: Quote, expanded: Quote
) -> list[Atom] | None:
    """The text of a heredoc, written as `literal` where its end word is quoted; None for one that is not complete."""
    body, start = _part(heredoc, "heredoc_body"), _part(heredoc, "heredoc_start")
    if body is None or start is None:
        return None
    if scope.text(start)[:1] in ("'", '"', "\\"):
        pieces = scope.source.literal(body.start_byte, body.end_byte, literal)
    else:
        pieces = walk.expander.body(body, body.start_byte, body.end_byte, scope, "double", expanded)
    return [atom for atom, _ in pieces]


def _part(heredoc: Node, kind: str) -> Node | None:
    return next((part for part in heredoc.named_children if part.type == kind), None)


def _read_heredoc(walk: Walk, argv: Sequence[Token], scope: Scope, heredoc: Node | None, line: int) -> bool:
    """`read -r -d '' NAME <<EOF`: the whole heredoc becomes the variable's value, without blanks at its ends (bash(1),
    read). True: that was it."""
    words = [token.text for token in argv]
    if heredoc is None or words[:1] != ["read"] or words[1:-1] not in (["-r", "-d", ""], ["-d", "", "-r"], ["-rd", ""]):
        return False
    name = words[-1] or ""
    body = _part(heredoc, "heredoc_body")
    if not name.isidentifier() or body is None or (scope.source.atoms is not None and not scope.source.elsewhere):
        return False
    if scope.text(heredoc).startswith("<<-") or '\\"' in scope.text(body):
        return False  # a backslash stays in front of a quote here, unlike inside double quotes
    atoms = heredoc_text(walk, heredoc, scope, Quote.SINGLE, Quote.DOUBLE)
    if atoms is None:
        return False
    while atoms and not atoms[-1].unknown and atoms[-1].char.isspace():
        atoms.pop()
    while atoms and not atoms[0].unknown and atoms[0].char.isspace():
        atoms.pop(0)
    scope.state.variables[name] = Binding(tuple(atoms), None, line, scope.place(body.start_byte, body.end_byte))
    return True


def _second_reading(walk: Walk, atoms: Sequence[Atom], scope: Scope, line: int) -> None:
    """A shell reads the text as a script; its state is that of `scope`."""
    if walk.depth >= _DEPTH:
        return
    data, places = bytes_of(atoms)
    source = Source(data, places, line, Counter(atom.uses for atom in places))
    scope.state.budget.spend(len(data))
    walk.depth += 1
    walk.block(parse(data).children, replace(scope, source=source))
    walk.depth -= 1
