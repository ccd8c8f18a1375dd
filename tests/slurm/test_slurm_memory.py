"""How much main memory a job can be given on a node, as the controller says it (lines of Slurm 22.05, shortened)."""

from __future__ import annotations

import pytest

from runbook.slurm.controller import read_memory_to_have

NODE = (
    "NodeName={name} Arch=x86_64 CPUTot=16 Gres=gpu:8 NodeHostName={name} Version=22.05.8 OS=Linux 6.18 #1 SMP @0  "
    "RealMemory={real} AllocMem=0 FreeMem=18309 Sockets=1 {more}State=IDLE Reason=RealMemory=1 too low\n"
)
PARTITION = "PartitionName=gpu AllowGroups=ALL Nodes=gpu-[21-24] State=UP DefMemPerNode=UNLIMITED {limit} TRES=cpu=64\n"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("reals", "more", "limit", "expected"),
    [
        ((65536, 65536), "", "MaxMemPerNode=UNLIMITED", 65536),
        ((65536, 32768), "", "MaxMemPerNode=UNLIMITED", 32768),
        ((65536, 65536), "MemSpecLimit=2048 ", "MaxMemPerNode=UNLIMITED", 63488),
        ((65536, 65536), "", "MaxMemPerNode=16384", 16384),
        ((65536, 65536), "", "MaxMemPerCPU=4096", None),
        ((65536, 65536), "", "", None),
        ((65536,), "", "MaxMemPerNode=UNLIMITED", None),
    ],
    ids=["all", "the smaller node", "what the node keeps", "the partition", "by CPU", "no word", "a node is missing"],
)
def test_what_a_job_can_have(reals: tuple[int, ...], more: str, limit: str, expected: int | None) -> None:
    nodes = "".join(NODE.format(name=f"gpu-{21 + at}", real=real, more=more) for at, real in enumerate(reals))
    found = read_memory_to_have(nodes, PARTITION.format(limit=limit), 2)
    assert found == (expected * MIB if expected is not None else None)
