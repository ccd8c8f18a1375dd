"""From the document of a node's answers to `NodeFacts`: the one place where its parts come together."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import replace
from typing import Any

from runbook.model.catalogues import is_switch_event
from runbook.model.node import LEFT_BY_EPILOG, Cause, GpuFacts, GpuProcess, NodeFacts, Reach, Unread, XidEvent
from runbook.model.units import Bytes, NodeName, Unknown
from runbook.node.check_script import PROBE_COMMANDS, shown_commands
from runbook.node.gpus import read_gpus
from runbook.node.gres import read_slurm_gpus
from runbook.node.kernel_log import (
    KernelLog,
    NodeClock,
    Window,
    event_of,
    merged,
    oom_kills_of_answers,
    read_clock,
    read_kernel_log,
)
from runbook.node.probe_document import ProbeAnswer, find_document, read_document
from runbook.node.processes import owned, owners_of, read_gpu_processes, start_times
from runbook.node.sections import NodeAnswers, printable, read_answers
from runbook.node.xid import FALLEN_OFF_THE_BUS, bus_id

# Facts of simulated GPUs from the state file that the demo's jobs and the sandbox share: no GPU is behind them.
#
# Layout: `$SIMULATED_GPU_DIR/<host>/state.json` with `gpus` and `kernel_log`, and `processes/<gpu>/<pid>`, one line
# of JSON each. Only read where there is no nvidia-smi at all; everything said here carries `simulated`.

_NOT_SAID = Unknown("the simulated GPU's state does not say")


def read_simulated(
    answers: NodeAnswers, clock: NodeClock, window: Window
) -> tuple[tuple[GpuFacts, ...] | Unknown, KernelLog]:
    """GPUs with their processes, and the kernel log, of the state file. A broken file makes both unknown."""
    section = answers.get("simulated_state")
    try:
        state = json.loads(section.text if section else "")
        rows, log = list(state["gpus"]), list(state.get("kernel_log", ()))
        processes = _processes(answers)
        gpus = tuple(sorted((_gpu(row, processes, answers) for row in rows), key=lambda gpu: gpu.index))
        events = [event for row in log for event in _events(row, window)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = Unknown(f"the state file of the simulated GPUs cannot be read: {printable(str(error), 120)}")
        return why, KernelLog(why, why)
    covers: float | Unknown = Unknown("the node did not say since when it runs")
    if clock.now_s is not None and clock.uptime_s is not None:
        covers = clock.now_s - clock.uptime_s
    return gpus, KernelLog(merged(events), covers)


def _gpu(row: dict[str, Any], processes: dict[int, list[GpuProcess]], answers: NodeAnswers) -> GpuFacts:
    index = int(row["index"])
    mine = list(processes.get(index, ()))
    owners = owners_of(answers)
    for extra in row.get("extra_processes") or ():
        mine.append(owned(int(extra["pid"]), Bytes(int(extra["bytes"])), str(extra["name"]), owners, answers))
    total = int(row["total_bytes"])
    usable = total if row.get("usable_bytes") is None else int(row["usable_bytes"])
    taken = sum(process.used_bytes for process in mine if not isinstance(process.used_bytes, Unknown))
    used = min(total, max(0, total - usable) + taken)
    lost = bool(row.get("lost"))
    ecc, remap = row.get("ecc") or {}, row.get("row_remap") or {}
    gone = Unknown("the simulated GPU is lost")
    return GpuFacts(
        index=index,
        uuid=printable(str(row.get("uuid", "")), 80),
        bus_id=bus_id(str(row.get("bus_id", ""))),
        name=printable(str(row.get("name", "")), 80),
        total_bytes=gone if lost else Bytes(total),
        used_bytes=gone if lost else Bytes(used),
        free_bytes=gone if lost else Bytes(total - used),
        ecc_uncorrectable_volatile=gone if lost else _count(ecc, "volatile_uncorrectable"),
        ecc_uncorrectable_aggregate=gone if lost else _count(ecc, "aggregate_uncorrectable"),
        sram_threshold_exceeded=gone if lost else _flag(ecc, "sram_threshold_exceeded"),
        row_remap_pending=gone if lost else _flag(remap, "pending"),
        row_remap_failed=gone if lost else _flag(remap, "failure"),
        recovery_action=gone if lost else printable(str(row.get("recovery_action") or "None"), 60),
        mig_enabled=gone if lost else bool(row.get("mig")),
        lost=lost,
        minor=row["minor"] if isinstance(row.get("minor"), int) else _NOT_SAID,
        processes=gone if lost else tuple(mine),
    )


def _processes(answers: NodeAnswers) -> dict[int, list[GpuProcess]]:
    """Entries of living processes by GPU; an entry older than the process of that number is somebody else's."""
    section = answers.get("simulated_processes")
    owners = owners_of(answers)
    started = start_times(answers)
    found: dict[int, list[GpuProcess]] = {}
    for line in section.lines if section else ():
        place, _, rest = line.partition(" ")
        written, _, text = rest.partition(" ")
        gpu, _, pid_text = place.partition("/")
        if not (gpu.isdecimal() and pid_text.isdecimal() and written.isdecimal()):
            continue
        pid = int(pid_text)
        if pid not in started or started[pid] > int(written) + 2:
            continue
        try:
            entry = json.loads(text)
            process = owned(pid, Bytes(int(entry["bytes"])), str(entry["name"]), owners, answers)
        except (ValueError, KeyError, TypeError):
            continue
        found.setdefault(int(gpu), []).append(process)
    return found


def _events(row: dict[str, Any], window: Window) -> list[XidEvent]:
    time_s = float(row["time"])
    found = (event_of(line, time_s, witness=True) for line in str(row["line"]).split("\n"))
    inside = window.holds(time_s)
    return [replace(event, in_window=inside) for event in found if event is not None]


def _count(row: dict[str, Any], name: str) -> int | Unknown:
    return int(row[name]) if name in row else _NOT_SAID


def _flag(row: dict[str, Any], name: str) -> bool | Unknown:
    return bool(row[name]) if name in row else _NOT_SAID


_PARTIAL_VIEWS = {
    "slurm": "the check ran inside a Slurm job's cgroup, which may hide GPUs from it (pam_slurm_adopt)",
    "container": "the check ran inside a container, which may hide GPUs from it",
    "namespace": "the check ran in a PID namespace of its own (a container), which may hide processes and GPUs from it",
}
_LISTS = ("gpu", "pci")
"""Where the shell's answer has addresses of GPUs: the driver's list, and the kernel's."""
_NO_SUCH_GPU = Unknown(
    "nothing else on the node tells of a GPU at this address, neither NVML nor the driver's list nor the PCI bus: a "
    "card that was taken off the bus since, or a line that a user has made"
)
_IT_ANSWERS = Unknown("the GPU at this address answers, as none does that is off the bus")
_PROBE_ONLY = Unknown("only the node probe reads it, and it did not run there")
_SOFTWARE_FAULT = (
    "the NVIDIA driver was updated and not loaded anew, so that its library does not fit it any more: no program can "
    "use a GPU of this node until the driver is loaded anew or the node reboots; software, not a hardware fault"
)


def unreachable(node: NodeName, reach: Reach, detail: str, checked_at_s: float | None = None) -> NodeFacts:
    """Facts of a node that did not answer: every figure unknown, for the same reason."""
    why = Unknown(f"{node} was not reached: {detail}")
    return NodeFacts(
        node=node, reach=reach, reach_detail=detail, checked_at_s=checked_at_s, driver=why, gpus=why, xids=why,
        log_covers_since_s=why, mps=why, job_memory=why, oom_kills=why,
    )


def read_node(
    text: str,
    marker: str,
    node: NodeName,
    window: Window,
    asked_at_s: float | None,
    cut_why: str = "",
) -> NodeFacts:
    """Facts from what a node wrote. `cut_why` says why the end is missing ("no answer within 15 s"); what came
    before it still counts. A node that was reached but gave no section at all is `Reach.ERROR`."""
    answers = read_answers(text, marker)
    if not answers.get("node"):
        said = printable(text.strip(), 160)
        detail = cut_why or (f"the node's shell answered: {said}" if said else "the node's shell gave no answer")
        return unreachable(node, Reach.TIMEOUT if cut_why else Reach.ERROR, detail, asked_at_s)
    clock = read_clock(answers, asked_at_s)
    simulated = bool(answers.value("node", "simulated"))
    words = [f"answered as {printable(answers.value('node', 'user'), 40)}"]
    if answers.value("node", "as") == "sudo-refused":
        words.append("sudo -n was refused")
    if clock.ahead_s:
        words.append(f"the node's clock is {clock.ahead_s:+.0f} s off ours; times are corrected")
    if answers.cut:
        words.append(cut_why or "the answer is cut off")
    facts = NodeFacts(
        node=node,
        reach=Reach.OK,
        reach_detail="; ".join(words),
        checked_at_s=asked_at_s,
        commands=shown_commands(),
        simulated=simulated,
        slurm_gpus=read_slurm_gpus(answers, node),
        partial_view="" if simulated else _PARTIAL_VIEWS.get(answers.value("node", "inside"), ""),
    )
    if answers.get("simulated_state"):
        simulated_gpus, log = read_simulated(answers, clock, window)
        return replace(
            facts,
            driver=Unknown("simulated GPUs have no driver"),
            gpus=simulated_gpus,
            xids=log.events,
            log_covers_since_s=log.covers_since_s,
            commands=("state file of the simulated GPUs",),
        )
    section = answers.get("probe")
    document = find_document(section.text) if section is not None and section.exit_code == 0 else None
    if document is not None and not isinstance(document, Unknown):
        return _from_probe(facts, read_document(document, ahead_s=clock.ahead_s, window=window))
    gpus, driver = read_gpus(answers)
    log = read_kernel_log(answers, clock, window)
    listed = frozenset(bus_id(each) for name in _LISTS for each in answers.values("node", name))
    return replace(
        facts,
        software_fault=_software_fault(gpus),
        mps=_PROBE_ONLY,
        job_memory=_PROBE_ONLY,
        oom_kills=log.events if isinstance(log.events, Unknown) else oom_kills_of_answers(answers, clock, window),
        driver=driver,
        gpus=gpus if isinstance(gpus, Unknown) else _with_processes(answers, gpus),
        # What is simulated has no author but the simulation, and its GPUs answer whatever its log says.
        xids=log.events if simulated else _seconded(log.events, gpus, listed),
        log_covers_since_s=log.covers_since_s,
    )


def read_left_document(text: str, node: NodeName, window: Window | None = None) -> NodeFacts:
    """Facts from a document that the probe left in a file on the node (its epilog does). Times stay the node's own;
    `checked_at_s` is when it was written."""
    document = find_document(text)
    if isinstance(document, Unknown):
        return unreachable(node, Reach.ERROR, document.unknown)
    answer = read_document(document, ahead_s=0.0, window=window or Window())
    facts = NodeFacts(
        node=node, reach=Reach.OK, reach_detail=f"{LEFT_BY_EPILOG}; ran as {answer.user or 'an unknown user'}",
        checked_at_s=answer.now_s, partial_view=_PARTIAL_VIEWS.get(answer.inside, ""),
    )
    return _from_probe(facts, answer)


def _from_probe(facts: NodeFacts, answer: ProbeAnswer) -> NodeFacts:
    by = f"by the probe under Python {answer.python}" if answer.python else "by the probe"
    return replace(
        facts,
        reach_detail=f"{facts.reach_detail}; {by}",
        driver=answer.driver,
        gpus=answer.gpus,
        xids=_seconded(answer.log.events, answer.gpus, answer.listed),
        log_covers_since_s=answer.log.covers_since_s,
        commands=PROBE_COMMANDS,
        simulated=facts.simulated or answer.standin,
        software_fault=_software_fault(answer.gpus),
        mps=answer.mps,
        job_memory=answer.job_memory,
        oom_kills=answer.oom_kills,
    )


def _seconded(
    events: tuple[XidEvent, ...] | Unknown, gpus: tuple[GpuFacts, ...] | Unknown, listed: Set[str]
) -> tuple[XidEvent, ...] | Unknown:
    """The events, of which a record of the kernel's is a witness only where something else on the node agrees: that
    there is a GPU at the address, and that one which fell off the bus does not answer. The kernel prints words of its
    users in too many places for a record alone to cost a node."""
    if isinstance(events, Unknown):
        return events
    known = {gpu.bus_id: gpu for gpu in (() if isinstance(gpus, Unknown) else gpus)}
    seconded = []
    for event in events:
        gpu = known.get(event.bus_id)
        if event.witness is True and gpu is None and event.bus_id not in listed and not is_switch_event(event.line):
            event = replace(event, witness=_NO_SUCH_GPU)
        elif event.witness is True and event.code == FALLEN_OFF_THE_BUS and gpu is not None and _answers(gpu):
            event = replace(event, witness=_IT_ANSWERS)
        seconded.append(event)
    return tuple(seconded)


def _answers(gpu: GpuFacts) -> bool:
    return not gpu.lost and not isinstance(gpu.used_bytes, Unknown)


def _software_fault(gpus: tuple[GpuFacts, ...] | Unknown) -> str:
    return _SOFTWARE_FAULT if isinstance(gpus, Unread) and gpus.cause is Cause.DRIVER_MISMATCH else ""


def _with_processes(answers: NodeAnswers, gpus: tuple[GpuFacts, ...]) -> tuple[GpuFacts, ...]:
    processes = read_gpu_processes(answers)
    if isinstance(processes, Unknown):
        return tuple(replace(gpu, processes=processes) for gpu in gpus)
    return tuple(gpu if gpu.lost else replace(gpu, processes=processes.get(gpu.uuid, ())) for gpu in gpus)
