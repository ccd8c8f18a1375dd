"""Launcher logs of any size for measurements, the same bytes each time: a training job's start, its steps day after
day with harmless words among them, the out-of-memory that killed it, and what the other ranks said afterwards.

The combined log is of one job of 64 nodes: `srun --label` in front of everything, torchrun's `--tee` inside it, torch's
own ranks in front of warnings and tracebacks, Ray's actors for the data, NCCL's node:pid:tid, bars with carriage
returns.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

NODES = 64
GPUS_A_NODE = 8
RANKS = NODES * GPUS_A_NODE
FAILED_RANK = 301
STEPS_A_DAY = 8640
_STEP_S = 10
_DAY = "2026-DA-YY"
_STEP = "@@STEP@@"
_FALLOUT_SHARE = 0.01
"""Of the log, up to _FALLOUT_BYTES, lies behind the failure."""
_FALLOUT_BYTES = 100_000_000
_BODIES = 16
"""Different ones among the files of the ranks."""
_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {local} has a total capacity of 79.15 "
    "GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the "
    "allocated memory 75.20 GiB is allocated by PyTorch, and 730.00 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
_CALLS = ("pretrain", "train", "train_step", "forward_backward", "forward_step", "forward", "decoder", "layer", "mlp")


def node_of(rank: int) -> str:
    return f"gpu-{rank // GPUS_A_NODE + 1:03}"


def labelled(rank: int) -> str:
    """What `srun --label` and torchrun's tee put in front of a rank's line."""
    return f"{rank // GPUS_A_NODE:2}: [default{rank % GPUS_A_NODE}]:"


def start_lines(ranks: range, label: bool = True) -> Iterator[str]:
    """What ranks print when they start."""
    head = labelled(ranks[0]) if label else ""
    yield head + (
        f"using world size: {RANKS}, data-parallel size: 64, tensor-model-parallel size: 8, "
        "pipeline-model-parallel size: 1"
    )
    yield head + "> initializing torch distributed ..."
    for rank in ranks:
        node, local = node_of(rank), rank % GPUS_A_NODE
        said_by = (labelled(rank) if label else "") + f"{node}:{40_000 + local}:{41_000 + local} [{local}] NCCL INFO "
        yield said_by + f"Bootstrap : Using ib0:10.1.0.{rank // GPUS_A_NODE + 1}<0>"
        yield said_by + "NCCL version 2.21.5+cuda12.4"
        for channel in range(16):
            peer = f"{(rank + 1) % RANKS}[{(local + 1) % GPUS_A_NODE}]"
            yield said_by + f"Channel {channel:02}/0 : {rank}[{local}] -> {peer} via P2P/CUMEM"
        yield said_by + "Connected all rings, use ring PXN 0 GDR 1"
        yield (labelled(rank) if label else "") + (
            f"[rank{rank}]:[W301 00:00:04.{rank:03}000000 ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank {rank}]  "
            f"using GPU {local} as device used by this process is currently unknown."
        )


def step_lines(step: int, chance: random.Random, ranks: range = range(RANKS)) -> Iterator[str]:
    """A step of the day: the iteration line, timers, loaders, now and then what looks like trouble and is none.

    `ranks` are those that speak; a single one has its file for itself, without labels."""
    second = step * _STEP_S
    moment = f"{_DAY} {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    alone = len(ranks) == 1

    def someone() -> tuple[str, int]:
        rank = chance.choice(ranks)
        return "" if alone else labelled(rank), rank

    last = "" if alone else labelled(ranks[-1])
    yield (
        f"{last} [{moment}] iteration {_STEP}/99000000 | consumed samples: {step * 512:12} | elapsed time per "
        f"iteration (ms): {9900 + chance.random() * 90:.1f} | throughput per GPU (TFLOP/s/GPU): "
        f"{400 + chance.random() * 9:.1f} | learning rate: 1.200000E-04 | global batch size:   512 | "
        f"lm loss: {2 + chance.random():.6E} | loss scale: 1.0 | "
        f"grad norm: {chance.random():.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )
    for _ in range(2 if alone else 24):
        head, rank = someone()
        yield (
            f"{head}{moment},{chance.randrange(1000):03} [rank {rank}] INFO data.loader shard "
            f"{chance.randrange(99999):05} of the corpus opened, {chance.randrange(1 << 24):8} tokens, prefetch queue "
            f"{chance.randrange(16):2} deep, memory map at 0x{chance.getrandbits(44):012x}, {chance.random():.3f} s"
        )
    for _ in range(0 if alone else 8):
        yield (
            f"\x1b[36m(Tokenizer pid={chance.randrange(9000, 9064)}, ip=10.1.0.{chance.randrange(1, NODES)})\x1b[0m "
            f"batch {chance.randrange(1 << 30)} packed: {chance.randrange(4096)} documents, "
            f"{chance.random():.4f} of it padding"
        )
    if step % 10 == 0:
        yield f"{last}(min, max) time across ranks (ms):"
        for timer in ("forward-backward", "forward-compute", "backward-compute", "batch-generator", "optimizer"):
            low = chance.random() * 900
            yield f"{last}    {timer} {'.' * (64 - len(timer))}: ({low:.2f}, {low + 7:.2f})"
    if step % 500 == 7:
        bars = (
            f"{done:3}%|{'#' * (done // 10):10}| {done}/100 [00:{done // 2:02}<00:{50 - done // 2:02},  2.00it/s]"
            for done in range(101)
        )
        yield "evaluating: " + "\r".join(bars)
    if step % 200 == 13:
        yield someone()[0] + (
            "/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:1399: FutureWarning: "
            "`torch.cpu.amp.autocast(args...)` is deprecated. Errors such as out of memory would be raised elsewhere."
        )
    if step % 300 == 77:
        yield someone()[0] + (
            "WARNING: kernel configuration 4 skipped: out of resource: shared memory, Required: 262144"
        )
    if step % 400 == 211:
        head, rank = someone()
        yield f"{head}{moment},000 [rank {rank}] WARNING store.client HTTPError 503 from the store, try 2 of 9"
    if step % 360 == 0:
        yield f"{last}saving checkpoint at iteration {_STEP} to /scratch/ada/checkpoints in torch_dist format"
        yield f"{last}  successfully saved checkpoint from iteration {_STEP} to /scratch/ada/checkpoints"


def failure_lines(rank: int, second: int, label: bool = True) -> list[str]:
    """A rank's traceback and its out-of-memory message, labelled by torch."""
    lines = ["Traceback (most recent call last):"]
    for number, where in enumerate(_CALLS):
        lines.append(f'  File "/opt/megatron/megatron/{where}.py", line {100 + number}, in {where}')
        lines.append("    output = f(*args)")
    lines.append(_OOM.format(local=rank % GPUS_A_NODE))
    head = labelled(rank) if label else ""
    return [f"{head}[rank{rank}]: {line}" for line in lines] + [
        f"{head}[rank{rank}]:[E701 23:50:{second:02}.123456789 ProcessGroupNCCL.cpp:1834] [PG ID 0 PG GUID 0 Rank "
        f"{rank}] Process group watchdog thread terminated with exception: NCCL error: remote process exited or there "
        "was a network error"
    ]


def watchdog_lines(rank: int, label: bool = True) -> Iterator[str]:
    """A rank that waited in vain for the one that failed."""
    head = (labelled(rank) if label else "") + f"[rank{rank}]:[E702 00:00:0{rank % 9}.000000000 ProcessGroupNCCL.cpp:"
    yield head + (
        f"629] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=90012, OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds before timing out."
    )
    yield head + (
        f"1785] [PG ID 0 PG GUID 0 Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: "
        "90012, last enqueued NCCL work: 90013, last completed NCCL work: 90011."
    )
    yield head + (
        "691] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
        "subsequent GPU operations might run on corrupted/incomplete data."
    )


def _beats(size_bytes: int, chance: random.Random, ranks: int) -> Iterator[bytes]:
    """Between the failure and the end: who waits says so, again and again."""
    lines = []
    for _ in range(2000):
        rank = chance.randrange(ranks)
        lines.append(
            f"{labelled(rank)}2026-07-01 23:5{chance.randrange(10)}:00,{chance.randrange(1000):03} [rank {rank}] INFO "
            f"heartbeat alive, waiting for gradients of bucket {chance.randrange(64)}, queue empty for "
            f"{chance.randrange(600)} s, load {chance.random():.2f}"
        )
    text = ("\n".join(lines) + "\n").encode()
    left = size_bytes
    while left > 0:
        yield text
        left -= len(text)


def _death(chance: random.Random, failed: int) -> bytes:
    """The rank that failed first, and two others soon after it and interleaved with it."""
    pending = [failure_lines(rank, second) for rank, second in ((failed, 1), (5, 3), (12, 4))]
    lines = [pending[0].pop(0) for _ in range(12)]
    while any(pending):
        lines.append(chance.choice([each for each in pending if each]).pop(0))
    return ("\n".join(lines) + "\n").encode()


def _end(ranks: int, failed: int) -> bytes:
    lines = [line for rank in range(ranks) for line in watchdog_lines(rank)]
    lines += [f"srun: error: {node_of(failed)}: task {failed // GPUS_A_NODE}: Exited with exit code 1"]
    lines += [
        f"srun: error: {node_of(rank)}: task {rank // GPUS_A_NODE}: Exited with exit code 134"
        for rank in range(0, ranks, GPUS_A_NODE) if node_of(rank) != node_of(failed)
    ]
    lines += ["srun: Terminating StepId=4711.0"]
    return ("\n".join(lines) + "\n").encode()


class _Day:
    """A day's lines, made once; each day has its own date and its own step numbers."""

    def __init__(self, steps: int, chance: random.Random, ranks: range = range(RANKS)) -> None:
        lines = ((step, line) for step in range(steps) for line in step_lines(step, chance, ranks))
        text = bytearray()
        self._steps: list[tuple[int, int]] = []
        self._dates: list[int] = []
        for step, line in lines:
            for mark, at in ((_STEP, line.find(_STEP)), (_DAY, line.find(_DAY))):
                if at >= 0 and mark == _STEP:
                    self._steps.append((len(text) + at, step))
                elif at >= 0:
                    self._dates.append(len(text) + at)
            text += line.encode() + b"\n"
        self._text = text

    def text(self, day: int) -> bytearray:
        """The lines of a day; the same buffer each time."""
        date = b"2026-%02d-%02d" % (1 + day // 28 % 12, 1 + day % 28)
        for at in self._dates:
            self._text[at:at + len(date)] = date
        for at, step in self._steps:
            self._text[at:at + len(_STEP)] = b"%8d" % (day * STEPS_A_DAY + step)
        return self._text


def combined(path: Path, size_bytes: int, ranks: int = RANKS, seed: int = 7) -> int:
    """One log of all ranks, about `size_bytes` long. Returns the rank that failed first."""
    failed = FAILED_RANK % ranks
    chance = random.Random(seed)
    nodes = (range(first, first + GPUS_A_NODE) for first in range(0, ranks, GPUS_A_NODE))
    start = ("\n".join(line for node in nodes for line in start_lines(node)) + "\n").encode()
    death, end = _death(chance, failed), _end(ranks, failed)
    fallout = min(int(size_bytes * _FALLOUT_SHARE), _FALLOUT_BYTES)
    left = size_bytes - len(start) - len(death) - len(end) - fallout
    day = _Day(max(1, min(STEPS_A_DAY, left // 6000)), chance, range(ranks))
    with path.open("wb") as file:
        file.write(start)
        number = 0
        while left > 0:
            text = memoryview(day.text(number))
            if len(text) <= left:
                file.write(text)
            else:
                file.write(text[:text.obj.rfind(b"\n", 0, max(left, 800)) + 1])  # type: ignore[attr-defined]
            left -= len(text)
            number += 1
        file.write(death)
        for beat in _beats(fallout, chance, ranks):
            file.write(beat)
        file.write(end)
    return failed


def a_file_a_rank(folder: Path, files: int, size_bytes: int, seed: int = 7) -> None:
    """One log a rank, each about `size_bytes` long: rank files/3 fails, the others hang and are told so."""
    bodies = []
    for rank in range(_BODIES):
        day = _Day(max(1, size_bytes // 850), random.Random(seed + rank), range(rank, rank + 1)).text(0)
        bodies.append(bytes(day[:day.rfind(b"\n", 0, size_bytes) + 1]))
    for rank in range(files):
        body = bodies[rank % _BODIES].replace(b" [rank %d] " % (rank % _BODIES), b" [rank %d] " % rank)
        local = range(rank % RANKS, rank % RANKS + 1)
        end = failure_lines(rank, 1, False) if rank == files // 3 else list(watchdog_lines(rank, False))
        with (folder / f"rank_{rank}.log").open("wb") as file:
            file.write(("\n".join(start_lines(local, False)) + "\n").encode())
            file.write(body)
            file.write(("\n".join(end) + "\n").encode())
