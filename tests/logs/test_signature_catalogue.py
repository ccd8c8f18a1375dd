"""The catalogue of messages: every one is covered by a signature, in the wording of every release that has its own."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from runbook.documents import load_document
from runbook.locations import data_folder
from runbook.logs.signatures import ABSURD_BYTES, CONSEQUENCE, FRAMING, HARMLESS, Match, load_signatures
from runbook.logs.signatures.signature_document import SignatureDocument, load_samples
from runbook.model.diagnosis import Detail
from tests.bench.log_generator import step_lines
from tests.kinds import Kind
from tests.logs.signature_catalogue import CATALOGUE

FOLDER = data_folder("playbooks") / "oom" / "signatures"
SIGNATURES = load_signatures(FOLDER)


def _samples_by_name() -> dict[str, list[str]]:
    """Sample lines by catalogue name: an entry covers its own name, that name without a letter behind, and `also`."""
    lines = {entry.id: [sample.line for sample in entry.samples] for entry in load_samples(FOLDER)}
    covered: dict[str, list[str]] = {}
    for path in sorted(Path(FOLDER).glob("*.yaml")):
        if path.name.endswith(".samples.yaml") or not path.read_text().count("signatures:"):
            continue
        for entry in load_document(path, SignatureDocument).signatures:
            stem = re.sub(r"(?<=\d)[A-Za-z]$", "", entry.id)
            for name in {entry.id, stem, *entry.also}:
                covered.setdefault(name, []).extend(lines.get(entry.id, []))
    return covered


COVERED = _samples_by_name()


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_message_of_the_catalogue_is_covered_in_each_wording(name: str) -> None:
    assert name in COVERED, f"no signature has the id {name} or names it in `also`"
    for release, wording in CATALOGUE[name].items():
        found = [line for line in COVERED[name] if re.search(wording, line, re.DOTALL)]
        assert found, f"no sample of {name} shows the wording of {release}: {wording}"


def test_what_a_healthy_job_prints_all_day_holds_no_literal() -> None:
    """Each line that holds one is looked at closely, which takes as long as searching ten kilobytes."""
    chance = random.Random(7)
    lines = [line for step in range(1000) for line in step_lines(step, chance)]
    literals = sorted({literal for one in SIGNATURES.events for literal in one.literals})
    held = {literal: sum(literal in line for line in lines) for literal in literals}
    assert {literal: count for literal, count in held.items() if count > len(lines) // 1000} == {}


def first_match(line: str) -> Match | None:
    """What the reader makes of a line: candidates by literal, whole messages before those that see more lines."""
    candidates = [
        one for one in SIGNATURES.events
        if one.means != FRAMING and any(literal in line for literal in one.literals)
    ]
    single = SIGNATURES.first_match(line.partition("\n")[0], [one for one in candidates if one.lines == 1])
    if single is not None and single.signature.whole:
        return single
    longer = SIGNATURES.first_match(line, [one for one in candidates if one.lines > 1])
    return longer if longer is not None else single


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "gpu-21:1:2 [0] enqueue.cc:1 NCCL WARN Cuda failure 'an illegal memory access was encountered'",
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
        "RuntimeError: CUDA error: misaligned address",
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "RuntimeError: CUDA error: too many resources requested for launch",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 262144.",
        "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        *(
            f"NVRM: Xid (PCI:0000:17:00): {code}, pid=4711, name=python3, memory error"
            for code in (13, 31, 43, 48, 63, 64, 74, 79, 94, 95, 119, 120)
        ),
    ],
)
def test_what_is_not_memory_is_not_called_memory(line: str) -> None:
    match = first_match(line)
    assert match is not None
    assert match.signature.means in (Kind.NOT_OOM, Kind.HARDWARE_FAULT)


@pytest.mark.parametrize(
    "line",
    [
        "[torch_memory_saver.cpp] cuMemCreate CUDA_ERROR_OUT_OF_MEMORY (may not be an issue e.g. torch allocator will "
        "free cache and retry)",
        "expandable_segments: memory mapping failed with OOM on device 3 while trying to map 20971520 bytes (free: 1, "
        "total: 85899345920)",
        "[2026-03-01 10:00:00 TP0] Decode out of memory happened. #retracted_reqs: 3, #new_token_ratio: 0.61 -> 0.72",
        "0 Workers (tasks / actors) killed due to memory pressure (OOM), 3 Workers crashed due to other reasons",
        "slurmstepd: error: Exceeded job memory limit at some point.",
        "slurmstepd: info: StepId=1.0 hit memory limit at least once during execution. This may or may not result in "
        "some failure.",
        "Decreasing batch size to: 8",
        "Batch size 32 failed, trying batch size 16",
        "2 CUDA OOM errors thrown.",
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
        "KV pool holds 20480 tokens, fewer than --context-length 32768.",
    ],
)
def test_what_looks_fatal_and_is_not_is_harmless(line: str) -> None:
    match = first_match(line)
    assert match is not None
    assert match.signature.means == HARMLESS


@pytest.mark.parametrize(
    "line",
    [
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. "
        "End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to "
        "high memory usage.",
        "Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ...",
        "TP rank 3 could finish the model loading, but there are other ranks that didn't finish loading. It is likely "
        "due to unexpected failures (e.g., OOM) or a slow node.",
        "  traceback : Signal 9 (SIGKILL) received by PID 4711",
    ],
)
def test_boilerplate_with_the_words_proves_nothing(line: str) -> None:
    match = first_match(line)
    assert match is not None
    assert match.signature.means == CONSEQUENCE


@pytest.mark.parametrize(
    "line",
    [
        "  --mem-fraction-static MEM_FRACTION_STATIC  Use a smaller value if you see out-of-memory errors.",
        "  --gpu-memory-utilization FRACTION  share of the card for the engine; lower it on CUDA out of memory errors",
        "  --on-oom ACTION  what to do on 'torch.OutOfMemoryError: CUDA out of memory': raise, skip or dump",
        "      (see 'RuntimeError: CUDA error: out of memory' in the FAQ)",
        "gpu_memory_utilization: 0.9, max_num_seqs: 256, enable_sleep_mode: true",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128,throw_on_cudamalloc_oom:true",
        "export PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.9",
        "environ({'RAY_memory_monitor_refresh_ms': '0', 'RAY_memory_usage_threshold': '0.95'})",
        "object_store_memory: 200000000000",
        "args: Namespace(skip_oom=True, oom_score_adj=-900, shm_size='64g')",
        "INFO: set mem_fraction_static=0.8 to avoid out of memory",
        "tests/test_alloc.py::test_oom_message[CUDA out of memory. Tried to allocate 2.00 GiB] PASSED",
        "max memory size             (kbytes, -m) unlimited",
        "NOTE: The SHMEM allocation limit is set to the default of 64MB.",
        "#SBATCH --mem=0   # the job's memory limit is that of the node",
        "ImportError: libgomp.so.1: cannot allocate memory in static TLS block",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/index.html",
    ],
)
def test_help_and_settings_that_use_the_words_are_no_lack_of_memory(line: str) -> None:
    match = first_match(line)
    assert match is None or match.signature.means == HARMLESS or not match.signature.means.entry.died.of_memory


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
         Detail.CGROUP),
        ("Out of memory: Killed process 4 (python3) total-vm:8kB, anon-rss:4kB, file-rss:0kB", Detail.NODE),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", Detail.RAY_MONITOR),
        ("E failed to alloc 1024 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory", Detail.PINNED),
        ("OSError: [Errno 12] Cannot allocate memory", Detail.REFUSED),
        ("NCCL WARN Error: failed to extend /dev/shm/nccl-2Xb1Qa to 9637892 bytes", Detail.NCCL_SEGMENT),
        ("ERROR: Unexpected bus error encountered in worker.", Detail.DATA_LOADER),
        ("ray.exceptions.ObjectStoreFullError: Failed to put object 00ff", Detail.OBJECT_STORE),
        ("ValueError: No available memory for the cache blocks.", Detail.RAISE_SHARE),
        ("RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy", Detail.LOWER_SHARE),
        ("Prefill out of memory. Try to lower your batch size.", Detail.RUN_TIME),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", Detail.LIBRARY),
        ("gpu-1:1:2 [0] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'", Detail.NCCL),
        ("AssertionError: Expandable segments are not compatible with memory pool.", Detail.CONFIGURATION),
    ],
)
def test_a_line_says_what_kind_of_its_kind_it_is(line: str, detail: Detail) -> None:
    match = first_match(line)
    assert match is not None
    assert match.signature.detail is detail


def test_the_kernels_figures_are_exact_and_shared_memory_is_told_apart() -> None:
    match = first_match(
        "[1.2] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9000kB, anon-rss:4096kB, "
        "file-rss:64kB, shmem-rss:2048kB, UID:1000 pgtables:512kB oom_score_adj:0"
    )
    assert match is not None
    fields = match.memory_fields()
    assert fields.process_bytes == (4096 + 64 + 2048) * 1024
    assert fields.shared_bytes == 2048 * 1024
    assert not fields.rounding_bytes


def test_rays_gigabytes_are_powers_of_1024_of_two_decimals() -> None:
    match = first_match(
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node "
        "(IP: 10.0.0.2, ID: ab) where the task (task ID: cd, name=f, pid=77, memory used=1.25GB) was running was "
        "27.71GB / 28.80GB (0.962273), which exceeds the memory usage threshold of 0.95."
    )
    assert match is not None
    fields = match.memory_fields()
    assert fields.process_bytes == 1280 << 20
    assert fields.capacity_bytes == round(28.80 * (1 << 30))
    assert fields.rounding_bytes == round(2 * 0.005 * (1 << 30))
    assert match.integer("pid") == 77


def test_figures_without_a_unit_stay_unread() -> None:
    for line in (
        "slurmstepd: error: Job 123 exceeded memory limit (104870000 > 104857600), being killed",
        "RuntimeError: Malloc pin memory failed, host out of memory, Rried to allocate size: 1048576",
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
        "min_per_gpu_memory=20.1, local_gpu_memory=78.2",
    ):
        match = first_match(line)
        assert match is not None
        fields = match.memory_fields()
        assert (fields.tried_bytes, fields.limit_bytes, fields.free_bytes, fields.rounding_bytes) == (None,) * 4, line


def test_sentinels_are_no_sizes() -> None:
    exabyte = first_match("RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert exabyte is not None
    assert exabyte.memory_fields().tried_bytes is None
    limit = first_match(
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 38.20 GiB\nRequested               : 1.95 GiB\nDevice limit            : 39.59 GiB\n"
        "Free (according to CUDA): 12.12 MiB\nPyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 17179869184.00 GiB"
    )
    assert limit is not None
    assert limit.memory_fields().limit_bytes is None
    absurd = first_match("RuntimeError: CUDA out of memory. Tried to allocate 8589934592.00 GiB (GPU 0; 79.15 GiB "
                         "total capacity; 1.00 GiB already allocated; 70.00 GiB free; 2.00 GiB reserved in total by "
                         "PyTorch)")
    assert absurd is not None
    assert (absurd.integer("tried_bytes") or 0) >= ABSURD_BYTES, "the reader takes it for garbage by its size"
