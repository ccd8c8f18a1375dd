"""Which of the node's GPUs the job had: from Slurm where its numbers can be told to be which GPUs, never by a guess.

Slurm's index of a GPU (`IDX`, SLURM_JOB_GPUS) counts gres.conf's device files, or with AutoDetect=nvml the GPUs by PCI
bus (gres.conf(5), Links); the driver's index counts by PCI bus; the number of /dev/nvidiaN counts as the kernel found
them. A process is kept to the device files where Slurm constrains devices, and else sees what CUDA_VISIBLE_DEVICES
says, which holds Slurm's indices and is read by CUDA as the driver's. Where these ways differ, nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from runbook.diagnosis.nodes.signs import FailureClues, JobGpus
from runbook.model.job import JobRecord
from runbook.model.node import GpuFacts, GpuProcess, NodeFacts
from runbook.model.units import Unknown

_DEVICE = re.compile(r"/dev/nvidia(?P<number>[0-9]{1,4})\Z")
_ANY_DEVICE = re.compile(r"/dev/[a-z]+(?P<number>[0-9]{1,4})\Z")
_HOW_MANY = "how many GPUs the job had is not known"
_SORTED_AS_TEXT = 10
"""Up to so many device files have the same order as texts and as numbers."""


def job_gpus(facts: NodeFacts, job: JobRecord, clues: FailureClues) -> JobGpus:
    """The job's GPUs: as given in CUDA_VISIBLE_DEVICES order; else all of the node where the job had as many; else
    those that Slurm says it gave; else those that its own processes are still on, where these are as many as it had.

    The failing GPU is the one that `node_device` names (the node's index or a GPU's UUID), else the one that the
    processes are on which the error message names, else `oom_device`: an index into the job's own GPUs."""
    oom_device, node_device, given = clues.oom_device, clues.node_device, clues.visible_gpus
    gpus = () if isinstance(facts.gpus, Unknown) else facts.gpus
    count = len(gpus)
    named = _holding(gpus, lambda process: process.pid in clues.named_pids)
    by_name = next(iter(named)) if len(named) == 1 else None
    if given is not None:
        by_name = _of_node_device(gpus, node_device) if node_device else by_name
        listed = given[oom_device] if oom_device is not None and 0 <= oom_device < len(given) else None
        failing = by_name if by_name is not None else listed
        return JobGpus(frozenset(given), set(given) >= set(range(count)), failing, "CUDA_VISIBLE_DEVICES")
    slurms = _of_slurm(facts, job)
    all_of_them = job.gpus_per_node is not None and job.gpus_per_node >= max(count, facts.expected_gpus or 0)
    if all_of_them or (job.gpus_per_node is None and isinstance(slurms, Unknown)):
        by_name = _of_node_device(gpus, node_device) if node_device else by_name
        own_index = oom_device if all_of_them else None
        source = "the job had as many as the node has" if all_of_them else _HOW_MANY
        return JobGpus(None, True, by_name if by_name is not None else own_index, source, certain=all_of_them)
    had = frozenset(slurms) if not isinstance(slurms, Unknown) else None
    by_device = _on_shared_node(facts, node_device, had, job.gpus_per_node) if node_device else None
    by_name = by_device if by_device is not None else by_name
    own = _holding(gpus, lambda process: process.job == job.id)
    if had is not None and not own <= had:
        which = ", ".join(map(str, sorted(own - had)))
        slurms = Unknown(f"Slurm says GPUs {_numbers(had)}, but processes of the job are on GPU {which}")
    elif had is not None:
        ordered = sorted(had)
        mine = ordered[oom_device] if oom_device is not None and 0 <= oom_device < len(ordered) else None
        failing = by_name if by_name in had else mine
        return JobGpus(had, len(had) >= count > 0, failing, f"Slurm gave it GPUs {_numbers(had)} of the node")
    why = slurms.unknown if isinstance(slurms, Unknown) else ""
    if job.gpus_per_node == 1 and by_name is not None and own <= {by_name}:
        return JobGpus(frozenset({by_name}), False, by_name, "its log names the one GPU that it had")
    if len(own) == job.gpus_per_node:
        source = "its processes that are still there"
        return JobGpus(own, False, by_name if by_name in own else None, source)
    return JobGpus(None, False, by_name, why)


def counted(facts: NodeFacts, gpus: JobGpus) -> tuple[int, ...] | Unknown:
    """The GPUs that count as the job's because it had them; Unknown where all count for want of knowing."""
    if gpus.indexes is not None:
        return tuple(sorted(gpus.indexes))
    if not gpus.whole_node or not gpus.certain or isinstance(facts.gpus, Unknown):
        return Unknown(gpus.source or "not known")
    return tuple(gpu.index for gpu in facts.gpus)


def _of_slurm(facts: NodeFacts, job: JobRecord) -> tuple[int, ...] | Unknown:
    """The driver's indices of the GPUs that Slurm gave the job on this node."""
    indices = job.indices_on(facts.node)
    if indices is None:
        return Unknown(
            "Slurm did not say while the job ran, and forgets it as a job ends" if job.state.job_class.ended
            else "Slurm did not say"
        )
    numbered = by_slurm_index(facts)
    if isinstance(numbered, Unknown):
        return Unknown(f"Slurm gave it those with its own numbers {_numbers(indices)}; {numbered.unknown}")
    if not indices or max(indices) >= len(numbered):
        return Unknown(f"Slurm numbers {len(numbered)} GPUs there, and gave the job number {max(indices, default=-1)}")
    return tuple(numbered[index] for index in indices)


def by_slurm_index(facts: NodeFacts) -> tuple[int, ...] | Unknown:
    """The driver's index of each GPU, by Slurm's index; Unknown with the reason where that is not certain."""
    if isinstance(facts.gpus, Unknown):
        return facts.gpus
    if any(gpu.mig_enabled is True for gpu in facts.gpus):
        return Unknown("MIG is on, and Slurm's numbers count its slices")
    if any(gpu.lost or gpu.index < 0 for gpu in facts.gpus):
        return Unknown("a GPU is lost, so that the driver may have numbered the others anew")
    slurm = facts.slurm_gpus
    if isinstance(slurm, Unknown):
        return Unknown(f"which GPUs those are is not known ({slurm.unknown})")
    indexes = tuple(sorted(gpu.index for gpu in facts.gpus))
    if facts.expected_gpus != len(indexes):
        return Unknown(f"Slurm counts {facts.expected_gpus or 'no'} GPUs there, and the driver {len(indexes)}")
    if slurm.autodetect == "nvml":
        return indexes
    by_minor = {gpu.minor: gpu.index for gpu in facts.gpus if not isinstance(gpu.minor, Unknown)}
    if len(by_minor) != len(indexes):
        return Unknown("which device file is which GPU could not be read")
    if slurm.autodetect:
        if all(minor == index for minor, index in by_minor.items()) and len(indexes) <= _SORTED_AS_TEXT:
            return indexes
        return Unknown(f"in which order AutoDetect={slurm.autodetect} numbers them is not known")
    pattern = _ANY_DEVICE if facts.simulated else _DEVICE
    matches = [pattern.match(file) for file in slurm.files]
    found = tuple(by_minor.get(int(match["number"]), -1) for match in matches if match)
    if tuple(sorted(found)) != indexes:
        return Unknown(f"the device files of {slurm.path} are not those of the node's GPUs")
    if found == indexes or slurm.constrained is True:
        return found
    return Unknown(
        f"{slurm.path} lists them in another order than the driver, and Slurm does not keep a job from the other "
        "device files (ConstrainDevices): its processes may use either"
    )


def _on_shared_node(
    facts: NodeFacts, node_device: str, had: frozenset[int] | None, gpus_per_node: int | None
) -> int | None:
    """The GPU that a log names on a node of which the job had a part. A UUID is one GPU's everywhere. A number is the
    node's where the job's processes see all devices; where they see their own only, those are numbered from 0."""
    gpus = () if isinstance(facts.gpus, Unknown) else facts.gpus
    constrained = True if isinstance(facts.slurm_gpus, Unknown) else facts.slurm_gpus.constrained
    known = not isinstance(facts.slurm_gpus, Unknown) and not isinstance(constrained, Unknown)
    if not node_device.isdecimal() or (known and constrained is False):
        return _of_node_device(gpus, node_device)
    number = int(node_device)
    if known:
        ordered = sorted(had or ())
        return ordered[number] if number < len(ordered) else None
    # Not known whether devices are constrained: a number that is too great for the job's own can only be the node's.
    own_count = len(had) if had is not None else gpus_per_node
    return _of_node_device(gpus, node_device) if own_count is not None and number >= own_count else None


def _of_node_device(gpus: Iterable[GpuFacts], node_device: str) -> int | None:
    """An abbreviated UUID is allowed, as in CUDA_VISIBLE_DEVICES, where it names one GPU."""
    found = [
        gpu.index for gpu in gpus
        if node_device == str(gpu.index) or (len(node_device) > 4 and gpu.uuid.startswith(node_device))
    ]
    return found[0] if len(found) == 1 else None


def _holding(gpus: Iterable[GpuFacts], wanted: Callable[[GpuProcess], bool]) -> frozenset[int]:
    return frozenset(
        gpu.index for gpu in gpus
        if not isinstance(gpu.processes, Unknown) and any(wanted(process) for process in gpu.processes)
    )


def _numbers(indices: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(indices)))
