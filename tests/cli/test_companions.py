"""`runbook oom --log … --template …` with files that the script names: values found there, copies written."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
srun torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file {config}
"""
CONFIG = """\
[job]
dump_folder = "./outputs"
[training]
local_batch_size = 8   # a GPU
global_batch_size = 256
seq_len = 4096
[checkpoint]
enable = true
interval = 500
"""
LOG = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/opt/torchtitan/train.py", line 500, in forward_backward_step
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of \
79.15 GiB of which 1.10 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the \
allocated memory 76.50 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated.
"""


@pytest.fixture
def job(shell: Shell) -> Path:
    folder = shell.work / "job"
    folder.mkdir()
    (folder / "job.sbatch").write_text(SCRIPT.format(config="conf/train.toml"))
    (folder / "conf").mkdir()
    (folder / "conf" / "train.toml").write_text(CONFIG)
    (folder / "log.out").write_text(LOG)
    return folder


def planned(shell: Shell, folder: Path, *said: str) -> dict[str, object]:
    done = shell(
        "oom", "--log", str(folder / "log.out"), "--template", str(folder / "job.sbatch"), "--output",
        str(folder / "out"), "--set", "ranks=8", *said, "--json",
        HOME=str(shell.folder), XDG_STATE_HOME=str(shell.folder / "xdg"),
    )
    assert done.stdout, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_value_in_a_configuration_file_is_changed_in_a_copy(shell: Shell, job: Path) -> None:
    before = {path: path.read_bytes() for path in job.rglob("*") if path.is_file()}
    incident = planned(shell, job)
    assert incident["unread"] == []
    copy = job / "out" / "train.runbook.toml"
    # How many ranks there were does not show in the files, so a person has said it.
    before_it = tomllib.loads(CONFIG)
    assert tomllib.loads(copy.read_text()) == {
        **before_it, "training": {**before_it["training"], "local_batch_size": 4},
    }
    assert "# a GPU" in copy.read_text()
    assert str(copy) in (job / "out" / "job.runbook.sbatch").read_text()
    assert {path: path.read_bytes() for path in before} == before
    attempts = next((shell.folder / "xdg").rglob("attempts/1"))
    script = (attempts / "job.sbatch").read_text()
    assert str(attempts / "runbook-train.toml") in script
    assert (attempts / "runbook-train.toml").read_bytes() == copy.read_bytes()


def test_a_configuration_that_cannot_be_read_leaves_its_values_unknown(shell: Shell, job: Path) -> None:
    """A default is not taken for what may stand in a file that nobody could look into."""
    (job / "conf" / "train.toml").unlink()
    incident = planned(shell, job)
    assert "train.toml is not there" in str(incident["unread"])
    assert incident["patch"] is None
    assert "conf/train.toml, which --job.config_file" in json.dumps(incident["no_plan"])
    assert not (job / "out" / "job.runbook.sbatch").exists()


def test_a_copy_that_names_its_base_lies_beside_the_original(shell: Shell, job: Path) -> None:
    """Case: the changed copy lay in the output folder, where the base that it names was not, and the program ended."""
    (job / "conf" / "base.toml").write_text("[job]\n")
    (job / "conf" / "train.toml").write_text(f'extends = "base.toml"\n{CONFIG}')
    planned(shell, job)
    copy = tomllib.loads((job / "conf" / "train.runbook.toml").read_text())
    assert copy["extends"] == "base.toml" and copy["training"]["local_batch_size"] == 4
    assert "--job.config_file conf/train.runbook.toml" in (job / "out" / "job.runbook.sbatch").read_text()
    assert not (job / "out" / "train.runbook.toml").exists()


def test_a_configuration_that_the_scripts_argument_names_is_asked_for_and_changed(shell: Shell, job: Path) -> None:
    """The question is for what the script was given, and its answer leads to the copy that the new script names."""
    (job / "job.sbatch").write_text(SCRIPT.format(config='"$1"'))
    incident = planned(shell, job)
    assert incident["patch"] is None
    assert "What was the script given as $1?" in json.dumps(incident["no_plan"])
    planned(shell, job, "--set", "1=conf/train.toml")
    copy = job / "out" / "train.runbook.toml"
    assert tomllib.loads(copy.read_text())["training"]["local_batch_size"] == 4
    assert f'--job.config_file "{copy}"' in (job / "out" / "job.runbook.sbatch").read_text()
