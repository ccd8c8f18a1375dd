#!/usr/bin/env python3
"""A stand-in for torchrun on one node: starts the ranks, watches them, and reports failures in torchrun's form.

    python3 launch.py --nproc-per-node 4 train.py --micro-batch-size 2 ...

It sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. When a rank fails the others are terminated, as
torchrun does; ``--no-terminate`` leaves them waiting for it, as plain srun does.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO

_POLL_S = 0.05
_GRACE_S = 5.0
_RULE = "=" * 60
_DASHES = "-" * 60


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank that ended with another status than 0; negative statuses are signals."""

    at_s: float
    rank: int
    local_rank: int
    pid: int
    status: int

    def lines(self, number: int) -> list[str]:
        """One entry of the summary (format: ``torch/distributed/elastic/multiprocessing/errors``)."""
        name, trace = "", "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        if self.status < 0:
            name = f" ({signal.Signals(-self.status).name})"
            trace = f"Signal {-self.status}{name} received by PID {self.pid}"
        return [
            f"[{number}]:",
            f"  time      : {time.strftime('%Y-%m-%d_%H:%M:%S', time.localtime(self.at_s))}",
            f"  host      : {socket.gethostname()}",
            f"  rank      : {self.rank} (local_rank: {self.local_rank})",
            f"  exitcode  : {self.status} (pid: {self.pid}){name}",
            "  error_file: <N/A>",
            f"  traceback : {trace}",
        ]


class Launcher:
    """The ranks of one node."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.failures: list[Failure] = []
        self._readers: list[threading.Thread] = []

    def start(self) -> None:
        """Start all ranks."""
        options = self.options
        port = options.master_port or _free_port()
        run_id = options.rdzv_id or f"{os.getpid()}-{int(time.time())}"
        for local_rank in range(options.nproc_per_node):
            environment = {
                **os.environ,
                "RANK": str(options.node_rank * options.nproc_per_node + local_rank),
                "LOCAL_RANK": str(local_rank),
                "WORLD_SIZE": str(options.nnodes * options.nproc_per_node),
                "LOCAL_WORLD_SIZE": str(options.nproc_per_node),
                "GROUP_RANK": str(options.node_rank),
                "MASTER_ADDR": options.master_addr,
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": run_id,
                "TORCHELASTIC_RESTART_COUNT": "0",
            }
            output = subprocess.PIPE if options.tee else None
            process = subprocess.Popen(
                [sys.executable, options.script, *options.arguments], env=environment, stdout=output, stderr=output
            )
            self.ranks[local_rank] = process
            for stream, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                if stream is not None:
                    reader = threading.Thread(target=_copy, args=(stream, target, f"[default{local_rank}]:"))
                    reader.start()
                    self._readers.append(reader)

    def wait(self) -> int:
        """Until all ranks ended; 0 if all ended well."""
        running = dict(self.ranks)
        while running:
            for local_rank, process in list(running.items()):
                status = process.poll()
                if status is None:
                    continue
                del running[local_rank]
                if status:
                    self._failed(local_rank, process.pid, status)
            if self.failures and not self.options.no_terminate:
                self.stop(running)
                running.clear()
            time.sleep(_POLL_S)
        for reader in self._readers:
            reader.join()
        if self.failures:
            self._summary()
        return 1 if self.failures else 0

    def stop(self, running: dict[int, subprocess.Popen[bytes]]) -> None:
        """SIGTERM to all, and SIGKILL to those that are still there afterwards."""
        for process in running.values():
            _log("W", 897, f"Sending process {process.pid} closing signal SIGTERM")
            process.terminate()
        deadline_s = time.monotonic() + _GRACE_S
        for process in running.values():
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                text = f"Unable to shutdown process {process.pid} via 15, forcefully exiting via 9"
                _log("W", 916, text)
                process.kill()
                process.wait()

    def _failed(self, local_rank: int, pid: int, status: int) -> None:
        rank = self.options.node_rank * self.options.nproc_per_node + local_rank
        self.failures.append(Failure(time.time(), rank, local_rank, pid, status))
        _log("E", 869, f"failed (exitcode: {status}) local_rank: {local_rank} (pid: {pid}) of binary: {sys.executable}")

    def _summary(self) -> None:
        first, *others = sorted(self.failures, key=lambda failure: failure.at_s)
        lines = [
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            _RULE,
            f"{self.options.script} FAILED",
            _DASHES,
            "Failures:",
        ]
        for number, failure in enumerate(others, start=1):
            lines.extend(failure.lines(number))
        if not others:
            lines.append("  <NO_OTHER_FAILURES>")
        lines.extend([_DASHES, "Root Cause (first observed failure):", *first.lines(0), _RULE])
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()


def _log(level: str, line: int, text: str) -> None:
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1e6):06d}"
    where = f"torch/distributed/elastic/multiprocessing/api.py:{line}"
    sys.stderr.write(f"{level}{stamp} {os.getpid()} {where}] {text}\n")
    sys.stderr.flush()


def _copy(stream: IO[bytes], target: IO[str], prefix: str) -> None:
    """Copy the lines of a rank with its prefix, as ``torchrun --tee`` does."""
    for line in stream:
        target.write(prefix + line.decode("utf-8", "replace"))
        target.flush()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> int:
    """Start the ranks and wait for them."""
    parser = argparse.ArgumentParser(prog="launch.py", description="torchrun's stand-in for the simulated job")
    parser.add_argument("--nproc-per-node", type=int, default=1)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, help="default: a free one; needed with several nodes")
    parser.add_argument("--rdzv-id", help="must be alike on all nodes")
    parser.add_argument("--tee", action="store_true", help="put [default<local rank>]: before every line")
    parser.add_argument("--no-terminate", action="store_true", help="leave the other ranks alone when one fails")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    print(f"simulated launcher (stand-in for torchrun): {options.nproc_per_node} rank(s), no GPU", flush=True)
    launcher = Launcher(options)

    def interrupted(number: int, frame: object) -> None:
        del frame
        launcher.stop({rank: process for rank, process in launcher.ranks.items() if process.poll() is None})
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    launcher.start()
    return launcher.wait()


if __name__ == "__main__":
    sys.exit(main())
