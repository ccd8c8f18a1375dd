"""Expand shell words to atoms against the state: what each argument is, and where every character of it is written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tree_sitter import Node

from runbook.model.template import Unresolved
from runbook.template.bash.state import (
    PLACEHOLDER,
    Atom,
    Binding,
    Command,
    Quote,
    State,
    Token,
    Use,
    at_level,
    change_by_arithmetic,
    evaluate_arithmetic,
    shared_uses,
    split_words,
    text_of,
    unplaced,
)
from runbook.template.bash.syntax import Piece, Source, characters, parse
from runbook.template.budget import MOST_DIGITS, MOST_VALUE, TooMuch

_SLURM_SET = re.compile(r"^(SLURM|PMI|PMIX|CUDA_VISIBLE|HOSTNAME$|USER$|HOME$|PWD$|RANDOM$|SECONDS$)")
_ALWAYS_SET = frozenset(
    {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NODELIST", "SLURM_NODELIST",
     "SLURM_SUBMIT_DIR", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_CPUS_ON_NODE"}
)
"""In every job (sbatch(1), output environment variables): a default beside them is never taken."""
_HYDRA_REMOVAL = re.compile(r"~[A-Za-z_]\w*\.[\w.]+(?:=|$)")
"""`~actor.lora`: the shell would look for a person of that name, and leaves the word when there is none."""

_DEFAULTS = (":-", "-", ":=", "=")


@dataclass(frozen=True, slots=True)
class Scope:
    """What a node is read against: the text that it stands in, what the shell knows there, and when it runs."""

    source: Source
    state: State
    condition: str = ""
    """Why it may not run: "inside the `if` at line 12"."""
    outer: Command | None = None
    """The command that runs it."""

    def branch(self, condition: str = "") -> Scope:
        """The same with a state of its own, under this condition where there is none yet."""
        return replace(self, state=self.state.copy(), condition=self.condition or condition)

    def text(self, node: Node) -> str:
        return self.source.text(node)

    def line(self, node: Node) -> int:
        return self.source.line(node)

    def place(self, start: int, end: int) -> tuple[int, int]:
        return self.source.place(start, end)


@dataclass(slots=True)
class Expander:
    """Turns nodes into atoms. `environment` is the submitter's, None when it is not known."""

    environment: dict[str, str] | None

    def words(self, nodes: Sequence[Node], scope: Scope) -> list[Token]:
        """The arguments of a command, or the elements of an array, in their order.

        Of `./$A/$B/` the grammar makes two words that touch (tree-sitter-bash 0.25): such a word is not known."""
        found: list[Token] = []
        for at, node in enumerate(nodes):
            before = nodes[at - 1] if at else None
            if before is None or before.end_byte != _start(node, scope):
                found += self.tokens(node, scope)
                continue
            shown = scope.text(before)[-40:] + scope.text(node)[:40]
            atom, _ = self._unknown(f"the word {shown} is not followed", node, scope, shown)
            first = found.pop() if found else Token((), -1, -1, Quote.BARE, scope.line(node))
            place = scope.place(before.start_byte, node.end_byte)
            found.append(Token((*first.atoms, atom), *place, Quote.BARE, first.line))
        return found

    def tokens(self, node: Node, scope: Scope) -> list[Token]:
        """The arguments that a word becomes: usually one, for `"${ARGS[@]}"` and `$ARGS` any number."""
        whole = self._whole_array(node, scope)
        if whole is not None:
            scope.state.budget.spend(sum(10 + len(token.atoms) for token in whole))
            return whole
        pieces = self._checked(self.pieces(node, scope, quoted=False), node, scope)
        site = scope.place(node.start_byte, node.end_byte)
        line = scope.line(node)
        if not pieces:
            empty = node.type in ("string", "raw_string", "ansi_c_string")
            return [Token((), *site, Quote.BARE, line)] if empty else []
        tokens = split_words(pieces, site, line)
        if scope.source.atoms is None:
            return tokens
        return [self._nested(token, node, scope, len(tokens) == 1) for token in tokens]

    def _checked(self, pieces: list[Piece], node: Node, scope: Scope) -> list[Piece]:
        """Braces, `~` and a changed IFS make other words than those that are written."""
        bare = "".join(
            atom.char if atom.quote in (Quote.BARE, Quote.NESTED) and not cuttable and not atom.unknown else "x"
            for atom, cuttable in pieces
        )
        if node.type != "raw_string" and re.search(r"\{[^{}]*(?:,|\.\.)[^{}]*\}", bare) and _unquoted_brace(node):
            return [self._unknown("braces that expand", node, scope)]
        if bare.startswith("~") and node.type in ("word", "concatenation"):
            return self._home(pieces, node, scope)
        separators = scope.state.variables.get("IFS")
        if separators is not None and separators.elements is None:
            marks = f"{text_of(separators.atoms) or ''} \t\n"
            if any(cuttable and atom.char in marks for atom, cuttable in pieces):
                reason = f"IFS is changed at line {separators.line}, and with it the words"
                return [(self._unknown(reason, node, scope)[0], True)]
        return pieces

    def _home(self, pieces: list[Piece], node: Node, scope: Scope) -> list[Piece]:
        if _HYDRA_REMOVAL.match("".join(atom.char for atom, _ in pieces)):
            return pieces
        home = (self.environment or {}).get("HOME")
        if home is None or not re.match(r"~(?:/|$)", "".join(atom.char for atom, _ in pieces)):
            return [self._unknown("the home folder of ~ decides", node, scope)]
        start, end = scope.place(node.start_byte, node.start_byte + 1)
        use = Use("~", start, end, scope.line(node), True)
        return [*((atom, False) for atom in unplaced(home, uses=(use,))), *pieces[1:]]

    def _nested(self, token: Token, node: Node, scope: Scope, alone: bool) -> Token:
        """The place in the file of a word of a text that is read by a second shell."""
        if not alone:
            return replace(token, quote=Quote.NESTED)
        assert scope.source.atoms is not None
        inside = replace(token, atoms=scope.source.atoms[node.start_byte : node.end_byte])
        within = Counter(atom.uses for atom in inside.atoms)
        scope.state.budget.spend(len(scope.source.paths))
        around = [uses for uses, atoms in scope.source.paths.items() if atoms > within[uses]]
        mine = shared_uses([atom.uses for atom in token.atoms])
        level = max((len(shared_uses([mine, uses])) for uses in around), default=0)
        placed = at_level(inside, level)
        return replace(placed, atoms=token.atoms, quote=Quote.NESTED)

    def atoms(self, node: Node, scope: Scope) -> tuple[Atom, ...]:
        """As an assignment's right side: no word splitting."""
        pieces = self.pieces(node, scope, quoted=False)
        tilde = pieces and pieces[0][0].char == "~" and pieces[0][0].quote in (Quote.BARE, Quote.NESTED)
        if tilde and not pieces[0][0].uses and node.type in ("word", "concatenation"):
            pieces = self._home(pieces, node, scope)
        return tuple(atom for atom, _ in pieces)

    def pieces(self, node: Node, scope: Scope, quoted: bool) -> list[Piece]:
        """What the node expands to, character by character. Raises `TooMuch`."""
        pieces = self._pieces(node, scope, quoted)
        if len(pieces) > MOST_VALUE:
            raise TooMuch(f"a value grows past {MOST_VALUE} characters at line {scope.line(node)}")
        scope.state.budget.spend(1 + len(pieces))
        return pieces

    def _pieces(self, node: Node, scope: Scope, quoted: bool) -> list[Piece]:
        kind = node.type
        if kind in ("word", "number", "command_name", "variable_name", "file_descriptor") and not node.named_children:
            return self._bare(node, scope)
        if kind in ("command_name", "concatenation"):
            return [piece for child in node.children for piece in self.pieces(child, scope, quoted)]
        if kind in ("string", "translated_string"):
            return self._string(node, scope)
        if kind == "raw_string":
            return scope.source.literal(node.start_byte + 1, node.end_byte - 1, Quote.SINGLE)
        if kind == "ansi_c_string":
            if b"\\" in scope.source.data[node.start_byte : node.end_byte]:
                return [self._unknown("a $'…' string with escapes", node, scope)]
            return scope.source.literal(node.start_byte + 2, node.end_byte - 1, Quote.SINGLE)
        if kind in ("simple_expansion", "expansion"):
            return self._expansion(node, scope, quoted)
        if kind == "arithmetic_expansion":
            return self._arithmetic(node, scope, quoted)
        if kind == "command_substitution":
            shown = " ".join(scope.text(node).split())[:60]
            return [(self._unknown(f"the command substitution {shown} decides", node, scope, shown)[0], not quoted)]
        if not node.is_named:
            return self._bare(node, scope)
        return [self._unknown(f"{kind.replace('_', ' ')} is not followed", node, scope)]

    def use(self, name: str, node: Node, scope: Scope, quoted: bool, default: bool = False) -> Use:
        start, end = scope.place(_start(node, scope), node.end_byte)
        return Use(name, start, end, scope.line(node), quoted, default)

    def _unknown(self, reason: str, node: Node, scope: Scope, code: str = "") -> Piece:
        return Atom("", unknown=Unresolved(f"{reason} (line {scope.line(node)})", code)), False

    def _bare(self, node: Node, scope: Scope) -> list[Piece]:
        pieces: list[Piece] = []
        for char, start, end in characters(scope.source.data, node.start_byte, node.end_byte, escapes="all"):
            if char == PLACEHOLDER and scope.source.atoms is not None:
                pieces.append((scope.source.atom(start, end, char, Quote.NESTED), True))
            else:
                pieces.append((scope.source.atom(start, end, char, Quote.BARE), False))
        return pieces

    def _string(self, node: Node, scope: Scope) -> list[Piece]:
        """Between double quotes; what is no expansion is text, including blanks that the grammar leaves out."""
        opening = scope.source.data.index(b'"', node.start_byte, node.end_byte) + 1
        return self.body(node, opening, node.end_byte - 1, scope, "double", Quote.DOUBLE)

    def body(
        self, node: Node, start: int, end: int, scope: Scope, escapes: str, quote: Quote
    ) -> list[Piece]:
        pieces: list[Piece] = []
        position = start
        for child in _expansions(node):
            pieces += scope.source.literal(position, _start(child, scope), quote, escapes)
            array = self._whole_array(child, scope)
            if array is not None:
                pieces += [(atom, False) for atom in joined_words(array)]
            else:
                pieces += self.pieces(child, scope, quoted=True)
            position = child.end_byte
        return pieces + scope.source.literal(position, end, quote, escapes)

    def _expansion(self, node: Node, scope: Scope, quoted: bool) -> list[Piece]:
        shown = _shown(node, scope)
        match = re.fullmatch(r"\$(?:(\w+)|\{(\w+)\})", shown)
        if match:
            return self._value(match[1] or match[2], node, scope, quoted)
        match = re.match(r"\$\{(\w+)(:-|-|:=|=|:\?|\?)", shown)
        if match:
            default = match.end() + _start(node, scope) if match[2] in _DEFAULTS else None
            return self._value(match[1], node, scope, quoted, default, empty_counts=":" not in match[2])
        match = re.fullmatch(r"\$\{(\w+)\[(\d+)\]\}", shown)
        binding = scope.state.variables.get(match[1]) if match else None
        if match and len(match[2]) <= MOST_DIGITS and binding is not None and binding.elements is not None:
            use = self.use(match[1], node, scope, quoted)
            at = int(match[2])
            if at < len(binding.elements) and not any(token.condition or token.several for token in binding.elements):
                return [(atom.through(use), not quoted) for atom in binding.elements[at].atoms]
        if shown in ("$@", "$*"):
            return [(self._unknown("the script's own arguments decide", node, scope)[0], not quoted)]
        for name in re.findall(r"\w+", shown)[:1]:
            self.use(name, node, scope, quoted)
        return [(self._unknown(f"the expansion {shown[:60]} decides", node, scope, shown)[0], not quoted)]

    def _value(
        self, name: str, node: Node, scope: Scope, quoted: bool, default: int | None = None, empty_counts: bool = True
    ) -> list[Piece]:
        """A variable's value; `default` is the byte where the text after `:-` begins. `empty_counts`: without the
        colon an empty value is a value."""
        use = self.use(name, node, scope, quoted)
        return [(atom, not quoted) for atom in self._followed(use, node, scope, default, empty_counts)]

    def _followed(
        self, use: Use, node: Node, scope: Scope, default: int | None, empty_counts: bool
    ) -> Sequence[Atom]:
        name, state = use.name, scope.state
        if name.isdecimal() and len(name) <= MOST_DIGITS:
            given = _argument(int(name), use, state, _shown(node, scope) if default is not None else "")
            absent = state.positional is not None and int(name) > len(state.positional)
            kept = given or default is None or (empty_counts and not absent)
            return given if kept or default is None else self._default(use, node, default, scope)
        binding = state.variables.get(name)
        if binding is not None and binding.elements is not None:
            return [atom.through(use) for element in binding.elements[:1] for atom in element.atoms]
        if binding is not None and (binding.atoms or default is None or empty_counts):
            return [atom.through(use) for atom in binding.atoms]
        if binding is None and self.environment is not None and name in self.environment:
            return unplaced(self.environment[name], uses=(use,))
        if binding is None and state.not_followed:
            reason = f"{name} may come from {state.not_followed}, which is not followed"
        elif default is not None and name in _ALWAYS_SET:
            reason = f"Slurm sets {name} (line {use.line})"
        elif default is not None:
            atoms = self._default(use, node, default, scope)
            if scope.source.data[default - 1 : default] == b"=":
                state.variables[name] = Binding(atoms, None, use.line)
            return atoms
        elif self.environment is not None and not _SLURM_SET.match(name):
            return ()
        else:
            reason = f"{name} is not set in this file; the environment decides (line {use.line})"
        return [Atom("", unknown=Unresolved(reason, name))]

    def _default(self, use: Use, node: Node, start: int, scope: Scope) -> tuple[Atom, ...]:
        """What stands behind `:-` in the expansion, from byte `start` on."""
        source, quoted = scope.source, use.quoted
        end = node.end_byte - 1
        inner = _arithmetic_alone(source.data[start:end])
        if inner is not None:
            pieces = self._arithmetic(node, scope, quoted, (start, end, inner))
        else:
            pieces = []
            position = start
            quote = Quote.DOUBLE if quoted else Quote.BARE
            for child in node.children:
                if child.start_byte < start or child.end_byte > end:
                    continue
                pieces += source.literal(position, child.start_byte, quote)
                if child.type in ("word", "number"):
                    pieces += source.literal(child.start_byte, child.end_byte, quote, "all")
                else:
                    pieces += self.pieces(child, scope, quoted)
                position = child.end_byte
            pieces += source.literal(position, end, quote)
            if not quoted and source.data[start : start + 1] == b"~":
                pieces = self._home(pieces, node, scope)
        by_default = replace(use, default=True)
        return tuple(atom.through(by_default) for atom, _ in pieces)

    def _arithmetic(
        self, node: Node, scope: Scope, quoted: bool, inside: tuple[int, int, Node] | None = None
    ) -> list[Piece]:
        """`inside`: the bytes that it has in the expansion `node`, and what they are when they are parsed alone."""
        start, end, inner = inside or (_start(node, scope), node.end_byte, node)
        written = scope.source.data[start:end].decode("utf-8", "surrogateescape")

        def variable(name: str) -> int | None:
            self.use(name, node, scope, quoted)
            binding: Binding | None = scope.state.variables.get(name)
            text = text_of(binding.atoms) if binding is not None and binding.elements is None else None
            return int(text) if text is not None and re.fullmatch(r"0|[1-9][0-9]{0,15}", text) else None

        value = evaluate_arithmetic(inner, variable)
        change_by_arithmetic(scope.state, written, scope.line(node))
        shown = " ".join(written.split())[:60]
        if value is None:
            return [(self._unknown(f"the arithmetic {shown} is not known", node, scope, shown)[0], not quoted)]
        use = Use(shown, *scope.place(start, end), scope.line(node), quoted)
        return [(atom, not quoted) for atom in unplaced(str(value), uses=(use,))]

    def _whole_array(self, node: Node, scope: Scope) -> list[Token] | None:
        """`"${A[@]}"`, `${A[*]}`, `"$@"` alone in a word: the elements as they are; `"${A[*]}"` is one word."""
        shown = _shown(node, scope)
        quoted = shown.startswith('"')
        if quoted and re.fullmatch(r'"\$(?:\*|\{\*\}|\{\w+\[\*\]\})"', shown):
            return None
        bare = shown[1:-1] if quoted and len(shown) > 2 else shown
        line = scope.line(node)
        if bare in ("$@", "${@}", "$*", "${*}", '${@:1}'):
            if scope.state.positional is not None:
                return list(scope.state.positional)
            atom, _ = self._unknown("the script's own arguments decide", node, scope)
            return [Token((atom,), *scope.place(node.start_byte, node.end_byte), Quote.BARE, line, several=True)]
        match = re.fullmatch(r"\$\{(\w+)\[[@*]\](?:[-+][^}]*|:[-+][^}]*)?\}", bare)
        if not match:
            return None
        name = match[1]
        use = self.use(name, node, scope, quoted)
        binding = scope.state.variables.get(name)
        if binding is None or binding.elements is None:
            known = None if binding is None else binding.unknown
            reason = known or Unresolved(f"the array {name} is not set in this file (line {line})", name)
            if binding is None and self.environment is not None and not scope.state.not_followed:
                return []
            site = scope.place(node.start_byte, node.end_byte)
            return [Token((Atom("", unknown=reason),), *site, Quote.BARE, line, several=True)]
        return [
            replace(
                token,
                atoms=tuple(atom.through(use) for atom in token.atoms),
                level=token.level + 1,
                trail=(f"{name}[{index}]", *token.trail),
                in_array=token.in_array or not token.trail,
            )
            for index, token in enumerate(binding.elements)
        ]


def _argument(number: int, use: Use, state: State, written: str) -> Sequence[Atom]:
    """`$1` of the script or function; `written`: with a default."""
    if state.positional is not None and 1 <= number <= len(state.positional):
        return [atom.through(use) for atom in state.positional[number - 1].atoms]
    if state.positional is not None and number:
        return ()
    code = written or f"${number}"
    return [Atom("", unknown=Unresolved(f"the script's own argument ${number} decides (line {use.line})", code))]


_IN_FRONT = re.compile(rb"(?:\s|\\\r?\n)*")


def _start(node: Node, scope: Scope) -> int:
    """Where an expansion begins: between two in one string the grammar counts the blanks to the second, and the
    backslash with which a line goes on."""
    found = _IN_FRONT.match(scope.source.data, node.start_byte, node.end_byte)
    return found.end() if found is not None else node.start_byte


def _shown(node: Node, scope: Scope) -> str:
    """The expansion itself, as it is written."""
    return scope.source.data[_start(node, scope) : node.end_byte].decode("utf-8", "surrogateescape")


def _arithmetic_alone(text: bytes) -> Node | None:
    """The default of `${X:-$((a + b))}`, which the grammar takes for commands in a subshell."""
    if not (text.startswith(b"$((") and text.endswith(b"))")):
        return None
    words = [child for child in parse(b"x=" + text).named_children if child.type == "variable_assignment"]
    value = words[0].child_by_field_name("value") if len(words) == 1 else None
    return value if value is not None and value.type == "arithmetic_expansion" and not value.has_error else None


def _unquoted_brace(node: Node) -> bool:
    """Braces in quotes are text. The grammar makes a word of its own of each that is not."""
    if node.type == "concatenation":
        return any(child.type == "word" and b"{" in (child.text or b"") for child in node.children)
    return node.type in ("word", "brace_expression")


def joined_words(tokens: Sequence[Token]) -> list[Atom]:
    """Tokens as one text with blanks between: what `"${ARGS[*]}"` gives."""
    atoms: list[Atom] = []
    for token in tokens:
        if atoms:
            atoms.append(Atom(" ", condition=token.condition))
        atoms += [replace(atom, condition=atom.condition or token.condition) for atom in token.atoms]
    return atoms


def _expansions(node: Node) -> list[Node]:
    wanted = ("simple_expansion", "expansion", "arithmetic_expansion", "command_substitution")
    return [child for child in node.children if child.type in wanted]
