"""Signs of the kernel log: the driver's Xid lines in the job's window and on its GPUs.

Each code's class stands in the catalogue document; here is what a line's own text, its time and its place change.
Xid 13, 31, 43 and 45 are what a dying program leaves behind, and no Xid at all is what an out-of-memory error leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from runbook.diagnosis.nodes.hardware import asks_for_recovery
from runbook.diagnosis.nodes.signs import JobGpus, NodePolicy, Rule, Sign, Weight, moment, sign, weakened
from runbook.model.catalogues import LinkAsk, XidCatalogue, XidClass, XidMeaning, is_switch_event
from runbook.model.job import JobRecord
from runbook.model.node import NodeFacts, XidEvent
from runbook.model.units import Unknown

# NVLink events: what their registers ask for by the vendor's tables, and else what the line's own word says.
#
# Xid 74 (A100, H100) prints "fatal" for any error, so that its register decides and it never drains on its own. Of Xid
# 144 to 150 (NVLink 5) a line reads "145, RLW_REMAP Fatal XC0 i0 Link 01 (0x00000004 0x00000040 …)": unit, severity,
# and registers, of which the first holds the unit's number and the second the error status.

_NVLINK = 74
_SEVERITY = re.compile(r"\b(?:Non-?fatal|Fatal)\b", re.I)
_REGISTERS = re.compile(r"\(0x(?P<first>[0-9a-fA-F]{1,8})(?:[\s,]+0x(?P<second>[0-9a-fA-F]{1,8}))?[\s,)]")
_NAME = r"[A-Z][A-Z0-9_]{2,31}"
_UNIT = re.compile(rf"[\s,](?P<units>{_NAME}(?:/{_NAME})?)\s+(?:Link )?(?:Non-?)?fatal\b", re.I)
_WEIGHTS = {LinkAsk.PERSON: Weight.UNDETERMINED, LinkAsk.WATCH: Weight.WARN, LinkAsk.NOTHING: Weight.NOTE}


@dataclass(frozen=True, slots=True)
class LinkWord:
    """What follows from one event; `text` goes behind the code's title."""

    rule: Rule
    text: str
    weight: Weight | None = None
    """None: the rule's own."""
    source: str = ""
    """Where that was read, if not with the code itself."""


def judge_link(event: XidEvent, xids: XidCatalogue) -> LinkWord:
    """Registers before words. Where the two contradict each other a person looks: one of them was misread.

    A process may be named like a unit or a severity, but its name stands before them: the last one counts."""
    if event.code == _NVLINK:
        return _by_bits(event, xids)
    severities = _SEVERITY.findall(event.line)
    fatal = bool(severities) and severities[-1].lower() == "fatal"
    mild = bool(severities) and not fatal
    decoded = _decoded(event, xids)
    if decoded is None:
        return _by_word(event, fatal, mild)
    asks, why = decoded
    look = f"; {why}" if why else ""
    if asks is LinkAsk.RESET and not mild:
        return LinkWord(
            Rule.XID_LINK_FATAL, f", fatal; its registers ask for a reset{look}; look at the other end of the link too",
            source=xids.link_source,
        )
    if asks is not LinkAsk.RESET and (why or not fatal):
        then = "; what an Xid 154 beside it says is to be done" if asks is LinkAsk.BY_154 else ""
        return LinkWord(Rule.XID_LINK, f", not fatal by its registers{look}{then}", source=xids.link_source)
    return LinkWord(
        Rule.XID_LINK, f"; its word and its registers contradict each other, a person looks: {event.line}",
        Weight.UNDETERMINED,
    )


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


def _by_word(event: XidEvent, fatal: bool, mild: bool) -> LinkWord:
    if fatal:
        return LinkWord(Rule.XID_LINK_FATAL, ", fatal; reset needed, and look at the other end of the link too")
    if mild:
        return LinkWord(Rule.XID_LINK, ", not fatal")
    return LinkWord(Rule.XID_LINK, f"; its line names no severity: {event.line}", Weight.UNDETERMINED)


def _by_bits(event: XidEvent, xids: XidCatalogue) -> LinkWord:
    registers = _registers(event)
    first = int(registers["first"], 16) if registers else 0
    for row in xids.link_bits:
        if first & row.mask:
            return LinkWord(Rule.XID_LINK, f"; {row.why}", _WEIGHTS[row.asks])
    return LinkWord(
        Rule.XID_LINK, f"; its registers say nothing that is published: {event.line}", Weight.UNDETERMINED
    )


_FATAL = re.compile(r"(?<!Non-)\bFatal\b")
_ACTION = re.compile(r"\bto\s+0x[0-9a-fA-F]+\s+\((?P<action>[^)]*)\)")
_DOUBLE_BIT = 48
_GONE = frozenset({79, 143, 167})
_REPEATS_ARE_SUSPICIOUS = frozenset({13, 31})
_HEAVY = frozenset({XidClass.DRAIN, XidClass.RESET, XidClass.RECOVERY_ACTION})
_TOLD_BY_STATE = frozenset({XidClass.WATCH, XidClass.PENDING_RESET, XidClass.QUALIFIER})
_NO_WINDOW = Unknown("whether it was mended since is not known, and neither a job nor a time was named")
_RULE_OF = {
    XidClass.APPLICATION: Rule.XID_APPLICATION,
    XidClass.INFORMATIONAL: Rule.XID_INFORMATIONAL,
    XidClass.WATCH: Rule.XID_WATCH,
    XidClass.PENDING_RESET: Rule.XID_PENDING_RESET,
    XidClass.RESTART_ELSEWHERE: Rule.XID_CONTAINED_ERROR,
    XidClass.RESET: Rule.XID_RESET_NEEDED,
    XidClass.DRAIN: Rule.XID_FAILED_REPAIR,
    XidClass.LINK: Rule.XID_LINK,
    XidClass.RECOVERY_ACTION: Rule.XID_RECOVERY_ACTION,
    XidClass.QUALIFIER: Rule.XID_QUALIFIER,
    XidClass.UNDETERMINED: Rule.XID_UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class _Found:
    rule: Rule
    text: str
    weight: Weight | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class _Log:
    """What is known of all events when one is judged."""

    events: tuple[XidEvent, ...]
    xids: XidCatalogue
    policy: NodePolicy
    state_asks_nothing: frozenset[str]
    """Bus ids of GPUs whose present recovery action was read and is None."""


def xid_signs(
    facts: NodeFacts, job: JobRecord, gpus: JobGpus, xids: XidCatalogue, policy: NodePolicy
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
    log = _Log(facts.xids, xids, policy, quiet)
    signs: list[Sign] = []
    for event in _last_actions(log):
        gpu = index.get(event.bus_id)
        found = _judge(event, log, job)
        if found is None:
            continue
        source = found.source or xids.meaning(event.code).source or f"Xid catalogue {xids.date}".strip()
        one = sign(found.rule, f"{_place(event, gpu)}: {found.text}", gpu, source, weight=found.weight)
        if one.weight > Weight.WARN and (event.on_job_gpu is False or not gpus.counts(gpu)):
            one = weakened(one, Weight.WARN, "not one of the job's GPUs")
        signs.append(one)
    return signs + list(_repeats(facts.xids, index))


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


def _judge(event: XidEvent, log: _Log, job: JobRecord) -> _Found | None:
    inside: bool | Unknown = event.in_window
    if inside is True and job.start_time_s is None:
        inside = Unknown("the job's start is not known")
    if is_switch_event(event.line):
        if inside is False:
            return None
        if _FATAL.search(event.line):
            return _Found(Rule.SWITCH_FATAL, f"NVSwitch, fatal; nobody published what to do: {event.line}")
        return _Found(Rule.SWITCH_EVENT, f"NVSwitch event: {event.line}")
    meaning = log.xids.meaning(event.code).for_line(event.line)
    if inside is True:
        return _in_window(event, meaning, log)
    if isinstance(inside, Unknown):
        if meaning.xid_class in (XidClass.APPLICATION, XidClass.INFORMATIONAL):
            return None
        whether = "whether in the job's time is not known: " if job.id else ""
        return _Found(Rule.XID_NO_TIME, f"{meaning.title}; {whether}{inside.unknown}")
    return _outside(event, meaning, job)


def _in_window(event: XidEvent, meaning: XidMeaning, log: _Log) -> _Found | None:
    title, rule = meaning.title, _RULE_OF[meaning.xid_class]
    match meaning.xid_class:
        case XidClass.APPLICATION:
            return _Found(rule, f"{title}; a consequence of the program's fault or death, no hardware evidence")
        case XidClass.INFORMATIONAL:
            return _Found(rule, f"{title}; says nothing about the hardware")
        case XidClass.WATCH:
            return _Found(rule, f"{title}; weak evidence, worth a diagnostic run")
        case XidClass.PENDING_RESET:
            return _pending(title, log.policy)
        case XidClass.RESTART_ELSEWHERE:
            weight = Weight.DRAIN if log.policy.drain_on_contained_error else None
            return _Found(rule, f"{title}; the next run belongs on another node", weight)
        case XidClass.RESET:
            if _recovered_since(event, log):
                return _Found(
                    Rule.XID_RESET_SINCE,
                    f"{title}; it hit the job, but the driver says since then that nothing is left to recover",
                )
            return _Found(rule, f"{title}; reset needed before anything runs there")
        case XidClass.DRAIN:
            return _Found(Rule.XID_GPU_GONE if event.code in _GONE else rule, title)
        case XidClass.LINK:
            link = judge_link(event, log.xids)
            return _Found(link.rule, f"{title}{link.text}", link.weight, link.source)
        case XidClass.RECOVERY_ACTION:
            return _recovery(event, log)
        case XidClass.QUALIFIER:
            same = {one.code for one in log.events if one.in_window is True and one.bus_id == event.bus_id}
            if _DOUBLE_BIT in same:
                return _Found(rule, title)
            return _Found(rule, f"{title}, but there is no Xid 48", Weight.UNDETERMINED)
        case XidClass.UNDETERMINED:
            return _Found(rule, f"{title}; nobody published what to do, so a person decides: {event.line}")


def _pending(title: str, policy: NodePolicy) -> _Found:
    weight = Weight.DRAIN if policy.drain_on_pending_reset else None
    return _Found(
        Rule.XID_PENDING_RESET,
        f"{title}; takes effect at the next GPU reset and is no cause of an out-of-memory error", weight,
    )


def recovery_action_of(line: str) -> str | None:
    """The action that a line of Xid 154 changes to: "GPU Reset Required", "None"; None where it cannot be read. A
    process may be named like one, but its name stands before it: the last one counts."""
    found = _ACTION.findall(line)
    return (found[-1].strip() or None) if found else None


def _recovery(event: XidEvent, log: _Log) -> _Found:
    action = recovery_action_of(event.line)
    if action is None:
        return _Found(
            Rule.XID_RECOVERY_ACTION, f"the recovery action changed, to what cannot be read: {event.line}",
            Weight.UNDETERMINED,
        )
    if not asks_for_recovery(action):
        return _Found(Rule.XID_RECOVERY_ACTION, "the recovery action went back to None: recovered", Weight.NOTE)
    if _recovered_since(event, log) or event.bus_id in log.state_asks_nothing:
        return _Found(
            Rule.XID_RESET_SINCE, f"the driver asked for recovery: {action}, and by now asks for nothing: it was done"
        )
    asks = log.xids.asked_by(action)
    if asks is None:
        return _Found(
            Rule.XID_RECOVERY_ACTION, f"the recovery action is {action!r}, which nobody published: a person looks",
            Weight.UNDETERMINED,
        )
    return _Found(Rule.XID_RECOVERY_ACTION, f"the driver asks for recovery: {action} ({asks})")


def _recovered_since(event: XidEvent, log: _Log) -> bool:
    """The last change of the GPU's recovery action after the event, at whatever time, was to None."""
    since_s = event.time_s if event.last_time_s is None else event.last_time_s
    if since_s is None:
        return False
    last: XidEvent | None = None
    for other in log.events:
        same = other.bus_id == event.bus_id and other.time_s is not None and other.time_s >= since_s
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
    before = event.time_s is not None and job.start_time_s is not None and event.time_s < job.start_time_s
    when = "before the job started (pre-existing)" if before else "outside the job's time"
    if not job.id:
        when = "before the time that was asked for"
    return _Found(
        Rule.XID_OTHER_TIME, f"{meaning.title}, {when}: the node should not have been in service without a reset since"
    )


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


def _repeats(events: tuple[XidEvent, ...], index: dict[str, int]) -> Iterable[Sign]:
    """The same GPU with an application Xid in the window and before: unrelated programs, or a failing GPU."""
    inside = {(e.code, e.bus_id) for e in events if e.in_window is True and e.code in _REPEATS_ARE_SUSPICIOUS}
    outside = {(e.code, e.bus_id) for e in events if e.in_window is False}
    for code, bus in sorted(inside & outside):
        gpu = index.get(bus)
        name = f"GPU {gpu}" if gpu is not None else bus
        yield sign(
            Rule.XID_REPEATED_IN_JOBS,
            f"{name} also had Xid {code} at another time than this job's: if that was an unrelated program, "
            "run `dcgmi diag -r 3` on it",
            gpu,
        )


def _place(event: XidEvent, gpu: int | None) -> str:
    on = f"GPU {gpu} ({event.bus_id})" if gpu is not None and gpu >= 0 else f"a device at {event.bus_id}"
    times = f" {event.count} times" if event.count > 1 else ""
    at = f" at {moment(event.time_s)}" if event.time_s is not None else ""
    return f"Xid {event.code}{times} on {on}{at}"
