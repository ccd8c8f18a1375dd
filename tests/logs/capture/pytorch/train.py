"""A tiny training program that fails in a real way, at the step, rank and place it is told.

Nothing is printed in another program's name: each failure is what Python, NumPy, PyTorch or the kernel does itself.
Runs alone, under torchrun, `accelerate launch`, the deepspeed launcher, or through torch.multiprocessing.spawn.
"""

# mypy: disable-error-code="import-not-found,misc,untyped-decorator"
# The programs' libraries are not among those that this package is checked with.

from __future__ import annotations

import argparse
import ctypes
import logging
import mmap
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, Dataset

WIDTH = 16
TOO_MUCH = 200 << 30
"""Bytes that Linux refuses at once on a machine with less memory."""


def take_all() -> None:
    """Take memory and touch it until something stops it."""
    kept = []
    while True:
        kept.append(torch.ones(16 << 20, dtype=torch.uint8))


def open_all() -> None:
    kept = []
    while True:
        kept.append(Path("/dev/null").open())  # noqa: SIM115


def start_threads() -> None:
    while True:
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()


def loss_is_not_a_number() -> None:
    loss = torch.tensor(float("nan"))
    if not torch.isfinite(loss):
        raise FloatingPointError(f"loss is {loss.item()}, giving up")


def no_such_type(size: int) -> None:
    raise ValueError(f"unknown attention type for a sequence of {size} tokens")


def too_small(size: int) -> None:
    assert size < 0, "micro-batch does not divide the global batch"


def write_shared(size: int) -> None:
    """The file system promises the space and has not got it: SIGBUS on the first touch."""
    shared = shared_memory.SharedMemory(create=True, size=size)
    assert shared.buf is not None
    shared.buf[:] = bytes(size)


def wait(seconds: float = 90) -> None:
    time.sleep(seconds)


TROUBLE: dict[str, Callable[[int], object]] = {
    "torch": lambda size: torch.empty(size, dtype=torch.uint8),
    "python": lambda size: bytearray(size),
    "numpy": lambda size: np.zeros((size // (8 * WIDTH), WIDTH)),
    "bad_alloc": lambda size: torch.ones(1).expand(1 << 40).unbind(),
    "bad_alloc_aborts": lambda size: ctypes.CDLL("libstdc++.so.6")._Znwm(ctypes.c_size_t(size)),
    "mmap": lambda size: mmap.mmap(-1, size),
    "take_all": lambda size: take_all(),
    "kill": lambda size: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda size: os.kill(os.getpid(), signal.SIGTERM),
    "segv": lambda size: ctypes.string_at(8),
    "abort": lambda size: os.abort(),
    "bus": lambda size: os.kill(os.getpid(), signal.SIGBUS),
    "interrupt": lambda size: os.kill(os.getpid(), signal.SIGINT),
    "exit": lambda size: sys.exit(3),
    "quiet_exit": lambda size: os._exit(7),
    "wait": lambda size: wait(),
    "value": no_such_type,
    "assert": too_small,
    "nan": lambda size: loss_is_not_a_number(),
    "shape": lambda size: torch.ones(4, WIDTH) @ torch.ones(4, WIDTH),
    "index": lambda size: nn.functional.embedding(torch.tensor([99]), torch.ones(8, WIDTH)),
    "file": lambda size: Path("/data/shards/part-00017.bin").read_bytes(),
    "cuda": lambda size: torch.ones(1).cuda(),
    "pin": lambda size: torch.ones(1).pin_memory(),
    "files": lambda size: open_all(),
    "threads": lambda size: start_threads(),
    "share": lambda size: torch.zeros(size, dtype=torch.uint8).share_memory_(),
    "write_shared": write_shared,
    "recursion": lambda size: TROUBLE["recursion"](size),
}


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--fail", choices=[*TROUBLE, "barrier", "disagree", "unused"], default=None)
    parser.add_argument("--at", default="forward",
                        choices=["init", "forward", "backward", "optimizer", "data", "checkpoint", "retried"])
    parser.add_argument("--rank", type=int, default=0, help="-1: every rank")
    parser.add_argument("--step", type=int, default=3)
    parser.add_argument("--size", type=int, default=TOO_MUCH)
    parser.add_argument("--attempts", type=int, default=99, help="how many of torchrun's attempts fail")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--store", default="", help="a folder to meet in, instead of the launcher's address")
    parser.add_argument("--timeout-s", type=float, default=60)
    parser.add_argument("--style", choices=["print", "every", "logging", "silent"], default="print")
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--resume", type=int, default=0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--address-space", type=int, default=0, help="limit in bytes, set once all is loaded")
    parser.add_argument("--spawn", type=int, default=0)
    parser.add_argument("--local_rank", type=int, default=None, help="what the deepspeed launcher passes")
    return parser.parse_args(argv)


class Trouble:
    """Raises the chosen trouble where and when it is due."""

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.options, self.step = options, 0
        self.mine = options.rank in (rank, -1) and attempt < options.attempts and options.fail in TROUBLE

    def due(self, place: str) -> bool:
        return self.mine and self.options.at == place and self.step == self.options.step

    def here(self, place: str) -> None:
        if self.due(place):
            TROUBLE[self.options.fail](self.options.size)


class Samples(Dataset[torch.Tensor]):
    def __init__(self, trouble: Trouble, first: int, last: int) -> None:
        self.trouble, self.first, self.last = trouble, first, last

    def __len__(self) -> int:
        return (self.last - self.first) * 4

    def __getitem__(self, index: int) -> torch.Tensor:
        self.trouble.step = max(self.trouble.step, self.first + 1 + index // 4)
        self.trouble.here("data")
        return torch.randn(WIDTH)


class Grow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, hidden: torch.Tensor, trouble: Trouble) -> torch.Tensor:
        ctx.trouble = trouble  # type: ignore[attr-defined]
        return hidden.clone()

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.trouble.here("backward")  # type: ignore[attr-defined]
        return grads[0], None


class Model(nn.Module):
    def __init__(self, trouble: Trouble) -> None:
        super().__init__()
        self.trouble = trouble
        self.up, self.down, self.spare = nn.Linear(WIDTH, 64), nn.Linear(64, 1), nn.Linear(1, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.trouble.here("forward")
        hidden = self.up(batch) if self.trouble.options.compile else Grow.apply(self.up(batch), self.trouble)
        return self.down(torch.relu(hidden)) + (
            0 if self.trouble.options.fail == "unused" else self.spare(torch.ones(1)).sum()
        )


class Optimizer(torch.optim.SGD):
    trouble: Trouble

    def step(self, closure: object = None) -> None:
        self.trouble.here("optimizer")
        super().step()


def save_checkpoint(model: nn.Module, step: int, options: argparse.Namespace, trouble: Trouble) -> None:
    trouble.here("checkpoint")
    path = Path(options.checkpoint) / f"checkpoint-{step}.pt"
    filler = torch.zeros(options.size if options.size < TOO_MUCH else 1)
    torch.save({"model": model.state_dict(), "filler": filler}, path)
    print(f"Saved checkpoint-{step} to {path}", flush=True)


def tell(options: argparse.Namespace, rank: int, step: int, loss: float) -> None:
    if options.style == "every":
        print(f"[rank {rank}] step {step}/{options.steps} loss {loss:.4f}", flush=True)
    elif rank == 0 and options.style == "print":
        print(f"step {step}/{options.steps} loss {loss:.4f}")
    elif rank == 0 and options.style == "logging":
        logging.getLogger("train").info("step: %d | loss: %.4f | lr: 1.0e-02", step, loss)


def endless(loader: DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
    yield from loader


def train(options: argparse.Namespace) -> None:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    trouble = Trouble(options, rank)
    if world > 1:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        Path(options.store or ".").mkdir(exist_ok=True)
        method = f"file://{Path(options.store).resolve()}/attempt-{attempt}" if options.store else None
        dist.init_process_group(
            options.backend, method, timeout=timedelta(seconds=options.timeout_s), rank=rank, world_size=world
        )
        if rank == 0:
            print(f"world size: {world}, backend {options.backend}, torch version {torch.__version__}")
    if options.resume and rank == 0:
        print(f"Resuming from checkpoint-{options.resume}", flush=True)
    trouble.step = options.step if options.at == "init" else 0
    trouble.here("init")
    model: nn.Module = Model(trouble)
    if world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    if options.compile:
        model.compile()
    optimizer = Optimizer(model.parameters(), lr=0.01)
    optimizer.trouble = trouble
    if options.address_space:
        resource.setrlimit(resource.RLIMIT_AS, (options.address_space, options.address_space))
    samples = Samples(trouble, options.resume, options.steps)
    batches = endless(DataLoader(samples, batch_size=4, num_workers=options.workers, pin_memory=options.pin))
    for step in range(options.resume + 1, options.steps + 1):
        batch = next(batches)
        trouble.step = step
        if trouble.due("retried"):
            try:
                TROUBLE[options.fail](options.size)
            except (MemoryError, RuntimeError) as error:
                print(f"step {step}: {type(error).__name__}: {error}; retrying with half the batch", flush=True)
                batch = batch[:2]
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if options.fail == "barrier" and step == options.step:
            wait(0 if rank != options.rank else options.timeout_s * 3)
            dist.monitored_barrier(timeout=timedelta(seconds=options.timeout_s))
        if options.fail == "disagree" and step == options.step:
            dist.all_reduce(torch.ones(3 if rank == options.rank else 2))
        tell(options, rank, step, loss.item())
        if options.checkpoint and rank == 0 and step % 2 == 0:
            save_checkpoint(model, step, options, trouble)
    if rank == 0:
        print("training finished", flush=True)
    if world > 1:
        dist.destroy_process_group()


@record
def main() -> None:
    train(arguments())


def spawned(local_rank: int, options: argparse.Namespace) -> None:
    os.environ.update(RANK=str(local_rank), WORLD_SIZE=str(options.spawn), MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    train(options)


if __name__ == "__main__":
    if arguments().spawn:
        torch.multiprocessing.spawn(spawned, args=(arguments(),), nprocs=arguments().spawn)
    else:
        main()
