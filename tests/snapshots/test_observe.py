"""The hook that `runbook observe` names, in real Python processes; in the place of PyTorch there is a stand-in."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

STAND_IN = Path(__file__).parent / "stand_in_for_torch"
JOB = """
import torch
assert torch.IS_A_STAND_IN
torch.cuda.begin()
try:
    torch.cuda.run_out(1)
except MemoryError as error:
    print("the job's own error:", error)
"""


def lines_of(*options: str) -> str:
    command = [sys.executable, "-m", "runbook", "observe", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run_job(folder: Path, lines: str, program: str = JOB, **environment: str) -> subprocess.CompletedProcess[str]:
    """Through a shell, with the lines in front of it, as a launch script has them."""
    (folder / "train.py").write_text(program)
    script = f"{lines}\n{sys.executable} train.py\n"
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STAND_IN), "SLURM_JOB_ID": "42", "RANK": "3"}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env={**base, **environment}, capture_output=True, text=True
    )


def test_a_rank_that_runs_out_leaves_a_snapshot(tmp_path: Path) -> None:
    done = run_job(tmp_path, lines_of("--entries", "5000"))
    assert done.returncode == 0
    assert "the job's own error: CUDA out of memory." in done.stdout
    [path] = (tmp_path / "snapshots").iterdir()
    assert path.name.startswith("oom_job42_rank3_gpu1_pid")
    assert f"snapshot in {path}" in done.stderr
    assert pickle.loads(path.read_bytes())["recorded"] == {"stacks": "python", "max_entries": 5000}
    told = subprocess.run([sys.executable, "-m", "runbook", "snapshot", str(path)], capture_output=True, text=True)
    assert "20 MiB was refused" in told.stdout


def test_nothing_happens_before_the_job_uses_the_gpu(tmp_path: Path) -> None:
    """Launchers and loaders of data import torch, too: none of them may begin a context."""
    done = run_job(tmp_path, lines_of(), "import torch\nprint(torch._C.observers, torch.cuda.memory.recorded)\n")
    assert done.stdout == "[] {}\n"
    assert not (tmp_path / "snapshots").exists()


def test_without_its_variable_the_hook_is_not_there(tmp_path: Path) -> None:
    program = "import sys\nprint([type(one).__name__ for one in sys.meta_path if type(one).__name__ == '_Waiting'])\n"
    assert run_job(tmp_path, lines_of(), program).stdout == "['_Waiting']\n"
    assert run_job(tmp_path, f"{lines_of()}\nunset RUNBOOK_SNAPSHOTS", program).stdout == "[]\n"


@pytest.mark.parametrize(
    ("variable", "says"),
    [("STAND_IN_REFUSES", "no snapshot will be written"), ("STAND_IN_BREAKS", "the snapshot could not be written")],
)
def test_what_goes_wrong_in_it_is_not_the_jobs_failure(variable: str, says: str, tmp_path: Path) -> None:
    done = run_job(tmp_path, lines_of(), **{variable: "1"})
    assert done.returncode == 0
    assert "the job's own error: CUDA out of memory." in done.stdout
    assert says in done.stderr
    assert not list(tmp_path.glob("snapshots/*")) and not list(tmp_path.glob("snapshots/.*"))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = run_job(tmp_path, lines_of("--into", f"{tmp_path}/taken/there"))
    assert done.returncode == 0
    assert "the job's own error: CUDA out of memory." in done.stdout


def test_an_import_of_torch_that_fails_fails_as_before(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "torch").mkdir(parents=True)
    (broken / "torch" / "__init__.py").write_text("raise ImportError('libcudnn.so.9: cannot open shared object file')")
    program = "try:\n    import torch\nexcept ImportError as error:\n    print(error)\n"
    done = run_job(tmp_path, lines_of(), program, PYTHONPATH=str(broken))
    assert done.stdout == "libcudnn.so.9: cannot open shared object file\n"
    done = run_job(tmp_path, lines_of(), program, PYTHONPATH=str(tmp_path / "none"))
    assert done.stdout == "No module named 'torch'\n"


def test_another_sitecustomize_is_run_as_before(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins\nbuiltins.of_the_site = __file__\n")
    done = run_job(tmp_path, lines_of(), "print(of_the_site)\n", PYTHONPATH=f"{site}:{STAND_IN}")
    assert done.stdout == f"{site}/sitecustomize.py\n"
    done = run_job(tmp_path, lines_of(), JOB, PYTHONPATH=f"{site}:{STAND_IN}")
    assert "snapshot in" in done.stderr


def test_a_job_that_fails_and_tries_again_is_not_held_up(tmp_path: Path) -> None:
    program = JOB.replace("try:", "for _ in range(40):\n  try:").replace("    torch.cuda.run", "    torch.cuda.run")
    program = program.replace("except MemoryError as error:\n    print", "  except MemoryError as error:\n    print")
    done = run_job(tmp_path, lines_of(), program)
    assert done.stdout.count("the job's own error") == 40
    assert done.stderr.count("snapshot in") == 5
    assert len(list((tmp_path / "snapshots").iterdir())) == 1


def test_the_hook_is_put_where_the_nodes_see_it(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    lines = lines_of("--write", str(folder), "--into", "/scratch/it's here")
    assert f"export PYTHONPATH='{folder}'" in lines
    assert lines_of("--write", str(folder)).count("export") == 3  # once more: its own file is replaced
    done = run_job(tmp_path, lines_of("--write", str(folder)))
    assert "snapshot in" in done.stderr
    (folder / "sitecustomize.py").write_text("# the site's own\n")
    refused = subprocess.run(
        [sys.executable, "-m", "runbook", "observe", "--write", str(folder)], capture_output=True, text=True
    )
    assert refused.returncode == 3
    assert "is there already and is not ours" in refused.stderr
    assert (folder / "sitecustomize.py").read_text() == "# the site's own\n"
