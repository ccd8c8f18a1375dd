"""The training job itself: launchers, checkpoints, hanging survivors, co-tenants, versions."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.simulator.jobs import EXAMPLES, TRAIN, Result, environment, run_job, stop

GIB = 1 << 30
SMALL = ["--hidden-size", "1024", "--num-layers", "4", "--num-heads", "8", "--seq-length", "512"]
HOST = socket.gethostname().split(".")[0]
#: A model that does not fit on the second iteration, when rank 1 of 2 gets the long sequences.
DIES = ["--micro-batch-size", "8", "--sequence-growth", "512:8", "--rank-imbalance", "0.5", "--seed", "2"]


def alone(*arguments: str, **extra: str) -> Result:
    """train.py without any launcher."""
    command = [sys.executable, str(TRAIN), *arguments, "--step-seconds", "0"]
    done = subprocess.run(
        command,
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return Result(done.returncode, done.stdout)


def tracker(folder: Path) -> str:
    return (folder / "latest_checkpointed_iteration.txt").read_text()


class TestBeginning:
    def test_the_first_line_says_that_it_is_a_simulation(self) -> None:
        result = alone(*SMALL, "--train-iters", "2", "--pytorch-version", "2.9.1")
        assert result.log.startswith("simulated training: PyTorch 2.9.1 wording, no GPU")
        assert result.status == 0

    def test_progress_and_memory_lines(self) -> None:
        result = alone(*SMALL, "--train-iters", "4", "--log-memory-interval", "2")
        assert result.iterations() == [1, 2, 3, 4]
        memory = re.findall(r"^\[Rank 0\] \(after (\d) iterations\) memory \(MB\) \| allocated: ", result.log, re.M)
        assert memory == ["1", "2", "4"]
        assert re.search(r" \| consumed samples: +4 \| elapsed time per iteration \(ms\): [\d.]+ \| ", result.log)

    def test_the_same_seed_gives_the_same_losses(self) -> None:
        logs = [re.findall(r"lm loss: (\S+)", alone(*SMALL, "--train-iters", "5").log) for _ in range(2)]
        assert logs[0] == logs[1]
        assert len(logs[0]) == 5

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["--micro-batch-size", "3", "--global-batch-size", "8"], "global batch size (8) is not divisible by"),
            (
                ["--micro-batch-size", "2", "--gradient-accumulation-steps", "2", "--global-batch-size", "8"],
                "global batch size (8) is not micro batch size (2) times gradient accumulation steps (2)",
            ),
            (["--shard-degree", "3"], "world size (1) is not divisible by shard degree (3)"),
            (["--hidden-size", "1000", "--num-heads", "7"], "is not divisible by heads"),
            (["--sequence-growth", "soon"], "--sequence-growth is not FIRST:ITERATION"),
        ],
    )
    def test_options_that_do_not_fit(self, arguments: list[str], reason: str) -> None:
        result = alone(*arguments)
        assert result.status == 1
        assert f"AssertionError: {reason}" in result.log or reason in result.log

    def test_a_misspelt_allocator_setting_ends_the_job(self) -> None:
        result = alone(*SMALL, PYTORCH_CUDA_ALLOC_CONF="expandable_segment:True")
        assert result.status == 1
        assert "RuntimeError: Unrecognized CachingAllocator option: expandable_segment" in result.log

    def test_a_memory_fraction_shows_as_allowed(self) -> None:
        result = alone(*SMALL, "--memory-fraction", "0.01")
        assert "811.06 MiB allowed; Of the allocated memory" in result.log

    def test_srun_variables(self) -> None:
        """Two ranks as srun would start them; the job's number decides where they meet."""
        processes: list[subprocess.Popen[str]] = []
        job = str(900_000 + time.time_ns() % 10_000)
        for rank in range(2):
            extra = {
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank),
                "SLURM_NTASKS": "2",
                "SLURM_JOB_ID": job,
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NODELIST": "localhost",
            }
            command = [sys.executable, str(TRAIN), *SMALL, "--train-iters", "3", "--step-seconds", "0"]
            processes.append(
                subprocess.Popen(command, env=environment(**extra), stdout=subprocess.PIPE, text=True)
            )
        logs = [process.communicate(timeout=60)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
        assert "2 rank(s) under srun" in logs[0]
        assert Result(0, logs[1]).iterations() == [1, 2, 3]


class TestCheckpoints:
    def test_layout_and_resume(self, tmp_path: Path) -> None:
        save = str(tmp_path / "ck")
        first = run_job([*SMALL, "--train-iters", "6", "--save", save, "--save-interval", "2"], ranks=2)
        assert first.status == 0
        folder = tmp_path / "ck" / "iter_0000006"
        names = sorted(path.name for path in folder.iterdir())
        assert names == [".metadata", "__0_0.distcp", "__1_0.distcp", "common.pt", "metadata.json"]
        assert json.loads((folder / "metadata.json").read_text())["world_size"] == 2
        assert tracker(tmp_path / "ck") == "6"
        again = run_job([*SMALL, "--train-iters", "8", "--load", save], ranks=2)
        assert f" loading checkpoint from {save} at iteration 6" in again.log
        assert f" successfully loaded checkpoint from {save} [ t 1/1, p 1/1 ] at iteration 6" in again.log
        assert again.iterations() == [7, 8]
        assert "consumed samples:           16 |" in again.log

    def test_another_number_of_ranks_and_shards(self, tmp_path: Path) -> None:
        save = str(tmp_path / "ck")
        run_job([*SMALL, "--train-iters", "2", "--save", save, "--save-interval", "2"], ranks=4)
        result = run_job([*SMALL, "--train-iters", "3", "--load", save, "--shard-degree", "1"], ranks=2)
        assert "resharding checkpoint: 4 ranks, shard degree 4 -> 2 ranks, shard degree 1" in result.log
        assert result.iterations() == [3]

    def test_killed_while_saving_leaves_the_tracker_at_the_last_whole_one(self, tmp_path: Path) -> None:
        folder = tmp_path / "ck"
        alone(*SMALL, "--train-iters", "2", "--save", str(folder), "--save-interval", "2")
        options = ["--load", str(folder), "--save", str(folder), "--save-interval", "2", "--save-seconds", "60"]
        command = [sys.executable, str(TRAIN), *SMALL, "--train-iters", "4", "--step-seconds", "0", *options]
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, text=True)
        try:
            torn = folder / "iter_0000004"
            wait_for(lambda: (torn / "__0_0.distcp").exists())
        finally:
            stop(process)
        assert not (torn / "metadata.json").exists()
        assert tracker(folder) == "2"
        assert alone(*SMALL, "--train-iters", "3", "--load", str(folder)).iterations() == [3]
        forced = alone(*SMALL, "--train-iters", "5", "--load", str(folder), "--ckpt-step", "4")
        assert forced.status == 1
        assert "CheckpointingException" in forced.log

    def test_no_checkpoint_starts_from_random_unless_told_not_to(self, tmp_path: Path) -> None:
        missing = str(tmp_path / "none")
        assert "will start from random" in alone(*SMALL, "--train-iters", "1", "--load", missing).log
        strict = alone(*SMALL, "--train-iters", "1", "--load", missing, "--exit-on-missing-checkpoint")
        assert strict.status == 1
        assert "no checkpoint found" in strict.log


def wait_for(condition: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class TestDying:
    ARGUMENTS = ("--gpu-gib", "39", "--hidden-size", "2048", "--num-layers", "16", "--num-heads", "16", *DIES)

    def test_survivors_hang_until_the_watchdog_aborts_them(self) -> None:
        arguments = [*self.ARGUMENTS, "--seq-length", "4096", "--collective-timeout", "2"]
        result = run_job(arguments, ranks=2, launcher=("--no-terminate",))
        (dead,) = result.failed_ranks()
        survivor = 1 - dead
        assert f"[rank{survivor}]:[E" in result.log
        assert "Watchdog caught collective operation timeout" in result.log
        assert f"(exitcode: -{signal.SIGABRT.value}) local_rank: {survivor}" in result.log.replace("failed ", "")
        root_cause = result.log.split("Root Cause (first observed failure):")[1]
        assert f"rank      : {dead} (local_rank: {dead})" in root_cause

    def test_survivors_leave_at_once_if_told_to(self) -> None:
        arguments = [*self.ARGUMENTS, "--seq-length", "4096", "--no-hang-on-peer-failure"]
        result = run_job(arguments, ranks=2, launcher=("--no-terminate",))
        assert "Connection closed by remote peer" in result.log

    def test_torchrun_framing(self) -> None:
        result = run_job([*self.ARGUMENTS, "--seq-length", "4096"], ranks=2, launcher=("--tee",))
        (dead,) = result.failed_ranks()
        assert f"[default{dead}]:[rank{dead}]: torch.OutOfMemoryError: CUDA out of memory." in result.log
        assert "closing signal SIGTERM" in result.log

    @pytest.mark.parametrize(
        ("version", "line"),
        [
            ("2.0.1", r"^torch\.cuda\.OutOfMemoryError: .* .* \(GPU 0; 16.00 GiB total capacity; "),
            ("2.2.2", r"^torch\.cuda\.OutOfMemoryError: CUDA out of memory\. Tried to allocate "),
            ("2.4.1", r"^torch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate "),
            ("2.9.1", r"^torch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate "),
        ],
    )
    def test_wording_by_version(self, version: str, line: str) -> None:
        result = alone("--gpu-gib", "16", "--pytorch-version", version)
        assert result.status == 1
        assert re.search(line, result.log, flags=re.MULTILINE)
        assert "Traceback (most recent call last):\n" in result.log

    def test_adam_states_come_with_the_first_step(self) -> None:
        result = alone("--hidden-size", "2048", "--num-layers", "24", "--num-heads", "16", "--gpu-gib", "16.5")
        assert "_init_group" in result.log
        assert result.iterations() == []

    def test_a_leak_dies_late(self) -> None:
        result = alone(*SMALL, "--gpu-gib", "4", "--leak-mib-per-step", "64", "--log-memory-interval", "1")
        assert 10 < len(result.iterations()) < 60
        series = [float(text) for text in re.findall(r"memory \(MB\) \| allocated: ([\d.]+)", result.log)]
        rises = {round(after - before) for before, after in pairwise(series[1:])}
        assert rises == {64}

    def test_sigterm_ends_a_rank_and_takes_it_off_the_gpu(self, tmp_path: Path) -> None:
        command = [sys.executable, str(TRAIN), *SMALL, "--step-seconds", "30"]
        process = subprocess.Popen(
            command, env=environment(SIMULATED_GPU_DIR=str(tmp_path)), stdout=subprocess.DEVNULL, text=True
        )
        entry = tmp_path / HOST / "processes" / "0" / str(process.pid)
        try:
            wait_for(entry.exists)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 128 + signal.SIGTERM
        finally:
            stop(process)
        assert not entry.exists()


class TestSharedGpu:
    BIG = ("--hidden-size", "2048", "--num-layers", "24", "--num-heads", "16", "--micro-batch-size", "4")

    def test_a_co_tenant_takes_memory_and_is_named(self, tmp_path: Path) -> None:
        shared = {"SIMULATED_GPU_DIR": str(tmp_path)}
        fits = alone(*self.BIG, "--train-iters", "3", **shared)
        assert fits.status == 0
        command = [sys.executable, str(EXAMPLES / "train" / "tenant.py"), "--gib", "50", "--gpu-index", "0"]
        tenant = subprocess.Popen(command, env=environment(**shared), stdout=subprocess.PIPE, text=True)
        try:
            assert tenant.stdout is not None
            assert tenant.stdout.readline().startswith(f"simulated tenant: pid {tenant.pid} holds 50.0 GiB")
            beside = alone(*self.BIG, "--train-iters", "3", **shared)
        finally:
            stop(tenant)
        assert beside.status == 1
        assert f"Process {tenant.pid} has 50.00 GiB memory in use. " in beside.log
        assert beside.available_bytes() < beside.tried_bytes()
        assert alone(*self.BIG, "--train-iters", "3", **shared).status == 0

    def test_two_tenants_need_room_for_both(self, tmp_path: Path) -> None:
        (tmp_path / HOST).mkdir()
        state = {"gpus": [{"index": 0, "extra_processes": [{"pid": 1, "bytes": 60 * GIB, "name": "python"}]}]}
        (tmp_path / HOST / "state.json").write_text(json.dumps(state))
        command = [sys.executable, str(EXAMPLES / "train" / "tenant.py"), "--gib", "30", "--gpu-index", "0"]
        done = subprocess.run(
            command, env=environment(SIMULATED_GPU_DIR=str(tmp_path)), capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "CUDA error: out of memory" in done.stderr

    def test_a_gpu_that_falls_off_the_bus(self, tmp_path: Path) -> None:
        (tmp_path / HOST).mkdir()
        (tmp_path / HOST / "state.json").write_text(json.dumps({"gpus": [{"index": 0, "lost": True}]}))
        result = alone(*SMALL, "--pytorch-version", "2.8.0", SIMULATED_GPU_DIR=str(tmp_path))
        assert result.status == 1
        assert "torch.AcceleratorError: CUDA error: unknown error" in result.log

    def test_nccl_finds_no_room_for_its_buffers(self, tmp_path: Path) -> None:
        (tmp_path / HOST).mkdir()
        gpus = [{"index": index, "total_bytes": 80 * GIB, "usable_bytes": GIB} for index in range(2)]
        (tmp_path / HOST / "state.json").write_text(json.dumps({"gpus": gpus}))
        result = run_job(SMALL, ranks=2, extra_environment={"SIMULATED_GPU_DIR": str(tmp_path)})
        assert "NCCL WARN Cuda failure 2 'out of memory'" in result.log
        assert "torch.distributed.DistBackendError: NCCL error in: " in result.log


def test_a_copy_runs_without_the_repository(tmp_path: Path) -> None:
    subprocess.run([str(EXAMPLES / "copy-to.sh"), str(tmp_path / "copy")], check=True)
    script = tmp_path / "copy" / "train" / "train.py"
    command = [sys.executable, "-S", "-E", str(script), *SMALL, "--train-iters", "1", "--step-seconds", "0"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    listing = subprocess.run(
        [sys.executable, "-S", "-E", "-v", str(script), "--help"], env=environment(), capture_output=True, text=True
    )
    assert str(EXAMPLES.parent / "runbook") not in listing.stderr


def test_a_copy_from_the_installed_package_runs_too(tmp_path: Path) -> None:
    """In the wheel the examples lie in runbook/data, with the simulator beside them."""
    package = tmp_path / "site-packages" / "runbook"
    shutil.copytree(EXAMPLES, package / "data" / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(EXAMPLES.parent / "simulator", package / "data" / "simulator")
    shutil.copytree(EXAMPLES.parent / "runbook" / "allocator", package / "allocator")
    shutil.copy(EXAMPLES.parent / "runbook" / "__init__.py", package)
    subprocess.run([str(package / "data" / "examples" / "copy-to.sh"), str(tmp_path / "copy")], check=True)
    for script in (package / "data" / "examples" / "train" / "train.py", tmp_path / "copy" / "train" / "train.py"):
        command = [sys.executable, "-S", "-E", str(script), *SMALL, "--train-iters", "1", "--step-seconds", "0"]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_job_scripts_are_bash_and_name_their_log() -> None:
    scripts = sorted(path for path in (EXAMPLES / "jobs").iterdir() if path.suffix != ".yaml")
    assert len(scripts) == 13
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)
        text = script.read_text()
        assert f"#SBATCH --job-name={script.stem}" in text
        assert "#SBATCH --output=%x-%j.out" in text
