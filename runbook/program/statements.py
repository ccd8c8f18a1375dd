"""Statements, in the order in which Python would run them. Of a condition that is not known both ways are gone."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from runbook.program import libraries
from runbook.program.abstract_values import (
    UNKNOWN,
    Arguments,
    ClassValue,
    External,
    Imported,
    Instance,
    Known,
    Many,
    Module,
    ModuleName,
    Scope,
    Table,
    Value,
    either,
)
from runbook.program.naming import Naming
from runbook.program.plain_calls import items_of, method

_NEXT, _OUT_OF_LOOP, _ENDED = 0, 1, 2


@dataclass(slots=True)
class Frame:
    """A call that is gone through."""

    node: ast.AST
    returned: list[Value] = field(default_factory=list)
    global_names: set[str] = field(default_factory=set)


class Statements(Naming):
    """Blocks of statements; definitions of functions and classes are the reader's."""

    frames: list[Frame]
    uncertain: int
    """In how many conditions that are not known the walk is."""

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Value:
        raise NotImplementedError

    def class_of(self, node: ast.ClassDef, scope: Scope) -> Value:
        raise NotImplementedError

    def block(self, statements: Sequence[ast.stmt], scope: Scope) -> int:
        for statement in statements:
            self.work.step()
            flow = self._statement(statement, scope)
            if flow != _NEXT:
                return flow
        return _NEXT

    def _statement(self, node: ast.stmt, scope: Scope) -> int:
        if isinstance(node, ast.Expr):
            self.evaluate(node.value, scope)
        elif isinstance(node, ast.Assign):
            value = self.evaluate(node.value, scope)
            for target in node.targets:
                self.assign(target, value, scope)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.assign(node.target, self.evaluate(node.value, scope), scope)
        elif isinstance(node, ast.AugAssign):
            self._augmented(node, scope)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scope.names[node.name] = self.function(node, scope)
        elif isinstance(node, ast.ClassDef):
            scope.names[node.name] = self.class_of(node, scope)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, scope)
        elif isinstance(node, ast.Return):
            value = self.evaluate(node.value, scope) if node.value is not None else Known(None)
            if self.frames:
                self.frames[-1].returned.append(self.look_up(value))
            return _ENDED
        elif isinstance(node, ast.If):
            return self._if(node, scope)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            return self._loop(node, scope)
        elif isinstance(node, ast.Try | ast.TryStar):
            return self._try(node, scope)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                value = self.evaluate(item.context_expr, scope)
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, value, scope)
            return self.block(node.body, scope)
        elif isinstance(node, ast.Match):
            return min((self._maybe(case.body, scope) for case in node.cases), default=_NEXT)
        elif isinstance(node, ast.Raise):
            return _ENDED
        elif isinstance(node, ast.Break | ast.Continue):
            return _OUT_OF_LOOP
        elif isinstance(node, ast.Global) and self.frames:
            self.frames[-1].global_names.update(node.names)
        elif isinstance(node, ast.Assert):
            self.evaluate(node.test, scope)
        return _NEXT

    def _maybe(self, statements: Sequence[ast.stmt], scope: Scope) -> int:
        self.uncertain += 1
        try:
            return self.block(statements, scope)
        finally:
            self.uncertain -= 1

    def _if(self, node: ast.If, scope: Scope) -> int:
        """`elif` is a loop here: a long chain of them is deep in the tree."""
        flows: list[int] = []
        while True:
            truth = self.truth(self.evaluate(node.test, scope))
            if truth:
                flows.append(self._maybe(node.body, scope) if flows else self.block(node.body, scope))
                break
            if truth is None:
                flows.append(self._maybe(node.body, scope))
            if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
                node = node.orelse[0]
                continue
            flows.append(self._maybe(node.orelse, scope) if flows else self.block(node.orelse, scope))
            break
        return min(flows)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> int:
        items = None
        if not isinstance(node, ast.While):
            items = items_of(self.look_up(self.evaluate(node.iter, scope)))
        elif self.truth(self.evaluate(node.test, scope)) is False:
            items = []
        if items is None:
            if not isinstance(node, ast.While):
                self.assign(node.target, UNKNOWN, scope)
            self._maybe(node.body, scope)
            return _NEXT
        for item in items:
            if not isinstance(node, ast.While):
                self.assign(node.target, item, scope)
            if self.block(node.body, scope) == _ENDED:
                return _ENDED
        return self.block(node.orelse, scope)

    def _try(self, node: ast.Try | ast.TryStar, scope: Scope) -> int:
        flow = self.block(node.body, scope)
        handled = [self._maybe(handler.body, scope) for handler in node.handlers]
        if flow == _NEXT:
            flow = self.block(node.orelse, scope)
        last = self.block(node.finalbody, scope)
        return last or min([flow, *handled])

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            top = self.frames and target.id in self.frames[-1].global_names
            names = scope.module.scope.names if top else scope.names
            before = names.get(target.id)
            if self.uncertain and before is not None:
                value = either(self.look_up(value), self.look_up(before))
            names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            items = items_of(self.look_up(value))
            for at, part in enumerate(target.elts):
                plain = items is not None and len(items) == len(target.elts)
                of_parse = libraries.part_of(value, at)
                self.assign(part, items[at] if plain and items else of_parse, scope)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, UNKNOWN, scope)
        elif isinstance(target, ast.Attribute):
            of = self.look_up(self.evaluate(target.value, scope))
            if isinstance(of, Instance):
                of.attributes[target.attr] = value
            elif isinstance(of, ClassValue):
                of.scope.names[target.attr] = value
            elif target.attr == "argv" and isinstance(of, External) and of.name == "sys":
                self.makes_words(scope, target.lineno)
        elif isinstance(target, ast.Subscript):
            table, key = self.look_up(self.evaluate(target.value, scope)), self.evaluate(target.slice, scope)
            if isinstance(table, Table) and isinstance(key, Known):
                table.items[key.value] = value
            elif isinstance(table, Table | Many):
                table.whole = False

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        value = self.look_up(self.evaluate(node.value, scope))
        if isinstance(node.target, ast.Name):
            before = self.look_up(self.name(node.target.id, scope))
            if isinstance(before, Many) and isinstance(node.op, ast.Add):
                method(before, "extend", Arguments([value], {}, True, "", 0))
            else:
                scope.names[node.target.id] = self.evaluate(ast.BinOp(node.target, node.op, node.value), scope)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        path = scope.module.path
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.imports(alias.name)
                dotted = alias.name if alias.asname else alias.name.partition(".")[0]
                scope.names[alias.asname or dotted] = ModuleName(dotted, None, path)
            return
        above = PurePosixPath(path).parents
        folder = str(above[min(max(node.level, 1), len(above)) - 1])
        module = ModuleName(node.module or "", folder if node.level else None, path)
        for alias in node.names:
            if alias.name != "*":
                scope.names[alias.asname or alias.name] = Imported(module, alias.name)
                continue
            found = self.look_up(module)
            if isinstance(found, Module):
                self.start(found)
                scope.names |= {name: value for name, value in found.scope.names.items() if not name.startswith("_")}
                scope.module.scope.external_stars += found.scope.external_stars
            else:
                scope.module.scope.external_stars.append(module.dotted)
