#!/bin/bash
# The job of true-oom.sbatch on one machine without Slurm: eight ranks under launch.py, torchrun's stand-in.
# (Simulated GPUs: see examples/README.md.)
#SBATCH --job-name=local-true-oom
#SBATCH --output=%x-%j.out

set -euo pipefail

SUBMIT_DIR=${SLURM_SUBMIT_DIR:-$PWD}
TRAIN=${RUNBOOK_EXAMPLES:-$SUBMIT_DIR/..}/train
CHECKPOINTS=$SUBMIT_DIR/checkpoints/local-true-oom

TRAIN_ARGS=(
    --num-layers 26
    --hidden-size 4096
    --num-heads 32
    --vocab-size 128256
    --seq-length 4096
    --sequence-growth 2048:40
    --rank-imbalance 0.3
    --seed 9425
    --micro-batch-size 4
    --gradient-accumulation-steps 1
    --global-batch-size 32
    --activation-checkpointing none
    --shard-degree 8
    --train-iters 120
    --step-seconds 0.08
    --save "$CHECKPOINTS"
    --load "$CHECKPOINTS"
    --save-interval 10
)

python3 "$TRAIN/launch.py" --nproc-per-node 8 "$TRAIN/train.py" "${TRAIN_ARGS[@]}"
