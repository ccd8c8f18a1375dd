"""Xid: lines of the NVIDIA driver in the kernel log (GPU, NVSwitch, a lost GPU).

Line formats: driver sources 515 to 595 (`NVRM: Xid (PCI:dddd:bb:dd): N, pid=P, name=NAME, text`). Before 570 an
unknown process is `pid='<unknown>', name=<unknown>`, from 570 both are left out; MIG instances stand inside the
parentheses; very old drivers write no `PCI:`. A name is the process's own word and may hold anything: nothing is
decided on it. The kernel prints other words of users too (the path of a cgroup whose memory is spent, the name of a
program with an executable stack), so that the driver's word counts at the start of a message only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FALLEN_OFF_THE_BUS = 79

PREFIX = (
    r"(?:\d{4}-\d\d-\d\dT[\d:.,]{8,20}(?:Z|[+-][\d:]{4,5})? |\d{9,11}\.\d{1,9} |[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?"
    r"(?:[\w.-]{1,253} kernel: )?(?:\[[ \w:.]{1,40}\] ?){0,2}"
)
"""What the log's own programs write in front of a message: time, host, time since the start, the caller."""
_XID = re.compile(
    PREFIX + r"NVRM:\s+Xid\s+\((?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
    r"(?:\s+(?P<mig>GPU-I:\d+(?:\s+GPU-CI:\d+)?))?\):\s*(?P<code>\d{1,6})(?:,\s*(?P<rest>.*))?$"
)
_PROCESS = re.compile(r"pid=(?P<pid>'[^']*'|[^,]*)(?:,\s*(?:name=(?P<name>.*?)(?:,\s+|$))?|$)(?P<text>.*)$")
_SXID = re.compile(
    PREFIX + r"nvidia-nvswitch\d+:\s+SXid\s+\((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\):\s*(?P<code>\d{1,6}),\s*"
    r"(?P<severity>Correctable|Non-fatal|Fatal)\b,?\s*(?P<text>.*)$"
)
_LOST = re.compile(
    PREFIX + r"NVRM: (?:GPU|GPU at|The NVIDIA GPU) (?:PCI:)?"
    r"(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
    r"(?:: GPU| \(PCI ID: [0-9a-fA-F]{4}:[0-9a-fA-F]{4}\)(?: NVRM:)? installed in this system)? has (?:NVRM: )?"
    r"fallen off the bus(?: and is not responding to commands)?\.?\s*$"
)
"""The driver's whole text. The kernel begins the record of a crash with the program's name, which its user chose, and
ends it with a file's: what stands between may be anything where a pattern lets anything stand."""
_BUS = re.compile(r"(?P<domain>[0-9a-fA-F]{4,8}):(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})(?:\.[0-7])?$")


@dataclass(frozen=True, slots=True)
class XidLine:
    """One line as the driver meant it. `bus_id` is "dddd:bb:dd" in lower case, as every bus id is kept here."""

    code: int
    bus_id: str
    text: str
    pid: int | None = None
    process_name: str = ""
    instance: str = ""
    """MIG: "GPU-I:05 GPU-CI:02"."""
    switch_severity: str = ""
    """Set for an NVSwitch's SXid only: "Correctable", "Non-fatal", "Fatal"; its code is no Xid code."""


def read_xid(line: str) -> XidLine | None:
    """Read the message part of a kernel log line, with or without a time stamp in front. None: no such event."""
    match = _XID.match(line)
    if match:
        return _xid(match)
    match = _SXID.match(line)
    if match:
        return XidLine(
            int(match["code"]), bus_id(match["bus"]), match["text"].strip(), switch_severity=match["severity"]
        )
    match = _LOST.match(line)
    if match:
        return XidLine(FALLEN_OFF_THE_BUS, bus_id(match["bus"]), "GPU has fallen off the bus.")
    return None


def bus_id(text: str) -> str:
    """A PCI address in one spelling: "00000000:C1:00.0" and "0000:c1:00" are both "0000:c1:00"."""
    match = _BUS.search(text.strip())
    if not match:
        return text.strip().lower()
    return f"{int(match['domain'], 16):04x}:{match['bus']}:{match['device']}".lower()


def _xid(match: re.Match[str]) -> XidLine:
    rest = (match["rest"] or "").strip()
    process = _PROCESS.match(rest) if rest.startswith("pid=") else None
    pid, name = None, ""
    if process:
        digits = process["pid"].strip("' ")
        pid = int(digits) if digits.isdecimal() and len(digits) < 10 else None
        name = process["name"] or ""
        rest = process["text"].strip()
    return XidLine(int(match["code"]), bus_id(match["bus"]), rest, pid, name, match["mig"] or "")
