"""Constraints on what settings say: versions, the engine that is chosen, rounds and groups that several make up."""

from __future__ import annotations

import re

from runbook.remedy.constraints.sizes import longest_sequence
from runbook.remedy.lever_context import Arguments, LeverContext, Refusal, product_of, text_of, texts_of


def in_release(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """Every version that the template can be for is one of `versions`; a person is asked where some are and some are
    not. `why` says what differs."""
    wanted = set(texts_of(arguments, "versions"))
    possible = [item.id for item in context.releases]
    title, why = context.system.title, str(arguments["why"])
    if possible and set(possible) <= wanted:
        return None
    if possible and not wanted & set(possible):
        return Refusal(f"{why}, and this is {title} {' or '.join(possible)}")
    return Refusal(
        f"{why}, and which version of {title} this is does not show in the template",
        f"Which version of {title} is installed ({', '.join(item.id for item in context.system.versions)})?",
    )


def chosen(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """A parameter has one of `values`. Where it is not set, the configuration that is chosen says it: the first set of
    the parameters `by`, with one of `names` (of `others`, it says something else); a person is asked about another
    name. Where none is set, the program's default holds."""
    parameter = text_of(arguments, "parameter")
    values = {item.lower() for item in texts_of(arguments, "values")}
    spelling = context.spelling(parameter)
    wanted = " or ".join(texts_of(arguments, "values"))
    if not context.is_set(parameter):
        for name in texts_of(arguments, "by"):
            if not context.is_set(name):
                continue
            text = context.text(name)
            if isinstance(text, Refusal):
                return text
            shown = f"{context.spelling(name)} {text}"
            stem = (text or "").rsplit("/", 1)[-1].removesuffix(".yaml").lower()
            if stem in {item.lower() for item in texts_of(arguments, "names")}:
                return None
            if stem in {item.lower() for item in texts_of(arguments, "others")}:
                return Refusal(f"{shown} is chosen, which makes {spelling} something else than {wanted}")
            return Refusal(f"what {shown} makes of {spelling} is not known", f"Does {shown} have {spelling} {wanted}?")
    text = context.text(parameter)
    if isinstance(text, Refusal):
        return text
    if text is None:
        return Refusal(f"{spelling} is not in the template", f"Is {spelling} {wanted}?")
    if text.lower() in values:
        return None
    return Refusal(f"{spelling} is {text}, and it has to be {wanted}")


def text_matches(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The first of `parameters` that is set matches `pattern`; `means` says in words what that says."""
    for parameter in texts_of(arguments, "parameters"):
        if not context.is_set(parameter):
            continue
        text = context.text(parameter)
        if isinstance(text, Refusal):
            return text
        if text and text.lower() not in ("null", "none"):
            if re.search(str(arguments["pattern"]), text):
                return None
            return Refusal(f"{context.spelling(parameter)} is {text!r}, which is not {arguments['means']}")
    first = context.system.parameter(text_of(arguments, "parameters")).spellings[0]
    return Refusal(f"{first} is not in the template", f"Is {first} {arguments['means']}?")


def frames_show(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """A function's name in the traceback matches `pattern`; `means` says in words what that shows."""
    cause = context.story.root_cause
    frames = cause.frames if cause is not None else ()
    if any(re.search(str(arguments["pattern"]), name) for name in frames):
        return None
    return Refusal(f"the traceback does not show {arguments['means']}")


def on_one_node(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The job has one node; `question` is asked otherwise: what a node's own disk gives is not there on another."""
    nodes = context.job.num_nodes or len(context.job.nodes)
    if nodes == 1:
        return None
    shown = f"the job has {nodes} nodes" if nodes else "how many nodes the job has is not known"
    return Refusal(shown, str(arguments["question"]))


def whole_per_rank(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The product of `parameters` (an unset one counts as one) is a multiple of the number of ranks: a size over all
    ranks has to leave each a whole part."""
    whole = product_of(context, texts_of(arguments, "parameters"), unset_is_one=True)
    if isinstance(whole, Refusal):
        return whole
    world = context.world_size
    named = " × ".join(context.spelling(item) for item in texts_of(arguments, "parameters"))
    if world is None:
        return Refusal("the number of ranks is not known", f"Is {named} = {whole} a multiple of the GPUs?")
    if whole % world == 0:
        return None
    return Refusal(f"{named} would be {whole}, which does not give each of {world} ranks a whole part")


def budget_below_batch(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """A token budget (`budget`) holds fewer tokens than a micro-batch of full sequences did (`micro` × the longest,
    shared by `degree` ranks): else going over to it would take more memory, not less."""
    budget, micro = (context.number(text_of(arguments, name)) for name in ("budget", "micro"))
    total = longest_sequence(context, arguments)
    if isinstance(total, Refusal):
        return total
    degree = product_of(context, texts_of(arguments, "degree"), unset_is_one=True)
    if isinstance(degree, Refusal):
        return degree
    for number in (budget, micro):
        if isinstance(number, Refusal):
            return number
    assert not isinstance(budget, Refusal) and not isinstance(micro, Refusal)
    if budget is None or micro is None:
        return Refusal(f"{context.spelling(texts_of(arguments, 'micro')[0])} is not in the template")
    if budget * degree < micro * total:
        return None
    return Refusal(f"a budget of {budget} tokens is no less than the {micro} × {total} of the present micro-batch")


def alike_or_auto(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """What is set for `parameters` is the same everywhere, but for "auto", which follows in the program. The first
    counts with its default.

    The trainer refuses to start with a configuration of DeepSpeed that says something else
    (transformers/integrations/deepspeed.py, trainer_config_process)."""
    texts = {}
    for at, parameter in enumerate(texts_of(arguments, "parameters")):
        if at and not context.is_set(parameter):
            continue
        text = context.text(parameter)
        if isinstance(text, Refusal):
            return text
        if text is not None and text != "auto":
            texts[context.spelling(parameter), parameter] = text
    if len(set(texts.values())) < 2:
        return None
    shown = ", ".join(f"{spelling} {text}" for (spelling, _), text in texts.items())
    return Refusal(f"the template's own numbers do not agree: {shown}", "Which of them does the job run with?")


def in_release_when_resumed(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """As `in_release`, where the job can go on from a checkpoint: what `why` says happens only then. `question` is
    asked where the version is not known, or is another."""
    if context.checkpoints == ():
        return None
    unmet = in_release(context, arguments)
    return None if unmet is None else Refusal(unmet.why, str(arguments["question"]))


def asked_in_release(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """A person is asked `question` where every version that the template can be for is one of `versions`; where another
    is possible, nothing is asked. `why` says what these versions do."""
    possible = {item.id for item in context.releases}
    if not possible or not possible <= set(texts_of(arguments, "versions")):
        return None
    return Refusal(str(arguments["why"]), str(arguments["question"]))


def in_release_beside(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """As `in_release`, where one of `beside` is set and `unless` is not: for an option whose default differs."""
    named = any(context.is_set(name) for name in texts_of(arguments, "beside"))
    if not named or context.is_set(text_of(arguments, "unless")):
        return None
    return in_release(context, arguments)


def any_stands(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """At least one of `parameters` stands in the template, whatever it says: a default shows nothing. `why` says what
    follows where none does, `question` what would settle it."""
    named = texts_of(arguments, "parameters")
    if any(context.is_set(name) for name in named):
        return None
    first = context.spelling(named[0])
    return Refusal(
        f"the template has neither {first} nor another option of the kind, so {arguments['why']}",
        str(arguments["question"]),
    )


def whole_rounds(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """The number `total`, where it is set, is a multiple of `micro` × ranks. `ranks` names a parameter that says how
    many ranks there are where the job has other GPUs too.

    TRL wants a round of generation to be whole micro-batches (trl/trainer/grpo_config.py)."""
    total = context.number(text_of(arguments, "total"))
    micro = context.number(text_of(arguments, "micro"))
    ranks = _ranks(context, arguments)
    for number in (total, micro, ranks):
        if isinstance(number, Refusal):
            return number if total is not None else None
    assert not isinstance(total, Refusal) and not isinstance(micro, Refusal) and not isinstance(ranks, Refusal)
    if total is None or micro is None:
        return None
    spelling = context.spelling(text_of(arguments, "total"))
    if ranks is None:
        return Refusal("the number of ranks is not known", f"Is {spelling} {total} a multiple of {micro} × the ranks?")
    if total % (micro * ranks) == 0:
        return None
    return Refusal(f"{spelling} {total} is no multiple of {micro} × {ranks} ranks")


def whole_groups(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """`size` × ranks is a multiple of the first of `groups` that is set; nothing is asked where none is.

    With `versions`, only where one of them is possible; then `question` is asked, for it may be another.

    TRL wants whole groups of completions in each batch of an evaluation (trl/trainer/grpo_config.py), and up to 0.16 in
    each step's micro-batches too (trl/trainer/grpo_trainer.py)."""
    versions = set(texts_of(arguments, "versions"))
    if versions and context.releases and not versions & {item.id for item in context.releases}:
        return None
    group_name = next((name for name in texts_of(arguments, "groups") if context.is_set(name)), "")
    if not group_name:
        return None
    size, group = context.number(text_of(arguments, "size")), context.number(group_name)
    ranks = _ranks(context, arguments)
    for number in (size, group, ranks):
        if isinstance(number, Refusal):
            return number
    assert not isinstance(size, Refusal) and not isinstance(group, Refusal) and not isinstance(ranks, Refusal)
    if size is None or group is None:
        return None
    spelling = context.spelling(group_name)
    if ranks is None:
        return Refusal("the number of ranks is not known", f"Is {size} × the ranks a multiple of {spelling} {group}?")
    if size * ranks % group == 0:
        return None
    return Refusal(f"{size} × {ranks} ranks is no multiple of {spelling} {group}", str(arguments.get("question", "")))


def text_lacks(context: LeverContext, arguments: Arguments) -> Refusal | None:
    """No value of `parameters` matches `pattern`; `why` says what it would do."""
    for parameter in texts_of(arguments, "parameters"):
        text = context.text(parameter)
        if isinstance(text, Refusal):
            return text
        if text is not None and re.search(str(arguments["pattern"]), text):
            return Refusal(f"{context.spelling(parameter)} is {text}: {arguments['why']}")
    return None


def _ranks(context: LeverContext, arguments: Arguments) -> int | None | Refusal:
    """As the parameter named by `ranks` says; else all ranks of the job."""
    for name in texts_of(arguments, "ranks"):
        if context.is_set(name):
            return context.number(name)
    return context.world_size
