"""Small Ray programs, one for each way in which Ray logs an end: `jobs.py NAME`. Its output is the driver's log."""

from __future__ import annotations

import os
import signal
import sys
import time

import ray


@ray.remote(max_restarts=0, max_task_retries=0)
class WorkerDict:
    """One rank of a trainer, as the RL stacks name it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.held: list[bytes] = []
        print(f"rank {rank} ready (pid {os.getpid()})")

    def update(self, step: int) -> int:
        print(f"[Rank {self.rank}] step {step} done")
        return step

    def grow(self, gib: int) -> None:
        for _ in range(gib * 64):
            self.held.append(os.urandom(1 << 20) * 16)
            time.sleep(0.02)

    def fail(self, how: str) -> None:
        if how == "raise":
            raise RuntimeError(f"rank {self.rank}: rollout returned an empty batch")
        if how == "memory":
            raise MemoryError
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "term": signal.SIGTERM}[how])
        time.sleep(5)


def workers(count: int) -> list:
    members = [WorkerDict.options(num_cpus=0).remote(rank) for rank in range(count)]
    for step in range(1, 4):
        ray.get([member.update.remote(step) for member in members])
        print(f"step:{step} - actor/loss:{1 / step:.4f} - perf/time_per_step:0.1", flush=True)
    return members


def main(name: str) -> None:
    ray.init(num_cpus=2, object_store_memory=150 << 20, include_dashboard=False)
    members = workers(4)
    if name == "memory_monitor":
        ray.get(members[2].grow.remote(30))
    elif name == "task_killed":
        @ray.remote(max_retries=0)
        def preprocess() -> None:
            held = []
            while True:
                held.append(os.urandom(1 << 20) * 16)
                time.sleep(0.02)
        ray.get(preprocess.remote())
    elif name.startswith("actor_"):
        how = name.split("_")[1]
        time.sleep(1)
        others = [member.update.remote(9) for member in members if member is not members[1]]
        ray.get([members[1].fail.remote(how), *others])
    elif name == "two_raise":
        ray.get([members[3].fail.remote("raise"), members[0].fail.remote("raise")])
    time.sleep(1)
    print("training finished", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
