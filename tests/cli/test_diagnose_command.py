"""`runbook diagnose`, `explain` and `signatures` as a person types them."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import warm
from tests.programs import require

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB "
    "of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the "
    "allocated memory 75.20 GiB is allocated by PyTorch, and 730.00 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)
LOG = "".join(
    f"[rank{rank}]: {line}\n" for rank, line in (
        (0, "starting"), (3, "Traceback (most recent call last):"),
        (3, '  File "/home/ada/train.py", line 120, in train'),
        (3, "    loss.backward()"), (3, MESSAGE),
    )
)


def run(
    *words: str, stdin: bytes = b"", cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        (*warm.runbook(), *words), input=stdin, capture_output=True, check=False, timeout=60, cwd=cwd,
        env={**os.environ, **environment},
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_unprivileged(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As somebody whom the modes of files bind: root may read all, unless it lays that right down."""
    command = (sys.executable, "-m", "runbook", *words)
    if os.geteuid() == 0:
        require("setpriv")
        no_rights = "-dac_override,-dac_read_search"
        command = ("setpriv", f"--bounding-set={no_rights}", f"--inh-caps={no_rights}", *command)
    return subprocess.run(command, capture_output=True, check=False, timeout=60, cwd=cwd, text=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.out"
    path.write_text(LOG)
    return path


def test_the_answer_comes_first_and_says_where_and_why(log: Path) -> None:
    done = run("diagnose", str(log))
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("True out of memory") and "confidence" in first
    text = " ".join(" ".join(rest).split())
    assert "rank 3, node unknown (GPU 3 of the process" in text
    assert f"{log}:5" in done.stdout  # whole, to be copied, however long
    assert "in the backward pass" in text
    assert "for it" in text and "would settle" in text
    assert all(len(line) <= 100 for line in rest if str(log.parent) not in line)
    assert "Traceback" not in done.stderr


def test_json_is_the_contract_with_what_was_read(log: Path) -> None:
    told = json.loads(run("diagnose", str(log), "--json").stdout)
    assert told["version"] == 1
    assert told["diagnosis"]["kind"] == "true_oom"
    assert told["root_cause"]["rank"] == 3
    assert told["root_cause"]["line"] == 5
    assert told["fields"]["tried_bytes"] == 2 << 30
    assert told["sources"][0]["bytes_read"] == len(LOG)
    assert isinstance(told["notes"], list)


def test_standard_input_folders_and_packed_files_tell_the_same(log: Path) -> None:
    whole = json.loads(run("diagnose", str(log), "--json").stdout)["root_cause"]
    piped = json.loads(run("diagnose", "-", "--json", stdin=LOG.encode()).stdout)["root_cause"]
    assert (piped["rank"], piped["line"], piped["file"]) == (whole["rank"], whole["line"], "-")
    folder = log.parent / "logs"
    (folder / "node-1").mkdir(parents=True)
    (folder / "node-1" / "train.out.gz").write_bytes(gzip.compress(LOG.encode()))
    (folder / "weights.bin").write_bytes(LOG.encode())
    told = json.loads(run("diagnose", str(folder), "--json").stdout)
    assert told["root_cause"]["rank"] == 3
    assert [Path(one["path"]).name for one in told["sources"]] == ["train.out.gz"]


def test_nodes_and_tasks_place_the_rank(log: Path) -> None:
    told = json.loads(run("diagnose", str(log), "--json", "--nodes", "gpu-[21-22]", "--tasks", "4").stdout)
    assert told["root_cause"]["node"] == "gpu-22"
    assert any("inferred" in note for note in told["notes"])


def test_the_scripts_settings_are_evidence(log: Path) -> None:
    script = log.parent / "train.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH -N1\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nsrun torchrun train.py\n"
    )
    log.write_text(LOG.replace("512.00 MiB is free", "100.00 MiB is free").replace("730.00 MiB", "6.00 GiB"))
    without = json.loads(run("diagnose", str(log), "--json").stdout)
    within = json.loads(run("diagnose", str(log), "--json", "--template", str(script)).stdout)
    assert without["diagnosis"]["kind"] == "fragmentation"
    assert within["diagnosis"]["kind"] != "fragmentation" or (
        within["diagnosis"]["confidence"] < without["diagnosis"]["confidence"]
    )


def test_what_the_files_of_a_script_set_is_evidence_too(log: Path) -> None:
    inner = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nsrun torchrun train.py\n"
    (log.parent / "run.sh").write_text(inner)
    script = log.parent / "train.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH -N1\nbash run.sh\n")
    log.write_text(LOG.replace("512.00 MiB is free", "100.00 MiB is free").replace("730.00 MiB", "6.00 GiB"))
    unknown = "the allocator settings in the job's environment"
    without = json.loads(run("diagnose", str(log), "--json").stdout)["diagnosis"]
    assert (without["kind"], unknown in without["missing"]) == ("fragmentation", True)
    for words, given in ((str(script), b""), ("/dev/stdin", f"#!/bin/bash\n{inner}".encode())):
        done = run("diagnose", str(log), "--json", "--template", words, stdin=given)
        within = json.loads(done.stdout)["diagnosis"]
        assert unknown not in within["missing"], done.stderr
        assert within["kind"] != "fragmentation" or within["confidence"] < without["confidence"]


def test_a_template_that_is_not_there_is_said_before_anything_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")  # nobody writes to it: to open it would wait for ever
    done = run("diagnose", "pipe.log", "--template", "gone.sbatch", cwd=tmp_path)
    assert done.returncode == 2
    assert "gone.sbatch is not there" in done.stderr


def test_the_exit_code_says_whether_it_is_about_memory(tmp_path: Path) -> None:
    other = tmp_path / "a.log"
    other.write_text('Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: no\n')
    assert run("diagnose", str(other)).returncode == 5
    other.write_text("nothing of interest\n")
    assert run("diagnose", str(other)).returncode == 4


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "no log is named"),
        (("no-such.log",), 3, "no-such.log"),
        (("empty-folder",), 2, "no logs in"),
        (("a.log", "--nodes", "gpu[[", ), 2, "--nodes"),
        (("a.log", "--prefix", "(unclosed"), 2, "--prefix"),
        (("a.log", "--template", "gone.sbatch"), 2, "gone.sbatch"),
        (("a.log", "--playbook", "empty-folder"), 2, "signature"),
    ],
)
def test_bad_input_is_said_in_words(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    (tmp_path / "empty-folder").mkdir()
    (tmp_path / "a.log").write_text(LOG)
    done = run("diagnose", *words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_may_not_be_read_inside_a_folder_is_named_and_does_not_stop_the_reading(log: Path) -> None:
    folder = log.parent / "logs"
    closed = folder / "node-2"
    closed.mkdir(parents=True)
    (folder / "train.out").write_text(LOG)
    (folder / "rank-7.log").write_text(LOG)
    (closed / "rank-8.log").write_text(LOG)
    (folder / "rank-7.log").chmod(0)
    closed.chmod(0)
    done = run_unprivileged("diagnose", "logs", cwd=log.parent)
    closed.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True out of memory")
    text = " ".join(done.stdout.split())
    assert "Not read: logs/node-2 and 1 more. The first failure may stand there." in text
    assert "logs/rank-7.log: not read: permission denied" in text


def test_a_folder_of_which_nothing_may_be_read_is_no_answer(log: Path) -> None:
    folder = log.parent / "logs"
    folder.mkdir()
    (folder / "train.out").write_text(LOG)
    (folder / "train.out").chmod(0)
    done = run_unprivileged("diagnose", "logs", cwd=log.parent)
    assert done.returncode == 3
    assert "nothing in logs can be read: permission denied" in done.stderr


@pytest.mark.parametrize(
    ("names", "code", "said"),
    [
        (("slurm-7.out", "slurm-8.out"), 2, "logs holds logs of 2 Slurm jobs"),
        (("slurm-7_0.out", "slurm-7_1.out"), 2, "2 tasks of the Slurm job array 7"),
        (("slurm-7.out", "slurm-7_0.out", "slurm-7_1.out"), 0, ""),
        (("slurm-7.out", "slurm-7.err", "slurm-7-gpu21.out"), 0, ""),
    ],
)
def test_logs_of_several_jobs_in_one_folder_are_not_one_story(
    tmp_path: Path, names: tuple[str, ...], code: int, said: str
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for age, name in enumerate(reversed(names)):
        (folder / name).write_text(LOG)
        os.utime(folder / name, (1_700_000_000 - age, 1_700_000_000 - age))
    done = run("diagnose", "logs", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    if code:
        assert f"logs/{names[-1]}" in done.stderr  # the newest
        assert run("diagnose", *(f"logs/{name}" for name in names), cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(("columns", "widest"), [("80", 80), ("200", 100), ("20", 60)])
def test_the_text_fits_the_terminal(log: Path, columns: str, widest: int) -> None:
    done = run("diagnose", log.name, cwd=log.parent, COLUMNS=columns)
    lengths = [len(line) for line in done.stdout.splitlines()]
    assert widest - 20 < max(lengths) <= widest


def test_an_empty_log_says_so_and_claims_no_confidence(tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_bytes(b"")
    done = run("diagnose", "empty.log", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stdout.startswith("Undetermined\n")
    assert "empty.log: empty" in done.stdout


def test_a_run_that_ended_well_is_not_said_to_have_died(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("".join(
        f"step {step}/20 loss 2.{step} 1.2 s\n" for step in range(1, 21)
    ) + "Training completed\n")
    done = run("diagnose", "a.log", cwd=tmp_path)
    assert done.returncode == 5
    assert done.stdout.startswith("Not out of memory: ran to its end")
    assert "died" not in done.stdout
    assert "first failure" not in done.stdout


def test_a_limit_of_the_job_is_not_said_to_be_the_nodes_memory(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("srun: error: gpu-23: task 2: Out Of Memory\n")
    done = run("diagnose", "a.log", cwd=tmp_path)
    assert "its own limit of main memory" in done.stdout
    assert "node's main memory, not the GPU's, ran out" not in done.stdout


def test_a_process_that_the_message_names_itself_is_not_counted_twice(tmp_path: Path) -> None:
    """In a container the message names host pids, its own among them, and not what this process has in use."""
    (tmp_path / "a.log").write_text(
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
        "of 79.15 GiB of which 500.00 MiB is free. Process 881230 has 36.40 GiB memory in use. Process 881301 has "
        "41.90 GiB memory in use. Of the allocated memory 40.00 GiB is allocated by PyTorch, and 700.00 MiB is "
        "reserved by PyTorch but unallocated.\n"
    )
    text = " ".join(run("diagnose", "a.log", cwd=tmp_path).stdout.split())
    assert "the processes named, this one among them, beyond that: 37.62 GiB" in text
    assert "881230 (36.40 GiB), 881301 (41.90 GiB)" in text
    assert "other processes: 78.30 GiB" not in text


def test_a_rank_that_only_its_launcher_names_is_said_so_and_one_that_waited_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("srun: error: cl-8: task 2: Bus error\n")
    text = " ".join(run("diagnose", "a.log", cwd=tmp_path).stdout.split())
    assert "first failure rank 2 on cl-8: it ended by itself by a signal (Bus error), and no line says why" in text
    timeout = (
        "[rank{0}]:[E101 10:00:00.000000000 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600040 "
        "milliseconds before timing out.\n"
    )
    (tmp_path / "a.log").write_text(timeout.format(0) + timeout.format(1))
    text = " ".join(run("diagnose", "a.log", cwd=tmp_path).stdout.split())
    assert "not in these logs: they show only what followed" in text
    assert "suspected" not in text


def test_interrupted_it_says_so_in_a_line(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        (sys.executable, "-m", "runbook", "diagnose", "-"), stdin=reader, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Where the tests themselves run in the background, an interrupt would be ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(reader)
    for _ in range(64):  # more than fits into the pipe: it reads
        os.write(writer, b"an ordinary line of a training program\n" * 1_000)
    for _ in range(30):  # as a person does where the first is not heard; the pipe stays open, so nothing else ends it
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
            break
    out, err = process.communicate(timeout=30)
    os.close(writer)
    assert process.returncode == 130
    assert out == b""
    assert err.decode().strip() == "runbook: interrupted while reading; nothing was touched"


def test_a_cut_archive_is_read_up_to_the_cut(tmp_path: Path) -> None:
    noise = "".join(f"{number * 2654435761 % 2**32:x}\n" for number in range(2_000))
    packed = gzip.compress((LOG + noise).encode())
    (tmp_path / "train.out.gz").write_bytes(packed[: len(packed) - 100])
    done = run("diagnose", "train.out.gz", cwd=tmp_path)
    assert done.stdout.startswith("True out of memory")
    assert "damaged or cut" in " ".join(done.stdout.split())


def test_an_answer_that_cannot_be_written_is_no_fault_of_the_tool(log: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    command = (sys.executable, "-m", "runbook", "diagnose", str(log))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert done.returncode == 6
    assert b"the answer could not be written: no space left" in done.stderr


@pytest.mark.parametrize("words", ["--help", "signatures", "levers", "explain PT-CUDA-07"])
def test_no_command_takes_a_full_disk_for_a_fault_of_the_tool(words: str) -> None:
    command = (sys.executable, "-m", "runbook", *words.split())
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.returncode, b"could not be written: no space left" in done.stderr) == (6, True), done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    command = f"{sys.executable} -m runbook signatures 2>&1 | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(("bash", "-c", command), capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines()[1:] == ["0"]


def test_a_hostile_log_does_not_reach_the_terminal(log: Path) -> None:
    log.write_text(LOG.replace("starting", "\x1b]0;gone\x07\x1b[2J").replace("Tried", "\x1b[31m\u202eTried"))
    done = run("diagnose", str(log))
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout


def test_more_files_than_may_be_open_at_once(tmp_path: Path) -> None:
    for rank in range(600):
        last = MESSAGE if rank == 417 else f"step {rank}"
        (tmp_path / f"rank-{rank}.log").write_text(f"starting\n{last}\n")
    limited = ("sh", "-c", f"ulimit -n 64; exec {sys.executable} -m runbook diagnose {tmp_path} --json")
    done = subprocess.run(limited, capture_output=True, check=False, timeout=60)
    assert json.loads(done.stdout)["root_cause"]["rank"] == 417


def test_a_bar_shows_on_a_terminal_while_much_is_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    main, other = pty.openpty()
    process = subprocess.Popen(
        (sys.executable, "-m", "runbook", "diagnose", "-"), stdin=reader, stdout=subprocess.PIPE, stderr=other
    )
    os.close(reader)
    os.close(other)
    from time import sleep

    piece = b"an ordinary line of a training program\n" * 26_000
    for _ in range(24):
        os.write(writer, piece[:1_000_000])
        sleep(0.1)
    os.write(writer, b"\n" + LOG.encode())
    os.close(writer)
    shown = b""
    try:
        while piece_shown := os.read(main, 65536):
            shown += piece_shown
    except OSError:
        pass
    assert process.wait(30) == 0
    os.close(main)
    assert b"reading" in shown
    assert b"MB/s" in shown or b"kB/s" in shown or b"GB/s" in shown


def test_explain_tells_meaning_reason_and_lines() -> None:
    done = run("explain", "pt-cuda-07")
    assert done.returncode == 0, done.stderr
    for words in ("PT-CUDA-07", "private pools", "tried_bytes = 2097152 (2.0 MiB)", "source"):
        assert words in done.stdout
    assert "PT-CUDA-10" in run("explain", "not_oom").stdout
    assert "no signature knows" in run("explain", "PY-EXC").stdout
    wrong = run("explain", "PT-CUDA-70")
    assert wrong.returncode == 3
    assert "perhaps PT-CUDA-07" in wrong.stderr
    assert "perhaps fragmentation" in run("explain", "fragmantation").stderr
    assert "true_oom" in run("explain", "oom").stderr
    assert "another process failed first" in run("explain", "consequence").stdout


def test_explain_tells_what_a_finding_of_the_node_check_stands_for() -> None:
    shown = run("explain", "row-remap-pending").stdout
    assert "waits to be taken out at the next reset" in shown
    assert "policy.drain_on_pending_reset" in shown
    found = json.loads(run("explain", "tenant_running", "--json").stdout)
    assert (found["weight"], found["action"], len(found["says"])) == ("occupied", "exclude", 3)


def test_the_catalogue_is_a_table_that_words_narrow() -> None:
    every = run("signatures").stdout.splitlines()
    assert len(every) > 100
    some = json.loads(run("signatures", "--means", "shm", "--json").stdout)
    assert some
    assert {one["means"] for one in some} == {"shm"}
    assert any("NCCL" in line for line in run("signatures", "nccl", "segment").stdout.splitlines())
    assert run("signatures", "no-such-word").returncode == 3


def test_why_tells_line_by_line_what_was_made_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "train.out"
    handled = f"WARNING: {MESSAGE} Retrying with a smaller batch\n" + "".join(
        f"[rank0]: step {step} loss 2.0\n" for step in range(1, 9)
    )
    path.write_text(handled + LOG + "srun: error: gpu-22: task 1: Exited with exit code 1\n")
    told = json.loads(run("diagnose", str(path), "--why", "--json").stdout)["lines"]
    first = next(one for one in told if one["taken_as"] == "first failure")
    assert (first["line"], first["who"]["rank"], first["memory"]) == (14, 3, True)
    assert first["figures"]["free_bytes"] == 512 << 20
    assert first["text"].endswith(MESSAGE)
    aside = next(one for one in told if one["taken_as"] == "set aside")
    assert (aside["line"], aside["memory"], "went on" in aside["because"]) == (1, True, True)
    assert any(one["taken_as"] == "consequence" and one["who"]["rank"] == 1 for one in told)
    text = run("diagnose", str(path), "--why").stdout
    assert f"- first failure at {path}:14" in text
    assert f"- set aside at {path}:1" in text
    assert "lines" not in json.loads(run("diagnose", str(path), "--json").stdout)
