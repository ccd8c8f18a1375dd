"""Walks through a program in the order in which Python would run it, to the place where it reads its command line.

Nothing is run. Where a condition is not known both ways are gone, and what is met there is not sure. Functions are
entered only where they are given a parser or may reach one.
"""

from __future__ import annotations

import ast

from runbook.program import libraries
from runbook.program.abstract_values import (
    UNKNOWN,
    Arguments,
    ClassValue,
    External,
    Function,
    Instance,
    Known,
    Many,
    Method,
    Module,
    Native,
    Scope,
    Super,
    Table,
    Value,
    carried,
    carries,
    either,
    is_words,
)
from runbook.program.expressions import MOST_DEPTH, MOST_STEPS, Finished, Work
from runbook.program.findings import Findings
from runbook.program.naming import BUILTIN
from runbook.program.plain_calls import builtin, method
from runbook.program.sources import Sources
from runbook.program.statements import Frame, Statements

_MOST_CALLS = 40
_AFTER_A_PARSE = 30_000
"""Steps that are gone on where what is not known was kept."""
_MOST_AGAIN = 3
"""How often a function is entered from itself: for types inside types."""
_SMALL = 12
"""Statements of a function that is entered whatever it does."""


class Reader(Statements):
    """One walk through one program."""

    def __init__(self, sources: Sources, entry: Module, findings: Findings) -> None:
        self.sources, self.entry, self.findings = sources, entry, findings
        self.own_libraries = libraries.PACKAGES
        self.work = Work()
        self._looked_up: dict[Value, Value] = {}
        self._imported_modules: set[str] = set()
        self.frames: list[Frame] = []
        self.uncertain = 0
        self._reached: dict[int, bool] = {}
        self._parsed = False

    @property
    def unsure(self) -> bool:
        return self.uncertain > 0

    def walk(self) -> None:
        """Through the program, as `python FILE` runs it; where that calls nothing, through its function `main`."""
        try:
            self.start(self.entry)
            main = self.entry.scope.names.get("main")
            if isinstance(main, Native) or (isinstance(main, Function) and not self.findings.seen):
                self.call(main, Arguments([], {}, True, self.entry.path, 1))
        except Finished:
            pass
        except RecursionError:
            self.work.cut = True

    def reads_words(self, scope: Scope, line: int) -> None:
        self.findings.reads_words(scope.module.path, line)

    def makes_words(self, scope: Scope, line: int) -> None:
        self.findings.makes_words(scope.module.path, line)

    def finish(self) -> None:
        if not self.uncertain:
            raise Finished

    def start(self, module: Module) -> None:
        if not module.started:
            module.started = True
            unsure, self.uncertain = self.uncertain, 0 if module is self.entry else self.uncertain
            self.block(module.tree.body, module.scope)
            self.uncertain = unsure

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Value:
        value: Value = Function(node, scope)
        for decorator in reversed(node.decorator_list):
            value = self._decorated(value, self.look_up(self.evaluate(decorator, scope)), node.lineno)
        return value

    def _decorated(self, value: Value, by: Value, line: int) -> Value:
        path = value.scope.module.path if isinstance(value, Function | ClassValue) else ""
        wrapped = libraries.decorated(by, value, Arguments([value], {}, True, path, line), self)
        if wrapped is not None:
            return wrapped
        if isinstance(by, External) and isinstance(value, Function | ClassValue):
            value.decorators = (*value.decorators, by)
        elif isinstance(by, Function) and _statements(by.node) <= _SMALL:
            given = self._run(by, Arguments([value], {}, True, path, line))
            return given if isinstance(given, Native) else value
        return value

    def class_of(self, node: ast.ClassDef, scope: Scope) -> Value:
        inside = Scope(scope.module, {}, scope, is_class=True)
        bases = tuple(self.evaluate(base, scope) for base in node.bases)
        value = ClassValue(node, inside, bases)
        self.block(node.body, inside)
        for item in inside.names.values():
            if isinstance(item, Function):
                item.owner = value
        made: Value = value
        for decorator in reversed(node.decorator_list):
            made = self._decorated(made, self.look_up(self.evaluate(decorator, scope)), node.lineno)
        return made

    def call_at(self, node: ast.Call, scope: Scope) -> Value:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return self._super(scope)
        if isinstance(node.func, ast.Name) and node.func.id == "exec":
            libraries.executed(node, scope, self)
            return UNKNOWN
        function = self.look_up(self.evaluate(node.func, scope))
        arguments = self.arguments(node, scope)
        libraries.handed_on(arguments, self)
        return self.call(function, arguments)

    def _super(self, scope: Scope) -> Value:
        inside: Scope | None = scope
        while inside is not None:
            if isinstance(inside.names.get("__class__"), ClassValue):
                above = inside.names["__class__"]
                assert isinstance(above, ClassValue)
                return Super(inside.names["__bound__"], above)
            inside = inside.outer
        return UNKNOWN

    def call(self, function: Value, arguments: Arguments) -> Value:
        function = self.look_up(function)
        if isinstance(function, Function):
            small = _statements(function.node) <= _SMALL
            held = function.bound is not None and carries(function.bound)
            if small or held or carried(arguments) or self.reaches(function, self._reached):
                return self._run(function, arguments)
            return UNKNOWN
        if isinstance(function, ClassValue):
            return self._made(function, arguments)
        if isinstance(function, Native):
            return self._with_native(function, "__call__", arguments)
        if isinstance(function, Method):
            if isinstance(function.of, Super):
                return self._native_init(function.of, arguments)
            if isinstance(function.of, Native):
                return self._with_native(function.of, function.name, arguments)
            return method(function.of, function.name, arguments)
        if isinstance(function, External):
            return self._external(function, arguments)
        return self._handed_over("", arguments)

    def _with_native(self, of: Native, name: str, arguments: Arguments) -> Value:
        given = of.method(name, arguments, self)
        if not self._parsed and self.findings.surely_parsed:
            # What follows matters only where a second parser is given the rest.
            self._parsed = True
            self.work.steps = max(self.work.steps, MOST_STEPS - _AFTER_A_PARSE)
        return given

    def _external(self, function: External, arguments: Arguments) -> Value:
        name = function.name
        if name == f"{BUILTIN}getattr" and len(arguments.positional) > 1:
            of, attribute = self.look_up(arguments.positional[0]), arguments.plain("", 1)
            return self.look_up(self.attribute(of, attribute)) if isinstance(attribute, str) else UNKNOWN
        if name == f"{BUILTIN}setattr" and len(arguments.positional) > 2:
            of, attribute = self.look_up(arguments.positional[0]), arguments.plain("", 1)
            if isinstance(of, Instance) and isinstance(attribute, str):
                of.attributes[attribute] = arguments.positional[2]
            return UNKNOWN
        arguments.positional = [self.look_up(item) for item in arguments.positional]
        if name == "functools.partial" and arguments.positional and isinstance(arguments.positional[0], Function):
            of = arguments.positional[0]
            rest = Arguments(arguments.positional[1:], arguments.keywords, arguments.whole, "", 0)
            return Function(of.node, of.scope, of.bound, of.owner, of.decorators, rest)
        if name.startswith(BUILTIN):
            given = builtin(name.removeprefix(BUILTIN), arguments)
            if given is not None:
                return given
        found = libraries.called(name, arguments, self)
        return found if found is not None else self._handed_over(name, arguments)

    def _handed_over(self, name: str, arguments: Arguments) -> Value:
        """A call of what is not read: what it is given may be called there, parsers may be added to."""
        kept: Value | None = None
        for item in arguments.every():
            value = self.look_up(item)
            if is_words(value) and not name.startswith(BUILTIN):
                self.findings.reads_words(arguments.file, arguments.line)
            if isinstance(value, Function) and self.reaches(value, self._reached):
                parser = libraries.parser_for(value, name, arguments, self)
                given: list[Value] = [parser] if parser is not None else []
                self._run(value, Arguments(given, {}, False, arguments.file, arguments.line))
            elif isinstance(value, Native | Instance | Method):
                libraries.handed_over(value, name, arguments)
                kept = kept or (value if isinstance(value, Native) else None)
        if name and not name.startswith(BUILTIN):
            if len(self.frames) <= 1:
                self.findings.called_outside(name)
            return kept or External(f"{name}()")
        return UNKNOWN

    def _made(self, of: ClassValue, arguments: Arguments) -> Value:
        instance = Instance(of, dict(arguments.keywords))
        init = self._of_class(of, "__init__", instance)
        if isinstance(init, Function):
            if carried(arguments) or self.reaches(of, self._reached) or _statements(init.node) <= _SMALL:
                instance.attributes = {}
                self._run(init, arguments)
        else:
            self._native_init(Super(instance, of), arguments)
        return instance

    def _native_init(self, above: Super, arguments: Arguments) -> Value:
        instance = above.instance
        if isinstance(instance, Instance):
            for ancestor in self.ancestors(instance.of):
                if isinstance(ancestor, External):
                    made = libraries.called(ancestor.name, arguments, self)
                    if isinstance(made, Native):
                        instance.native = made
                        libraries.belongs_to(made, instance, arguments, self)
                        break
        return Known(None)

    def _run(self, function: Function, arguments: Arguments) -> Value:
        """What a function gives when it is called so."""
        again = sum(frame.node is function.node for frame in self.frames)
        if again > _MOST_AGAIN or len(self.frames) >= _MOST_CALLS or self.work.depth >= MOST_DEPTH:
            self.work.too_deep = self.work.too_deep or again <= _MOST_AGAIN or carried(arguments)
            return UNKNOWN
        scope = Scope(function.scope.module, {}, function.scope)
        if function.owner is not None:
            scope.names |= {"__class__": function.owner, "__bound__": function.bound or UNKNOWN}
        self._bind(function, arguments, scope)
        if isinstance(function.node, ast.Lambda):
            return self.look_up(self.evaluate(function.node.body, scope))
        self.frames.append(Frame(function.node))
        self.work.depth += 1
        try:
            self.block(function.node.body, scope)
            returned = self.frames[-1].returned
        finally:
            self.work.depth -= 1
            self.frames.pop()
        result = returned[0] if returned else Known(None)
        for other in returned[1:]:
            result = either(result, other)
        return result

    def _bind(self, function: Function, arguments: Arguments, scope: Scope) -> None:
        given = function.node.args
        partial = function.partial or Arguments([], {}, True, "", 0)
        bound = [function.bound] if function.bound is not None else []
        positional = [*bound, *partial.positional, *arguments.positional]
        keywords = {**partial.keywords, **arguments.keywords}
        names = [item.arg for item in (*given.posonlyargs, *given.args)]
        defaults = dict(zip(reversed(names), reversed(given.defaults)))
        defaults |= {item.arg: value for item, value in zip(given.kwonlyargs, given.kw_defaults) if value is not None}
        for name in (*names, *(item.arg for item in given.kwonlyargs)):
            if name in names and positional:
                scope.names[name] = positional.pop(0)
            elif name in keywords:
                scope.names[name] = keywords.pop(name)
            elif name in defaults and arguments.whole:
                scope.names[name] = self.evaluate(defaults[name], function.scope)
            else:
                scope.names[name] = UNKNOWN
        if given.vararg is not None:
            scope.names[given.vararg.arg] = Many(positional, arguments.whole)
        if given.kwarg is not None:
            scope.names[given.kwarg.arg] = Table(dict(keywords.items()), arguments.whole)


def _statements(node: ast.AST) -> int:
    body = getattr(node, "body", None)
    return sum(1 + _statements(item) for item in body[:_SMALL + 1]) if isinstance(body, list) else 0
