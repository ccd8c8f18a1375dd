"""Change or remove a value where it is written: at its variable if that serves nothing else, else where it is used."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.model.template import Edit, SettingKind
from runbook.template.bash import overrides, runtime_env
from runbook.template.bash.options import Occurrence
from runbook.template.bash.quoting import is_plain, written
from runbook.template.bash.script import Script
from runbook.template.bash.syntax import line_of
from runbook.template.bash.words import Quote, Token, Use, span_of, text_of
from runbook.template.errors import CannotEdit
from runbook.template.splices import Change


def change_value(script: Script, occurrence: Occurrence, new: str) -> tuple[Change, str]:
    """The one replacement that gives the parameter its new value, and a remark for the person ("" for none)."""
    where = f"{script.file.path}:{occurrence.line}"
    if occurrence.directive is not None:
        return _directive_value(script, occurrence, new, where)
    if occurrence.comma_ends and "," in new:
        raise CannotEdit(
            f"{occurrence.spelling} stands in a list of --export, where a comma ends a value; the new value has one",
            where=where,
            next_step=f"export {occurrence.spelling} in the script and name it in --export without a value",
        )
    new = _encoded(occurrence, new, where)
    value = occurrence.value
    chain = value[0].uses[occurrence.level :] if value else ()
    uniform = all(atom.uses[occurrence.level :] == chain for atom in value)
    outside = value[0].uses[: occurrence.level] if value else ()
    if value and uniform:
        depth = _deepest(script, chain)
        span = span_of(value)
        if depth == len(chain) and span is not None:
            text = written(new, value[0].quote, (*outside, *chain), where)
            remark = _remark(script, chain)
            return Change(*span, text), remark
        if depth == len(chain) and chain:
            depth -= 1
        if depth < len(chain) and chain[depth].start >= 0:
            use = chain[depth]
            quote = _quote_at(occurrence, use, depth)
            text = written(new, quote, (*outside, *chain[:depth]), where)
            return Change(use.start, use.end, text), _used_elsewhere(script, use)
    if occurrence.site[0] >= 0 and (occurrence.value_token is not None or not value or occurrence.option is None):
        if occurrence.quote is Quote.BARE:
            return Change(*occurrence.site, written(new, Quote.BARE, outside, where)), ""
        if is_plain(new):
            return Change(*occurrence.site, new.encode()), ""
    rest = _rest_of_word(occurrence)
    if rest is not None:
        return Change(*rest, written(new, Quote.BARE, outside, where)), ""
    raise CannotEdit(
        f"the value of {occurrence.spelling} is put together from several pieces",
        where=where, next_step=f"write the value of {occurrence.spelling} as one word, then try again",
    )


def _encoded(occurrence: Occurrence, new: str, where: str) -> str:
    """The value as what reads it after the shell wants it."""
    if occurrence.encoding == "json":
        return runtime_env.encoded(new)
    if not occurrence.encoding:
        return new
    text = overrides.written(
        overrides.like(text_of(occurrence.value), new), inside_quotes=occurrence.encoding == "hydra, quoted"
    )
    if text is None:
        raise CannotEdit(
            f"the value {new!r} cannot be written for Hydra for certain", where=where, next_step="set it by hand"
        )
    return text


def remove(script: Script, edit: Edit, occurrence: Occurrence) -> Change:
    """Take the parameter out."""
    where = f"{script.file.path}:{occurrence.line}"
    if occurrence.directive is not None:
        directive = occurrence.directive
        start, end = directive.start, directive.end
        if directive.alone:
            start = script.data.rfind(b"\n", 0, start) + 1
            end = _line_end(script.data, end) + 1
        return Change(start, min(end, len(script.data)), b"")
    if edit.kind is SettingKind.ENVIRONMENT:
        start = script.data.rfind(b"\n", 0, occurrence.site[0]) + 1
        end = _line_end(script.data, occurrence.site[1])
        if occurrence.encoding:
            raise CannotEdit(
                f"{occurrence.spelling} stands in JSON on a command line", where=where, next_step="remove it by hand"
            )
        pattern = rb"[ \t]*export[ \t]+" + re.escape(occurrence.spelling.encode()) + rb"=\S*[ \t]*"
        if occurrence.site[0] < 0 or not re.fullmatch(pattern, script.data[start:end]):
            raise CannotEdit(
                f"{occurrence.spelling} does not stand on a line of its own", where=where, next_step="remove it by hand"
            )
        return Change(start, min(end + 1, len(script.data)), b"")
    option = occurrence.option
    if option is None or option.start < 0 or option.quote is Quote.NESTED:
        raise CannotEdit(
            f"{occurrence.spelling} stands in text that is read twice", where=where, next_step="remove it by hand"
        )
    end = _value_end(option, occurrence)
    line_rest = script.data[end : _line_end(script.data, end)]
    if option.quote is Quote.BARE and re.fullmatch(rb"[ \t]*(?:\\|#.*)?", line_rest):
        before = re.search(rb"(?:[ \t\n]|\\\n)*\Z", script.data[: option.start])
        return Change(before.start() if before else option.start, end, b"")
    after = re.match(rb"[ \t]*", script.data[end:])
    return Change(option.start, end + (after.end() if after else 0), b"")


def _value_end(option: Token, occurrence: Occurrence) -> int:
    token = occurrence.value_token
    if token is None:
        return option.end
    if token.level != option.level or token.end < option.end:
        raise CannotEdit(
            f"{occurrence.spelling} and its value do not stand together", where=f"line {option.line}",
            next_step="remove it by hand",
        )
    return token.end


def _rest_of_word(occurrence: Occurrence) -> tuple[int, int] | None:
    """What follows the `=` of `--option=…` in its word, where the option itself is written without quotes."""
    token = occurrence.option
    if token is None or occurrence.value_token is not None or token.quote is not Quote.BARE:
        return None
    sign = token.atoms[len(occurrence.spelling)]
    if sign.quote is not Quote.BARE or len(sign.uses) != token.level or sign.end < 0:
        return None
    return sign.end, token.end


def _deepest(script: Script, chain: Sequence[Use]) -> int:
    """How far towards the literal an edit may go: past each variable that nothing else uses."""
    spans = {(use.start, use.end) for use in chain}
    for depth, use in enumerate(chain):
        if not use.name.isidentifier() or _other_uses(script, use.name, spans):
            return depth
        if use.default and script.environment is not None and use.name in script.environment:
            return depth
        if use.name in script.walker.final.exported and not use.default:
            return depth
    return len(chain)


def _other_uses(script: Script, name: str, mine: set[tuple[int, int]]) -> list[int]:
    """Lines that use a variable for something else than this parameter; printing it does not count."""
    plain_use = re.compile(rb"\$\{?[#!]?" + re.escape(name.encode()) + rb"(?!\w)")
    found = [match.start() for match in plain_use.finditer(script.data)]
    for arithmetic in re.finditer(rb"\(\((.*?)\)\)", script.data, re.DOTALL):
        word = rb"(?<![\w$\{])" + re.escape(name.encode()) + rb"(?!\w)"
        found += [arithmetic.start(1) + match.start() for match in re.finditer(word, arithmetic.group(1))]
    return [
        line_of(script.data, at)
        for at in found
        if not any(start <= at < end for start, end in mine)
        and not any(start <= at < end for start, end in script.walker.quiet)
    ]


def _used_elsewhere(script: Script, use: Use) -> str:
    lines = _other_uses(script, use.name, {(use.start, use.end)}) if use.name.isidentifier() else []
    others = ", ".join(str(line) for line in dict.fromkeys(lines) if line != use.line)
    if not others:
        return ""
    return f"{use.name} also serves line {others}, so the value was written at line {use.line} instead"


def _remark(script: Script, chain: Sequence[Use]) -> str:
    for use in chain:
        if use.default and script.environment is None:
            return (
                f"{use.name} at line {use.line} is a default: a value of {use.name} in the submitting environment "
                "would win over the new one"
            )
    return ""


def _quote_at(occurrence: Occurrence, use: Use, depth: int) -> Quote:
    nested = depth == 0 and occurrence.quote is Quote.NESTED
    return Quote.NESTED if nested else Quote.DOUBLE if use.quoted else Quote.BARE


def _directive_value(script: Script, occurrence: Occurrence, new: str, where: str) -> tuple[Change, str]:
    if not re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]*-]+", new):
        raise CannotEdit(
            f"the value {new!r} cannot stand in a #SBATCH line", where=where, next_step="set it by hand"
        )
    start, end = occurrence.site
    return Change(start, end, new.encode()), ""


def _line_end(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    return len(data) if end < 0 else end
