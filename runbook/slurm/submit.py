"""How a job is submitted again: sbatch's arguments from the original submit line less what the plan changes.

Pure: the adapter runs the command as the owner, from the job's working directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbook.errors import BadInput, NotAllowed
from runbook.host_lists import expand_hosts, fold_hosts
from runbook.model.job import MARK, JobRecord, Submission
from runbook.model.units import NodeName
from runbook.slurm.fields import exported
from runbook.slurm.sbatch_options import (
    SbatchOption,
    SubmitLine,
    header_options,
    last_value,
    parse_arguments,
    parse_submit_line,
)

#: Options that do not go into a second submission, and what a person should know about each.
_LEFT_OUT = {
    "dependency": "the original's --dependency is not repeated: the jobs it waited for belong to the first submission",
    "begin": "the original's --begin is not repeated",
    "clusters": "the original's --clusters is not repeated: the relaunch goes to the cluster that ran the original",
    "deadline": "the original's --deadline is not repeated",
    "hold": "the original was submitted held; the relaunch is not",
    "uid": "--uid is not repeated: the relaunch runs as the job's owner",
    "gid": "--gid is not repeated: the relaunch runs as the job's owner",
}
_SILENTLY_LEFT_OUT = frozenset({"wrap", "wait", "parsable", "quiet", "verbose", "test-only", "help",
    "usage", "version",
})  # fmt: skip
_OURS = frozenset({"comment", "chdir", "job-name"})
#: What a task that is submitted alone sees otherwise (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES").
_OF_ALL_TASKS = ("SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP")

#: Variables that sbatch reads as options (sbatch(1), "INPUT ENVIRONMENT VARIABLES"). They rank below its command line
#: and above `#SBATCH` lines, so an option on the command line says the same.
_VARIABLE_OPTIONS = {
    "SBATCH_ACCOUNT": "account", "SBATCH_ACCTG_FREQ": "acctg-freq", "SBATCH_BATCH": "batch",
    "SBATCH_CLUSTERS": "clusters", "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_CONTAINER": "container", "SBATCH_CORE_SPEC": "core-spec", "SBATCH_CPU_FREQ_REQ": "cpu-freq",
    "SBATCH_CPUS_PER_GPU": "cpus-per-gpu", "SBATCH_DISTRIBUTION": "distribution", "SBATCH_ERROR": "error",
    "SBATCH_EXPORT": "export", "SBATCH_GPU_BIND": "gpu-bind", "SBATCH_GPU_FREQ": "gpu-freq", "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node", "SBATCH_GPUS_PER_TASK": "gpus-per-task", "SBATCH_GRES": "gres",
    "SBATCH_GRES_FLAGS": "gres-flags", "SBATCH_HINT": "hint", "SBATCH_INPUT": "input",
    "SBATCH_MEM_BIND": "mem-bind", "SBATCH_MEM_PER_CPU": "mem-per-cpu", "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem", "SBATCH_NETWORK": "network", "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_OUTPUT": "output", "SBATCH_PARTITION": "partition", "SBATCH_POWER": "power",
    "SBATCH_PROFILE": "profile", "SBATCH_QOS": "qos", "SBATCH_RESERVATION": "reservation",
    "SBATCH_SIGNAL": "signal", "SBATCH_THREADS_PER_CORE": "threads-per-core", "SBATCH_TIMELIMIT": "time",
    "SBATCH_WCKEY": "wckey",
}  # fmt: skip
_VARIABLE_FLAGS = {
    "SBATCH_EXCLUSIVE": "exclusive", "SBATCH_NO_KILL": "no-kill", "SBATCH_OVERCOMMIT": "overcommit",
    "SBATCH_REQUEUE": "requeue", "SBATCH_NO_REQUEUE": "no-requeue", "SBATCH_SPREAD_JOB": "spread-job",
    "SBATCH_USE_MIN_NODES": "use-min-nodes",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SbatchCommand:
    """What to run, and what a person should know about how it differs from the first submission."""

    argv: tuple[str, ...]
    notes: tuple[str, ...] = ()


def sbatch_command(
    submission: Submission, original: JobRecord, *, sbatch: str = "sbatch", wrapped: str = ""
) -> SbatchCommand:
    """The command that submits `submission.script_path` with the original's options.

    Options of `submission.options` replace the original's of the same name; excluded nodes are merged and taken out of
    `--nodelist`. Script arguments are the submission's, or else the original's. `wrapped` is the text behind `--wrap`.
    A task of an array becomes an array of that one index. Raises `NotAllowed` where `check_relaunchable` does, and
    `BadInput` for a submit line that cannot be read."""
    check_relaunchable(original, wrapped)
    notes: list[str] = []
    line = _original_line(original, wrapped, notes)
    task = original.array_task
    if task:
        notes.append(
            f"submitted as an array of its own with the one index {task}: SLURM_ARRAY_JOB_ID is another, and "
            "SLURM_ARRAY_TASK_COUNT is 1"
        )
    elif line.has("array"):
        raise _array(original, "a job array is not relaunched as a whole")
    replacing = parse_arguments(submission.options).options
    replaced = {option.name for option in replacing}
    if submission.environment is not None:
        # What it gave the first submission is in the environment that is known.
        replaced |= {"export-file"}
    inherited = [*_variable_options(submission.environment.variables if submission.environment else {}, line)]
    kept: list[SbatchOption] = []
    for option in (*inherited, *line.options):
        if option.name in _LEFT_OUT:
            notes.append(_LEFT_OUT[option.name])
        elif option.name not in replaced | _OURS | _SILENTLY_LEFT_OUT | {"exclude", "nodelist", "array"}:
            kept.append(option)
    kept += [option for option in replacing if option.name not in _OURS | {"exclude", "nodelist"}]
    kept += _node_options((*inherited, *line.options), replacing, notes)
    _note_output(original, kept, notes)
    name = last_value(replacing, "job-name") or original.name
    arguments = submission.script_arguments or line.arguments
    argv = (
        sbatch,
        "--parsable",
        *(option.argument() for option in kept),
        *((f"--array={task}",) if task else ()),
        *((f"--job-name={name}",) if name else ()),
        f"--chdir={submission.work_dir}",
        f"--comment={_comment(submission.claim.token, last_value(replacing, 'comment') or original.comment)}",
        submission.script_path,
        *arguments,
    )
    return SbatchCommand(argv, tuple(dict.fromkeys(notes)))


def options_in_force(original: JobRecord, script: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The options with a value that a job was submitted with, by long name: the command line before sbatch's variables
    before the script's `#SBATCH` lines. Raises `BadInput` for what cannot be read."""
    line = _original_line(original, "", [])
    sources = (*header_options(script), *_variable_options(variables, line), *line.options)
    return {option.name: option.value for option in sources if option.value is not None}


def check_relaunchable(original: JobRecord, script: str) -> None:
    """Raises `NotAllowed` for a component of a heterogeneous job, for several tasks of an array at once, and for a task
    whose script asks how many tasks there are. To be asked before anything is done to the job."""
    if original.array_job_id or "_" in original.id:
        if not original.array_task:
            raise _array(original, "several tasks of a job array are not relaunched at once")
        counted = next((name for name in _OF_ALL_TASKS if name in script), None)
        if counted is not None:
            raise _array(original, f"the script of this task of a job array reads {counted}, which alone it would see "
                         "otherwise")
    if "+" in original.id:
        raise NotAllowed(
            "a component of a heterogeneous job is not relaunched alone",
            where=f"job {original.id}",
            next_step="submit the whole job by hand with the patched script",
        )


def submit_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment for sbatch: the submitter's, without what Slurm itself reads or had put there."""
    return {
        name: value for name, value in variables.items() if not name.startswith(("SBATCH_", "SLURM_", "SLURMD_"))
    }


def environment_file(variables: Mapping[str, str], export: str | None, job_name: str) -> bytes:
    """What sbatch's `--export-file` reads: the variables that `--export` lets through, each ended by a zero byte. b""
    for NONE and NIL, where sbatch takes none.

    Beside such a file sbatch leaves out two variables that it gives every other job (seen on 22.05.8)."""
    if export is not None and export.upper() in ("NONE", "NIL"):
        return b""
    told = {"SLURM_JOB_NAME": job_name} if job_name else {}
    if export is not None and export.upper() != "ALL":
        told["SLURM_EXPORT_ENV"] = export
    return b"".join(
        f"{name}={value}".encode("utf-8", "surrogateescape") + b"\0"
        for name, value in {**exported(dict(variables), export), **told}.items()
        if name and "=" not in name and "\0" not in name + value
    )


def option_in_force(command: SbatchCommand, script: str, name: str) -> str | None:
    """The value of an option that sbatch will follow, from its command line or else from the script's own lines."""
    given = parse_arguments(command.argv[1:]).options
    return last_value(given, name) or last_value(header_options(script), name)


def read_submitted(text: str) -> str | None:
    """The job id in sbatch's `--parsable` answer ("123" or "123;cluster"); site banners before it are skipped. No more
    than a hint: sbatch runs as the owner."""
    for line in reversed(text.strip().splitlines()):
        number = line.strip().partition(";")[0]
        if number.isascii() and number.isdecimal():
            return number
    return None


def _array(original: JobRecord, why: str) -> NotAllowed:
    return NotAllowed(
        why,
        where=f"job {original.id}",
        next_step="submit by hand with the patched script, e.g. `sbatch --array=TASK …`",
    )


def _original_line(original: JobRecord, wrapped: str, notes: list[str]) -> SubmitLine:
    if original.submit_line:
        known = {"job-name": original.name, "comment": original.comment, "chdir": original.work_dir}
        return parse_submit_line(
            original.submit_line, known=known, script=_script_of(original.command), wrapped=wrapped
        )
    notes.append(
        "Slurm did not keep the submit line (no accounting, or not submitted by sbatch): partition, account, QOS, "
        "nodes, tasks and time limit are taken from the job record; other options of its command line are not known"
    )
    return SubmitLine(tuple(_recorded_options(original)))


def _script_of(command: str) -> str:
    """The script's path in `Command=`, which carries the arguments too (joined by spaces) in some versions."""
    return command.partition(" ")[0] if command.startswith("/") else ""


def _recorded_options(original: JobRecord) -> Iterable[SbatchOption]:
    values = {
        "partition": original.partition,
        "account": original.account,
        "qos": original.qos,
        "nodes": str(original.num_nodes or ""),
        "ntasks": str(original.num_tasks or ""),
        "time": str(max(1, int(original.time_limit_s // 60))) if original.time_limit_s else "",
        "gpus-per-node": str(original.gpus_per_node or ""),
    }
    return (SbatchOption(name, value) for name, value in values.items() if value)


def _variable_options(variables: Mapping[str, str], line: SubmitLine) -> Iterable[SbatchOption]:
    for variable, name in _VARIABLE_OPTIONS.items():
        value = variables.get(variable, "")
        if value and not line.has(name):
            yield SbatchOption(name, value)
    for variable, name in _VARIABLE_FLAGS.items():
        if variable in variables and not line.has(name):
            yield SbatchOption(name)


def _node_options(
    original: Iterable[SbatchOption], replacing: Iterable[SbatchOption], notes: list[str]
) -> list[SbatchOption]:
    options = list(original)
    ours = list(replacing)
    excluded: list[NodeName] = []
    for option in (*options, *ours):
        if option.name == "exclude" and option.value:
            if "/" in option.value:
                raise BadInput(
                    "the original names excluded nodes by a file", where=option.argument(),
                    next_step="submit by hand with the patched script",
                )  # fmt: skip
            excluded += expand_hosts(option.value)
    made = [SbatchOption("exclude", fold_hosts(excluded))] if excluded else []
    wanted = last_value(ours, "nodelist") or last_value(options, "nodelist")
    if wanted:
        if "/" in wanted:
            return [*made, SbatchOption("nodelist", wanted)]
        left = [node for node in expand_hosts(wanted) if node not in set(excluded)]
        if left:
            made.append(SbatchOption("nodelist", fold_hosts(left)))
        if set(expand_hosts(wanted)) & set(excluded):
            notes.append("excluded nodes were taken out of the original's --nodelist")
    return made


def _note_output(original: JobRecord, kept: Iterable[SbatchOption], notes: list[str]) -> None:
    options = list(kept)
    for name, path in (("output", original.stdout_path), ("error", original.stderr_path)):
        pattern = last_value(options, name)
        if pattern and not any(mark in pattern for mark in ("%j", "%A", "%J")) and path != "/dev/null":
            if last_value(options, "open-mode") == "append":
                notes.append(f"--{name}={pattern} names one file for every run: the relaunch appends to it")
            else:
                notes.append(f"--{name}={pattern} names one file for every run: the relaunch overwrites it")


def _comment(token: str, original: str) -> str:
    """The token first, then the original's comment, without a token that an earlier relaunch had put there."""
    kept = original
    while kept.startswith(MARK):
        kept = kept.partition(" ")[2]
    return f"{token} {kept}".strip()


def umask_of(submitted: dict[str, str]) -> int:
    """The umask of the first submission, which sbatch hands on to the job (SLURM_UMASK)."""
    text = submitted.get("SLURM_UMASK", "")
    return int(text, 8) & 0o777 if text and set(text) <= set("01234567") and len(text) <= 5 else 0o022
