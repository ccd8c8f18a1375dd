"""A stand-in for a training program, for tests of the flow: prints what one prints, in a twentieth of the time.

With a micro-batch above 4 it dies at step 3 in the words of PyTorch 2.6 and, with --hang, leaves its job wedged.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 0.50 GiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the "
    "allocated memory 77.10 GiB is allocated by PyTorch, and 0.25 GiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch-size", type=int, required=True)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    parser.add_argument("--activation-checkpointing", default="none")
    parser.add_argument("--needs-micro", type=int, default=4)
    parser.add_argument("--save", required=True)
    parser.add_argument("--load", required=True)
    parser.add_argument("--hang", action="store_true")
    options = parser.parse_args()
    start = latest(options.load)
    if start:
        say(f" loading checkpoint from {options.load} at iteration {start}")
        say(f"  successfully loaded checkpoint from {options.load} [ t 1/1, p 1/1 ] at iteration {start}")
    for step in range(start + 1, 9):
        if step == 3 and options.micro_batch_size > options.needs_micro:
            say("[rank0]: Traceback (most recent call last):")
            say('[rank0]:   File "/opt/train.py", line 7, in forward')
            say(f"[rank0]: {OOM}")
            if options.hang:
                time.sleep(600)
            return 1
        say(
            f" [2026-01-02 03:04:{step:02d}] iteration {step:8d}/{8:8d} | consumed samples: {step * 8:12d} | elapsed "
            f"time per iteration (ms): 50.0 | global batch size: {8:5d} | lm loss: 1.0E+00 |"
        )
        if step % 2 == 0:
            save(options.save, step)
            say(f"  successfully saved checkpoint from iteration {step:7d} to {options.save}")
        time.sleep(0.02)
    time.sleep(0.5)
    return 0


def say(text: str) -> None:
    print(text, flush=True)


def latest(folder: str) -> int:
    try:
        with open(os.path.join(folder, "latest_checkpointed_iteration.txt")) as stream:
            return int(stream.read())
    except OSError:
        return 0


def save(root: str, step: int) -> None:
    folder = os.path.join(root, f"iter_{step:07d}")
    os.makedirs(folder, exist_ok=True)
    for name, text in (
        ("__0_0.distcp", "weights\n"),
        ("common.pt", "common\n"),
        (".metadata", "index\n"),
        ("metadata.json", json.dumps({"world_size": 1}) + "\n"),
        ("../latest_checkpointed_iteration.txt", str(step)),
    ):
        path = os.path.join(folder, name)
        with open(path + ".part", "w") as stream:
            stream.write(text)
        os.replace(path + ".part", path)


if __name__ == "__main__":
    sys.exit(main())
