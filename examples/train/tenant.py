#!/usr/bin/env python3
"""A simulated co-tenant: another job's process that holds memory of one GPU of this node for a while."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time

import simulation_path  # noqa: F401

# isort: split
from simulator.device import CudaOutOfMemoryError, SimulatedGpu, gpu_of_rank

_GIB = 1 << 30


def main() -> int:
    """Take the memory, hold it, and give it back."""
    parser = argparse.ArgumentParser(prog="tenant.py", description="a process that occupies a simulated GPU")
    parser.add_argument("--gib", type=float, default=30.0, help="memory to hold, the CUDA context included")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gpu-index", type=int, help="the node's number of the GPU (default: the first visible)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    index = options.gpu_index
    if index is None:
        _, index = gpu_of_rank(os.environ.get("CUDA_VISIBLE_DEVICES"), 0)
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    gpu = SimulatedGpu.on_host(host, index, os.environ)
    try:
        gpu.create_context()
        if not gpu.take(max(0, int(options.gib * _GIB) - gpu.process_bytes)):
            raise CudaOutOfMemoryError(in_nccl=False)
        gpu.publish()
        print(f"simulated tenant: pid {os.getpid()} holds {options.gib} GiB of GPU {index} on {host}", flush=True)
        time.sleep(options.seconds)
    except CudaOutOfMemoryError as error:
        print(f"torch.AcceleratorError: {error}", file=sys.stderr)
        return 1
    finally:
        gpu.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
