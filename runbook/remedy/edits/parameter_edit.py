"""What a lever function gives back, and the one way to an edit."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass

from runbook.model.remedy import AnswerKind
from runbook.model.sentences import Sentence
from runbook.model.sentences.of_levers import Say
from runbook.model.template import Edit, Setting, SettingKind, condition_of
from runbook.remedy.lever_context import Arguments, LeverContext
from runbook.remedy.lever_document import Parameter
from runbook.remedy.template_settings import Refused, TemplateSettings, unknown, version_asked, with_prefix


@dataclass(frozen=True, slots=True)
class Edits:
    """Edits of one function, with what a person should know about them."""

    edits: tuple[Edit, ...]
    remarks: tuple[Sentence, ...] = ()


Function = Callable[[LeverContext, Parameter, Arguments], Edits]


def edit_of(context: LeverContext, parameter: Parameter, new: str | None) -> Edits:
    """Set a parameter, in the spelling that the template has; refused where it may not be added."""
    setting = context.template.setting(parameter.id)
    place = _in_the_program(context, parameter, setting)
    if place:
        old = setting.value if setting is not None else None
        key = next((item for item in parameter.spellings if item[:1] not in "-+"), parameter.spellings[0])
        return Edits((Edit(parameter.id, parameter.kind, (condition_of(key)[0],), new, old, by_hand=place),))
    if parameter.also and not _is_taken(context, parameter):
        shown = " or ".join((parameter.spellings[0], *parameter.also))
        raise unknown(
            Say.SEVERAL_OPTIONS_MAY_BE_MEANT(shown=shown), Say.WHICH_OPTION_IS_IT(shown=shown), AnswerKind.OPTION,
            parameter.spellings[0], (parameter.spellings[0], *parameter.also)
        )
    said = {f"{name}=no" for name in (parameter.id, *parameter.spellings)}
    if setting is None and not said.isdisjoint(context.template.answers.options):
        raise Refused(Say.PERSON_SAYS_PROGRAM_DOES_NOT_TAKE(spelling=parameter.spellings[0]))
    if setting is None and not parameter.addable and not _is_taken(context, parameter):
        why = Say.PROGRAM_MAY_NOT_KNOW_IT(spelling=parameter.spellings[0])
        question = Say.DOES_PROGRAM_TAKE(spelling=parameter.spellings[0])
        if parameter.kind is not SettingKind.ARGUMENT:
            raise Refused(why, question)
        raise unknown(why, question, AnswerKind.OPTION, parameter.spellings[0], ("yes", "no"))
    if setting is not None:
        spellings = parameter.spellings_after(setting.spelling)
    else:
        spellings = _spelling_to_write(context.template, parameter)
        spellings = _where_the_batch_is(context, parameter, spellings)
        spellings = _as_the_program_takes_it(context, parameter, spellings)
        spellings = with_prefix(context.template.system, parameter, spellings)
    old = setting.value if setting is not None else None
    told = setting is not None and setting.told
    flag, taken_as = parameter.type == "flag", parameter.taken_as
    return Edits((Edit(parameter.id, parameter.kind, spellings, new, old, flag, told, taken_as),))


def _in_the_program(context: LeverContext, parameter: Parameter, setting: Setting | None) -> str:
    """Where the program's own text sets the parameter, "train.py:45"; where that sets the micro-batch and the program
    reads no command line, a key that it leaves out belongs beside. "" where the template sets it, or can."""
    batch = context.template.system.batch
    if setting is None and batch is not None and parameter.kind is SettingKind.KEY and not parameter.launcher:
        setting = context.template.setting(batch.micro) if context.template.program() is None else None
    if setting is None or not setting.file.endswith(".py"):
        return ""
    return f"{posixpath.basename(setting.file)}:{setting.line}" if setting.line else posixpath.basename(setting.file)


def _is_taken(context: LeverContext, parameter: Parameter) -> bool:
    """Whether a person has said that the program takes the option."""
    return not {parameter.id, *parameter.spellings}.isdisjoint(context.template.answers.options)


def _as_the_program_takes_it(
    context: LeverContext, parameter: Parameter, spellings: tuple[str, ...]
) -> tuple[str, ...]:
    """The spelling first that the program's parser has. Refused where the parser was read and has none, and asked where
    neither it nor the system's own entry point says that there is such an option: a program may end on one that it does
    not know."""
    if not spellings[0].startswith("-") or parameter.launcher or parameter.program or _is_taken(context, parameter):
        return spellings
    if parameter.kind not in (SettingKind.ARGUMENT, SettingKind.KEY):
        return spellings
    program = context.template.program()
    if program is not None and program.options:
        taken = next((item for item in spellings if item.startswith("-") and program.option(item) is not None), None)
        if taken is not None:
            return (taken, *(item for item in spellings if item != taken))
        if program.complete:
            raise Refused(Say.PARSER_HAS_NO_SUCH_OPTION(spelling=spellings[0]))
    if context.template.recognised:
        return spellings
    if program is None and context.template.code():
        raise Refused(Say.NOT_TAKEN_READS_NO_COMMAND_LINE(spelling=spellings[0]))
    raise unknown(
        Say.WHETHER_PROGRAM_TAKES_IT_NOT_KNOWN(spelling=spellings[0]), Say.DOES_PROGRAM_TAKE(spelling=spellings[0]),
        AnswerKind.OPTION, spellings[0], ("yes", "no")
    )


def _where_the_batch_is(
    context: LeverContext, parameter: Parameter, spellings: tuple[str, ...]
) -> tuple[str, ...]:
    """The key in front of the option where the micro-batch is a key of a configuration file: a program that reads all
    of its arguments from a file may take none beside it (transformers, hf_argparser.py)."""
    batch = context.template.system.batch
    micro = context.template.setting(batch.micro) if batch is not None else None
    in_file = micro is not None and micro.file.endswith((".yaml", ".yml", ".json", ".toml"))
    if not in_file or parameter.kind is not SettingKind.KEY or parameter.launcher:
        return spellings
    return tuple(sorted(spellings, key=lambda item: item.startswith("-")))


def _spelling_to_write(template: TemplateSettings, parameter: Parameter) -> tuple[str, ...]:
    """The spellings of a parameter that the template does not set, the one to write first; refused where versions
    differ and which one this is is not known, or where this version does not have it."""
    system, title = template.system, template.system.title
    if not parameter.differs:
        return parameter.spellings
    if system.versions and not template.releases:
        raise unknown(
            Say.SPELLINGS_OF_SEVERAL_VERSIONS(title=title), Say.WHICH_VERSION(title=title), *version_asked(system)
        )
    choices = system.spelt_among(parameter, template.releases)
    if len(choices) > 1:
        spelt = {item.id: system.spelt_in(parameter, item) or "none" for item in template.releases}
        shown = tuple(Say.SPELT_IN(spelt=spelt[item], item=item) for item in sorted(spelt))
        raise unknown(
            Say.SPELLING_DEPENDS_ON_VERSION(id=parameter.id.replace("_", " "), title=title, shown=shown),
            Say.WHICH_VERSION(title=title), *version_asked(system)
        )
    chosen = next(iter(choices), parameter.spellings[0])
    if chosen is None:
        raise Refused(Say.THIS_VERSION_DOES_NOT_HAVE(title=title, spelling=parameter.spellings[0]))
    return parameter.spellings_after(chosen)
