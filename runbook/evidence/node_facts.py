"""From the document of a node's answers to `NodeFacts`: the one place where its parts come together."""

from __future__ import annotations

from dataclasses import replace

from runbook.evidence.node_answers import NodeAnswers, printable, read_answers
from runbook.evidence.node_gpus import read_gpus
from runbook.evidence.node_gres import read_slurm_gpus
from runbook.evidence.node_kernel_log import read_clock, read_kernel_log
from runbook.evidence.node_oom_kills import oom_kills_of_answers
from runbook.evidence.node_probe import ProbeAnswer, find_document, read_document
from runbook.evidence.node_processes import read_gpu_processes
from runbook.evidence.node_script import PROBE_COMMANDS, shown_commands
from runbook.evidence.node_simulated import read_simulated
from runbook.model.node import LEFT_BY_EPILOG, GpuFacts, NodeFacts, Reach
from runbook.model.units import NodeName, Unknown

_PARTIAL_VIEWS = {
    "slurm": "the check ran inside a Slurm job's cgroup, which may hide GPUs from it (pam_slurm_adopt)",
    "container": "the check ran inside a container, which may hide GPUs from it",
    "namespace": "the check ran in a PID namespace of its own (a container), which may hide processes and GPUs from it",
}
_PROBE_ONLY = Unknown("only the node probe reads it, and it did not run there")
_DRIVER_MISMATCH = "driver and library versions differ"
"""How both roads to the GPUs begin their reason (NVML error 18)."""
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
    *,
    since_s: float | None,
    until_s: float | None,
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
        simulated_gpus, log = read_simulated(answers, clock, since_s, until_s)
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
        return _from_probe(
            facts, read_document(document, ahead_s=clock.ahead_s, since_s=since_s, until_s=until_s)
        )
    gpus, driver = read_gpus(answers)
    log = read_kernel_log(answers, clock, since_s, until_s)
    return replace(
        facts,
        software_fault=_software_fault(gpus),
        mps=_PROBE_ONLY,
        job_memory=_PROBE_ONLY,
        oom_kills=(
            log.events if isinstance(log.events, Unknown) else oom_kills_of_answers(answers, clock, since_s, until_s)
        ),
        driver=driver,
        gpus=gpus if isinstance(gpus, Unknown) else _with_processes(answers, gpus),
        xids=log.events,
        log_covers_since_s=log.covers_since_s,
    )


def read_left_document(text: str, node: NodeName, *, since_s: float | None, until_s: float | None) -> NodeFacts:
    """Facts from a document that the probe left in a file on the node (its epilog does). Times stay the node's own;
    `checked_at_s` is when it was written."""
    document = find_document(text)
    if isinstance(document, Unknown):
        return unreachable(node, Reach.ERROR, document.unknown)
    answer = read_document(document, ahead_s=0.0, since_s=since_s, until_s=until_s)
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
        xids=answer.log.events,
        log_covers_since_s=answer.log.covers_since_s,
        commands=PROBE_COMMANDS,
        simulated=facts.simulated or answer.standin,
        software_fault=_software_fault(answer.gpus),
        mps=answer.mps,
        job_memory=answer.job_memory,
        oom_kills=answer.oom_kills,
    )


def _software_fault(gpus: tuple[GpuFacts, ...] | Unknown) -> str:
    mismatch = isinstance(gpus, Unknown) and gpus.unknown.startswith(_DRIVER_MISMATCH)
    return _SOFTWARE_FAULT if mismatch else ""


def _with_processes(answers: NodeAnswers, gpus: tuple[GpuFacts, ...]) -> tuple[GpuFacts, ...]:
    processes = read_gpu_processes(answers)
    if isinstance(processes, Unknown):
        return tuple(replace(gpu, processes=processes) for gpu in gpus)
    return tuple(gpu if gpu.lost else replace(gpu, processes=processes.get(gpu.uuid, ())) for gpu in gpus)
