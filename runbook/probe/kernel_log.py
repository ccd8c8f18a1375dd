"""The kernel log of the node: lines on GPUs and on the OOM killer, with times, and how far back it reaches.

Sources: the kernel's ring buffer as records of /dev/kmsg, or through `dmesg` where those may not be read; the journal
(kept across boots where the node keeps one); where none may be read, a syslog file. A record of /dev/kmsg is one
however many line breaks a user gave to the kernel (a mount option holds what its user likes): the kernel writes them
escaped there, while the text of `dmesg` and of the journal shows a line of its own for each. So only records of
/dev/kmsg are whole, and a record with a line break says so. Any user of the node can write a line into syslog.
"""

import calendar
import json
import os
import re
import stat
import subprocess
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Tuple

from .worker import Send, clean, unknown

WANTED = re.compile(r"NVRM: |nvidia-nvswitch\d+: |oom-kill:|Out of memory: |emory cgroup out of memory")
LINE_LIMIT = 4000
"""The newest lines of a source that are kept."""
LINE_BYTES = 1 << 20
"""Of a source's lines as JSON: the whole document has to fit into what an SSH session reads (4 MiB)."""
SYSLOG_FILES = ("var/log/kern.log", "var/log/messages", "var/log/syslog")
SYSLOG_BYTES = 64 << 20
"""Of a syslog's end; what stands before is not read, and the window says so."""
_DAY_S = 86400

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)[.,]?(\d*)(Z|[+-]\d\d:?\d\d)\s+")
_CTIME = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\]\s+")
_UNIX = re.compile(r"(\d{9,11}\.\d+)\s+")
_BOOT = re.compile(r"\[\s*(\d+\.\d+)\]\s")
KMSG = "/dev/kmsg"
_KMSG_NUMBER = (1, 11)
"""Of the device: a container's /dev/kmsg may be a link to a console."""
_RECORD = re.compile(r"(\d{1,10}),\d{1,20},(\d{1,20}),[^;]{0,400};(.*)$")
"""Level and facility, sequence, microseconds since the start, flags; lines that begin with a space are no message."""
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_OLD_SYSLOG = re.compile(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)\s+")

Stamp = Tuple[Optional[float], str]
Part = Dict[str, Any]


def read(send: Send, root: str, since_s: Optional[float], limit_s: float, kmsg: str = KMSG) -> None:
    """Say one record a source, each with `source` and either `unknown` or `lines`, `covers_since_s`,
    `covers_until_s`, `dropped`, `any_user_can_write`, `whole_records`."""
    if root != "/":
        send({"asking": "syslog"})
        _syslog(send, root)
        return
    send({"asking": "kmsg"})
    records = _kmsg(kmsg)
    readable = ["unknown" not in records]
    if readable[0]:
        send(dict(records, source="kmsg"))
    # dmesg tells the same records again, as text.
    sources = () if readable[0] else (("dmesg", DMESG_COMMANDS),)
    for name, commands in (*sources, ("journal", _journal_commands(since_s))):
        send({"asking": name})
        record = _journal(commands, limit_s) if name == "journal" else _dmesg(commands, limit_s)
        readable.append("unknown" not in record)
        send(dict(record, source=name))
    if not readable[0]:
        send(dict(records, source="kmsg"))
    if not any(readable):
        send({"asking": "syslog"})
        _syslog(send, root)


DMESG_COMMANDS = (("dmesg", "--time-format", "iso"), ("dmesg", "-T"), ("dmesg",))
"""Newest first: an old dmesg knows neither option, and BusyBox's none at all."""


def window(sources: List[Part]) -> Part:
    """Of all sources together: what the log covers, from the one that reaches back furthest."""
    known = [each for each in sources if "unknown" not in each and isinstance(each["covers_since_s"], float)]
    if not known:
        first = next((each["unknown"] for each in sources if "unknown" in each), "no line has a time that can be read")
        return unknown(first)
    best = min(known, key=lambda each: float(each["covers_since_s"]))
    return {"since_s": best["covers_since_s"], "until_s": best["covers_until_s"], "source": best["source"]}


def _kmsg(path: str) -> Part:
    """The ring buffer, record by record. Only what the kernel itself has said: root may write there, too."""
    try:
        reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return unknown("%s cannot be read: %s" % (path, error.strerror or error))
    boot_s = _boot_time_s()

    def stamp(line: str) -> Stamp:
        match = _RECORD.match(line)
        if match is None or int(match.group(1)) >> 3:
            return None, ""
        return (None if boot_s is None else boot_s + int(match.group(2)) / 1e6), match.group(3)

    try:
        found = os.fstat(reading)
        number = (os.major(found.st_rdev), os.minor(found.st_rdev))
        if path == KMSG and not (stat.S_ISCHR(found.st_mode) and number == _KMSG_NUMBER):
            return unknown("%s is not the kernel's log here" % path)
        record = _kept(_records(reading), stamp, None)
    except OSError as error:
        return unknown("%s cannot be read: %s" % (path, error.strerror or error))
    finally:
        os.close(reading)
    if not record.pop("seen"):
        return unknown("%s holds no record" % path)
    for line in record["lines"]:
        plain = _ESCAPED.sub(_unescaped, line["line"].encode("utf-8"))
        if b"\n" in plain or b"\r" in plain:
            line["line_break"] = True
        line["line"] = clean(plain.decode("utf-8", "replace"), 1000)
    return dict(record, whole_records=True)


def _unescaped(match: Any) -> bytes:
    return bytes((int(match.group(1), 16),))


def _records(reading: int) -> Iterator[str]:
    """A record a line, as the device gives them: one by one, until there is none."""
    rest = b""
    while True:
        try:
            block = os.read(reading, 1 << 16)
        except BlockingIOError:
            break
        except BrokenPipeError:  # what was next has been overwritten meanwhile
            continue
        if not block:
            break
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line[:4096].decode("utf-8", "replace")
    if rest:
        yield rest[:4096].decode("utf-8", "replace")


def _journal_commands(since_s: Optional[float]) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    base = ("journalctl", "-q", "--no-pager", "-o", "short-unix", "_TRANSPORT=kernel")
    since = ("-b",) if since_s is None else ("--since", "@%d" % (since_s - _DAY_S))
    return base, (*base, *since)


def _journal(commands: Tuple[Tuple[str, ...], ...], limit_s: float) -> Part:
    """The first line of all tells how far it reaches; of the rest only what can matter is read."""
    try:
        oldest = next((_stamp(line)[0] for line in _lines(commands[0], limit_s, [])), None)
    except (OSError, _Late) as error:
        return unknown("the journal cannot be read: %s" % error)
    return _read(commands[1], limit_s, "the journal", oldest)


def _dmesg(commands: Tuple[Tuple[str, ...], ...], limit_s: float) -> Part:
    record = unknown("dmesg was not asked")
    for command in commands:
        record = _read(command, limit_s, "dmesg", None)
        if "unknown" not in record or "may not be read" in record["unknown"] or "in time" in record["unknown"]:
            break
    return record


def _read(command: Tuple[str, ...], limit_s: float, what: str, oldest_s: Optional[float]) -> Part:
    failure: List[str] = []
    try:
        record = _kept(_lines(command, limit_s, failure), _stamp, oldest_s)
    except OSError as error:
        return unknown("%s cannot be read: %s" % (what, error.strerror or error))
    except _Late:
        return unknown("%s did not come in time" % what)
    if failure and not record["seen"]:
        words = failure[0]
        if "not permitted" in words or "ermission" in words:
            return unknown("%s may not be read by this user (kernel.dmesg_restrict=1 needs root)" % what)
        return unknown("%s cannot be read: %s" % (what, words))
    if not record["seen"] and oldest_s is None:
        return unknown("%s has no line, or this user may not read it" % what)
    del record["seen"]
    return record


def _kept(lines: Iterator[str], stamp: Callable[[str], Stamp], oldest_s: Optional[float]) -> Part:
    """The newest wanted lines. When some were dropped, the log covers no more than what was kept."""
    kept: Deque[Part] = deque(maxlen=LINE_LIMIT)
    dropped = seen = 0
    newest_s: Optional[float] = None
    for line in lines:
        time_s, rest = stamp(line)
        seen += 1
        if time_s is not None:
            oldest_s = time_s if oldest_s is None else min(oldest_s, time_s)
            newest_s = time_s if newest_s is None else max(newest_s, time_s)
        if WANTED.search(rest):
            dropped += len(kept) == LINE_LIMIT
            kept.append({"time_s": time_s, "line": clean(rest, 1000)})
    size = sum(_size(each) for each in kept)
    while size > LINE_BYTES:
        size -= _size(kept.popleft())
        dropped += 1
    covers = oldest_s
    if dropped:
        times = [each["time_s"] for each in kept if each["time_s"] is not None]
        covers = min(times) if times else None
    return {
        "lines": list(kept), "dropped": dropped, "seen": seen, "any_user_can_write": False,
        "whole_records": False,
        "covers_since_s": unknown("no line has a time that can be read") if covers is None else float(covers),
        "covers_until_s": time.time() if newest_s is not None or oldest_s is not None else None,
    }


def _size(record: Part) -> int:
    return len(json.dumps(record["line"])) + 50


class _Late(Exception):
    """A command had not ended when its time was up."""


def _lines(command: Tuple[str, ...], limit_s: float, failure: List[str]) -> Iterator[str]:
    """A command's lines, at most for `limit_s`. Its first words of complaint go to `failure` when it fails."""
    environment = dict(os.environ, LC_ALL="C", PATH=os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin")
    limited = command
    for folder in environment["PATH"].split(":"):
        if os.access(os.path.join(folder, "timeout"), os.X_OK):
            limited = ("timeout", "-k", "1", "%d" % max(1, limit_s), *command)
            break
    process = subprocess.Popen(
        limited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    if process.stdout is None or process.stderr is None:
        return
    ended = False
    try:
        for line in process.stdout:
            yield line[:4096].decode("utf-8", "replace").rstrip("\n")
        words = process.stderr.read(2000).decode("utf-8", "replace").strip()
        status = process.wait()
        ended = True
        if status == 124 or status == 137:
            raise _Late("no answer within %d s" % max(1, limit_s))
        if status:
            failure.append(clean(words.split("\n")[0], 160) or "status %d" % status)
    finally:
        if not ended:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()


def _syslog(send: Send, root: str) -> None:
    """The first file that can be read, and the one before its last rotation. Older ones are compressed as a rule."""
    refusals: List[str] = []
    for name in SYSLOG_FILES:
        path = os.path.join(root, name)
        try:
            lines = _tail(path)
        except OSError as error:
            refusals.append("/%s: %s" % (name, error.strerror))
            continue
        stamp = _SyslogStamp(os.stat(path).st_mtime)
        record = _kept(iter(lines), stamp, None)
        if not record.pop("seen"):
            refusals.append("/%s has no line of the kernel" % name)
            continue
        send(dict(record, source="syslog", any_user_can_write=True, file="/" + name))
        return
    send(dict(unknown("no syslog can be read: " + "; ".join(refusals)), source="syslog"))


def _tail(path: str) -> List[str]:
    """The kernel's lines of the end of a file and of its last rotation."""
    found: List[str] = []
    for each in (path + ".1", path):
        try:
            handle = open(each, "rb")
        except OSError:
            if each == path:
                raise
            continue
        with handle:
            size = os.fstat(handle.fileno()).st_size
            handle.seek(max(0, size - SYSLOG_BYTES))
            if size > SYSLOG_BYTES:
                handle.readline()
                found = []
            for line in handle:
                if b"kernel:" in line[:200]:
                    found.append(line[:4096].decode("utf-8", "replace").rstrip("\n"))
                    if len(found) > 400000:
                        del found[:200000]
    return found


class _SyslogStamp:
    """Times of syslog lines. The old form has no year: it is the one that makes the line no newer than the file."""

    def __init__(self, file_time_s: float) -> None:
        self._file_time_s = file_time_s
        self._year = time.localtime(file_time_s).tm_year

    def __call__(self, line: str) -> Stamp:
        rest = line.partition("kernel:")[2].strip()
        inner = _BOOT.match(rest)
        rest = rest[inner.end():] if inner else rest
        match = _ISO.match(line)
        if match:
            return _iso(match), rest
        match = _OLD_SYSLOG.match(line)
        if not match or match.group(1) not in _MONTHS:
            return None, rest
        month, day = _MONTHS.index(match.group(1)) + 1, int(match.group(2))
        hour, minute, second = (int(match.group(number)) for number in (3, 4, 5))
        for year in (self._year, self._year - 1):
            try:
                moment = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
            except (ValueError, OverflowError):
                continue
            if moment <= self._file_time_s + _DAY_S:
                return moment, rest
        return None, rest


def _stamp(line: str) -> Stamp:
    """Epoch seconds and the rest of a line of `journalctl -o short-unix` or of any form of `dmesg`."""
    match = _UNIX.match(line)
    if match:
        return float(match.group(1)), line[match.end():].partition("kernel: ")[2] or line[match.end():]
    match = _ISO.match(line)
    if match:
        return _iso(match), line[match.end():]
    match = _CTIME.match(line)
    if match and match.group(1) in _MONTHS:
        day, hour, minute, second, year = (int(match.group(number)) for number in (2, 3, 4, 5, 6))
        try:
            month = _MONTHS.index(match.group(1)) + 1
            return time.mktime((year, month, day, hour, minute, second, 0, 0, -1)), line[match.end():]
        except (ValueError, OverflowError):
            return None, line[match.end():]
    match = _BOOT.match(line)
    if match:
        boot_s = _boot_time_s()
        return (None if boot_s is None else boot_s + float(match.group(1))), line[match.end():]
    return None, line


def _iso(match: Any) -> Optional[float]:
    year, month, day, hour, minute, second = (int(match.group(number)) for number in range(1, 7))
    zone = match.group(8)
    offset_s = 0
    if zone != "Z":
        digits = zone[1:].replace(":", "")
        offset_s = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1 if zone[0] == "-" else 1)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    whole = calendar.timegm((year, month, day, hour, minute, second, 0, 0, 0))
    return whole - offset_s + float("0." + (match.group(7) or "0"))


def _boot_time_s() -> Optional[float]:
    try:
        with open("/proc/uptime", "rb") as handle:
            return time.time() - float(handle.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
