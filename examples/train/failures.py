"""What a dying rank writes: tracebacks in PyTorch's framing, out-of-memory text, NCCL's watchdog."""

from __future__ import annotations

import os
import sys
import time
import traceback

import simulation_path  # noqa: F401
from launcher_environment import Rank

# isort: split
from runbook.allocator import AllocationFailedError
from simulator.device import SimulatedGpu
from simulator.messages import (
    OutOfMemory,
    ProcessUse,
    exception_name,
    out_of_memory_text,
    watchdog_lines,
)
from simulator.tracebacks import Frame, torch_frames
from simulator.versions import TorchVersion
from simulator.workload import TrainingWorkload

_HERE = os.path.dirname(os.path.abspath(__file__))


def script_frames(error: BaseException) -> list[Frame]:
    """The real frames of the scripts in this folder, outermost first; the simulator's own are left out."""
    callers = [entry for entry in traceback.extract_stack() if entry.name in ("<module>", "main", "update_actor")]
    frames = []
    for entry in [*callers, *traceback.extract_tb(error.__traceback__)]:
        folder = os.path.dirname(os.path.abspath(entry.filename))
        if folder == _HERE or folder.startswith(f"{_HERE}/verl"):
            frames.append(Frame(entry.filename, entry.lineno or 0, entry.name, entry.line or ""))
    return frames


def emit(text: str) -> None:
    """One line on stdout in one write, so that the lines of several ranks do not run into each other."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write_traceback(rank: Rank, version: TorchVersion, frames: list[Frame], last_line: str) -> None:
    """A traceback on stderr; from 2.3 on every line carries the rank if there are several."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        lines.extend(frame.text())
    lines.extend(last_line.split("\n"))
    prefix = f"[rank{rank.rank}]: " if rank.world_size > 1 and version >= (2, 3) else ""
    sys.stdout.flush()
    sys.stderr.write("".join(f"{prefix}{line}\n" for line in lines))
    sys.stderr.flush()


def write_out_of_memory(
    rank: Rank,
    version: TorchVersion,
    error: AllocationFailedError,
    workload: TrainingWorkload,
    gpu: SimulatedGpu,
    gpu_ordinal: int,
) -> None:
    """The out-of-memory error of this rank, with the other processes on its GPU."""
    below = torch_frames(
        workload.phase,
        version,
        checkpointed=workload.settings.checkpointing.value != "none",
        gathering=workload.gathering,
        creating_states=not workload.has_optimizer_states(),
    )
    report = OutOfMemory(
        gpu=gpu_ordinal,
        tried_bytes=error.tried_bytes,
        total_bytes=gpu.total_bytes,
        free_bytes=error.free_bytes,
        allocated_bytes=error.allocated_bytes,
        reserved_bytes=error.reserved_bytes,
        own=ProcessUse(os.getpid(), gpu.process_bytes),
        others=tuple(ProcessUse(other.pid, other.used_bytes) for other in gpu.others()),
        allowed_bytes=error.allowed_bytes,
    )
    text = f"{exception_name(version)}: {out_of_memory_text(report, version)}"
    write_traceback(rank, version, [*script_frames(error), *below], text)


def write_watchdog(rank: Rank, version: TorchVersion, work: int, timeout_s: float) -> None:
    """The timeout of a collective operation in which another rank never arrived."""
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1e9):09d}"
    limit_ms = int(timeout_s * 1000)
    lines = watchdog_lines(rank.rank, version, work, elements=1 << 26, limit_ms=limit_ms, took_ms=limit_ms + 12)
    end = "terminate called after throwing an instance of 'c10::DistBackendError'"
    sys.stdout.flush()
    sys.stderr.write("".join(f"{line.replace('{stamp}', stamp)}\n" for line in [*lines, end]))
    sys.stderr.flush()


def write_nccl_out_of_memory(rank: Rank, version: TorchVersion, gpu_ordinal: int, error: BaseException) -> None:
    """NCCL's buffers did not fit: its own warning, then PyTorch's exception."""
    pid = os.getpid()
    where = f"{rank.host}:{pid}:{pid} [{gpu_ordinal}]"
    sys.stderr.write(f"{where} include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'\n")
    text = (
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:317, "
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
    )
    write_traceback(rank, version, script_frames(error), text)
