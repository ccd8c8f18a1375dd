"""The simulated dmesg: the driver's boot lines and the kernel log lines of the state file, nothing else."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import NamedTuple

from simulated_gpu import state

WARNING, NOTICE = 4, 5
LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
UNITS_S = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400}
UNITS_S |= {"day": 86400, "week": 604800}
IGNORED = {"-k", "--kernel", "-P", "--nopager", "-L", "--color", "-H", "--human", "-w", "--follow"}


class Line(NamedTuple):
    """A line of the kernel log: when (seconds since the epoch), level, text."""

    time: float
    level: int
    text: str


class Refused(Exception):
    """A wrong option or time; the message for stderr."""


def main(arguments: list[str]) -> int:
    """Print the kernel log; returns dmesg's exit status."""
    try:
        options = parse(arguments)
        if os.geteuid() != 0 and restricted():
            raise Refused("read kernel buffer failed: Operation not permitted")
        text = show(lines_of(state.load(), options), options)
    except Refused as refusal:
        sys.stderr.write(f"dmesg: {refusal}\n")
        return 1
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        return 1
    return 0


def parse(arguments: list[str]) -> dict[str, str]:
    """The options by name."""
    options: dict[str, str] = {}
    valued = {"--time-format": "time", "--since": "since", "--until": "until"}
    valued |= {"-l": "level", "--level": "level"}
    flags = {"-x": "decode", "--decode": "decode", "-J": "json", "--json": "json", "-t": "notime"}
    rest = [letter for word in arguments for letter in split(word)]
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        if word in valued:
            if not equals and not rest:
                raise Refused(f"option '{word}' requires an argument")
            options[valued[word]] = value if equals else rest.pop(0)
        elif word in ("-T", "--ctime"):
            options["time"] = "ctime"
        elif word in flags:
            options[flags[word]] = ""
        elif word not in IGNORED:
            raise Refused(f"unrecognized option '{word}'\nTry 'dmesg --help' for more information.")
    return options


def split(word: str) -> list[str]:
    """Short options may be written together: -Tx."""
    together = re.fullmatch(r"-([A-Zac-kmo-zb]{2,})", word)
    return [f"-{letter}" for letter in together[1]] if together else [word]


def restricted() -> bool:
    """Whether this kernel keeps its log from unprivileged users."""
    try:
        with open("/proc/sys/kernel/dmesg_restrict", encoding="ascii") as stream:
            return stream.read().strip() == "1"
    except OSError:
        return False


def lines_of(node: state.Node, options: dict[str, str]) -> list[Line]:
    """All lines, oldest first, within --since, --until and --level."""
    boot = state.boot_time()
    lines = [
        Line(boot, NOTICE, "Simulated kernel log of the runbook sandbox: GPU events only."),
        Line(boot + 1, NOTICE, f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {node.driver}  (simulated)"),
    ]
    for row in node.kernel_log:
        lines += [Line(float(row["time"]), WARNING, part) for part in str(row["line"]).splitlines()]
    since = moment(options["since"]) if "since" in options else float("-inf")
    until = moment(options["until"]) if "until" in options else float("inf")
    levels = {LEVELS.index(word) for word in options.get("level", "").split(",") if word in LEVELS}
    chosen = [line for line in lines if since <= line.time <= until and (not levels or line.level in levels)]
    return sorted(chosen, key=lambda line: line.time)


def moment(word: str) -> float:
    """A time as dmesg takes it: a date with or without time, @epoch, now, today, -5min, '2 hours ago'."""
    text, now = word.strip(), time.time()
    midnight = time.mktime((*time.localtime(now)[:3], 0, 0, 0, 0, 0, -1))
    named = {"now": now, "today": midnight, "yesterday": midnight - 86400}
    if text in named:
        return named[text]
    if re.fullmatch(r"@\d+(\.\d+)?", text):
        return float(text[1:])
    relative = re.fullmatch(r"([-+]?)(\d+)\s*([a-z]+?)s?(\s+ago)?", text)
    if relative and relative[3] in UNITS_S:
        sign = -1 if relative[1] == "-" or relative[4] else 1
        return now + sign * int(relative[2]) * UNITS_S[relative[3]]
    zone = re.search(r"(Z|[-+]\d\d:?\d\d)$", text[10:])
    plain = re.sub(r"[.,]\d+$", "", text[: 10 + zone.start()] if zone else text).replace("T", " ")
    for form in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            parts = time.strptime(plain, form)
        except ValueError:
            continue
        return time.mktime(parts) if zone is None else utc(parts, zone[1])
    raise Refused(f'invalid time value "{word}"')


def utc(parts: time.struct_time, zone: str) -> float:
    """Seconds since the epoch of a time with a zone."""
    import calendar

    digits = zone.replace(":", "")
    offset_s = 0 if zone == "Z" else (int(digits[1:3]) * 60 + int(digits[3:5])) * 60
    return calendar.timegm(parts) - (-offset_s if digits[0] == "-" else offset_s)


def show(lines: list[Line], options: dict[str, str]) -> str:
    """The lines in the form that was asked for."""
    boot = state.boot_time()
    if "json" in options:
        rows = [{"pri": line.level, "time": round(max(0.0, line.time - boot), 6), "msg": line.text} for line in lines]
        return json.dumps({"dmesg": rows}, indent=3) + "\n"
    form = "notime" if "notime" in options else options.get("time", "")
    if form not in ("", "ctime", "iso", "notime", "raw", "delta", "reltime"):
        raise Refused(f"unknown time format: {form}")
    out = []
    for line in lines:
        level = f"kern  :{LEVELS[line.level]:<6}: " if "decode" in options else ""
        out.append(f"{level}{stamp(line.time, form, boot)}{line.text}\n")
    return "".join(out)


def stamp(moment_s: float, form: str, boot: float) -> str:
    """The time in front of a line."""
    if form == "notime":
        return ""
    if form == "iso":
        whole = time.localtime(moment_s)
        zone = time.strftime("%z", whole)
        micro = int(moment_s % 1 * 1_000_000)
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', whole)},{micro:06d}{zone[:3]}:{zone[3:]} "
    if form == "ctime":
        return f"[{time.ctime(moment_s)}] "
    return f"[{max(0.0, moment_s - boot):12.6f}] "
