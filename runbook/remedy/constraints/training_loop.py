"""Constraints on what a program's own training loop does with its batch and its accumulation.

Names are followed by their last part (`args.accum`, `self.accum` and `accum` are one) through plain copies, arguments
of the program's own functions, and conditions that are given a name. A loop is one that makes a backward pass in each
of its turns; where the traceback names a function with such a loop, that is the one that runs.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeGuard

from runbook.model.sentences import as_written
from runbook.model.sentences.of_levers import Say
from runbook.model.template import TemplateFile
from runbook.remedy.lever_context import Arguments, LeverContext, refusal_of, text_of
from runbook.remedy.template_settings import RefusalReason, Refused

_Loop = ast.For | ast.While | ast.AsyncFor
_MOST_ROUNDS = 6


def batch_is_of_one_pass(context: LeverContext, arguments: Arguments) -> None:
    """The option of the batch (`micro`) is not itself the number of passes that make up an optimizer step: fewer of
    them free nothing, and are a smaller step."""
    program = _program(context)
    for loop in program.loops:
        found = program.followed(names_of(context, text_of(arguments, "micro"))).update_in(loop)
        if found is not None:
            raise Refused(Say.BATCH_COUNTS_PASSES(
                spelling=context.template.spelling(text_of(arguments, "micro")), place=loop.place(found.test),
            ))


def loop_accumulates(context: LeverContext, arguments: Arguments) -> None:
    """Where the program's own loop steps its optimizer, what the option of the accumulation (`accumulation`) says
    decides when every optimizer in the loop steps and clears its gradients. Nothing is said of a program whose loop is
    a library's."""
    names, program = names_of(context, text_of(arguments, "accumulation")), _program(context)
    if not program.loops:
        return
    followed, spelling = program.followed(names), context.template.spelling(text_of(arguments, "accumulation"))
    judged = [(loop, _outside(followed, loop)) for loop in program.loops]
    accumulating = [(loop, outside) for loop, outside in judged if outside is not None]
    for loop, outside in accumulating:
        for call in outside or ():
            raise Refused(
                Say.STEPS_OUTSIDE_OF_ACCUMULATION(
                    call=ast.unparse(call)[:60], place=loop.place(call), spelling=spelling,
                ), as_written(arguments.get("question", ""))
            )
    if not accumulating and not followed.handed_on and all(loop.steps for loop in program.loops):
        loop = program.loops[0]
        raise Refused(Say.LOOP_DOES_NOT_ACCUMULATE(place=loop.place(loop.steps[0]), spelling=spelling))


def loop_steps_in_every_pass(context: LeverContext, arguments: Arguments) -> None:
    """The other way: the program's own loop is known not to do what the option of the accumulation says."""
    refusal = refusal_of(lambda: loop_accumulates(context, arguments))
    if refusal is None or refusal.question:
        raise Refused(Say.PROGRAM_CODE_DOES_NOT_SHOW(means=arguments["means"]))


def accumulates_by_itself(context: LeverContext, arguments: Arguments) -> None:
    """The program reckons the passes of a step from its batch (`micro`) and a number of samples that it keeps to
    (`max(round(nominal / batch), 1)`): a smaller batch makes more passes, and the samples of a step stay."""
    micro, program = text_of(arguments, "micro"), _program(context)
    names = names_of(context, micro)
    followed = program.followed(names)
    for module, target, value in program.assigned:
        nominal = followed.divided(value)
        if nominal is None or not any(program.followed({target}).update_in(loop) for loop in program.loops):
            continue
        whole = nominal.value if isinstance(nominal, ast.Constant) else program.number(_last(nominal))
        present = context.template.number(micro)
        if isinstance(whole, int) and present is not None and whole % present == 0:
            return
        if isinstance(whole, int) and present is not None:
            raise Refused(Say.NOMINAL_BATCH_IS_NO_MULTIPLE(
                place=f"{posixpath.basename(module)}:{value.lineno}", nominal=whole, present=present,
            ))
    raise Refused(Say.PROGRAM_CODE_DOES_NOT_SHOW(means=arguments["means"]))


def names_of(context: LeverContext, parameter: str) -> set[str]:
    """What a parameter may be called in the program: its options' own names there, or the last part of its key."""
    options = context.template.program()
    spellings = {context.template.spelling(parameter), *context.template.system.parameter(parameter).spellings}
    found = {
        option.dest for item in spellings if options is not None and (option := options.option(item)) is not None
    }
    own = context.template.spelling(parameter).lstrip("-+~")
    return {item for item in found or {re.sub(r"\W", "_", own.rpartition(".")[2])} if item}


def _program(context: LeverContext) -> _Program:
    cause = context.story.root_cause
    return _read(tuple(context.template.code()), frozenset(cause.frames if cause is not None else ()))


@lru_cache(maxsize=8)
def _read(files: tuple[TemplateFile, ...], frames: frozenset[str]) -> _Program:
    return _Program(files, frames)


@lru_cache(maxsize=64)
def syntax_tree(text: str) -> ast.Module | None:
    """None: broken, or no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A node of each turn of a loop, with the conditions that it is under."""

    node: ast.AST
    tests: tuple[ast.expr, ...]


@dataclass(frozen=True, eq=False)
class _TrainingLoop:
    file: str
    node: _Loop
    function: str

    @cached_property
    def turns(self) -> list[_Turn]:
        return list(_turns(self.node.body, ()))

    @cached_property
    def steps(self) -> list[ast.Call]:
        return [call for turn in self.turns if (call := _step(turn.node)) is not None]

    def place(self, node: ast.AST) -> str:
        return f"{posixpath.basename(self.file)}:{getattr(node, 'lineno', 1)}"


def _turns(body: Sequence[ast.stmt], tests: tuple[ast.expr, ...]) -> Iterator[_Turn]:
    """Loops within, and functions, are turns of their own. What stands behind `if …: continue` is under its condition,
    too."""
    for statement in body:
        if isinstance(statement, ast.If):
            branch, below = statement, tests
            while True:
                yield from (_Turn(node, below) for node in ast.walk(branch.test))
                below = (*below, branch.test)
                yield from _turns(branch.body, below)
                if len(branch.orelse) != 1 or not isinstance(branch.orelse[0], ast.If):
                    break
                branch = branch.orelse[0]  # a chain of `elif` may be longer than calls can be deep
            yield from _turns(branch.orelse, below)
            if any(isinstance(item, ast.Continue) for item in statement.body):
                tests = (*tests, statement.test)
        elif isinstance(statement, ast.With | ast.AsyncWith):
            yield from (_Turn(node, tests) for item in statement.items for node in ast.walk(item.context_expr))
            yield from _turns(statement.body, tests)
        elif isinstance(statement, ast.Try):
            for part in (statement.body, statement.orelse, statement.finalbody):
                yield from _turns(part, tests)
        elif not isinstance(statement, _Loop | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from (_Turn(node, tests) for node in ast.walk(statement))


@dataclass(frozen=True, eq=False)
class _Program:
    files: tuple[TemplateFile, ...]
    frames: frozenset[str]

    @cached_property
    def trees(self) -> list[tuple[str, ast.Module]]:
        return [(file.path, tree) for file in self.files if (tree := syntax_tree(file.text)) is not None]

    @cached_property
    def nodes(self) -> list[tuple[str, ast.AST]]:
        return [(path, node) for path, tree in self.trees for node in ast.walk(tree)]

    @cached_property
    def loops(self) -> list[_TrainingLoop]:
        """Those that make a backward pass in each turn; only those of the traceback where that names one."""
        found = [
            loop for path, tree in self.trees for function, node in _loops(tree)
            for loop in [_TrainingLoop(path, node, function)] if any(_makes_a_pass(turn.node) for turn in loop.turns)
        ]
        named = [loop for loop in found if loop.function in self.frames and loop.function != "main"]
        return named or found

    @cached_property
    def assigned(self) -> list[tuple[str, str, ast.expr]]:
        """Every name that is given a value: file, name, value."""
        found = []
        for path, node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    found += [(path, name, value) for name, value in _pairs(target, node.value)]
            elif isinstance(node, ast.AnnAssign) and node.value is not None and (name := _last(node.target)):
                found.append((path, name, node.value))
        return found

    @cached_property
    def functions(self) -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
        """By name; a class's `__init__` under the name of the class."""
        found: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for _, node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                inits = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
                found.setdefault(node.name, []).extend(inits)
        return found

    def number(self, name: str) -> int | None:
        """The one whole number that a name is given anywhere."""
        values = {
            value.value for _, target, value in self.assigned
            if target == name and isinstance(value, ast.Constant) and type(value.value) is int
        }
        return values.pop() if len(values) == 1 else None

    def followed(self, names: set[str]) -> _Followed:
        return _Followed(self, frozenset(names))


def _loops(tree: ast.AST) -> Iterator[tuple[str, _Loop]]:
    """Each loop with the function in which it stands, in the text's order. Without recursion: somebody's sums and
    chains of `elif` may be as deep as the parser allows."""
    open_nodes = [(tree, "")]
    while open_nodes:
        node, function = open_nodes.pop()
        if isinstance(node, _Loop):
            yield function, node
        inside = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        below = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
        open_nodes += [(child, inside) for child in reversed(below)]


@dataclass(frozen=True, eq=False)
class _Followed:
    """A number of the program, by all the names that hold it."""

    program: _Program
    first: frozenset[str]

    @cached_property
    def names(self) -> frozenset[str]:
        found = set(self.first)
        calls = [node for _, node in self.program.nodes if isinstance(node, ast.Call)]
        for _ in range(_MOST_ROUNDS):
            before = len(found)
            found |= {target for _, target, value in self.program.assigned if _carries(value, found)}
            for call in calls:
                found |= self._handed_to_own(call, found)
            if len(found) == before:
                break
        return frozenset(found)

    def _handed_to_own(self, call: ast.Call, names: set[str]) -> set[str]:
        found = set()
        for function in self.program.functions.get(_last(call.func), ()):
            arguments = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
            if arguments[:1] in (["self"], ["cls"]):
                arguments = arguments[1:]
            found |= {name for name, value in zip(arguments, call.args) if _carries(value, names)}
            every = {*arguments, *(item.arg for item in function.args.kwonlyargs)}
            found |= {item.arg for item in call.keywords if item.arg in every and _carries(item.value, names)}
        return found - {None}

    @cached_property
    def conditions(self) -> frozenset[str]:
        """Names that are given a condition of this number: `last = (i + 1) % steps == 0`."""
        return frozenset(target for _, target, value in self.program.assigned if self._compares(value))

    def _compares(self, node: ast.AST) -> bool:
        """Whether something is counted against this number."""
        for item in ast.walk(node):
            if isinstance(item, ast.BinOp) and isinstance(item.op, ast.Mod) and self._mentioned(item.right):
                return True
            if isinstance(item, ast.Compare) and not any(isinstance(one, ast.Constant) for one in (
                item.left, *item.comparators
            )) and self._mentioned(item):
                return True
        return False

    def _mentioned(self, node: ast.AST) -> bool:
        return any(_last(item) in self.names for item in ast.walk(node))

    def decides(self, test: ast.expr) -> bool:
        return self._compares(test) or any(_last(item) in self.conditions for item in ast.walk(test))

    def update_in(self, loop: _TrainingLoop) -> _Found | None:
        """The condition of this number under which an optimizer steps in the loop."""
        for turn in loop.turns:
            if _step(turn.node) is not None:
                test = next((item for item in turn.tests if self.decides(item)), None)
                if test is not None:
                    return _Found(test)
            given = _update_of_a_scaler(turn.node)
            if given is not None and self.decides(given):
                return _Found(given)
        return None

    @cached_property
    def handed_on(self) -> bool:
        """Whether a call of what is not the program's own is given this number by name
        (`Accelerator(gradient_accumulation_steps=…)`), or a configuration is: what is done with it is not seen."""
        for _, node in self.program.nodes:
            if isinstance(node, ast.Call) and not self.program.functions.get(_last(node.func)):
                if any(item.arg and "accum" in item.arg and _carries(item.value, self.names) for item in node.keywords):
                    return True
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values):
                    text = key.value if isinstance(key, ast.Constant) else ""
                    if isinstance(text, str) and "accum" in text and _carries(value, self.names):
                        return True
        return False

    def divided(self, value: ast.expr) -> ast.expr | None:
        """What a value divides by this number; None where it does not."""
        for item in ast.walk(value):
            if isinstance(item, ast.BinOp) and isinstance(item.op, ast.Div | ast.FloorDiv) and (
                _carries(item.right, self.names)
            ) and (isinstance(item.left, ast.Constant) or _last(item.left)):
                return item.left
        return None


@dataclass(frozen=True, slots=True)
class _Found:
    test: ast.expr


def _outside(followed: _Followed, loop: _TrainingLoop) -> list[ast.Call] | None:
    """The calls with which an optimizer steps or clears its gradients in every turn of a loop whose other such calls
    wait for the accumulation; None where none waits for it."""
    if isinstance(loop.node, ast.For) and followed._mentioned(loop.node.iter):
        return []  # the turns are the passes of one step
    if _is_library_accumulating(loop.node):
        return []
    if followed.update_in(loop) is None:
        return None
    calls = [(call, turn) for turn in loop.turns if (call := _step(turn.node) or _clears(turn.node)) is not None]
    changed = frozenset(
        node.id for node in ast.walk(loop.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return [call for call, turn in calls if all(_is_switch(test, changed) for test in turn.tests)]


def _is_library_accumulating(loop: ast.AST) -> bool:
    """`with accelerator.accumulate(model):` around the passes; a meter may have a method of that name, too."""
    return any(
        isinstance(call := item.context_expr, ast.Call) and isinstance(call.func, ast.Attribute)
        and call.func.attr == "accumulate"
        for node in ast.walk(loop) if isinstance(node, ast.With | ast.AsyncWith) for item in node.items
    )


def _is_switch(test: ast.expr, changed: Set[str]) -> bool:
    """A condition that is the same in every turn: `if args.amp`, `if scaler is not None`, `if use_amp`. `changed`: the
    names that the loop sets."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_switch(test.operand, changed)
    if isinstance(test, ast.Compare):
        return all(isinstance(item, ast.Is | ast.IsNot) for item in test.ops)
    return isinstance(test, ast.Attribute) or (isinstance(test, ast.Name) and test.id not in changed)


def _makes_a_pass(node: ast.AST) -> bool:
    return _is_backward(node) or _update_of_a_scaler(node) is not None


def _update_of_a_scaler(node: ast.AST) -> ast.expr | None:
    """The condition that a scaler is given which makes the backward pass and the update (timm's and its kin)."""
    if not isinstance(node, ast.Call):
        return None
    return next((item.value for item in node.keywords if item.arg in ("update_grad", "need_update")), None)


_OPTIMIZER = re.compile(r"(?i)opt(?:im\w*)?(?:_\w+|\d*)$|^\w*_?opt(?:im\w*)?$")


def _step(node: ast.AST) -> ast.Call | None:
    """`optimizer.step()`, `scaler.step(optimizer)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "step":
        return None
    named = [node.func.value, *node.args[:1]]
    return node if any(_OPTIMIZER.search(_last(item)) for item in named) else None


def _clears(node: ast.AST) -> ast.Call | None:
    cleared = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "zero_grad"
    return node if cleared and isinstance(node, ast.Call) else None


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return [(name, item) for one, item in zip(target.elts, value.elts) if (name := _last(one))]
    return [(name, value)] if (name := _last(target)) else []


def _carries(value: ast.AST, names: frozenset[str] | set[str]) -> bool:
    """Whether a value is that of one of the names, maybe held at a bound or given a default."""
    if isinstance(value, ast.Call):
        if _last(value.func) in ("int", "float", "max", "min"):
            return any(_carries(item, names) for item in value.args)
        return _last(value) in names
    if isinstance(value, ast.BoolOp):
        return any(_carries(item, names) for item in value.values)
    if isinstance(value, ast.IfExp):
        return _carries(value.body, names) or _carries(value.orelse, names)
    return _last(value) in names


def _last(node: ast.AST) -> str:
    """The last part of a name: `args.accum`, `config["accum"]`, `getattr(args, "accum", 1)`, `config.get("accum")`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    key: ast.AST | None = None
    if isinstance(node, ast.Subscript):
        key = node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        key = node.args[1] if len(node.args) > 1 else None
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        key = node.args[0] if node.args else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


_STEPS = re.compile(r"(?i)(?:\w*_)?(?:steps?|iter(?:ation)?s?)(?:_?num)?|it")
_LIMIT = re.compile(r"(?i)(?:max|num|total|n)_?\w*(?:steps|iters|iterations)|(?:steps|iters|iterations)")


def steps_count_updates(context: LeverContext, arguments: Arguments) -> None:
    """Where the program ends after a number of steps, a step is an optimizer's, not a pass: with more accumulation it
    would else make fewer updates. Asked where a counter of passes is compared with such a limit. `question` as in
    `no_code_of`."""
    for file in context.template.code():
        counter = _counter_of_passes(file.text) if "accum" in file.text else None
        if counter is not None:
            name, limit, line = counter
            raise Refused(
                Say.COUNTS_PASSES_NOT_UPDATES(name=name, file=posixpath.basename(file.path), line=line, limit=limit),
                as_written(arguments["question"]), RefusalReason.EXPERIMENT
            )


def _counter_of_passes(text: str) -> tuple[str, str, int] | None:
    """A counter that grows by one whenever a loop has made a backward pass, the limit that it is compared with, and its
    line."""
    tree = syntax_tree(text)
    nodes = list(ast.walk(tree)) if tree is not None else []
    limits: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            name, limit = ast.unparse(node.left), ast.unparse(node.comparators[0])
            if _STEPS.fullmatch(name.rpartition(".")[2]) and _LIMIT.fullmatch(limit.rpartition(".")[2]):
                limits[name] = limit
    for loop in nodes:
        if limits and isinstance(loop, ast.For | ast.While):
            found = list(_of_each_turn(loop))
            if any(_is_backward(node) for node, _ in found):
                for node, guarded in found:
                    if not guarded and _adds_one(node) and (name := ast.unparse(node.target)) in limits:
                        return name, limits[name], node.lineno
    return None


def _of_each_turn(loop: ast.For | ast.While) -> Iterator[tuple[ast.AST, bool]]:
    """What stands in a loop and in none within it, and whether it is under a condition."""
    ahead: list[tuple[ast.AST, bool]] = [(node, False) for node in loop.body]
    while ahead:
        node, guarded = ahead.pop()
        yield node, guarded
        if not isinstance(node, ast.For | ast.While | ast.FunctionDef | ast.ClassDef | ast.Lambda):
            below = guarded or isinstance(node, ast.If)
            ahead += [(child, below) for child in ast.iter_child_nodes(node)]


def _is_backward(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"


def _adds_one(node: ast.AST) -> TypeGuard[ast.AugAssign]:
    return (
        isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, ast.Constant)
        and node.value.value == 1
    )


