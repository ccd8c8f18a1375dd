"""A simulated GPU: its memory, what else is on it, and the file contract through which jobs share one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from runbook.allocator import GIB, MIB

H100_TOTAL_BYTES = 85_045_870_592
DIRECTORY_VARIABLE = "SIMULATED_GPU_DIR"
ALONE_VARIABLE = "SIMULATED_GPU_ALONE"
"""Set to anything: a GPU of its own, whatever a node's prolog says of shared ones."""
CONTEXT_BYTES = 512 * MIB  #: one process's CUDA context; 0.3 to 1.5 GiB are ordinary
_PUBLISH_STEP_BYTES = 256 * MIB
_REREAD_AFTER_S = 0.05


class GpuLostError(RuntimeError):
    """The GPU no longer answers; the text is CUDA's."""


class CudaOutOfMemoryError(RuntimeError):
    """A CUDA call outside PyTorch's allocator found no memory; ``in_nccl`` tells NCCL's buffers from the context."""

    def __init__(self, in_nccl: bool) -> None:
        super().__init__("CUDA error: out of memory")
        self.in_nccl = in_nccl


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Another process on the GPU, as NVML would list it."""

    pid: int
    used_bytes: int
    name: str = "python3"


@dataclass(frozen=True, slots=True)
class GpuState:
    """What ``state.json`` says about one GPU; ``usable_bytes`` below ``total_bytes`` is memory lost to a fault."""

    total_bytes: int = H100_TOTAL_BYTES
    usable_bytes: int = H100_TOTAL_BYTES
    name: str = "Simulated H100 80GB HBM3"
    lost: bool = False
    extra_processes: tuple[GpuProcess, ...] = ()


@dataclass(slots=True)
class SimulatedGpu:
    """One GPU of a node as one process sees it; sizes in bytes.

    With ``folder`` (``$SIMULATED_GPU_DIR/<host>``) the GPU is shared: ``state.json`` describes the hardware, and
    each process keeps its use in ``processes/<index>/<pid>``. Without it the process is alone on the card.
    """

    index: int = 0
    folder: str | None = None
    total_override_bytes: int | None = None
    context_bytes: int = 0
    reserved_bytes: int = 0
    _published_bytes: int = -1
    _state: GpuState = field(default_factory=GpuState)
    _others: tuple[GpuProcess, ...] = ()
    _read_at_s: float = 0.0

    def __post_init__(self) -> None:
        self._reread()

    @property
    def total_bytes(self) -> int:
        """Capacity in bytes."""
        return self.total_override_bytes or self._state.total_bytes

    @property
    def process_bytes(self) -> int:
        """What NVML would show for this process: the allocator's memory and the CUDA context."""
        return self.reserved_bytes + self.context_bytes

    @classmethod
    def on_host(
        cls, host: str, index: int, environment: Mapping[str, str], total_gib: float | None = None
    ) -> SimulatedGpu:
        """A GPU of a node, shared if ``SIMULATED_GPU_DIR`` is set and ``SIMULATED_GPU_ALONE`` is not.

        ``total_gib`` replaces its capacity."""
        root = None if environment.get(ALONE_VARIABLE) else environment.get(DIRECTORY_VARIABLE)
        total_bytes = None if total_gib is None else int(total_gib * GIB)
        return cls(index, os.path.join(root, host) if root else None, total_bytes)

    def create_context(self) -> None:
        """Take the CUDA context's memory (context and kernels of one process). Raises CudaOutOfMemoryError."""
        self._take_unpooled(CONTEXT_BYTES, in_nccl=False)

    def take_outside_pytorch(self, size_bytes: int) -> None:
        """Take memory as NCCL does for its buffers: counted for the process, unknown to the allocator."""
        self._take_unpooled(size_bytes, in_nccl=True)

    def _take_unpooled(self, size_bytes: int, in_nccl: bool) -> None:
        self.check()
        if self.free_bytes() < size_bytes:
            raise CudaOutOfMemoryError(in_nccl)
        self.context_bytes += size_bytes
        self.publish()

    def others(self) -> tuple[GpuProcess, ...]:
        """The other processes on this GPU, read afresh."""
        self._reread()
        return self._others

    def check(self) -> None:
        """Raise GpuLostError if the GPU is marked as lost."""
        self._reread_if_old()
        if self._state.lost:
            raise GpuLostError("CUDA error: unknown error")

    def take(self, size_bytes: int) -> bool:
        """Take memory; False if there is not so much left. Raises GpuLostError."""
        self.check()
        if self.free_bytes() < size_bytes:
            return False
        self.reserved_bytes += size_bytes
        self.publish(least_change_bytes=_PUBLISH_STEP_BYTES)
        return True

    def give_back(self, size_bytes: int) -> None:
        """Return memory taken before."""
        self.reserved_bytes -= size_bytes
        self.publish(least_change_bytes=_PUBLISH_STEP_BYTES)

    def free_bytes(self) -> int:
        """Bytes nobody holds, never below 0."""
        lost_bytes = self._state.total_bytes - self._state.usable_bytes
        others_bytes = sum(process.used_bytes for process in self._others)
        return max(0, self.total_bytes - lost_bytes - others_bytes - self.process_bytes)

    def publish(self, least_change_bytes: int = 1) -> None:
        """Write this process's use where the others on the GPU read it, if it changed by so much."""
        if self.folder is None or abs(self.process_bytes - self._published_bytes) < least_change_bytes:
            return
        path = self._own_path()
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(f"{path}.tmp", "w", encoding="utf-8") as file:
                file.write(json.dumps({"bytes": self.process_bytes, "name": "python3"}) + "\n")
            os.replace(f"{path}.tmp", path)
        except OSError:
            return  # A folder that we may not write: the job runs, the others do not see it.
        self._published_bytes = self.process_bytes

    def close(self) -> None:
        """Take this process off the GPU."""
        if self.folder is None:
            return
        with suppress(OSError):
            os.unlink(self._own_path())

    def _own_path(self) -> str:
        return os.path.join(self.folder or "", "processes", str(self.index), str(os.getpid()))

    def _reread_if_old(self) -> None:
        if self.folder is not None and time.monotonic() - self._read_at_s > _REREAD_AFTER_S:
            self._reread()

    def _reread(self) -> None:
        self._read_at_s = time.monotonic()
        if self.folder is None:
            return
        self._state = read_gpu_state(self.folder, self.index)
        registered = _registered_processes(os.path.join(self.folder, "processes", str(self.index)))
        self._others = (*self._state.extra_processes, *registered)


def read_gpu_state(folder: str, index: int) -> GpuState:
    """One GPU of a node's ``state.json``; a missing or unreadable file means a healthy default GPU."""
    try:
        with open(os.path.join(folder, "state.json"), encoding="utf-8") as file:
            gpus: list[dict[str, Any]] = json.load(file).get("gpus", [])
    except (OSError, ValueError):
        return GpuState()
    for gpu in gpus:
        if gpu.get("index") == index:
            total_bytes = int(gpu.get("total_bytes") or H100_TOTAL_BYTES)
            usable_bytes = gpu.get("usable_bytes")
            return GpuState(
                total_bytes=total_bytes,
                usable_bytes=total_bytes if usable_bytes is None else int(usable_bytes),
                name=str(gpu.get("name", "Simulated H100 80GB HBM3")),
                lost=bool(gpu.get("lost", False)),
                extra_processes=tuple(
                    GpuProcess(int(one["pid"]), int(one["bytes"]), str(one.get("name", "python")))
                    for one in gpu.get("extra_processes", [])
                ),
            )
    return GpuState()


def _registered_processes(folder: str) -> Iterator[GpuProcess]:
    """The living processes that registered on a GPU, without this one; entries of dead ones are removed."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        if not _is_alive(int(name)):
            with suppress(OSError):  # Only its owner may; a left-over entry would count again if its pid came back.
                os.unlink(os.path.join(folder, name))
            continue
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                entry = json.loads(file.readline())
            yield GpuProcess(int(name), int(entry["bytes"]), str(entry.get("name", "python3")))
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def gpu_of_rank(visible_devices: str | None, local_rank: int) -> tuple[int, int]:
    """(index in the process, index on the node) of a local rank's GPU, from ``CUDA_VISIBLE_DEVICES``.

    One visible device is everybody's GPU 0, as with ``--gpus-per-task=1``. IndexError if there are too few.
    """
    if visible_devices is None:
        return local_rank, local_rank
    indexes = [int(part) for part in visible_devices.split(",") if part.strip().isdecimal()]
    if len(indexes) == 1:
        return 0, indexes[0]
    if local_rank >= len(indexes):
        raise IndexError("CUDA error: invalid device ordinal")
    return local_rank, indexes[local_rank]


