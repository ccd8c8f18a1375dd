"""Lever functions: each turns the values in force into edits, or says why it cannot. Named in the documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runbook.model.job import JobRecord
from runbook.model.log import LogStory
from runbook.model.remedy import LeverUse, RefusedLever
from runbook.model.template import Edit
from runbook.remedy import allocator
from runbook.remedy.documents import LeverEntry
from runbook.remedy.values import Values


@dataclass(frozen=True, slots=True)
class Situation:
    """What a lever function works from."""

    name: str
    entry: LeverEntry
    values: Values
    job: JobRecord
    story: LogStory
    allow_training_change: bool

    def argument(self, name: str) -> str:
        value = self.entry.arguments.get(name, "")
        return value if isinstance(value, str) else ""

    def arguments(self, name: str) -> tuple[str, ...]:
        value = self.entry.arguments.get(name, ())
        return (value,) if isinstance(value, str) else value

    def refuse(self, why: str, *, question: str = "") -> RefusedLever:
        return RefusedLever(self.name, why, needs_person=bool(question), question=question)

    def use(self, edits: tuple[Edit, ...], title: str, key: str, expectation: str = "") -> LeverUse:
        entry = self.entry
        return LeverUse(
            lever=self.name,
            title=title,
            why=entry.why,
            source=entry.source,
            effect=entry.effect,
            cost=entry.cost,
            edits=edits,
            key=f"{self.name}:{key}",
            expectation=expectation,
            needs_reshard=entry.needs_reshard,
        )


Made = LeverUse | RefusedLever


def smaller_micro_batch(situation: Situation) -> Made:
    """Divide the micro-batch by its smallest prime factor and raise accumulation by the same factor, exactly."""
    values = situation.values
    micro_name = situation.argument("micro")
    micro = values.of(micro_name)
    if micro.number is None:
        return situation.refuse(f"the micro-batch is not known: {micro.why_not or micro.text}")
    floor = values.system.parameters[micro_name].floor or 1
    factor = smallest_factor(micro.number)
    new = micro.number // factor
    if micro.number <= floor or factor == 1 or new < floor:
        return situation.refuse(f"the micro-batch is {micro.number} already")
    edits = [values.edit(micro_name, str(new))]
    accumulation_name = situation.argument("accumulation")
    words = f"micro-batch {micro.number} → {new}"
    if accumulation_name:
        accumulation = values.of(accumulation_name)
        if accumulation.number is None:
            return situation.refuse(
                f"gradient accumulation is not known ({accumulation.why_not or accumulation.text}), "
                "so the global batch could not be kept"
            )
        if not keeps_global_batch(micro.number, accumulation.number, new, accumulation.number * factor):
            return situation.refuse("the global batch would change")
        edits.append(values.edit(accumulation_name, str(accumulation.number * factor)))
        words += f", accumulation {accumulation.number} → {accumulation.number * factor}"
        kept = f"{micro.number} x {accumulation.number} = {new} x {accumulation.number * factor} samples a rank"
    else:
        total = values.of(situation.argument("total"))
        if total.number is None:
            return situation.refuse(
                f"the program derives accumulation from the global batch, which is not known: {total.why_not}"
            )
        kept = f"the global batch of {total.number} stays; the program derives the accumulation"
    return situation.use(
        tuple(edits),
        words,
        f"{new}",
        f"activations and logits to about 1/{factor}; {kept}",
    )


def choose(situation: Situation) -> Made:
    """Set a choice to a value, only from the values named."""
    name, value = situation.argument("parameter"), situation.argument("value")
    now = situation.values.of(name)
    if now.text is None:
        return situation.refuse(f"{name.replace('_', ' ')} is not known: {now.why_not}")
    if now.text not in situation.arguments("only_from"):
        return situation.refuse(f"{name.replace('_', ' ')} is {now.text} already")
    if not now.from_template and not _program_known(situation):
        return situation.refuse(
            f"the template sets no {situation.values.system.parameters[name].spellings[0]}",
            question=f"Does the program know {situation.values.system.parameters[name].spellings[0]} {value}?",
        )
    edit = situation.values.edit(name, value)
    return situation.use((edit,), f"{name.replace('_', ' ')} {now.text} → {value}", value)


def more_sharding(situation: Situation) -> Made:
    """Double the sharding degree, within the number of ranks."""
    name = situation.argument("parameter")
    now = situation.values.of(name)
    ranks = situation.job.num_tasks or situation.story.world_size
    if now.number is None:
        return situation.refuse(f"the sharding degree is not known: {now.why_not or now.text}")
    if not now.from_template:
        return situation.refuse(f"the template sets no {situation.values.system.parameters[name].spellings[0]}")
    if ranks is None:
        return situation.refuse("the number of ranks is not known, so no sharding degree can be checked against it")
    new = now.number * 2
    if new > ranks or ranks % new:
        return situation.refuse(f"a sharding degree of {new} does not divide {ranks} ranks")
    edit = situation.values.edit(name, str(new))
    return situation.use(
        (edit,), f"sharding degree {now.number} → {new}", str(new), "model states a rank to about a half"
    )


def shorter_sequence(situation: Situation) -> Made:
    """Halve the sequence, only with a person's consent: it is another experiment."""
    name = situation.argument("parameter")
    now = situation.values.of(name)
    floor = situation.values.system.parameters[name].floor or 1
    if now.number is None:
        return situation.refuse(f"the sequence length is not known: {now.why_not or now.text}")
    new = now.number // 2
    if new < floor or now.number % 2:
        return situation.refuse(f"the sequence length is {now.number} already")
    if not situation.allow_training_change:
        return situation.refuse(
            f"a sequence of {new} instead of {now.number} tokens changes what is trained",
            question=f"May the sequence length go from {now.number} to {new}? It changes the experiment.",
        )
    edit = situation.values.edit(name, str(new))
    return situation.use((edit,), f"sequence length {now.number} → {new}", str(new), "activations to about a half")


def allocator_option(situation: Situation) -> Made:
    """Merge one option into the allocator's variable, under the name that the PyTorch version reads."""
    option, value = situation.argument("option"), situation.argument("value")
    version = situation.story.framework_version
    by_name = {
        setting.spelling: setting
        for setting in situation.values.settings
        if setting.parameter == situation.argument("parameter")
    }
    unresolved = [setting for setting in by_name.values() if setting.value is None]
    if unresolved:
        return situation.refuse(f"{unresolved[0].spelling}: {unresolved[0].unresolved}")
    new_name = allocator.reads_new_name(version)
    texts = {name: setting.value or "" for name, setting in by_name.items()}
    if len(set(texts.values())) > 1:
        return situation.refuse(
            f"{allocator.CUDA_NAME} and {allocator.NEW_NAME} are set to different values",
            question="Which of the two allocator variables is meant?",
        )
    # The CUDA name is read by every version; the new one is kept only where it is set and read.
    name = allocator.NEW_NAME if new_name and list(by_name) == [allocator.NEW_NAME] else allocator.CUDA_NAME
    options = allocator.parse(next(iter(texts.values()), ""))
    if options is None:
        return situation.refuse(f"the allocator's options cannot be read: {next(iter(texts.values()))!r}")
    if options.get("backend", "native") != "native":
        return situation.refuse(f"backend:{options['backend']} ignores the option {option}")
    if options.get(option) == value:
        return situation.refuse(f"{option}:{value} is set already, so it is not the remedy")
    if option == "expandable_segments" and not allocator.knows_expandable_segments(version):
        return situation.refuse(f"PyTorch {version} does not know expandable_segments")
    merged = {key: text for key, text in options.items() if key not in situation.arguments("drop")}
    merged[option] = value
    text = allocator.join(merged)
    entry = situation.values.system.parameters[situation.argument("parameter")]
    edits = [Edit(situation.argument("parameter"), entry.kind, (name,), new=text, old=texts.get(name))]
    if len(by_name) > 1:
        other = next(other for other in by_name if other != name)
        edits.append(Edit(situation.argument("parameter"), entry.kind, (other,), new=text, old=texts[other]))
    why_name = f"read by PyTorch {version}" if version else "read by every PyTorch version"
    dropped = [key for key in options if key not in merged]
    note = f"; {', '.join(dropped)} left out, as it does not go with it" if dropped else ""
    return situation.use(tuple(edits), f"{name}={text}", f"{option}={value}", f"{name} is {why_name}{note}")


def keeps_global_batch(micro: int, accumulation: int, new_micro: int, new_accumulation: int) -> bool:
    """The samples of an optimizer step on a rank stay exactly the same; data parallelism is not touched."""
    return micro * accumulation == new_micro * new_accumulation


def smallest_factor(number: int) -> int:
    """The smallest prime factor; 1 for 1 and below."""
    if number < 2:
        return 1
    return next((factor for factor in range(2, int(number**0.5) + 1) if number % factor == 0), number)


def _program_known(situation: Situation) -> bool:
    """The template sets another option of this document, so the program is the one that the document describes."""
    return any(
        setting.parameter in situation.values.system.parameters and setting.kind.value == "argument"
        for setting in situation.values.settings
    )


FUNCTIONS: dict[str, Callable[[Situation], Made]] = {
    "smaller_micro_batch": smaller_micro_batch,
    "choose": choose,
    "more_sharding": more_sharding,
    "shorter_sequence": shorter_sequence,
    "allocator_option": allocator_option,
}
