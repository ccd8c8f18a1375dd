"""Which signature a line matches, also where its message goes on below, was cut, or was broken by another process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from runbook.logs.collect.collection import FileState
from runbook.logs.lines import LogLine
from runbook.logs.search import View
from runbook.logs.signatures import AT_START, FRAMING, OUTSIDE_PROSE, Match, Signature
from runbook.model.log import Event

_MENDED_AT_MOST = 5_000
_WRAPPED_AT_MOST = 9
_MESSAGE_LINES = 5
_BEGINNING = 30
"""A line whose first characters are those of the one above is another message, and not the rest of that one."""
_LONGEST_MESSAGE = 1_600
"""Characters of a message that goes on below; the longest known has a thousand."""
_HEAD = "Traceback (most recent call last)"
_BORDER = " \t|\u2502"
"""What a box around a message puts at the ends of its lines."""
_QUOTED = f"{_BORDER}>"
"""And what a mail or a page puts in front of those that it quotes."""
_CLEAN_START = re.compile(
    r"(?:(?:[a-z_]\w{0,40}\.){0,6}(?:OutOfMemory|Runtime|Accelerator|DistBackend|Value|Memory|Assertion|XlaRuntime"
    r"|JaxRuntime|Type|Index|Key|OS)Error(?:: ?(?:[A-Z]{2,6} )?)?)?$"
)


class Matcher:
    """Matches framed lines of one file, and puts messages together again that stand on several lines."""

    def __init__(self, state: FileState) -> None:
        self._state = state
        self._collection = state.collection
        self._index = state.index
        self._mended = 0

    def match(self, view: View, here: LogLine, stop: int, candidates: Sequence[Signature]) -> Match | None:
        several = [one for one in candidates if one.lines > 1]
        match = self._collection.signatures.first_match(here.text, [one for one in candidates if one.lines == 1])
        if match is not None and match.signature.whole:
            return match
        if several:
            nearby = islice(self._state.below(view, here, stop), 60)
            own = [line.text for line in nearby if line.speaker == here.speaker]
            for signature in several:
                longer = signature.match("\n".join([here.text, *own[: signature.lines - 1]]))
                if longer is not None:
                    return longer
        if here.cut or (here.task is not None and match is not None and not match.signature.general):
            return self._with_rest(view, here, stop) or match
        if match is not None and not match.signature.general and match.signature.means.entry.died.of_memory:
            return self._unwrapped(view, here, stop, match)
        if match is not None and match.signature.general and Event.EXCEPTION in match.signature.reports:
            return self._completed(view, here, stop, match)
        return match

    def _unwrapped(self, view: View, here: LogLine, stop: int, match: Match) -> Match:
        """A message that a terminal, a mail or a page wrapped, between words or within one: the speaker's next lines,
        and those that name nobody, go on with it. Where none makes it whole, the reading with most figures."""
        best = match
        for text in self._going_on(view, here, stop, _WRAPPED_AT_MOST):
            candidates = [one for one in self._collection.candidates(text.encode()) if not one.general]
            whole = self._collection.signatures.first_match(text, candidates)
            if whole is None or whole.signature.means == FRAMING:
                continue
            if whole.start >= len(here.text):
                break  # another message has begun
            if whole.signature.whole:
                return whole
            if whole.signature is match.signature and len(whole.values) > len(best.values):
                best = whole
        return best

    def _completed(self, view: View, here: LogLine, stop: int, match: Match) -> Match:
        """An exception whose message begins, or goes on, below its name: what the whole says."""
        name = here.text.rstrip()
        bare = name.endswith((":", match.text("detail") or ":")) and ": " not in name
        for text in self._going_on(view, here, stop, _MESSAGE_LINES):
            whole = self._collection.signatures.first_match(text, self._collection.candidates(text.encode()))
            if whole is None or not whole.signature.means.entry.died.of_memory:
                continue
            if bare or whole.start < len(here.text):
                return whole
        return match

    def _going_on(self, view: View, here: LogLine, stop: int, most: int) -> Iterator[str]:
        """A line with more and more of what stands below it, joined by a space and as it stands."""
        self._mended += 1
        if self._mended > _MENDED_AT_MOST:
            return
        nearby = islice(self._state.below(view, here, stop), 20)
        rest = [
            line.text for line in nearby
            if line.speaker == here.speaker or (line.unnamed and line.task == here.task)
        ][:most]
        spaced, hard = here.text.rstrip(_BORDER), here.text
        for one in rest:
            another = one[:_BEGINNING] == here.text[:_BEGINNING] or _HEAD in one[:_LOOKED_AT]
            if another or len(spaced) + len(one) > _LONGEST_MESSAGE:
                return
            spaced, hard = f"{spaced} {one.lstrip(_QUOTED).rstrip(_BORDER)}", hard + one
            yield spaced
            yield hard

    def _with_rest(self, view: View, here: LogLine, stop: int) -> Match | None:
        """A message that srun --label or another process's line cut: its rest stands on the next lines."""
        self._mended += 1
        if self._mended > _MENDED_AT_MOST:
            return None
        nearby = islice(self._state.below(view, here, stop), 60)
        own = [
            line.text for line in nearby
            if (line.task, line.group) == (here.task, here.group) and (line.unnamed or line.speaker == here.speaker)
        ][:3]
        for rest in ("".join(own[:1]), "".join(own[:2]), "".join(own[:3]), "".join(own[1:2])):
            text = here.text + rest
            whole = self._collection.signatures.first_match(text, self._collection.candidates(text.encode()))
            if rest and whole is not None and whole.signature.whole and whole.signature.means != FRAMING:
                self._collection.cut_lines += 1
                return whole
        return None

    def behind_label(self, view: View, here: LogLine, start: int) -> LogLine | None:
        """A line that matches nothing by itself, put behind the chunk of the same task from which srun cut it."""
        self._mended += 1
        if not here.unnamed or self._mended > _MENDED_AT_MOST or not self._state.named.habits.label_widths:
            return None
        nearby = islice(self._state.parsed_lines(view, view.before(start), True), 20)
        first = next((one for one in nearby if (one.task, one.group) == (here.task, here.group)), None)
        if first is None or first.text.endswith((":", ")", ".")):
            return None
        return replace(first, text=first.text + here.text)

    def rest_of_broken(self, view: View, here: LogLine, start: int) -> LogLine:
        """A line without a prefix behind one that another process broke: the two are put together again."""
        if not self._collection.tables.ranks_seen:
            return here
        nearby = list(islice(self._state.parsed_lines(view, view.before(start), True), 4))
        broken = [one for one in nearby if one.cut and not one.unnamed and one.task == here.task]
        if len(broken) != 1:
            return here
        text = broken[0].text + here.text
        whole = self._collection.signatures.first_match(text, self._collection.candidates(text.encode()))
        if whole is None or whole.signature.means == FRAMING:
            return here
        self._collection.tables.note(
            "Two processes wrote into each other's lines; the message of "
            f"{named(broken[0])} was put together from two of them."
        )
        return replace(broken[0], text=text, cut=False)

    def in_table(self, view: View, here: LogLine, start: int) -> LogLine:
        """An exception inside torchrun's table is that of the row's rank, not of the agent that prints the table."""
        rows = self._collection.tables.rows
        if not rows or rows[-1].file != self._index or not here.text.startswith("  "):
            return here
        stack: list[str] = []
        complete = False
        for one in islice(self._state.parsed_lines(view, view.before(start), True), 600):
            if one.speaker != here.speaker:
                continue
            if not complete:
                complete = one.text.startswith("  traceback : ")
                stack.append(one.text.removeprefix("  traceback : ") if complete else one.text[2:])
            if one.text.startswith("  time      : "):
                row = rows[-1]
                return replace(
                    here, text=here.text[2:], rank=row.rank, local_rank=row.local_rank, node=row.node, pid=row.pid,
                    time_s=row.time_s, stack=tuple(reversed(stack)) if complete else (),
                )
            if not one.text.startswith("  "):
                break
        return here


def named(one: LogLine) -> str:
    return f"rank {one.rank}" if one.rank is not None else f"local rank {one.local_rank}"


def unless_mixed(here: LogLine, match: Match) -> LogLine:
    """A match inside a line that two processes broke: without an owner, unless its message begins behind a prefix."""
    found = match.signature.pattern.search(here.text)
    if found is None or _CLEAN_START.match(here.text[: found.start()]) or match.signature.means == FRAMING:
        return here
    why = f"Two processes wrote into one line; whether {named(here)} or the one before it said this is not certain."
    return replace(here, rank=None, local_rank=None, doubt=why)


# Whether a message stands in a line as its speaker says it, or inside a sentence that quotes it.
#
# A model's samples, a chat, a data set and a help text hold the words of the kernel, of Slurm and of PyTorch. The
# kernel's and Slurm's own lines begin with the message, behind what launchers, collectors and loggers put in front of a
# line. An exception's message stands behind its class, a logger's prefix, or words that end in a colon.

_PREFIXES_AT_MOST = 12
_LOOKED_AT = 2_000
_TOKEN = re.compile(r"\s*(\S{1,80})(?=\s|$)\s*")
_TIME_WORD = re.compile(
    r"[\[(]?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|UTC|GMT|AM|PM)[,.]?$"
)
_LEVEL = re.compile(
    r"[\[(<|]{0,2}(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|ERR|CRITICAL|FATAL|SEVERE|stderr|stdout"
    r"|error|fatal|critical)[\])>|:,-]{0,2}$"
)
_CLASS = re.compile(
    r"(?<=[A-Za-z])(?:Error|Exception)\b|\bwhat\(\)|\bterminate called|\b[Uu]n(?:handled|caught) exception\b"
    r"|\b[A-Z]{3,20}_[A-Z_]{3,30}(?=: )"
)
"""What a message stands behind: an exception's class, a run time's announcement of it, a status."""
_CLASS_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_."
_JSON_LOG = re.compile(r"\{[^\n]{0,1500}\"(?:message|msg|MESSAGE|log|event)\" ?: ?\"")
_COLUMN = ("   ", "\t")
"""A gap in front of a message is one between a record's columns: no sentence has it."""
_LOGGED = re.compile(r"(?:ERROR|CRITICAL|FATAL|error|fatal)\S{0,3} [\w.:/-]{1,80}$")

_REPORTED = re.compile(
    r"\b(?:exited|terminated|[Ee]xit) (?:with )?(?:code|status):? -?\d{1,3},? (?:reason|due to)$"
    r"|^\W{0,8}(?:\w+ )?[Rr]eason[\"']?: \S.{0,120}$"
)
"""A controller's word on the end of a pod, with its reason behind; a field of a record that gives the reason."""


def is_quoted(match: Match, text: str, raised: bool) -> bool:
    """Whether a match in a line (without its launcher's prefix) may be a quotation, by where its signature must stand.
    `raised`: the line ends a traceback, so it is the exception itself."""
    if match.signature.stands == AT_START:
        return _late_in_line(text[: match.start], match.signature.opening_pattern)
    if match.signature.stands == OUTSIDE_PROSE:
        return not raised and _in_prose(text, match.start or literal_at(match, text), match.start)
    return False


def _late_in_line(before: str, opening: re.Pattern[str] | None) -> bool:
    """Whether something else than prefixes and the speaker's name stands in front of the message."""
    if not before.strip():
        return False
    if len(before) > _LOOKED_AT:
        return True
    logged = _JSON_LOG.match(before)
    position = logged.end() if logged is not None else 0
    for _ in range(_PREFIXES_AT_MOST):
        if opening is not None and opening.fullmatch(before, position):
            return False
        found = _TOKEN.match(before, position)
        if found is None or not _is_prefix(found[1]):
            break
        position = found.end()
    return position < len(before)


def _is_prefix(token: str) -> bool:
    """A stamp, a host or a rank (they hold a digit), a level, punctuation: no word of a sentence."""
    letters = sum(1 for one in token if one.isalpha())
    return not letters or any(one.isdigit() for one in token) or bool(_LEVEL.match(token) or _TIME_WORD.match(token))


def literal_at(match: Match, text: str) -> int:
    """Where the words themselves begin, for a pattern that begins with the line."""
    places = [text.find(literal) for literal in match.signature.literals]
    return min((place for place in places if place >= 0), default=0)


def _in_prose(text: str, words: int, start: int) -> bool:
    """Whether words of a sentence run up to the message, or up to the exception's class in front of it."""
    found = _CLASS.search(text, 0, min(words, start + _LOOKED_AT))
    head = (text[: found.start()].rstrip(_CLASS_LETTERS) if found is not None else text[:start])[-_LOOKED_AT:]
    if "Traceback (most recent call last)" in head:
        return False
    bare = head.rstrip(" \t\"'`\u201c\u2018([{<\\")
    if not bare.strip() or head.endswith(_COLUMN) or head.rstrip(" \"'").endswith(("\\n", "\\t")):
        return False
    last = bare.split()[-1]
    if not (bare[-1].isalpha() or bare[-1] == ",") or _LEVEL.match(last) or _is_prefix(last):
        return False
    return not _LOGGED.search(bare[-160:]) and not _REPORTED.search(bare[-200:])
