"""Which rank this process is, where the others are, and which GPU is its own: read from the launcher's variables."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

_FIRST_PORT = 15000
_PORTS = 12000


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of the job. ``key`` differs for every attempt, so that two jobs never meet in one collective."""

    rank: int
    world_size: int
    local_rank: int
    host: str
    master_address: str
    master_port: int
    key: str
    launcher: str


def rank_from_environment(environment: Mapping[str, str]) -> Rank:
    """The rank given by torchrun's variables, else by srun's, else the only one."""
    host = socket.gethostname().split(".")[0]
    if "RANK" in environment and "WORLD_SIZE" in environment:
        port = int(environment.get("MASTER_PORT", "29500"))
        run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
        return Rank(
            rank=int(environment["RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_rank=int(environment.get("LOCAL_RANK", "0")),
            host=host,
            master_address=environment.get("MASTER_ADDR", "127.0.0.1"),
            master_port=port,
            key=f"torchrun.{run_id}.{port}.{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}",
            launcher="torchrun",
        )
    if "SLURM_PROCID" in environment and "SLURM_NTASKS" in environment:
        return _slurm_rank(environment, host)
    return Rank(0, 1, 0, host, "127.0.0.1", 0, f"alone.{os.getpid()}", "none")


def _slurm_rank(environment: Mapping[str, str], host: str) -> Rank:
    job = environment.get("SLURM_JOB_ID", "0")
    step = environment.get("SLURM_STEP_ID", "0")
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or host
    port = environment.get("MASTER_PORT")
    computed_port = _FIRST_PORT + (int(job) * 7 + int(step) * 3 + int(restarts)) % _PORTS
    return Rank(
        rank=int(environment["SLURM_PROCID"]),
        world_size=int(environment.get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"]),
        local_rank=int(environment.get("SLURM_LOCALID", "0")),
        host=environment.get("SLURMD_NODENAME", host),
        master_address=environment.get("MASTER_ADDR") or first_host(nodes),
        master_port=int(port) if port else computed_port,
        key=f"slurm.{job}.{step}.{restarts}",
        launcher="srun",
    )


def first_host(nodes: str) -> str:
    """The first name of a Slurm host list: ``gpu-[21-22,24],login`` gives ``gpu-21``."""
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        return nodes
    return match.group(1) + (match.group(2) or "") + (match.group(3) or "")
