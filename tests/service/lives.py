"""Lives of training jobs, as their logs and processes show them: healthy ones with the words of a memory failure in
their logs, and ones that hang after a rank died of it. What happens in them is told of in public threads and trainers'
own documents: batch sizes that are tried out, batches that are skipped, evaluations of half an hour, graphs that
compile as long, uploads by one rank after the others have ended, shards that end one by one, workers that start anew.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happens `at_s` seconds after the job's start."""

    at_s: float
    text: str = ""
    """Written to its log."""
    starts: tuple[int, ...] = ()
    """Ranks whose process starts (again)."""
    ends: tuple[int, ...] = ()


@dataclass
class Life:
    """One job, written down as it goes. `style` says how a step looks."""

    name: str
    style: str
    random: random.Random
    world: int = 4
    groups: int = 1
    """Replicas of the model that count their ranks each for itself."""
    step_s: float = 2.0
    total: int = 1000
    begins_s: float = 1_795_000_000.0
    hangs_s: float | None = None
    """When the failing line was written of a job that hangs; None: it is healthy."""
    now_s: float = 0.0
    step: int = 0
    moments: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.moments.append(Moment(0.0, starts=tuple(range(self.world))))

    def say(self, text: str) -> None:
        self.moments.append(Moment(self.now_s, text + "\n"))

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def minutes(self, least: float, most: float) -> None:
        self.now_s += 60 * self.random.uniform(least, most)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.now_s += self.step_s * self.random.uniform(0.9, 1.1)
            self.step += 1
            self.say(STYLES[self.style](self))

    def end(self, *ranks: int) -> None:
        self.moments.append(Moment(self.now_s, ends=ranks))

    def start(self, *ranks: int) -> None:
        self.moments.append(Moment(self.now_s, starts=ranks))

    def out_of_memory(self, rank: int, where: str = "train_step") -> None:
        """A traceback, as a rank prints it."""
        mark = f"[rank{rank}]: "
        self.say(
            f"{mark}Traceback (most recent call last):\n{mark}  File \"/home/a/train.py\", line 210, in {where}\n"
            f"{mark}    loss = model(batch)\n{mark}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 "
            f"GiB. GPU {rank} has a total capacity of 79.10 GiB of which 1.20 GiB is free. Process 4711 has 77.90 GiB "
            "memory in use. Of the allocated memory 74.00 GiB is allocated by PyTorch, and 1.10 GiB is reserved by "
            "PyTorch but unallocated."
        )

    def exited(self, rank: int) -> None:
        self.say(f"srun: error: gpu-21: task {rank}: Exited with exit code 1")

    def stamp(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.begins_s + self.now_s))


def _bar(life: Life) -> str:
    done = 100 * life.step // life.total
    return f"{done:3d}%|{'#' * (done // 10):<10}| {life.step}/{life.total} [{life.now_s:.0f}s, {life.step_s:.1f}s/it]"


STYLES: dict[str, Callable[[Life], str]] = {
    "megatron": lambda life: (
        f" [{life.stamp()}] iteration {life.step:8d}/{life.total:8d} | consumed samples: {32 * life.step:12d} | "
        f"elapsed time per iteration (ms): {1000 * life.step_s:.1f} | learning rate: 1.0E-04 | global batch size:  32 "
        "| lm loss: 2.134567E+00 | grad norm: 0.812 |"
    ),
    "trainer": lambda life: f"{_bar(life)}\n{{'loss': 2.1034, 'learning_rate': 1e-05, 'epoch': 0.3}}",
    "lightning": lambda life: f"Epoch 0: {_bar(life)}",
    "titan": lambda life: (
        f"[rank0]:[titan] {life.stamp()},120 - root - INFO - step: {life.step:2d}  loss:  2.1034  memory: "
        "60.12GiB(75.9%)  tps: 8,123  mfu: 41.20%"
    ),
    "nano": lambda life: f"iter {life.step}: loss 2.1034, time {1000 * life.step_s:.2f}ms, mfu 31.20%",
    "fairseq": lambda life: (
        f"{life.stamp()} | INFO | train_inner | epoch 001: {life.step:6d} / {life.total} loss=4.1, ppl=17.2, wps=8123, "
        f"num_updates={life.step}, lr=0.0001, gnorm=0.8"
    ),
    "plain": lambda life: f"step {life.step}/{life.total} loss 2.1034",
    "uncounted": lambda life: "still fitting, all good",
}


# Healthy ones.

def caught_in_evaluation(life: Life) -> None:
    life.steps(40)
    life.say(f"{life.stamp()} ***** Running Evaluation *****")
    life.out_of_memory(1, "evaluate")
    life.say("evaluation batch of 64 does not fit, trying 32")
    life.minutes(20, 40)
    life.say("eval_loss 1.92")
    life.steps(20)


def batch_size_is_tried_out(life: Life) -> None:
    for size in (64, 32, 16):
        life.wait(20)
        life.say(f"trying a batch size of {size}")
        life.out_of_memory(life.random.randrange(life.world), "probe")
    life.say("batch size is 8; compiling, the first step takes long")
    life.minutes(15, 35)
    life.steps(30)


def batches_are_skipped(life: Life) -> None:
    life.steps(30)
    for _ in range(4):
        life.say("| WARNING: ran out of memory with exception: CUDA out of memory. Tried to allocate 20 MiB; skipped")
        life.wait(life.step_s * 4)
        life.steps(8)


def a_long_checkpoint_follows(life: Life) -> None:
    life.steps(40)
    life.out_of_memory(2, "validate")
    life.say("validation failed, going on without it; saving checkpoint at iteration 40 to /ckpt/a")
    life.minutes(10, 25)
    life.say("successfully saved checkpoint from iteration 40 to /ckpt/a")
    life.steps(20)


def kernels_are_tuned(life: Life) -> None:
    life.steps(2)
    for _ in range(5):
        life.say("Runtime error during autotuning: CUDA out of memory. Tried to allocate 9.00 GiB. Choice ignored.")
        life.minutes(1, 6)
    life.steps(30)


def the_data_stalls(life: Life) -> None:
    life.steps(60)
    life.say("dataloader: worker 3: OutOfMemoryError while decoding sample 91244 (CUDA out of memory), sample skipped")
    life.minutes(15, 30)
    life.steps(20)


def generated_text_quotes_it(life: Life) -> None:
    life.steps(30)
    life.say("sample 0: Q: my job says RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. what can I do?")
    life.say("sample 0: A: torch.OutOfMemoryError: CUDA out of memory means that the batch is too large.")
    life.minutes(10, 20)
    life.steps(20)


def steps_are_slow(life: Life) -> None:
    life.step_s = 240.0
    life.steps(6)
    life.out_of_memory(0)
    life.say("micro-batch split in two after an OOM, retrying the step")
    life.steps(4)


def one_rank_uploads_at_the_end(life: Life) -> None:
    life.total = 60
    life.steps(60)
    life.out_of_memory(0, "final_evaluation")
    life.say("final evaluation falls back to the CPU")
    life.end(*range(1, life.world))
    life.say("merging adapter and uploading the model")
    life.minutes(10, 30)
    life.say("done")
    life.end(0)


def one_rank_converts_at_an_end_that_nobody_announces(life: Life) -> None:
    life.steps(60)
    life.out_of_memory(3, "export")
    life.say("export on the GPU does not fit, rank 0 converts on the CPU")
    life.end(*range(1, life.world))
    life.minutes(10, 30)
    life.say("written to /models/final")
    life.end(0)


def shards_end_one_by_one(life: Life) -> None:
    life.style = "uncounted"
    life.steps(5)
    life.out_of_memory(2, "generate")
    life.say("prompt batch halved")
    life.wait(60)
    life.end(2)
    for _ in range(6):
        life.minutes(2, 6)
        life.say("shard 0: wrote 500 answers")
    life.end(1, 3)
    life.minutes(3, 6)
    life.end(0)


def workers_are_started_anew(life: Life) -> None:
    life.steps(40)
    life.out_of_memory(1)
    life.end(1)
    life.say("torch.distributed.elastic: failed (exitcode: 1) local_rank: 1 (pid: 4711) of binary: python")
    life.wait(3)
    life.end(0, 2, 3)
    life.wait(8)
    life.start(*range(life.world))
    life.say("Worker group restarted, 2 of 3 attempts left; loading checkpoint at iteration 20")
    life.minutes(2, 10)
    life.step = 20
    life.steps(40)


def the_allocator_retries(life: Life) -> None:
    life.steps(30)
    life.say("[Rank 2] 12 CUDA memory allocation retries: close to CUDA out of memory")
    life.minutes(1, 3)
    life.steps(30)


def a_child_probes_and_dies(life: Life) -> None:
    life.say("profiling in a child process with the largest micro-batch")
    life.wait(30)
    life.out_of_memory(0, "profile")
    life.say("profile child ended with 1; micro-batch 4 is used")
    life.minutes(3, 12)
    life.steps(40)


def a_trial_fails_and_the_next_begins(life: Life) -> None:
    for trial in range(3):
        life.step = 0
        life.steps(12)
        life.out_of_memory(0, "objective")
        life.say(f"Trial {trial} failed with OutOfMemoryError, the study goes on")
        life.minutes(2, 6)
    life.step = 0
    life.steps(30)


def an_engine_captures_less(life: Life) -> None:
    life.steps(5)
    life.say("ERROR engine: torch.OutOfMemoryError: CUDA out of memory while capturing graphs for batch 512")
    life.say("WARNING engine: graphs for 512 left out, eager mode is used; rollout of 4096 prompts begins")
    life.minutes(12, 30)
    life.steps(10)


def a_replica_is_lost_and_the_others_go_on(life: Life) -> None:
    life.groups, life.step_s = 2, 20.0
    life.steps(20)
    life.out_of_memory(1)
    life.exited(3)
    life.end(2, 3)
    life.say("quorum: 1 of 2 replicas, going on without replica 1")
    life.wait(45)
    life.steps(40)


HEALTHY = (
    caught_in_evaluation, batch_size_is_tried_out, batches_are_skipped, a_long_checkpoint_follows, kernels_are_tuned,
    the_data_stalls, generated_text_quotes_it, steps_are_slow, one_rank_uploads_at_the_end,
    one_rank_converts_at_an_end_that_nobody_announces, shards_end_one_by_one, workers_are_started_anew,
    the_allocator_retries, a_child_probes_and_dies, a_trial_fails_and_the_next_begins, an_engine_captures_less,
    a_replica_is_lost_and_the_others_go_on,
)


# Ones that hang: nobody ends them, for an hour.

def _dies(life: Life, after_s: float = 0.5, told: bool = True) -> None:
    life.out_of_memory(2)
    life.hangs_s = life.now_s
    life.wait(after_s)
    life.end(2)
    if told:
        life.exited(2)


def the_others_are_silent(life: Life) -> None:
    life.steps(40)
    _dies(life)
    life.wait(3600)


def the_others_print_a_heartbeat(life: Life) -> None:
    life.steps(40)
    _dies(life)
    for _ in range(360):
        life.wait(10)
        life.say(f"{life.stamp()} heartbeat from rank 0, GPU 100 %")


def the_loaders_bar_goes_on(life: Life) -> None:
    life.steps(40)
    _dies(life)
    for number in range(600):
        life.wait(3)
        life.say(f"prefetched shard {number}, queue 64 deep")
    life.wait(1800)


def a_watchdog_talks(life: Life) -> None:
    life.steps(40)
    _dies(life)
    for _ in range(60):
        life.wait(60)
        life.say("[rank0]:[I ProcessGroupNCCL.cpp:2140] [PG ID 0 Rank 0] ProcessGroupNCCL heartbeat monitor is healthy")


def it_dies_before_its_first_step(life: Life) -> None:
    life.say("loading the model")
    life.wait(40)
    _dies(life)
    life.wait(3600)


def the_process_takes_its_time_to_end(life: Life) -> None:
    life.steps(40)
    _dies(life, after_s=75)
    life.wait(3600)


def it_printed_while_the_process_took_its_time(life: Life) -> None:
    life.steps(40)
    life.out_of_memory(2)
    life.hangs_s = life.now_s
    for second in range(3600):
        life.wait(1)
        life.say("rank 0 waits")
        if second == 30:
            life.end(2)
            life.exited(2)


def its_steps_are_slow(life: Life) -> None:
    life.step_s = 120.0
    life.steps(10)
    _dies(life)
    life.wait(5400)


def nobody_says_that_a_process_ended(life: Life) -> None:
    life.steps(40)
    _dies(life, told=False)
    life.wait(3600)


HANGS = (
    the_others_are_silent, the_others_print_a_heartbeat, the_loaders_bar_goes_on, a_watchdog_talks,
    it_dies_before_its_first_step, the_process_takes_its_time_to_end, it_printed_while_the_process_took_its_time,
    its_steps_are_slow, nobody_says_that_a_process_ended,
)


def lives(every: int = 1) -> Iterator[Life]:
    """Each kind of life in each style; `every`: of these so many apart, another style for each kind."""
    number = 0
    for index, live in enumerate((*HEALTHY, *HANGS)):
        for at, style in enumerate(STYLES):
            if (at + index) % every:
                continue
            number += 1
            life = Life(live.__name__, style, random.Random(f"{live.__name__} {style}"))
            life.wait(5)
            live(life)
            yield life
