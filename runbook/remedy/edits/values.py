"""Edits of single values that keep no batch: token budgets, shares of the card, degrees, buffers, lists, stages of a
pipeline.
"""

from __future__ import annotations

import posixpath
import re
from decimal import Decimal

from runbook.model.diagnosis import Detail
from runbook.model.program import ConstantPlace, ProgramConstant
from runbook.model.remedy import AnswerKind
from runbook.model.sentences.of_levers import Say
from runbook.model.template import Setting
from runbook.model.units import GIB, MIB
from runbook.remedy.constraints.sizes import longest_sequence
from runbook.remedy.edits.parameter_edit import Edits, edit_of
from runbook.remedy.lever_context import Arguments, LeverContext, no_default, product_of, texts_of, unknown_parameter
from runbook.remedy.lever_document import Parameter
from runbook.remedy.roles import role_of
from runbook.remedy.template_settings import Refused, not_known, ranks_not_known, unknown


def lower_budget(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Half of a token budget, held at `times` the longest sequence (`longest`, divided by `degree`) while it is above
    that, and at the longest sequence itself below. `absent` is the value to write where nothing is set; a parameter
    that is not set has the value of the parameter `like`, if that is given.

    The documentation of verl advises twice the longest sequence; the program needs it once."""
    spelling = context.template.spelling(parameter.id)
    present = context.template.number(parameter.id)
    longest = longest_sequence(context, arguments)
    degree = product_of(context, texts_of(arguments, "degree"), unset_is_one=True)
    if present is None and "like" in arguments:
        present = context.template.number(str(arguments["like"]))
    hard = max(-(-longest // degree), parameter.floor or 1)
    soft = hard * int(str(arguments.get("times", 1)))
    if present is None:
        if "absent" not in arguments:
            raise unknown_parameter(context, parameter.id)
        return edit_of(context, parameter, str(max(int(str(arguments["absent"])), soft)))
    new = max(present // 2, soft if present > soft else hard)
    if new >= present:
        raise Refused(Say.LONGEST_SEQUENCE_HAS_TO_FIT(spelling=spelling, present=present, longest=longest))
    made = edit_of(context, parameter, str(new))
    return Edits(made.edits, (Say.TOKENS_OF_MICRO_BATCH_FALL_TO(new=new, present=present),))


def shift(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """A decimal number changed by the argument `by`, between `lowest` and `highest`."""
    spelling = context.template.spelling(parameter.id)
    present = context.template.decimal(parameter.id)
    if present is None:
        raise no_default(spelling)
    by = Decimal(str(arguments["by"]))
    new = present + by
    if "lowest" in arguments:
        new = max(new, Decimal(str(arguments["lowest"])))
    if "highest" in arguments:
        new = min(new, Decimal(str(arguments["highest"])))
    if (by < 0 and new >= present) or (by > 0 and new <= present):
        raise Refused(Say.FAR_AS_IT_GOES(spelling=spelling, present=present))
    return edit_of(context, parameter, _plain(new))


def halve_number(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Half of a number of which nothing has to be a multiple (a buffer, a limit on requests), not below the
    parameter's floor. `absent` is the value to write where nothing, or null, is set and no default is known; a
    parameter that is not set has the value of the parameter `like`, if that is given."""
    spelling = context.template.spelling(parameter.id)
    written = context.template.text(parameter.id)
    absent = isinstance(written, str) and written.lower() in ("null", "none")
    present = None if absent else context.template.decimal(parameter.id)
    if present is None and "like" in arguments:
        present = context.template.decimal(str(arguments["like"]))
    if present is None:
        if "absent" not in arguments:
            raise unknown_parameter(context, parameter.id)
        return edit_of(context, parameter, str(arguments["absent"]))
    if present <= 0:
        raise Refused(Say.OFF_OR_LEFT_TO_PROGRAM(spelling=spelling, present=present))
    new = max(int(present) // 2, parameter.floor or 1)
    if new >= present:
        raise Refused(Say.SMALL_AS_IT_GETS(spelling=spelling, present=present))
    return edit_of(context, parameter, str(new))


def next_below(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """The largest of `values` below the present one; the first of them where the present one is `off`. `absent` is the
    value to write where nothing is set and no default is known."""
    spelling = context.template.spelling(parameter.id)
    present = context.template.decimal(parameter.id)
    values = [Decimal(item) for item in texts_of(arguments, "values")]
    if present is None and "absent" in arguments:
        return edit_of(context, parameter, str(arguments["absent"]))
    if present is None:
        raise unknown_parameter(context, parameter.id)
    off = "off" in arguments and present == Decimal(str(arguments["off"]))
    new = next((item for item in values if off or item < present), None)
    if new is None:
        raise Refused(Say.SMALL_AS_IT_GETS(spelling=spelling, present=present))
    return edit_of(context, parameter, _plain(new))


def double(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Twice a number, not above `highest`."""
    spelling = context.template.spelling(parameter.id)
    present = context.template.number(parameter.id)
    if present is None:
        raise unknown_parameter(context, parameter.id)
    if "highest" in arguments and present * 2 > int(str(arguments["highest"])):
        raise Refused(Say.LARGE_AS_IT_GETS(spelling=spelling, present=present))
    return edit_of(context, parameter, str(present * 2))


def follow(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """The same value that an earlier edit gave the parameter named by `as`, where this one is set to a number of its
    own (DeepSpeed's JSON beside the trainer's arguments); nothing where it is absent or "auto". With `referring`, only
    where it refers to that parameter (`ref.size: ${actor.size}`) and so changes with it."""
    new = context.changed.get(str(arguments["as"]))
    setting = context.template.setting(parameter.id)
    referred = setting.references if setting is not None and "referring" in arguments else None
    if referred is not None and context.template.spelling(str(arguments["as"])) not in referred:
        return Edits(())
    if new is None or setting is None or setting.value == "auto":
        return Edits(())
    if setting.value is None and _is_taken_from(setting, context.template.setting(str(arguments["as"]))):
        return Edits((), (Say.FOLLOWS_IN_FILE(spelling=setting.spelling, file=setting.file, line=setting.line),))
    if setting.value is None:
        raise not_known(setting, Say.WHAT_IS_IT_HAS_TO_AGREE(spelling=setting.spelling))
    return Edits(()) if setting.value == new else edit_of(context, parameter, new)


def _is_taken_from(setting: Setting, other: Setting | None) -> bool:
    """Whether the program's code gives it the option's own value: `config["size"] = args.size`."""
    if other is None or setting.unresolved is None or not setting.file.endswith(".py"):
        return False
    name = other.spelling.lstrip("-").replace("-", "_")
    return re.fullmatch(rf"\w+\.{re.escape(name)}", setting.unresolved.code) is not None


def keep_product(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Raised by exactly the factor by which an earlier edit lowered the parameter named by `with`. Refused where that
    is no whole number."""
    other = str(arguments["with"])
    before, new = context.template.number(other), context.changed.get(other)
    present = context.template.number(parameter.id)
    if present is None or new is None or before is None:
        raise unknown_parameter(context, parameter.id)
    if present * before % int(new):
        raise Refused(
            Say.PRODUCT_NOT_WHOLE(
                spelling=context.template.spelling(parameter.id), present=present, before=before, new=new
            )
        )
    return edit_of(context, parameter, str(present * before // int(new)))


def multiply_as(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Multiplied by the factor by which an earlier edit raised the parameter named by `as`; nothing where it is not
    set, for its default follows in the program."""
    other = str(arguments["as"])
    if not context.template.is_set(parameter.id):
        return Edits(())
    before, new = context.template.number(other), context.changed.get(other)
    present = context.template.number(parameter.id)
    if present is None or new is None or before is None:
        return Edits(())
    if int(new) * present % before:
        raise Refused(
            Say.MULTIPLE_NOT_WHOLE(
                spelling=context.template.spelling(parameter.id), present=present, new=new, before=before
            )
        )
    return edit_of(context, parameter, str(present * int(new) // before))


def halve_list(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """A list of sizes without those above half of the largest; `absent` is the list to write where there is none."""
    spelling = context.template.spelling(parameter.id)
    text = context.template.text(parameter.id)
    if text is None or text.lower() in ("null", "none"):
        if "absent" not in arguments:
            raise Refused(Say.NOT_IN_TEMPLATE(spelling=spelling), Say.WHICH_SIZES_HAS_IT(spelling=spelling))
        return edit_of(context, parameter, str(arguments["absent"]))
    matched = re.fullmatch(r"\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\]", text)
    if matched is None:
        raise Refused(Say.NOT_LIST_OF_NUMBERS(spelling=spelling, text=text))
    sizes = [int(item) for item in re.findall(r"\d+", text)]
    kept = [item for item in sizes if item * 2 <= max(sizes)]
    if not kept:
        raise Refused(Say.NO_SMALLER_SIZE_TO_KEEP(spelling=spelling))
    separator = ", " if ", " in text else ","
    return edit_of(context, parameter, f"[{separator.join(str(item) for item in kept)}]")


def drop_from_list(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """A list without the item `value`."""
    spelling = context.template.spelling(parameter.id)
    text = context.template.text(parameter.id)
    value = str(arguments["value"])
    if text is None or value not in re.findall(r"[\w.-]+", text):
        raise Refused(Say.DOES_NOT_LIST(spelling=spelling, value=value))
    item = rf"""["']?{re.escape(value)}["']?"""
    new = re.sub(rf"""\s*,\s*{item}(?=\s*[,\]])|(?<=\[)\s*{item}\s*(?:,\s*|(?=\]))""", "", text, count=1)
    if new == text or new.replace(" ", "") == "[]":
        raise Refused(Say.ITEM_CANNOT_BE_TAKEN_OUT(spelling=spelling, text=text, value=value))
    return edit_of(context, parameter, new)


def move_parallelism(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Half of one letter's degree to another's in a string such as "sglang:d4" or "sglang:d4+d2t2" (AReaL): the GPUs
    stay the same. `part` is a pattern for the engine with its colon; `give` and `take` are the letters."""
    spelling = context.template.spelling(parameter.id)
    text = context.template.text(parameter.id)
    if text is None:
        raise Refused(Say.NOT_IN_TEMPLATE(spelling=spelling), Say.WHAT_IS(spelling=spelling))
    give, take = str(arguments["give"]), str(arguments["take"])
    matched = re.search(rf"(?:^|\+)({arguments['part']})((?:[a-z]\d{{1,5}})+)(?=$|\+)", text)
    if matched is None:
        raise Refused(Say.DEGREES_DO_NOT_STAND_ALONE(spelling=spelling, text=text))
    degrees = dict(re.findall(r"([a-z])(\d+)", matched[2]))
    present = int(degrees.get(give, "1"))
    if present % 2:
        raise Refused(Say.DEGREE_CANNOT_BE_HALVED(spelling=spelling, text=text, give=give, present=present))
    degrees[give] = str(present // 2)
    degrees[take] = str(int(degrees.get(take, "1")) * 2)
    letters = "".join(f"{letter}{degree}" for letter, degree in degrees.items())
    return edit_of(context, parameter, text[: matched.start(2)] + letters + text[matched.end(2) :])


def _plain(number: Decimal) -> str:
    """0.8, 4096: without exponent or trailing zeros."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def fewer_edge_layers(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Fewer layers for the stage of `parameter` (the first or the last), as many as the stages in between can share
    evenly.

    `layers` and `stages` name the parameters with the number of layers and of pipeline stages, `other` the one with
    the layers of the other edge. Without either edge's number the layers are divided evenly (Megatron-LM,
    get_num_layers_to_build: what the edges leave must divide by the stages that are left).

    `edge` is `first` or `last`: where the failed rank is known, it has to be there. By default stages are the outermost
    order of Megatron's ranks; with the parameter `unless` they are not, and nothing is concluded."""
    layers, stages, other = (
        context.template.number(str(arguments[name])) for name in ("layers", "stages", "other")
    )
    present = context.template.number(parameter.id)
    if layers is None or stages is None:
        spelling = context.template.spelling(str(arguments["layers" if layers is None else "stages"]))
        raise Refused(Say.NOT_IN_TEMPLATE(spelling=spelling), Say.WHAT_IS_WRITE_IT(spelling=spelling))
    if stages == 1:
        raise Refused(Say.ONE_PIPELINE_STAGE())
    _failed_at_the_edge(context, stages, arguments)
    inner = stages - 1 - (other is not None)
    if not inner:
        raise Refused(Say.BOTH_EDGES_HAVE_THEIR_LAYERS(stages=stages))
    if present is None:
        if other is not None:
            present = (layers - other) // (inner + 1)
        elif layers % stages:
            raise Refused(Say.LAYERS_DO_NOT_DIVIDE_AMONG_STAGES(layers=layers, stages=stages))
        else:
            present = layers // stages
    rest = layers - (other or 0)
    new = next((count for count in range(present - 1, 0, -1) if (rest - count) % inner == 0), None)
    if new is None:
        raise Refused(Say.NO_NUMBER_OF_LAYERS_FITS(present=present, inner=inner))
    made = edit_of(context, parameter, str(new))
    return Edits(made.edits, (Say.LAYERS_ON_OTHER_STAGES(layers=(rest - new) // inner, inner=inner),))


def _failed_at_the_edge(context: LeverContext, stages: int, arguments: Arguments) -> None:
    """Refused where the failed rank is known to be on another stage than the edge."""
    cause, world = context.story.root_cause, context.world_size
    if context.template.is_set(str(arguments["unless"])):
        return
    if cause is None or cause.rank is None or not world or world % stages:
        return
    stage = cause.rank // (world // stages)
    if stage == (0 if arguments["edge"] == "first" else stages - 1):
        return
    raise Refused(Say.RANK_NOT_AT_THE_EDGE(rank=cause.rank, stage=stage + 1, stages=stages, edge=arguments["edge"]))


def set_value(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Set to the argument `value`."""
    value = str(arguments["value"])
    present = context.template.text(parameter.id)
    if present is not None and (present == value or present.lower() == value.lower() in ("true", "false")):
        raise Refused(Say.IS_ALREADY(spelling=context.template.spelling(parameter.id), value=value))
    return edit_of(context, parameter, value)


def ask_for_its_name(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Refused with the question how the program calls the parameter; the argument `what` says what it is. Where a
    number has such a name in a configuration file of the program, in its own text or in what it printed, that is asked
    of, with one of the role `beside` that keeps the product. With `only_named`, nothing is asked where none has."""
    what, template, word = str(arguments["what"]), context.template, context.template.unresolved_argument
    program, read = template.program(), {posixpath.basename(file.path) for file in template.code()}
    training = [item for item in template.started if "train" in item] or template.started
    absent = next((item for item in training if posixpath.basename(item) not in read), "")
    complete = training and not absent and (program is None or program.complete)
    if (unread := template.unread) is not None and ConstantPlace.CONFIGURATION not in {
        item.place for item in template.constants()
    }:
        raise Refused(Say.WHAT_SETS_IT_NOT_KNOWN(what=what, why=unread.why), unread.question, unread.reason, unread.ask)
    _ask_for_a_number(context, parameter, arguments, "" if complete else word)
    if arguments.get("only_named"):
        raise Refused(Say.NOTHING_READ_HAS_THE_NAME(what=what))
    if word and not complete:
        raise unknown(
            Say.OPTION_MAY_STAND_IN_WORD(what=what, word=word),
            Say.WHAT_IS_WORD_AND_WHICH_OPTION(word=word, what=what), AnswerKind.OPTION, "NAME"
        )
    if absent:
        raise unknown(
            Say.PROGRAM_NOT_HERE(absent=absent), Say.WHERE_DOES_PROGRAM_LIE(absent=absent, what=what),
            AnswerKind.OPTION, "NAME"
        )
    if complete:
        takes = Say.READS_NO_COMMAND_LINE() if program is None else Say.HAS_NO_OPTION_FOR(what=what)
        raise Refused(Say.OWN_TEXT_NOT_EDITED(training=training[0], takes=takes), Say.WHICH_FILE_SETS_IT(what=what))
    raise unknown(Say.OPTION_NOT_KNOWN(what=what), Say.WHICH_OPTION_SETS_IT(what=what), AnswerKind.OPTION, "NAME")


_MOST_PLACES = 3


def _ask_for_a_number(context: LeverContext, parameter: Parameter, arguments: Arguments, word: str) -> None:
    """Refused with the places that give the parameter's role a number above its floor, and what a person may set there.
    `word`: one of the command that is not known and may say otherwise."""
    found = numbers_of(context, parameter.id, str(arguments.get("or", "")))
    if not found:
        return
    what, first = str(arguments["what"]), found[0]
    printed = first.place is ConstantPlace.LOG
    says = "prints" if printed else "sets"
    places = ", ".join(f"{place_of(item)} {says} {item.name} {item.value}" for item in found[:_MOST_PLACES])
    unless = Say.UNLESS_WORD_SAYS_OTHERWISE(word=word) if word and not printed else ""
    if first.value <= (parameter.floor or 1):
        if printed:
            return
        raise Refused(Say.PLACES_SMALL_AS_IT_GETS(places=places, unless=unless))
    half = first.value // 2
    asked = Say.WHICH_SETS_AND_MAY(name=first.name) if printed else "May"
    where = (Say.PLACE_SHOWS if printed else Say.IN_PLACE)(place=place_of(first), value=first.value, unless=unless)
    why = Say.NO_KNOWN_OPTION_SETS_IT(what=what, places=places, unless=unless)
    if arguments.get("alone"):
        alone = arguments["alone"]
        raise Refused(
            why, Say.MAY_PERSON_SET_ALONE(asked=asked, name=first.name, half=half, where=where, alone=alone)
        )
    doubled = numbers_of(context, str(arguments.get("beside", "")))
    if doubled and first.value % 2 == 0:
        other = doubled[0]
        raise Refused(why, Say.MAY_PERSON_SET_BOTH(
            asked=asked, name=first.name, before=first.value, half=half, where=where, other=other.name,
            steps=other.value, twice=other.value * 2, place=place_of(other),
        ))
    raise Refused(why, Say.MAY_PERSON_SET_SMALLER_BATCH(asked=asked, name=first.name, half=half, where=where))


def numbers_of(context: LeverContext, *roles: str) -> list[ProgramConstant]:
    """The numbers whose name fits the first of the roles best that any has, of the nearest place: a configuration
    before the program's own text, and that before what was printed."""
    known, spelt = context.template.constants(), context.template.system.roles
    for role in filter(None, roles):
        for place in ConstantPlace:
            fits = [
                (fit[1], item) for item in known if item.place is place
                and (fit := role_of(spelt, f"{item.within}.{item.name}".lstrip("."))) is not None and fit[0] == role
            ]
            best = min((fit for fit, _ in fits), default=0)
            alike = [item for fit, item in fits if fit == best]
            if alike:
                return [item for item in alike if item.file == alike[0].file]
    return []


def place_of(item: ProgramConstant) -> str:
    return f"{posixpath.basename(item.file)}:{item.line}"


def raise_memory(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Twice the main memory that the job has on a node, by the option that asks for it, within what the scheduler says
    that a job can have there. Refused where not the job's own limit was reached."""
    spelling, limit = context.template.spelling(parameter.id), context.job.memory_limit_bytes_per_node
    present = context.template.text(parameter.id)
    if context.detail is Detail.NODE:
        raise Refused(Say.WHOLE_NODE_RAN_OUT())
    if limit is None:
        raise Refused(Say.MEMORY_OF_JOB_NOT_KNOWN())
    if context.memory_to_have is None:
        raise Refused(Say.MEMORY_TO_HAVE_NOT_KNOWN(limit=limit))
    new = min(2 * limit, context.memory_to_have)
    if new * 10 <= limit * 11:
        raise Refused(Say.NO_MORE_MEMORY_TO_HAVE(limit=limit, new=new))
    found = re.fullmatch(r"(\d{1,9})([KMGT]?)(?:i?B)?", present or "", re.IGNORECASE)
    if present is None:
        return edit_of(context, parameter, f"{new // MIB}M")
    if found is None or not int(found[1]):
        raise Refused(Say.NO_SIZE_TO_BE_RAISED(spelling=spelling, present=present))
    size = int(found[1]) * {"K": 1 << 10, "": MIB, "M": MIB, "G": GIB, "T": 1 << 40}[found[2].upper()]
    times = 1 if parameter.id == str(arguments["of_a_node"]) else max(1, round(limit / size))
    if abs(size * times - limit) * 50 > limit:
        raise Refused(Say.SOMETHING_ELSE_SET_ITS_LIMIT(spelling=spelling, present=present, limit=limit))
    return edit_of(context, parameter, f"{new // times // MIB}M")


_SWITCHES = {"false": "true", "0": "1", "no": "yes", "off": "on"}
"""What a program's own switch is set to, by what it is."""


def switch_on(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """A switch of a program of its own, written as the present value is (`False` → `True`, `0` → `1`). Refused where it
    is on, or is no switch but a choice, or is not known to be off."""
    spelling = context.template.spelling(parameter.id)
    present = context.template.text(parameter.id)
    if present is None:
        raise Refused(Say.WHETHER_ON_BY_DEFAULT_NOT_KNOWN(spelling=spelling), Say.IS_IT_ON(spelling=spelling))
    new = _SWITCHES.get(present.lower())
    if new is None:
        raise Refused(Say.IS(spelling=spelling, value=present))
    if parameter.type != "flag" and (present[:1].isupper() or not context.template.is_set(parameter.id)):
        new = new.capitalize()
    return edit_of(context, parameter, new)


def switch_off(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """The same the other way: `True` → `False`; of a flag, the flag taken out. Refused where it is off, or on by
    default of a program that has no other word for it than the flag."""
    spelling = context.template.spelling(parameter.id)
    present = context.template.text(parameter.id)
    if present is None:
        raise Refused(Say.NOT_IN_TEMPLATE(spelling=spelling))
    new = next((word for word, other in _SWITCHES.items() if other == present.lower()), None)
    if new is None:
        raise Refused(Say.IS(spelling=spelling, value=present))
    if parameter.type == "flag":
        if not context.template.is_set(parameter.id):
            raise Refused(Say.FLAG_CANNOT_SWITCH_OFF(spelling=spelling))
        return edit_of(context, parameter, None)
    return edit_of(context, parameter, new.capitalize() if present[:1].isupper() else new)


def also_set(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """As `set`, for the second of a pair: nothing to do where it has the value already."""
    present = context.template.text(parameter.id)
    value = str(arguments["value"])
    if present is not None and context.template.is_set(parameter.id) and present.lower() == value.lower():
        return Edits(())
    return edit_of(context, parameter, value)


def next_in(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """The next of the parameter's `allowed` values, which go from most memory to least; with the argument `only`,
    that one if it comes next or later."""
    present = context.template.text(parameter.id)
    spelling = parameter.spellings[0]
    if present is None:
        raise no_default(spelling)
    if present not in parameter.allowed:
        raise Refused(Say.NONE_OF_ALLOWED(spelling=spelling, present=present, allowed=parameter.allowed))
    later = parameter.allowed[parameter.allowed.index(present) + 1 :]
    wanted = str(arguments.get("only", later[0] if later else ""))
    if wanted not in later:
        raise Refused(Say.IS_ALREADY(spelling=spelling, value=present))
    return edit_of(context, parameter, wanted)


def next_divisor_of_world(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """The next larger degree that divides the number of ranks."""
    world = context.world_size
    spelling = parameter.spellings[0]
    if world is None:
        raise ranks_not_known()
    present = context.template.number(parameter.id)
    if present is None:
        raise Refused(Say.SHARING_RANKS_NOT_KNOWN(spelling=spelling))
    if world % present:
        raise Refused(Say.DEGREE_DOES_NOT_DIVIDE_RANKS(spelling=spelling, present=present, world=world))
    larger = next((degree for degree in range(present + 1, world + 1) if world % degree == 0), None)
    if larger is None:
        raise Refused(Say.ALL_RANKS_SHARE_ALREADY(spelling=spelling, present=present, world=world))
    return edit_of(context, parameter, str(larger))


def remove(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Take the parameter out; nothing where it is not set."""
    setting = context.template.setting(parameter.id)
    if setting is None:
        return Edits(())
    if setting.value is None:
        raise not_known(setting)
    return edit_of(context, parameter, None)
