"""Reads a pickle that holds plain data alone, in one pass, and never more of it at a time than it must.

A pickle is a program. Of its instructions only those are done that make numbers, texts, lists, tuples and dictionaries;
whatever looks up a name, calls, builds an object or reaches outside is refused with its name, and there is nothing here
that could do it: no name is ever resolved. Python's own unpickler, told to resolve nothing, would be as safe, but makes
a dictionary for each entry of a trace and reserves whatever memory a length asks for.

The sizes of everything are bounded (`Bounds`). Finished dictionaries and lists are offered to a `Sink`, which may put
something smaller in their place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from runbook.errors import BadInput
from runbook.snapshots.instructions import (
    EXECUTES,
    FLOAT,
    INT,
    KEEP,
    MOST_ITEMS,
    MOST_KEYS,
    NOT_PLAIN,
    UINT,
    Bounds,
    Sink,
    first_look,
    index_of,
    named,
)
from runbook.snapshots.repetition import MOST_TEMPLATES, REFERENCES, Repetition

_LEAST_BYTES = 1 << 17
"""So much is in the buffer, or the whole rest: more than any instruction but a text has."""
_CHUNK_BYTES = 1 << 22
_BOUNDS = Bounds()


def read_plain_pickle(stream: BinaryIO, sink: Sink, progress: Callable[[int], None], bounds: Bounds = _BOUNDS) -> Any:
    """The value that a pickle of protocol 0 to 5 holds, with what the sink has put in the place of its parts.

    `progress` is called with bytes read. Raises `BadInput` that says what is wrong and at which byte, and whatever the
    stream raises."""
    return _Reading(stream, sink, progress, bounds).value()


class _Reading:
    """One pass. The loop is one function and its state local: it runs some twenty instructions for each entry of a
    trace, and a call for each would double the time."""

    def __init__(self, stream: BinaryIO, sink: Sink, progress: Callable[[int], None], bounds: Bounds) -> None:
        self._stream, self._sink, self._progress, self._bounds = stream, sink, progress, bounds
        self._buffer, self._before, self._ended = b"", 0, False
        self._containers, self._text_bytes = 0, 0
        self._memo: list[Any] = []
        self._memo_of: dict[int, int] = {}
        """Where in the memo a container is that still grows, by its identity."""
        self._repetition = Repetition(sink, self._memo, self._count_container)

    def value(self) -> Any:
        """See `read_plain_pickle`."""
        stack: list[Any] = []
        marks: list[int] = []
        memo = self._memo
        repetition, templates = self._repetition, self._repetition.templates
        at, memo_of, most_number_bytes = 0, self._memo_of, self._bounds.number_bytes
        self._refill(0)
        data = self._buffer
        first_look(data)
        last = len(data) - _LEAST_BYTES if not self._ended else len(data)
        try:
            while True:
                if at >= last:
                    self._check(stack, marks)
                    at = self._refill(at)
                    data = self._buffer
                    last = len(data) - _LEAST_BYTES if not self._ended else len(data)
                code = data[at]
                at += 1
                if code == 0x68:  # BINGET
                    stack.append(memo[data[at]])
                    at += 1
                elif code == 0x4B:  # BININT1
                    stack.append(data[at])
                    at += 1
                elif code == 0x8A:  # LONG1
                    size = data[at]
                    if size > most_number_bytes:
                        raise BadInput(f"a number of {size} bytes")
                    at += 1
                    stack.append(int.from_bytes(data[at : at + size], "little", signed=True))
                    at += size
                elif code == 0x4A:  # BININT
                    stack.append(INT(data, at)[0])
                    at += 4
                elif code == 0x94:  # MEMOIZE
                    top = stack[-1]
                    if top.__class__ is dict or top.__class__ is list:
                        memo_of[id(top)] = len(memo)
                    memo.append(top)
                elif code == 0x75:  # SETITEMS
                    start = marks.pop()
                    self._set_items(stack, start)
                elif code == 0x7D:  # EMPTY_DICT
                    for template in templates:
                        found = template.pattern.match(data, at)
                        if found is not None:
                            answer, end = repetition.row(template, found, data)
                            if end >= 0:
                                stack.append(answer)
                                at = end
                                if template is not templates[0]:  # the next is likely to be of the same kind
                                    templates.remove(template)
                                    templates.insert(0, template)
                                break
                    else:
                        stack.append({})
                        if len(templates) < MOST_TEMPLATES and repetition.learn(data, at):
                            stack.pop()
                            at -= 1
                elif code == 0x28:  # MARK
                    marks.append(len(stack))
                elif code == 0x6A:  # LONG_BINGET
                    stack.append(memo[UINT(data, at)[0]])
                    at += 4
                elif code == 0x4E:  # NONE
                    stack.append(None)
                elif code == 0x4D:  # BININT2
                    stack.append(data[at] | data[at + 1] << 8)
                    at += 2
                elif code == 0x5D:  # EMPTY_LIST
                    references = REFERENCES.match(data, at)
                    if references is not None and data[references.end()] != 0x28:
                        stack.append(repetition.list_of_references(references[0]))
                        memo.append(stack[-1])
                        at = references.end()
                    else:
                        stack.append([])
                elif code == 0x65:  # APPENDS
                    start = marks.pop()
                    new = stack[start:]
                    del stack[start:]
                    self._add_items(stack, new)
                elif code == 0x61:  # APPEND
                    new = [stack.pop()]
                    self._add_items(stack, new)
                elif code in (0x8C, 0x58, 0x8D):  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
                    at, text = self._text(data, at, code)
                    data = self._buffer
                    last = len(data) - _LEAST_BYTES if not self._ended else len(data)
                    stack.append(text)
                elif code == 0x95:  # FRAME
                    at += 8
                elif code == 0x2E:  # STOP
                    break
                else:
                    at = self._seldom(code, at, stack, marks)
            self._check(stack, marks)
            self._progress(self._before + at)
            if len(stack) != 1 or marks:
                raise BadInput("it does not end with one value")
            return stack[0]
        except BadInput as error:
            raise BadInput(error.what, where=f"byte {self._before + at}", next_step=error.next_step) from None
        except (IndexError, struct.error):
            cut = self._ended and not self._buffer.endswith(b".")  # STOP is the last of every pickle
            raise BadInput(
                "it ends in the middle" if cut else "it is no pickle of plain data",
                where=f"byte {self._before + at}",
                next_step="it was cut off while it was written or copied: see whether its disk was full" if cut else "",
            ) from None
        except (TypeError, ValueError, AttributeError, OverflowError):
            raise BadInput("it is no pickle of plain data", where=f"byte {self._before + at}") from None

    def _check(self, stack: Sequence[Any], marks: Sequence[int]) -> None:
        """Bounds of what a few MiB more can only exceed by a little."""
        bounds = self._bounds
        if len(stack) > bounds.stack:
            raise BadInput(f"more than {bounds.stack} values that belong to nothing yet")
        if len(self._memo) > bounds.memo:
            raise BadInput(f"more than {bounds.memo} values to refer back to")
        if len(marks) > bounds.depth:
            raise BadInput(f"more than {bounds.depth} containers inside each other")
        if len(self._memo_of) > bounds.containers:
            raise BadInput(f"more than {bounds.containers} lists and dictionaries that are no part of a snapshot")

    def _refill(self, at: int) -> int:
        """Drop what has been read, add what follows; the new position. Raises IndexError where nothing is left."""
        if self._ended and at >= len(self._buffer):
            raise IndexError
        kept = self._buffer[at:]
        self._before += at
        self._progress(self._before)
        parts, length = [kept], len(kept)
        while length < _CHUNK_BYTES:
            part = self._stream.read(_CHUNK_BYTES)
            if not part:
                self._ended = True
                break
            parts.append(part)
            length += len(part)
        self._buffer = b"".join(parts)
        return 0

    def _text(self, data: bytes, at: int, code: int) -> tuple[int, str]:
        width = {0x8C: 1, 0x58: 4, 0x8D: 8}[code]
        size = int.from_bytes(data[at : at + width], "little")
        at += width
        if size > self._bounds.one_text_bytes:
            raise BadInput(f"a text of {size} bytes")
        if at + size > len(data):
            at = self._refill(at)
            data = self._buffer
        if at + size > len(data):
            raise BadInput("it ends in the middle")
        self._count_text(size)
        return at + size, data[at : at + size].decode("utf-8", "replace")

    def _count_text(self, size: int) -> None:
        self._text_bytes += size + 50
        if self._text_bytes > self._bounds.text_bytes:
            raise BadInput(f"more than {self._bounds.text_bytes >> 20} MiB of text")

    def _count_container(self) -> None:
        self._containers += 1
        if self._containers > self._bounds.containers:
            raise BadInput(f"more than {self._bounds.containers} lists and dictionaries that are no part of a snapshot")

    def _set_items(self, stack: list[Any], start: int) -> None:
        """The values from `start` on are keys and values of the dictionary before them."""
        keys, values = tuple(stack[start::2]), stack[start + 1 :: 2]
        del stack[start:]
        target = stack[-1]
        if target.__class__ is not dict or len(keys) != len(values):
            raise BadInput("it is no pickle of plain data")
        make = self._sink.maker(keys) if not target else None
        if make is None:
            self._put(target, keys, values)
            return
        answer = make(values)
        place = self._memo_of.pop(id(target), None)
        stack[-1] = answer
        if place is not None:
            self._memo[place] = answer

    def _put(self, target: dict[Any, Any], keys: tuple[Any, ...], values: Sequence[Any]) -> None:
        if not target:
            self._count_container()
        for key, value in zip(keys, values, strict=True):
            if key.__class__ not in (str, int):
                raise BadInput("a dictionary whose keys are neither text nor number")
            target[key] = value
        if len(target) > MOST_KEYS:
            raise BadInput(f"a dictionary of more than {MOST_KEYS} items")

    def _add_items(self, stack: list[Any], new: list[Any]) -> None:
        target = stack[-1]
        new = [self._finished(one) if one.__class__ is dict else one for one in new]
        answer = self._sink.items(target, new)
        if answer is not KEEP:
            place = self._memo_of.pop(id(target), None)
            stack[-1] = answer
            if place is not None:
                self._memo[place] = answer
                self._memo_of[id(answer)] = place
            return
        if target.__class__ is not list:
            raise BadInput("it is no pickle of plain data")
        if not target:
            self._count_container()
        target.extend(new)
        if len(target) > MOST_ITEMS:
            raise BadInput(f"a list of more than {MOST_ITEMS} items that are no part of a snapshot")

    def _finished(self, one: dict[Any, Any]) -> Any:
        """A dictionary that got its items one by one, as protocol 0 writes it."""
        if not one:
            return one
        make = self._sink.maker(tuple(one))
        if make is None:
            return one
        answer = make(list(one.values()))
        place = self._memo_of.pop(id(one), None)
        if place is not None:
            self._memo[place] = answer
        return answer

    def _seldom(self, code: int, at: int, stack: list[Any], marks: list[int]) -> int:
        """An instruction that is not in every entry; the position after it."""
        data = self._buffer
        if code in EXECUTES:
            raise BadInput(
                f"it asks for code to be run ({EXECUTES[code]}{named(data, at, code, stack)}), as no snapshot does",
                next_step="do not load it with pickle or torch; ask where the file comes from",
            )
        if code in NOT_PLAIN:
            raise BadInput(f"it holds {NOT_PLAIN[code]}, which no memory snapshot does")
        if code == 0x80:  # PROTO
            if data[at] > 5:
                raise BadInput(f"a pickle of protocol {data[at]}: 0 to 5 are known")
            return at + 1
        if code == 0x71:  # BINPUT
            self._remember(data[at], stack[-1])
            return at + 1
        if code == 0x72:  # LONG_BINPUT
            self._remember(UINT(data, at)[0], stack[-1])
            return at + 4
        if code in (0x88, 0x89):  # NEWTRUE, NEWFALSE
            stack.append(code == 0x88)
        elif code == 0x47:  # BINFLOAT
            stack.append(FLOAT(data, at)[0])
            return at + 8
        elif code == 0x8B:  # LONG4
            size: int = INT(data, at)[0]
            if not 0 <= size <= self._bounds.number_bytes:
                raise BadInput(f"a number of {size} bytes")
            stack.append(int.from_bytes(data[at + 4 : at + 4 + size], "little", signed=True))
            return at + 4 + size
        elif code == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif code in (0x85, 0x86, 0x87, 0x74):  # TUPLE1, TUPLE2, TUPLE3, TUPLE
            start = marks.pop() if code == 0x74 else len(stack) - (code - 0x84)
            if start < 0 or len(stack) - start > MOST_KEYS:
                raise BadInput("it is no pickle of plain data")
            made = tuple(stack[start:])
            # The pool of each entry is a pair of its own: the same pair once is enough. What is not a number is not
            # hashed: tuples inside each other, a million deep, would take the machine's stack.
            if all(one.__class__ is int for one in made) and len(self._repetition.tuples) < MOST_ITEMS:
                made = self._repetition.tuples.setdefault(made, made)
            else:
                self._count_container()
            stack[start:] = [made]
        elif code == 0x6C or code == 0x64:  # LIST, DICT
            start = marks.pop()
            new = stack[start:]
            del stack[start:]
            stack.append([] if code == 0x6C else {})
            if new and code == 0x6C:
                self._add_items(stack, new)
            elif new:
                self._put(stack[-1], tuple(new[::2]), new[1::2])
        elif code == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            if stack[-1].__class__ is not dict:
                raise BadInput("it is no pickle of plain data")
            self._put(stack[-1], (key,), (value,))
        else:
            return self._line(code, at, stack)
        return at

    def _line(self, code: int, at: int, stack: list[Any]) -> int:
        """Instructions of protocol 0, whose argument is a line."""
        if code not in (0x49, 0x4C, 0x46, 0x56, 0x67, 0x70):
            raise BadInput("it is no pickle")
        end = self._buffer.find(b"\n", at, at + self._bounds.line_bytes)
        if end < 0:
            raise BadInput("it ends in the middle" if self._ended else "it is no pickle")
        line = self._buffer[at:end]
        if code == 0x56:  # UNICODE
            self._count_text(len(line))
            stack.append(line.decode("raw-unicode-escape", "replace"))
        elif len(line) > 32:
            raise BadInput(f"a number of {len(line)} digits")
        elif code == 0x46:  # FLOAT
            stack.append(float(line))
        elif code == 0x67:  # GET
            stack.append(self._memo[index_of(line)])
        elif code == 0x70:  # PUT
            self._remember(index_of(line), stack[-1])
        else:  # INT, LONG
            stack.append({b"00": False, b"01": True}.get(line) if line in (b"00", b"01") else int(line.rstrip(b"L")))
        return end + 1

    def _remember(self, place: int, value: Any) -> None:
        if value.__class__ is dict or value.__class__ is list:
            self._memo_of[id(value)] = place
        if place == len(self._memo) < self._bounds.memo:
            self._memo.append(value)
        elif place < len(self._memo):
            self._memo[place] = value
        else:
            raise BadInput(f"a reference numbered {place} where {len(self._memo)} comes next")
