"""Pickles that are no snapshots, or want to be more than data: name, bytes, and what is said of each."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

END = b"."
SHORT = b"\x8c"


@dataclass(frozen=True)
class Hostile:
    """`says`: words of the sentence."""

    name: str
    content: bytes
    says: str


class _Calls:
    """Pickled, it is a call of `os.mkdir`."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self._target,)


def hostile_pickles(would_make: str) -> Iterator[Hostile]:
    """`would_make`: a folder that those which run code would make."""
    for protocol in range(6):
        # In a part that is read, not one that is passed over.
        for place, value in (
            ("alone", _Calls(would_make)),
            ("as-segments", {"segments": _Calls(would_make), "device_traces": []}),
            ("in-an-entry", {"segments": [], "device_traces": [[{"action": "alloc", "addr": _Calls(would_make)}]]}),
            ("as-a-key", {"segments": [], "device_traces": [], "x": {"y": [_Calls(would_make)]}}),
        ):
            yield Hostile(f"code-{place}-{protocol}", pickle.dumps(value, protocol), "asks for code to be run")
    name = b"posix\nmkdir\n"
    folder = would_make.encode()
    yield Hostile("inst", b"(V" + folder + b"\ni" + name + END, "asks for code to be run (INST posix.mkdir)")
    yield Hostile("obj", b"(c" + name + b"V" + folder + b"\no.", "asks for code to be run (GLOBAL posix.mkdir)")
    yield Hostile("build", b"}}b.", "asks for code to be run (BUILD)")
    yield Hostile("extension", b"\x80\x02\x82\x01.", "asks for code to be run (EXT1)")
    yield Hostile("persistent-id", b"(P1\n.", "asks for code to be run (PERSID)")
    yield Hostile("persistent-number", b"\x80\x02K\x01Q.", "asks for code to be run (BINPERSID)")
    yield Hostile("new-object", b"\x80\x04))\x81.", "asks for code to be run (NEWOBJ)")
    yield Hostile("colours-in-a-name", b"(cevil\x1b[31m\nrm\n.", "GLOBAL evil[31m.rm")
    yield Hostile("laughs", _laughs(60), "no memory snapshot")
    yield Hostile("doubling", b"\x80\x04](" + b"2" * 1000 + b"e.", "doubled value")
    yield Hostile("deep-lists", b"\x80\x04" + b"]" * 1_000_000 + b"a" * 999_999 + END, "no memory snapshot")
    yield Hostile("deep-marks", b"\x80\x04" + b"(" * 5_000_000, "inside each other")
    yield Hostile("deep-key", b"\x80\x04}()" + b"\x85" * 1_000_000 + b"K\x01u.", "no pickle of plain data")
    yield Hostile("list-in-itself", b"\x80\x04]\x94h\x00a.", "no memory snapshot")
    entry = b"}\x94(" + SHORT + b"\x06action\x94" + SHORT + b"\x05alloc\x94u"
    yield Hostile("entry-in-two-places", b"\x80\x04](" + entry + b"h\x00e.", "in two places")
    whole = b"\x80\x04}(" + SHORT + b"\x08segments]" + SHORT + b"\x0ddevice_traces]("
    yield Hostile("one-trace-twice", whole + b"](" + entry + b"e\x94h\x03h\x03eu.", "in two places")
    often = whole + b"](" + entry + b"e\x94" + b"h\x03" * 90_000 + b"eu."
    yield Hostile("one-trace-often", often, "more than 256 devices")
    yield Hostile("huge-number", b"\x80\x04\x8b" + struct.pack("<i", 1 << 30) + b"\x01" * 100, "a number of")
    yield Hostile("negative-length", b"\x80\x04\x8b" + struct.pack("<i", -5) + END, "a number of")
    yield Hostile("many-digits", b"I" + b"9" * 50_000 + b"\n.", "no pickle")
    yield Hostile("many-digits-in-a-list", b"(lI" + b"9" * 50_000 + b"\na.", "a number of 50000 digits")
    yield Hostile("huge-text", b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x", "a text of")
    yield Hostile("huge-bytes", b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x", "it holds bytes")
    yield Hostile("bytes-of-protocol-5", pickle.dumps({"segments": bytearray(9)}, 5), "it holds bytes")
    yield Hostile("huge-memo", b"\x80\x02]r\xff\xff\xff\xff.", "a reference numbered 4294967295")
    yield Hostile("memo-of-nothing", b"\x80\x02](h\x07e.", "no pickle of plain data")
    yield Hostile("frame-beyond-the-end", b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"]", "ends in the middle")
    yield Hostile("protocol-9", b"\x80\x09].", "protocol 9")
    yield Hostile("a-set", pickle.dumps({1, 2}, 4), "it holds a set")
    yield Hostile("stack-below-its-bottom", b"\x80\x04]aaaa.", "no pickle of plain data")
    yield Hostile("two-values", b"\x80\x04]].", "does not end with one value")
    good = pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 2}] * 1]}, 4)
    for cut in (1, 2, 9, 30, len(good) // 2, len(good) - 1):
        yield Hostile(f"cut-at-{cut}", good[:cut], "ends in the middle")
    yield Hostile("empty", b"", "it is empty")
    yield Hostile("text", b"srun: error: node1: task 0: Out Of Memory\n", "it is no pickle")
    yield Hostile("noise", bytes(range(129, 256)) * 40, "it is no pickle")
    yield Hostile("page", b"<!DOCTYPE html><html>", "it is a page")
    yield Hostile("compressed", b"\x1f\x8b\x08\x00", "compressed by gzip")
    yield Hostile("large-file-storage", b"version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS")
    checkpoint = io.BytesIO()
    with zipfile.ZipFile(checkpoint, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
    yield Hostile("checkpoint", checkpoint.getvalue(), "as torch.save writes")
    yield Hostile("another-pickle", pickle.dumps({"state": {"step": 3}}), "no memory snapshot")
    no_trace: list[object] = []
    for title, segments, traces, says in (
        ("segments-of-text", ["a"], no_trace, "no memory snapshot"),
        ("sizes-of-text", [_segment(total_size="x")], no_trace, "a size or an address"),
        ("negative-size", [_segment(total_size=-1)], no_trace, "a size or an address"),
        ("address-beyond-64-bit", [_segment(address=1 << 66)], no_trace, "a size or an address"),
        ("blocks-that-are-none", [_segment(blocks=7)], no_trace, "a segment without its blocks"),
        ("traces-that-are-none", [], 5, "no memory snapshot"),
        ("trace-with-a-text-in-it", [], [[{"action": "alloc"}, "x"]], "something else in it than entries"),
        ("action-of-numbers", [], [[{"action": 7}]], "whose action is no text"),
        ("address-of-text", [], [[{"action": "alloc", "addr": "x", "size": 1}]], "no pickle of plain data"),
    ):
        yield Hostile(title, pickle.dumps({"segments": segments, "device_traces": traces}, 4), says)


def _segment(**changes: object) -> dict[str, object]:
    segment: dict[str, object] = {
        "device": 0, "address": 1 << 30, "total_size": 2 << 20, "stream": 0, "segment_type": "small", "blocks": [],
    }
    return {**segment, **changes}


def _laughs(times: int) -> bytes:
    """A list of ten times a list of ten times … : 10 to the power of `times` items for who goes through them."""
    content = b"\x80\x04" + SHORT + b"\x03lol\x94"
    for level in range(times):
        content += b"](" + b"h" + bytes([level]) + (b"h" + bytes([level])) * 9 + b"e\x94"
    return b"\x80\x04](" + content[2:] + b"e."
