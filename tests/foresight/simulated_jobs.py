"""How many relaunches simulated jobs need, and what they lose: with forecasts, by the ladder alone, by halving alone.

    python tests/foresight/simulated_jobs.py [JOBS] [SEED]     # part of `make foresight`; default: 200 jobs, seed 1

The simulator imports nothing of `runbook.foresight`, nor the other way round: a job is a sequence of requests to a
model of PyTorch's caching allocator, with tensors of other sizes (34 bytes a token, hidden unit and layer, 2 bytes of a
gradient, 8 bytes of a logit), so that the peak, the moment of the failure and what is lost to pieces come out of the
replay. Both stand on the same papers (ZeRO, Korthikanti et al.), so real frameworks differ more from either.

What is lost is a made-up measure, the same for all: a pass of t tokens runs at t / (t + 4096) of the full speed,
selective recomputation at 97 % of it and full recomputation at 75 %.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from runbook.allocator import MIB, AllocationFailedError, CachingAllocator, GpuMemory
from runbook.config import Foresight
from runbook.locations import data_folder
from runbook.model.diagnosis import Diagnosis, Hypothesis
from runbook.model.incident import Attempt, Failure
from runbook.model.log import LogStory, MemoryFields, Phase, Progress
from runbook.model.remedy import Fit, Plan
from runbook.model.template import TemplateFile
from runbook.model.units import Bytes, JobId
from runbook.steps import choose_lever
from runbook.steps.shared.base import load_playbook
from simulator.memory_model import Checkpointing, MicroBatch, Sharding, TransformerShape
from simulator.workload import TrainingWorkload, WorkloadSettings
from tests.flow.test_resuming import Scene
from tests.kinds import Kind

MOST = 8
"""Relaunches; a job that does not run then is given up."""
_OUTSIDE = 1200 * MIB
_SPEED = {Checkpointing.NONE: 1.0, Checkpointing.SELECTIVE: 0.97, Checkpointing.FULL: 0.75}
_PHASES = {"forward": Phase.FORWARD, "loss": Phase.FORWARD, "optimizer_step": Phase.OPTIMIZER_STEP}
_PLAYBOOK = load_playbook(data_folder("playbooks") / "oom")


@dataclass(frozen=True, slots=True)
class Job:
    """A job of plain data parallelism with a distributed optimizer."""

    shape: TransformerShape
    world: int
    micro: int
    sequence: int
    recompute: Checkpointing
    card_bytes: int

    @property
    def speed(self) -> float:
        tokens = self.micro * self.sequence
        return _SPEED[self.recompute] * tokens / (tokens + 4096)

    @property
    def template(self) -> str:
        shape = self.shape
        recompute = {
            Checkpointing.NONE: "", Checkpointing.SELECTIVE: " --recompute-granularity selective",
            Checkpointing.FULL: " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        }[self.recompute]
        return (
            f"srun torchrun --nproc_per_node 8 --nnodes {self.world // 8} pretrain_gpt.py --num-layers {shape.layers} "
            f"--hidden-size {shape.hidden_size} --ffn-hidden-size {4 * shape.hidden_size} --num-attention-heads "
            f"{shape.heads} --vocab-size {shape.vocab_size} --micro-batch-size {self.micro} --global-batch-size "
            f"{self.world * 96} --seq-length {self.sequence} --use-distributed-optimizer --bf16{recompute}"
        )

    def failure(self) -> tuple[MemoryFields, Phase] | None:
        """Two steps; None where they run."""
        allocator = CachingAllocator(GpuMemory(self.card_bytes - _OUTSIDE))
        work = TrainingWorkload(allocator, WorkloadSettings(self.shape, self.recompute, Sharding(1, self.world)))
        batch = MicroBatch(self.micro, self.sequence)
        try:
            work.initialise()
            for _ in range(2):
                for _ in range(2):
                    work.backward(batch, work.forward(batch), work.loss(batch))
                work.optimizer_step()
        except AllocationFailedError as error:
            fields = MemoryFields(
                Bytes(error.tried_bytes), Bytes(self.card_bytes), Bytes(error.free_bytes),
                Bytes(error.allocated_bytes), Bytes(error.reserved_bytes - error.allocated_bytes),
            )
            return fields, _PHASES.get(work.phase.value, Phase.BACKWARD)
        return None


@dataclass(frozen=True, slots=True)
class Course:
    """How a job came back."""

    relaunches: int
    runs: bool
    speed: float
    said: int = 0
    wrong: int = 0


def jobs(count: int, seed: int) -> Iterator[Job]:
    """Random jobs that run out, and that some micro-batch and recomputation would bring back."""
    pick = random.Random(seed)
    found = 0
    while found < count:
        heads = pick.choice((12, 16, 20, 24, 32, 40))
        shape = TransformerShape(heads * pick.choice((64, 128)), pick.choice((16, 24, 32, 40)), heads,
                                 pick.choice((32000, 50304, 100352, 128256)))
        job = Job(shape, pick.choice((8, 16, 32, 64)), pick.choice((2, 3, 4, 6, 8, 12, 16, 24, 32)),
                  pick.choice((1024, 2048, 4096, 8192)), pick.choice((Checkpointing.NONE, Checkpointing.SELECTIVE)),
                  pick.choice((40, 80, 80, 141)) * 10**9)
        if job.failure() is not None and best_speed(job) > 0:
            found += 1
            yield job


def best_speed(job: Job) -> float:
    """Of every micro-batch that divides the batch, and every recomputation that keeps less."""
    order = list(Checkpointing)
    choices = [
        replace(job, micro=micro, recompute=recompute)
        for recompute in order[order.index(job.recompute):]
        for micro in range(job.micro, 0, -1) if 96 % micro == 0 or micro == job.micro
    ]
    for one in sorted(choices, key=lambda item: -item.speed):
        if one.failure() is None:
            return one.speed
    return 0.0


def by_the_loop(job: Job, foresight: Foresight) -> Course:
    """With the levers that the box chooses, one relaunch after the other."""
    attempts: list[Attempt] = []
    failures: dict[str, Failure] = {}
    said = wrong = 0
    while (failed := job.failure()) is not None:
        plan = _plan(job, failed, attempts, failures, foresight) if len(attempts) < MOST else None
        if attempts and attempts[-1].plan and attempts[-1].plan.foreseen:
            wrong += attempts[-1].plan.foreseen.fit is Fit.FITS
        if plan is None:
            return Course(len(attempts), False, 0.0, said, wrong)
        said += plan.foreseen is not None and plan.foreseen.fit is Fit.FITS
        attempts.append(Attempt(len(attempts) + 1, plan, job=JobId(str(len(attempts) + 2))))
        new = {edit.parameter: edit.new for edit in plan.edits}
        job = replace(
            job, micro=int(new.get("micro_batch_size") or job.micro),
            recompute=Checkpointing(new.get("recompute_granularity") or job.recompute.value),
        )
    return Course(len(attempts), True, job.speed, said, wrong)


def _plan(
    job: Job, failed: tuple[MemoryFields, Phase], attempts: list[Attempt], failures: dict[str, Failure],
    foresight: Foresight,
) -> Plan | None:
    scene = Scene("true")
    context, failure = scene.context(), scene.incident.failure
    assert failure is not None and failure.story is not None and failure.story.root_cause is not None
    cause = replace(failure.story.root_cause, fields=failed[0], phase=failed[1])
    failure = replace(
        failure, job=replace(failure.job, gpus_per_node=8, num_nodes=job.world // 8),
        story=LogStory(cause, framework_version="2.6.0", progress=Progress(), world_size=job.world),
        diagnosis=Diagnosis(Hypothesis(Kind.TRUE_OOM, 0.95)),
    )
    if attempts:  # each relaunch with what its own logs tell, the last with those of this failure
        attempts[-1] = replace(attempts[-1], story=failure.story)
    first = failures.setdefault("first", failure)
    incident = replace(
        scene.incident, failure=failure, original=first, plan=None, attempts=tuple(attempts),
        templates=(TemplateFile("job.sh", f"#!/bin/bash\n{job.template}\n"),),
    )
    policy = context.settings.policy.model_copy(update={"foresight": foresight})
    settings = context.settings.model_copy(update={"policy": policy})
    return choose_lever.run(
        replace(context, incident=incident, playbook=_PLAYBOOK, settings=settings)
    ).incident.plan


def by_halving(job: Job, _: Foresight) -> Course:
    """Half of the micro-batch until it runs, then full recomputation."""
    relaunches = 0
    while job.failure() is not None:
        if relaunches == MOST or (job.micro == 1 and job.recompute is Checkpointing.FULL):
            return Course(relaunches, False, 0.0)
        changes = {"micro": job.micro // 2} if job.micro > 1 else {"recompute": Checkpointing.FULL}
        job = replace(job, **changes)
        relaunches += 1
    return Course(relaunches, True, job.speed)


WAYS: tuple[tuple[str, Callable[[Job, Foresight], Course], Foresight], ...] = (
    ("with forecasts", by_the_loop, Foresight.CHOOSE),
    ("the ladder alone", by_the_loop, Foresight.OFF),
    ("halving alone", by_halving, Foresight.OFF),
)


def main() -> None:
    words = sys.argv[1:3]
    count, seed = int(words[0]) if words else 200, int(words[1]) if len(words) > 1 else 1
    chosen = list(jobs(count, seed))
    best = [best_speed(job) for job in chosen]
    necessary = sum(job.speed - speed for job, speed in zip(chosen, best, strict=True))
    print(f"{count} simulated jobs that ran out (seed {seed}): relaunches until one runs; what of its speed was lost")
    print("beside the least that had to be; forecasts that said fits, and those that were wrong")
    print(f"{'':18} {'mean':>5} {'1':>5} {'2':>5} {'3+':>5} {'given up':>9} {'lost':>7} {'fits':>5} {'wrong':>6}")
    for name, way, foresight in WAYS:
        courses = [way(job, foresight) for job in chosen]
        needed = [course.relaunches for course in courses if course.runs]
        lost = sum(job.speed - course.speed for job, course in zip(chosen, courses, strict=True))
        print(
            f"{name:18} {statistics.mean(needed):5.2f} {needed.count(1):5} {needed.count(2):5} "
            f"{sum(number > 2 for number in needed):5} {count - len(needed):9} {lost / necessary:6.2f}x "
            f"{sum(one.said for one in courses):5} {sum(one.wrong for one in courses):6}"
        )


if __name__ == "__main__":
    main()
