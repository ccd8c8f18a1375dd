"""Constraints on words: versions, the engine that is chosen, what the traceback shows, where the job runs."""

from __future__ import annotations

import re

from runbook.remedy.arguments import Arguments, product_of, text_of, texts_of
from runbook.remedy.situation import Refusal, Situation
from runbook.remedy.sizes import longest_sequence


def in_release(situation: Situation, arguments: Arguments) -> Refusal | None:
    """Every version that the template can be for is one of `versions`; a person is asked where some are and some are
    not. `why` says what differs."""
    wanted = set(texts_of(arguments, "versions"))
    possible = [item.id for item in situation.releases]
    title, why = situation.system.title, str(arguments["why"])
    if possible and set(possible) <= wanted:
        return None
    if possible and not wanted & set(possible):
        return Refusal(f"{why}, and this is {title} {' or '.join(possible)}")
    return Refusal(
        f"{why}, and which version of {title} this is does not show in the template",
        f"Which version of {title} is installed ({', '.join(item.id for item in situation.system.versions)})?",
    )


def chosen(situation: Situation, arguments: Arguments) -> Refusal | None:
    """A parameter has one of `values`. Where it is not set, the configuration that is chosen says it: the first set of
    the parameters `by`, with one of `names` (of `others`, it says something else); a person is asked about another
    name. Where none is set, the program's default holds."""
    parameter = text_of(arguments, "parameter")
    values = {item.lower() for item in texts_of(arguments, "values")}
    spelling = situation.spelling(parameter)
    wanted = " or ".join(texts_of(arguments, "values"))
    if not situation.is_set(parameter):
        for name in texts_of(arguments, "by"):
            if not situation.is_set(name):
                continue
            text = situation.text(name)
            if isinstance(text, Refusal):
                return text
            shown = f"{situation.spelling(name)} {text}"
            stem = (text or "").rsplit("/", 1)[-1].removesuffix(".yaml").lower()
            if stem in {item.lower() for item in texts_of(arguments, "names")}:
                return None
            if stem in {item.lower() for item in texts_of(arguments, "others")}:
                return Refusal(f"{shown} is chosen, which makes {spelling} something else than {wanted}")
            return Refusal(f"what {shown} makes of {spelling} is not known", f"Does {shown} have {spelling} {wanted}?")
    text = situation.text(parameter)
    if isinstance(text, Refusal):
        return text
    if text is None:
        return Refusal(f"{spelling} is not in the template", f"Is {spelling} {wanted}?")
    if text.lower() in values:
        return None
    return Refusal(f"{spelling} is {text}, and it has to be {wanted}")


def text_matches(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The first of `parameters` that is set matches `pattern`; `means` says in words what that says."""
    for parameter in texts_of(arguments, "parameters"):
        if not situation.is_set(parameter):
            continue
        text = situation.text(parameter)
        if isinstance(text, Refusal):
            return text
        if text and text.lower() not in ("null", "none"):
            if re.search(str(arguments["pattern"]), text):
                return None
            return Refusal(f"{situation.spelling(parameter)} is {text!r}, which is not {arguments['means']}")
    first = situation.system.parameter(text_of(arguments, "parameters")).spellings[0]
    return Refusal(f"{first} is not in the template", f"Is {first} {arguments['means']}?")


def frames_show(situation: Situation, arguments: Arguments) -> Refusal | None:
    """A function's name in the traceback matches `pattern`; `means` says in words what that shows."""
    cause = situation.story.root_cause
    frames = cause.frames if cause is not None else ()
    if any(re.search(str(arguments["pattern"]), name) for name in frames):
        return None
    return Refusal(f"the traceback does not show {arguments['means']}")


def on_one_node(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The job has one node; `question` is asked otherwise: what a node's own disk gives is not there on another."""
    nodes = situation.job.num_nodes or len(situation.job.nodes)
    if nodes == 1:
        return None
    shown = f"the job has {nodes} nodes" if nodes else "how many nodes the job has is not known"
    return Refusal(shown, str(arguments["question"]))


def whole_per_rank(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The product of `parameters` (an unset one counts as one) is a multiple of the number of ranks: a size over all
    ranks has to leave each a whole part."""
    whole = product_of(situation, texts_of(arguments, "parameters"), unset_is_one=True)
    if isinstance(whole, Refusal):
        return whole
    world = situation.world_size
    named = " × ".join(situation.spelling(item) for item in texts_of(arguments, "parameters"))
    if world is None:
        return Refusal("the number of ranks is not known", f"Is {named} = {whole} a multiple of the GPUs?")
    if whole % world == 0:
        return None
    return Refusal(f"{named} would be {whole}, which does not give each of {world} ranks a whole part")


def budget_below_batch(situation: Situation, arguments: Arguments) -> Refusal | None:
    """A token budget (`budget`) holds fewer tokens than a micro-batch of full sequences did (`micro` × the longest,
    shared by `degree` ranks): else going over to it would take more memory, not less."""
    budget, micro = (situation.number(text_of(arguments, name)) for name in ("budget", "micro"))
    total = longest_sequence(situation, arguments)
    if isinstance(total, Refusal):
        return total
    degree = product_of(situation, texts_of(arguments, "degree"), unset_is_one=True)
    if isinstance(degree, Refusal):
        return degree
    for number in (budget, micro):
        if isinstance(number, Refusal):
            return number
    assert not isinstance(budget, Refusal) and not isinstance(micro, Refusal)
    if budget is None or micro is None:
        return Refusal(f"{situation.spelling(texts_of(arguments, 'micro')[0])} is not in the template")
    if budget * degree < micro * total:
        return None
    return Refusal(f"a budget of {budget} tokens is no less than the {micro} × {total} of the present micro-batch")
