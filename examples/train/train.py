#!/usr/bin/env python3
"""A simulated training job: real processes, launcher, logs and checkpoints around a model of GPU memory.

Runs under ``srun``, under torchrun's variables (``launch.py``) or alone. ``--help`` lists the options. To run it
elsewhere use ``copy-to.sh``, which puts the simulator and the allocator beside it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace

import simulation_path  # noqa: F401
from checkpoints import CheckpointError, TrainingState, finalise, latest_iteration, load, write_shard
from collective import Collective, CollectiveTimeoutError, PeerLostError
from data_workers import DataWorkerKilledError, DataWorkers
from failures import (
    emit,
    script_frames,
    write_nccl_out_of_memory,
    write_out_of_memory,
    write_traceback,
    write_watchdog,
)
from job_options import JobOptions, build_parser, check_options
from launcher_environment import Rank, rank_from_environment
from progress import iteration_line, memory_line

# isort: split
from runbook.allocator import AllocationFailedError, AllocatorConfig, CachingAllocator
from simulator.allocator_config import AllocatorConfigError, config_from_environment
from simulator.device import CudaOutOfMemoryError, GpuLostError, SimulatedGpu, gpu_of_rank
from simulator.memory_model import MicroBatch
from simulator.messages import cuda_error_name
from simulator.workload import TrainingWorkload, WorkloadSettings

_MIB = 1 << 20
# Of equal micro-batches, and of equal iterations, so many are played out; further ones would find every block where
# the ones before left it.
_MICRO_BATCHES_PLAYED = 2
_ITERATIONS_PLAYED = 4


class TrainingJob:
    """One rank of the job."""

    def __init__(self, options: JobOptions, rank: Rank, gpu: SimulatedGpu, config: AllocatorConfig) -> None:
        self.options = options
        self.rank = rank
        self.gpu = gpu
        self.allocator = CachingAllocator(gpu, config)
        settings = WorkloadSettings(
            options.shape,
            options.checkpointing,
            options.sharding,
            fused_attention=not options.arguments.unfused_attention,
            leak_bytes_per_step=int(options.arguments.leak_mib_per_step * _MIB),
        )
        self.workload = TrainingWorkload(self.allocator, settings)
        self.collective: Collective | None = None
        self.iteration = 0
        self.consumed_samples = 0
        self._host_leak: list[bytearray] = []
        self._batches: list[MicroBatch] = []
        self._alike = 0

    def pretrain(self) -> None:
        """Set up, load a checkpoint if there is one, and train."""
        arguments = self.options.arguments
        self.gpu.create_context()
        self.collective = Collective(self.rank, arguments.collective_timeout, arguments.hang_on_peer_failure)
        if self.rank.world_size > 1:
            self.gpu.take_outside_pytorch(arguments.nccl_buffer_mib * _MIB)
        self.setup_model_and_optimizer()
        self.collective.barrier()
        self.train()
        self.collective.barrier()
        self.say(f"training finished at iteration {self.iteration}")

    def setup_model_and_optimizer(self) -> None:
        """Weights, master weights, and from a checkpoint the optimizer's states."""
        self.workload.initialise()
        arguments = self.options.arguments
        if arguments.load is None:
            return
        iteration = arguments.ckpt_step or latest_iteration(arguments.load, arguments.checkpoint_format)
        if iteration is None:
            if arguments.exit_on_missing_checkpoint:
                raise CheckpointError(f"no checkpoint found in {arguments.load}")
            self.say(f"WARNING: could not find the metadata file {arguments.load}/latest_checkpointed_iteration.txt")
            self.say("    will not load any checkpoints and will start from random")
            return
        self.say(f" loading checkpoint from {arguments.load} at iteration {iteration}")
        state = load(arguments.load, iteration, self.rank.world_size, arguments.checkpoint_format)
        self.workload.load_optimizer(read_to_card=arguments.map_location == "cuda")
        self.iteration, self.consumed_samples = state.iteration, state.consumed_samples
        if (state.world_size, state.shard_degree) != (self.rank.world_size, self.options.sharding.degree):
            self.say(
                f" resharding checkpoint: {state.world_size} ranks, shard degree {state.shard_degree} -> "
                f"{self.rank.world_size} ranks, shard degree {self.options.sharding.degree}"
            )
        self.say(f" successfully loaded checkpoint from {arguments.load} [ t 1/1, p 1/1 ] at iteration {iteration}")

    def train(self) -> None:
        """All iterations from the present one on."""
        arguments = self.options.arguments
        retries = 0
        first = self.iteration + 1
        workers = DataWorkers(arguments.num_workers, arguments.worker_mib, arguments.worker_iterations)
        for iteration in range(first, arguments.train_iters + 1):
            started_s = time.monotonic()
            workers.next_batch()
            self.train_step(iteration)
            self.iteration = iteration
            self.consumed_samples += self.options.global_batch_size
            if iteration == first and self.rank.rank == 0:
                emit(memory_line(0, iteration, self.allocator))
            elif arguments.log_memory_interval and iteration % arguments.log_memory_interval == 0:
                emit(memory_line(self.rank.rank, iteration, self.allocator))
            if self.allocator.statistics.num_alloc_retries > retries:
                new_retries = self.allocator.statistics.num_alloc_retries - retries
                emit(f"[Rank {self.rank.rank}] {new_retries} CUDA memory allocation retries.")
                retries += new_retries
            if self.rank.rank == self.rank.world_size - 1 and iteration % arguments.log_interval == 0:
                self.log_progress(time.monotonic() - started_s)
            if arguments.save and arguments.save_interval and iteration % arguments.save_interval == 0:
                self.save_checkpoint()

    def train_step(self, iteration: int) -> None:
        """Forward and backward of all micro-batches, the collective operation of the step, the optimizer's step."""
        options = self.options
        self.gpu.check()
        batches = options.lengths.micro_batches(
            self.rank.rank, iteration, options.micro_batch_size, options.accumulation
        )
        if options.lengths.is_constant():
            batches = batches[:_MICRO_BATCHES_PLAYED]
        self._alike = self._alike + 1 if batches == self._batches else 0
        self._batches = batches
        plays = self._alike < _ITERATIONS_PLAYED or bool(options.arguments.leak_mib_per_step)
        for batch in batches if plays else ():
            self.forward_backward(batch)
        time.sleep(options.arguments.step_seconds)
        if options.arguments.host_leak_mib:
            self._host_leak.append(bytearray(b"\x01") * (options.arguments.host_leak_mib * _MIB))
        assert self.collective is not None
        self.collective.barrier()
        if plays:
            self.optimizer_step()
        self.gpu.publish()

    def forward_backward(self, batch: MicroBatch) -> None:
        """One micro-batch."""
        kept = self.workload.forward(batch)
        logits = self.workload.loss(batch)
        self.workload.backward(batch, kept, logits)

    def optimizer_step(self) -> None:
        """Adam's step."""
        self.workload.optimizer_step()

    def save_checkpoint(self) -> None:
        """All ranks write their shards; when all have, rank 0 makes the checkpoint the latest one."""
        arguments = self.options.arguments
        kind = arguments.checkpoint_format
        state = TrainingState(
            iteration=self.iteration,
            consumed_samples=self.consumed_samples,
            world_size=self.rank.world_size,
            shard_degree=self.options.sharding.degree,
            global_batch_size=self.options.global_batch_size,
            seed=arguments.seed,
        )
        self.say(f"saving checkpoint at iteration {self.iteration:7d} to {arguments.save} in {kind} format")
        write_shard(arguments.save, self.rank.rank, state, kind)
        assert self.collective is not None
        self.collective.barrier()
        if self.rank.rank == 0:
            time.sleep(arguments.save_seconds)
            finalise(arguments.save, state, kind)
        self.collective.barrier()  # as Megatron's: no rank goes on before the tracker names this checkpoint
        self.say(
            f"  successfully saved checkpoint from iteration {self.iteration:7d} to {arguments.save} "
            "[ t 1/1, p 1/1 ]"
        )

    def log_progress(self, elapsed_s: float) -> None:
        """The progress line, which the last rank writes."""
        line = iteration_line(
            self.iteration,
            self.options.arguments.train_iters,
            self.consumed_samples,
            elapsed_s,
            self.options.global_batch_size,
            self.options.arguments.seed,
        )
        emit(line)

    def say(self, text: str) -> None:
        """A line from rank 0."""
        if self.rank.rank == 0:
            emit(text)


def run(options: JobOptions, rank: Rank) -> int:
    """Train; the exit status, after whatever had to be said is written."""
    version = options.version
    local, node_index = gpu_of_rank(os.environ.get("CUDA_VISIBLE_DEVICES"), rank.local_rank)
    gpu = SimulatedGpu.on_host(rank.host, node_index, os.environ, options.arguments.gpu_gib)
    job: TrainingJob | None = None
    try:
        settings = config_from_environment(os.environ, version)
        if settings.warning:
            print(f"[rank{rank.rank}]: UserWarning: {settings.warning}", file=sys.stderr, flush=True)
        config = settings.config
        if options.arguments.memory_fraction is not None:
            config = replace(config, per_process_memory_fraction=options.arguments.memory_fraction)
        job = TrainingJob(options, rank, gpu, config)
        job.pretrain()
        return 0
    except AllocationFailedError as error:
        assert job is not None
        write_out_of_memory(rank, version, error, job.workload, gpu, local)
    except CudaOutOfMemoryError as error:
        if error.in_nccl:
            write_nccl_out_of_memory(rank, version, local, error)
        else:
            write_traceback(rank, version, script_frames(error), f"{cuda_error_name(version)}: {error}")
    except GpuLostError as error:
        write_traceback(rank, version, script_frames(error), f"{cuda_error_name(version)}: {error}")
    except AllocatorConfigError as error:
        write_traceback(rank, version, script_frames(error), f"RuntimeError: {error}")
    except CheckpointError as error:
        name = "megatron.core.dist_checkpointing.core.CheckpointingException"
        if options.arguments.checkpoint_format == "deepspeed":
            name = "deepspeed.runtime.zero.utils.ZeRORuntimeException"
        write_traceback(rank, version, script_frames(error), f"{name}: {error}")
    except DataWorkerKilledError as error:
        write_traceback(rank, version, script_frames(error), f"RuntimeError: {error}")
    except PeerLostError as error:
        text = (
            "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
            "\nLast error:\nsocketProgress: Connection closed by remote peer"
        )
        write_traceback(rank, version, script_frames(error), text)
    except CollectiveTimeoutError as error:
        work = job.collective.operations if job and job.collective else 0
        write_watchdog(rank, version, work, error.waited_s)
        gpu.close()
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGABRT)
    finally:
        gpu.close()
    return 1


def main() -> int:
    """Read options and environment, and run this rank."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    rank = rank_from_environment(os.environ)
    parser = build_parser()
    arguments = parser.parse_args()
    try:
        options = check_options(arguments, rank.world_size)
    except ValueError as error:
        if rank.rank == 0:
            print(f"AssertionError: {error}", file=sys.stderr, flush=True)
        return 1
    if rank.rank == 0:
        emit(
            f"simulated training: PyTorch {arguments.pytorch_version} wording, no GPU; {rank.world_size} rank(s) "
            f"under {rank.launcher}, {options.shape.parameters() / 1e9:.2f}B parameters, "
            f"micro-batch {options.micro_batch_size} x accumulation {options.accumulation} x ranks "
            f"{rank.world_size} = global batch {options.global_batch_size}"
        )
    return run(options, rank)


if __name__ == "__main__":
    sys.exit(main())
