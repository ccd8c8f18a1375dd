"""How people really submit (docs/submitting.md): jobs of each sort die of memory side by side under one daemon; each is
brought back, or handed back with the sentence that says why and what a person does.

Nobody types anything: Slurm's epilog tells of each.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import NODES, REPOSITORY, ROOT, SLURM, Cluster, prepared
from tests.service.signed_in import address_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PREPARED = REPOSITORY / "build" / "submitters"
"""What tests/cluster/submitters/prepare has put there."""
NEEDS = {
    "submitit": "lib/submitit",
    "hydra_launcher": "lib/hydra_plugins",
    "container": "container-*.so",
    "script_in_container": "container-*.so",
}
"""What a way to submit needs of it: a library (PyPI), or what a C compiler made."""


def is_to_be_had(name: str) -> bool:
    return name not in NEEDS or any(PREPARED.glob(NEEDS[name]))


@pytest.fixture(autouse=True)
def prepared_for_it(request: pytest.FixtureRequest) -> None:
    name = request.node.name.removeprefix("test_")
    if not is_to_be_had(name):
        missing = f"build/submitters has no {NEEDS[name]}: sh tests/cluster/submitters/prepare"
        (pytest.fail if os.environ.get("RUNBOOK_REQUIRE_ALL") == "1" else pytest.skip)(missing)


SSH = ("ssh", "-F", str(ROOT / "ssh" / "ssh_config"), "-l", "root")
SIZE = ("--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=2", "--time=10", "--mem=2G", "--job-name={name}")
OPTIONS = (
    "--num-layers 6 --hidden-size 4096 --num-heads 32 --vocab-size 128256 --seq-length 4096 --sequence-growth 2048:4 "
    "--rank-imbalance 0.3 --seed 9425 --micro-batch-size 16 --gradient-accumulation-steps 1 --global-batch-size 32 "
    "--activation-checkpointing none --shard-degree 2 --train-iters 8 --step-seconds 0.05 --save-interval 2 "
    "--log-memory-interval 2 --no-hang-on-peer-failure"
)
"""Of a job of two ranks that dies at its fourth iteration, and does not with half the micro-batch."""


def train(name: str, program: str = "../train/train.py") -> str:
    """The command that trains, with a folder of checkpoints of its own."""
    return f"python3 {program} {OPTIONS} --save checkpoints/{name} --load checkpoints/{name}"


@dataclass
class Place:
    """Where the jobs of this file are submitted."""

    cluster: Cluster
    jobs: dict[str, str] = field(default_factory=dict)
    """The number of each, by its name."""
    launched: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Programs of the owner that wait for their jobs."""

    def text(self, name: str, body: str, *more: str) -> str:
        options = (*(option.format(name=name) for option in SIZE), *more)
        return "#!/bin/bash\n" + "".join(f"#SBATCH {option}\n" for option in options) + "set -e\n" + body + "\n"

    def script(self, name: str, body: str, *more: str) -> Path:
        path = self.cluster.jobs / f"{name}.sh"
        path.write_text(self.text(name, body, *more), encoding="utf-8")
        return path

    def folder(self, name: str) -> None:
        """Where jobs write: Slurm makes none, and an idle cluster starts a job at once."""
        (self.cluster.jobs / name).mkdir(exist_ok=True)
        shutil.chown(self.cluster.jobs / name, "sb-alice", "sb-alice")

    def sbatch(self, *words: str | Path, text: str | None = None, cwd: Path | None = None) -> str:
        return self.as_owner("sbatch", "--parsable", *map(str, words), text=text, cwd=cwd).partition(";")[0]

    def as_owner(self, *argv: str, text: str | None = None, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ("sudo", "-n", "-u", "sb-alice", f"SLURM_CONF={SLURM['SLURM_CONF']}", *argv),
            cwd=cwd or self.cluster.jobs, input=text, capture_output=True, text=True, timeout=120, check=False,
        )
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout.strip()

    def libraries(self) -> Path:
        """What jobs of the owner import, where the owner may read it."""
        folder = self.cluster.home / "lib"
        if not folder.exists():
            shutil.copytree(PREPARED / "lib", folder)
        return folder

    def incident(self, name: str) -> dict[str, Any]:
        """What became of a job, once its incident has ended."""
        job = self.jobs[name]
        opened = self.cluster.state / "incidents" / f"oom-sandbox-{job}" / "incident.json"
        self.cluster.until(opened.exists, f"the incident of {name} ({job}) is open", 300)
        ended = ("recovered", "escalated", "closed")
        self.cluster.until(lambda: self.cluster.incident(job)["state"] in ended, f"{name} ({job}) has ended", 300)
        return self.cluster.incident(job)

    def recovered(self, name: str) -> tuple[dict[str, Any], str]:
        """The incident and the script that was submitted for it, with half the micro-batch and from its checkpoint."""
        incident = self.incident(name)
        assert incident["state"] == "recovered", (name, incident["conclusion"], incident["to_do"], incident["notes"])
        (attempt,) = incident["attempts"]
        assert self.cluster.field(attempt["job"], "UserId").startswith("sb-alice(")
        assert len(self.cluster.relaunches(self.jobs[name])) == 1
        return incident, self.cluster.slurm("scontrol", "write", "batch_script", attempt["job"], "-")

    def handed_back(self, name: str) -> dict[str, Any]:
        incident = self.incident(name)
        assert incident["attempts"] == [] and self.cluster.relaunches(self.jobs[name]) == []
        return incident


def smaller(script: str) -> bool:
    """Whether its micro-batch is smaller than it was, and the samples of a step the same."""
    micro, passes = (
        int(found[1]) if (found := re.search(rf"{option}[ =](\d+)", script)) else 0
        for option in ("--micro-batch-size", "--gradient-accumulation-steps")
    )
    return 0 < micro < 16 and micro * passes == 16


SUBMIT: dict[str, Callable[[Place], str]] = {}


def submitted(how: Callable[[Place], str]) -> Callable[[Place], str]:
    SUBMIT[how.__name__.strip("_")] = how
    return how


@pytest.fixture(scope="module")
def with_containers() -> Iterator[None]:
    """Slurm's own plug-in stack, with what stands in for a container's mounts."""
    version = subprocess.run(("scontrol", "--version"), env={**os.environ, **SLURM}, capture_output=True, text=True)
    built = PREPARED / f"container-{'.'.join(version.stdout.split()[-1].split('.')[:2])}.so"
    stack = ROOT / "etc" / "plugstack.conf"
    if built.exists():
        stack.write_text(f"required {built}\n", encoding="utf-8")
    yield
    stack.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def private_tmp() -> Iterator[None]:
    """A /tmp of its own on every node, as job_container/tmpfs makes one for each job."""
    for node in NODES:
        subprocess.run((*SSH, node, "mount -t tmpfs -o mode=1777 tmpfs /tmp"), check=True)
    yield
    for node in NODES:
        subprocess.run((*SSH, node, "umount /tmp"), check=False)


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, with_containers: None, private_tmp: None) -> Iterator[Place]:
    """Every job that the chosen tests ask for has been submitted, and a daemon works on what dies."""
    if os.geteuid() != 0 or not ROOT.exists():
        pytest.fail("the sandbox cluster is not up: `make cluster` (Debian, root)")
    making = prepared("how-submitted")
    found = Place(next(making))
    inventory = found.cluster.inventory
    spool = f"spool: {found.cluster.state}/spool"
    inventory.write_text(inventory.read_text(encoding="utf-8").replace(spool, f"spool: {ROOT}/spool"), encoding="utf-8")
    for left in (ROOT / "spool").glob("*.event"):
        left.unlink()
    daemon = found.cluster.start_runbook("serve", "--port", "0")
    chosen = {item.name.removeprefix("test_") for item in request.session.items if item.path == request.path}
    try:
        address_of(daemon)
        for name, how in SUBMIT.items():
            if name in chosen and is_to_be_had(name):
                found.jobs[name] = how(found)
        yield found
    finally:
        daemon.send_signal(signal.SIGTERM)
        out, err = daemon.communicate(timeout=90)
        for program in found.launched:
            program.kill()
            program.wait()
        for _ in making:
            pass
    assert "Traceback" not in out + err, err


@submitted
def _wrap(place: Place) -> str:
    options = [option.format(name="wrap") for option in SIZE]
    return place.sbatch(*options, "--output=%x-%j.out", f"--wrap=srun --label {train('wrap')}")


def test_wrap(place: Place) -> None:
    _, script = place.recovered("wrap")
    assert smaller(script)


@submitted
def _standard_input(place: Place) -> str:
    return place.sbatch(text=place.text("standard_input", f"srun --label {train('standard_input')}", "-o %x-%j.out"))


def test_standard_input(place: Place) -> None:
    _, script = place.recovered("standard_input")
    assert smaller(script)


@submitted
def _array(place: Place) -> str:
    body = f"if [ $SLURM_ARRAY_TASK_ID = 5 ]; then exit 0; fi\nsrun --label {train('array-$SLURM_ARRAY_TASK_ID')}"
    place.folder("tasks")
    return place.sbatch("--array=3,5", place.script("array", body, "-o tasks/%A_%a.out")) + "_3"


def test_array(place: Place) -> None:
    """One task comes back, with its index, from its own checkpoints."""
    incident, script = place.recovered("array")
    job = incident["attempts"][0]["job"]
    assert job.endswith("_3") and smaller(script)
    assert incident["attempts"][0]["checkpoint"]["path"].startswith(f"{place.cluster.jobs}/checkpoints/array-3")


@submitted
def _counting_array(place: Place) -> str:
    body = f"srun --label {train('counting')} --seed $SLURM_ARRAY_TASK_COUNT"
    return place.sbatch("--array=3", place.script("counting_array", body)) + "_3"


def test_counting_array(place: Place) -> None:
    incident = place.handed_back("counting_array")
    assert "reads SLURM_ARRAY_TASK_COUNT" in incident["conclusion"] and "sbatch --array" in str(incident["to_do"])


@submitted
def _warned_and_requeues(place: Place) -> str:
    body = f'trap "scontrol requeue $SLURM_JOB_ID" USR1\nsrun --label {train("warned")} &\nwait $!'
    return place.sbatch(place.script("warned_and_requeues", body, "--signal=B:USR1@30", "--requeue"))


def test_warned_and_requeues(place: Place) -> None:
    incident, script = place.recovered("warned_and_requeues")
    assert smaller(script) and "--signal=B:USR1@30" in script
    assert any("puts its own job back into the queue" in note for note in incident["notes"])


@submitted
def _requeues_itself(place: Place) -> str:
    body = f'srun --label {train("requeues")} || {{ scontrol requeue $SLURM_JOB_ID; exit 1; }}'
    return place.sbatch(place.script("requeues_itself", body, "--open-mode=append", "--requeue"))


def test_requeues_itself(place: Place) -> None:
    """It would start again as it was; one of the two runs is brought back, and the number never runs beside it."""
    place.recovered("requeues_itself")
    assert place.cluster.state_of(place.jobs["requeues_itself"]) in ("CANCELLED", "FAILED")


@submitted
def _requeues_itself_and_ends_well(place: Place) -> str:
    body = f'trap "" TERM\nsrun --label {train("requeues-well")} || scontrol requeue $SLURM_JOB_ID || true\nexit 0'
    return place.sbatch(place.script("requeues_itself_and_ends_well", body, "--open-mode=append", "--requeue"))


def test_requeues_itself_and_ends_well(place: Place) -> None:
    place.recovered("requeues_itself_and_ends_well")
    assert place.cluster.state_of(place.jobs["requeues_itself_and_ends_well"]) in ("CANCELLED", "FAILED")


@submitted
def _patterns(place: Place) -> str:
    place.folder("tasks")
    return place.sbatch(place.script("patterns", f"srun {train('patterns')}", "-o tasks/%x_%A_%a_%N_%u_%t_%4j.log"))


def test_patterns(place: Place) -> None:
    incident, _ = place.recovered("patterns")
    assert "sb-alice" in incident["original"]["job"]["stdout_path"]


@submitted
def _one_file(place: Place) -> str:
    """Two runs write to one file, of which the first one's words are not the second one's."""
    return place.sbatch("--open-mode=append", "-o", "one.log", place.script("one_file", f"srun {train('one_file')}"))


def test_one_file(place: Place) -> None:
    incident, _ = place.recovered("one_file")
    assert place.cluster.jobs.joinpath("one.log").read_text(encoding="utf-8").count("OutOfMemoryError") > 0
    assert incident["attempts"][0]["log_marks"]


@submitted
def _file_a_task(place: Place) -> str:
    return place.sbatch(place.script("file_a_task", f"srun -o %x-%j-%t.log {train('file_a_task')}"))


def test_file_a_task(place: Place) -> None:
    incident, _ = place.recovered("file_a_task")
    assert incident["original"]["story"]["root_cause"]["excerpt"]


@submitted
def _several_steps(place: Place) -> str:
    body = f"srun -n1 echo prepared\nsrun --label {train('several_steps')}\nsrun -n1 echo evaluated"
    return place.sbatch(place.script("several_steps", body))


def test_several_steps(place: Place) -> None:
    _, script = place.recovered("several_steps")
    assert smaller(script) and "srun -n1 echo evaluated" in script


@submitted
def _template_gone(place: Place) -> str:
    path = place.script("template_gone", f"srun --label {train('template_gone')}")
    job = place.sbatch(path)
    path.unlink()
    return job


def test_template_gone(place: Place) -> None:
    """Slurm kept it; only to keep the change there is no file any more."""
    incident, script = place.recovered("template_gone")
    assert smaller(script)
    kept = place.cluster.runbook("promote", incident["id"], "--yes")
    assert kept.returncode != 0 and "template_gone.sh" in kept.stderr + kept.stdout


@submitted
def _export_none(place: Place) -> str:
    body = f"export PATH=/usr/bin:/bin RUN_NAME=mine\nsrun --export=ALL --label {train('export_none')}"
    return place.sbatch("--export=NONE", place.script("export_none", body))


def test_export_none(place: Place) -> None:
    incident, _ = place.recovered("export_none")
    job = incident["attempts"][0]["job"]
    kept = ("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=SubmitLine")
    place.cluster.until(lambda: place.cluster.slurm(*kept), "accounting has the relaunch")
    assert "--export=NONE" in place.cluster.slurm(*kept)


@submitted
def _named_cluster(place: Place) -> str:
    return place.sbatch("-M", "sandbox", place.script("named_cluster", f"srun --label {train('named_cluster')}"))


def test_named_cluster(place: Place) -> None:
    place.recovered("named_cluster")


@submitted
def _heterogeneous(place: Place) -> str:
    body = f"srun --het-group=0 --label {train('heterogeneous')} &\nwait $!"
    return place.sbatch(place.script("heterogeneous", body, "hetjob", "--nodes=1 --ntasks=1 --mem=100M")) + "+0"


def test_heterogeneous(place: Place) -> None:
    incident = place.handed_back("heterogeneous")
    assert "heterogeneous" in incident["conclusion"]


@submitted
def _submitit(place: Place) -> str:
    program = place.cluster.jobs / "launch_submitit.py"
    program.write_text(SUBMITIT, encoding="utf-8")
    return place.as_owner("env", f"PYTHONPATH={place.libraries()}", "python3", str(program)).splitlines()[-1]


SUBMITIT = f"""
import subprocess, submitit

def run(micro_batch):
    words = {train("submitit")!r}.replace("--micro-batch-size 16", f"--micro-batch-size {{micro_batch}}")
    subprocess.run(words.split(), check=True)

executor = submitit.AutoExecutor(folder="submitit-%j", cluster="slurm")
executor.update_parameters(
    name="submitit", nodes=1, tasks_per_node=2, gpus_per_node=2, timeout_min=10, mem_gb=2,
)
print(executor.submit(run, 16).job_id)
"""


def test_submitit(place: Place) -> None:
    """The real submitit: its logs are read, and its pickled function is left to the program that made it."""
    incident = place.handed_back("submitit")
    assert incident["state"] == "escalated" and incident["original"]["diagnosis"]["best"]["kind"] == "true_oom"
    assert "a job of submitit" in incident["conclusion"] and "executor.submit" in str(incident["to_do"])
    assert "--micro-batch-size?" not in str(incident["to_do"]), "nobody can write it into that script"


@submitted
def _hydra_launcher(place: Place) -> str:
    folder = place.cluster.jobs / "hydra"
    folder.mkdir()
    shutil.chown(folder, "sb-alice", "sb-alice")
    (folder / "app.py").write_text(HYDRA, encoding="utf-8")
    (folder / "config.yaml").write_text(HYDRA_CONFIGURATION, encoding="utf-8")
    argv = ("env", f"PYTHONPATH={place.libraries()}", "python3", "app.py", "--multirun", "micro_batch=16")
    place.launched.append(subprocess.Popen(
        ("sudo", "-n", "-u", "sb-alice", f"SLURM_CONF={SLURM['SLURM_CONF']}", *argv), cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ))
    listed = ("squeue", "--noheader", "--user=sb-alice", "--name=hydra_launcher", "--states=all", "--format=%i")
    place.cluster.until(lambda: place.cluster.slurm(*listed), "Hydra has submitted its job", 120)
    return place.cluster.slurm(*listed).split()[0]


HYDRA = f"""
import subprocess, hydra

@hydra.main(version_base=None, config_path=".", config_name="config")
def run(configuration):
    words = {train("hydra", program="{program}")!r}.replace("{{program}}", configuration.program)
    words = words.replace("--micro-batch-size 16", f"--micro-batch-size {{configuration.micro_batch}}")
    subprocess.run(words.split(), check=True)

run()
"""
HYDRA_CONFIGURATION = """
defaults: [{override hydra/launcher: submitit_slurm}]
micro_batch: 4
program: ${hydra:runtime.cwd}/../../train/train.py
hydra:
  launcher: {name: hydra_launcher, nodes: 1, tasks_per_node: 2, gpus_per_node: 2, timeout_min: 10, mem_gb: 2}
"""


def test_hydra_launcher(place: Place) -> None:
    """It keeps what the function raised for the program that waits, so that Slurm calls the job COMPLETED and the
    epilog tells of nothing: a person names it."""
    job = place.jobs["hydra_launcher"]
    place.cluster.until(lambda: place.cluster.state_of(job) == "COMPLETED", "Hydra's job has ended", 120)
    assert place.cluster.runbook("oom", "--job", job, "--yes", timeout_s=300).returncode == 4
    incident = place.handed_back("hydra_launcher")
    assert incident["state"] == "escalated" and "the same command with the override" in str(incident["to_do"])


@submitted
def _snakemake(place: Place) -> str:
    """Written after the job scripts of Snakemake's executor plug-ins; the function stands in for the program."""
    body = (
        "# properties = {\"type\": \"single\", \"rule\": \"train\"}\n"
        f"snakemake() {{ srun --label {train('snakemake')}; }}\n"
        "snakemake --snakefile Snakefile --target-jobs 'train:' --allowed-rules train --cores all --mode remote"
    )
    return place.sbatch("--comment=rule_train", place.script("snakemake", body))


def test_snakemake(place: Place) -> None:
    incident = place.handed_back("snakemake")
    assert "a job of a Snakemake workflow" in incident["conclusion"]
    assert "run the workflow again" in str(incident["to_do"])


@submitted
def _nextflow(place: Place) -> str:
    """Written after the script in which a pipeline wraps each task."""
    body = f"# NEXTFLOW TASK: TRAIN\nnxf_launch() {{\n    srun --label {train('nextflow')}\n}}\nnxf_launch"
    return place.sbatch(place.script("nextflow", body))


def test_nextflow(place: Place) -> None:
    incident = place.handed_back("nextflow")
    assert "a task of a Nextflow pipeline" in incident["conclusion"] and "-resume" in str(incident["to_do"])


@submitted
def _container(place: Place) -> str:
    """`--container-mounts` of a stand-in for pyxis: home is seen at /srv, and the program there."""
    mounts = f"--container-image=simulated --container-mounts={place.cluster.home}:/srv"
    command = train("container", "/srv/train/train.py").replace("checkpoints/", f"{place.cluster.jobs}/checkpoints/")
    return place.sbatch(place.script("container", f"srun --label {mounts} {command}"))


def test_container(place: Place) -> None:
    _, script = place.recovered("container")
    assert smaller(script) and ":/srv" in script


APPTAINER = """#!/bin/sh
# A stand-in for `apptainer exec --bind SRC:DST IMAGE COMMAND...`: the mount is real, the root stays the node's own.
bind=$3
shift 4
exec unshare --user --map-root-user --mount sh -c 'mount --bind "$0" "$1" && shift && exec "$@"' \\
    "${bind%%:*}" "${bind#*:}" "$@"
"""


@submitted
def _apptainer(place: Place) -> str:
    program = place.cluster.jobs / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(APPTAINER, encoding="utf-8")
    program.chmod(0o755)
    command = train("apptainer", "/srv/train/train.py").replace("checkpoints/", f"{place.cluster.jobs}/checkpoints/")
    start = f"apptainer exec --bind {place.cluster.home}:/srv image.sif"
    body = f"export PATH={program.parent}:$PATH\nsrun --label {start} {command}"
    return place.sbatch(place.script("apptainer", body))


def test_apptainer(place: Place) -> None:
    _, script = place.recovered("apptainer")
    assert smaller(script) and "--bind" in script


@submitted
def _script_in_container(place: Place) -> str:
    inner = place.cluster.jobs / "in_container.sh"
    inner.write_text("#!/bin/bash\n" + train("inner", "/srv/train/train.py") + "\n", encoding="utf-8")
    # Older than the job beyond doubt: what changed since a job began is not what it read.
    os.utime(inner, (time.time() - 60,) * 2)
    mounts = f"--container-image=simulated --container-mounts={place.cluster.home}:/srv"
    return place.sbatch(place.script("script_in_container", f"srun --label {mounts} bash /srv/jobs/in_container.sh"))


def test_script_in_container(place: Place) -> None:
    """The value stands in a script that lies elsewhere for the container: a copy of it would not be seen there."""
    incident = place.handed_back("script_in_container")
    assert incident["state"] == "escalated" and "/srv/jobs/in_container.sh" in str(incident["no_plan"])


@submitted
def _private_tmp(place: Place) -> str:
    return place.sbatch("--output=/tmp/%x-%j.out", place.script("private_tmp", f"srun --label {train('private_tmp')}"))


def test_private_tmp(place: Place) -> None:
    """The node keeps its /tmp to itself, so nobody else reads that log; a person is told where it was."""
    incident = place.handed_back("private_tmp")
    assert incident["state"] == "escalated" and "/tmp/private_tmp-" in incident["conclusion"]
    assert "seen by that node alone" in str(incident["to_do"])
