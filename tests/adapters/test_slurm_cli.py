"""Slurm's commands when they fail, lag or refuse: small programs stand in for them and print what Slurm printed."""

from __future__ import annotations

import getpass
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from runbook.adapters.slurm import choose_scheduler
from runbook.adapters.slurm.commands import SlurmCommands
from runbook.adapters.slurm.pyslurm import PyslurmModule, SlurmPyslurm, read_gpu_indices, read_job
from runbook.adapters.slurm.scheduler import SlurmCli
from runbook.errors import BadInput, NotAllowed, NotFound, Unavailable
from runbook.model.job import GpuIndices, JobEnvironment, JobRecord, JobScript, Submission
from runbook.model.units import JobId, NodeName, Unknown, UserName
from runbook.slurm import controller
from runbook.slurm.accounting import COLUMNS
from runbook.slurm.states import job_state
from tests.contract import standin_pyslurm
from tests.contract.fakes import FakeClock, FakeScheduler, claimed

RECORDED = Path(__file__).parents[1] / "recorded" / "slurm" / "22.05.8"
REPOSITORY = Path(__file__).parents[2]
NO_JOB = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
UNREACHED = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
DENIED = "echo 'scancel: error: Kill job error on job id 7: Access/permission denied' >&2; exit 210"


class Desk:
    """A folder of stand-in commands, and what was asked of them."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "asked"
        self.slept_s: list[float] = []
        self.clock = FakeClock()
        for name in ("squeue", "sacct", "sinfo", "scontrol", "scancel", "sbatch"):
            self.answer(name, "exit 0")
        # The patience is measured on the real clock: enough for every retry of a test.
        commands = SlurmCommands(
            bin_dir=str(self.bin), slurm_conf="/etc/test/slurm.conf", patience_s=0.5, sleep=self.slept_s.append
        )
        self.slurm = SlurmCli(commands, cluster="c", clock=self.clock)

    def answer(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\nprintf '%s\\n' \"{name} $*\" >>{self.log}\n{body}\n")
        path.chmod(0o755)

    def print_recorded(self, name: str, file: str, otherwise: str = "", owner: str = "sb-alice") -> None:
        """The recorded answer with the separator that was asked for; `otherwise` is run first."""
        self.answer(
            name,
            f'{otherwise}\nseparator=$(printf "%s" "$*" | grep -o "~[a-z]*~" | head -n 1)\n'
            f'sed -e "s/~recordedseparator~/$separator/g" -e "s/sb-alice/{owner}/g" {RECORDED / file}',
        )

    def relaunched(self, job: str, comment: str, *, submitted: str = "1795259620", found: bool = True) -> None:
        """From now on squeue knows one more job, of this process's user; by its comment only where it is `found`."""
        columns = self.row()
        values = {
            "JobID": job, "JobArrayID": job, "Name": "again", "UserName": getpass.getuser(), "UserID": str(os.getuid()),
            "SubmitTime": submitted, "Comment": comment,
        }
        row = [values.get(name, given) for name, given in zip(controller.JOB_COLUMNS, columns, strict=True)]
        told = [values[name] for name in controller.TOKEN_COLUMNS]
        for name, fields in (("job", row), ("token", told if found else [])):
            text = "".join(f"{field}~recordedseparator~" for field in fields)
            (self.bin / f"{name}.txt").write_text(text + "\n" if text else "")
        chosen = f'case "$*" in *--jobs={job}*) file={self.bin}/job.txt;; *--user=*) file={self.bin}/token.txt;; esac'
        self.answer(
            "squeue",
            f'file={RECORDED}/squeue_failed.txt\n{chosen}\n'
            'separator=$(printf "%s" "$*" | grep -o "~[a-z]*~" | head -n 1)\n'
            f'sed -e "s/~recordedseparator~/$separator/g" -e "s/sb-alice/{getpass.getuser()}/g" $file',
        )

    def waits(self, job: str, reason: str, *, restarts: int = 1) -> None:
        """From now on squeue knows one job alone, which failed and waits."""
        values = {
            "JobID": job, "JobArrayID": job, "State": "PENDING", "Reason": reason, "Restartcnt": str(restarts),
            "NodeList": "", "StartTime": "N/A",
        }
        told = [values.get(name, given) for name, given in zip(controller.JOB_COLUMNS, self.row(), strict=True)]
        (self.bin / "waits.txt").write_text("".join(f"{field}~recordedseparator~" for field in told) + "\n")
        self.print_recorded("squeue", str(self.bin / "waits.txt"))
        self.answer("sacct", NO_ACCOUNTING)

    @staticmethod
    def row() -> list[str]:
        return (RECORDED / "squeue_failed.txt").read_text().split("~recordedseparator~")[:-1]

    def asked(self, name: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.partition(" ")[0] == name]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_without_accounting_the_controller_has_to_do(desk: Desk) -> None:
    desk.print_recorded("squeue", "squeue_failed.txt")
    desk.answer("sacct", NO_ACCOUNTING)
    record = desk.slurm.job(JobId("115"))
    assert (record.source, record.submit_line, record.owner) == ("squeue", "", "sb-alice")
    desk.answer("squeue", NO_JOB)
    with pytest.raises(NotFound, match="knows no job 115"):
        desk.slurm.job(JobId("115"))
    script, environment = desk.slurm.script(JobId("115")), desk.slurm.environment(JobId("115"))
    assert isinstance(environment, Unknown) and "no accounting" in environment.unknown
    assert isinstance(script, Unknown) and "no accounting" in script.unknown


def test_a_database_that_is_down_is_not_a_missing_submit_line(desk: Desk) -> None:
    desk.print_recorded("squeue", "squeue_failed.txt")
    desk.answer("sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")
    with pytest.raises(Unavailable, match="database"):
        desk.slurm.job(JobId("115"))
    with pytest.raises(Unavailable, match="database"):
        desk.slurm.find_submitted(claimed("alice", "runbook:oom-c-1:1"))


def test_a_controller_that_comes_back_is_asked_again(desk: Desk, tmp_path: Path) -> None:
    second_time = f"if [ ! -e {tmp_path}/tried ]; then : >{tmp_path}/tried; {UNREACHED}; fi"
    desk.print_recorded("sinfo", "sinfo.txt", otherwise=second_time)
    assert [node.name for node in desk.slurm.nodes()] == ["gpu-21", "gpu-22", "gpu-23", "gpu-24"]
    assert len(desk.asked("sinfo")) == 2
    assert desk.slept_s


def test_a_controller_that_stays_away_is_told_with_its_words(desk: Desk) -> None:
    desk.answer("sinfo", UNREACHED)
    with pytest.raises(Unavailable) as away:
        desk.slurm.nodes()
    assert "Unable to contact slurm controller" in away.value.what
    assert away.value.where.startswith("sinfo") and "slurmctld" in away.value.next_step


@pytest.mark.parametrize("hangs", ["squeue", "sacct"])
def test_a_command_that_hangs_is_ended_in_time_and_asked_again_once_slurm_is_well(desk: Desk, hangs: str) -> None:
    """A controller under a flood of requests, a slurmdbd whose database is locked: for twenty minutes, as seen."""
    desk.print_recorded("squeue", "squeue_failed.txt")
    desk.answer("sacct", NO_ACCOUNTING)
    well = (desk.bin / hangs).read_text()
    desk.answer(hangs, "echo $$ >$0.pid; exec sleep 1200")
    desk.slurm._commands.timeout_s = 1.0
    began_s = time.monotonic()
    with pytest.raises(Unavailable, match="did not answer"):
        desk.slurm.job(JobId("4"))
    assert time.monotonic() - began_s < 30
    assert not Path(f"/proc/{(desk.bin / f'{hangs}.pid').read_text().strip()}").exists()
    (desk.bin / hangs).write_text(well)
    desk.slurm._commands.timeout_s = 30.0
    assert desk.slurm.job(JobId("4")).state.name == "FAILED"


DETAIL = "     Nodes=gpu-[21-22] CPU_IDs=0 Mem=64 GRES=gpu:2(IDX:0,3)"


def running(desk: Desk, tmp_path: Path) -> None:
    """The recorded job, at first RUNNING, and FAILED once a file says so."""
    text = (RECORDED / "squeue_failed.txt").read_text()
    assert text.count("FAILED") == 1
    desk.answer("sacct", NO_ACCOUNTING)
    desk.answer("squeue", (
        f'separator=$(printf "%s" "$*" | grep -o "~[a-z]*~" | head -n 1); state=RUNNING\n'
        f"[ -e {tmp_path}/ended ] && state=FAILED\n"
        f'sed -e "s/~recordedseparator~/$separator/g" -e "s/FAILED/$state/" {RECORDED}/squeue_failed.txt'
    ))  # fmt: skip


def test_a_running_jobs_gpus_are_asked_once_and_known_after_its_end(desk: Desk, tmp_path: Path) -> None:
    running(desk, tmp_path)
    desk.answer("scontrol", f"echo '{DETAIL}'")
    record = desk.slurm.job(JobId("115"))
    assert (record.indices_on(NodeName("gpu-21")), record.indices_on(NodeName("gpu-9"))) == ((0, 3), None)
    (tmp_path / "ended").touch()
    desk.answer("scontrol", "echo '     Nodes=gpu-[21-22] CPU_IDs=0 Mem=64 GRES='")
    later = desk.slurm.job(JobId("115"))
    assert later.state.name == "FAILED" and later.gpu_indices == record.gpu_indices
    assert desk.asked("scontrol") == ["scontrol show job -d 115"]


def test_the_gpus_of_a_job_that_has_ended_are_not_asked_for(desk: Desk, tmp_path: Path) -> None:
    running(desk, tmp_path)
    (tmp_path / "ended").touch()
    assert desk.slurm.job(JobId("115")).gpu_indices == ()
    assert desk.asked("scontrol") == []


def test_an_ended_jobs_gpus_are_those_that_its_nodes_epilogs_left(desk: Desk, tmp_path: Path) -> None:
    running(desk, tmp_path)
    (tmp_path / "ended").touch()
    left = tmp_path / "nodes"
    left.mkdir()
    slurm = SlurmCli(SlurmCommands(bin_dir=str(desk.bin), patience_s=0.5), clock=desk.clock, left=left)
    for name, text in (
        ("training-115-0.gpu-21.gpus", "0,3\n"), ("training-115-0.gpu-22.gpus", "4\n"),
        ("training-115-0.gpu-9.gpus", "5\n"), ("training-1115-0.gpu-21.gpus", "6\n"),
        ("training-115-1.gpu-21.gpus", "7\n"), (".training-115-0.gpu-21.1", "1\n"),
    ):  # fmt: skip
        (left / name).write_text(text)
    assert slurm.job(JobId("115")).gpu_indices == (
        GpuIndices(NodeName("gpu-21"), (0, 3)), GpuIndices(NodeName("gpu-22"), (4,)),
    )  # fmt: skip
    # Another cluster's job of that number, a file from before the job, one that says something else, one of anybody's.
    (left / "other-115-0.gpu-21.gpus").write_text("1\n")
    os.utime(left / "training-115-0.gpu-22.gpus", (1, 1))
    assert slurm.job(JobId("115")).gpu_indices == ()
    (left / "other-115-0.gpu-21.gpus").unlink()
    (left / "training-115-0.gpu-21.gpus").write_text("all of them\n")
    assert slurm.job(JobId("115")).gpu_indices == ()
    (left / "training-115-0.gpu-21.gpus").unlink()
    (tmp_path / "elsewhere").write_text("1\n")
    (left / "training-115-0.gpu-21.gpus").symlink_to(tmp_path / "elsewhere")
    assert slurm.job(JobId("115")).gpu_indices == ()


def test_a_job_is_known_without_its_gpus_too(desk: Desk, tmp_path: Path) -> None:
    running(desk, tmp_path)
    desk.answer("scontrol", NO_JOB)
    assert desk.slurm.job(JobId("115")).gpu_indices == ()
    desk.answer("scontrol", f"echo '{DETAIL}'")
    assert desk.slurm.job(JobId("115")).indices_on(NodeName("gpu-22")) == (0, 3)


def test_pyslurm_s_job_that_waits_has_no_start_and_one_without_an_output_option_has_a_log() -> None:
    waiting = SimpleNamespace(
        id=7, state="PENDING", start_time=1795259620, allocated_nodes=None, working_directory="/home/alice",
        standard_output="slurm-%j.out", standard_error=None,
    )
    record = read_job(waiting, "c")
    assert (record.start_time_s, record.log_paths) == (None, ("/home/alice/slurm-7.out",))


def test_pyslurm_tells_a_running_jobs_gpus_by_the_layout_of_its_nodes() -> None:
    class Told:
        layout: object = None

        def get_resource_layout_per_node(self) -> object:
            return self.layout

    told = Told()
    told.layout = {
        "gpu-21": {"gres": {"gpu:h100": {"count": "2", "indexes": "0,3"}, "nic": 1}}, "gpu-22": {"gres": {}},
    }  # fmt: skip
    assert read_gpu_indices(told) == (GpuIndices(NodeName("gpu-21"), (0, 3)),)
    for layout in ({"gpu-21": {"gres": {"gpu": 2}}}, {"gpu-21": {"gres": {"shard": 4}}}, {}, None, "text"):
        told.layout = layout
        assert read_gpu_indices(told) == ()
    assert read_gpu_indices(object()) == ()


def test_script_and_environment_that_accounting_gets_a_little_later(desk: Desk, tmp_path: Path) -> None:
    desk.print_recorded("squeue", "squeue_failed.txt")
    desk.answer("scontrol", f'case "$*" in *config*) cat {RECORDED}/scontrol_config.txt;; *) {NO_JOB};; esac')
    desk.answer(
        "sacct",
        f"if [ ! -e {tmp_path}/tried ]; then : >{tmp_path}/tried; printf 'Environment used for 115\\n----\\nNONE\\n'; "
        f"else cat {RECORDED}/sacct_environment.txt; fi",
    )
    kept = desk.slurm.environment(JobId("115"))
    assert isinstance(kept, JobEnvironment) and kept.variables["MARK"] == "two words"
    assert desk.clock.slept_s == [0.5]


def test_an_environment_that_is_not_kept_is_not_waited_for(desk: Desk) -> None:
    desk.print_recorded("squeue", "squeue_failed.txt")
    desk.answer("scontrol", "echo 'AccountingStoreFlags    = job_comment'")
    desk.answer("sacct", "printf 'Environment used for 115\\n----\\nNONE\\n'")
    assert isinstance(desk.slurm.environment(JobId("115")), Unknown)
    assert desk.clock.slept_s == []


def test_the_controllers_copy_of_the_script_first_then_accountings(desk: Desk) -> None:
    desk.answer("scontrol", "printf '#!/bin/sh\\ntrue\\n'")
    assert desk.slurm.script(JobId("115")) == JobScript("#!/bin/sh\ntrue\n", "scontrol write batch_script")
    desk.answer("scontrol", NO_JOB)
    desk.answer("sacct", f"cat {RECORDED}/sacct_script.txt")
    script = desk.slurm.script(JobId("115"))
    assert isinstance(script, JobScript) and script.source == "sacct -B"


TOKEN = "runbook:oom-c-115:1:0123456789abcdef0123456789abcdef"
OURS = claimed(getpass.getuser(), TOKEN, cluster="c", uid=os.getuid(), written_s=1_795_259_600.0)


def submission(folder: Path, environment: JobEnvironment | None = None) -> Submission:
    (folder / "p.sh").write_text("#!/bin/sh\ntrue\n")
    return Submission(OURS, str(folder), str(folder / "p.sh"), environment=environment)


def recorded_job(desk: Desk) -> None:
    desk.print_recorded("squeue", "squeue_failed.txt", otherwise='case "$*" in *--user=*) exit;; esac')
    columns = f'case "$*" in *helpformat*) cat {RECORDED}/sacct_helpformat.txt; exit;; *--user=*) exit;; esac'
    desk.print_recorded("sacct", "sacct_failed.txt", otherwise=columns)


def test_submit_runs_in_the_jobs_folder_and_hands_the_submitters_environment_to_the_job(
    desk: Desk, tmp_path: Path
) -> None:
    recorded_job(desk)
    given = 'file=$(printf "%s\\n" "$@" | sed -n "s/^--export-file=//p")'
    relaunched = f"cp {tmp_path}/bin/squeue_after {tmp_path}/bin/squeue"
    seen = f"pwd >{tmp_path}/where; /usr/bin/env >{tmp_path}/env; {given}; cat $file >{tmp_path}/job_env"
    desk.answer("sbatch", f"{seen}\n{relaunched}; echo 'Welcome'; echo '4711;c'")
    original = desk.slurm.job(JobId("115"))
    before = (desk.bin / "squeue").read_bytes()
    desk.relaunched("4711", f"{TOKEN} mine")
    (desk.bin / "squeue").rename(desk.bin / "squeue_after")
    (desk.bin / "squeue").write_bytes(before)
    (desk.bin / "squeue").chmod(0o755)
    kept = JobEnvironment({
        "A": "1", "SBATCH_QOS": "low", "SLURM_JOB_ID": "9", "PATH": "/usr/bin:/bin", "LD_PRELOAD": "/tmp/mine.so",
    })  # fmt: skip
    assert desk.slurm.submit(submission(tmp_path, kept), original) == "4711"
    assert (tmp_path / "where").read_text().strip() == str(tmp_path)
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names <= {"SLURM_CONF", "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    variables = set((tmp_path / "job_env").read_bytes().split(b"\0"))
    assert {b"A=1", b"LD_PRELOAD=/tmp/mine.so", b"SLURM_CONF=/etc/test/slurm.conf"} <= variables
    assert not [line for line in variables if line.startswith((b"SBATCH_", b"SLURM_JOB_ID"))]
    assert "--qos=low" in desk.log.read_text()
    # Without it sbatch of 26.05 takes nothing from the file, and the job starts without a PATH.
    assert " --export=ALL " in desk.asked("sbatch")[0]


def test_what_sbatch_prints_is_a_hint_and_the_controller_is_asked(desk: Desk, tmp_path: Path) -> None:
    """A loader of the owner's could make sbatch print the number of anybody's job."""
    recorded_job(desk)
    original = desk.slurm.job(JobId("115"))
    desk.answer("sbatch", "echo 115")
    with pytest.raises(Unavailable, match="sbatch named job 115, and Slurm knows no job of"):
        desk.slurm.submit(submission(tmp_path), original)
    desk.answer("sbatch", "echo no number")
    with pytest.raises(Unavailable, match="sbatch named no job"):
        desk.slurm.submit(submission(tmp_path), original)
    # An older job of the owner's own.
    desk.relaunched("4711", "mine", submitted="1795250000", found=False)
    desk.answer("sbatch", "echo 4711")
    with pytest.raises(Unavailable, match="sbatch named job 4711"):
        desk.slurm.submit(submission(tmp_path), original)
    # One that carries the token, as where the controller's clock is behind: it may be the relaunch.
    desk.relaunched("4711", TOKEN, submitted="1795250000", found=False)
    with pytest.raises(NotAllowed, match="job 4711 seems to be this attempt's, but it was submitted before"):
        desk.slurm.submit(submission(tmp_path), original)
    # Submitted, and its comment changed by a plugin: it is not submitted once more.
    desk.relaunched("4711", "site:4711", found=False)
    with pytest.raises(NotAllowed, match="seems to be this attempt's, but its comment is not the one"):
        desk.slurm.submit(submission(tmp_path), original)
    # Found by what was written down, whatever was printed.
    asked = len(desk.asked("sbatch"))
    desk.relaunched("4711", TOKEN)
    assert desk.slurm.submit(submission(tmp_path), original) == "4711"
    assert len(desk.asked("sbatch")) == asked


def test_a_number_that_is_another_s_by_now_is_not_cancelled(desk: Desk) -> None:
    recorded_job(desk)
    desk.answer("scancel", "exit 0")
    judged = desk.slurm.job(JobId("115"))
    for stranger in (replace(judged, owner=UserName("mallory"), uid=4242), replace(judged, restarts=2)):
        with pytest.raises(NotAllowed, match="is not cancelled"):
            desk.slurm.cancel(stranger)
    assert desk.asked("scancel") == []
    desk.slurm.cancel(judged)
    assert len(desk.asked("scancel")) == 1


@pytest.mark.parametrize(
    ("reason", "held", "released"),
    [
        ("BeginTime", True, False), ("None", True, False), ("QOSMaxGRESPerUser", True, False),
        ("ReqNodeNotAvail, UnavailableNodes:gpu-21", True, False), ("JobHeldUser", False, True),
        ("JobHeldAdmin", False, False), ("JobHoldMaxRequeue", False, False),
        ("launch failed requeued held", False, False), ("JobLaunchFailure", False, False), ("News", False, False),
    ],
)
def test_a_job_is_held_that_would_start_by_itself_and_released_where_it_is_held_so(
    desk: Desk, reason: str, held: bool, released: bool
) -> None:
    """Case: what Slurm itself holds, after a launch that failed or too many requeues, was held and released."""
    desk.waits("4711", reason)
    job = desk.slurm.job(JobId("4711"))
    assert (desk.slurm.hold(job), desk.slurm.release(job)) == (held, released)
    commands = [*(["scontrol uhold 4711"] if held else []), *(["scontrol release 4711"] if released else [])]
    assert desk.asked("scontrol") == commands


def test_of_a_later_run_that_waits_nothing_is_held_released_or_cancelled(desk: Desk) -> None:
    """Case: one that waits has no start by which its run was known."""
    desk.waits("4711", "JobHeldUser", restarts=1)
    job = desk.slurm.job(JobId("4711"))
    desk.waits("4711", "JobHeldUser", restarts=2)
    deeds = {"held": desk.slurm.hold, "released": desk.slurm.release, "cancelled": desk.slurm.cancel}
    for words, deed in deeds.items():
        with pytest.raises(NotAllowed, match=f"restarted since its error was read, so it is not {words}"):
            deed(job)
    assert desk.asked("scontrol") == desk.asked("scancel") == []


def test_a_record_read_before_accounting_knew_the_job_is_completed_or_refused(desk: Desk, tmp_path: Path) -> None:
    desk.print_recorded("squeue", "squeue_failed.txt")
    desk.answer("sacct", f'case "$*" in *helpformat*) cat {RECORDED}/sacct_helpformat.txt;; esac')
    early = desk.slurm.job(JobId("115"))
    assert early.submit_line == ""
    with pytest.raises(Unavailable, match="submit line"):
        desk.slurm.submit(submission(tmp_path), early)
    assert sum(desk.clock.slept_s) == 5 and desk.asked("sbatch") == []
    recorded_job(desk)
    desk.answer("sbatch", "echo sbatch: error: Batch job submission failed: Invalid qos specification >&2; exit 1")
    with pytest.raises(NotAllowed):
        desk.slurm.submit(submission(tmp_path), early)
    assert "--gres=gpu:2" in desk.log.read_text()


def test_sbatch_is_not_repeated_and_its_words_are_told(desk: Desk, tmp_path: Path) -> None:
    recorded_job(desk)
    original = desk.slurm.job(JobId("115"))
    for words, error in (
        ("Batch job submission failed: Invalid qos specification", NotAllowed),
        ("Batch job submission failed: Socket timed out on send/recv operation", Unavailable),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", Unavailable),
    ):
        desk.answer("sbatch", f"echo 'sbatch: error: {words}' >&2; exit 1")
        with pytest.raises(error, match=words.partition(": ")[2][:20]):
            desk.slurm.submit(submission(tmp_path), original)
    assert len(desk.asked("sbatch")) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_what_slurm_refuses_us_is_asked_again_as_the_owner(desk: Desk, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.getuid() and folder != Path("/") and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    desk.log.touch()
    desk.log.chmod(0o666)
    desk.print_recorded("squeue", "squeue_failed.txt", owner="daemon")
    desk.answer("sacct", NO_ACCOUNTING)
    desk.answer("scancel", f'if [ "$(id -un)" = daemon ]; then exit 0; fi; {DENIED}')
    desk.slurm.cancel(desk.slurm.job(JobId("115")))
    assert len(desk.asked("scancel")) == 2


def test_ids_and_names_are_not_options(desk: Desk) -> None:
    for job in ("--all", "-u root", "1;2", "", "7\n8", "٣"):
        with pytest.raises((BadInput, NotFound)):
            desk.slurm.job(JobId(job))
        with pytest.raises((BadInput, NotFound)):
            desk.slurm.cancel(JobRecord(JobId(job), "c", "x", UserName("alice"), job_state("RUNNING")))
    for node in ("-x", "gpu-[1-9]", "ALL x", ""):
        with pytest.raises(NotFound):
            desk.slurm.drain(NodeName(node), "runbook:x")
    assert desk.asked("scancel") == desk.asked("scontrol") == []


def test_a_foreign_reason_is_never_overwritten(desk: Desk) -> None:
    desk.print_recorded("sinfo", "sinfo.txt")
    with pytest.raises(NotAllowed, match="already drained: runbook:oom-1 GPU 3"):
        desk.slurm.drain(NodeName("gpu-24"), "runbook:oom-2")
    with pytest.raises(NotAllowed, match="somebody else"):
        desk.slurm.undrain(NodeName("gpu-24"), "runbook:oom-2")
    desk.slurm.drain(NodeName("gpu-24"), "runbook:oom-1 GPU 3: a=b | c")
    assert desk.asked("scontrol") == []


def test_a_missing_command_says_where_to_set_the_folder(tmp_path: Path) -> None:
    slurm = SlurmCli(SlurmCommands(bin_dir=str(tmp_path)))
    with pytest.raises(NotFound) as missing:
        slurm.nodes()
    assert "sinfo" in missing.value.what and "inventory" in missing.value.next_step


@pytest.mark.parametrize(
    ("module", "cluster_version", "chosen", "why"),
    [
        ("tests.contract.standin_pyslurm", "slurm 25.11.7", SlurmPyslurm, "pyslurm 25.11.2 for live jobs"),
        ("tests.contract.standin_pyslurm", "slurm-wlm 22.05.8", SlurmCli, "is not for slurm-wlm 22.05.8"),
        ("no_such_pyslurm", "slurm 25.11.7", SlurmCli, "does not import here"),
        ("dies_in_import", "slurm 25.11.7", SlurmCli, "does not import here"),
    ],
)
def test_the_choice_of_adapter(
    module: str, cluster_version: str, chosen: type, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dies_in_import.py").write_text("import os\nos._exit(1)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(REPOSITORY), *filter(None, sys.path))))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "scontrol").write_text(f"#!/bin/sh\necho '{cluster_version}'\n")
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    scheduler = choose_scheduler(SlurmCommands(bin_dir=str(tmp_path / "bin")), module=module)
    assert isinstance(scheduler, chosen)
    assert why in scheduler.describe()
    assert "dies_in_import" not in sys.modules


def test_pyslurm_is_not_asked_where_no_controller_answers(desk: Desk) -> None:
    """libslurm would hold this process for a minute."""
    controller = FakeScheduler(desk.clock)
    job = controller.add(submit_line="sbatch train.sh")
    commands = SlurmCommands(bin_dir=str(desk.bin))
    module = cast(PyslurmModule, standin_pyslurm.connect(controller))
    slurm = SlurmPyslurm(module, desk.slurm, ping=commands.ping, clock=desk.clock)
    assert slurm.job(job).id == slurm.job(job).id == job
    assert len(desk.asked("scontrol")) == 1, "one that answered a moment ago is not asked again"
    desk.answer("scontrol", "echo 'Slurmctld(primary) at ctl is DOWN'; exit 1")
    desk.clock.sleep(10)
    with pytest.raises(Unavailable, match="at ctl is DOWN"):
        slurm.job(job)


def test_the_inventory_may_want_the_commands(desk: Desk) -> None:
    desk.answer("scontrol", "echo 'slurm 25.11.7'")
    scheduler = choose_scheduler(SlurmCommands(bin_dir=str(desk.bin)), prefer="cli")
    assert "as the inventory says" in scheduler.describe()


FORGING = """#!{python}
# Stands in for a Slurm whose user reads the separator in /proc and writes whole columns into his job's name.
import sys
words = dict(word.split(":", 1) for word in sys.argv[-1].split(",")) if "-O" in sys.argv else None
if words is None:
    format = next(word for word in sys.argv if word.startswith("--format="))
    separator = next(word for word in sys.argv if word.startswith("--delimiter=")).partition("=")[2]
    columns = format.partition("=")[2].split(",")
else:
    columns, separator = list(words), next(iter(words.values()))
own = {own}
forged = {forged}
text = ""
for column in columns:
    if column in ("Name", "JobName"):
        rest = columns[columns.index(column) + 1:]
        text += "train" + separator + "".join(forged.get(one, "") + separator for one in rest)
        text += "".join(forged.get(one, "") + separator for one in columns)
        text += "x" * 10 + separator
    else:
        text += own.get(column, "") + separator
print(text)
"""


@pytest.mark.parametrize("command", ["squeue", "sacct"])
@pytest.mark.parametrize("asked", ["901", "901_3"])
def test_what_a_user_writes_into_his_jobs_name_makes_no_record_of_anothers_job(
    desk: Desk, command: str, asked: str
) -> None:
    """He knows the separator: it stands among the arguments of the command that asks."""
    own = {
        "JobID": "901", "JobArrayID": "901_3", "UserName": "mallory", "User": "mallory", "UserID": "1001",
        "UID": "1001", "State": "RUNNING", "NodeList": "gpu-1", "NumNodes": "1", "SubmitTime": "1795259620",
        "Submit": "1795259620",
    }
    if command == "sacct":
        own["JobID"] = "901_3"
    forged = {
        **own, "JobID": asked, "JobArrayID": asked, "UserName": "alice", "User": "alice", "UserID": "1003",
        "UID": "1003", "State": "FAILED", "NodeList": "gpu-9", "Command": "/home/mallory/evil.sh",
        "STDOUT": "/home/alice/private.log",
    }
    if command == "squeue":
        desk.answer("sacct", NO_ACCOUNTING)
    else:
        desk.answer("squeue", NO_JOB)
    program = desk.bin / f"forging-{command}"
    program.write_text(FORGING.format(python=sys.executable, own=own, forged=forged))
    program.chmod(0o755)
    helpformat = " ".join(COLUMNS)
    desk.answer(command, f'case "$*" in *--helpformat*) echo "{helpformat}"; exit 0;; esac\nexec {program} "$@"')
    record = desk.slurm.job(JobId(asked))
    assert (record.owner, record.uid, record.state.name) == ("mallory", 1001, "RUNNING")
    assert record.nodes == ("gpu-1",)
