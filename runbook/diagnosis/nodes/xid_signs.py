"""Signs of the kernel log: the driver's Xid lines in the job's window and on its GPUs.

Each code's class stands in the catalogue document; here is what a line's own text, its time and its place change.
What no whole record of the kernel's tells is for a person: a user of the node can have a line in the log's text.
Xid 13, 31, 43 and 45 are what a dying program leaves behind, and no Xid at all is what an out-of-memory error leaves.

NVLink events: what their registers ask for by the vendor's tables, and else what the line's own word says. Xid 74
(A100, H100) prints "fatal" for any error, so that its register decides and it never drains on its own. Of Xid 144 to
150 (NVLink 5) a line reads "145, RLW_REMAP Fatal XC0 i0 Link 01 (0x00000004 0x00000040 …)": unit, severity, and
registers, of which the first holds the unit's number and the second the error status.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from runbook.diagnosis.nodes.hardware import asks_for_recovery
from runbook.diagnosis.nodes.signs import JobGpus, Rulebook, Sign
from runbook.model.catalogues import LinkAsk, XidCatalogue, XidClass, XidMeaning, is_switch_event
from runbook.model.job import JobRecord
from runbook.model.node import NodeFacts, XidEvent
from runbook.model.node_rules import Condition, Weight
from runbook.model.units import Unknown, moment

_FATAL = re.compile(r"(?<!Non-)\bFatal\b")
_ACTION = re.compile(r"\bto\s+0x[0-9a-fA-F]+\s+\((?P<action>[^)]*)\)")
_HEAVY = frozenset({XidClass.DRAIN, XidClass.RESET, XidClass.RECOVERY_ACTION})
_TOLD_BY_STATE = frozenset({XidClass.WATCH, XidClass.PENDING_RESET, XidClass.QUALIFIER})
_NO_WINDOW = Unknown("whether it was mended since is not known, and neither a job nor a time was named")
_BY_CLASS = {
    XidClass.APPLICATION: Condition.APPLICATION_CODE,
    XidClass.INFORMATIONAL: Condition.INFORMATIONAL_CODE,
    XidClass.WATCH: Condition.WEAK_CODE,
    XidClass.PENDING_RESET: Condition.PENDING_RESET_CODE,
    XidClass.RESTART_ELSEWHERE: Condition.CONTAINED_CODE,
    XidClass.DRAIN: Condition.FAULTY_CODE,
    XidClass.UNDETERMINED: Condition.UNPUBLISHED_CODE,
}
"""Where the class alone decides."""
_SEVERITY = re.compile(r"\b(?:Non-?fatal|Fatal)\b", re.I)
_REGISTERS = re.compile(r"\(0x(?P<first>[0-9a-fA-F]{1,8})(?:[\s,]+0x(?P<second>[0-9a-fA-F]{1,8}))?[\s,)]")
_NAME = r"[A-Z][A-Z0-9_]{2,31}"
_UNIT = re.compile(rf"[\s,](?P<units>{_NAME}(?:/{_NAME})?)\s+(?:Link )?(?:Non-?)?fatal\b", re.I)
_BY_REGISTER = {
    LinkAsk.PERSON: Condition.LINK_REGISTER_FOR_PERSON,
    LinkAsk.WATCH: Condition.LINK_REGISTER_TO_WATCH,
    LinkAsk.NOTHING: Condition.LINK_REGISTER_OF_PROGRAM,
}


@dataclass(frozen=True, slots=True)
class _Found:
    """What follows from one event, with the words that its line and its title do not have."""

    condition: Condition
    why: str = ""
    action: str = ""
    asks: str = ""
    source: str = ""
    """Where that was read, if not with the code itself."""


@dataclass(frozen=True, slots=True)
class _Log:
    """What is known of all events when one is judged."""

    events: tuple[XidEvent, ...]
    xids: XidCatalogue
    beside: frozenset[int]
    """Codes of which one must stand beside a qualifier."""
    state_asks_nothing: frozenset[str]
    """Bus ids of GPUs whose present recovery action was read and is None."""


def xid_signs(
    facts: NodeFacts, job: JobRecord, gpus: JobGpus, book: Rulebook, xids: XidCatalogue
) -> list[Sign]:
    """Signs from the kernel log. What is outside the job's window or on another job's GPU is a warning at most."""
    if isinstance(facts.xids, Unknown):
        return []
    known = () if isinstance(facts.gpus, Unknown) else facts.gpus
    index = {gpu.bus_id: gpu.index for gpu in known if gpu.bus_id}
    quiet = frozenset(
        gpu.bus_id for gpu in known
        if isinstance(gpu.recovery_action, str) and not asks_for_recovery(gpu.recovery_action)
    )
    log = _Log(facts.xids, xids, book.rules.beside(Condition.QUALIFIER_CODE), quiet)
    signs: list[Sign] = []
    for event in _last_actions(log):
        gpu = index.get(event.bus_id)
        meaning = xids.meaning(event.code).for_line(event.line)
        found = _judge(event, meaning, log, job)
        case = book.rules.case(found.condition, code=event.code) if found is not None else None
        if found is None or case is None:
            continue
        source = found.source or xids.meaning(event.code).source or f"Xid catalogue {xids.date}".strip()
        one = book.sign_of(
            case, gpu, source, event=_place(event, gpu), title=meaning.title, line=event.line, why=found.why,
            action=found.action, asks=found.asks,
        )
        if one.weight > Weight.WARN and (event.on_job_gpu is False or not gpus.counts(gpu)):
            one = book.weakened(one, Weight.WARN, "not one of the job's GPUs")
        if one.weight > Weight.UNDETERMINED and isinstance(event.witness, Unknown):
            why = f"for a person, and no ground for a drain: {event.witness.unknown}"
            one = book.weakened(one, Weight.UNDETERMINED, why)
        signs.append(one)
    return signs + list(_repeats(facts.xids, index, book))


def without_window(facts: NodeFacts, xids: XidCatalogue) -> NodeFacts:
    """The facts where nobody says from when on an event counts: what needs a person's eye is neither in nor out of the
    window; what the GPU's own state tells better (a row that waits to be remapped), or is weak evidence, is out."""
    if isinstance(facts.xids, Unknown):
        return facts
    return replace(facts, xids=tuple(
        replace(event, in_window=event.in_window if isinstance(event.in_window, Unknown) else (
            False if xids.meaning(event.code).for_line(event.line).xid_class in _TOLD_BY_STATE else _NO_WINDOW
        ))
        for event in facts.xids
    ))


def _judge(event: XidEvent, meaning: XidMeaning, log: _Log, job: JobRecord) -> _Found | None:
    inside: bool | Unknown = event.in_window
    if inside is True and job.start_time_s is None:
        inside = Unknown("the job's start is not known")
    if is_switch_event(event.line):
        if inside is False:
            return None
        return _Found(Condition.FATAL_SWITCH_EVENT if _FATAL.search(event.line) else Condition.OTHER_SWITCH_EVENT)
    if inside is True:
        return _in_window(event, meaning.xid_class, log)
    if isinstance(inside, Unknown):
        if meaning.xid_class in (XidClass.APPLICATION, XidClass.INFORMATIONAL):
            return None
        return _Found(Condition.CODE_PERHAPS_IN_WINDOW if job.id else Condition.CODE_WITHOUT_WINDOW, inside.unknown)
    return _outside(event, meaning, job)


def _in_window(event: XidEvent, xid_class: XidClass, log: _Log) -> _Found:
    match xid_class:
        case XidClass.RESET:
            return _Found(Condition.RESET_CODE_RECOVERED if _recovered_since(event, log) else Condition.RESET_CODE)
        case XidClass.LINK:
            return _link(event, log.xids)
        case XidClass.RECOVERY_ACTION:
            return _recovery(event, log)
        case XidClass.QUALIFIER:
            same = {one.code for one in log.events if one.in_window is True and one.bus_id == event.bus_id}
            return _Found(Condition.QUALIFIER_CODE if same & log.beside else Condition.QUALIFIER_CODE_ALONE)
        case _:
            return _Found(_BY_CLASS[xid_class])


def recovery_action_of(line: str) -> str | None:
    """The action that a line of Xid 154 changes to: "GPU Reset Required", "None"; None where it cannot be read. A
    process may be named like one, but its name stands before it: the last one counts."""
    found = _ACTION.findall(line)
    return (found[-1].strip() or None) if found else None


def _recovery(event: XidEvent, log: _Log) -> _Found:
    action = recovery_action_of(event.line)
    if action is None:
        return _Found(Condition.RECOVERY_CODE_UNREADABLE)
    if not asks_for_recovery(action):
        return _Found(Condition.RECOVERY_CODE_TO_NONE)
    if _recovered_since(event, log) or event.bus_id in log.state_asks_nothing:
        return _Found(Condition.RECOVERY_CODE_DONE, action=action)
    asks = log.xids.asked_by(action)
    if asks is None:
        return _Found(Condition.RECOVERY_CODE_UNPUBLISHED, action=repr(action))
    return _Found(Condition.RECOVERY_CODE, action=action, asks=asks)


def _recovered_since(event: XidEvent, log: _Log) -> bool:
    """The last change of the GPU's recovery action after the event, at whatever time, was to None. What the kernel's
    own record says is not taken back by what is only text."""
    since_s = event.time_s if event.last_time_s is None else event.last_time_s
    if since_s is None:
        return False
    last: XidEvent | None = None
    for other in log.events:
        same = other.bus_id == event.bus_id and other.time_s is not None and other.time_s >= since_s
        same = same and (other.witness is True or event.witness is not True)
        if same and other is not event and log.xids.meaning(other.code).xid_class is XidClass.RECOVERY_ACTION:
            last = other if last is None or (other.time_s or 0.0) >= (last.time_s or 0.0) else last
    if last is None:
        return False
    action = recovery_action_of(last.line)
    return action is not None and not asks_for_recovery(action)


def _outside(event: XidEvent, meaning: XidMeaning, job: JobRecord) -> _Found | None:
    """Outside the window nothing counts; what makes a node unusable is still worth a person's look."""
    if meaning.xid_class not in _HEAVY:
        return None
    if meaning.xid_class is XidClass.RECOVERY_ACTION:
        action = recovery_action_of(event.line)
        if action is not None and not asks_for_recovery(action):
            return None
    if not job.id:
        return _Found(Condition.HEAVY_CODE_BEFORE_QUESTION)
    before = event.time_s is not None and job.start_time_s is not None and event.time_s < job.start_time_s
    return _Found(Condition.HEAVY_CODE_BEFORE_JOB if before else Condition.HEAVY_CODE_BESIDE_JOB)


def _last_actions(log: _Log) -> tuple[XidEvent, ...]:
    """Of the changes of a GPU's recovery action inside or outside the window, only the last says how it ended."""
    last: dict[tuple[str, str], XidEvent] = {}
    for event in log.events:
        if log.xids.meaning(event.code).xid_class is XidClass.RECOVERY_ACTION:
            last[event.bus_id, str(event.in_window)] = event
    kept = set(map(id, last.values()))
    return tuple(
        event for event in log.events
        if log.xids.meaning(event.code).xid_class is not XidClass.RECOVERY_ACTION or id(event) in kept
    )


def _repeats(events: tuple[XidEvent, ...], index: dict[str, int], book: Rulebook) -> Iterable[Sign]:
    """The same GPU with an application Xid in the window and before: unrelated programs, or a failing GPU."""
    suspicious = book.rules.codes(Condition.CODE_REPEATED)
    inside = {(e.code, e.bus_id) for e in events if e.in_window is True and e.code in suspicious}
    outside = {(e.code, e.bus_id) for e in events if e.in_window is False}
    for code, bus in sorted(inside & outside):
        gpu = index.get(bus)
        yield book.sign(
            Condition.CODE_REPEATED, gpu, where=f"GPU {gpu}" if gpu is not None else bus, code=code
        )


def _place(event: XidEvent, gpu: int | None) -> str:
    on = f"GPU {gpu} ({event.bus_id})" if gpu is not None and gpu >= 0 else f"a device at {event.bus_id}"
    times = f" {event.count} times" if event.count > 1 else ""
    at = f" at {moment(event.time_s)}" if event.time_s is not None else ""
    return f"Xid {event.code}{times} on {on}{at}"


def _link(event: XidEvent, xids: XidCatalogue) -> _Found:
    """Registers before words. Where the two contradict each other a person looks: one of them was misread.

    A process may be named like a unit or a severity, but its name stands before them: the last one counts."""
    if event.code == xids.link_bits_code:
        return _by_bits(event, xids)
    severities = _SEVERITY.findall(event.line)
    fatal = bool(severities) and severities[-1].lower() == "fatal"
    mild = bool(severities) and not fatal
    decoded = _decoded(event, xids)
    if decoded is None:
        if fatal:
            return _Found(Condition.LINK_FATAL_BY_WORD)
        return _Found(Condition.LINK_MILD_BY_WORD if mild else Condition.LINK_WITHOUT_SEVERITY)
    asks, why = decoded
    look = f"; {why}" if why else ""
    if asks is LinkAsk.RESET and not mild:
        return _Found(Condition.LINK_NEEDS_RESET, look, source=xids.link_source)
    if asks is not LinkAsk.RESET and (why or not fatal):
        mildly = Condition.LINK_MILD_UNLESS_154 if asks is LinkAsk.BY_154 else Condition.LINK_MILD
        return _Found(mildly, look, source=xids.link_source)
    return _Found(Condition.LINK_CONTRADICTS_ITSELF)


def _decoded(event: XidEvent, xids: XidCatalogue) -> tuple[LinkAsk, str] | None:
    """What the vendor's sheet asks for. None: the unit or its registers are not in it."""
    units, registers = _UNIT.findall(event.line), _registers(event)
    if not units or registers is None or registers["second"] is None:
        return None
    names = set(units[-1].split("/"))
    first, status = int(registers["first"], 16), int(registers["second"], 16)
    for one in xids.link_units:
        if one.code == event.code and names <= one.names:
            return one.asks(first, status)
    return None


def _registers(event: XidEvent) -> re.Match[str] | None:
    """The last ones in the line, as its other words."""
    found = tuple(_REGISTERS.finditer(event.line))
    return found[-1] if found else None


def _by_bits(event: XidEvent, xids: XidCatalogue) -> _Found:
    registers = _registers(event)
    first = int(registers["first"], 16) if registers else 0
    for row in xids.link_bits:
        if first & row.mask:
            return _Found(_BY_REGISTER[row.asks], f"; {row.why}")
    return _Found(Condition.LINK_REGISTER_UNPUBLISHED)
