"""Constraints on what settings say: versions, the engine that is chosen, which of them stand beside one another."""

from __future__ import annotations

import re
from decimal import Decimal
from posixpath import basename

from runbook.model.remedy import AnswerKind
from runbook.model.sentences import NOTHING, as_written
from runbook.model.sentences.of_levers import Say
from runbook.remedy.lever_context import Arguments, LeverContext, refusal_of, text_of, texts_of
from runbook.remedy.template_settings import Refused, unknown, version_asked


def in_release(context: LeverContext, arguments: Arguments) -> None:
    """Every version that the template can be for is one of `versions`; a person is asked where some are and some are
    not. `why` says what differs."""
    wanted = set(texts_of(arguments, "versions"))
    possible = [item.id for item in context.template.releases]
    title, why = context.template.system.title, str(arguments["why"])
    if possible and set(possible) <= wanted:
        return
    if possible and not wanted & set(possible):
        raise Refused(Say.THIS_IS_ANOTHER_VERSION(why=why, title=title, possible=possible))
    raise unknown(
        Say.VERSION_DOES_NOT_SHOW(why=why, title=title),
        Say.WHICH_OF_THE_VERSIONS(title=title, versions=tuple(item.id for item in context.template.system.versions)),
        *version_asked(context.template.system)
    )


def in_release_when_resumed(context: LeverContext, arguments: Arguments) -> None:
    """As `in_release`, where the job can go on from a checkpoint: what `why` says happens only then. `question` is
    asked where the version is not known, or is another."""
    if context.checkpoints == ():
        return
    unmet = refusal_of(lambda: in_release(context, arguments))
    if unmet is not None:
        raise Refused(unmet.why, as_written(arguments["question"]), unmet.reason, unmet.ask)


def asked_in_release(context: LeverContext, arguments: Arguments) -> None:
    """A person is asked `question` where every version that the template can be for is one of `versions`; where another
    is possible, nothing is asked. `why` says what these versions do."""
    possible = {item.id for item in context.template.releases}
    if not possible or not possible <= set(texts_of(arguments, "versions")):
        return
    raise Refused(as_written(arguments["why"]), as_written(arguments["question"]))


def in_release_beside(context: LeverContext, arguments: Arguments) -> None:
    """As `in_release`, where one of `beside` is set and `unless` is not: for an option whose default differs."""
    named = any(context.template.is_set(name) for name in texts_of(arguments, "beside"))
    if not named or context.template.is_set(text_of(arguments, "unless")):
        return
    in_release(context, arguments)


def chosen(context: LeverContext, arguments: Arguments) -> None:
    """A parameter has one of `values`. Where it is not set, the configuration that is chosen says it: the first set of
    the parameters `by`, with one of `names` (of `others`, it says something else); a person is asked about another
    name. Where none is set, the program's default holds."""
    parameter = text_of(arguments, "parameter")
    values = {item.lower() for item in texts_of(arguments, "values")}
    spelling = context.template.spelling(parameter)
    wanted = " or ".join(texts_of(arguments, "values"))
    if not context.template.is_set(parameter):
        for name in texts_of(arguments, "by"):
            if not context.template.is_set(name):
                continue
            text = context.template.text(name)
            shown = f"{context.template.spelling(name)} {text}"
            stem = (text or "").rsplit("/", 1)[-1].removesuffix(".yaml").lower()
            if stem in {item.lower() for item in texts_of(arguments, "names")}:
                return
            if stem in {item.lower() for item in texts_of(arguments, "others")}:
                raise Refused(Say.CHOICE_MAKES_SOMETHING_ELSE(shown=shown, spelling=spelling, wanted=wanted))
            raise unknown(
                Say.CHOICE_NOT_KNOWN(shown=shown, spelling=spelling),
                Say.DOES_CHOICE_HAVE(shown=shown, spelling=spelling, wanted=wanted), AnswerKind.VALUE, parameter,
                texts_of(arguments, "values")
            )
    text = context.template.text(parameter)
    if text is None:
        raise Refused(Say.NOT_IN_TEMPLATE(spelling=spelling), Say.IS_IT(spelling=spelling, wanted=wanted))
    if text.lower() in values:
        return
    raise Refused(Say.HAS_TO_BE(spelling=spelling, text=text, wanted=wanted))


def text_matches(context: LeverContext, arguments: Arguments) -> None:
    """The first of `parameters` that is set matches `pattern`; `means` says in words what that says."""
    for parameter in texts_of(arguments, "parameters"):
        if not context.template.is_set(parameter):
            continue
        text = context.template.text(parameter)
        if text and text.lower() not in ("null", "none"):
            if re.search(str(arguments["pattern"]), text):
                return
            raise Refused(
                Say.IS_NOT_WHAT_IS_MEANT(
                    spelling=context.template.spelling(parameter), text=text, means=arguments["means"]
                )
            )
    first = context.template.system.parameter(text_of(arguments, "parameters")).spellings[0]
    raise Refused(Say.NOT_IN_TEMPLATE(spelling=first), Say.IS_IT(spelling=first, wanted=arguments["means"]))


def text_lacks(context: LeverContext, arguments: Arguments) -> None:
    """No value of `parameters` matches `pattern`; `why` says what it would do."""
    for parameter in texts_of(arguments, "parameters"):
        text = context.template.text(parameter)
        if text is not None and re.search(str(arguments["pattern"]), text):
            raise Refused(
                Say.IS_SET_AND_SO(spelling=context.template.spelling(parameter), text=text, why=arguments["why"])
            )
    return


def alike_or_auto(context: LeverContext, arguments: Arguments) -> None:
    """What is set for `parameters` is the same everywhere, but for "auto", which follows in the program. The first
    counts with its default.

    The trainer refuses to start with a configuration of DeepSpeed that says something else
    (transformers/integrations/deepspeed.py, trainer_config_process)."""
    texts = {}
    first, *others = texts_of(arguments, "parameters")
    if not any(context.template.is_set(item) for item in others):
        return
    for at, parameter in enumerate((first, *others)):
        if at and not context.template.is_set(parameter):
            continue
        text = context.template.text(parameter)
        if text is not None and text != "auto":
            texts[context.template.spelling(parameter), parameter] = text
    if len(set(texts.values())) < 2:
        return
    shown = ", ".join(f"{spelling} {text}" for (spelling, _), text in texts.items())
    raise Refused(Say.OWN_NUMBERS_DO_NOT_AGREE(shown=shown), Say.WHICH_NUMBER_HOLDS())


def any_stands(context: LeverContext, arguments: Arguments) -> None:
    """At least one of `parameters` stands in the template, whatever it says: a default shows nothing. `why` says what
    follows where none does, `question` what would settle it."""
    named = texts_of(arguments, "parameters")
    if any(context.template.is_set(name) for name in named):
        return
    first = context.template.spelling(named[0])
    raise Refused(Say.NO_OPTION_OF_THE_KIND(first=first, why=arguments["why"]), as_written(arguments["question"]))


def same_value(context: LeverContext, arguments: Arguments) -> None:
    """Parameters that the program wants alike (verl's dynamic batching of actor and rollout). Where one is neither set
    nor has a known default, it follows another in the program."""
    texts = {}
    for parameter in texts_of(arguments, "parameters"):
        text = context.template.text(parameter)
        if text is not None:
            texts[parameter] = text.lower() if text.lower() in ("true", "false") else text
    if len(set(texts.values())) < 2:
        return
    shown = ", ".join(f"{context.template.spelling(key)} {text}" for key, text in texts.items())
    raise Refused(Say.HAVE_TO_BE_ALIKE(shown=shown))


def set_together(context: LeverContext, arguments: Arguments) -> None:
    """Flags that must come in pairs: all set, or none."""
    named = texts_of(arguments, "parameters")
    there = [parameter for parameter in named if in_force(context, parameter)]
    if len(there) in (0, len(named)):
        return
    absent = [context.template.spelling(parameter) for parameter in named if parameter not in there]
    raise Refused(
        Say.NEEDS_BESIDE_IT(there=tuple(context.template.spelling(parameter) for parameter in there), absent=absent)
    )


def value_is(context: LeverContext, arguments: Arguments) -> None:
    """A parameter must have one of `values` (`true` and `True` are the same). Where it is not set, it has the value of
    the parameter `like`, if that is given. Where it is not known, a person is asked."""
    parameter = text_of(arguments, "parameter")
    text = context.template.text(parameter)
    if text is None and "like" in arguments:
        text = context.template.text(text_of(arguments, "like"))
    values = texts_of(arguments, "values")
    spelling = context.template.spelling(parameter)
    if text is None:
        raise Refused(Say.NOT_IN_TEMPLATE(spelling=spelling), Say.IS_IT_ONE_OF(spelling=spelling, values=values))
    if text.lower() in {value.lower() for value in values}:
        return
    raise Refused(Say.HAS_TO_BE_ONE_OF(spelling=spelling, text=text, values=values))


def is_set(context: LeverContext, arguments: Arguments) -> None:
    """The parameter must stand in the template. `question` is asked where it does not."""
    parameter = text_of(arguments, "parameter")
    if context.template.is_set(parameter):
        return
    raise Refused(
        Say.NOT_IN_TEMPLATE(spelling=context.template.spelling(parameter)), as_written(arguments.get("question", ""))
    )


def not_set(context: LeverContext, arguments: Arguments) -> None:
    """None of `parameters` may be in force, unless the parameter named by `unless` has one of `values`. `why` and
    `question` are words for the refusal."""
    there = [parameter for parameter in texts_of(arguments, "parameters") if in_force(context, parameter)]
    if not there:
        return
    if "unless" in arguments:
        text = context.template.text(text_of(arguments, "unless"))
        if text is not None and text.lower() in {value.lower() for value in texts_of(arguments, "values")}:
            return
    why = Say.AND_SO(why=arguments["why"]) if "why" in arguments else NOTHING
    shown = ", ".join(context.template.spelling(parameter) for parameter in there)
    open_ones = [item for item in map(context.template.setting, there) if item is not None and item.value is None]
    said = Say.STANDS_THERE_NOT_KNOWN if len(open_ones) == len(there) else Say.IS_SET
    raise Refused(said(shown=shown, why=why), as_written(arguments.get("question", "")))


def at_least(context: LeverContext, arguments: Arguments) -> None:
    """A number must not be below `floor`, nor below the parameter named by `whole`."""
    parameter = text_of(arguments, "parameter")
    number = context.template.decimal(parameter)
    if number is None:
        return
    if "floor" in arguments and number < Decimal(str(arguments["floor"])):
        raise Refused(
            Say.BELOW_FLOOR(spelling=context.template.spelling(parameter), number=number, floor=arguments["floor"])
        )
    if "whole" in arguments:
        other = context.template.decimal(text_of(arguments, "whole"))
        if other is not None and number < other:
            shown = context.template.spelling(text_of(arguments, "whole"))
            raise Refused(
                Say.BELOW_OTHER(spelling=context.template.spelling(parameter), number=number, shown=shown, other=other)
            )
    return


def larger_than(context: LeverContext, arguments: Arguments) -> None:
    """The number of `parameter` is above that of `other`. `why` says what follows where it is not."""
    numbers = []
    for name in ("parameter", "other"):
        number = context.template.decimal(text_of(arguments, name))
        numbers.append(number)
    first, second = numbers
    if first is not None and second is not None and first > second:
        return
    shown, other = (context.template.spelling(text_of(arguments, name)) for name in ("parameter", "other"))
    raise Refused(Say.NOT_ABOVE_OTHER(shown=shown, other=other, why=arguments["why"]))


def stands_as(context: LeverContext, arguments: Arguments) -> None:
    """The template says in plain text that `parameter` is one of `values`. Nobody is asked where it does not: the lever
    is for what is seen there."""
    setting = context.template.setting(text_of(arguments, "parameter"))
    spelling = context.template.spelling(text_of(arguments, "parameter"))
    if setting is None:
        raise Refused(Say.NOT_IN_TEMPLATE(spelling=spelling))
    if setting.value is None:
        raise Refused(Say.NOT_KNOWN_BECAUSE(spelling=spelling, why=setting.unresolved))
    if setting.value.lower() in {item.lower() for item in texts_of(arguments, "values")}:
        return
    raise Refused(Say.IS(spelling=spelling, value=setting.value))


def any_in_force(context: LeverContext, arguments: Arguments) -> None:
    """At least one of `parameters` is set, not to a word for no or to zero. `why` says what follows where none is."""
    named = texts_of(arguments, "parameters")
    for parameter in named:
        setting = context.template.setting(parameter)
        text = setting.value if setting is not None else context.template.default(parameter)
        if (text is None and setting is not None) or (text is not None and not off(text)):
            return
    shown = ", ".join(context.template.spelling(parameter) for parameter in named)
    said = Say.NONE_IS_SET(shown=shown) if len(named) > 1 else Say.NOT_SET(shown=shown)
    raise Refused(Say.SO_IT_FOLLOWS(said=said, why=arguments["why"]))


def not_overridden(context: LeverContext, arguments: Arguments) -> None:
    """No file named by the option `config` sets one of `keys`: its values win over the command line.

    slime and Relax set every key of --custom-config-path over the parsed arguments (slime/utils/arguments.py,
    relax/utils/arguments.py). A file that was not read may set anything, so a person is asked."""
    option = text_of(arguments, "config")
    if not context.template.is_set(option):
        return
    path = context.template.text(option)
    spelling = context.template.spelling(option)
    for parameter in texts_of(arguments, "keys"):
        setting = context.template.setting(parameter)
        if setting is not None:
            shown = setting.value if setting.value is not None else Say.TO_A_VALUE_NOT_KNOWN()
            raise Refused(
                Say.FILE_WINS_OVER_COMMAND_LINE(spelling=setting.spelling, shown=shown, file=setting.file or spelling),
                Say.MAY_FILE_BE_CHANGED(spelling=setting.spelling, file=setting.file or path)
            )
    if basename(path or "") in {basename(file.path) for file in context.template.templates}:
        return
    keys = " or ".join(context.template.spelling(parameter) for parameter in texts_of(arguments, "keys"))
    raise Refused(Say.WHAT_FILE_SETS_NOT_KNOWN(spelling=spelling, path=path), Say.DOES_FILE_SET(path=path, keys=keys))


def in_force(context: LeverContext, parameter: str) -> bool:
    """Set, and not to a word for no. What was not seen anywhere is not set."""
    setting = context.template.setting(parameter)
    if setting is None or setting.only_possible:
        return False
    return setting.value is None or not off(setting.value)


_NO = frozenset({"false", "none", "null", ""})


def off(text: str) -> bool:
    """A word for no, or a zero however it is written: 0, 0.0, 0.00."""
    lowered = text.strip().lower()
    return lowered in _NO or (lowered.strip("0.") == "" and lowered.count(".") <= 1)


def above_one(context: LeverContext, arguments: Arguments) -> None:
    """The degree named by the argument `parameter` must be larger than one."""
    parameter = str(arguments["parameter"])
    degree = context.template.number(parameter)
    if degree is not None and degree > 1:
        return
    raise Refused(Say.NOT_ABOVE_ONE(spelling=context.template.system.parameter(parameter).spellings[0]))
