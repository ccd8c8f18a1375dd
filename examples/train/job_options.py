"""The options of the simulated training job, and the checks that a real framework makes on them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import simulation_path  # noqa: F401
from checkpoints import FORMATS

# isort: split
from simulator.batches import Growth, SequenceLengths
from simulator.memory_model import Checkpointing, Sharding, TransformerShape
from simulator.versions import TorchVersion


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options as given, checked, and what follows from them."""

    arguments: argparse.Namespace
    shape: TransformerShape
    sharding: Sharding
    checkpointing: Checkpointing
    lengths: SequenceLengths
    version: TorchVersion
    micro_batch_size: int
    accumulation: int
    global_batch_size: int


def build_parser() -> argparse.ArgumentParser:
    """All options, in groups."""
    parser = argparse.ArgumentParser(
        prog="train.py",
        allow_abbrev=False,
        description="A training job in which only the memory is simulated: it runs real processes, waits, barriers, "
        "logs and checkpoints, and takes memory from a model of PyTorch's allocator on a simulated GPU.",
    )
    batch = parser.add_argument_group("batch")
    batch.add_argument("--micro-batch-size", type=int, default=1)
    batch.add_argument("--gradient-accumulation-steps", type=int)
    batch.add_argument("--global-batch-size", type=int, help="must be micro-batch * accumulation * ranks")
    batch.add_argument("--seq-length", type=int, default=4096, help="tokens of the longest sequence")
    batch.add_argument("--shape-mix", type=int, metavar="SHORTEST", help="mixed lengths from SHORTEST to --seq-length")
    batch.add_argument(
        "--sequence-growth", metavar="FIRST:ITERATION", help="FIRST tokens at most before ITERATION, then --seq-length"
    )
    batch.add_argument("--rank-imbalance", type=float, default=0.0, help="share by which ranks' lengths differ")
    memory = parser.add_argument_group("memory")
    memory.add_argument("--activation-checkpointing", choices=["none", "selective", "full"], default="none")
    memory.add_argument("--shard-degree", type=int, help="ranks that share the model states (default: all)")
    memory.add_argument("--zero-stage", type=int, choices=[0, 1, 2, 3], default=3)
    memory.add_argument("--unfused-attention", action="store_true", help="keep the attention scores")
    memory.add_argument("--memory-fraction", type=float, help="as torch.cuda.set_per_process_memory_fraction")
    memory.add_argument("--gpu-gib", type=float, help="capacity of the GPU, instead of what the node says")
    memory.add_argument("--nccl-buffer-mib", type=int, default=768, help="taken outside PyTorch if ranks > 1")
    memory.add_argument("--leak-mib-per-step", type=float, default=0.0)
    memory.add_argument("--host-leak-mib", type=int, default=0, help="real host memory kept every iteration")
    memory.add_argument("--num-workers", type=int, default=0, help="data loading workers, which are real processes")
    memory.add_argument("--worker-mib", type=int, default=0, help="real host memory that each worker comes to hold")
    memory.add_argument("--worker-iterations", type=int, default=20, help="iterations until it does")
    model = parser.add_argument_group("model (the defaults are a 7B)")
    model.add_argument("--hidden-size", type=int, default=4096)
    model.add_argument("--num-layers", type=int, default=32)
    model.add_argument("--num-heads", type=int, default=32)
    model.add_argument("--vocab-size", type=int, default=32000)
    run = parser.add_argument_group("run")
    run.add_argument("--train-iters", type=int, default=200)
    run.add_argument("--step-seconds", type=float, default=0.05)
    run.add_argument("--seed", type=int, default=1234)
    run.add_argument("--save", metavar="DIR")
    run.add_argument("--load", metavar="DIR")
    run.add_argument("--save-interval", type=int, default=0, help="0: no checkpoints")
    run.add_argument(
        "--checkpoint-format", choices=FORMATS, default="torch_dist",
        help="torch_dist can be loaded by another number of ranks, deepspeed cannot",
    )
    run.add_argument("--save-seconds", type=float, default=0.0, help="time between the shards and the tracker")
    run.add_argument("--ckpt-step", type=int, help="load this iteration instead of the tracker's")
    run.add_argument("--map-location", choices=["cuda", "cpu"], default="cpu", help="where a checkpoint is read to")
    run.add_argument("--exit-on-missing-checkpoint", action="store_true")
    run.add_argument("--log-interval", type=int, default=1)
    run.add_argument("--log-memory-interval", type=int, default=0, help="memory line of every rank, 0: only once")
    run.add_argument("--pytorch-version", default="2.6.0", help="whose wording and settings to follow")
    run.add_argument("--hang-on-peer-failure", action=argparse.BooleanOptionalAction, default=True)
    run.add_argument("--collective-timeout", type=float, default=600.0, metavar="SECONDS")
    return parser


def check_options(arguments: argparse.Namespace, world_size: int) -> JobOptions:
    """The job's options; ValueError with the framework's reason if they do not fit together."""
    micro, accumulation, total = batch_sizes(arguments, world_size)
    degree = arguments.shard_degree or world_size
    if world_size % degree:
        raise ValueError(f"world size ({world_size}) is not divisible by shard degree ({degree})")
    if arguments.hidden_size % arguments.num_heads:
        raise ValueError(f"hidden size ({arguments.hidden_size}) is not divisible by heads ({arguments.num_heads})")
    growth = None
    if arguments.sequence_growth:
        first, _, iteration = arguments.sequence_growth.partition(":")
        if not (first.isdigit() and iteration.isdigit()):
            raise ValueError("--sequence-growth is not FIRST:ITERATION, for example 2048:100")
        growth = Growth(int(first), int(iteration))
    return JobOptions(
        arguments=arguments,
        shape=TransformerShape(
            arguments.hidden_size, arguments.num_layers, arguments.num_heads, arguments.vocab_size
        ),
        sharding=Sharding(arguments.zero_stage, degree),
        checkpointing=Checkpointing(arguments.activation_checkpointing),
        lengths=SequenceLengths(
            arguments.seq_length, arguments.seed, arguments.shape_mix, growth, arguments.rank_imbalance
        ),
        version=TorchVersion.parse(arguments.pytorch_version),
        micro_batch_size=micro,
        accumulation=accumulation,
        global_batch_size=total,
    )


def batch_sizes(arguments: argparse.Namespace, world_size: int) -> tuple[int, int, int]:
    """(micro-batch size, accumulation steps, global batch size); all ranks are data parallel."""
    micro: int = arguments.micro_batch_size
    accumulation: int | None = arguments.gradient_accumulation_steps
    total: int | None = arguments.global_batch_size
    if micro < 1 or (accumulation is not None and accumulation < 1):
        raise ValueError("micro-batch size and gradient accumulation steps must be at least 1")
    if total is None:
        accumulation = accumulation or 1
        return micro, accumulation, micro * accumulation * world_size
    if accumulation is None:
        if total % (micro * world_size):
            raise ValueError(
                f"global batch size ({total}) is not divisible by micro batch size ({micro}) "
                f"times data parallel size ({world_size})"
            )
        accumulation = total // (micro * world_size)
    if micro * accumulation * world_size != total:
        raise ValueError(
            f"global batch size ({total}) is not micro batch size ({micro}) times gradient accumulation steps "
            f"({accumulation}) times data parallel size ({world_size})"
        )
    return micro, accumulation, total
