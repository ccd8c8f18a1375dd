"""What an expression gives, as far as the source shows it. Nothing is run: arithmetic on short literals only."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from runbook.program.abstract_values import (
    MOST_ITEMS,
    MOST_TEXT,
    UNKNOWN,
    Arguments,
    ClassValue,
    External,
    Function,
    Instance,
    Known,
    Many,
    Native,
    Scope,
    Table,
    Value,
    either,
    is_huge,
)
from runbook.program.plain_calls import comparison, formatted, items_of, reckoned

MOST_STEPS = 250_000
"""Statements and expressions of one program. The largest parser in the field, that of Megatron-LM, takes 150,000."""
MOST_DEPTH = 90
"""Calls and brackets inside each other. Each takes up to four calls of Python's own here."""


class Finished(Exception):
    """All that can be known is known, or a limit was met."""


@dataclass(slots=True)
class Work:
    """What has been done, in counts."""

    steps: int = 0
    depth: int = 0
    cut: bool = False
    """The steps are used up."""
    too_deep: bool = False
    """Something was left out in the middle."""

    def step(self) -> None:
        """Raises `Finished` past the limit."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            self.cut = True
            raise Finished


class Expressions:
    """Expressions; calls, names and attributes are the reader's."""

    work: Work

    def call_at(self, node: ast.Call, scope: Scope) -> Value:
        raise NotImplementedError

    def name(self, name: str, scope: Scope) -> Value:
        raise NotImplementedError

    def attribute(self, value: Value, name: str) -> Value:
        raise NotImplementedError

    def look_up(self, value: Value) -> Value:
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        raise NotImplementedError

    def reads_words(self, scope: Scope, line: int) -> None:
        """The program looks into `sys.argv`."""
        raise NotImplementedError

    def makes_words(self, scope: Scope, line: int) -> None:
        """The program sets `sys.argv`."""
        raise NotImplementedError

    def evaluate(self, node: ast.expr | None, scope: Scope) -> Value:
        """Raises `Finished` past the limits."""
        if node is None:
            return UNKNOWN
        self.work.step()
        if isinstance(node, ast.Constant):
            value = node.value
            plain = isinstance(value, str | int | float | bool | bytes | None)
            short = len(value) <= MOST_TEXT if isinstance(value, str | bytes) else not is_huge(value)
            return Known(value) if plain and short and value is not ... else UNKNOWN  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            return self.name(node.id, scope)
        if self.work.depth >= MOST_DEPTH:
            self.work.too_deep = True
            return UNKNOWN
        self.work.depth += 1
        try:
            return self._deeper(node, scope)
        finally:
            self.work.depth -= 1

    def _deeper(self, node: ast.expr, scope: Scope) -> Value:
        if isinstance(node, ast.Call):
            return self.call_at(node, scope)
        if isinstance(node, ast.Attribute):
            return self.attribute(self.look_up(self.evaluate(node.value, scope)), node.attr)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            items, whole = self.items(node.elts, scope)
            return Many(items, whole)
        if isinstance(node, ast.Dict):
            return self._table(node, scope)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node, scope)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, scope)
        if isinstance(node, ast.JoinedStr):
            return self._joined(node, scope)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, scope)
        if isinstance(node, ast.IfExp):
            truth = self.truth(self.evaluate(node.test, scope))
            if truth is not None:
                return self.evaluate(node.body if truth else node.orelse, scope)
            return either(self.evaluate(node.body, scope), self.evaluate(node.orelse, scope))
        if isinstance(node, ast.BoolOp):
            return self._logic(node, scope)
        if isinstance(node, ast.Compare):
            return self._comparison(node, scope)
        if isinstance(node, ast.Lambda):
            return Function(node, scope)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            return self._comprehension(node, scope)
        if isinstance(node, ast.Starred | ast.Await):
            return self.evaluate(node.value, scope)
        if isinstance(node, ast.NamedExpr):
            value = self.evaluate(node.value, scope)
            self.assign(node.target, value, scope)
            return value
        return UNKNOWN

    def items(self, nodes: list[ast.expr], scope: Scope) -> tuple[list[Value], bool]:
        """The values of a list's or a call's items, and whether these are all."""
        found: list[Value] = []
        whole = True
        for node in nodes:
            if isinstance(node, ast.Starred):
                more = items_of(self.look_up(self.evaluate(node.value, scope)))
                found += more or []
                whole = whole and more is not None
            else:
                found.append(self.evaluate(node, scope))
        return found[:MOST_ITEMS], whole and len(found) <= MOST_ITEMS

    def arguments(self, node: ast.Call, scope: Scope) -> Arguments:
        positional, whole = self.items(node.args, scope)
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, scope)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            else:
                table = self.look_up(value)
                whole = whole and isinstance(table, Table) and table.whole
                if isinstance(table, Table):
                    keywords |= {str(key): item for key, item in table.items.items()}
        return Arguments(positional, keywords, whole, scope.module.path, node.lineno)

    def truth(self, value: Value) -> bool | None:
        """Whether a condition holds; None: not known."""
        value = self.look_up(value)
        if isinstance(value, Known):
            return bool(value.value)
        if isinstance(value, Many | Table) and (value.items or value.whole):
            return bool(value.items)
        if isinstance(value, Function | ClassValue | Instance | Native):
            return True
        return None

    def _table(self, node: ast.Dict, scope: Scope) -> Value:
        table = Table({})
        for key, item in zip(node.keys, node.values):
            value = self.evaluate(item, scope)
            if key is None:
                more = self.look_up(value)
                table.whole = table.whole and isinstance(more, Table) and more.whole
                table.items |= more.items if isinstance(more, Table) else {}
                continue
            name = self.look_up(self.evaluate(key, scope))
            if isinstance(name, Known):
                table.items[name.value] = value
            else:
                table.whole = False
        return table

    def _arithmetic(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = self.look_up(self.evaluate(node.left, scope)), self.look_up(self.evaluate(node.right, scope))
        if isinstance(left, Many) and isinstance(right, Many) and isinstance(node.op, ast.Add):
            both = left.items + right.items
            return Many(both[:MOST_ITEMS], left.whole and right.whole and len(both) <= MOST_ITEMS)
        if isinstance(left, Table) and isinstance(right, Table) and isinstance(node.op, ast.BitOr):
            return Table(left.items | right.items, left.whole and right.whole)
        if not isinstance(left, Known):
            return UNKNOWN
        if isinstance(right, Many) and right.whole and isinstance(left.value, str) and isinstance(node.op, ast.Mod):
            given = tuple(item.value for item in right.items if isinstance(item, Known))
            return formatted(left.value, given) if len(given) == len(right.items) else UNKNOWN
        if not isinstance(right, Known):
            return UNKNOWN
        return reckoned(node.op, left.value, right.value)

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Value:
        value = self.look_up(self.evaluate(node.operand, scope))
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return UNKNOWN if truth is None else Known(not truth)
        if isinstance(value, Known) and isinstance(value.value, int | float) and isinstance(node.op, ast.USub):
            return Known(-value.value)
        return value if isinstance(node.op, ast.UAdd) else UNKNOWN

    def _joined(self, node: ast.JoinedStr, scope: Scope) -> Value:
        parts: list[str] = []
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            value = self.look_up(self.evaluate(inner, scope))
            formatted = isinstance(part, ast.FormattedValue) and (part.format_spec is not None or part.conversion != -1)
            if not isinstance(value, Known) or formatted:
                return UNKNOWN
            parts.append(str(value.value))
        text = "".join(parts)
        return Known(text) if len(text) <= MOST_TEXT else UNKNOWN

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        of = self.look_up(self.evaluate(node.value, scope))
        if isinstance(of, External) and of.name == "sys.argv":
            self.reads_words(scope, node.lineno)
        if isinstance(node.slice, ast.Slice):
            return of if isinstance(of, External) else UNKNOWN
        key = self.look_up(self.evaluate(node.slice, scope))
        if not isinstance(key, Known):
            return of if isinstance(of, External | ClassValue) else UNKNOWN
        if isinstance(of, Table):
            return of.items.get(key.value, UNKNOWN)
        if isinstance(of, Many) and isinstance(key.value, int) and (of.whole or key.value >= 0):
            return of.items[key.value] if -len(of.items) <= key.value < len(of.items) else UNKNOWN
        return External(f"{of.name}[]") if isinstance(of, External) else UNKNOWN

    def _logic(self, node: ast.BoolOp, scope: Scope) -> Value:
        values: list[Value] = []
        stops = isinstance(node.op, ast.Or)
        no = isinstance(node.op, ast.And)
        for part in node.values:
            value = self.evaluate(part, scope)
            truth = self.truth(value)
            if truth is stops:
                return value if not values or no else either(values[0], value)
            if truth is None:
                values.append(value)
        return Known(not stops) if not values else UNKNOWN if len(values) > 1 else values[0]

    def _comparison(self, node: ast.Compare, scope: Scope) -> Value:
        left = self.look_up(self.evaluate(node.left, scope))
        right = self.look_up(self.evaluate(node.comparators[0], scope))
        if len(node.ops) > 1:
            return UNKNOWN
        if isinstance(right, Many):
            right = Many([self.look_up(item) for item in right.items], right.whole)
        return comparison(node.ops[0], left, right)

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope
    ) -> Value:
        found = Table({}) if isinstance(node, ast.DictComp) else Many([])
        source = items_of(self.look_up(self.evaluate(node.generators[0].iter, scope)))
        if source is None or len(node.generators) > 1:
            found.whole = False
            return found
        inside = Scope(scope.module, {}, scope)
        for item in source:
            self.assign(node.generators[0].target, item, inside)
            if not self._passes(node.generators[0].ifs, inside, found):
                continue
            if isinstance(node, ast.DictComp):
                key = self.look_up(self.evaluate(node.key, inside))
                value = self.evaluate(node.value, inside)
                if isinstance(found, Table) and isinstance(key, Known):
                    found.items[key.value] = value
                else:
                    found.whole = False
            elif isinstance(found, Many):
                found.items.append(self.evaluate(node.elt, inside))
        return found

    def _passes(self, conditions: list[ast.expr], scope: Scope, found: Many | Table) -> bool:
        for condition in conditions:
            truth = self.truth(self.evaluate(condition, scope))
            if truth is None:
                found.whole = False
            elif not truth:
                return False
        return True
