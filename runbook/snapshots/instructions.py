"""Vocabulary of a pickle that holds plain data: its instructions, by `pickletools`, what it may ask for, and who takes
what it makes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runbook.errors import BadInput

Maker = Callable[[Sequence[Any]], Any]


class Sink(Protocol):
    """Takes what is finished."""

    known: frozenset[str]
    """Keys whose values it looks at."""

    def maker(self, keys: Sequence[Any]) -> Maker | None:
        """What makes of a dictionary's values, in the order of these keys, what stands for it from now on; None: the
        dictionary itself does. Raises TypeError for keys that are no texts."""

    def items(self, before: Any, new: list[Any]) -> Any:
        """What stands for a list from now on that was `before` (a list, or an earlier answer) and gets `new`. KEEP:
        it is extended, which takes a list. Raises `BadInput`."""


KEEP = object()


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a file may ask for. Beyond it `BadInput` is raised."""

    depth: int = 100
    """Containers that are open inside each other."""
    stack: int = 8_000_000
    """Values that wait to be put into something."""
    memo: int = 60_000_000
    """Values that the file can refer back to."""
    containers: int = 4_000_000
    """Lists, tuples and dictionaries for which the sink has nothing smaller."""
    text_bytes: int = 256 << 20
    """All texts together."""
    one_text_bytes: int = 1 << 20
    number_bytes: int = 9
    line_bytes: int = 1 << 16


EXECUTES = {
    0x63: "GLOBAL", 0x93: "STACK_GLOBAL", 0x52: "REDUCE", 0x62: "BUILD", 0x69: "INST", 0x6F: "OBJ", 0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x50: "PERSID", 0x51: "BINPERSID",
}
"""Instructions that look up a name, call, or build: by `pickletools`."""
NOT_PLAIN = {
    0x53: "a text of Python 2", 0x54: "a text of Python 2", 0x55: "a text of Python 2",
    0x42: "bytes", 0x43: "bytes", 0x8E: "bytes", 0x96: "bytes", 0x97: "a buffer beside the file",
    0x98: "a buffer beside the file", 0x8F: "a set", 0x90: "a set", 0x91: "a set",
    0x32: "a doubled value", 0x30: "a dropped value", 0x31: "a dropped value",
}
"""Plain, but nothing that PyTorch writes; a doubled value can make much of little."""
MOST_ITEMS = 100_000
MOST_KEYS = 10_000
INT = struct.Struct("<i").unpack_from
UINT = struct.Struct("<I").unpack_from
FLOAT = struct.Struct(">d").unpack_from


def first_look(data: bytes) -> None:
    """Names what people take for a snapshot. Raises `BadInput`."""
    if not data:
        raise BadInput("it is empty")
    for magic, what, next_step in _OTHER_FILES:
        if data.startswith(magic):
            raise BadInput(what, next_step=next_step)
    if data[:1] not in (b"\x80", b"(", b"}", b"]") and not _CALL_OF_PROTOCOL_0.match(data):
        raise BadInput("it is no pickle", next_step=_NAME_ANOTHER)


_CALL_OF_PROTOCOL_0 = re.compile(rb"c[\w.]+\n[\w.]+\n")
_NAME_ANOTHER = "name what torch.cuda.memory._dump_snapshot has written"
_OTHER_FILES = (
    (b"PK\x03\x04", "it is a zip archive, as torch.save writes for checkpoints", _NAME_ANOTHER),
    (b"\x1f\x8b", "it is compressed by gzip", "gunzip it first"),
    (b"\x28\xb5\x2f\xfd", "it is compressed by zstd", "unzstd it first"),
    (b"<", "it is a page, as torch.cuda._memory_viz writes", "name the pickle that the page was made from"),
    (b"version https://git-lfs", "it is a pointer of Git LFS", "git lfs pull"),
)


def index_of(line: bytes) -> int:
    place = int(line)
    if place < 0:
        raise ValueError
    return place


def named(data: bytes, at: int, code: int, stack: Sequence[Any]) -> str:
    """What a name is looked up for, as far as it can be told without doing it."""
    if code in (0x63, 0x69):
        parts = data[at : at + 200].split(b"\n")[:2]
        names = [part.decode("ascii", "replace") for part in parts]
    elif code == 0x93 and len(stack) >= 2:
        names = [one[:100] for one in stack[-2:] if isinstance(one, str)]
    else:
        return ""
    return " " + ".".join("".join(letter for letter in name if letter.isprintable()) for name in names)
