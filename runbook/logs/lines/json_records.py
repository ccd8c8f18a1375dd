"""A line that is one JSON object of a logger: its message, its traceback, and what its fields say of the speaker.

Forms: structlog and python-json-logger, loguru's `serialize`, Elastic's common schema, Docker's json-file, journald's
`-o json`, and scripts that print one object a step. An object that holds a sample of a data set is no record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from runbook.model.units import NodeName

LONGEST_CHARACTERS = 64 << 10
"""Of a longer record only so much is read."""
LINES_AT_MOST = 400
"""Of more, the first few and the last: an exception stands behind its frames."""
_FIRST_LINES = 100
_FIELDS_AT_MOST = 200
_MESSAGES = ("message", "msg", "event", "log", "MESSAGE")
_TRACEBACKS = ("exc_info", "exception", "stack_trace", "stacktrace", "traceback", "exc_text", "error.stack_trace")
_IN_AN_ERROR = ("stack_trace", "stacktrace", "traceback", "stack", "message")
_LEVELS = ("level", "levelname", "severity", "log.level", "lvl")
_TIMES = ("time", "timestamp", "ts", "@timestamp", "asctime", "datetime", "__REALTIME_TIMESTAMP")
_RANKS = ("rank", "global_rank", "world_rank", "RANK")
_LOCAL_RANKS = ("local_rank", "LOCAL_RANK")
_HOSTS = ("host", "hostname", "node", "nodename", "_HOSTNAME")
_PIDS = ("pid", "process", "process_id", "_PID")
_STEPS = ("step", "global_step", "iteration", "iter")
_OF_LOGGERS = frozenset((*_LEVELS, *_TIMES, *_STEPS, "stream", "logger", "_TRANSPORT"))
"""An object with one of these is a record even without a message."""
_OF_SPEAKERS = frozenset((*_RANKS, *_LOCAL_RANKS, *_HOSTS, *_PIDS))
_OF_SAMPLES = frozenset((
    "prompt", "prompts", "response", "responses", "completion", "completions", "role", "messages", "conversations",
    "question", "answer", "instruction", "input", "inputs", "output", "outputs", "label", "sample", "generation",
    "chosen", "rejected", "reward", "score", "content", "tool_calls",
))
"""With words behind it: a number of that name (a mean reward) is a measurement."""
_MILD = re.compile(r"(?i:trace|debug|info|notice|warn|warning)$")
_ENDS = re.compile(r"\r?\n")
_EARLIEST_S, _LATEST_S = 1e9, 4e9
_RANKS_BELOW = 1_000_000
_HOST = re.compile(r"[A-Za-z0-9][\w.-]{0,252}$")


@dataclass(frozen=True, slots=True)
class Record:
    """What one object says. `lines` are never empty; where it holds no words, its own text is the only one."""

    lines: tuple[str, ...]
    rank: int | None = None
    local_rank: int | None = None
    node: NodeName | None = None
    """As written, domain and all."""
    pid: int | None = None
    stamp: str = ""
    time_s: float | None = None
    level: str = ""


def record_of(text: str) -> Record | None:
    """The record that a line's own text is; None where it is none. One that was cut counts as far as it goes. Linear
    in the text's length, of which 64 KiB are read."""
    if not text.startswith("{") or text[1:2] not in ('"', " "):
        return None
    fields = _fields(text[:LONGEST_CHARACTERS])
    if not fields or any(isinstance(fields[name], str | list | dict) for name in _OF_SAMPLES & fields.keys()):
        return None
    logged = not _OF_LOGGERS.isdisjoint(fields) or isinstance(fields.get("record"), dict)
    lines = list(_lines(fields, logged or not _OF_SPEAKERS.isdisjoint(fields)))
    if not lines and not logged:
        return None
    lines = lines or [text]
    if len(lines) > LINES_AT_MOST:
        lines = lines[:_FIRST_LINES] + lines[_FIRST_LINES - LINES_AT_MOST:]
    level = _first_text(fields, _LEVELS)
    stamp, time_s = _time(fields)
    host = _first_text(fields, _HOSTS)
    return Record(
        tuple(lines), _first_number(fields, _RANKS), _first_number(fields, _LOCAL_RANKS),
        NodeName(host) if _HOST.match(host) and any(one.isalpha() for one in host) else None,
        _first_number(fields, _PIDS), stamp, time_s, level[:20].upper(),
    )


def _fields(text: str) -> Mapping[str, object]:
    """The object's fields by name; those in front of the place where it is cut or broken."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return dict(_in_front_of_the_cut(text))
    return cast("Mapping[str, object]", whole) if isinstance(whole, dict) and len(whole) <= _FIELDS_AT_MOST else {}


def _in_front_of_the_cut(text: str) -> Iterator[tuple[str, object]]:
    read = json.JSONDecoder().raw_decode
    position = 1
    for _ in range(_FIELDS_AT_MOST):
        try:
            name, position = read(text, _behind(text, position))
            position = _behind(text, position)
            if not isinstance(name, str) or text[position:position + 1] != ":":
                return
            position = _behind(text, position + 1)
        except (ValueError, RecursionError):
            return
        try:
            value, position = read(text, position)
        except (ValueError, RecursionError):
            if text[position:position + 1] == '"':  # the string in which it breaks off
                yield name, _cut_string(text[position:])
            return
        yield name, value
        position = _behind(text, position)
        if text[position:position + 1] != ",":
            return
        position += 1


def _behind(text: str, position: int) -> int:
    while text[position:position + 1] == " ":
        position += 1
    return position


def _cut_string(written: str) -> str:
    """A string without its end, and without an escape that is cut itself."""
    for shorter in range(7):
        try:
            value = json.loads(f'{written[:len(written) - shorter]}"')
        except ValueError:
            continue
        return value if isinstance(value, str) else ""
    return ""


def _lines(fields: Mapping[str, object], logged: bool) -> Iterator[str]:
    """The message's lines, then those of the exception."""
    level = _first_text(fields, _LEVELS)
    names: tuple[str, ...] = (*_MESSAGES, "text") if "record" in fields or level else _MESSAGES
    message = _first_text(fields, names)
    raised = next((words for name in _TRACEBACKS if (words := _exception(fields.get(name)))), "")
    if not raised and (message or level) and not _MILD.match(level):
        raised = next((words for name in ("error", "err", "stack") if (words := _exception(fields.get(name)))), "")
    if not logged and not raised and "\n" in message.rstrip("\n"):
        return  # many lines and nothing of a logger: whose text it is nobody knows
    if message.strip():
        yield from _ENDS.split(message.rstrip("\r\n"))
    if raised.strip() and raised.strip() not in message:
        yield from _ENDS.split(raised.rstrip("\r\n"))


def _exception(value: object) -> str:
    """An exception as the text that Python prints."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        found = next((one for name in _IN_AN_ERROR if isinstance(one := value.get(name), str) and one), "")
        kind = next((one for name in ("type", "class", "name") if isinstance(one := value.get(name), str)), "")
        return f"{kind}: {found}" if kind and found and "\n" not in found and kind not in found else found
    if not isinstance(value, list):
        return ""
    if all(isinstance(one, str) for one in value):
        return "\n".join(one.rstrip("\n") for one in cast("list[str]", value))
    return "\n".join(_structured(value))


def _structured(chain: list[object]) -> Iterator[str]:
    """structlog's `dict_tracebacks`: a list of exceptions, the outermost first, with their frames."""
    for number, one in enumerate(reversed(chain[:8])):
        if not isinstance(one, dict) or not isinstance(one.get("exc_type"), str):
            continue
        if number:
            yield "The above exception was the direct cause of the following exception:"
        yield "Traceback (most recent call last):"
        frames = one.get("frames")
        for each in frames[:LINES_AT_MOST] if isinstance(frames, list) else ():
            if isinstance(each, dict):
                yield f'  File "{each.get("filename")}", line {each.get("lineno")}, in {each.get("name")}'
                if isinstance(each.get("line"), str) and each["line"].strip():
                    yield f"    {each['line'].strip()}"
        yield f"{one['exc_type']}: {one.get('exc_value', '')}"


def _first_text(fields: Mapping[str, object], names: tuple[str, ...]) -> str:
    return next((value for name in names if isinstance(value := fields.get(name), str) and value), "")


def _first_number(fields: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    """The first that is a whole number, written as one or as text."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, str) and len(value) <= 12 and value.isascii() and value.isdecimal():
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and (
            0 <= value < (_RANKS_BELOW if names in (_RANKS, _LOCAL_RANKS) else 10**12)
        ):
            return value
    return None


def _time(fields: Mapping[str, object]) -> tuple[str, float | None]:
    """A stamp as text, or as epoch seconds where a number (of seconds, or of thousandths and less) is one."""
    for name in _TIMES:
        value = fields.get(name)
        if isinstance(value, str) and value.isascii() and value.replace(".", "", 1).isdecimal() and len(value) <= 24:
            value = float(value)
        if isinstance(value, str) and value:
            return value[:60], None
        if isinstance(value, int | float) and not isinstance(value, bool):
            for thousands in range(4):
                if _EARLIEST_S <= value / 1000**thousands <= _LATEST_S:
                    return "", value / 1000**thousands
    return "", None
