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
        raise Refused(f"{spelling} is {present} already, and the longest sequence of {longest} tokens has to fit")
    made = edit_of(context, parameter, str(new))
    return Edits(made.edits, (f"what grows with the tokens of a micro-batch falls to about {new}/{present}",))


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
        raise Refused(f"{spelling} is {present} already, as far as it goes")
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
        raise Refused(f"{spelling} is {present}, which switches it off or leaves it to the program")
    new = max(int(present) // 2, parameter.floor or 1)
    if new >= present:
        raise Refused(f"{spelling} is {present} already, as small as it gets")
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
        raise Refused(f"{spelling} is {present} already, as small as it gets")
    return edit_of(context, parameter, _plain(new))


def double(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Twice a number, not above `highest`."""
    spelling = context.template.spelling(parameter.id)
    present = context.template.number(parameter.id)
    if present is None:
        raise unknown_parameter(context, parameter.id)
    if "highest" in arguments and present * 2 > int(str(arguments["highest"])):
        raise Refused(f"{spelling} is {present} already, as large as it gets")
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
        return Edits((), (f"{setting.spelling} follows in {setting.file}:{setting.line}",))
    if setting.value is None:
        raise not_known(setting, f"What is {setting.spelling}? It has to agree.")
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
        raise Refused(f"{context.template.spelling(parameter.id)} {present} × {before} / {new} is no whole number")
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
        raise Refused(f"{context.template.spelling(parameter.id)} {present} × {new} / {before} is no whole number")
    return edit_of(context, parameter, str(present * int(new) // before))


def halve_list(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """A list of sizes without those above half of the largest; `absent` is the list to write where there is none."""
    spelling = context.template.spelling(parameter.id)
    text = context.template.text(parameter.id)
    if text is None or text.lower() in ("null", "none"):
        if "absent" not in arguments:
            raise Refused(f"{spelling} is not in the template", f"Which sizes does {spelling} have?")
        return edit_of(context, parameter, str(arguments["absent"]))
    matched = re.fullmatch(r"\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\]", text)
    if matched is None:
        raise Refused(f"{spelling} is {text!r}, not a list of numbers")
    sizes = [int(item) for item in re.findall(r"\d+", text)]
    kept = [item for item in sizes if item * 2 <= max(sizes)]
    if not kept:
        raise Refused(f"{spelling} has no smaller size to keep")
    separator = ", " if ", " in text else ","
    return edit_of(context, parameter, f"[{separator.join(str(item) for item in kept)}]")


def drop_from_list(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """A list without the item `value`."""
    spelling = context.template.spelling(parameter.id)
    text = context.template.text(parameter.id)
    value = str(arguments["value"])
    if text is None or value not in re.findall(r"[\w.-]+", text):
        raise Refused(f"{spelling} does not list {value}")
    item = rf"""["']?{re.escape(value)}["']?"""
    new = re.sub(rf"""\s*,\s*{item}(?=\s*[,\]])|(?<=\[)\s*{item}\s*(?:,\s*|(?=\]))""", "", text, count=1)
    if new == text or new.replace(" ", "") == "[]":
        raise Refused(f"{spelling} is {text!r}, from which {value} cannot be taken")
    return edit_of(context, parameter, new)


def move_parallelism(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Half of one letter's degree to another's in a string such as "sglang:d4" or "sglang:d4+d2t2" (AReaL): the GPUs
    stay the same. `part` is a pattern for the engine with its colon; `give` and `take` are the letters."""
    spelling = context.template.spelling(parameter.id)
    text = context.template.text(parameter.id)
    if text is None:
        raise Refused(f"{spelling} is not in the template", f"What is {spelling}?")
    give, take = str(arguments["give"]), str(arguments["take"])
    matched = re.search(rf"(?:^|\+)({arguments['part']})((?:[a-z]\d{{1,5}})+)(?=$|\+)", text)
    if matched is None:
        raise Refused(f"{spelling} is {text!r}, in which the degrees to move do not stand by themselves")
    degrees = dict(re.findall(r"([a-z])(\d+)", matched[2]))
    present = int(degrees.get(give, "1"))
    if present % 2:
        raise Refused(f"{spelling} is {text!r}: {give}{present} cannot be halved")
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
        raise Refused(f"{spelling} is not in the template", f"What is {spelling}? Write it into the template.")
    if stages == 1:
        raise Refused("there is one pipeline stage, so no layers can move to another")
    _failed_at_the_edge(context, stages, arguments)
    inner = stages - 1 - (other is not None)
    if not inner:
        raise Refused(f"both edges of {stages} pipeline stages have their number of layers already")
    if present is None:
        if other is not None:
            present = (layers - other) // (inner + 1)
        elif layers % stages:
            raise Refused(f"{layers} layers do not divide among {stages} pipeline stages: how they lie is not known")
        else:
            present = layers // stages
    rest = layers - (other or 0)
    new = next((count for count in range(present - 1, 0, -1) if (rest - count) % inner == 0), None)
    if new is None:
        raise Refused(f"no number of layers below {present} leaves the same for each of the other {inner} stages")
    made = edit_of(context, parameter, str(new))
    return Edits(made.edits, (f"{(rest - new) // inner} layers on each of the other {inner} stages",))


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
    raise Refused(
        f"rank {cause.rank} failed, which is on pipeline stage {stage + 1} of {stages}, not on the {arguments['edge']}"
    )


def set_value(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Set to the argument `value`."""
    value = str(arguments["value"])
    present = context.template.text(parameter.id)
    if present is not None and (present == value or present.lower() == value.lower() in ("true", "false")):
        raise Refused(f"{context.template.spelling(parameter.id)} is {value} already")
    return edit_of(context, parameter, value)


def ask_for_its_name(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Refused with the question how the program calls the parameter; the argument `what` says what it is. Where a
    number has such a name in a configuration file of the program, in its own text or in what it printed, that is asked
    of, with one of the role `beside` that keeps the product. With `only_named`, nothing is asked where none has."""
    what = str(arguments["what"])
    template, word = context.template, context.template.unresolved_argument
    program, read = template.program(), {posixpath.basename(file.path) for file in template.code()}
    training = [item for item in template.started if "train" in item] or template.started
    absent = next((item for item in training if posixpath.basename(item) not in read), "")
    complete = training and not absent and (program is None or program.complete)
    _ask_for_a_number(context, parameter, arguments, "" if complete else word)
    if arguments.get("only_named"):
        raise Refused(f"nothing that was read has the name of {what}")
    if word and not complete:
        raise unknown(
            f"which option of the program sets {what} may stand in {word}, which is not known",
            f"What is {word} of the training command, and which option there sets {what}?", AnswerKind.OPTION, "NAME",
        )
    if absent:
        raise unknown(
            f"{absent} is not here, so that what it takes is not known",
            f"Where does {absent} lie, and which of its options or files sets {what}?", AnswerKind.OPTION, "NAME",
        )
    if complete:
        takes = "reads no command line" if program is None else f"has no option for {what}"
        raise Refused(
            f"{training[0]} {takes}; what stands in its own text is not edited",
            f"Which file of the program sets {what}, and may a person change it there?",
        )
    raise unknown(
        f"which option of the program sets {what} is not known", f"Which option of the program sets {what}?",
        AnswerKind.OPTION, "NAME",
    )


_MOST_PLACES = 3


def _ask_for_a_number(context: LeverContext, parameter: Parameter, arguments: Arguments, word: str) -> None:
    """Refused with the places that give the parameter's role a number above its floor, and what a person may set there.
    `word`: one of the command that is not known and may say otherwise."""
    found = _numbers_of(context, parameter.id, str(arguments.get("or", "")))
    if not found:
        return
    what, first = str(arguments["what"]), found[0]
    printed = first.place is ConstantPlace.LOG
    says = "prints" if printed else "sets"
    places = ", ".join(f"{_place(item)} {says} {item.name} {item.value}" for item in found[:_MOST_PLACES])
    unless = f", unless {word} of the command says otherwise" if word and not printed else ""
    if first.value <= (parameter.floor or 1):
        if printed:
            return
        raise Refused(f"{places}, as small as it gets{unless}")
    half = first.value // 2
    asked = f"Which option or file sets {first.name}, and may" if printed else "May"
    where = f" ({_place(first)}{unless})" if not printed else f" ({_place(first)} shows {first.value})"
    why = f"no option of the command that is known sets {what}; {places}{unless}"
    if arguments.get("alone"):
        raise Refused(why, f"{asked} a person set {first.name} to {half}{where}? {arguments['alone']}")
    doubled = _numbers_of(context, str(arguments.get("beside", "")))
    if doubled and first.value % 2 == 0:
        other = doubled[0]
        raise Refused(why, (
            f"{asked} a person set {first.name} to {half}{where} and {other.name} to {other.value * 2} "
            f"({_place(other)})? {first.value} × {other.value} = {half} × {other.value * 2}, so the global batch stays."
        ))
    raise Refused(why, (
        f"{asked} a person set {first.name} to {half}{where}? Nothing that was read has the name of an accumulation, "
        "so the global batch would become smaller by the same factor. Or else: can the job have larger GPUs, or more "
        "of them?"
    ))


def _numbers_of(context: LeverContext, *roles: str) -> list[ProgramConstant]:
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


def _place(item: ProgramConstant) -> str:
    return f"{posixpath.basename(item.file)}:{item.line}"


def raise_memory(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Twice the main memory that the job has on a node, by the option that asks for it, within what the scheduler says
    that a job can have there. Refused where not the job's own limit was reached."""
    spelling, limit = context.template.spelling(parameter.id), context.job.memory_limit_bytes_per_node
    present = context.template.text(parameter.id)
    if context.detail is Detail.NODE:
        raise Refused("the whole node ran out, not what the job may have of it")
    if limit is None:
        raise Refused("how much main memory the job had on each node is not known")
    if context.memory_to_have is None:
        raise Refused(f"how much main memory a job can have on a node is not known, and it had {limit / GIB:.1f} GiB")
    new = min(2 * limit, context.memory_to_have)
    if new * 10 <= limit * 11:
        raise Refused(f"the job has {limit / GIB:.1f} GiB on each node, and there are {new / GIB:.1f} GiB to have")
    found = re.fullmatch(r"(\d{1,9})([KMGT]?)(?:i?B)?", present or "", re.IGNORECASE)
    if present is None:
        return edit_of(context, parameter, f"{new // MIB}M")
    if found is None or not int(found[1]):
        raise Refused(f"{spelling} is {present!r}, which is no size to be raised")
    size = int(found[1]) * {"K": 1 << 10, "": MIB, "M": MIB, "G": GIB, "T": 1 << 40}[found[2].upper()]
    times = 1 if parameter.id == str(arguments["of_a_node"]) else max(1, round(limit / size))
    if abs(size * times - limit) * 50 > limit:
        raise Refused(
            f"{spelling} is {present}, and the job had {limit / GIB:.1f} GiB on each node: something else set its limit"
        )
    return edit_of(context, parameter, f"{new // times // MIB}M")


_SWITCHES = {"false": "true", "0": "1", "no": "yes", "off": "on"}
"""What a program's own switch is set to, by what it is."""


def switch_on(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """A switch of a program of its own, written as the present value is (`False` → `True`, `0` → `1`). Refused where it
    is on, or is no switch but a choice, or is not known to be off."""
    spelling = context.template.spelling(parameter.id)
    present = context.template.text(parameter.id)
    if present is None:
        raise Refused(f"whether {spelling} is on where nothing is set is not known", f"Is {spelling} on?")
    new = _SWITCHES.get(present.lower())
    if new is None:
        raise Refused(f"{spelling} is {present}")
    if parameter.type != "flag" and (present[:1].isupper() or not context.template.is_set(parameter.id)):
        new = new.capitalize()
    return edit_of(context, parameter, new)


def switch_off(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """The same the other way: `True` → `False`; of a flag, the flag taken out. Refused where it is off, or on by
    default of a program that has no other word for it than the flag."""
    spelling = context.template.spelling(parameter.id)
    present = context.template.text(parameter.id)
    if present is None:
        raise Refused(f"{spelling} is not in the template")
    new = next((word for word, other in _SWITCHES.items() if other == present.lower()), None)
    if new is None:
        raise Refused(f"{spelling} is {present}")
    if parameter.type == "flag":
        if not context.template.is_set(parameter.id):
            raise Refused(f"{spelling} is on without being set, and a flag cannot say otherwise")
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
        raise Refused(f"{spelling} is {present!r}, which is none of {', '.join(parameter.allowed)}")
    later = parameter.allowed[parameter.allowed.index(present) + 1 :]
    wanted = str(arguments.get("only", later[0] if later else ""))
    if wanted not in later:
        raise Refused(f"{spelling} is {present} already")
    return edit_of(context, parameter, wanted)


def next_divisor_of_world(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """The next larger degree that divides the number of ranks."""
    world = context.world_size
    spelling = parameter.spellings[0]
    if world is None:
        raise ranks_not_known()
    present = context.template.number(parameter.id)
    if present is None:
        raise Refused(f"{spelling} is not in the template, so over how many ranks the states are shared is not known")
    if world % present:
        raise Refused(f"{spelling} {present} does not divide the {world} ranks")
    larger = next((degree for degree in range(present + 1, world + 1) if world % degree == 0), None)
    if larger is None:
        raise Refused(f"{spelling} is {present}: all {world} ranks share the states already")
    return edit_of(context, parameter, str(larger))


def remove(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Take the parameter out; nothing where it is not set."""
    setting = context.template.setting(parameter.id)
    if setting is None:
        return Edits(())
    if setting.value is None:
        raise not_known(setting)
    return edit_of(context, parameter, None)
