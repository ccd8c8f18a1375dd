"""What repeats in a pickle is found whole, by a regular expression, instead of instruction by instruction: dictionaries
with the same keys, as the entries of a trace are, and lists of what was there before, as their stacks are.

Only what the interpreter would do with the same bytes is done with them: each instruction in these expressions makes a
value, and says what it leaves in the memo."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runbook.snapshots.instructions import INT, KEEP, MOST_ITEMS, UINT, Maker, Sink


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """Dictionaries with the same keys, as one expression finds them whole: the entries of a trace are such."""

    pattern: re.Pattern[bytes]
    """After EMPTY_DICT; a group for each value that is looked at, with the instructions that make it."""
    make: Maker
    ends_with_list: bool
    """Its last value is a list as a rule, and the pattern ends before it."""


class Repetition:
    """Of one pickle. `memo` is shared with who reads the rest of it; `count_container` is told of each container that
    is kept, and may raise `BadInput`."""

    def __init__(self, sink: Sink, memo: list[Any], count_container: Callable[[], None]) -> None:
        self._sink, self._memo, self._count_container = sink, memo, count_container
        self._known: dict[bytes, Any] = {}
        self._lists: dict[bytes, Any] = {}
        """By the instructions that made them."""
        self.templates: list[Template] = []
        self.tuples: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Of numbers, each kind once: the pool of every entry is a pair of its own."""

    def learn(self, data: bytes, at: int) -> bool:
        """Whether the dictionary that begins here has become a template for those to come."""
        whole = _PLAIN_DICT.match(data, at)
        if whole is None:
            return False
        pairs = _PAIR.findall(whole[0], 2)
        keys = [self._referred(key) for key, _ in pairs]
        if not all(key.__class__ is str for key in keys):
            return False
        # What nobody looks at is passed over, where it leaves nothing in the memo.
        passed = [key not in self._sink.known and _PASSED.fullmatch(value) for key, (_, value) in zip(keys, pairs)]
        make = self._sink.maker([key for key, is_passed in zip(keys, passed) if not is_passed])
        if make is None:
            return False
        pattern = b"".join(
            re.escape(key) + (_PASSED.pattern if is_passed else b"(" + _like(value) + b"|" + _VALUE + b")")
            for (key, value), is_passed in zip(pairs, passed)
        )
        last_value = pairs[-1][1]
        ends_with_list = last_value.startswith(b"]\x94(")
        if ends_with_list:
            pattern = pattern[: -len(b"(" + _like(last_value) + b"|" + _VALUE + b")")]
        whole_pattern = rb"\x94\(" + pattern + (b"" if ends_with_list else b"u")
        self.templates.append(Template(re.compile(whole_pattern, re.DOTALL), make, ends_with_list))
        return True

    def _referred(self, code: bytes) -> Any:
        return self._memo[code[1] if code[0] == 0x68 else UINT(code, 1)[0]]

    def row(self, template: Template, found: re.Match[bytes], data: bytes) -> tuple[Any, int]:
        """What stands for a dictionary whose values these instructions make, and where it ends; -1: it has to be read
        instruction by instruction."""
        memo, end = self._memo, found.end()
        last: Any = None
        has_list = False
        if template.ends_with_list:
            last, end, has_list = self._last_value(data, end)
            if end < 0:
                return None, -1
        codes = found.groups()
        place = len(memo)
        memo.append(None)
        # Actions, sizes and addresses come again and again.
        values = list(map(self._known.get, codes))
        for at in [at for at, value in enumerate(values) if value is None] if None in values else ():
            values[at] = self._value(codes[at])
        if template.ends_with_list:
            values.append(last)
            if has_list:
                memo.append(last)
        memo[place] = answer = template.make(values)
        return answer, end

    def _value(self, code: bytes) -> Any:
        """What one value's instructions make; numbers and texts are known from now on."""
        memo, first = self._memo, code[0]
        value: Any
        if first == 0x8A:  # LONG1
            value = int.from_bytes(code[2:], "little", signed=True)
            if len(code) > _LONGEST_KNOWN:  # a time, which does not come again
                return value
        elif first == 0x68 or first == 0x6A:  # BINGET, LONG_BINGET
            value = self._referred(code)
            if value.__class__ is not str:
                return value
        elif first == 0x4B and len(code) == 2:  # BININT1
            value = code[1]
        elif first == 0x4B:  # two of them, and TUPLE2
            value = self.tuples.setdefault((code[1], code[3]), (code[1], code[3]))
            memo.append(value)
            return value
        elif first == 0x4A:  # BININT
            value = INT(code, 1)[0]
        elif first == 0x5D:  # a list of references, or an empty one
            value = [] if len(code) == 2 else self.list_of_references(code[1:])
            memo.append(value)
            return value
        elif first == 0x4D:  # BININT2
            value = code[1] | code[2] << 8
        else:  # NONE, NEWTRUE, NEWFALSE
            return _CONSTANTS[first]
        if len(self._known) >= MOST_ITEMS:
            self._known.clear()
        self._known[code] = value
        return value

    def _last_value(self, data: bytes, at: int) -> tuple[Any, int, bool]:
        """A list or a reference to one, which ends its dictionary: the value, the position behind the dictionary or -1,
        and whether it is a new list. To match a list costs more than all the rest of an entry; so its end is guessed,
        which is certain where a list of the very same bytes was matched before."""
        first = data[at]
        if first == 0x5D:
            end = data.find(b"eu", at, at + _LONGEST_LIST)
            answer = self._lists.get(data[at + 1 : end + 1])
            if answer is None:
                whole = REFERENCES.match(data, at + 1)
                if whole is None or data[whole.end()] != 0x75:
                    return None, -1, False
                answer, end = self.list_of_references(whole[0]), whole.end() - 1
            return answer, end + 2, True
        end = at + (2 if first == 0x68 else 5)
        if first not in (0x68, 0x6A) or data[end] != 0x75:
            return None, -1, False
        return self._referred(data[at:end]), end + 1, False

    def list_of_references(self, code: bytes) -> Any:
        """A list of things that were there before, as each stack is one of frames: most have been seen by the same
        numbers already, and are the same then."""
        answer = self._lists.get(code)
        if answer is not None:
            return answer
        at, end, new = 2, len(code) - 1, []
        while at < end:
            if code[at] == 0x68:
                new.append(self._memo[code[at + 1]])
                at += 2
            else:
                new.append(self._memo[UINT(code, at + 1)[0]])
                at += 5
        answer = self._sink.items([], new)
        if answer is KEEP:
            self._count_container()
            return new
        if len(self._lists) >= MOST_ITEMS:
            self._lists.clear()
        self._lists[code] = answer
        return answer


REFERENCES = re.compile(rb"\x94\((?:h.|j....)+e", re.DOTALL)
"""After EMPTY_LIST: MEMOIZE, MARK, BINGET and LONG_BINGET as many as there are, APPENDS."""
_LENGTHS = {0x4A: 4, 0x6A: 4, 0x4B: 1, 0x68: 1, 0x4D: 2}


def _like(value: bytes) -> bytes:
    """What is tried first where a value stood: one of the same instruction, and as long."""
    if value[0] == 0x8A:
        return re.escape(value[:2]) + b"." * (len(value) - 2)
    if len(value) == _LENGTHS.get(value[0], 0) + 1:
        return re.escape(value[:1]) + b"." * (len(value) - 1)
    return re.escape(value[:1]) + b"(?!)"  # nothing


_PASSED = re.compile(rb"(?:h.|j....|N|K.|M..|J....|\x88|\x89)", re.DOTALL)
_VALUE = (
    rb"(?:K.K.\x86\x94|h.|K.|J....|j....|M..|N|\x88|\x89|\]\x94\((?:h.|j....)+e|\]\x94(?!\()|"
    + b"|".join(rb"\x8a" + re.escape(bytes([size])) + b"." * size for size in range(1, 10)) + b")"
)
_PAIR = re.compile(rb"(h.|j....)(" + _VALUE + b")", re.DOTALL)
_PLAIN_DICT = re.compile(rb"\x94\((?:(?:h.|j....)" + _VALUE + b")+u", re.DOTALL)
_LONGEST_LIST = 1 << 14
_LONGEST_KNOWN = 8
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
MOST_TEMPLATES = 12
