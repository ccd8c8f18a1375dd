"""How a node's gres.conf numbers its GPUs, and the part of the check script that finds the file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from runbook.model.node import SlurmGpus
from runbook.model.units import NodeName, Unknown
from runbook.node import NodeAnswers, read_answers
from runbook.node.gres import SCRIPT, SECTION, read_slurm_gpus
from runbook.node.sections import Section

NODE = NodeName("gpu-21")


def read(gres: str, *more: str, node: NodeName = NODE) -> SlurmGpus | Unknown:
    lines = ("slurmd=running", "path=/etc/slurm/gres.conf", *(f"gres={line}" for line in gres.split("\n")), *more)
    return read_slurm_gpus(NodeAnswers({SECTION: Section("\n".join(lines), 0)}), node)


@pytest.mark.parametrize(
    ("gres", "autodetect", "numbers"),
    [
        ("Name=gpu File=/dev/nvidia[0-3]", "", [0, 1, 2, 3]),
        ("name=GPU type=h100 file=/dev/nvidia[0-1] Cores=0-31\nName=gpu File=/dev/nvidia2", "", [0, 1, 2]),
        ("Name=gpu File=/dev/nvidia2,/dev/nvidia[0-1]", "", [2, 0, 1]),
        ("Name=gpu File=/dev/nvidia[2-3,0-1]", "", [2, 3, 0, 1]),
        ("NodeName=gpu-[21-22] Name=gpu File=/dev/nvidia0\nNodeName=gpu-23 Name=gpu File=/dev/nvidia1", "", [0]),
        ("# all\nAutoDetect=nvml", "nvml", []),
        ("AutoDetect=NVML\nNodeName=gpu-21 AutoDetect=off Name=gpu File=/dev/nvidia1 # old", "", [1]),
        ("AutoDetect=off\nName=nic File=/dev/nic0\nName=gpu File=/dev/nvidia0", "", [0]),
        ("AutoDetect=nvidia\nName=gpu Type=h100", "nvidia", []),
    ],
)
def test_the_order_of_the_device_files(gres: str, autodetect: str, numbers: list[int]) -> None:
    found = read(gres)
    assert isinstance(found, SlurmGpus), found
    assert (found.autodetect, list(found.files)) == (autodetect, [f"/dev/nvidia{number}" for number in numbers])


@pytest.mark.parametrize(
    ("gres", "why"),
    [
        ("Name=gpu Count=8", "names no plain device files"),
        ("", "names no plain device files"),
        ("NodeName=gpu-9 Name=gpu File=/dev/nvidia0", "names no plain device files"),
        ("Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21", "names no plain device files"),
        ("Name=gpu File=/dev/nvidia[0-99999999]", "names no plain device files"),
        ("Name=gpu Type=v100 File=/dev/nvidia0\nName=gpu Type=a100 File=/dev/nvidia1", "several types of GPUs"),
        ("Include gres.d/gpu-21.conf", "not one plain file"),
        ("Name=gpu \\\nFile=/dev/nvidia0", "not one plain file"),
    ],
)
def test_what_is_not_certain_is_not_known(gres: str, why: str) -> None:
    found = read(gres)
    assert isinstance(found, Unknown) and why in found.unknown


def test_of_two_files_nobody_knows_which_is_slurmds() -> None:
    found = read("Name=gpu File=/dev/nvidia0", "path=/run/slurm/conf/gres.conf")
    assert isinstance(found, Unknown) and "several files may be slurmd's" in found.unknown


@pytest.mark.parametrize(
    ("more", "constrained"),
    [
        ((), False),
        (("constrain=no",), False),
        (("constrain=yes", "task=task/cgroup,task/affinity"), True),
        (("constrain=Yes # devices", "task=affinity,cgroup"), True),
    ],
)
def test_whether_devices_are_constrained(more: tuple[str, ...], constrained: bool) -> None:
    found = read("AutoDetect=nvml", *more)
    assert isinstance(found, SlurmGpus) and found.constrained is constrained


def test_constrained_devices_without_the_plugin_are_not_certain() -> None:
    found = read("AutoDetect=nvml", "constrain=yes", "task=task/affinity")
    assert isinstance(found, SlurmGpus) and isinstance(found.constrained, Unknown)


def test_who_may_not_see_slurmds_environment_does_not_know_its_file() -> None:
    found = read("AutoDetect=nvml", "environment=hidden")
    assert isinstance(found, Unknown) and "for root to read" in found.unknown


def test_a_file_without_a_slurmd_says_nothing() -> None:
    only = NodeAnswers({SECTION: Section("path=/etc/slurm/gres.conf\ngres=AutoDetect=nvml", 0)})
    for answers in (only, NodeAnswers({})):
        assert isinstance(read_slurm_gpus(answers, NODE), Unknown)


def test_the_script_reads_the_configuration_of_the_slurmd_that_has_the_nodes_name(tmp_path: Path) -> None:
    """Two programs called slurmd, as several on one machine: by their -N, and by -f or SLURM_CONF."""
    folders = [tmp_path / "conf-1", tmp_path / "conf-2"]
    for folder in folders:
        folder.mkdir()
        (folder / "gres.conf").write_text(f"Name=gpu File=/dev/nvidia{folder.name[-1]}\n")
        (folder / "cgroup.conf").write_text(" ConstrainDevices = yes\n")
        (folder / "slurm.conf").write_text("TaskPlugin=task/cgroup\n")
    shutil.copy("/bin/sh", tmp_path / "slurmd")
    # A program of another kind under that name, asked for the same node.
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "slurmd").symlink_to("/bin/sh")
    (tmp_path / "wait").write_text("read line\n")
    # As Debian calls it, and as it calls itself after `scontrol reconfigure` from Slurm 24.11 on.
    shutil.copy("/bin/sh", tmp_path / "slurmd-wlm")
    ways = [
        ("slurmd-wlm", "-N", "test-1"),
        ("slurmd", "-D", "-N", "test-2", "-f", f"{folders[1]}/slurm.conf"),
        ("link/slurmd", "-N", "test-2", "-f", f"{folders[0]}/slurm.conf"),
    ]
    running = [
        subprocess.Popen(
            (tmp_path / program, tmp_path / "wait", *way), stdin=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "SLURM_CONF": f"{folders[0]}/slurm.conf"},
        )
        for program, *way in ways
    ]
    try:
        for number, node in ((1, "test-1"), (2, "test-2.example.org")):
            text = (
                f"NODE={node}\nbegin() {{ echo \"@@marker1 begin $1\"; }}\n"
                f'end() {{ echo "@@marker1 end $1 $2"; }}\n{SCRIPT}echo @@marker1 done\n'
            )
            done = subprocess.run(("sh", "-s"), input=text, capture_output=True, text=True, timeout=30, check=True)
            found = read_slurm_gpus(read_answers(done.stdout, "@@marker1"), NodeName(node))
            file = f"/dev/nvidia{number}"
            assert found == SlurmGpus(f"{folders[number - 1]}/gres.conf", "", (file,), constrained=True), done.stdout
    finally:
        for one in running:
            one.communicate(timeout=10)
