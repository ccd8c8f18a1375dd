"""Running one of Slurm's commands: found once, asked with a bare environment, complaints turned into our errors."""

from __future__ import annotations

import os
import random
import shutil
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_exponential, wait_random

from runbook.adapters.clock import SystemClock
from runbook.adapters.identity import LOGIN_PATH, Identity, program_on_path
from runbook.adapters.process import Command, Completed, run
from runbook.errors import BadInput, NotAllowed, NotFound, RunbookError, Unavailable
from runbook.model.job import JobRecord
from runbook.model.units import Bytes, JobId, NodeName, Unknown
from runbook.ports import Clock
from runbook.slurm import controller
from runbook.slurm.accounting import jobs_on_node, on_node_arguments
from runbook.slurm.complaints import Complaint, complaint
from runbook.slurm.controller import Run, read_running, read_words, running_arguments, words_arguments

_QUESTIONS = ("sacct", "sinfo", "squeue")


class Unreached(Unavailable):
    """The request did not reach Slurm: asking again is safe."""


class NoAccounting(RunbookError):
    """This Slurm keeps no accounting."""


class Denied(NotAllowed):
    """Slurm knows us and says no."""


class SlurmCommands:
    """Runs Slurm's commands for one cluster. `bin_dir` empty: found on the PATH; `slurm_conf` empty: Slurm's own."""

    def __init__(
        self,
        *,
        bin_dir: str = "",
        slurm_conf: str = "",
        timeout_s: float = 30.0,
        patience_s: float = 20.0,
        sleep: Callable[[float], None] | None = None,
        ends_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._bin_dir = bin_dir
        self.slurm_conf = slurm_conf or os.environ.get("SLURM_CONF", "")
        self.timeout_s = timeout_s
        self._patience_s = patience_s
        self._sleep = sleep or SystemClock().sleep
        self._found: dict[str, str] = {}
        self.ends_s = ends_s
        """When a command that must not outlive this process' turn has to have ended, by `process.awake_s`."""

    def program(self, name: str) -> str:
        """The command's full path, so that another user's PATH decides nothing."""
        if name not in self._found:
            path = shutil.which(name, path=self._bin_dir) if self._bin_dir else program_on_path(name)
            if path is None:
                raise NotFound(
                    f"Slurm's command `{name}` was not found",
                    where=self._bin_dir or "PATH",
                    next_step="run on a machine with Slurm's client commands, or set their folder in the inventory",
                )
            self._found[name] = str(Path(path).absolute())
        return self._found[name]

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """`base` or a bare environment, with this cluster's configuration."""
        variables = dict(base) if base is not None else {"PATH": LOGIN_PATH, "HOME": "/"}
        if self.slurm_conf:
            variables["SLURM_CONF"] = self.slurm_conf
        return variables

    def ask(self, name: str, arguments: Sequence[str], as_user: Identity | None = None) -> str:
        """Standard output of a command that may be asked again. Retries with growing pauses while Slurm is not reached.

        Raises `NotFound`, `Denied`, `NoAccounting`, `Unavailable`, with Slurm's words."""
        retrying = Retrying(
            retry=retry_if_exception_type(Unreached),
            stop=stop_after_delay(self._patience_s),
            wait=wait_exponential(multiplier=0.5, max=5.0) + wait_random(0, 0.5),
            reraise=True,
            sleep=self._sleep,
            before_sleep=_nothing,
        )
        return retrying(self._ask_once, name, tuple(arguments), as_user)

    def ping(self) -> None:
        """Raises `Unreached` where no controller answers."""
        done = self.run(Command(("scontrol", "ping"), env=self.environment(), asks=True))
        if done.exit_code != 0:
            said = " ".join(done.text().split()) or done.error_text() or f"exit code {done.exit_code}"
            raise Unreached(
                f"Slurm does not answer: {said[:300]}", where="scontrol ping", next_step="see whether slurmctld runs"
            )

    def run(self, command: Command) -> Completed:
        """A command that must not be repeated blindly (sbatch), as it ended. Its first word is the command's name."""
        name, *arguments = command.argv
        return run(replace(command, argv=(self.program(name), *arguments)), self.timeout_s)

    def _ask_once(self, name: str, arguments: tuple[str, ...], as_user: Identity | None) -> str:
        environment = self.environment({"PATH": LOGIN_PATH, "HOME": as_user.home} if as_user else None)
        # Epoch seconds, English messages, and none of the SQUEUE_, SACCT_, SCONTROL_ variables of a user's shell.
        environment.update({"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"})
        asks = name in _QUESTIONS or arguments[:1] in (("show",), ("write",))
        done = self.run(Command((name, *arguments), as_user=as_user, env=environment, asks=asks))
        if done.truncated:
            raise Unavailable(
                f"`{name}` printed more than is read",
                where=" ".join(done.argv)[:200],
                next_step="name a job",
            )
        if done.exit_code != 0:
            raise self.error(done)
        return done.text()

    def error(self, done: Completed) -> RunbookError:
        """The error for a command that ended badly, with Slurm's own words."""
        words = done.error_text() or done.text().strip()
        shown = "; ".join(line.strip() for line in words.splitlines()[-4:])[:600] or f"exit code {done.exit_code}"
        name = Path(done.argv[0]).name
        where = " ".join((name, *done.argv[1:]))
        where = where if len(where) <= 160 else where[:157] + "..."
        match complaint(words):
            case Complaint.NO_SUCH:
                return NotFound(f"Slurm does not know it: {shown}", where=where, next_step="check the id or name")
            case Complaint.DENIED:
                return Denied(
                    f"Slurm refuses: {shown}",
                    where=where,
                    next_step="give this user Slurm's rights (`sacctmgr modify user … set adminlevel=`operator to "
                    "cancel other people's jobs, administrator to drain nodes), or run as the job's owner",
                )
            case Complaint.NO_ACCOUNTING:
                return NoAccounting(f"this Slurm keeps no accounting: {shown}", where=where)
            case Complaint.UNREACHED:
                return Unreached(
                    f"Slurm does not answer: {shown}",
                    where=where,
                    next_step="see whether slurmctld (and slurmdbd) run, then try again",
                )
            case Complaint.LOST:
                return Unavailable(
                    f"Slurm's answer was lost: {shown}",
                    where=where,
                    next_step="look whether it was done, then try again",
                )
            case _:
                return NotAllowed(f"Slurm refuses: {shown}", where=where, next_step="mend what Slurm names")


def _nothing(_: RetryCallState) -> None:
    """tenacity must not log: what happened is in the error that is raised at the end."""


@dataclass(frozen=True)
class SlurmOnNode:
    """Calls raise `Unavailable` while Slurm does not answer, and `NoAccounting`."""

    commands: SlurmCommands
    clock: Clock

    def __call__(self, node: NodeName, at_s: float) -> tuple[JobId, ...]:
        """The jobs that had the node, under its short name where it is given with a domain."""
        separator = new_separator()
        for name in dict.fromkeys((node, NodeName(node.partition(".")[0]))):
            text = self.commands.ask("sacct", on_node_arguments(name, self.clock.now() - at_s, separator))
            if found := jobs_on_node(text, name, at_s, separator):
                return found
        return ()


_OWNERS_A_LIST = 50


@dataclass
class SlurmRunning:
    """Every job that runs, as the controller lists it. Calls raise `Unavailable` while Slurm does not answer."""

    commands: SlurmCommands
    with_words: bool
    """Whether accounts and comments are wanted: both are asked for owner by owner, once for each new job."""
    _words: dict[Run, tuple[str, str]] = field(default_factory=dict, init=False)
    _unanswered: set[int] = field(default_factory=set, init=False)
    """Owners of whose jobs they could not be had: the last to be asked the next time."""

    def __call__(self) -> tuple[JobRecord | Unknown, ...]:
        """Id, owner, state, partition and time of submission, account and comment where they are wanted. Unknown: what
        of the list could not be read."""
        separator = new_separator()
        jobs, strange = read_running(self.commands.ask("squeue", running_arguments(separator)), separator)
        problems = [Unknown(f"rows of squeue's list of running jobs that are of none: {strange}")] if strange else []
        if self.with_words:
            problems += self._ask_owners({(job.id, job.submit_time_s): job for job in jobs})
            said = [self._words.get((job.id, job.submit_time_s), ("", "")) for job in jobs]
            jobs = [
                replace(job, account=account, comment=comment)
                for job, (account, comment) in zip(jobs, said, strict=True)
            ]
        return (*jobs, *problems)

    def _ask_owners(self, runs: Mapping[Run, JobRecord]) -> list[Unknown]:
        """Of whom a job is new. Nobody else's are missed for one whose answer is too long to be read."""
        self._words = {run: said for run, said in self._words.items() if run in runs}
        owners = dict.fromkeys(job.uid for run, job in runs.items() if run not in self._words and job.uid is not None)
        for uid in sorted(owners, key=self._unanswered.__contains__)[:_OWNERS_A_LIST]:
            separator = new_separator()
            try:
                told = read_words(self.commands.ask("squeue", words_arguments(uid, separator)), separator)
            except RunbookError as error:
                self._unanswered.add(uid)
                return [Unknown(f"accounts and comments of user {uid}'s running jobs: {error.what}")]
            self._unanswered.discard(uid)
            self._words.update((run, said) for run, said in told.items() if run in runs and runs[run].uid == uid)
        return []


def new_separator() -> str:
    """What no job's name or comment can hold, as it was not known before."""
    return "~" + "".join(_RANDOM.choice(string.ascii_lowercase) for _ in range(20)) + "~"


_RANDOM = random.SystemRandom()


def memory_to_have(commands: SlurmCommands, job: JobRecord) -> Bytes | None:
    """As the port has it, by two questions to the controller."""
    if not job.nodes or not job.partition or job.partition.startswith("-"):
        return None
    nodes = commands.ask("scontrol", controller.node_memory_arguments(job.nodes))
    partition = commands.ask("scontrol", controller.partition_arguments(job.partition))
    return controller.read_memory_to_have(nodes, partition, len(job.nodes))


_JOB_LETTERS = frozenset(string.digits + "_+")
_NODE_LETTERS = frozenset(string.ascii_letters + string.digits + "_.-")


def checked_job(job: JobId) -> JobId:
    if not job or not set(job) <= _JOB_LETTERS or not job[0].isdecimal():
        raise BadInput(f"not a Slurm job id: {job!r}", next_step="give a number, 123_4 for an array task, or 123+1")
    return job


def checked_node(name: NodeName) -> NodeName:
    if not name or not set(name) <= _NODE_LETTERS or name.startswith("-"):
        raise NotFound(f"not a node name: {name!r}", next_step="give a name as `sinfo -N` prints it")
    return name


def both(first: RunbookError, second: RunbookError) -> NotAllowed:
    return NotAllowed(f"{first.what}; as the owner: {second.what}", where=first.where, next_step=first.next_step)
