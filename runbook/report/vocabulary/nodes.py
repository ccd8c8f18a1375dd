"""What a node check says, in the words of a person: verdicts, what to do, where it cannot see."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from runbook.model.catalogues import XidClass
from runbook.model.node import (
    CheckedNode,
    FoundJob,
    GpuProcess,
    JobMemory,
    JobStanding,
    NodeAction,
    NodeCheck,
    NodeFacts,
    NodeVerdict,
    Reach,
    Reports,
)
from runbook.model.units import JobId, Unknown, duration, moment, size
from runbook.report.vocabulary.clean import clean_line, shorten

VERDICTS = {
    NodeVerdict.CLEAN: "clean",
    NodeVerdict.FAULTY: "FAULTY",
    NodeVerdict.OCCUPIED: "OCCUPIED",
    NodeVerdict.UNKNOWN: "unknown",
}
STYLES = {
    NodeVerdict.CLEAN: "good",
    NodeVerdict.FAULTY: "bad",
    NodeVerdict.OCCUPIED: "bad",
    NodeVerdict.UNKNOWN: "warn",
}
ACTIONS = {
    NodeAction.DRAIN: "drain",
    NodeAction.EXCLUDE: "run elsewhere",
    NodeAction.END_LEAKED_PROCESS: "end the leak",
    NodeAction.WAIT_FOR_TENANT: "wait",
    NodeAction.REPORT_TO_OWNER: "ask the owner",
    NodeAction.RESET_WHEN_IDLE: "reset when idle",
    NodeAction.WATCH: "watch",
    NodeAction.IGNORE: "nothing",
    NodeAction.UNKNOWN: "look yourself",
}
XID_CLASSES = {
    XidClass.APPLICATION: "a program's",
    XidClass.INFORMATIONAL: "says nothing",
    XidClass.WATCH: "watch",
    XidClass.PENDING_RESET: "reset when idle",
    XidClass.RESTART_ELSEWHERE: "hit one program",
    XidClass.RESET: "reset needed",
    XidClass.DRAIN: "hardware",
    XidClass.LINK: "link",
    XidClass.RECOVERY_ACTION: "recovery action",
    XidClass.QUALIFIER: "beside 48",
    XidClass.UNDETERMINED: "not known",
}
_NEARLY = 0.97
"""Of a limit of main memory, in use at some time."""
_REACHED_BY_HAND = {
    Reach.REFUSED: "is the node up, and does its SSH server run there and on that port? Try ssh by hand",
    Reach.TIMEOUT: "is the node up and its network? A driver or a file system that hangs makes the check late too",
    Reach.HOST_KEY: "find out why its key is not the one in known_hosts (installed anew, or somebody between) before "
    "you trust it; nothing was asked of it",
    Reach.AUTHENTICATION: "look at nodes.user and nodes.key_file of the inventory, and at authorized_keys there",
    Reach.ERROR: "try ssh by hand with the inventory's user and key",
}


def is_live(check: NodeCheck) -> bool:
    """Whether the job that is meant has not ended: its own processes are then where they belong."""
    return any(one.id == check.job and one.standing is JobStanding.LIVE for one in check.jobs)


def warnings_of(node: CheckedNode, check: NodeCheck) -> tuple[str, ...]:
    """What the judgement warns of, less the own processes of a job that has not ended."""
    if not is_live(check):
        return node.judgement.warnings
    own = {one.text for one in node.judgement.findings if check.says(one, Reports.OWN_PROCESS)}
    return tuple(text for text in node.judgement.warnings if text not in own)


def action_words(node: CheckedNode, check: NodeCheck) -> str:
    """What to do, in two words."""
    judgement = node.judgement
    watched = [finding for finding in judgement.findings if finding.action is NodeAction.WATCH]
    only_its_own = all(check.says(finding, Reports.OWN_PROCESS) for finding in watched)
    if judgement.action is NodeAction.WATCH and only_its_own and is_live(check):
        return ACTIONS[NodeAction.IGNORE]
    return ACTIONS[judgement.action]


def job_words(process: GpuProcess, check: NodeCheck) -> str:
    """ "4711, runs", "4711, this job", "none", "not known"."""
    job = process.job
    if isinstance(job, Unknown):
        return "not known"
    if job is None:
        return "none"
    if check.job is not None and job == check.job:
        return f"{job}, this job"
    return f"{job}, {standing_words(job, check.jobs)}"


def standing_words(job: JobId, found: tuple[FoundJob, ...]) -> str:
    return {
        JobStanding.LIVE: "runs", JobStanding.ENDED: "ended", JobStanding.FORGOTTEN: "long ended",
        JobStanding.UNKNOWN: "runs?",
    }[_standing(job, found)]


def _standing(job: JobId, found: tuple[FoundJob, ...]) -> JobStanding:
    return next((one.standing for one in found if one.id == job), JobStanding.UNKNOWN)


def memory_words(used: int | Unknown, total: int | Unknown) -> str:
    """ "61.20 of 79.65 GiB"."""
    if isinstance(total, Unknown):
        return "not known"
    if isinstance(used, Unknown):
        return f"? of {size(total)}"
    both, unit = size(total).rpartition(" ")[::2]
    same = size(used)
    return f"{same.removesuffix(' ' + unit)} of {both} {unit}" if same.endswith(unit) else f"{same} of {both} {unit}"


def window_words(check: NodeCheck) -> str:
    """What the kernel log counts for."""
    until = f" to {moment(check.until_s)}" if check.until_s is not None else ""
    if check.job is not None:
        state = f" ({check.job_state})" if check.job_state else ""
        if check.since_s is None:
            return f"For job {check.job}{state}: its start is not known, so that no event counts as its own."
        end = until or ", and the job has not ended"
        return f"For job {check.job}{state}: GPU events count from {moment(check.since_s)}{end}."
    if check.since_s is not None:
        return f"For no job: GPU events count from {moment(check.since_s)} on. None is blamed on a job."
    return "For no job: all GPU events that the kernel log covers are shown, and none is blamed on a job."


def seen_words(node: CheckedNode, job: JobId | None) -> Iterator[tuple[str, str]]:
    """(title, words) of how the node was seen."""
    facts = node.facts
    own = node.judgement.job_gpus
    if job is not None and not isinstance(own, Unknown):
        source = node.judgement.job_gpus_source
        yield "job's GPUs", (", ".join(map(str, own)) or "none") + (f" ({source})" if source else "")
    if facts.simulated:
        yield "simulated", "these GPUs are simulated; no hardware is behind any figure"
    yield "seen", facts.reach_detail
    if facts.partial_view:
        yield "not whole", facts.partial_view
    if not isinstance(facts.driver, Unknown):
        yield "driver", facts.driver
    covers = facts.log_covers_since_s
    if isinstance(covers, float):
        yield "kernel log", f"reaches back to {moment(covers)}"
    if node.state is not None:
        gpus = "" if node.state.gpus is None else f", {node.state.gpus} GPUs"
        reason = f": {node.state.reason}" if node.state.reason else ""
        yield "Slurm", f"{'+'.join(node.state.states) or node.state.node_class}{gpus}{reason}"
    yield from _main_memory(facts, job)
    if not isinstance(facts.mps, Unknown) and facts.mps:
        named = ", ".join(f"{one.name} {one.pid}" for one in facts.mps[:6])
        yield "MPS", f"{named}: its clients share a GPU through the server"


def _main_memory(facts: NodeFacts, job: JobId | None) -> Iterator[tuple[str, str]]:
    """Of the job that is meant, and of those whose main memory ran out, or nearly."""
    known = () if isinstance(facts.job_memory, Unknown) else facts.job_memory
    for one in [one for one in known if one.job == job or _at_its_limit(one)][:8]:
        whose = f"job {one.job}" if isinstance(one.job, str) else one.job.unknown
        limit = one.limit_bytes
        of = "no limit" if limit is None else "limit not known" if isinstance(limit, Unknown) else f"of {size(limit)}"
        used = "in use not known" if isinstance(one.used_bytes, Unknown) else f"{size(one.used_bytes)} in use"
        peak = "" if isinstance(one.peak_bytes, Unknown) else f", at most {size(one.peak_bytes)}"
        kills = one.oom_kills
        killed = f"; the kernel killed {kills} of its processes" if isinstance(kills, int) and kills else ""
        yield "main memory", f"{whose}: {used} ({of}){peak}{killed}"


def _at_its_limit(one: JobMemory) -> bool:
    figures = [value for value in (one.used_bytes, one.peak_bytes) if not isinstance(value, Unknown)]
    limit = one.limit_bytes
    near = isinstance(limit, int) and limit > 0 and any(value >= limit * _NEARLY for value in figures)
    return near or (isinstance(one.oom_kills, int) and one.oom_kills > 0)


def oom_kill_words(facts: NodeFacts, *, windowed: bool) -> Iterator[str]:
    """The processes that the kernel killed in the window; all of them where there is none."""
    for kill in () if isinstance(facts.oom_kills, Unknown) else facts.oom_kills:
        if windowed and kill.in_window is False:
            continue
        whose = f" of job {kill.job}" if isinstance(kill.job, str) else " of no Slurm job" if kill.job is None else ""
        why = "" if isinstance(kill.whole_node, Unknown) else (
            ": the node's main memory was used up" if kill.whole_node else ": the limit of its cgroup"
        )
        sure = f" ({kill.in_window.unknown})" if isinstance(kill.in_window, Unknown) else ""
        yield f"{moment(kill.time_s)}: process {kill.pid} ({kill.name or 'unnamed'}){whose}{why}{sure}"


def next_steps(node: CheckedNode, check: NodeCheck) -> Iterator[tuple[str, str]]:
    """What a person does now, the most urgent first, each with a command to copy or ""."""
    facts, judgement = node.facts, node.judgement
    name = str(facts.node)
    if facts.reach is not Reach.OK:
        yield _REACHED_BY_HAND[facts.reach], ""
        return
    if facts.software_fault:
        yield "let the node's jobs end, then reboot it, or unload the driver's modules and load them anew", ""
    wanted = dict.fromkeys((judgement.action, *(finding.action for finding in judgement.findings)))
    if judgement.drain:
        first = next((finding for finding in judgement.findings if finding.action is NodeAction.DRAIN), None)
        why = shorten(clean_line(first.text), 120) if first else "faulty GPU"
        yield "drain it; jobs that run there go on", (
            f"scontrol update NodeName={name} State=DRAIN Reason={shlex.quote(why)}"
        )
    elif NodeAction.EXCLUDE in wanted:
        yield "start the next run on other nodes; this one stays in service", f"sbatch --exclude={name} …"
    if NodeAction.WAIT_FOR_TENANT in wanted:
        yield "wait until the other job has ended: there is no other node to run on", ""
    if wanted.keys() & {NodeAction.REPORT_TO_OWNER, NodeAction.END_LEAKED_PROCESS}:
        yield from _owners_to_ask(node, check)
    if NodeAction.RESET_WHEN_IDLE in wanted:
        gpus = sorted({
            finding.gpu for finding in judgement.findings
            if finding.action is NodeAction.RESET_WHEN_IDLE and finding.gpu is not None and finding.gpu >= 0
        })
        listed = ",".join(map(str, gpus))
        yield (
            "reset once nothing runs there any more, and monitoring is stopped too; as root",
            f"nvidia-smi --gpu-reset -i {listed}" if listed else "",
        )
    unknown = [
        check.says(finding, Reports.WITHOUT_WINDOW) for finding in judgement.findings
        if finding.action is NodeAction.UNKNOWN
    ]
    unplaced = any(unknown) and check.job is None and check.since_s is None
    if unplaced:
        yield "say from when on GPU events count, or for which job (--job)", f"runbook node {name} --since 6h"
    only_unplaced = unplaced and all(unknown)
    if judgement.verdict is NodeVerdict.UNKNOWN and not facts.software_fault and not only_unplaced:
        yield "look at what is not known; much of it is seen as root (nodes.sudo of the inventory)", ""
    worth_it = any(check.says(finding, Reports.WORTH_A_DIAGNOSIS) for finding in judgement.findings)
    if judgement.verdict is NodeVerdict.CLEAN and worth_it:
        yield "nothing now; if the warning comes again, run a diagnosis there while it is idle", "dcgmi diag -r 3"


def _owners_to_ask(node: CheckedNode, check: NodeCheck) -> Iterator[tuple[str, str]]:
    owners: dict[str, list[str]] = {}
    for process in node.judgement.tenants:
        if isinstance(process.job, str) and _standing(process.job, check.jobs) is JobStanding.LIVE:
            continue
        owner = "an owner that is not known" if isinstance(process.owner, Unknown) else str(process.owner)
        owners.setdefault(owner, []).append(str(process.pid))
    for owner, pids in list(owners.items())[:6]:
        listed = ", ".join(pids[:8]) + (f" and {len(pids) - 8} more" if len(pids) > 8 else "")
        yield f"ask {owner} about {'process' if len(pids) == 1 else 'processes'} {listed}", ""


def age_words(process: GpuProcess) -> str:
    return "?" if isinstance(process.age_s, Unknown) else duration(process.age_s)
