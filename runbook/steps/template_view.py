"""What the launch template says now: the system it belongs to and the parameters in force."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.errors import BadInput
from runbook.model.job import JobEnvironment, JobRecord
from runbook.model.log import LogStory
from runbook.model.template import ParameterNames, Setting, SettingKind, SubmitContext, TemplateFile
from runbook.remedy import LeverDocument, TemplateSettings, recognise
from runbook.remedy.template_settings import unresolved_argument, with_unresolved_batch
from runbook.slurm.sbatch_options import parse_submit_line
from runbook.steps.base import StepContext
from runbook.template import all_settings
from runbook.template import settings_in_force as in_force


def system_of(context: StepContext) -> LeverDocument | None:
    """The lever document whose marks the template and the log carry; None: an unknown framework."""
    story = context.failure.story or LogStory(root_cause=None)
    return recognise(context.incident.templates, story, context.playbook.levers)


def settings_in_force(context: StepContext) -> tuple[Setting, ...]:
    """Every memory parameter that the templates set, with the value in force or why it is not known."""
    system = system_of(context)
    if system is None:
        return ()
    return read_settings(system, context.incident.templates, surroundings(context), context.incident.unread)[0]


def read_settings(
    system: LeverDocument, files: Sequence[TemplateFile], known: SubmitContext, unread: Sequence[str]
) -> tuple[tuple[Setting, ...], str]:
    """Every memory parameter of a system that a job's files set, with the value in force or why it is not known; and
    the first word of the training program that is not known, "" where all are.

    `unread`: sentences on files of the job that could not be read."""
    names, listed = system.parameter_names(), all_settings(files, known)
    found = with_unresolved_batch(in_force(files, names, known), listed, system)
    return _with_unread(found, names, unread), unresolved_argument(listed)


def _with_unread(
    found: tuple[Setting, ...], names: Sequence[ParameterNames], unread: Sequence[str]
) -> tuple[Setting, ...]:
    """The settings, where some of a job's files could not be read: a key that no file sets may stand in one of those,
    so it is not known and no default is taken."""
    if not unread:
        return found
    there = {item.parameter for item in found}
    why = f"it may stand in a file that could not be read: {unread[0]}"
    return (*found, *(
        Setting(name.parameter, name.kind, name.spellings[0], None, unresolved=why)
        for name in names if name.kind is SettingKind.KEY and name.parameter not in there
    ))


def told_of(context: StepContext, known: SubmitContext | None = None) -> TemplateSettings | None:
    """The templates as the rules on checkpoints and restarters look at them; None: an unknown framework. `known`: the
    job's surroundings, where the caller has asked for them already."""
    system = system_of(context)
    if system is None:
        return None
    if known is None:
        known = surroundings(context)
    settings, open_one = read_settings(system, context.incident.templates, known, context.incident.unread)
    job = context.incident.original.job if context.incident.original else context.failure.job
    return TemplateSettings(
        system, settings, context.incident.templates, submit_line=job.submit_line or "",
        work_dir=job.work_dir or "", owner=job.owner, job=context.failure.job.id,
        open_word=open_one,
    )


def parameter_names(context: StepContext) -> tuple[ParameterNames, ...]:
    """What to look for: the parameters of the job's system."""
    system = system_of(context)
    return system.parameter_names() if system is not None else ()


def surroundings(context: StepContext) -> SubmitContext:
    """What the script was submitted with. It is asked for anew in each box: an environment holds secrets, and the
    incident, which is published, must not. To ask may cost a command of Slurm's; within a box it is handed on."""
    job = context.incident.original.job if context.incident.original else context.failure.job
    kept = context.ports.scheduler.environment(job.id)
    environment = None
    if isinstance(kept, JobEnvironment):
        environment = dict(kept.variables)
        # What sbatch itself sets for the script, as far as it does not change from one submission to the next.
        environment.setdefault("SLURM_SUBMIT_DIR", job.work_dir)
        environment.setdefault("SLURM_JOB_NAME", job.name)
    return SubmitContext(environment=environment, arguments=_arguments(job))


def _arguments(job: JobRecord) -> tuple[str, ...] | None:
    if not job.submit_line:
        return None
    try:
        return parse_submit_line(job.submit_line, script=job.command).arguments
    except BadInput:
        return None
