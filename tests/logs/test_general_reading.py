"""Failures that no signature knows, read by their shape: what ended it, whose memory, which figures, who says it; and
the same after every change that leaves the meaning alone (a launcher's prefix, a stamp, JSON, colours, a traceback).
"""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Callable

import pytest

from runbook.diagnosis import diagnose
from runbook.locations import data_folder
from runbook.logs.reader import LogReader
from runbook.logs.signatures import load_signatures
from runbook.model.diagnosis import Diagnosis
from runbook.model.log import LogStory
from runbook.report.vocabulary.sentences import in_words

SIGNATURES = load_signatures(data_folder("playbooks") / "oom" / "signatures")
READER = LogReader(SIGNATURES)
GIB, MIB = 1 << 30, 1 << 20

ENDINGS = {
    "ValueError: Expected input batch_size (32) to match target batch_size (16).": "not_oom",
    "AssertionError": "not_oom",
    "omegaconf.errors.ConfigAttributeError: Key 'foo' is not in struct": "not_oom",
    "KeyError: 'model.layers.0.weight'": "not_oom",
    "FloatingPointError: NaN in loss at step 400": "not_oom",
    "Loss is nan, stopping training": "not_oom",
    "run.sh: line 12:  4242 Segmentation fault      (core dumped) python train.py": "not_oom",
    "thread 'main' panicked at src/main.rs:4:5:": "not_oom",
    "panic: runtime error: index out of range [3] with length 3": "not_oom",
    "free(): invalid pointer": "not_oom",
    "OSError: [Errno 28] No space left on device: '/scratch/step_100'": "not_oom",
    "run.sh: line 3: torchrun: command not found": "not_oom",
    "java.lang.OutOfMemoryError: Java heap space": "host_oom",
    "memory allocation of 17179869184 bytes failed": "host_oom",
    "Not enough RAM: needed 64 GB, available 12.5 GB": "host_oom",
    "      Reason:       OOMKilled": "host_oom",
    "ibv_reg_mr failed: Cannot allocate memory": "not_oom",
    "ValueError: Not enough memory for KV cache: needs 12.50 GiB but only 4.25 GiB is available": "kv_cache_sizing",
    "RuntimeError: failed to allocate 7.48G (8031830016 bytes) from the GPU": "true_oom",
    "hipErrorOutOfMemory: out of memory": "true_oom",
    "could not allocate 468.75GB on device 0 (total 80 GB, 12.5 GB free)": "true_oom",
    "could not allocate 251.44M of workspace, falling back to a slower algorithm": "undetermined",
    "If you run out of memory, lower the batch size": "undetermined",
    "Process finished with exit code 137": "undetermined",
    "worker left with exit status 1": "undetermined",
}
"""What a careful reader says of a log that holds no other line."""


def told(text: str) -> tuple[LogStory, Diagnosis]:
    content = text.encode()
    story = READER.read([("train.out", io.BytesIO(content), len(content))])
    return story, diagnose(story, job=None, meanings=SIGNATURES.meanings)


def with_traceback(line: str) -> str:
    if not line.partition(":")[0].endswith("Error"):
        return line
    return f'Traceback (most recent call last):\n  File "/home/ada/train.py", line 12, in main\n    go()\n{line}'


CHANGES: dict[str, Callable[[str], str]] = {
    "as it is": lambda line: line,
    "PyTorch's rank": lambda line: f"[rank3]: {line}",
    "rank with an equals sign": lambda line: f"[rank=3] {line}",
    "Open MPI": lambda line: f"[1,3]<stderr>:{line}",
    "torchrun's tee": lambda line: f"[default3]:{line}",
    "srun --label": lambda line: "".join(f" {task}: starting\n" for task in range(8)) + f" 3: {line}",
    "Ray's actor": lambda line: f"(TrainActor pid=123, ip=10.0.0.1) {line}",
    "a collector's stamp": lambda line: "".join(
        f"2026-11-21T10:00:0{second}.123456789Z {words}\n"
        for second, words in enumerate(["starting", "loading", "ready", line])
    ),
    "a logger": lambda line: f"2026-11-21 10:00:00,123 ERROR [train.py:33] {line.strip()}",
    "a JSON record": lambda line: json.dumps({"level": "error", "ts": "2026-11-21T10:00:00Z", "msg": line}),
    "colours": lambda line: f"\x1b[31m{line}\x1b[0m",
    "Windows' line ends": lambda line: f"{line}\r\n",
    "behind a traceback": with_traceback,
    "behind its launcher's words": lambda line: (
        f"starting on gpu-1\n{line}\nsrun: error: gpu-1: task 0: Exited with exit code 1\n"
    ),
    "in front of torchrun's end": lambda line: f"{line}\nW1121 10:00:00.1 9 torch/distributed/elastic/multiprocessing/"
                                               "api.py:900] Sending process 77 closing signal SIGTERM\n",
}


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_the_same_words_mean_the_same_however_they_are_passed_on(change: str) -> None:
    wrong = {
        line: told(CHANGES[change](line))[1].best.kind for line, kind in ENDINGS.items()
        if told(CHANGES[change](line))[1].best.kind != kind
    }
    assert not wrong


@pytest.mark.parametrize(("line", "named"), [
    ("ValueError: shapes differ", "ValueError: shapes differ"),
    ("ray.exceptions.RayTaskError(KeyError): ray::f() (pid=7, ip=10.0.0.1)\n  File \"a\", line 3, in f\nKeyError: 'k'",
     "KeyError"),
    ("Error executing job with overrides: ['a=b']\nhydra.errors.ConfigCompositionException: no such key",
     "ConfigCompositionException: no such key"),
    ("subprocess.TimeoutExpired: Command 'x' timed out after 10 seconds", "timed out after 10 seconds"),
])
def test_the_exception_is_named_and_less_sure_than_a_known_message(line: str, named: str) -> None:
    _, diagnosis = told(line)
    assert diagnosis.best.kind == "not_oom"
    assert named in in_words(diagnosis.best.reasons[0])
    assert diagnosis.best.confidence <= 0.85


@pytest.mark.parametrize("prefix", [
    "[rank5]: ", "[rank=5]: ", "[Rank 5]: ", "rank: 5 ", "Rank 5: ", "rank=5 | ERROR | ", "(5/8) ", "5: ", "RANK5: ",
    "2026-11-21 10:00:00,123 - rank 5 - ERROR - ", "ERROR on rank 5: ", "global_rank=5 local_rank=1 ", "worker 5: ",
    "Rank 5 failed: ",
])
def test_whoever_a_line_names_in_front_of_its_message_says_it(prefix: str) -> None:
    story, _ = told(f"{prefix}ValueError: shapes differ\n")
    assert story.root_cause is not None
    assert story.root_cause.rank == 5


@pytest.mark.parametrize(("line", "figures"), [
    ("failed to allocate 7.48G (8031830016 bytes) from the GPU", {"tried_bytes": 8031830016}),
    ("Not enough GPU memory: requested 6291456 bytes", {"tried_bytes": 6291456}),
    ("could not allocate 468.75GB on device 0", {"tried_bytes": round(468.75 * GIB)}),
    ("GPU out of memory: needs 26331MiB, available 24576MiB", {"tried_bytes": 26331 * MIB, "free_bytes": 24576 * MIB}),
    ("device out of memory: tried to allocate 512Mi, limit is 40Gi",
     {"tried_bytes": 512 * MIB, "limit_bytes": 40 * GIB}),
    ("cannot allocate 1024 pages of memory on host", {"tried_bytes": 4 * MIB}),
    ("Insufficient GPU memory: required=12.5GiB available=3.5GiB total=79.0GiB",
     {"tried_bytes": 25 * GIB // 2, "free_bytes": 7 * GIB // 2, "capacity_bytes": 79 * GIB}),
    ("GPU out of memory. Requested 2.00 GiB; 1.50 GiB free; 77.00 GiB allocated",
     {"tried_bytes": 2 * GIB, "free_bytes": 3 * GIB // 2, "allocated_bytes": 77 * GIB}),
])
def test_amounts_get_their_role_by_the_words_around_them(line: str, figures: dict[str, int]) -> None:
    story, diagnosis = told(f"{line}\n")
    assert story.root_cause is not None
    fields = story.root_cause.fields
    assert {name: getattr(fields, name) for name in figures} == figures
    assert diagnosis.best.confidence <= 0.7


EXCEPTION = "Traceback (most recent call last):\n  File 't.py', line 3, in main\n    main()\nValueError: bad batch\n"
AGENT_SAYS = (
    "E0309 04:41:12.961000 51873 torch/distributed/elastic/multiprocessing/api.py:869] "
    "failed (exitcode: 1) local_rank: 2 (pid: 51942) of binary: python"
)
ENDS = {
    "torchrun's agent": AGENT_SAYS,
    "Lightning's watch over its children": "[rank: 2] Child process with PID 88213 terminated with code 1.",
    "Ascend's run time": "[ERROR] 2025-08-04-14:20:31 (PID:9124, Device:2, RankID:2) ERR99999 UNKNOWN",
}


@pytest.mark.parametrize("line", ENDS.values(), ids=ENDS)
def test_the_only_rank_that_is_reported_to_have_ended_with_an_error_failed(line: str) -> None:
    story, _ = told(EXCEPTION + line + "\n")
    assert story.root_cause is not None
    assert story.root_cause.rank == 2


def test_two_ranks_that_ended_with_an_error_name_none() -> None:
    ends = "".join(ENDS["Lightning's watch over its children"].replace("2]", f"{rank}]") + "\n" for rank in (1, 2))
    story, _ = told(EXCEPTION + ends)
    assert story.root_cause is not None
    assert story.root_cause.rank is None


NODES = {
    "a launcher's command of two nodes": ("torchrun --nnodes 2 --node_rank 1 --nproc_per_node 4 train.py", 6),
    "the agent's rendezvous": ("  global_ranks=[12, 13, 14, 15]", 14),
    "two nodes and no number of this one": ("torchrun --nnodes=2 --nproc_per_node=8 train.py", None),
    "one node": ("torchrun --nnodes=1 --nproc_per_node=8 train.py", 2),
    "a rank that is another one than its local rank": ("[rank10]: rank 10, local_rank 2 starts", None),
}


@pytest.mark.parametrize(("line", "rank"), NODES.values(), ids=NODES)
def test_a_local_rank_is_the_rank_where_the_launcher_counts_the_nodes(line: str, rank: int | None) -> None:
    story, _ = told(f"{line}\n{EXCEPTION}{AGENT_SAYS}\n")
    assert story.root_cause is not None
    assert story.root_cause.rank == rank


def test_what_a_parent_passes_on_is_said_by_the_process_that_it_spawned() -> None:
    parent = EXCEPTION.replace("ValueError: bad batch", "Exception: ")
    story, _ = told(f"{parent}\n-- Process 3 terminated with the following error:\n{EXCEPTION}")
    assert story.root_cause is not None
    assert (story.root_cause.rank, story.root_cause.excerpt.count("bad batch")) == (3, 1)


def test_records_that_a_paste_ran_into_one_line_are_told_apart() -> None:
    story, judged = told(f"[rank2]: RuntimeError: shape mismatch: [3, 6112] {AGENT_SAYS}\n")
    assert story.root_cause is not None
    assert (judged.best.kind, story.root_cause.rank) == ("not_oom", 2)


MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB "
    "of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the "
    "allocated memory 40.20 GiB is allocated by PyTorch, and 36.50 GiB is reserved by PyTorch but unallocated. If "
)


@pytest.mark.parametrize("width", [60, 80, 115])
@pytest.mark.parametrize("box", [("", ""), ("\u2502 ", " \u2502")], ids=["bare", "boxed"])
def test_a_message_that_was_wrapped_is_read_as_a_whole(width: int, box: tuple[str, str]) -> None:
    story, _ = told("".join(f"{box[0]}{line}{box[1]}\n" for line in textwrap.wrap(MESSAGE, width)))
    assert story.root_cause is not None
    fields = story.root_cause.fields
    assert (fields.free_bytes, fields.reserved_unallocated_bytes) == (512 * MIB, round(36.5 * GIB))


def test_figures_in_front_of_a_cut_count() -> None:
    story, judged = told(MESSAGE[: MESSAGE.index("ocated. If")] + "\n")
    assert story.root_cause is not None
    assert story.root_cause.fields.reserved_unallocated_bytes == round(36.5 * GIB)
    assert judged.best.kind == "fragmentation"


BELOW = {
    "MemoryError: \n\n----\nC++ Traceback\n  0 alloc()\n"
    "Out of memory error on GPU 5. Cannot allocate 3.5GB memory on GPU 5, 20.25GB "
    "memory has been allocated and available memory is only 1.75GB.": "true_oom",
    "SystemError: (Fatal) Operator mul raises an alloc::BadAlloc exception.\n  0 f()\nDevice memory isn't enough and "
    "alloc failed, alloc size: 4294967296B": "true_oom",
    "Error in loop: Out of memory allocating 6,291,456 bytes (allocated so far: 8,192,000 bytes).\n"
    "  File \"pool.pyx\", line 1, in malloc\n"
    "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 6,291,456 bytes (allocated so far: 8,192,000 bytes).":
    "true_oom",
    "E xla_util.cc:90] OP_REQUIRES failed at a.cc:2 : RESOURCE_EXHAUSTED: Attempting to reserve 5.5G at the bottom of "
    "memory. That was not possible. There are 2.5G free.\nRuntimeError: From /job:local/replica:0/task:0:": "true_oom",
    "Unhandled exception of type 'St12out' with message 'Cannot reserve 512 MiB as only 9 MiB free device memory is "
    "left', terminating": "true_oom",
    "CUDA OutOfMemoryError in assigner, using CPU\nFileNotFoundError: no image a.jpg": "not_oom",
}
"""A failure whose own class or first words say little: what the words below them, or behind a status, say."""


@pytest.mark.parametrize("text", BELOW)
def test_what_was_short_is_read_below_or_behind_the_class(text: str) -> None:
    assert told(text + "\n")[1].best.kind == BELOW[text]


STEPS = {
    ':::MLLOG {"key": "loss", "value": 4.2, "metadata": {"step_num": 1450}}': 1450,
    "ep 3 it 11840 | loss 1.882": 11840,
    "epoch 0 it 88/6250 loss 6.71 mem 31.2G": 88,
    "iteration 7029/90000 | lm loss: 1.85": 7029,
    "[09/05 16:58:40] det.engine INFO: Epoch: [0] [ 280/1832] learning_rate: 0.1": 280,
    "Epoch 1/30 - 190/3125 [=>..........] - ETA: 9:41 - loss: 2.2": 190,
    "check it 3 times before you report it": None,
}


@pytest.mark.parametrize("line", STEPS)
def test_a_steps_counter_is_read_whoever_prints_it(line: str) -> None:
    assert told(f"{line}\nValueError: a bad batch\n")[0].progress.last_step == STEPS[line]


BFC = (
    "W bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.50GiB (rounded to 1610612736)\n"
    + "I bfc_allocator.cc:2] Bin (256): \tTotal Chunks: 4, Chunks in use: 1. 0B in use in bin.\n" * 40
    + "I bfc_allocator.cc:3] Stats: \nLimit:         4294967296\nInUse:         3221225472\n"
)
RAY = (
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    "Memory on the node (IP: 10.0.0.6, ID: 12ab) where the task (actor ID: 2b, name=W.__init__, pid=812, memory "
    "used=30.00GB) was running was 60.10GB / 62.00GB (0.96), which exceeds the threshold\n"
)
PLACES = {
    "an allocator's sums behind its rows": (BFC, "limit_bytes", 4 * GIB),
    "what is in use behind the rows": (BFC, "allocated_bytes", 3 * GIB),
    "a node's memory": (RAY, "capacity_bytes", 62 * GIB),
    "a pod's limit": (
        "      Reason:       OOMKilled\n    Limits:\n      cpu:     8\n      memory:  64Gi\n", "limit_bytes", 64 * GIB),
    "the file system of shared memory": (
        "RuntimeError: unable to write to file </torch_1_2>: No space left on device (28)\n$ df -h /dev/shm\n"
        "shm              64M   64M     0 100% /dev/shm\n", "limit_bytes", 64 * MIB),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_figure_is_read_where_it_stands(name: str) -> None:
    text, field, value = PLACES[name]
    cause = told(text)[0].root_cause
    assert cause is not None and getattr(cause.fields, field) == value


XLA = "jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.\n"
ROW = "|    {}   N/A  N/A   {}      C   {}                46790MiB |\n"
OLD_ROW = "|    0     41180      C   namd2                            15210MiB |\n"
TABLES = {
    "before the start": (ROW.format(0, 918230, "/home/a/bin/python") + XLA, "co_tenant"),
    "when the job is gone": (XLA + "# epilog\n" + OLD_ROW, "co_tenant"),
    "as values behind commas": (
        "$ nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader\n"
        "902117, /srv/b/python3.11, 70288 MiB\n" + XLA, "co_tenant"),
    "while the job trains": (
        "step 10 loss 2\nstep 20 loss 2\n" + ROW.format(0, 918230, "python") + "step 30 loss 2\n" + XLA, "true_oom"),
    "of all of its ranks": (ROW.format(0, 91, "python") + ROW.format(1, 92, "python") + XLA, "true_oom"),
    "of its own": ("(Worker pid=918230) starts\n" + ROW.format(0, 918230, "python") + XLA, "true_oom"),
    "of a desktop": (ROW.format(0, 2113, "Xorg").replace("46790", "460") + XLA, "true_oom"),
}
"""The driver's list of processes in a log, and whose memory explains the failure."""


@pytest.mark.parametrize("name", TABLES)
def test_a_strangers_process_in_the_drivers_list_holds_the_card(name: str) -> None:
    text, kind = TABLES[name]
    judged = told(text)[1]
    assert judged.best.kind == kind and (kind != "co_tenant" or judged.best.confidence < 0.7)


PASTED = {
    "[5/16] ValueError: shapes do not match": 5,
    "2026-01-02 10:11:12 <7> RuntimeError: mat1 and mat2 must have the same dtype": 7,
    "3 | KeyError: 'labels'\n0 | waiting for the others": 3,
    "> > ...\n> > [rank4]: RuntimeError: CUDA error: device-side assert triggered": 4,
    "2026-01-02 03:04:05 host log: [rank12]: RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB": 12,
    "==> logs/worker_6.log <==\nValueError: a bad batch\n==> logs/worker_2.log <==\nstep 3": 6,
    "$ tail -n 3 *.log\n==> rank_1.log <==\nstep 8\n==> rank_9.log <==\nKeyError: 'x'": 9,
    "[operator] Pod bert-worker-3 exited with code 137 reason OOMKilled (limits.memory=64Gi)": 3,
    "RuntimeError: gradients are None\n[ERROR] Worker process 11 exit with exception.": 11,
    # The only one that is named at all.
    "[rank6] epoch 1 step 20 loss 3.1\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB": 6,
    "n7:101:202 [5] include/alloc.h:1 NCCL WARN Cuda failure 'out of memory'\n"
    "[rank13]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error": 13,
    "(Worker pid=7) rank 0 in world size 1 is assigned as DP rank 0\nValueError: No available memory for the cache "
    "blocks.": 0,
    # By its process, its pod, its place, its file.
    "(T pid=1) - (node_id=9a, ip=10.0.0.6, pid=811) world_rank=2, local_rank=0, node_rank=1\n"
    "(T pid=1) - (node_id=9a, ip=10.0.0.6, pid=812) world_rank=3, local_rank=1, node_rank=1\n"
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    "Memory on the node (IP: 10.0.0.6, ID: 12ab) where the task (actor ID: 2b, name=W.__init__, pid=812, memory "
    "used=30.00GB) was running was 60.10GB / 62.00GB (0.96), which exceeds the threshold": 3,
    "[pod/seg-master-0/pytorch] step 3 loss 1\n[pod/seg-worker-1/pytorch] ValueError: a bad batch": 2,
    "[pod/seg-worker-0/main] [rank4]: ready\n[pod/seg-worker-1/main] [rank5]: ready\n"
    "$ kubectl describe pod seg-worker-3\nName:             seg-worker-3\nContainers:\n  main:\n"
    "      Reason:       OOMKilled": 7,
    "trainer.5.log | a\ntrainer.5.log | b\nrank_5.log | c\nrank_5.log | KeyError: 'x'": 5,
    "  host      : n1\n  rank      : 9 (local_rank: 1)\n  exitcode  : -11 (pid: 4)\n"
    "  traceback : Signal 11 (SIGSEGV) received by PID 4": 9,
    "[2026-04-11 08:06:25 TP7] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "a.py", line 2, in f\nRuntimeError: CUDA error: an illegal memory access was encountered': 7,
}
"""A few lines as people paste them, and the rank that they name."""


@pytest.mark.parametrize("text", PASTED)
def test_a_few_pasted_lines_name_their_rank(text: str) -> None:
    cause = told(text + "\n")[0].root_cause
    assert cause is not None and cause.rank == PASTED[text]


def test_a_line_that_quotes_a_files_name_renames_nobody() -> None:
    cause = told("step 1\n" * 200 + "==> rank_9.log <==\nKeyError: 'x'\n")[0].root_cause
    assert cause is not None and cause.rank is None


@pytest.mark.parametrize("text", [
    "[rank0]: world_size: 8\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",  # rank 0 speaks for all
    "[rank2]: ready\n[rank5]: ready\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "[default1]: [rank1]: a\n[default1]: [rank9]: a\n[default3]: ImportError: no symbol",  # two nodes
    "[default1]: [rank9]: ready\n[default2]: [rank10]: ready\n[default3]: ImportError: no symbol",  # of which node?
])
def test_where_the_words_leave_a_choice_no_rank_is_named(text: str) -> None:
    cause = told(text + "\n")[0].root_cause
    assert cause is not None and cause.rank is None


def test_a_counter_in_front_of_other_words_is_no_rank() -> None:
    cause = told("[3/8] RUN pip install .\n[4/8] RUN make\nValueError: no version\n")[0].root_cause
    assert cause is not None and cause.rank is None


def test_a_process_that_calls_itself_minus_one_has_no_rank() -> None:
    cause = told("init rank=-1 world\nrank: -1 ValueError: no group\n")[0].root_cause
    assert cause is not None and cause.rank is None
