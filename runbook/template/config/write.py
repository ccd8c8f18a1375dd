"""Write a value, a further key or the lack of one, so that only these bytes of a configuration file change."""

from __future__ import annotations

import json
import re

from runbook.template.config import yaml_file
from runbook.template.config.config_tree import (
    Config,
    Entry,
    Form,
    Leaf,
    MappingNode,
    ends_with,
    form_of,
    json_text,
    newline,
    wanted_form,
)
from runbook.template.text_files import CannotEdit, Change, Language, line_end, line_start

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def change_leaf(config: Config, leaf: Leaf, new: str) -> Change:
    """The replacement of a value where it stands."""
    where = f"{config.file.path}:{leaf.line}"
    if leaf.pinned or leaf.start < 0:
        raise CannotEdit(
            f"{'.'.join(leaf.path)} cannot be changed where it stands: {leaf.pinned or 'it is not written here'}",
            where=where, next_step="change it by hand",
        )
    _refuse_lines(new, where)
    text = _value(config, new, wanted_form(leaf, new), leaf.raw, flow=leaf.flow, where=where)
    lead = leaf.lead if leaf.start == leaf.end else b""
    return Change(leaf.start, leaf.end, lead + text.encode("utf-8"))


def _refuse_lines(new: str, where: str) -> None:
    if any(ord(letter) < 32 or letter in "\x7f\x85\u2028\u2029" for letter in new):
        raise CannotEdit("the new value holds a line end or a control character", where=where)


def _value(config: Config, new: str, form: Form, raw: str, *, flow: bool, where: str) -> str:
    language = config.language
    if language is Language.PYTHON:
        return _python(new, form, raw)
    if language is Language.TOML and form is Form.NULL:
        raise CannotEdit("TOML has no null", where=where, next_step="remove the key instead")
    if language is Language.TOML:
        if form is Form.STRING and raw[:1] == "'" and "'" not in new:
            return f"'{new}'"
        return json_text(_toml_number(new) if form is Form.NUMBER else new, form)
    if language is Language.JSON and form is Form.NUMBER:
        return _json_number(new, where)
    if language is not Language.YAML:
        return json_text(new, form)
    if form in (Form.BOOLEAN, Form.NULL):
        return new if raw in ("True", "False") and form is Form.BOOLEAN else json_text(new, form)
    if form is not Form.STRING:
        return new
    if raw[:1] == "'":
        return "'" + new.replace("'", "''") + "'"
    plain = yaml_file.is_bare_text(new) and form_of(new) is Form.STRING and raw[:1] != '"' and not (flow and " " in new)
    return new if plain else json_text(new, form)


def _python(new: str, form: Form, raw: str) -> str:
    if form is Form.BOOLEAN:
        return new.capitalize()
    if form is Form.NULL:
        return "None"
    if form is Form.LIST:
        words = {"true": "True", "false": "False", "null": "None"}
        return re.sub(r"\b(?:true|false|null)\b", lambda match: words[match[0]], new)
    if form is not Form.STRING:
        return new
    if raw[:1] == "'" and "'" not in new and "\\" not in new:
        return f"'{new}'"
    return json.dumps(new, ensure_ascii=False)


def _json_number(new: str, where: str) -> str:
    try:
        json.loads(new)
    except ValueError:
        raise CannotEdit(f"{new} is no number in JSON", where=where, next_step="write it with digits") from None
    return new


def _toml_number(new: str) -> str:
    return new.lstrip("+")


def add_key(config: Config, path: tuple[str, ...], new: str, spelling: str) -> list[Change]:
    """Write a key that is absent into the nearest mapping that is there. Raises `CannotEdit`."""
    mapping = _nearest(config, path, spelling)
    rest = path[_depth(config, mapping, path) :]
    return add_to_mapping(config, mapping, rest, new, spelling)


def add_to_mapping(
    config: Config, mapping: MappingNode, rest: tuple[str, ...], new: str, spelling: str
) -> list[Change]:
    where = f"{config.file.path}:{mapping.line}"
    _refuse_lines(new, where)
    if mapping.closed:
        raise CannotEdit(f"{spelling} cannot be added: {mapping.closed}", where=where, next_step="add it by hand")
    if any(part.isdecimal() for part in rest):
        raise CannotEdit(f"{spelling} names an element of a list that is not there", where=where)
    if config.language is Language.PYTHON:
        for part in rest[:1] if mapping.call or mapping.shape == "module" else ():
            if not part.isidentifier():
                raise CannotEdit(f"{part!r} is no name in Python", where=where)
    if mapping.shape == "module":
        return _at_the_end(config, rest, new, spelling, where)
    if mapping.shape == "brackets":
        return into_brackets(config, mapping, rest, new, where)
    if mapping.shape == "table":
        return _in_table(config, mapping, rest, new, where)
    return [_in_block(config, mapping, rest, new, where)]


def _depth(config: Config, mapping: MappingNode, path: tuple[str, ...]) -> int:
    """How many parts of the wanted path the mapping covers."""
    if not config.loose:
        return len(mapping.path)
    return next((size for size in range(len(path) - 1, 0, -1) if ends_with(mapping.path, path[:size])), 0)


def _nearest(config: Config, path: tuple[str, ...], spelling: str) -> MappingNode:
    where = f"{config.file.path}:1"
    best: list[MappingNode] = []
    depth = -1
    for mapping in config.mapping_nodes:
        covered = _depth(config, mapping, path)
        if config.loose:
            fits = covered > 0 if mapping.path else mapping.shape == "module" and len(path) == 1
        else:
            fits = mapping.path == path[:covered] and covered < len(path)
        if fits and covered > depth:
            best, depth = [mapping], covered
        elif fits and covered == depth:
            best.append(mapping)
    if config.loose and best and depth < len(path) - 1 and any(item.call for item in best):
        best = []
    if not best:
        raise CannotEdit(
            f"{spelling} is not set, and there is no place where it certainly belongs", where=where,
            next_step=f"add {spelling} by hand",
        )
    if len(best) > 1:
        lines = ", ".join(str(item.line) for item in best)
        raise CannotEdit(
            f"{spelling} could be added in several places (lines {lines})", where=f"{config.file.path}:{best[0].line}",
            next_step=f"add {spelling} by hand",
        )
    if best[0].shape != "module" and depth == 0 and config.loose:
        raise CannotEdit(f"{spelling} does not say where it belongs", where=where, next_step="add it by hand")
    return best[0]


def _key(config: Config, key: str, keyword: bool = False) -> str:
    if keyword:
        return key
    if config.language is Language.JSON or config.language is Language.PYTHON:
        return json.dumps(key, ensure_ascii=False)
    if config.language is Language.TOML:
        return key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
    return key if yaml_file.is_bare_text(key) and form_of(key) is Form.STRING else json.dumps(key, ensure_ascii=False)


def _nested(config: Config, mapping: MappingNode, rest: tuple[str, ...], value: str, colon: str) -> str:
    """`key: value`, and `key: {inner: value}` for the keys between that are missing too."""
    for key in reversed(rest[1:]):
        equals = " = " if config.language is Language.TOML else colon
        value = f"{{{_key(config, key)}{equals}{value}}}"
    sign = "=" if mapping.call else " = " if config.language is Language.TOML else colon
    return f"{_key(config, rest[0], mapping.call)}{sign}{value}"


def into_brackets(
    config: Config, mapping: MappingNode, rest: tuple[str, ...], new: str, where: str, form: Form | None = None
) -> list[Change]:
    """A further entry of `{…}` or `(…)`, laid out as its neighbours are."""
    data = config.data
    inside = data[mapping.start : mapping.end]
    compact = config.language is Language.JSON and b'": ' not in inside and b'":' in inside
    value = _value(config, new, form or form_of(new), "", flow=True, where=where)
    text = _nested(config, mapping, rest, value, ":" if compact else ": ").encode("utf-8")
    if not mapping.entries:
        if data[mapping.start + 1 : mapping.end - 1].strip():
            raise CannotEdit("the place holds only a comment", where=where, next_step="add the key by hand")
        return [Change(mapping.start + 1, mapping.end - 1, text)]
    last = mapping.entries[-1]
    start = max(line_start(data, last.start), mapping.start + 1)
    indent = data[start : last.start]
    if indent.strip() or start == mapping.start + 1:
        blank = b"," if compact or (len(mapping.entries) > 1 and not _blank(data, mapping)) else b", "
        return [Change(last.end, last.end, blank + text)]
    end = line_end(data, last.end)
    tail = re.fullmatch(rb"[ \t]*(,?)[ \t]*((?:#|//).*)?", data[last.end : end])
    eol = newline(data, last.end)
    if tail is None or not tail[2]:
        return [Change(last.end, last.end, b"," + eol + indent + text)]
    if tail[1]:
        return [Change(end, end, eol + indent + text + b",")]
    return [Change(last.end, last.end, b","), Change(end, end, eol + indent + text)]


def _blank(data: bytes, mapping: MappingNode) -> bool:
    """Whether the entries are set apart by blanks."""
    before, last = mapping.entries[-2], mapping.entries[-1]
    return data[before.end : last.start].strip() != data[before.end : last.start]


def _in_block(config: Config, mapping: MappingNode, rest: tuple[str, ...], new: str, where: str) -> Change:
    """A line of its own in a YAML mapping: behind its last one-line entry, else in front of its first."""
    data = config.data
    first = mapping.entries[0]
    column = first.start - line_start(data, first.start)
    if data[first.start - column : first.start].startswith(b"\xef\xbb\xbf"):
        column -= 3
    indent = b" " * column
    eol = newline(data, first.start)
    block = _lines(config, rest, new, column, where)
    for entry in reversed(mapping.entries):
        end = line_end(data, entry.end)
        if entry.simple and re.fullmatch(rb"[ \t]*(?:#.*)?", data[entry.end : end]):
            return Change(end, end, eol + indent + block)
    return Change(first.start, first.start, block + eol + indent)


def _lines(config: Config, rest: tuple[str, ...], new: str, column: int, where: str) -> bytes:
    """`key:` over `inner: value`, for the keys between that are missing too; the first line without its indent."""
    lines = []
    unit = _unit(config)
    for depth, key in enumerate(rest):
        tail = f" {_value(config, new, form_of(new), '', flow=False, where=where)}" if depth == len(rest) - 1 else ""
        lines.append(f"{' ' * (column + depth * unit if depth else 0)}{_key(config, key)}:{tail}".encode())
    return newline(config.data, 0).join(lines)


def below_empty(config: Config, leaf: Leaf, rest: tuple[str, ...], new: str, where: str) -> Change:
    """Lines below a YAML key that has no value yet."""
    _refuse_lines(new, where)
    data = config.data
    start = leaf.entry[0]
    column = start - line_start(data, start)
    end = line_end(data, leaf.end)
    if start < 0 or not re.fullmatch(rb"[ \t]*(?:#.*)?", data[leaf.end : end]):
        raise CannotEdit(f"there is no room below {'.'.join(leaf.path)}", where=where, next_step="add it by hand")
    column += _unit(config)
    return Change(end, end, newline(data, end) + b" " * column + _lines(config, rest, new, column, where))


def _unit(config: Config) -> int:
    """The file's own step of indentation."""
    for mapping in config.mapping_nodes:
        if mapping.shape == "block" and mapping.path:
            start = line_start(config.data, mapping.start)
            column = mapping.start - start
            if column and not config.data[start : mapping.start].strip() and len(mapping.path) == 1:
                return column
    return 2


def _in_table(config: Config, mapping: MappingNode, rest: tuple[str, ...], new: str, where: str) -> list[Change]:
    data = config.data
    eol = newline(data, mapping.start)
    value = _value(config, new, form_of(new), "", flow=False, where=where)
    same = _beside(config, mapping, rest)
    if len(rest) > 1 and same is None:
        if any(part.isdecimal() for part in mapping.path):
            raise CannotEdit(
                "the table would have to be added inside an array of tables", where=where, next_step="add it by hand"
            )
        header = ".".join(_key(config, part) for part in (*mapping.path, *rest[:-1]))
        front = b"" if not data or data.endswith(b"\n") else eol
        gap = eol if data.strip() else b""
        text = f"[{header}]".encode() + eol + f"{_key(config, rest[-1])} = {value}".encode() + eol
        return [Change(len(data), len(data), front + gap + text)]
    line = f"{'.'.join(_key(config, part) for part in rest)} = {value}".encode()
    entry = same or (mapping.entries[-1] if mapping.entries else None)
    if entry is not None:
        end = line_end(data, entry.end)
        start = line_start(data, entry.start)
        indent = data[start : entry.start] if not data[start : entry.start].strip() else b""
        return [Change(end, end, eol + indent + line)]
    if mapping.path:
        end = line_end(data, mapping.start)
        return [Change(end, end, eol + line)]
    return [Change(0, 0, line + eol + (eol if data else b""))]


def _beside(config: Config, mapping: MappingNode, rest: tuple[str, ...]) -> Entry | None:
    """The last entry that is written with dots and shares all but the last part of the key."""
    front = ".".join(rest[:-1])
    found = [item for item in mapping.entries if front and item.key.rsplit(".", 1)[0] == front and "." in item.key]
    return found[-1] if found else None


def _at_the_end(config: Config, rest: tuple[str, ...], new: str, spelling: str, where: str) -> list[Change]:
    """A further assignment behind the last one of a module that holds nothing but assignments."""
    data = config.data
    if len(rest) != 1:
        raise CannotEdit(f"{spelling} does not say where it belongs", where=where, next_step="add it by hand")
    eol = newline(data, len(data))
    front = b"" if not data or data.endswith(b"\n") else eol
    value = _value(config, new, form_of(new), "", flow=False, where=where)
    return [Change(len(data), len(data), front + f"{rest[0]} = {value}".encode() + eol)]


def remove_leaf(config: Config, leaf: Leaf) -> Change:
    """Take a key out, with its line where it has one."""
    data = config.data
    where = f"{config.file.path}:{leaf.line}"
    start, end = leaf.entry
    mapping = next(
        (one for one in config.mapping_nodes for entry in one.entries if (entry.start, entry.end) == leaf.entry), None
    )
    if leaf.pinned or start < 0 or leaf.override_target is not None:
        raise CannotEdit(
            f"{'.'.join(leaf.path)} cannot be taken out: {leaf.pinned or 'it has no entry of its own'}", where=where,
            next_step="remove it by hand",
        )
    begin, stop = line_start(data, start), line_end(data, end)
    alone = not data[begin:start].strip()
    if mapping is None or mapping.shape in ("table", "block", "module"):
        only = mapping is not None and mapping.shape == "block" and len(mapping.entries) == 1
        if not alone or only or not re.fullmatch(rb"[ \t]*(?:#.*)?", data[end:stop]):
            raise CannotEdit(
                f"{'.'.join(leaf.path)} does not stand on a line of its own", where=where, next_step="remove it by hand"
            )
        after = data.find(b"\n", stop)
        if after < 0:
            before = data[:begin]
            cut = len(before) - (2 if before.endswith(b"\r\n") else 1 if before.endswith(b"\n") else 0)
            return Change(cut, stop, b"")
        return Change(begin, after + 1, b"")
    at = next(index for index, entry in enumerate(mapping.entries) if (entry.start, entry.end) == leaf.entry)
    if b"#" in data[start : mapping.end] or b"//" in data[start : mapping.end]:
        raise CannotEdit("comments stand beside the key", where=where, next_step="remove it by hand")
    if at + 1 < len(mapping.entries):
        return Change(start, mapping.entries[at + 1].start, b"")
    if at:
        return Change(mapping.entries[at - 1].end, end, b"")
    comma = re.match(rb"\s*,", data[end : mapping.end])
    return Change(start, end + (comma.end() if comma else 0), b"")
