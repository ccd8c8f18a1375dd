"""Expand shell words to atoms against the state: what each argument is, and where every character of it is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tree_sitter import Node

from runbook.template.bash.state import (
    PLACEHOLDER,
    Atom,
    Binding,
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

_SLURM_SET = re.compile(r"^(SLURM|PMI|PMIX|CUDA_VISIBLE|HOSTNAME$|USER$|HOME$|PWD$|RANDOM$|SECONDS$)")
_ALWAYS_SET = frozenset(
    {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NODELIST", "SLURM_NODELIST",
     "SLURM_SUBMIT_DIR", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_CPUS_ON_NODE"}
)
"""In every job (sbatch(1), output environment variables): a default beside them is never taken."""
_HYDRA_REMOVAL = re.compile(r"~[A-Za-z_]\w*\.[\w.]+(?:=|$)")
"""`~actor.lora`: the shell would look for a person of that name, and leaves the word when there is none."""

_DEFAULTS = (":-", "-", ":=", "=")


@dataclass(slots=True)
class Expander:
    """Turns nodes into atoms. `environment` is the submitter's, None when it is not known."""

    environment: dict[str, str] | None

    def words(self, nodes: Sequence[Node], source: Source, state: State) -> list[Token]:
        """The arguments of a command, or the elements of an array, in their order.

        Of `./$A/$B/` the grammar makes two words that touch (tree-sitter-bash 0.25): such a word is not known."""
        found: list[Token] = []
        for at, node in enumerate(nodes):
            before = nodes[at - 1] if at else None
            if before is None or before.end_byte != _start(node, source):
                found += self.tokens(node, source, state)
                continue
            shown = source.text(before)[-40:] + source.text(node)[:40]
            atom, _ = self._unknown(f"the word {shown} is not followed", node, source)
            first = found.pop() if found else Token((), -1, -1, Quote.BARE, source.line(node))
            place = source.place(before.start_byte, node.end_byte)
            found.append(Token((*first.atoms, atom), *place, Quote.BARE, first.line))
        return found

    def tokens(self, node: Node, source: Source, state: State) -> list[Token]:
        """The arguments that a word becomes: usually one, for `"${ARGS[@]}"` and `$ARGS` any number."""
        whole = self._whole_array(node, source, state)
        if whole is not None:
            return whole
        pieces = self._checked(self.pieces(node, source, state, quoted=False), node, source, state)
        site = source.place(node.start_byte, node.end_byte)
        line = source.line(node)
        if not pieces:
            empty = node.type in ("string", "raw_string", "ansi_c_string")
            return [Token((), *site, Quote.BARE, line)] if empty else []
        tokens = split_words(pieces, site, line)
        if source.atoms is None:
            return tokens
        return [self._nested(token, node, source, len(tokens) == 1) for token in tokens]

    def _checked(self, pieces: list[Piece], node: Node, source: Source, state: State) -> list[Piece]:
        """Braces, `~` and a changed IFS make other words than those that are written."""
        bare = "".join(
            atom.char if atom.quote in (Quote.BARE, Quote.NESTED) and not cuttable and not atom.unknown else "x"
            for atom, cuttable in pieces
        )
        if node.type != "raw_string" and re.search(r"\{[^{}]*(?:,|\.\.)[^{}]*\}", bare) and _unquoted_brace(node):
            return [self._unknown("braces that expand", node, source)]
        if bare.startswith("~") and node.type in ("word", "concatenation"):
            return self._home(pieces, node, source)
        separators = state.variables.get("IFS")
        if separators is not None and separators.elements is None:
            marks = f"{text_of(separators.atoms) or ''} \t\n"
            if any(cuttable and atom.char in marks for atom, cuttable in pieces):
                reason = f"IFS is changed at line {separators.line}, and with it the words"
                return [(self._unknown(reason, node, source)[0], True)]
        return pieces

    def _home(self, pieces: list[Piece], node: Node, source: Source) -> list[Piece]:
        if _HYDRA_REMOVAL.match("".join(atom.char for atom, _ in pieces)):
            return pieces
        home = (self.environment or {}).get("HOME")
        if home is None or not re.match(r"~(?:/|$)", "".join(atom.char for atom, _ in pieces)):
            return [self._unknown("the home folder of ~ decides", node, source)]
        start, end = source.place(node.start_byte, node.start_byte + 1)
        use = Use("~", start, end, source.line(node), True)
        return [*((atom, False) for atom in unplaced(home, uses=(use,))), *pieces[1:]]

    def _nested(self, token: Token, node: Node, source: Source, alone: bool) -> Token:
        """The place in the file of a word of a text that is read by a second shell."""
        if not alone:
            return replace(token, quote=Quote.NESTED)
        assert source.atoms is not None
        around = source.atoms[: node.start_byte] + source.atoms[node.end_byte :]
        mine = shared_uses([atom.uses for atom in token.atoms])
        level = max((len(shared_uses([mine, uses])) for uses in {atom.uses for atom in around}), default=0)
        inside = replace(token, atoms=source.atoms[node.start_byte : node.end_byte])
        placed = at_level(inside, level)
        return replace(placed, atoms=token.atoms, quote=Quote.NESTED)

    def atoms(self, node: Node, source: Source, state: State) -> tuple[Atom, ...]:
        """As an assignment's right side: no word splitting."""
        pieces = self.pieces(node, source, state, quoted=False)
        tilde = pieces and pieces[0][0].char == "~" and pieces[0][0].quote in (Quote.BARE, Quote.NESTED)
        if tilde and not pieces[0][0].uses and node.type in ("word", "concatenation"):
            pieces = self._home(pieces, node, source)
        return tuple(atom for atom, _ in pieces)

    def pieces(self, node: Node, source: Source, state: State, quoted: bool) -> list[Piece]:
        kind = node.type
        if kind in ("word", "number", "command_name", "variable_name", "file_descriptor") and not node.named_children:
            return self._bare(node, source)
        if kind in ("command_name", "concatenation"):
            return [piece for child in node.children for piece in self.pieces(child, source, state, quoted)]
        if kind in ("string", "translated_string"):
            return self._string(node, source, state)
        if kind == "raw_string":
            return source.literal(node.start_byte + 1, node.end_byte - 1, Quote.SINGLE)
        if kind == "ansi_c_string":
            if b"\\" in source.data[node.start_byte : node.end_byte]:
                return [self._unknown("a $'…' string with escapes", node, source)]
            return source.literal(node.start_byte + 2, node.end_byte - 1, Quote.SINGLE)
        if kind in ("simple_expansion", "expansion"):
            return self._expansion(node, source, state, quoted)
        if kind == "arithmetic_expansion":
            return self._arithmetic(node, source, state, quoted)
        if kind == "command_substitution":
            shown = " ".join(source.text(node).split())[:60]
            return [(self._unknown(f"the command substitution {shown} decides", node, source)[0], not quoted)]
        if not node.is_named:
            return self._bare(node, source)
        return [self._unknown(f"{kind.replace('_', ' ')} is not followed", node, source)]

    def use(self, name: str, node: Node, source: Source, quoted: bool, default: bool = False) -> Use:
        start, end = source.place(_start(node, source), node.end_byte)
        return Use(name, start, end, source.line(node), quoted, default)

    def _unknown(self, reason: str, node: Node, source: Source) -> Piece:
        return Atom("", unknown=f"{reason} (line {source.line(node)})"), False

    def _bare(self, node: Node, source: Source) -> list[Piece]:
        pieces: list[Piece] = []
        for char, start, end in characters(source.data, node.start_byte, node.end_byte, escapes="all"):
            if char == PLACEHOLDER and source.atoms is not None:
                pieces.append((source.atom(start, end, char, Quote.NESTED), True))
            else:
                pieces.append((source.atom(start, end, char, Quote.BARE), False))
        return pieces

    def _string(self, node: Node, source: Source, state: State) -> list[Piece]:
        """Between double quotes; what is no expansion is text, including blanks that the grammar leaves out."""
        opening = source.data.index(b'"', node.start_byte, node.end_byte) + 1
        return self.body(node, opening, node.end_byte - 1, source, state, "double", Quote.DOUBLE)

    def body(
        self, node: Node, start: int, end: int, source: Source, state: State, escapes: str, quote: Quote
    ) -> list[Piece]:
        pieces: list[Piece] = []
        position = start
        for child in _expansions(node):
            pieces += source.literal(position, _start(child, source), quote, escapes)
            array = self._whole_array(child, source, state)
            if array is not None:
                pieces += [(atom, False) for atom in joined_words(array)]
            else:
                pieces += self.pieces(child, source, state, quoted=True)
            position = child.end_byte
        return pieces + source.literal(position, end, quote, escapes)

    def _expansion(self, node: Node, source: Source, state: State, quoted: bool) -> list[Piece]:
        shown = source.text(node).lstrip()
        match = re.fullmatch(r"\$(?:(\w+)|\{(\w+)\})", shown)
        if match:
            return self._value(match[1] or match[2], node, source, state, quoted, None)
        match = re.match(r"\$\{(\w+)(:-|-|:=|=|:\?|\?)", shown)
        if match:
            default = match.end() + _start(node, source) if match[2] in _DEFAULTS else None
            return self._value(match[1], node, source, state, quoted, default, empty_counts=":" not in match[2])
        match = re.fullmatch(r"\$\{(\w+)\[(\d+)\]\}", shown)
        if match and (binding := state.variables.get(match[1])) is not None and binding.elements is not None:
            use = self.use(match[1], node, source, quoted)
            at = int(match[2])
            if at < len(binding.elements) and not any(token.condition or token.several for token in binding.elements):
                return [(atom.through(use), not quoted) for atom in binding.elements[at].atoms]
        if shown in ("$@", "$*"):
            return [(Atom("", unknown=f"the script's own arguments decide (line {source.line(node)})"), not quoted)]
        for name in re.findall(r"\w+", shown)[:1]:
            self.use(name, node, source, quoted)
        return [(self._unknown(f"the expansion {shown[:60]} decides", node, source)[0], not quoted)]

    def _value(
        self,
        name: str,
        node: Node,
        source: Source,
        state: State,
        quoted: bool,
        default: int | None,
        empty_counts: bool = True,
    ) -> list[Piece]:
        """A variable's value; `default` is the byte where the text after `:-` begins. `empty_counts`: without the
        colon an empty value is a value."""
        line = source.line(node)
        use = self.use(name, node, source, quoted)
        if name.isdecimal():
            given = self._positional(int(name), use, state, line, quoted)
            absent = state.positional is not None and int(name) > len(state.positional)
            if given or default is None or (empty_counts and not absent):
                return given
            inner = replace(use, default=True)
            atoms = tuple(atom.through(inner) for atom in self._default(node, default, source, state, quoted))
            return [(atom, not quoted) for atom in atoms]
        binding = state.variables.get(name)
        if binding is not None and binding.elements is not None:
            if binding.elements:
                return [(atom.through(use), not quoted) for atom in binding.elements[0].atoms]
            return []
        if binding is not None and (binding.atoms or default is None or empty_counts):
            return [(atom.through(use), not quoted) for atom in binding.atoms]
        if binding is None and self.environment is not None and name in self.environment:
            return [(atom, not quoted) for atom in unplaced(self.environment[name], uses=(use,))]
        if binding is None and state.sourced:
            reason = f"{name} may come from {state.sourced[-1]}, which is not followed"
            return [(Atom("", unknown=reason), not quoted)]
        if default is not None and name in _ALWAYS_SET:
            return [(Atom("", unknown=f"Slurm sets {name} (line {line})"), not quoted)]
        if default is not None:
            inner = replace(use, default=True)
            atoms = tuple(atom.through(inner) for atom in self._default(node, default, source, state, quoted))
            if source.data[default - 1 : default] == b"=":
                state.variables[name] = Binding(atoms, None, line)
            return [(atom, not quoted) for atom in atoms]
        if self.environment is not None and not _SLURM_SET.match(name):
            return []
        reason = f"{name} is not set in this file; the environment decides (line {line})"
        return [(Atom("", unknown=reason), not quoted)]

    def _default(self, node: Node, start: int, source: Source, state: State, quoted: bool) -> list[Atom]:
        inner = _arithmetic_alone(source.data[start : node.end_byte - 1])
        if inner is not None:
            inside = (start, node.end_byte - 1, inner)
            return [atom for atom, _ in self._arithmetic(node, source, state, quoted, inside)]
        children = [child for child in node.children if child.start_byte >= start and child.end_byte < node.end_byte]
        atoms: list[Atom] = []
        position = start
        quote = Quote.DOUBLE if quoted else Quote.BARE
        for child in children:
            atoms += [atom for atom, _ in source.literal(position, child.start_byte, quote)]
            if child.type in ("word", "number"):
                atoms += [
                    atom for atom, _ in source.literal(child.start_byte, child.end_byte, quote, "all")
                ]
            else:
                atoms += [atom for atom, _ in self.pieces(child, source, state, quoted)]
            position = child.end_byte
        atoms += [atom for atom, _ in source.literal(position, node.end_byte - 1, quote)]
        if not quoted and source.data[start : start + 1] == b"~":
            atoms = [atom for atom, _ in self._home([(atom, False) for atom in atoms], node, source)]
        return atoms

    def _positional(self, number: int, use: Use, state: State, line: int, quoted: bool) -> list[Piece]:
        if state.positional is not None and 1 <= number <= len(state.positional):
            return [(atom.through(use), not quoted) for atom in state.positional[number - 1].atoms]
        if state.positional is not None and number:
            return []
        return [(Atom("", unknown=f"the script's own argument ${number} decides (line {line})"), not quoted)]

    def _arithmetic(
        self, node: Node, source: Source, state: State, quoted: bool, inside: tuple[int, int, Node] | None = None
    ) -> list[Piece]:
        """`inside`: the bytes that it has in the expansion `node`, and what they are when they are parsed alone."""
        start, end, inner = inside or (_start(node, source), node.end_byte, node)
        written = source.data[start:end].decode("utf-8", "surrogateescape")

        def variable(name: str) -> int | None:
            self.use(name, node, source, quoted)
            binding: Binding | None = state.variables.get(name)
            text = text_of(binding.atoms) if binding is not None and binding.elements is None else None
            return int(text) if text is not None and re.fullmatch(r"0|[1-9][0-9]{0,15}", text) else None

        value = evaluate_arithmetic(inner, variable)
        change_by_arithmetic(state, written, source.line(node))
        shown = " ".join(written.split())[:60]
        if value is None:
            return [(self._unknown(f"the arithmetic {shown} is not known", node, source)[0], not quoted)]
        use = Use(shown, *source.place(start, end), source.line(node), quoted)
        return [(atom, not quoted) for atom in unplaced(str(value), uses=(use,))]

    def _whole_array(self, node: Node, source: Source, state: State) -> list[Token] | None:
        """`"${A[@]}"`, `${A[*]}`, `"$@"` alone in a word: the elements as they are; `"${A[*]}"` is one word."""
        shown = source.text(node).lstrip()
        quoted = shown.startswith('"')
        if quoted and re.fullmatch(r'"\$(?:\*|\{\*\}|\{\w+\[\*\]\})"', shown):
            return None
        bare = shown[1:-1] if quoted and len(shown) > 2 else shown
        line = source.line(node)
        if bare in ("$@", "${@}", "$*", "${*}", '${@:1}'):
            if state.positional is not None:
                return list(state.positional)
            reason = f"the script's own arguments decide (line {line})"
            site = source.place(node.start_byte, node.end_byte)
            return [Token((Atom("", unknown=reason),), *site, Quote.BARE, line, several=True)]
        match = re.fullmatch(r"\$\{(\w+)\[[@*]\](?:[-+][^}]*|:[-+][^}]*)?\}", bare)
        if not match:
            return None
        name = match[1]
        use = self.use(name, node, source, quoted)
        binding = state.variables.get(name)
        if binding is None or binding.elements is None:
            known = "" if binding is None else binding.unknown
            reason = known or f"the array {name} is not set in this file (line {line})"
            if binding is None and self.environment is not None and not state.sourced:
                return []
            site = source.place(node.start_byte, node.end_byte)
            return [Token((Atom("", unknown=reason),), *site, Quote.BARE, line, several=True)]
        return [
            replace(
                token,
                atoms=tuple(atom.through(use) for atom in token.atoms),
                level=token.level + 1,
                trail=(f"{name}[{index}]", *token.trail),
            )
            for index, token in enumerate(binding.elements)
        ]


def _start(node: Node, source: Source) -> int:
    """Where an expansion begins: between two in one string the grammar counts the blanks to the second."""
    text = source.data[node.start_byte : node.end_byte]
    return node.start_byte + len(text) - len(text.lstrip())


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
