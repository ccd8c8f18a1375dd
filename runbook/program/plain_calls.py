"""Calls and operators whose outcome is known without running anything: on texts, numbers, lists and dictionaries."""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

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
    Plain,
    Table,
    Value,
    same,
)

_LARGEST = 1 << 62
_FORMAT = re.compile(r"(?:[^%]|%[sdr%])*")
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}
_OF_TEXTS = frozenset({
    "lower", "upper", "strip", "lstrip", "rstrip", "replace", "title", "capitalize", "removeprefix", "removesuffix",
    "startswith", "endswith", "split", "format", "join",
})


def method(of: Value, name: str, arguments: Arguments) -> Value:
    """What a method gives; lists and dictionaries are changed."""
    if isinstance(of, Known) and isinstance(of.value, str):
        return _of_text(of.value, name, arguments)
    if isinstance(of, Many):
        return _of_list(of, name, arguments.positional)
    if isinstance(of, Table):
        return _of_table(of, name, arguments)
    return UNKNOWN


def _of_text(text: str, name: str, arguments: Arguments) -> Value:
    if name not in _OF_TEXTS or not arguments.whole or arguments.keywords:
        return UNKNOWN
    given: list[Plain | list[str]] = []
    for item in arguments.positional:
        if isinstance(item, Known):
            given.append(item.value)
        elif isinstance(item, Many) and item.whole and name == "join":
            parts = [part.value for part in item.items if isinstance(part, Known) and isinstance(part.value, str)]
            if len(parts) != len(item.items):
                return UNKNOWN
            given.append(parts)
        else:
            return UNKNOWN
    if name == "format" and any(sign in text for sign in (":", "!", "[", ".")):
        return UNKNOWN
    if len(text) + sum(len(str(item)) for item in given) > MOST_TEXT // 20:
        return UNKNOWN
    try:
        result = getattr(text, name)(*given)
    except (TypeError, ValueError, IndexError, KeyError):
        return UNKNOWN
    if isinstance(result, list):
        return Many([Known(part) for part in result[:MOST_ITEMS]], len(result) <= MOST_ITEMS)
    return Known(result) if not isinstance(result, str) or len(result) <= MOST_TEXT else UNKNOWN


def _of_list(of: Many, name: str, given: Sequence[Value]) -> Value:
    if name in ("append", "add", "insert") and given:
        if len(of.items) < MOST_ITEMS:
            of.items.append(given[-1])
        else:
            of.whole = False
        return Known(None)
    if name in ("extend", "update") and given:
        more = items_of(given[0])
        of.items += (more or [])[: MOST_ITEMS - len(of.items)]
        of.whole = of.whole and more is not None
        return Known(None)
    if name == "copy":
        return Many(list(of.items), of.whole)
    if name in ("remove", "pop", "clear", "sort", "reverse"):
        of.whole = False
    return UNKNOWN


def _of_table(of: Table, name: str, arguments: Arguments) -> Value:
    given = arguments.positional
    if name == "items":
        return Many([Many([Known(key), value]) for key, value in of.items.items()], of.whole)
    if name == "keys":
        return Many([Known(key) for key in of.items], of.whole)
    if name == "values":
        return Many(list(of.items.values()), of.whole)
    if name in ("get", "pop", "setdefault") and given and isinstance(given[0], Known):
        found = of.items.get(given[0].value)
        if name == "pop" and of.whole:
            of.items.pop(given[0].value, None)
        if found is None and of.whole:
            return given[1] if len(given) > 1 else Known(None)
        return found or UNKNOWN
    if name == "copy":
        return Table(dict(of.items), of.whole)
    if name == "update":
        more = given[0] if given else None
        if isinstance(more, Table):
            of.items.update(itertools.islice(more.items.items(), MOST_ITEMS - min(len(of.items), MOST_ITEMS)))
        of.items.update(arguments.keywords)
        of.whole = of.whole and arguments.whole and (more is None or (isinstance(more, Table) and more.whole))
        return Known(None)
    return UNKNOWN


def items_of(value: Value | None) -> list[Value] | None:
    """What a loop over a value goes through; None: not known."""
    if isinstance(value, Many) and value.whole:
        return list(value.items)
    if isinstance(value, Table) and value.whole:
        return [Known(key) for key in value.items]
    if isinstance(value, Known) and isinstance(value.value, str):
        return [Known(letter) for letter in value.value[:MOST_ITEMS]]
    return None


def builtin(name: str, arguments: Arguments) -> Value | None:
    """What a builtin function gives; None: it is none of those that are known here."""
    given = arguments.positional
    first = given[0] if given else None
    if name in ("list", "tuple", "set", "sorted", "frozenset", "reversed"):
        items = items_of(first) if given else []
        if name == "reversed" and items is not None:
            items.reverse()
        return Many(items, True) if items is not None else Many([], False)
    if name == "dict":
        base = dict(first.items) if isinstance(first, Table) else {}
        whole = arguments.whole and (first is None or (isinstance(first, Table) and first.whole))
        base.update(arguments.keywords)
        return Table(base, whole)
    if name in ("zip", "enumerate"):
        lists = [items_of(item) for item in given]
        if not lists or any(items is None for items in lists):
            return UNKNOWN
        known = [items for items in lists if items is not None]
        if name == "enumerate":
            return Many([Many([Known(at), item]) for at, item in enumerate(known[0])])
        return Many([Many(list(row)) for row in zip(*known)])
    plain = [item.value for item in given if isinstance(item, Known)]
    if name == "len":
        items = items_of(first)
        return Known(len(items)) if items is not None else UNKNOWN
    if name == "range" and len(plain) == len(given) and all(isinstance(item, int) for item in plain):
        try:
            numbers = range(*(int(item or 0) for item in plain))
        except (TypeError, ValueError):
            return UNKNOWN
        return Many([Known(number) for number in numbers[:MOST_ITEMS]], len(numbers[:MOST_ITEMS + 1]) <= MOST_ITEMS)
    if name in ("str", "int", "float", "bool") and len(plain) == len(given) == 1:
        return _converted(name, plain[0])
    if name in ("min", "max") and len(plain) == len(given) > 0 and all(isinstance(one, int | float) for one in plain):
        numbers_given = [one for one in plain if isinstance(one, int | float)]
        return Known(min(numbers_given) if name == "min" else max(numbers_given))
    return None


def _converted(name: str, plain: Plain) -> Value:
    if plain is None or isinstance(plain, bytes) or len(str(plain)) > 100:
        return UNKNOWN
    try:
        if name == "str":
            return Known(str(plain))
        if name == "bool":
            return Known(bool(plain))
        return Known(int(plain) if name == "int" else float(plain))
    except (ValueError, OverflowError):
        return UNKNOWN


def formatted(text: str, given: tuple[Plain, ...]) -> Value:
    """`"--%s" % name`, with the plainest of conversions only."""
    if len(text) > 1_000 or not _FORMAT.fullmatch(text) or any(len(str(item)) > 1_000 for item in given):
        return UNKNOWN
    try:
        return Known(text % given)
    except (TypeError, ValueError):
        return UNKNOWN


def reckoned(kind: ast.operator, left: Plain, right: Plain) -> Value:
    """Sums of short numbers, and texts behind each other."""
    if isinstance(left, str) and isinstance(kind, ast.Mod):
        return formatted(left, (right,))
    if isinstance(left, str) and isinstance(right, str) and isinstance(kind, ast.Add):
        return Known(left + right) if len(left) + len(right) <= MOST_TEXT else UNKNOWN
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return UNKNOWN
    if isinstance(kind, ast.Pow) and 0 <= left <= 100 and isinstance(right, int) and 0 <= right <= 40:
        return Known(left**right)
    do = _ARITHMETIC.get(type(kind))
    if do is None or abs(left) > _LARGEST or abs(right) > _LARGEST:
        return UNKNOWN
    try:
        return Known(do(left, right))
    except (ZeroDivisionError, OverflowError):
        return UNKNOWN


def comparison(kind: ast.cmpop, left: Value, right: Value) -> Value:
    """Of plain values, of types, and of anything with None."""
    if isinstance(kind, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
        alike = same(left, right)
        if alike is not None:
            return Known(alike is isinstance(kind, ast.Eq | ast.Is))
    if isinstance(kind, ast.In | ast.NotIn):
        return _within(left, right, isinstance(kind, ast.In))
    if not isinstance(left, Known):
        rich = isinstance(left, Native | Function | Instance | ClassValue | Many | Table)
        if rich and isinstance(right, Known) and right.value is None:
            return Known(isinstance(kind, ast.IsNot | ast.NotEq))
        return UNKNOWN
    compare = _COMPARED.get(type(kind))
    try:
        return Known(bool(compare(left.value, right.value))) if compare and isinstance(right, Known) else UNKNOWN
    except TypeError:
        return UNKNOWN


def _within(left: Value, right: Value, wanted: bool) -> Value:
    items = items_of(right)
    if items is None:
        return UNKNOWN
    if isinstance(left, External):
        answers = [same(left, item) for item in items]
        return UNKNOWN if None in answers else Known(any(answers) is wanted)
    if not isinstance(left, Known) or not all(isinstance(item, Known) for item in items):
        return UNKNOWN
    inside = (isinstance(right, Known) and str(left.value) in str(right.value)) or left in items
    return Known(inside is wanted)
