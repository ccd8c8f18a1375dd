"""Rules on everything that is not a GPU out-of-memory message with figures."""

from __future__ import annotations

from runbook.diagnosis.case import Case, Vote
from runbook.diagnosis.figures import size
from runbook.model.diagnosis import Kind
from runbook.model.job import JobClass
from runbook.model.node import NodeVerdict

_FIRM = {
    "SL-OOM-02": 0.95, "SL-OOM-07": 0.9, "SL-TASK-01": 0.95, "KRN-03": 0.95, "RAY-01": 0.85, "RAY-02": 0.92,
    "HOST-01": 0.9, "HOST-02": 0.88, "HOST-02b": 0.85, "HOST-03": 0.78, "CU-05H": 0.85, "CU-01": 0.6, "NCCL-04": 0.8,
    "HOST-04": 0.82, "HOST-04b": 0.93, "NCCL-03": 0.93, "RAY-05": 0.88,
    "GF-01": 0.93, "GF-02": 0.95, "GF-03": 0.92, "GF-05": 0.6, "NCCL-01": 0.85,
    "VLLM-04": 0.75, "VLLM-06": 0.75, "VLLM-07": 0.75, "SGL-05": 0.7, "PT-CUDA-11": 0.95,
    "PT-CUDA-10": 0.92, "PY-EXC": 0.85, "NO-02": 0.85,
}
"""How firm a signature is by itself; 0.9 for signatures that are not named."""

_MEANING = {
    Kind.HOST_OOM: "This is memory of the node, not of the card: batch and allocator settings do not touch it, and "
                   "offloading to the host makes it worse (R-21).",
    Kind.SHM: "The shared memory file system of the node or container is full; neither the card nor other host memory "
              "is the question.",
    Kind.NCCL_BUFFERS: "NCCL takes device memory outside PyTorch's allocator, which does not give its cache back for "
                       "it (R-19): leave headroom.",
    Kind.KV_CACHE_SIZING: "The inference engine's share of the card is too small for its cache: the share has to be "
                          "raised, or lengths lowered, contrary to most advice on out-of-memory.",
    Kind.INFERENCE_RESERVATION: "An inference engine and something else want the same memory of the card.",
    Kind.PER_PROCESS_LIMIT: "A memory fraction limits the process; the card itself need not be full.",
    Kind.CUDA_CONTEXT_OR_DRIVER: "A call outside PyTorch's caching allocator failed, so the cache may hold what it "
                                 "needed, and no figures are printed (R-19).",
}


def faulty_node(case: Case) -> Vote | None:
    """The node check found the failing rank's card broken: then figures prove nothing about the job."""
    judgement = case.judgement()
    if judgement is None or judgement.verdict is not NodeVerdict.FAULTY:
        return None
    certain = case.node is not None or len(case.judgements) == 1
    return Vote(
        "node check: faulty", Kind.HARDWARE_FAULT, 0.92 if certain else 0.6,
        (f"The node check of {judgement.node} found a fault"
         + (f" of GPU {', '.join(map(str, judgement.faulty_gpus))}" if judgement.faulty_gpus else "")
         + f": {'; '.join(judgement.reasons[:3]) or 'see its report'}.",),
        () if certain else ("The log does not say on which node the failing rank ran.",),
    )


def by_signature(case: Case) -> Vote | None:
    """The line itself says what it is: host memory, shared memory, a fault, no memory at all."""
    root = case.root
    if root is None or root.means not in Kind.__members__.values():
        return None
    kind = Kind(root.means)
    if kind is Kind.TRUE_OOM:
        return None
    confidence = _FIRM.get(root.signature, 0.9 if kind is not Kind.CUDA_CONTEXT_OR_DRIVER else 0.65)
    reasons = [f"The first failure is {root.signature}: {_said(root.excerpt)}"]
    against: list[str] = []
    missing: list[str] = []
    if kind in _MEANING:
        reasons.append(_MEANING[kind])
    if kind is Kind.HOST_OOM:
        steps = _killed_steps(case)
        others = [one for one in case.story.candidates if one.means == Kind.HOST_OOM]
        if steps:
            confidence = max(confidence, 0.97)
            reasons.append(f"Slurm's accounting says OUT_OF_MEMORY for {', '.join(steps)}.")
        elif others:
            confidence = max(confidence, 0.93)
            reasons.append(f"{others[0].signature} says so too.")
        elif confidence < 0.9:
            missing.append("Slurm's accounting (State, MaxRSS, ReqMem) and the kernel log of the node")
        if root.fields.tried_bytes is not None:
            reasons.append(f"It asked for {size(root.fields.tried_bytes)} of host memory.")
    if kind is Kind.HARDWARE_FAULT:
        judgement = case.judgement()
        if judgement is not None and judgement.verdict is NodeVerdict.CLEAN:
            confidence = min(confidence - 0.15, 0.75)
            against.append(f"The node check of {judgement.node} found no fault.")
        elif judgement is None:
            missing.append("the node's own ECC, row remap and XID records")
    if kind is Kind.CUDA_CONTEXT_OR_DRIVER:
        missing.append("nvidia-smi of the node at that moment: who held the card's memory")
        if root.signature == "CU-04":
            confidence = 0.4
            against.append("The same status comes from a driver mismatch, an earlier fault or an unsupported layout.")
    return Vote(f"signature {root.signature}", kind, confidence, tuple(reasons), tuple(against), tuple(missing))


def without_figures(case: Case) -> Vote | None:
    """A GPU out-of-memory message whose figures are cut or were never printed."""
    root = case.root
    if root is None or root.means != Kind.TRUE_OOM or case.figures.available_bytes is not None:
        return None
    tried = f" It asked for {size(case.figures.tried)}." if case.figures.tried is not None else ""
    return Vote(
        "message without figures", Kind.TRUE_OOM, 0.5,
        (f"{root.signature} says that the device ran out of memory, but not how much was free or reserved.{tried}",
         "Without these figures a shortage cannot be told from fragmentation; shortage is the more common."),
        missing=("the figures of the message (torchelastic's error.json has the whole text), or a memory snapshot",),
    )


def by_accounting(case: Case) -> Vote | None:
    """No failure in the logs, but Slurm says that the kernel killed for memory."""
    if case.root is not None:
        return None
    steps = _killed_steps(case)
    if not steps:
        return None
    return Vote(
        "Slurm accounting", Kind.HOST_OOM, 0.85,
        (f"Slurm's accounting says OUT_OF_MEMORY for {', '.join(steps)}; the logs name no other failure.",
         _MEANING[Kind.HOST_OOM]),
        ("The kernel counts helper processes too: a rank need not have been the victim (R-24).",),
        ("the kernel log of the node, which names the process",),
    )


def nothing_found(case: Case) -> Vote | None:
    """No cause in the logs: what the consequences and the scheduler's state leave open."""
    if case.root is not None:
        return None
    state = case.job.state if case.job else None
    signatures = {one.signature for one in case.story.collateral} | {one.signature for one in case.story.candidates}
    if state is not None and state.job_class in (JobClass.SUCCEEDED, JobClass.CANCELLED, JobClass.STOPPED):
        return Vote(
            "scheduler state", Kind.NOT_OOM, 0.85,
            (f"The job's state is {state.name}, and its logs show no failure of their own.",),
        )
    reasons = [one.why for one in case.story.collateral]
    killed = "HOST-06" in signatures or any("SIGKILL" in why or "(killed)" in why for why in reasons)
    if killed:
        return Vote(
            "R-22 SIGKILL of unknown sender", Kind.UNDETERMINED, 0.6,
            ("A process was killed by SIGKILL, and nothing says by whom: the OOM killer, scancel, --kill-on-bad-exit "
             "and torchrun's teardown send the same signal.",),
            missing=("Slurm's accounting (State, MaxRSS, ReqMem)", "memory.events of the step's cgroup",
                     "the kernel log of the node"),
        )
    if signatures & {"NCCL-05", "NCCL-06", "NCCL-07", "NCCL-02"}:
        silent = _silent_ranks(case)
        return Vote(
            "only consequences", Kind.NOT_OOM, 0.55,
            ("The logs hold collective timeouts and no word of memory: a hang or a lost rank.",
             *((f"Rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent[:8]))} printed no timeout and "
                f"{'are' if len(silent) > 1 else 'is'} the first suspect.",) if silent else ())),
            missing=("the logs of the ranks that stay silent", "Slurm's accounting of every step"),
        )
    progress = case.story.progress
    if not signatures and progress.last_step is not None and progress.last_step == progress.total_steps:
        return Vote(
            "ran to its end", Kind.NOT_OOM, 0.75,
            (f"The logs reach the last step ({progress.last_step} of {progress.total_steps}) and show no failure.",),
            missing=("the job's state from Slurm",),
        )
    return Vote(
        "no failure found", Kind.UNDETERMINED, 0.7, ("The logs hold no failure that any signature knows.",),
        missing=("the logs of all ranks", "Slurm's accounting of every step"),
    )


def _silent_ranks(case: Case) -> list[int]:
    world = case.story.world_size
    loud = {one.rank for one in case.story.collateral if one.signature.startswith("NCCL")}
    loud |= {one.rank for one in case.story.candidates}
    if world is None or world > 4096:
        return []
    silent = [rank for rank in range(world) if rank not in loud]
    return silent if len(silent) <= max(1, world // 4) else []


def _killed_steps(case: Case) -> list[str]:
    if case.job is None:
        return []
    steps = [step.id for step in case.job.steps if step.state.name == "OUT_OF_MEMORY"]
    return steps or ([case.job.id] if case.job.state.name == "OUT_OF_MEMORY" else [])


def _said(excerpt: str) -> str:
    """The last line of an excerpt that is not indented: what was said."""
    lines = [line for line in excerpt.splitlines() if line.strip()]
    spoken = [line for line in lines if not line.startswith((" ", "\t", "Traceback"))]
    line = (spoken or lines or [""])[0].strip()
    return f"“{line if len(line) <= 180 else line[:177] + '…'}”"
