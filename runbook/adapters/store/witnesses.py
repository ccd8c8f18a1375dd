"""Earlier incidents as witnesses, from a file that is read in one go and parsed only where it has to be.

    <root>/incidents.history   0600   one line an incident: name, stamp of its document, what it is found by, witness

Only a cache, made again from the incidents when it is missing, damaged or of another version. It stands apart from the
index of rows, which takes a second to read with ten thousand incidents: the choice of a lever asks for a few witnesses.
"""

from __future__ import annotations

import contextlib
import zlib
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from functools import cache

from runbook.adapters.store import IncidentStore, replacing
from runbook.errors import RunbookError, Unavailable
from runbook.model.remedy import Circumstances, Remembered, TriedLever
from runbook.model.units import IncidentId
from runbook.report.past_incidents import remember, remembered_adapter

_MADE = 1
"""Raised by hand when what is remembered stays the same in form and means something else."""
_REWRITE_CHANGES = 32
_READ_AT_ONCE = 64
"""Changed incidents that a question reads before it is answered, the newest first: it must not wait for thousands."""
_MOST_OWN = 200
_MOST_OTHERS = 1000


@dataclass(frozen=True, slots=True)
class _Line:
    stamp: bytes
    """"" for one that was not read yet."""
    found_by: bytes
    """Kind, framework, script and series with blanks between them; "" for an incident that is no witness."""
    text: bytes


class StoredHistory:
    """The witnesses of one store. Any number of processes may ask."""

    def __init__(self, store: IncidentStore) -> None:
        self._store = store
        self._file = store.root / "incidents.history"
        self._lines: dict[str, _Line] | None = None
        self._parsed: dict[bytes, Remembered | None] = {}
        self._unwritten = 0

    def like(self, now: Remembered) -> tuple[Remembered, ...]:
        """As the port says. What was written since is read first, as far as it is not too much."""
        lines = self._look(_READ_AT_ONCE)
        kind, system = _word(now.kind), _word(now.circumstances.system)
        own: list[_Line] = []
        others: list[_Line] = []
        for name, line in lines.items():
            if not line.found_by or name == now.incident:
                continue
            there_kind, there_system, script, series = line.found_by.split(b" ")
            if (there_kind, there_system) != (kind, system):
                continue
            if (now.script and script == _word(now.script)) or (now.series and series == _word(now.series)):
                own.append(line)
            else:
                others.append(line)
        # Lines stand in the order in which their documents were written; the newest are at the end.
        asked = (*own[-_MOST_OWN:], *others[-_MOST_OTHERS:])
        found = [past for line in asked if (past := self._read(line))]
        return tuple(sorted(found, key=lambda past: past.opened_s, reverse=True))

    def all(self) -> dict[str, Remembered]:
        """Every witness by its incident's name, with all that was written since."""
        lines = self._look(None)
        found = {name: self._read(line) for name, line in lines.items() if line.found_by}
        return {name: past for name, past in found.items() if past is not None}

    def _look(self, at_once: int | None) -> dict[str, _Line]:
        known = self._read_file() if self._lines is None else self._lines
        stamps = self._store.stamps(known)
        texts = {name: b"%d %d %d" % stamp for name, stamp in stamps.items()}
        changed = [name for name, text in texts.items() if name not in known or known[name].stamp != text]
        changed = sorted(changed, key=lambda name: stamps[name].modified_ns, reverse=True)[:at_once]
        gone = known.keys() - stamps.keys()
        if not changed and not gone:
            self._lines = known
            return known
        lines = {name: line for name, line in known.items() if name not in gone}
        # A document that was written again moves to the end: it is among the newest.
        for name in reversed(changed):
            lines.pop(name, None)
            lines[name] = self._line(name, texts[name])
        self._unwritten += len(changed) + len(gone)
        self._lines = lines
        if self._unwritten >= _REWRITE_CHANGES:
            self._write(lines)
        return lines

    def _line(self, name: str, stamp: bytes) -> _Line:
        """An incident that cannot be read or told in JSON is no witness."""
        with contextlib.suppress(RunbookError, ValueError):
            past = remember(self._store.load(IncidentId(name)))
            if past is not None:
                words = (past.kind, past.circumstances.system, past.script, past.series)
                return _Line(stamp, b" ".join(_word(word) for word in words), remembered_adapter().dump_json(past))
        return _Line(stamp, b"", b"")

    def _read(self, line: _Line) -> Remembered | None:
        """Damage of a line is one witness less."""
        found = self._parsed.get(line.text)
        if found is None and line.text not in self._parsed:
            with contextlib.suppress(ValueError):
                found = remembered_adapter().validate_json(line.text)
            self._parsed[line.text] = found
        return found

    def _read_file(self) -> dict[str, _Line]:
        """Damage of the file is an empty one: it is made again."""
        try:
            head, _, rest = self._file.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Unavailable(
                f"reading failed: {error.strerror}", where=str(self._file),
                next_step="check the state folder; the file may be removed, it is made again",
            ) from error
        if head != _version():
            return {}
        lines = {}
        try:
            for line in rest.splitlines():
                name, stamp, found_by, text = line.split(b"\t", 3)
                if found_by.count(b" ") not in (0, 3):
                    return {}
                lines[name.decode("ascii")] = _Line(stamp, found_by, text)
        except ValueError:
            return {}
        return lines

    def _write(self, lines: dict[str, _Line]) -> None:
        text = b"\n".join(
            b"\t".join((name.encode(), line.stamp, line.found_by, line.text)) for name, line in lines.items()
        )
        # A reader who may not write, or a full disk, only means that the next one reads more incidents.
        with contextlib.suppress(RunbookError), replacing(self._file, 0o600, None) as stream:
            stream.write(_version() + b"\n" + text + b"\n")
            self._unwritten = 0
            self._parsed = {line.text: past for line in lines.values() if (past := self._parsed.get(line.text))}


def _word(text: str) -> bytes:
    """Without what parts the fields of a line. Only compared with words that came the same way."""
    return "".join(text.split()).encode("utf-8", "replace") or b"-"


@cache
def _version() -> bytes:
    fields = [field.name for kind in (Remembered, TriedLever, Circumstances) for field in dataclass_fields(kind)]
    return f"runbook-history {_MADE} {zlib.crc32(' '.join(fields).encode()):08x}".encode()
