"""The out-of-memory texts of the PyTorch versions, whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbook.allocator import format_size
from simulator.messages import (
    OutOfMemory,
    ProcessUse,
    cuda_error_name,
    exception_name,
    out_of_memory_text,
    watchdog_lines,
)
from simulator.tracebacks import torch_frames
from simulator.versions import TorchVersion
from simulator.workload import Phase

MIB, GIB = 1 << 20, 1 << 30
ERROR = OutOfMemory(
    gpu=1,
    tried_bytes=1000 * MIB,
    total_bytes=80 * GIB,
    free_bytes=58 * MIB,
    allocated_bytes=48 * GIB,
    reserved_bytes=49 * GIB,
    own=ProcessUse(4711, 50 * GIB),
    others=(ProcessUse(815, 30 * GIB),),
)
PROCESSES = (
    "Process 815 has 30.00 GiB memory in use. "
    "Including non-PyTorch memory, this process has 50.00 GiB memory in use. "
)
START = (
    "CUDA out of memory. Tried to allocate 1000.00 MiB. GPU 1 has a total capacity of 80.00 GiB "
    "of which 58.00 MiB is free. "
)
USE = (
    "Of the allocated memory 48.00 GiB is allocated by PyTorch, "
    "and 1024.00 MiB is reserved by PyTorch but unallocated. "
)
LEAD = "If reserved but unallocated memory is large try setting "
FRAGMENTATION = "expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
OLD_PAGE = "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
NEW_PAGE = (
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)
CURRENT = START + PROCESSES + USE + LEAD
WHOLE = {
    "2.0.1": "CUDA out of memory. Tried to allocate 1000.00 MiB (GPU 1; 80.00 GiB total capacity; "
    "48.00 GiB already allocated; 58.00 MiB free; 49.00 GiB reserved in total by PyTorch) If reserved memory is >> "
    "allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management "
    "and PYTORCH_CUDA_ALLOC_CONF",
    "2.1.2": CURRENT.replace("capacity", "capacty")
    + "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
    "2.2.2": f"{CURRENT}PYTORCH_CUDA_ALLOC_CONF={FRAGMENTATION}{OLD_PAGE}",
    "2.3.1": f"{CURRENT}PYTORCH_CUDA_ALLOC_CONF={FRAGMENTATION}{OLD_PAGE}".replace("GPU 1", "GPU \x01"),
    "2.4.1": f"{CURRENT}PYTORCH_CUDA_ALLOC_CONF={FRAGMENTATION}{OLD_PAGE}",
    "2.6.0": f"{CURRENT}PYTORCH_CUDA_ALLOC_CONF={FRAGMENTATION}{OLD_PAGE}",
    "2.9.1": f"{CURRENT}PYTORCH_CUDA_ALLOC_CONF={FRAGMENTATION}{OLD_PAGE}",
    "2.10.0": f"{CURRENT}PYTORCH_ALLOC_CONF={FRAGMENTATION}{OLD_PAGE}",
    "2.13.0": f"{CURRENT}PYTORCH_CUDA_ALLOC_CONF={FRAGMENTATION}{NEW_PAGE}",
}


@pytest.mark.parametrize("version", WHOLE)
def test_whole_text(version: str) -> None:
    assert out_of_memory_text(ERROR, TorchVersion.parse(version)) == WHOLE[version]


def test_2_3_ends_the_text_at_gpu_0() -> None:
    text = out_of_memory_text(replace(ERROR, gpu=0), TorchVersion(2, 3))
    assert text == "CUDA out of memory. Tried to allocate 1000.00 MiB. GPU "


@pytest.mark.parametrize(("version", "shown"), [("2.0", True), ("2.4", False), ("2.5", True), ("2.6", True)])
def test_allowed_is_missing_from_2_1_to_2_4(version: str, shown: bool) -> None:
    text = out_of_memory_text(replace(ERROR, allowed_bytes=40 * GIB), TorchVersion.parse(version))
    assert ("40.00 GiB allowed; " in text) is shown


@pytest.mark.parametrize(("version", "shown"), [("2.2", False), ("2.4", True), ("2.9", True)])
def test_private_pools_appear_in_2_4(version: str, shown: bool) -> None:
    text = out_of_memory_text(replace(ERROR, private_pool_bytes=512 * MIB), TorchVersion.parse(version))
    assert ("with 512.00 MiB allocated in private pools (e.g., CUDA Graphs), " in text) is shown
    assert ("48.50 GiB is allocated by PyTorch" in text) is shown


def test_processes_are_listed_by_number() -> None:
    error = replace(ERROR, others=(ProcessUse(9000, GIB), ProcessUse(12, GIB)))
    text = out_of_memory_text(error, TorchVersion(2, 6))
    assert text.index("Process 12 ") < text.index("this process") < text.index("Process 9000 ")


@pytest.mark.parametrize(
    ("version", "name", "cuda_name"),
    [
        ("1.12", "RuntimeError", "RuntimeError"),
        ("2.0", "torch.cuda.OutOfMemoryError", "RuntimeError"),
        ("2.3", "torch.cuda.OutOfMemoryError", "RuntimeError"),
        ("2.4", "torch.OutOfMemoryError", "RuntimeError"),
        ("2.9", "torch.OutOfMemoryError", "torch.AcceleratorError"),
    ],
)
def test_exception_names(version: str, name: str, cuda_name: str) -> None:
    assert exception_name(TorchVersion.parse(version)) == name
    assert cuda_error_name(TorchVersion.parse(version)) == cuda_name


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (MIB, "1024.00 KiB"),
        (20 * MIB, "20.00 MiB"),
        (GIB, "1024.00 MiB"),
        (80 * GIB, "80.00 GiB"),
        (1 << 64, "17179869184.00 GiB"),
    ],
)
def test_sizes_as_pytorch_prints_them(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(("version", "count"), [("2.2", 3), ("2.4", 4), ("2.8", 4)])
def test_watchdog(version: str, count: int) -> None:
    lines = watchdog_lines(3, TorchVersion.parse(version), work=12, elements=64, limit_ms=600000, took_ms=600012)
    assert len(lines) == count
    assert all(line.startswith("[rank3]:[E{stamp} ProcessGroupNCCL.cpp:") for line in lines)
    assert "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, " in lines[0]
    assert "Timeout(ms)=600000) ran for 600012 milliseconds before timing out." in lines[0]


@pytest.mark.parametrize(
    ("phase", "innermost"),
    [
        (Phase.FORWARD, "forward"),
        (Phase.LOSS, "cross_entropy"),
        (Phase.BACKWARD, "_engine_run_backward"),
        (Phase.RECOMPUTE, "forward"),
        (Phase.OPTIMIZER_STEP, "_init_group"),
        (Phase.INIT, "convert"),
    ],
)
def test_frames_tell_the_phase(phase: Phase, innermost: str) -> None:
    frames = torch_frames(phase, TorchVersion(2, 6), checkpointed=True, gathering=False, creating_states=True)
    functions = [frame.function for frame in frames]
    assert functions[-1] == innermost
    assert ("recompute_fn" in functions) is (phase is Phase.RECOMPUTE)
