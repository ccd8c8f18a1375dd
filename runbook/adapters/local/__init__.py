"""The local scheduler: runs job scripts as processes of this machine, with Slurm's manners and no root.

One node, named as this host; no arrays, no dependencies, no sharing out of resources: a job starts at once unless the
node is drained. `#SBATCH` lines and options that mean something here are followed (name, output, error, chdir,
comment, export, ntasks, nodes, time, GPUs as a figure, open-mode); the others are kept in the submit line and ignored.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runbook.adapters.clock import SystemClock
from runbook.adapters.drain_guards import drain_wanted, undrain_wanted
from runbook.adapters.identity import current_identity
from runbook.adapters.local import supervisor
from runbook.adapters.local.job_store import LocalStore
from runbook.adapters.process import Command, run
from runbook.errors import BadInput, NotAllowed, NotFound, Unavailable
from runbook.model.job import (
    Claim,
    JobClass,
    JobEnvironment,
    JobRecord,
    JobScript,
    JobState,
    NodeClass,
    NodeState,
    StepRecord,
    Submission,
)
from runbook.model.units import Bytes, JobId, NodeName, Unknown, UserName
from runbook.ports import Clock
from runbook.slurm import fields
from runbook.slurm.job_record import PatternValues, batch_paths
from runbook.slurm.ownership import carries, check_same_run
from runbook.slurm.sbatch_options import SbatchOption, header_options, last_value, parse_arguments, wrapped_text
from runbook.slurm.submit import sbatch_command, submit_environment

_START_TIMEOUT_S = 20.0
_LOGIN_VARIABLES = ("HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG")
"""What a job has whatever `--export` lets through: Slurm's node would start a login for them."""
_REFUSED = frozenset({"array", "wrap", "dependency", "begin", "test-only", "clusters"})


class LocalScheduler:
    """The Scheduler port over a folder. Several processes may use one folder at a time; jobs outlive all of them.

    `spool` is a folder that gets the same small file as from the Slurm epilog when a job ends badly. `kill_wait_s` is
    the time between SIGTERM and SIGKILL of a cancelled job.
    """

    def __init__(
        self,
        state_dir: Path,
        cluster: str = "local",
        *,
        clock: Clock | None = None,
        spool: Path | None = None,
        node: str = "",
        kill_wait_s: float = 5.0,
    ) -> None:
        self._store = LocalStore(state_dir.absolute())
        self._cluster = cluster
        self._clock = clock or SystemClock()
        self._spool = spool
        self._node = NodeName(node or socket.gethostname().partition(".")[0] or "localhost")
        self._kill_wait_s = kill_wait_s

    def describe(self) -> str:
        return f"local scheduler: jobs run as processes on {self._node}; state in {self._store.folder}"

    def submit_script(
        self,
        path: str,
        args: Sequence[str] = (),
        options: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        work_dir: str | None = None,
    ) -> JobId:
        """What `sbatch OPTIONS PATH ARGS` does. `environment` and `work_dir` default to ours.

        Raises `BadInput` for a script without `#!` or an option that cannot be followed here, `NotFound` for a script
        that is not there."""
        here = work_dir or str(Path.cwd())
        script_path = Path(here, path)
        try:
            script = script_path.read_bytes()
        except OSError as error:
            raise NotFound(f"cannot read the script: {error.strerror}", where=str(script_path)) from error
        if not script.startswith(b"#!"):
            raise BadInput(
                "this does not look like a batch script: its first line must start with #!", where=str(script_path)
            )
        given = parse_arguments(options).options
        header = header_options(script.decode("utf-8", "replace"))
        chosen = (*header, *given)
        for option in chosen:
            if option.name in _REFUSED:
                raise BadInput(
                    f"the local scheduler cannot follow --{option.name}", where=str(script_path), next_step="remove it"
                )
        variables = submit_environment(os.environ if environment is None else environment)
        folder = str(Path(here, last_value(chosen, "chdir") or "."))
        who = current_identity()
        job: dict[str, Any] = {
            "name": last_value(chosen, "job-name") or script_path.name,
            "owner": who.name,
            "uid": who.uid,
            "gid": who.gid,
            "cluster": self._cluster,
            "node": self._node,
            "submit_s": self._clock.now(),
            "submit_dir": here,
            "work_dir": folder,
            "command": str(script_path),
            "arguments": list(args),
            "submit_line": " ".join(("sbatch", *options, path, *args)),
            "comment": last_value(chosen, "comment") or "",
            "time_limit_s": fields.duration_s(last_value(chosen, "time")),
            "num_nodes": fields.number(last_value(chosen, "nodes")) or 1,
            "ntasks": fields.number(last_value(chosen, "ntasks")),
            "ntasks_per_node": fields.number(last_value(chosen, "ntasks-per-node")),
            "gpus_per_node": fields.number(last_value(chosen, "gpus-per-node"))
            or fields.gpu_count(last_value(chosen, "gres"))
            or fields.number(last_value(chosen, "gpus")),
            "memory_bytes": fields.memory_bytes(last_value(chosen, "mem")),
            "append": last_value(chosen, "open-mode") == "append",
            "kill_wait_s": self._kill_wait_s,
            "spool": str(self._spool) if self._spool else "",
        }
        login = {name: variables[name] for name in _LOGIN_VARIABLES if name in variables}
        exported = {**login, **fields.exported(variables, last_value(chosen, "export"))}
        number = self._store.add(job, script, exported)
        self._store.complete(number, self._numbered(number, job, given, header))
        self._start_if_waiting(number)
        return number

    def submit(self, submission: Submission, original: JobRecord) -> JobId:
        ours, owner = current_identity().name, submission.claim.owner
        if owner != ours:
            raise NotAllowed(
                f"the local scheduler runs jobs of {ours} only, not of {owner}",
                where=str(self._store.folder),
                next_step=f"run as {owner}",
            )
        wrapped = wrapped_text(str(getattr(self.script(original.id), "text", ""))) if original.submit_line else ""
        command = sbatch_command(submission, original, wrapped=wrapped)
        parsed = parse_arguments(command.argv[1:])
        environment = (
            submission.environment.variables if submission.environment else current_identity().login_environment()
        )
        options = [option.argument() for option in parsed.options if option.name != "parsable"]
        return self.submit_script(
            parsed.script, parsed.arguments, options, environment=environment, work_dir=submission.work_dir
        )

    def job(self, job: JobId) -> JobRecord:
        self._start_if_waiting(job)
        return self._record(job)

    def jobs(self) -> tuple[JobRecord, ...]:
        """All jobs, oldest first."""
        return tuple(self.job(number) for number in self._store.ids())

    def script(self, job: JobId) -> JobScript | Unknown:
        try:
            text = (self._store.path(job) / "script").read_bytes().decode("utf-8", "surrogateescape")
        except NotFound as error:
            return Unknown(error.what)
        except OSError as error:
            return Unknown(f"the stored script cannot be read: {error.strerror}")
        return JobScript(text, "local")

    def environment(self, job: JobId) -> JobEnvironment | Unknown:
        try:
            variables = self._store.read(job, "environment")
        except NotFound as error:
            return Unknown(error.what)
        return JobEnvironment({str(name): str(value) for name, value in variables.items()}, "local")

    def find_submitted(self, claim: Claim) -> tuple[JobId, ...]:
        return tuple(
            number
            for number in self._store.ids()
            if carries(str(self._store.read(number, "job").get("comment", "")), claim.token)
        )

    def hold(self, job: JobRecord) -> bool:
        return False

    def release(self, job: JobRecord) -> bool:
        return False

    def cancel(self, job: JobRecord) -> None:
        try:
            now = self._record(job.id)
        except NotFound:
            return
        check_same_run(now, job)
        if not now.state.job_class.ended:
            self._stop(job.id)

    def _stop(self, job: JobId) -> None:
        self._store.write(job, "cancel", {"time_s": self._clock.now()})
        started = self._store.read(job, "started")
        if self._store.supervised(job):
            # Between taking its lock and writing who it is, a supervisor has not started the job: it will see the file.
            with contextlib.suppress(OSError, KeyError, TypeError):
                os.kill(int(started["supervisor"]), signal.SIGTERM)
        elif self._store.process_alive(started):
            with contextlib.suppress(OSError):
                os.killpg(int(started["pid"]), signal.SIGKILL)
            self._end(job, "CANCELLED", "its supervisor was gone; the process group was killed")
        elif not started:
            self._end(job, "CANCELLED", "cancelled before it started")

    def nodes(self, names: Sequence[NodeName] | None = None) -> tuple[NodeState, ...]:
        for name in names or ():
            self._check_node(name)
        if names is not None and not names:
            return ()
        reason = self._store.drain_reason()
        busy = any(self._record(number).state.job_class is JobClass.ACTIVE for number in self._store.ids())
        words = ("MIXED" if busy else "IDLE", *(("DRAIN",) if reason else ()))
        node_class = NodeClass.DRAINED if reason else NodeClass.BUSY if busy else NodeClass.AVAILABLE
        return (NodeState(self._node, node_class, words, reason, None, None, ("local",)),)

    def memory_to_have(self, job: JobRecord) -> Bytes | None:
        return None

    def drain(self, node: NodeName, reason: str) -> None:
        self._check_node(node)
        with self._store.draining() as present:
            if drain_wanted(self._drain_state(present), reason):
                self._store.set_drain(reason, self._clock.now())

    def undrain(self, node: NodeName, token: str) -> None:
        self._check_node(node)
        with self._store.draining() as present:
            if not undrain_wanted(self._drain_state(present), token):
                return
            self._store.set_drain("", self._clock.now())
        for number in self._store.ids():
            self._start_if_waiting(number)

    def _drain_state(self, reason: str) -> NodeState:
        return NodeState(self._node, NodeClass.DRAINED if reason else NodeClass.AVAILABLE, reason=reason)

    def _check_node(self, name: NodeName) -> None:
        if name != self._node:
            raise NotFound(f"the local scheduler has no node {name!r}", where=f"its one node is {self._node}")

    def _numbered(
        self, number: JobId, job: dict[str, Any], given: Sequence[SbatchOption], header: Sequence[SbatchOption]
    ) -> dict[str, Any]:
        """What depends on the job's number: where it writes, and Slurm's variables."""
        values = PatternValues(job_id=number, name=job["name"], user=job["owner"], node=self._node)
        stdout, stderr = batch_paths(given, header, job["work_dir"], values)
        tasks = job["ntasks"] or (job["ntasks_per_node"] or 1) * job["num_nodes"]
        variables = {
            "SLURM_CLUSTER_NAME": self._cluster,
            "SLURM_CPUS_ON_NODE": str(os.cpu_count() or 1),
            "SLURM_JOB_CPUS_PER_NODE": str(os.cpu_count() or 1),
            "SLURM_JOB_ID": number,
            "SLURM_JOBID": number,
            "SLURM_JOB_NAME": job["name"],
            "SLURM_JOB_NODELIST": self._node,
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_JOB_PARTITION": "local",
            "SLURM_JOB_UID": str(job["uid"]),
            "SLURM_JOB_USER": job["owner"],
            "SLURM_NNODES": "1",
            "SLURM_NODEID": "0",
            "SLURM_NODELIST": self._node,
            "SLURM_NPROCS": str(tasks),
            "SLURM_NTASKS": str(tasks),
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURM_SUBMIT_DIR": job["submit_dir"],
            "SLURM_SUBMIT_HOST": self._node,
            "SLURMD_NODENAME": self._node,
        }
        if job["ntasks_per_node"]:
            variables["SLURM_NTASKS_PER_NODE"] = str(job["ntasks_per_node"])
        if job["gpus_per_node"]:
            variables["SLURM_GPUS_ON_NODE"] = str(job["gpus_per_node"])
        return {"stdout": stdout, "stderr": stderr, "ntasks": tasks, "slurm_variables": variables}

    def _start_if_waiting(self, job: JobId) -> None:
        """Start a job that was stored but has no supervisor yet. Two that try at once start it once."""
        facts = self._store.read(job, "job")
        if not facts.get("complete") or self._store.drain_reason() or self._store.read(job, "cancel"):
            return
        folder = self._store.path(job)
        if (folder / "started.json").exists() or (folder / "ended.json").exists() or self._store.supervised(job):
            return
        # It needs this package and the standard library, and no more of what is installed: a job starts in a moment.
        environment = {**os.environ, "PYTHONPATH": str(Path(supervisor.__file__).parents[3])}
        argv = (sys.executable, "-S", "-P", supervisor.__file__, str(folder))
        done = run(Command(argv, env=environment, cwd="/"), _START_TIMEOUT_S)
        if done.exit_code != 0:
            raise Unavailable(
                f"the job's supervisor could not be started: {done.error_text()[-300:]}",
                where=f"job {job}",
                next_step="try again",
            )

    def _end(self, job: JobId, state: str, reason: str) -> None:
        end = {"end_s": self._clock.now(), "state": state, "exit_code": 0, "signal": int(signal.SIGTERM)}
        self._store.write(job, "ended", {**end, "reason": reason})

    def _record(self, job: JobId) -> JobRecord:
        facts = self._store.read(job, "job")
        state, started, ended, reason = self._store.state(job)
        if not facts.get("complete"):
            state, reason = JobState("UNKNOWN", JobClass.UNKNOWN), "its submission was interrupted; it never started"
        exit_code, signal_number = ended.get("exit_code"), ended.get("signal")
        nodes = (self._node,) if started else ()
        step = StepRecord(f"{job}.batch", state, exit_code, signal_number, None, nodes)
        return JobRecord(
            id=job,
            cluster=self._cluster,
            name=str(facts.get("name", "")),
            owner=UserName(str(facts.get("owner", ""))),
            state=state,
            uid=facts.get("uid"),
            gid=facts.get("gid"),
            exit_code=exit_code,
            signal=signal_number,
            derived_exit_code=exit_code,
            reason=reason,
            nodes=nodes,
            num_nodes=1,
            num_tasks=facts.get("ntasks"),
            gpus_per_node=facts.get("gpus_per_node"),
            memory_limit_bytes_per_node=facts.get("memory_bytes"),
            submit_time_s=facts.get("submit_s"),
            start_time_s=started.get("start_s"),
            end_time_s=ended.get("end_s"),
            time_limit_s=facts.get("time_limit_s"),
            work_dir=str(facts.get("work_dir", "")),
            stdout_path=str(facts.get("stdout", "")),
            stderr_path=str(facts.get("stderr", "")),
            command=str(facts.get("command", "")),
            submit_line=str(facts.get("submit_line", "")),
            comment=str(facts.get("comment", "")),
            partition="local",
            requeueable=False,
            steps=(step,) if started else (),
            source="local",
        )
