"""The Scheduler port over Slurm's own commands (22.05 and later)."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from runbook.adapters.clock import SystemClock
from runbook.adapters.drain_guards import drain_wanted, undrain_wanted
from runbook.adapters.identity import Identity, PrivilegeMode, identity_of, privilege_mode
from runbook.adapters.node_access import read_left
from runbook.adapters.process import Command
from runbook.adapters.process.stages import IN_MEMORY
from runbook.adapters.slurm.commands import (
    Denied,
    NoAccounting,
    SlurmCommands,
    both,
    checked_job,
    checked_node,
    memory_to_have,
    new_separator,
)
from runbook.adapters.whole_file import process_lock
from runbook.errors import NotAllowed, NotFound, RunbookError, Unavailable
from runbook.model.job import (
    Claim,
    Dependent,
    GpuIndices,
    JobClass,
    JobEnvironment,
    JobRecord,
    JobScript,
    NodeState,
    Submission,
)
from runbook.model.units import Bytes, JobId, NodeName, Unknown
from runbook.ports import Clock
from runbook.slurm import accounting, controller
from runbook.slurm.controller import gpu_indices_arguments, index_list, read_gpu_indices
from runbook.slurm.fields import variables
from runbook.slurm.job_record import choose_record, merge_records, with_log_paths, with_submit_line
from runbook.slurm.ownership import carries, check_same_run, same_owner, submitted_under
from runbook.slurm.sbatch_options import wrapped_text
from runbook.slurm.site import CONFIG_ARGUMENTS, read_config
from runbook.slurm.states import starts_by_itself
from runbook.slurm.submit import (
    SbatchCommand,
    check_relaunchable,
    environment_file,
    option_in_force,
    read_submitted,
    sbatch_command,
    submit_environment,
    umask_of,
)

# Which GPUs a job runs on: asked of the controller once for each run of a job, for they stay the same while it runs.
# The controller forgets them as the job ends. Then the node's epilog may have left them: SLURM_JOB_GPUS holds the same
# numbers (seen on 22.05.8).

_MOST_RUNS_KEPT = 256
_MOST_SCRIPT_BYTES = 4 << 20
_SLACK_S = 60.0
"""The nodes' clocks and the controller's."""

Run = tuple[JobId, float | None, int]


class GpuIndicesOfRuns:
    """Adds the indices to records. What the controller said is kept, so that a later record of the same run has them
    too. `left`: the folder where the nodes' epilogs leave files."""

    def __init__(self, commands: SlurmCommands, left: Path | None = None) -> None:
        self._commands = commands
        self._left = left
        self._known: dict[Run, tuple[GpuIndices, ...]] = {}

    def added(self, record: JobRecord) -> JobRecord:
        """The record with its GPUs' indices, as it is where they cannot be told: nothing fails for want of them."""
        run = (record.id, record.start_time_s, record.restarts)
        if run not in self._known:
            if record.state.job_class.ended:
                return replace(record, gpu_indices=self._left_by_epilogs(record))
            settled = record.state.job_class is JobClass.ACTIVE and "CONFIGURING" not in record.state.flags
            if not settled or not record.nodes:
                return record
            try:
                told = read_gpu_indices(self._commands.ask("scontrol", gpu_indices_arguments(record.id)))
            except RunbookError:
                return record
            while len(self._known) >= _MOST_RUNS_KEPT:
                del self._known[next(iter(self._known))]
            self._known[run] = tuple(one for one in told if one.node in record.nodes)
        return replace(record, gpu_indices=self._known[run])

    def _left_by_epilogs(self, record: JobRecord) -> tuple[GpuIndices, ...]:
        """Of the nodes whose epilog left a file for this run: named by job and restart, written since its start. Where
        two clusters left one of the same name, none counts."""
        if self._left is None or record.start_time_s is None:
            return ()
        run = f"-{record.id}-{record.restarts}."
        wanted = {f"{node}.gpus": node for node in record.nodes}
        found: dict[NodeName, GpuIndices | None] = {}
        try:
            with os.scandir(self._left) as entries:
                for entry in entries:
                    node = wanted.get(entry.name.partition(run)[2])
                    if node is None or entry.name.startswith("."):
                        continue
                    fresh = entry.stat(follow_symlinks=False).st_mtime >= record.start_time_s - _SLACK_S
                    indices = index_list((read_left(self._left, Path(entry.path)) or "").strip()) if fresh else None
                    if indices is not None:
                        found[node] = None if node in found else GpuIndices(node, indices)
        except OSError:
            return ()
        return tuple(one for node in record.nodes if (one := found.get(node)) is not None)


_MOST_SCRIPTS_KEPT = 512
_LONGEST_SCRIPT_KEPT = 1 << 16
_HISTORY_DAYS = 30
"""How far back `find_submitted` looks."""
_ACCOUNTING_PATIENCE_S = 5.0
_ORPHAN_PATIENCE_S = 60.0


class SlurmCli:
    """Slurm through squeue, sacct, sinfo, scontrol, scancel and sbatch.

    Jobs are read from the controller and from accounting, whichever has them; without accounting the submit line,
    steps and jobs older than MinJobAge are not known.
    """

    def __init__(
        self,
        commands: SlurmCommands,
        *,
        cluster: str = "",
        clock: Clock | None = None,
        why: str = "",
        locks: Path | None = None,
        left: Path | None = None,
    ) -> None:
        """`locks`: a folder for the locks that keep a submission from being made twice by a resumed process. `left`:
        the folder where the nodes' epilogs leave files."""
        self._locks = locks
        self._commands = commands
        self._cluster = cluster
        self._clock = clock or SystemClock()
        self._why = why
        self._columns: frozenset[str] | None = None
        self._store_flags: frozenset[str] | None = None
        self._gpu_indices = GpuIndicesOfRuns(self._commands, left)
        self._scripts: dict[tuple[JobId, float | None], str] = {}
        self._lock = threading.Lock()

    def describe(self) -> str:
        why = f", {self._why}" if self._why else ""
        return f"Slurm's commands, {self.version()}{why}"

    def version(self) -> str:
        """As `scontrol --version` prints it: "slurm 23.11.4", "slurm-wlm 22.05.8"."""
        return self._commands.ask("scontrol", ("--version",)).strip() or "unknown version"

    def job(self, job: JobId) -> JobRecord:
        controller = self._from_controller(job)
        try:
            kept = self._from_accounting(controller.id if controller else job)
        except NoAccounting:
            kept = None
        record = merge_records(controller, kept)
        if record is None:
            raise NotFound(
                f"Slurm knows no job {job}",
                where=f"squeue and sacct of cluster {self._cluster or '(default)'}",
                next_step="check the id; without accounting Slurm forgets a job minutes after its end",
            )
        record = with_submit_line(replace(record, cluster=self._cluster or record.cluster))
        if controller is None and not record.stdout_path:
            record = with_log_paths(record, self._submitted_text(record))
        if record.state.job_class.ended and record.state.job_class is not JobClass.SUCCEEDED:
            record = replace(record, dependents=tuple(self._dependents(record)))
        return self._gpu_indices.added(record)

    def _submitted_text(self, record: JobRecord) -> str:
        """The script, "" where it is not kept: asked for once for each submission, as nothing changes it after that."""
        submission = (record.id, record.submit_time_s)
        with self._lock:
            if submission in self._scripts:
                return self._scripts[submission]
        script = self.script(record.id)
        if not isinstance(script, JobScript):
            return ""
        if len(script.text) <= _LONGEST_SCRIPT_KEPT and record.submit_time_s is not None:
            with self._lock:
                while len(self._scripts) >= _MOST_SCRIPTS_KEPT:
                    del self._scripts[next(iter(self._scripts))]
                self._scripts[submission] = script.text
        return script.text

    def _dependents(self, record: JobRecord) -> dict[Dependent, str]:
        """As `read_dependents` says; nothing fails for want of them."""
        separator = new_separator()
        try:
            owner = str(record.owner if record.uid is None else record.uid)
            text = self._commands.ask("squeue", controller.dependents_arguments(owner, separator))
        except RunbookError:
            return {}
        return controller.read_dependents(text, record, separator)

    def script(self, job: JobId) -> JobScript | Unknown:
        reasons: list[str] = []
        try:
            text = self._ask_privileged("scontrol", ("write", "batch_script", checked_job(job), "-"), job)
            if text.strip():
                return JobScript(text, "scontrol write batch_script")
        except NotFound:
            reasons.append("the controller no longer has the job")
        except NotAllowed as error:
            reasons.append(error.what)
        try:
            stored = accounting.read_stored_text(self._ask_privileged("sacct", accounting.script_arguments(job), job))
            if stored is not None:
                return JobScript(stored, "sacct -B")
            reasons.append("accounting has no script (AccountingStoreFlags=job_script is not set, or was not then)")
        except (NoAccounting, NotAllowed) as error:
            reasons.append(error.what)
        return Unknown("; ".join(reasons))

    def environment(self, job: JobId) -> JobEnvironment | Unknown:
        try:
            text = self._ask_privileged("sacct", accounting.environment_arguments(checked_job(job)), job)
        except (NoAccounting, NotAllowed) as error:
            return Unknown(error.what)
        stored = accounting.read_stored_text(text)
        deadline_s = self._clock.elapsed() + _ACCOUNTING_PATIENCE_S
        while stored is None and self._may_still_come("job_env", job) and self._clock.elapsed() < deadline_s:
            self._clock.sleep(0.5)
            stored = accounting.read_stored_text(
                self._ask_privileged("sacct", accounting.environment_arguments(job), job)
            )
        if stored is None:
            return Unknown(
                "accounting has no environment (AccountingStoreFlags=job_env is not set, or was not at submission)"
            )
        return JobEnvironment(variables(stored), "sacct --env-vars")

    def command_of(self, submission: Submission, original: JobRecord) -> SbatchCommand:
        """What `submit` would run, with notes on how it differs from the first submission."""
        wrapped = ""
        if "--wrap" in original.submit_line:
            script = self.script(original.id)
            wrapped = wrapped_text(script.text) if isinstance(script, JobScript) else ""
        return sbatch_command(submission, original, sbatch=self._commands.program("sbatch"), wrapped=wrapped)

    def submit(self, submission: Submission, original: JobRecord) -> JobId:
        check_relaunchable(original, "")
        claim = submission.claim
        owner = identity_of(claim.owner)
        if claim.uid is not None and claim.uid != owner.uid:
            raise NotAllowed(
                f"{claim.owner} is user {owner.uid} on this machine and user {claim.uid} for Slurm",
                where=f"job {original.id}",
                next_step="run on a machine that knows the cluster's users",
            )
        command = self.command_of(submission, self._with_submit_line(original))
        words, in_memory = self._words(submission, command, owner)
        kept = submission.environment
        with self._alone(claim.token) as held:
            # Once more, now that no orphan of an earlier process can still be at it.
            before = self.find_submitted(claim)
            if before:
                return before[0]
            done = self._commands.run(
                Command(
                    ("sbatch", *words),
                    # Nothing of the job's own: what a loader or a plugin of sbatch reads is not the owner's to choose.
                    env=self._commands.environment({}),
                    cwd=submission.work_dir,
                    as_user=owner,
                    umask=0o022 if kept is None else umask_of(kept.variables),
                    in_memory=in_memory,
                    hold=held,
                    until_s=self._commands.ends_s(),
                )
            )
        if done.exit_code != 0:
            raise self._commands.error(done)
        job = self._submitted(claim, read_submitted(done.text()))
        if submission.takes_dependents:
            for waits, dependency in self._dependents(original).items():
                if dependency and waits.condition == "afterok":
                    with contextlib.suppress(RunbookError):
                        # Asked for by itself: a list of a user's jobs holds their names, which may hold whole rows.
                        if not same_owner(self._told(waits.id), original.uid, original.owner):
                            continue
                        arguments = controller.dependency_arguments(waits.id, dependency, job)
                        self._ask_privileged("scontrol", arguments, waits.id)
        return job

    def _words(
        self, submission: Submission, command: SbatchCommand, owner: Identity
    ) -> tuple[tuple[str, ...], dict[str, bytes]]:
        """sbatch's arguments, and what it reads from its own memory: the environment that the job is to have, and,
        where the owner is somebody else, the script. The copy stays ours, so that it is what was written."""
        kept = submission.environment
        variables = owner.login_environment() if kept is None else submit_environment(kept.variables)
        script = _own_text(submission.script_path)
        text = script.decode("utf-8", "surrogateescape")
        export, name = (option_in_force(command, text, option) for option in ("export", "job-name"))
        words, in_memory = command.argv[1:], {}
        environment = environment_file(self._commands.environment(variables), export, name or "")
        if environment and not any(word.startswith("--export-file") for word in words):
            named = f"--export-file={IN_MEMORY}"
            # 26.05 takes nothing from the file unless `--export` is said; the earlier ones take the same either way.
            words = (named, *(("--export=ALL",) if export is None else ()), *words)
            in_memory = {named: environment}
        if privilege_mode(owner) is not PrivilegeMode.SAME:
            words = tuple(IN_MEMORY if word == submission.script_path else word for word in words)
            in_memory[IN_MEMORY] = script
        return words, in_memory

    def _submitted(self, claim: Claim, hint: str | None) -> JobId:
        """The job that Slurm itself knows under the claim. `hint`: the number that sbatch printed, if it did."""
        candidates = ((JobId(hint),) if hint is not None else ()) + self.find_submitted(claim)
        for job in dict.fromkeys(candidates):
            with contextlib.suppress(NotFound):
                record = self._told(job)
                if submitted_under(record, claim):
                    # sbatch prints the number of an array, and the job is its task.
                    return record.id
        raise Unavailable(
            f"sbatch named {f'job {hint}' if hint else 'no job'}, and Slurm knows no job of {claim.owner} with this "
            "attempt's comment",
            where="squeue and sacct",
            next_step=f"look for a job with the comment {claim.token!r}",
        )

    def _alone(self, token: str) -> contextlib.AbstractContextManager[int | None]:
        if self._locks is None:
            return contextlib.nullcontext()
        return process_lock(self._locks, token, _ORPHAN_PATIENCE_S)

    def find_submitted(self, claim: Claim) -> tuple[JobId, ...]:
        separator, owner = new_separator(), str(claim.owner if claim.uid is None else claim.uid)
        text = self._commands.ask("squeue", controller.token_arguments(owner, separator))
        found = controller.read_comments(text, separator)
        separator = new_separator()
        try:
            known = self._known_columns()
            since = f"now-{_HISTORY_DAYS}days"
            text = self._commands.ask("sacct", accounting.token_arguments(owner, since, known, separator))
            found += accounting.read_comments(text, known, separator)
        except NoAccounting:
            pass
        matching = sorted({(time_s, job) for job, time_s, comment in found if carries(comment, claim.token)})
        return tuple(dict.fromkeys(job for _, job in matching))

    def cancel(self, job: JobRecord) -> None:
        try:
            check_same_run(self._told(job.id), job)
        except NotFound:
            return
        try:
            self._ask_privileged("scancel", (job.id,), job.id)
        except NotFound:
            return
        except NotAllowed as error:
            # Some versions complain about a job that is over; that is what was wanted.
            if self.job(job.id).state.job_class.ended:
                return
            raise error

    def hold(self, job: JobRecord) -> bool:
        return self._let(job, "uhold", "held", starts_by_itself)

    def release(self, job: JobRecord) -> bool:
        return self._let(job, "release", "released", lambda reason_code: reason_code == "JobHeldUser")

    def _let(self, job: JobRecord, command: str, deed: str, may: Callable[[str], bool]) -> bool:
        """Whether it was done. `uhold`: as its owner might, who can take it back where we do not get to it."""
        with contextlib.suppress(NotFound):
            now = self._told(job.id)
            check_same_run(now, job, deed)
            if now.state.job_class is JobClass.WAITING and may(now.reason_code):
                self._ask_privileged("scontrol", (command, now.id), now.id)
                return deed == "released" or self._told(job.id).state.job_class is JobClass.WAITING
        return False

    def nodes(self, names: Sequence[NodeName] | None = None) -> tuple[NodeState, ...]:
        if names is not None and not [checked_node(name) for name in names]:
            return ()
        separator = new_separator()
        text = self._commands.ask("sinfo", controller.node_arguments(names, separator))
        found = controller.read_nodes(text, separator)
        if names is None:
            return found
        by_name = {node.name: node for node in found}
        for name in names:
            if name not in by_name:
                raise NotFound(f"Slurm knows no node {name!r}", where="sinfo", next_step="check the name")
        return tuple(by_name[name] for name in dict.fromkeys(names))

    def memory_to_have(self, job: JobRecord) -> Bytes | None:
        return memory_to_have(self._commands, job)

    def drain(self, node: NodeName, reason: str) -> None:
        (present,) = self.nodes((node,))
        if drain_wanted(present, reason):
            self._commands.ask("scontrol", controller.drain_arguments(node, reason))

    def undrain(self, node: NodeName, token: str) -> None:
        (present,) = self.nodes((node,))
        if undrain_wanted(present, token):
            self._commands.ask("scontrol", controller.resume_arguments(node))

    def _may_still_come(self, flag: str, job: JobId) -> bool:
        """Whether accounting is only behind: it keeps such text, and the job is fresh enough to be in the controller.

        The row of a job that died quickly was seen half a second before its script and environment."""
        if self._store_flags is None:
            self._store_flags = read_config(self._commands.ask("scontrol", CONFIG_ARGUMENTS)).kept_of_jobs
        return flag in self._store_flags and self._from_controller(job) is not None

    def _with_submit_line(self, original: JobRecord) -> JobRecord:
        """The original with its submit line; accounting may have been behind when the record was read.

        A job that accounting should have and does not have yet is waited for a few seconds and then refused: without
        its submit line it would be submitted with other options."""
        if original.submit_line:
            return original
        try:
            kept = self._from_accounting(original.id)
            deadline_s = self._clock.elapsed() + _ACCOUNTING_PATIENCE_S
            while kept is None and self._clock.elapsed() < deadline_s:
                self._clock.sleep(0.5)
                kept = self._from_accounting(original.id)
        except NoAccounting:
            return original
        if kept is None:
            raise Unavailable(
                f"accounting does not have job {original.id} yet, and so not its submit line",
                where="sacct",
                next_step="try again in a few seconds",
            )
        return replace(original, submit_line=kept.submit_line)

    def _told(self, job: JobId) -> JobRecord:
        """Whose a number is: by the controller, without accounting's word as long as it has the job."""
        record = self._from_controller(job)
        return self.job(job) if record is None else replace(record, cluster=self._cluster or record.cluster)

    def _from_controller(self, job: JobId) -> JobRecord | None:
        separator = new_separator()
        with contextlib.suppress(NotFound):
            text = self._commands.ask("squeue", controller.job_arguments(checked_job(job), separator))
            return choose_record(controller.read_jobs(text, separator), job)
        return None

    def _from_accounting(self, job: JobId) -> JobRecord | None:
        known = self._known_columns()
        separator = new_separator()
        text = self._commands.ask("sacct", accounting.job_arguments(job, known, separator))
        return choose_record(accounting.read_jobs(text, known, separator), job)

    def _known_columns(self) -> frozenset[str]:
        if self._columns is None:
            self._columns = accounting.known_columns(self._commands.ask("sacct", ("--helpformat",)))
        return self._columns

    def _ask_privileged(self, name: str, arguments: Sequence[str], job: JobId) -> str:
        """As ourselves, and where Slurm refuses, as the job's owner."""
        try:
            return self._commands.ask(name, arguments)
        except Denied as denied:
            record = self._from_controller(job) or self._from_accounting(job)
            if record is None:
                raise
            try:
                return self._commands.ask(name, arguments, identity_of(record.owner))
            except NotAllowed as error:
                raise both(denied, error) from error


def _own_text(path: str) -> bytes:
    """A script that this program has written. Slurm itself takes none that is larger (max_script_size)."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            text = stream.read(_MOST_SCRIPT_BYTES + 1)
        if len(text) > _MOST_SCRIPT_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {_MOST_SCRIPT_BYTES >> 20} MiB")
        return text
    except OSError as error:
        raise Unavailable(f"the patched script cannot be read: {error.strerror}", where=path) from error
