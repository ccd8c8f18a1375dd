"""The whole numbers that a program's text gives names, where the way through it comes past them, and that a log prints.

Of a program only what can run counts: the modules' own statements, the classes of the program's own file, and the
functions and classes whose names these use, and so on. A variable of a module beside it counts where its name is read.
A branch whose condition is known to be false (a switch that is not given) is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from runbook.model.program import ConstantPlace, ProgramConstant
from runbook.program.sources import parsed

_MOST_CONSTANTS = 2_000
_LARGEST = 10**12
_MOST_STATEMENTS = 60_000
_LONGEST_NAME = 200
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Told = bool | float | str
"""An option's value: a switch's, a number, a text."""


def program_constants(
    files: Sequence[tuple[str, str]], given: Mapping[str, Told], entries: Sequence[str], *, unread_too: bool = False
) -> tuple[ProgramConstant, ...]:
    """The whole numbers that the programs' files give names: variables, attributes, keys of dictionaries, arguments of
    calls. File by file, in the order of the text, 2,000 at most; nothing of what is no Python.

    `files`: path and text, the programs' own first. `given`: by the name of an option in the program, its value.
    `entries`: the paths of the programs themselves, whose part under `__name__ == "__main__"` runs. `unread_too`: a
    module's variables count though nothing there reads them, as in a configuration."""
    walk = _walked(tuple(files), tuple(given.items()), frozenset(entries), unread_too)
    return walk.constants_found([path for path, _ in files]) if walk is not None else ()


@lru_cache(maxsize=4)
def _walked(
    files: tuple[tuple[str, str], ...], given: tuple[tuple[str, Told], ...], entries: frozenset[str], unread_too: bool
) -> _Walk | None:
    """None: too deep. What calls hand on is known once all of them are seen, so that the way is walked twice."""
    trees = [(path, tree) for path, text in files if (tree := parsed(text.encode("utf-8", "replace"))) is not None]
    handed: dict[str, bool | None] | None = None
    for _ in range(2):
        walk = _Walk(dict(given), entries, unread_too, handed)
        for path, tree in trees:
            walk.add(path, tree)
        try:
            walk.go()
        except RecursionError:
            return None
        handed = walk.passed
    return walk


def texts_that_run(
    files: Sequence[tuple[str, str]], given: Mapping[str, Told], entries: Sequence[str], named: Iterable[str] = ()
) -> tuple[tuple[str, str], ...]:
    """The programs' files, each line where it was: without the branches that the options leave out, the declarations of
    the options, whose help speaks of what they do, and the functions and classes of modules beside the programs to
    which no way leads. As they are where they are no Python. `given` as above.

    `named`: words of commands and configurations, which may choose a class by its name, as any short text of the
    program may; where a program makes up such a name nothing is left out for that."""
    walk = _walked(tuple(files), tuple(given.items()), frozenset(entries), False)
    gone: set[int] = set()
    if walk is not None and not walk.makes_up_names():
        gone = walk.apart().unreached(named)
    trees = {module.path: module.tree for module in walk.modules} if walk is not None else {}
    return tuple((path, _running(text, trees.get(path), given, gone)) for path, text in files)


@dataclass(slots=True)
class _Module:
    path: str
    tree: ast.Module
    constants: list[tuple[ProgramConstant, bool]] = field(default_factory=list)
    """With whether it is a variable of the module itself, which counts where something reads it."""


@dataclass(slots=True)
class _Walk:
    given: dict[str, Told]
    entries: frozenset[str]
    unread_too: bool
    handed: dict[str, bool | None] | None = None
    """`passed` of a walk that took every branch."""
    modules: list[_Module] = field(default_factory=list)
    defined: dict[str, list[tuple[_Module, _Definition, str]]] = field(default_factory=dict)
    """By name: functions, methods and classes, with the class that they stand in."""
    used: set[str] = field(default_factory=set)
    """Names that something reached reads."""
    passed: dict[str, bool | None] = field(default_factory=dict)
    """By the name of an argument: the switch that calls hand on; None where they differ, or it is not known."""
    takers: dict[str, int] = field(default_factory=dict)
    """By the name of an argument: how many functions have one of that name."""
    told_elsewhere: set[int] = field(default_factory=set)
    """What is handed to a log or a tracker, which sets nothing."""
    seen: set[int] = field(default_factory=set)
    ahead: list[tuple[_Module, _Definition, str]] = field(default_factory=list)
    statements: int = 0
    silent: bool = False
    """Whether numbers are left out."""

    def add(self, path: str, tree: ast.Module) -> None:
        module = _Module(path, tree)
        self.modules.append(module)
        for name, node, inside in _definitions(tree.body, ""):
            self.defined.setdefault(name, []).append((module, node, inside))
            for item in node.args.args if not isinstance(node, ast.ClassDef) else ():
                self.takers[item.arg] = self.takers.get(item.arg, 0) + 1

    def go(self) -> None:
        for module in self.modules:
            self.block(module, module.tree.body, "", own=True)
        self._go_on()

    def _go_on(self) -> None:
        while self.ahead:
            module, node, inside = self.ahead.pop(0)
            self.definition(module, node, inside)

    def apart(self) -> _Walk:
        """To be gone on with, while what was found stays."""
        return replace(self, used=set(self.used), seen=set(self.seen), ahead=[], silent=True)

    def unreached(self, names: Iterable[str]) -> set[int]:
        """The functions and classes of modules beside the programs that nothing reaches, these words neither."""
        texts = (
            node.value for module in self.modules for node in ast.walk(module.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < _LONGEST_NAME
        )
        for name in self.defined.keys() & {part for text in (*names, *texts) for part in re.split(r"\W+", text)}:
            self.reach(name)
        self._go_on()
        return {
            id(node) for found in self.defined.values() for module, node, inside in found
            if not inside and module.path not in self.entries and id(node) not in self.seen and not node.decorator_list
        }

    def makes_up_names(self) -> bool:
        """Whether a class or function is called by a name that is put together (`getattr(losses, f"{kind}Loss")`)."""
        for module in self.modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call) and _name_of(node.func) in ("eval", "getattr", "import_module") and any(
                    isinstance(item, ast.JoinedStr | ast.BinOp) for item in node.args[-2:]
                ):
                    return True
        return self.statements > _MOST_STATEMENTS

    def constants_found(self, order: Sequence[str]) -> tuple[ProgramConstant, ...]:
        read = dict[str, list[ProgramConstant]]()
        for module in self.modules:
            whole = self.unread_too or module.path in self.entries
            kept = [item for item, own in module.constants if whole or not own or item.name in self.used]
            read[module.path] = sorted(kept, key=lambda item: item.line)
        every = [item for path in dict.fromkeys(order) for item in read.get(path, [])]
        return tuple(every[:_MOST_CONSTANTS])

    def reach(self, name: str) -> None:
        if name in self.used:
            return
        self.used.add(name)
        self.ahead += self.defined.get(name, [])

    def definition(self, module: _Module, node: _Definition, inside: str) -> None:
        if id(node) in self.seen:
            return
        self.seen.add(id(node))
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                self.expression(module, default, node.name) if default is not None else None
            self.block(module, node.body, node.name)
            return
        self.block(module, node.body, node.name)
        for item in node.body:
            # What a library's class calls (`training_step`, `train_dataloader`) no word of the program names.
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and (node.bases or item.name[:2] == "__"):
                self.ahead.append((module, item, node.name))

    def block(self, module: _Module, body: Iterable[ast.stmt], within: str, own: bool = False) -> None:
        for statement in body:
            self.statements += 1
            if self.statements > _MOST_STATEMENTS:
                return
            self.statement(module, statement, within, own)

    def statement(self, module: _Module, node: ast.stmt, within: str, own: bool) -> None:
        if isinstance(node, _Definition):
            for decorator in node.decorator_list:
                self.expression(module, decorator, within)
            if isinstance(node, ast.ClassDef) and own and (node.decorator_list or module.path in self.entries):
                self.reach(node.name)
            return
        if isinstance(node, ast.If):
            self.expression(module, node.test, within)
            truth = self.truth(node.test, module)
            self.block(module, () if truth is False else node.body, within, own)
            self.block(module, () if truth is True else node.orelse, within, own)
            return
        self.constants(module, node, within, own)
        inner = within
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call | ast.Dict):
            inner = "_".join(dict.fromkeys(name for target in node.targets if (name := _name_of(target)))) or within
        for _, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    self.block(module, [child], within, own)
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    self.block(module, child.body, within, own)
                elif isinstance(child, ast.AST):
                    self.expression(module, child, inner)

    def expression(self, module: _Module, node: ast.AST, within: str) -> None:
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                self.reach(child.id)
            elif isinstance(child, ast.Attribute):
                self.reach(child.attr)
            elif isinstance(child, ast.Call):
                self.handed_on(child, module)
            self.constants(module, child, within, False)

    def constants(self, module: _Module, node: ast.AST, within: str, own: bool) -> None:
        if self.silent or id(node) in self.told_elsewhere:
            return
        if isinstance(node, ast.Call) and _TELLS.search(ast.unparse(node.func)):
            self.told_elsewhere |= {id(item) for item in ast.walk(node)}
            return
        for name, value in _named_values(node):
            if isinstance(value, ast.Constant) and type(value.value) is int and abs(value.value) < _LARGEST:
                module.constants.append((ProgramConstant(name, value.value, module.path, value.lineno, within), own))

    def handed_on(self, call: ast.Call, module: _Module) -> None:
        """Switches that a call hands to the function of that name."""
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name not in self.defined:
            return
        function = self.defined[name][0][1]
        if isinstance(function, ast.ClassDef):
            return
        names = [item.arg for item in function.args.args]
        given = dict(zip(names[-len(function.args.defaults) or len(names):], function.args.defaults))
        given |= {**dict(zip(names, call.args)), **{item.arg: item.value for item in call.keywords if item.arg}}
        for argument, value in given.items():
            truth = self.truth(value, module)
            known = self.passed.get(argument, truth)
            self.passed[argument] = truth if known is truth else None

    def truth(self, node: ast.expr, module: _Module) -> bool | None:
        """Whether a condition holds; None where that is not known."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inside = self.truth(node.operand, module)
            return None if inside is None else not inside
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(item, module) for item in node.values]
            ends = isinstance(node.op, ast.Or)
            return ends if ends in parts else None if None in parts else not ends
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return node.value
        told = self.told(node)
        if told is not None:
            return bool(told)
        if isinstance(node, ast.Name):
            return self.handed.get(node.id) if self.handed is not None and self.takers.get(node.id) == 1 else None
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == "__name__":
            return module.path in self.entries
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and (told := self.told(node.left)) is not None:
            return _compared(told, node.ops[0], node.comparators[0])
        return None

    def told(self, node: ast.expr) -> Told | None:
        """The value of `args.name`."""
        of_options = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (
            "arg" in node.value.id.lower()
        )
        return self.given.get(node.attr) if of_options and isinstance(node, ast.Attribute) else None


def _compared(told: Told, by: ast.cmpop, other: ast.expr) -> bool | None:
    value = other.value if isinstance(other, ast.Constant) else None
    if not isinstance(value, int | float | str) or isinstance(value, str) is not isinstance(told, str):
        return None
    if isinstance(by, ast.Eq | ast.NotEq):
        return (told == value) is isinstance(by, ast.Eq)
    if isinstance(by, ast.Gt | ast.LtE) and not isinstance(told, str) and not isinstance(value, str):
        return (told > value) is isinstance(by, ast.Gt)
    return None


_DECLARES = ("add_argument",)


def _running(text: str, tree: ast.Module | None, given: Mapping[str, Told], gone: set[int]) -> str:
    if tree is None:
        return text
    walk, module = _Walk(dict(given), frozenset(), False), _Module("", tree)
    running = _Running(re.split("\r\n|\r|\n", text))
    for node in ast.walk(tree):
        if id(node) in gone and isinstance(node, ast.stmt):
            running.leave_out([node])
        elif isinstance(node, ast.If):
            truth = walk.truth(node.test, module)
            running.leave_out(node.body if truth is False else node.orelse if truth is True else [])
            if truth is False:
                running.never(node.test)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name_of(node.value.func) in _DECLARES:
            running.leave_out([node])
    return "\n".join(running.lines)


@dataclass(slots=True)
class _Running:
    """The lines of a program, which it stays when some are left out."""

    lines: list[str]
    gone: set[int] = field(default_factory=set)

    def leave_out(self, statements: Sequence[ast.stmt]) -> None:
        """`pass` in their place, unless they share a line with what stands in front."""
        if not statements:
            return
        decorators = getattr(statements[0], "decorator_list", ())
        first = min(item.lineno for item in (statements[0], *decorators))
        place = range(first, (statements[-1].end_lineno or first) + 1)
        column = statements[0].col_offset
        if not self.gone.isdisjoint(place) or self.lines[first - 1][:column].strip():
            return
        for number in place:
            self.lines[number - 1] = ""
        self.lines[first - 1] = " " * column + "pass"
        self.gone |= set(place)

    def never(self, test: ast.expr) -> None:
        """`False` in place of a condition."""
        if test.lineno != test.end_lineno or test.lineno in self.gone:
            return
        line = self.lines[test.lineno - 1].encode("utf-8", "replace")
        changed = line[: test.col_offset] + b"False" + line[test.end_col_offset or 0 :]
        self.lines[test.lineno - 1] = changed.decode("utf-8", "replace")


def _definitions(body: Iterable[ast.stmt], inside: str) -> Iterator[tuple[str, _Definition, str]]:
    ahead = [(item, inside) for item in body]
    while ahead:
        node, of = ahead.pop(0)
        if isinstance(node, _Definition):
            yield node.name, node, of
            ahead += [(item, node.name) for item in node.body]
        else:
            for name in ("body", "orelse", "finalbody"):
                ahead += [(item, of) for item in getattr(node, name, ()) or ()]


_TELLS = re.compile(
    r"(?i)\b(?:wandb|mlflow|tensorboard|swanlab|neptune|comet\w*|clearml|task|run|writer|logg?er|logging|tracker\w*)\."
    r"(?:init|log\w*|config\.update|update_config|add_\w+|connect\w*|info|debug|warning)$"
    r"|\b(?:init_trackers|log_hyperparams|log_params|save_hyperparameters|print|WandbLogger)$"
)
"""Calls that tell somebody of settings."""


def _named_values(node: ast.AST) -> list[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        return [pair for target in node.targets for pair in _assigned(target, node.value)]
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(_name_of(node.target), node.value)]
    if isinstance(node, ast.Dict):
        return [
            (key.value, value) for key, value in zip(node.keys, node.values)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
    if isinstance(node, ast.Call):
        return [(item.arg, item.value) for item in node.keywords if item.arg]
    return []


def _assigned(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    """One by one where as many values stand on the right as names on the left: `STEPS, BATCH = 1000, 32`."""
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        starred = any(isinstance(item, ast.Starred) for item in (*target.elts, *value.elts))
        if starred or len(target.elts) != len(value.elts):
            return []
        return [pair for one, given in zip(target.elts, value.elts) for pair in _assigned(one, given)]
    return [(_name_of(target), value)]


def _name_of(target: ast.expr) -> str:
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute):
        return target.attr
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return ""


# What a log prints of a program's settings: a Namespace, a dump of a configuration, a line of its own.

_PRINTED = re.compile(
    r"""(?<![\w.-])([A-Za-z][\w./-]{0,60}(?: [A-Za-z][\w/-]{0,30}){0,5})["']?\s*[:=]\s*"""
    r"""(\d{1,7})(?![\w.%])(?!\s*/|\s+of\b)"""
)
_MOST_CHARACTERS = 600
_FRAME = re.compile(r'^\s*File "')
_STARTED = re.compile(r"(?<![\w./-])[\w./+-]{1,300}\.py(?![\w.])|(?<=-m )[\w.]{1,300}")
_PATH = re.compile(r"[\w./~+-]{1,300}\.(?:ya?ml|toml|json|py)\b(?!:\d)")
_WRITTEN = re.compile(r"(?i)\b(?:sav(?:e|ed|ing)|writ(?:e|ing|ten)|wrote|dump(?:ed|ing)?|stor(?:e|ed|ing))\b")
_SAYS_CONFIGURATION = re.compile(r"(?i)conf|cfg|recipe|yaml|param|setting|option|experiment")


def printed_constants(path: str, text: str) -> tuple[ProgramConstant, ...]:
    """The whole numbers that stand behind a name in a log, always the same (a counter's are not), each name once. They
    are text: they say what a program was told, not where."""
    found: dict[str, ProgramConstant] = {}
    counters: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        if _FRAME.match(line):
            continue
        for match in _PRINTED.finditer(line[: 20 * _MOST_CHARACTERS]):
            name = re.sub(r"[ /]+", "_", match[1]).strip("_")
            if len(found) < _MOST_CONSTANTS:
                found.setdefault(name, ProgramConstant(name, int(match[2]), path, number, "", ConstantPlace.LOG))
            if name in found and found[name].value != int(match[2]):
                counters.add(name)
    return tuple(item for name, item in found.items() if name not in counters)


def number_given(text: str, programs: Collection[str], spellings: Sequence[str]) -> tuple[int, int] | None:
    """The number that a log shows the option of a command with that starts one of these programs (their file names),
    and its line: `python train.py --batch_size 4`. None where it shows none, or two. What another program was given,
    and what any line calls by the same name, says nothing of it."""
    options = "|".join(re.escape(item) for item in spellings if item.startswith("-"))
    shown = re.compile(rf"""(?<![\w-])(?:{options or "(?!)"})(?:\s+|=)["']?(\d{{1,7}})(?![\w.])""")
    found: dict[int, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line[: 20 * _MOST_CHARACTERS]
        for match in shown.finditer(line):
            started = _STARTED.findall(line, 0, match.start())
            if started and started[-1].rsplit("/", 1)[-1] in programs:
                found.setdefault(int(match[1]), number)
    return next(iter(found.items())) if len(found) == 1 else None


def configurations_said(text: str) -> tuple[str, ...]:
    """The configuration files that a log speaks of, as written, in order; not those that the program writes."""
    found = dict[str, None]()
    for line in (line[:_MOST_CHARACTERS] for line in text.splitlines() if not _FRAME.match(line)):
        if _SAYS_CONFIGURATION.search(line) and not _WRITTEN.search(line):
            found |= {match[0]: None for match in _PATH.finditer(line) if may_be_configuration(match[0])}
    return tuple(found)


def may_be_configuration(path: str) -> bool:
    """Of JSON and of Python only what says so: the first is mostly data, the second a program."""
    return not path.endswith((".py", ".json")) or _SAYS_CONFIGURATION.search(path) is not None


_QUOTED = re.compile(r"""["']([\w./-]{1,200}\.(?:ya?ml|toml|json))["']""")
_WRITES = re.compile(r"""dump|save|write|["']w["']|to_json|to_yaml""")


def configurations_opened(text: str) -> tuple[str, ...]:
    """The configuration files whose paths stand in a program's text where it does not write them."""
    found = dict[str, None]()
    for line in text.splitlines():
        if not line.lstrip().startswith("#") and not _WRITES.search(line):
            for match in _QUOTED.finditer(line[:_MOST_CHARACTERS]):
                if not match[1].endswith(".json") or _SAYS_CONFIGURATION.search(match[1]):
                    found[match[1]] = None
    return tuple(found)
