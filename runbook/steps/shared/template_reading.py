"""What the launch template says now: the files that it names, the system that it belongs to, the parameters in
force.

The files that a job's script names (its configuration, the scripts that it runs, the program) are read as the
job's owner and are part of the template: a value may stand in any of them. The owner's files are never written;
of what changes the relaunch gets a copy, and the script's own words are pointed at it.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from runbook.errors import BadInput
from runbook.model.job import JobEnvironment, JobRecord
from runbook.model.log import LogStory
from runbook.model.program import ConstantPlace, ProgramConstant, ProgramOptions
from runbook.model.remedy import Answers
from runbook.model.template import (
    Companion,
    ParameterNames,
    Patch,
    Setting,
    SettingKind,
    SubmitContext,
    TemplateFile,
    Unresolved,
)
from runbook.model.units import JobId, Unknown, name_within
from runbook.program import (
    configurations_opened,
    configurations_said,
    may_be_configuration,
    number_given,
    printed_constants,
    program_constants,
    program_text,
    read_program,
    texts_that_run,
)
from runbook.remedy import (
    LeverDocument,
    OwnProgram,
    StartedJob,
    TemplateSettings,
    in_place_of,
    is_recognised,
    recognise,
    template_settings,
    unresolved_argument,
    with_answers,
    with_unresolved_batch,
)
from runbook.slurm.sbatch_options import parse_submit_line
from runbook.steps.shared.companion_files import HEAD_BYTES, ProgramSources, asked_of_unread, composed_options
from runbook.template import (
    CannotEdit,
    NamedFile,
    all_settings,
    named_files,
    programs_started,
    settings_in_force,
    tied_by,
    wire_copies,
    words_of_files,
)

_CONFIGURATIONS = (".yaml", ".yml", ".toml", ".json", ".py")
_MOST_PROGRAMS = 12
"""Places in which a program of the job is looked for."""


@dataclass(frozen=True)
class TemplateReading:
    """A job's launch template, read once: each part when it is first asked for. A box has it as `context.template`.

    What the script was submitted with is asked for anew in each visit of a box: an environment holds secrets, and the
    incident, which is published, must not. To ask may cost a command of Slurm's."""

    files: tuple[TemplateFile, ...]
    """The script first, then what it names."""
    unread: tuple[str, ...]
    """Sentences on files of the job that could not be read."""
    story: LogStory
    levers: Sequence[LeverDocument]
    submitted: JobRecord
    """The job as its owner submitted it: a relaunch is read with its words."""
    failed: JobId
    """The job that died last."""
    ask_environment: Callable[[], JobEnvironment | Unknown]
    named: LeverDocument | None = None
    """The system, where a person has named it."""
    answers: Answers = Answers()
    """What a person has said beyond the files."""
    sources: ProgramSources | None = None
    """Where the source of the programs is read; None: it is not to be had."""
    log_heads: Callable[[], Sequence[tuple[str, str]]] = lambda: ()
    """Path and beginning of each of the job's logs, where programs print what they were told."""

    @cached_property
    def environment(self) -> JobEnvironment | Unknown:
        """The submitter's environment, or why it was not kept."""
        return self.ask_environment()

    @cached_property
    def submit_context(self) -> SubmitContext:
        """What the script was submitted with."""
        job, environment = self.submitted, None
        if isinstance(self.environment, JobEnvironment):
            environment = dict(self.environment.variables)
            # What sbatch itself sets for the script, as far as it does not change from one submission to the next.
            environment.setdefault("SLURM_SUBMIT_DIR", job.work_dir)
            environment.setdefault("SLURM_JOB_NAME", job.name)
        sourced = {file.path: file.text for file in self.files[1:]}
        # A task of an array is submitted again with its index.
        variables = self.answers.variables | ({"SLURM_ARRAY_TASK_ID": job.array_task} if job.array_task else {})
        return SubmitContext(environment, _arguments(job) or self.answers.arguments, sourced, variables)

    @cached_property
    def system(self) -> LeverDocument | None:
        """The lever document whose marks the template and the log carry; None: an unknown framework."""
        chosen = self.named or recognise(self.files, self.story, self.levers)
        job = self._own_program
        return chosen if chosen is not None and self.named is chosen and not chosen.roles else in_place_of(
            chosen, self.levers, job
        )

    @property
    def _is_recognised(self) -> bool:
        assert self.system is not None
        return is_recognised(self.system, self._own_program, self.story.framework or "")

    @property
    def _own_program(self) -> OwnProgram:
        return OwnProgram(
            tuple(self.files), self.everything, lambda: self.program, self.answers, lambda: self.source_files
        )

    @cached_property
    def program(self) -> ProgramOptions | None:
        """What the training program takes, as its source says; None where that was not had. Of several programs the one
        that takes most of what the commands give."""
        if self.sources is None:
            return None
        given = [item.parameter for item in self.everything if item.kind in (SettingKind.ARGUMENT, SettingKind.KEY)]
        best: tuple[int, ProgramOptions] | None = None
        for path in self.programs:
            options = read_program(path, self.sources.source_of, search=self._searched(path))
            hits = sum(options.option(name) is not None for name in given) if options is not None else 0
            if options is not None and (best is None or hits > best[0]):
                best = hits, options
        return self._with_configured(best[1]) if best is not None else None

    def _with_configured(self, options: ProgramOptions) -> ProgramOptions:
        """The options with what the program's configuration says of them: Hydra's, whose keys are options and whose
        groups the command may choose, and a file of Python that the command names to a program which takes its own
        variables as options (nanoGPT's `config/x.py`)."""
        assert self.sources is not None
        sources = self.sources.apart()
        chosen = {item.parameter: item.value for item in self.everything if item.kind is SettingKind.KEY and item.value}
        given = {item.parameter: item.value for item in self.everything if item.kind is SettingKind.ARGUMENT}
        if options.config and not given.keys() & {"--config-path", "-cp"}:
            name = given.get("--config-name", given.get("-cn", posixpath.basename(options.config[0]))) or ""
            path = posixpath.join(posixpath.dirname(options.config[0]), name)
            path = path if path.endswith((".yaml", ".yml")) else f"{path}.yaml"
            keys = [item for item in composed_options(sources, path, chosen) if options.option(item.names[0]) is None]
            return replace(options, options=(*options.options, *keys))
        if any(item.joined and item.default is None for item in options.options):
            words = [word for file in self.files for word in words_of_files(file, self.submit_context)]
            files = filter(None, (self._configuration(sources, word) for word in words if word.endswith(".py")))
            said = {item.name: str(item.value) for file in files for item in _numbers_of(file) if not item.within}
            filled = [
                replace(item, default=said.get(item.dest)) if item.joined and item.default is None else item
                for item in options.options
            ]
            return replace(options, options=tuple(filled))
        return options

    @cached_property
    def started(self) -> tuple[NamedFile, ...]:
        """The programs that the scripts start, with the paths where each may lie."""
        return tuple(named for file in self.files for named in programs_started(file, self.submit_context))

    @cached_property
    def programs(self) -> tuple[str, ...]:
        """Where those lie that are there."""
        if self.sources is None:
            return ()
        return tuple(dict.fromkeys(filter(None, map(self.sources.path_of, self.started[:_MOST_PROGRAMS]))))[:4]

    def _searched(self, path: str) -> tuple[str, ...]:
        """In which folders a program's imports are looked for."""
        assert self.sources is not None
        started = self.sources.reader.started_folders
        return tuple(dict.fromkeys((posixpath.dirname(path), *started, self.submitted.work_dir or "/")))

    @cached_property
    def source_files(self) -> tuple[TemplateFile, ...]:
        """The programs with what they import of their own: what is in them may say what a lever does."""
        if self.sources is None:
            return ()
        read = {
            name: text for path in self.programs
            for name, text in program_text(path, self.sources.source_of, search=self._searched(path))
        }
        return tuple(TemplateFile(name, text) for name, text in read.items())

    @cached_property
    def _constants(self) -> tuple[ProgramConstant, ...]:
        """Numbers of configuration files that the program opens, then of its own text, then of what it printed."""
        files = [(file.path, file.text) for file in self.source_files]
        opened = [item for file in self._opened for item in _numbers_of(file)]
        printed = [item for path, text in self._log_heads for item in printed_constants(path, text)]
        return (*opened, *program_constants(files, self._options_told, self.programs), *printed)

    @cached_property
    def _options_told(self) -> Mapping[str, bool | float | str]:
        """By their names in the program: the options that have one value in every command that starts it, and that no
        code sets again."""
        options = () if self.program is None or unresolved_argument(self.everything) else self.program.options
        texts = [file.text for file in self.source_files]
        if any(_SETS_ANY_OPTION.search(text) for text in texts):
            return {}
        again = {name for text in texts for name in _SETS_AN_OPTION.findall(text)}
        times = Counter(item.dest for item in options)
        given: dict[str, list[Setting]] = {}
        for item in self.everything:
            if item.kind is SettingKind.ARGUMENT:
                given.setdefault(item.parameter, []).append(item)
        told: dict[str, bool | float | str] = {}
        for option in options:
            found = [item for name in option.names for item in given.get(name, [])]
            if option.negation or option.conditional or times[option.dest] != 1 or option.dest in again:
                continue
            said = option.flag_value if found and option.type == "flag" else found[0].value if found else option.default
            alike = len({item.value for item in found}) < 2 or option.type == "flag"
            if said is not None and alike and (value := _told(option.type, said)) is not None:
                told[option.dest] = value
        return told

    @cached_property
    def _running_files(self) -> tuple[TemplateFile, ...]:
        """`source_files` without what the program's options leave out, and what nothing leads to."""
        files = [(file.path, file.text) for file in self.source_files]
        named = [file.text for file in (*self.files, *self._opened) if not file.path.endswith(".py")]
        return tuple(TemplateFile(*item) for item in texts_that_run(files, self._options_told, self.programs, named))

    @cached_property
    def _log_heads(self) -> Sequence[tuple[str, str]]:
        return self.log_heads()

    @cached_property
    def _opened(self) -> tuple[TemplateFile, ...]:
        """Configuration files that the program reads without being told to in a way that the template shows: those that
        words of its command name, those that its log speaks of, the defaults of its options, those in its own text. Of
        these the first that any of is there."""
        if self.sources is None:
            return ()
        program = self.program
        entries = [file.text for file in self.source_files if file.path in self.programs]
        heads = [path for _, text in self._log_heads for path in configurations_said(text)]
        defaults = [item.default or "" for item in program.options] if program is not None else []
        for paths in (
            [
                word for file in self.files for word in words_of_files(file, self.submit_context)
                if may_be_configuration(word)
            ],
            heads,
            [*(program.config if program is not None else ()), *defaults],
            [path for text in entries for path in configurations_opened(text)],
        ):
            named = [path for path in dict.fromkeys(paths) if path.endswith(_CONFIGURATIONS)][:_MOST_PROGRAMS]
            sources = self.sources.apart()
            found = tuple(filter(None, (self._configuration(sources, path) for path in named)))
            if found:
                return found
        return ()

    def _configuration(self, sources: ProgramSources, path: str) -> TemplateFile | None:
        """A configuration file that is not the program itself; None where it is not to be had."""
        beside = [] if posixpath.isabs(path) else [posixpath.dirname(program) for program in self.programs]
        where = next(filter(None, (
            sources.path_of(NamedFile("", posixpath.join(folder, path), 1, program=True)) for folder in ("", *beside)
        )), None)
        data = sources.source_of(where) if where is not None and where not in self.programs else None
        return TemplateFile(where, data.decode("utf-8", "replace")) if where is not None and data is not None else None

    @cached_property
    def parameter_names(self) -> tuple[ParameterNames, ...]:
        """What to look for: the parameters of the job's system."""
        return self.system.parameter_names() if self.system is not None else ()

    @cached_property
    def everything(self) -> tuple[Setting, ...]:
        """All that the files set, known parameters and others."""
        return all_settings(self.files, self.submit_context)

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Every memory parameter that the files set, with the value in force or why it is not known. A key that no file
        sets may stand in a configuration that could not be read, so it is not known and no default is taken."""
        if self.system is None:
            return ()
        found = settings_in_force(self.files, self.parameter_names, self.submit_context)
        found = with_answers(with_unresolved_batch(found, self.everything, self.system), self.answers, self.system)
        found = self._as_the_log_shows(found)
        unread = self._unread_options if self.unread else frozenset()
        if not unread:
            return found
        there = {item.parameter for item in found}
        beside = unread <= set(self.system.side_files)
        why = Unresolved(f"it may stand in a file that could not be read: {self.unread[0]}")
        return (*found, *(
            Setting(name.parameter, name.kind, name.spellings[0], None, unresolved=why)
            for name in self.parameter_names
            if name.kind is SettingKind.KEY and name.parameter not in there
            and not (beside and name.training_program and any(item.startswith("-") for item in name.spellings))
        ))

    def _as_the_log_shows(self, found: Sequence[Setting]) -> tuple[Setting, ...]:
        """The options of the batch whose value the script leaves to what it was given (`$1`, a loop over its options),
        with the number that the failed job's own log, read whole, shows the one program's command with."""
        batch = self.system.batch if self.system is not None else None
        wanted = (batch.micro, batch.accumulation, batch.total) if batch is not None else ()
        started, told = {posixpath.basename(one.path or "") for one in self.started}, []
        for item in found:
            if item.value is None and item.parameter in wanted and item.spelling.startswith("-") and len(started) == 1:
                option = self.program.option(item.spelling) if self.program is not None else None
                spellings = option.names if option is not None else (item.spelling,)
                shown = {
                    given[0]: f"{posixpath.basename(path)}:{given[1]}" for path, text in self._log_heads
                    if len(text) < HEAD_BYTES and (given := number_given(text, started, spellings)) is not None
                }
                for value, place in shown.items() if len(shown) == 1 else ():
                    item = replace(item, value=str(value), unresolved=None, told=True, trail=(*item.trail, place))
            told.append(item)
        return tuple(told)

    @property
    def _unread_options(self) -> frozenset[str]:
        """The options that name a configuration which was not read, "" for one that stands without an option. What a
        script that is sourced sets reaches the program by variables alone, and these are known or not by themselves."""
        read = {file.path for file in self.files}
        return frozenset(
            named.option for file in self.files for named in named_files(file, self.submit_context)
            if not named.program and not named.sourced and not {named.path, posixpath.normpath(named.likely)} & read
            and (named.option or named.script or not named.likely)
        )

    @property
    def values(self) -> dict[str, str]:
        """The settings whose value is known."""
        return {setting.parameter: setting.value for setting in self.settings if setting.value is not None}

    @property
    def local_processes(self) -> int:
        """The processes that the script starts on each node, by Slurm's tasks or the launcher's own number; 0 where
        neither is known."""
        job = self.submitted
        numbers = [(job.num_tasks or 0) // max(job.num_nodes or len(job.nodes), 1)]
        if self.system is not None:
            names = (self.system.world.per_node,)
            numbers += [
                int(value) for name in names for value in [self.values.get(name, "")]
                if value.isdecimal() and len(value) < 6
            ]
        per_node = {"--ntasks-per-node", "--nproc_per_node", "--nproc-per-node"}
        numbers += [
            int(item.value) for item in self.everything
            if item.parameter in per_node and item.value is not None and item.value.isdecimal() and len(item.value) < 6
        ]
        return max(numbers)

    @cached_property
    def told(self) -> TemplateSettings | None:
        """As the rules on checkpoints and restarters look at it; None: an unknown framework."""
        if self.system is None:
            return None
        job = self.submitted
        started = StartedJob(self.failed, job.owner, job.work_dir or "", job.submit_line or "")
        unresolved = unresolved_argument(self.everything)
        told = template_settings(self.system, self.settings, self.files, started, unresolved, self.answers)
        started_files = dict.fromkeys(
            item.path for item in self.started
            if item.path is not None and not (item.option and re.search(r"^src/|/__main__\.py$", item.path))
        )
        return replace(
            told, program=lambda: self.program, code=lambda: self._running_files, constants=lambda: self._constants,
            started=tuple(started_files), unread=asked_of_unread(self.files, self.submit_context),
            recognised=self.system is self.named or self._is_recognised,
        )


_SETS_AN_OPTION = re.compile(r"\b\w*args?\.(\w+)[ \t]*=(?!=)")
_SETS_ANY_OPTION = re.compile(
    r"setattr\(\s*\w*args?\b|vars\(\s*\w*args?\s*\)(?:\.update|\[)|\bargs?\.__dict__|set_defaults\(\s*\*\*"
)


def _told(kind: str, said: str) -> bool | float | str | None:
    """The value of an option as the program has it; None where its type is not known."""
    if kind in ("flag", "boolean"):
        return said == "true" if said in ("true", "false") else None
    if kind in ("integer", "number"):
        try:
            return float(said)
        except ValueError:
            return None
    return said if kind in ("text", "choice") else None


def _numbers_of(file: TemplateFile) -> tuple[ProgramConstant, ...]:
    """The whole numbers that a configuration file sets."""
    place = ConstantPlace.CONFIGURATION
    if file.path.endswith(".py"):
        read = program_constants([(file.path, file.text)], {}, (), unread_too=True)
        return tuple(replace(item, place=place) for item in read)
    return tuple(
        ProgramConstant(name, int(item.value), file.path, item.line or 1, within, place)
        for item in all_settings((file,)) if item.value is not None and item.value.isdecimal() and len(item.value) < 13
        for within, _, name in [item.parameter.rpartition(".")]
    )


def _arguments(job: JobRecord) -> tuple[str, ...] | None:
    if not job.submit_line:
        return None
    try:
        return parse_submit_line(job.submit_line, script=job.command).arguments
    except BadInput:
        return None


def copies_of(companions: Sequence[Companion], patch: Patch, folder: str, *, beside: bool) -> dict[str, str]:
    """Where the copies of the files lie that this patch needs beside the script: those that differ from the owner's,
    and those that name one of these. By the path under which they are named.

    `beside`: the person who submits the script puts them into their places, so that one which finds others from its own
    folder may lie in that. Raises `CannotEdit` where a program would have to change: its text is not a launch
    template."""
    changed = _files_to_copy(companions, patch, beside=beside)
    tied = {file.path for file in patch.files if beside and file.path in changed and tied_by(file)[0]}
    if tied:  # Hydra has a search path
        tied -= {item.path for file in patch.files for item in named_files(file) if item.hydra and item.path}
    return {
        path: posixpath.join(posixpath.dirname(path) if path in tied else folder, _copy_name(path, changed))
        for path in changed
    }


def _files_to_copy(companions: Sequence[Companion], patch: Patch, *, beside: bool) -> tuple[str, ...]:
    """The files of a patch beside the script that need a copy, by the path under which they are named: see
    `copies_of`, and for the error too."""
    original = {item.file.path: item for item in companions}
    changed = {file.path for file in patch.files[1:] if file.text != original[file.path].file.text}
    for path in sorted(changed):
        if original[path].program:
            raise CannotEdit(
                f"the value stands in the program {posixpath.basename(path)} itself", where=original[path].named,
                next_step="let the program take it from its command line or a configuration file",
            )
        if original[path].contained and not beside:
            raise CannotEdit(
                f"the value stands in {path}, which is read inside a container ({original[path].contained}): a changed "
                "copy of it elsewhere is not seen in there", where=original[path].named,
                next_step="set it on the command line of the job's script, or change the file and submit the job anew",
            )
    grown = True
    while grown:
        naming = {
            file.path for file in patch.files[1:]
            if file.path not in changed and {item.path for item in named_files(file)} & changed
        }
        grown = bool(naming)
        changed |= naming
    return tuple(sorted(changed))


def submitted_files(patch: Patch, known: SubmitContext) -> tuple[TemplateFile, ...]:
    """The files of a patch as they are submitted: pointed at the copies. Raises `CannotEdit`."""
    if not patch.copies:
        return patch.files
    return wire_copies(patch.files, patch.copies, known).files


def _copy_name(path: str, all_paths: Sequence[str]) -> str:
    """The file's own name with a mark in front, so that it hides no other (Hydra looks names up in several folders);
    and a number where two have the same."""
    name = _short(path)
    same = [item for item in all_paths if _short(item) == name]
    return f"runbook-{name}" if len(same) < 2 else f"runbook-{same.index(path) + 1}-{name}"


def _short(path: str) -> str:
    return name_within(posixpath.basename(path), 150).lstrip(".") or "file"
