"""Constraints on batches that several settings make up: DeepSpeed's numbers beside the trainer's, rounds of generation,
groups of completions; and whether a resumed job takes its batch from the template at all."""

from __future__ import annotations

import re

from runbook.remedy.arguments import Arguments, text_of, texts_of
from runbook.remedy.situation import Refusal, Situation
from runbook.remedy.words import in_release


def alike_or_auto(situation: Situation, arguments: Arguments) -> Refusal | None:
    """What is set for `parameters` is the same everywhere, but for "auto", which follows in the program. The first
    counts with its default.

    The trainer refuses to start with a configuration of DeepSpeed that says something else
    (transformers/integrations/deepspeed.py, trainer_config_process)."""
    texts = {}
    for at, parameter in enumerate(texts_of(arguments, "parameters")):
        if at and not situation.is_set(parameter):
            continue
        text = situation.text(parameter)
        if isinstance(text, Refusal):
            return text
        if text is not None and text != "auto":
            texts[situation.spelling(parameter), parameter] = text
    if len(set(texts.values())) < 2:
        return None
    shown = ", ".join(f"{spelling} {text}" for (spelling, _), text in texts.items())
    return Refusal(f"the template's own numbers do not agree: {shown}", "Which of them does the job run with?")


def in_release_when_resumed(situation: Situation, arguments: Arguments) -> Refusal | None:
    """As `in_release`, where the job can go on from a checkpoint: what `why` says happens only then. `question` is
    asked where the version is not known, or is another."""
    if situation.checkpoints == ():
        return None
    unmet = in_release(situation, arguments)
    return None if unmet is None else Refusal(unmet.why, str(arguments["question"]))


def asked_in_release(situation: Situation, arguments: Arguments) -> Refusal | None:
    """A person is asked `question` where every version that the template can be for is one of `versions`; where another
    is possible, nothing is asked. `why` says what these versions do."""
    possible = {item.id for item in situation.releases}
    if not possible or not possible <= set(texts_of(arguments, "versions")):
        return None
    return Refusal(str(arguments["why"]), str(arguments["question"]))


def in_release_beside(situation: Situation, arguments: Arguments) -> Refusal | None:
    """As `in_release`, where one of `beside` is set and `unless` is not: for an option whose default differs."""
    named = any(situation.is_set(name) for name in texts_of(arguments, "beside"))
    if not named or situation.is_set(text_of(arguments, "unless")):
        return None
    return in_release(situation, arguments)


def any_stands(situation: Situation, arguments: Arguments) -> Refusal | None:
    """At least one of `parameters` stands in the template, whatever it says: a default shows nothing. `why` says what
    follows where none does, `question` what would settle it."""
    named = texts_of(arguments, "parameters")
    if any(situation.is_set(name) for name in named):
        return None
    first = situation.spelling(named[0])
    return Refusal(
        f"the template has neither {first} nor another option of the kind, so {arguments['why']}",
        str(arguments["question"]),
    )


def whole_rounds(situation: Situation, arguments: Arguments) -> Refusal | None:
    """The number `total`, where it is set, is a multiple of `micro` × ranks. `ranks` names a parameter that says how
    many ranks there are where the job has other GPUs too.

    TRL wants a round of generation to be whole micro-batches (trl/trainer/grpo_config.py)."""
    total = situation.number(text_of(arguments, "total"))
    micro = situation.number(text_of(arguments, "micro"))
    ranks = _ranks(situation, arguments)
    for number in (total, micro, ranks):
        if isinstance(number, Refusal):
            return number if total is not None else None
    assert not isinstance(total, Refusal) and not isinstance(micro, Refusal) and not isinstance(ranks, Refusal)
    if total is None or micro is None:
        return None
    spelling = situation.spelling(text_of(arguments, "total"))
    if ranks is None:
        return Refusal("the number of ranks is not known", f"Is {spelling} {total} a multiple of {micro} × the ranks?")
    if total % (micro * ranks) == 0:
        return None
    return Refusal(f"{spelling} {total} is no multiple of {micro} × {ranks} ranks")


def whole_groups(situation: Situation, arguments: Arguments) -> Refusal | None:
    """`size` × ranks is a multiple of the first of `groups` that is set; nothing is asked where none is.

    With `versions`, only where one of them is possible; then `question` is asked, for it may be another.

    TRL wants whole groups of completions in each batch of an evaluation (trl/trainer/grpo_config.py), and up to 0.16 in
    each step's micro-batches too (trl/trainer/grpo_trainer.py)."""
    versions = set(texts_of(arguments, "versions"))
    if versions and situation.releases and not versions & {item.id for item in situation.releases}:
        return None
    group_name = next((name for name in texts_of(arguments, "groups") if situation.is_set(name)), "")
    if not group_name:
        return None
    size, group = situation.number(text_of(arguments, "size")), situation.number(group_name)
    ranks = _ranks(situation, arguments)
    for number in (size, group, ranks):
        if isinstance(number, Refusal):
            return number
    assert not isinstance(size, Refusal) and not isinstance(group, Refusal) and not isinstance(ranks, Refusal)
    if size is None or group is None:
        return None
    spelling = situation.spelling(group_name)
    if ranks is None:
        return Refusal("the number of ranks is not known", f"Is {size} × the ranks a multiple of {spelling} {group}?")
    if size * ranks % group == 0:
        return None
    return Refusal(f"{size} × {ranks} ranks is no multiple of {spelling} {group}", str(arguments.get("question", "")))


def text_lacks(situation: Situation, arguments: Arguments) -> Refusal | None:
    """No value of `parameters` matches `pattern`; `why` says what it would do."""
    for parameter in texts_of(arguments, "parameters"):
        text = situation.text(parameter)
        if isinstance(text, Refusal):
            return text
        if text is not None and re.search(str(arguments["pattern"]), text):
            return Refusal(f"{situation.spelling(parameter)} is {text}: {arguments['why']}")
    return None


def _ranks(situation: Situation, arguments: Arguments) -> int | None | Refusal:
    """As the parameter named by `ranks` says; else all ranks of the job."""
    for name in texts_of(arguments, "ranks"):
        if situation.is_set(name):
            return situation.number(name)
    return situation.world_size
