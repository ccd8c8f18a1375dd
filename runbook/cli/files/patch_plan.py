"""The edits of `runbook patch`: levers under the flow's own conditions, and single values that keep them too."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from runbook.adapters.log_files import find_logs
from runbook.cli.files.job_files import JobFiles, contenders, job_of
from runbook.cli.main import NEEDS_PERSON
from runbook.diagnosis import diagnose
from runbook.errors import BadInput, NotFound, RunbookError
from runbook.explain.changes import answers, effect_of, levers_of, plain
from runbook.kinds import load_kinds
from runbook.locations import playbook_folder
from runbook.logs.signatures import load_signatures
from runbook.model.diagnosis import Detail, Diagnosis, Hypothesis, Kind, Kinds
from runbook.model.job import JobRecord
from runbook.model.log import LogStory, Meanings
from runbook.model.remedy import Effect, LeverUse
from runbook.model.template import Edit, condition_of
from runbook.remedy import (
    LeverContext,
    LeverDocument,
    LeverRule,
    Parameter,
    Refusal,
    RefusalReason,
    Refused,
    derives,
    edit_of,
    in_this_version,
    refusal_of,
    require,
    use_lever,
)
from runbook.report.vocabulary.sentences import in_words
from runbook.steps.shared.template_reading import TemplateReading
from runbook.template import all_settings


@dataclass(frozen=True, slots=True)
class Evidence:
    """`kind` None: the command line names none. `meanings` None: there were no logs, and the story says nothing.
    `refused`: a sentence on logs that could not be read."""

    story: LogStory
    job: JobRecord
    kind: Kind | None
    meanings: Meanings | None
    refused: str = ""

    def diagnosis(self, settings: dict[str, str]) -> Diagnosis | None:
        """By the logs, with what the template sets as evidence; the command line's kind wins. None: nothing is known
        of a failure."""
        found = None
        if self.meanings is not None:
            found = diagnose(self.story, job=self.job, meanings=self.meanings, settings=settings)
        if self.kind is None or (found is not None and found.best.kind == self.kind):
            return found
        return Diagnosis(Hypothesis(self.kind, 1.0, detail=Detail.NONE))


def evidence_of(
    logs: tuple[str, ...], kind: str | None, template: Path, *, nodes: int | None, gpus: int | None,
    playbook: Path | None,
) -> Evidence:
    """Read the logs, if there are any. Raises `BadInput` for a kind that does not exist, or where the command line
    and the logs contradict each other on the number of ranks."""
    kinds = load_kinds(playbook)
    said = _kind(kind, kinds)
    job = job_of(template, nodes=nodes, gpus_per_node=gpus)
    story, refused, meanings = LogStory(root_cause=None), "", None
    if logs:
        from runbook.cli.files.diagnose import read_logs, refused_note

        files = find_logs(logs)
        signatures = load_signatures(playbook_folder(playbook) / "signatures", kinds)
        meanings = signatures.meanings
        story, refused = read_logs(files, signatures, job=job), refused_note(files)
    if nodes and gpus and story.world_size and story.world_size != nodes * gpus:
        raise BadInput(
            f"--nodes {nodes} --gpus {gpus} make {nodes * gpus} ranks, and the log says {story.world_size}",
            next_step="leave them out, or name the log of this job",
        )
    return Evidence(story, job, said, meanings, refused)


def _kind(name: str | None, kinds: Kinds) -> Kind | None:
    if name is None:
        return None
    wanted = name.strip().lower().replace("-", "_").replace(" ", "_")
    if wanted not in kinds:
        raise BadInput(f"--kind: there is no {name!r}", next_step=f"there are {', '.join(kinds)}")
    return kinds[wanted]


class NotUsed(RunbookError):
    """A lever is not used here: a person is needed."""

    exit_code = NEEDS_PERSON


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for, and what it agrees to."""

    levers: Sequence[str]
    assignments: Sequence[str]
    yes: bool = False
    may_change_training: bool = False


@dataclass(slots=True)
class Planned:
    """What will be written, and what is said about it."""

    failure: str = ""
    """What the lever is meant for, as the logs or the command line say; "" where nothing does."""
    uses: list[LeverUse] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    set_words: list[str] = field(default_factory=list)
    effect_words: dict[str, str] = field(default_factory=dict)
    relieves: dict[str, str] = field(default_factory=dict)


def context_of(reading: TemplateReading, job: JobFiles, seen: Evidence) -> LeverContext:
    """As the flow has it when it chooses a lever. Raises `BadInput` where the template shows no system."""
    if reading.told is not None:
        return LeverContext(reading.told, seen.story, seen.job, seen.diagnosis(reading.values))
    alike = contenders(reading)
    what = (
        f"it looks like {' as much as like '.join(item.title for item in alike)}" if len(alike) > 1
        else "it has no mark of a system that is known here"
    )
    raise BadInput(
        f"which system the template starts is not known: {what}", where=str(job.path),
        next_step=f"name it with --system ({', '.join(item.id for item in reading.levers)})",
    )


def plan(
    context: LeverContext, asked: Asked, documents: Sequence[LeverDocument], *, job: JobFiles, from_log: bool
) -> Planned:
    """All changes, in the order in which they are named; later ones see what earlier ones changed. Raises `NotUsed`,
    `NotFound` for a lever or parameter that the system does not have, `BadInput` for a value that it cannot have."""
    document, planned = context.template.system, Planned(_failure(context, from_log=from_log))
    for name in asked.levers:
        rule = _lever(document, name, documents)
        if not asked.yes:
            _on_its_ladder(context, rule, from_log=from_log)
        if not in_this_version(context.template, rule):
            present = ", ".join(item.title for item in context.template.releases)
            raise NotUsed(f"{rule.id}: this version of {document.title} ({present}) does not have it")
        answered = rule
        if asked.yes:
            # A person who names the lever and says yes has answered what it would ask.
            kept = tuple(item for item in rule.conflicts if not item.ask)
            answered = rule.model_copy(update={"conflicts": kept, "consent": ""})
        try:
            outcome = use_lever(context, answered, {}, asked.may_change_training)
        except Refused as refused:
            raise _not_used(context, job, rule, refused.refusal) from refused
        planned.uses.append(outcome)
        planned.effect_words[rule.id] = effect_of(rule)
        planned.relieves[rule.id] = ", ".join(item.replace("_", " ") for item in rule.relieves)
        if outcome.needs_reshard:
            planned.notes.append("the checkpoint to go on from has to load at another sharding")
        context = _after(context, outcome.edits, planned)
    for assignment in asked.assignments:
        edits = _assigned(context, assignment, planned, may_change_training=asked.may_change_training)
        context = _after(context, edits, planned)
    return planned


def _after(context: LeverContext, edits: Sequence[Edit], planned: Planned) -> LeverContext:
    """The context with these edits; an edit of what was edited before takes its place."""
    for edit in edits:
        before = next((item for item in planned.edits if item.parameter == edit.parameter), None)
        if before is not None:
            planned.edits.remove(before)
            edit = replace(before, new=edit.new)
        planned.edits.append(edit)
    return context.with_changes({edit.parameter: edit.new for edit in edits})


def _lever(document: LeverDocument, name: str, documents: Sequence[LeverDocument]) -> LeverRule:
    system, colon, rest = name.partition(":")
    wanted = plain(rest if colon and plain(system) == document.id else name)
    for rule in document.levers:
        if rule.id == wanted:
            return rule
    found = answers(name, documents)
    own = [item for item in found if item.document.id == document.id]
    if own and own[0].what == "parameter":
        by = [rule.id for rule in levers_of(document, own[0].entry.id)]
        step = f"its levers are {', '.join(by)}" if by else f"set it with --set {own[0].entry.id}=VALUE"
        raise NotFound(f"{name} is a parameter of {document.title}, not a lever", next_step=step)
    if own:
        raise NotFound(
            f"{name} is no lever that a template of {document.title} carries",
            next_step=f"`runbook explain {own[0].name}` says why, and what to do instead",
        )
    elsewhere = [item.document.id for item in found if item.what == "lever"]
    ids = [rule.id for rule in document.levers]
    near = difflib.get_close_matches(wanted, ids, 3, 0.6)
    step = f"perhaps {', '.join(near)}" if near else f"`runbook levers {document.id}` lists them"
    if elsewhere:
        step = f"other systems have one of that name ({', '.join(elsewhere)}); {step}"
    raise NotFound(f"{document.title} has no lever {name!r}", next_step=step)


def _on_its_ladder(context: LeverContext, rule: LeverRule, *, from_log: bool) -> None:
    """A lever for another failure may turn the right knob the wrong way: the engine's share goes both ways."""
    if context.diagnosis is None:
        return
    kind, document = context.diagnosis.best.kind, context.template.system
    question = "May it be used all the same? Then say --yes."
    if kind.entry.no_lever:
        raise NotUsed(f"{rule.id}: {kind.entry.no_lever}", next_step=question)
    failure = _failure(context, from_log=from_log)
    if from_log:
        ladder = document.ladder(kind, context.phase, context.role, context.detail)
        levers = list(ladder.levers) if ladder is not None else []
    else:
        levers = list(dict.fromkeys(name for item in document.ladders if kind in item.kinds for name in item.levers))
    levers += [name for item in document.ladders if kind.entry.perhaps in item.kinds for name in item.levers]
    if rule.id not in levers:
        there = _shown_names(list(dict.fromkeys(levers)))
        raise NotUsed(
            f"{rule.id} is on no ladder for {failure} of {document.title}: it is for another failure",
            where=f"the ladder has {there}" if levers else "there is no lever for it",
            next_step=question,
        )


def _failure(context: LeverContext, *, from_log: bool) -> str:
    """ "true oom in backward of actor", as far as it is known."""
    if context.diagnosis is None:
        return ""
    kind = context.diagnosis.best.kind.replace("_", " ")
    if not from_log:
        return kind
    phase = "" if context.phase == "unknown" else f" in {context.phase.replace('_', ' ')}"
    role = f" of {context.role}" if context.role else ""
    return f"{kind}{phase}{role}"


def _not_used(context: LeverContext, job: JobFiles, rule: LeverRule, refusal: Refusal) -> NotUsed:
    steps = [in_words(refusal.question)] if refusal.question else []
    if refusal.reason is RefusalReason.EXPERIMENT:
        steps.append("If so, say --may-change-training.")
    elif refusal.question and refusal.reason in (RefusalReason.CONSENT, RefusalReason.CONFLICT):
        steps.append("If so, say --yes.")
    if context.world_size is None and refusal.reason is RefusalReason.RANKS_NOT_KNOWN:
        hint = _directives_hint(job)
        steps.append(f"If the job ran as its #SBATCH lines say, add {hint}." if hint else "Add --nodes N --gpus N.")
    return NotUsed(f"{rule.id} is not used: {in_words(refusal.why)}", where=str(job.path), next_step=" ".join(steps))


def _assigned(
    context: LeverContext, assignment: str, planned: Planned, *, may_change_training: bool
) -> tuple[Edit, ...]:
    name, equals, value = assignment.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise BadInput(f"--set: {assignment!r} is no PARAMETER=VALUE", next_step="for example --set micro_batch_size=2")
    entry = _parameter(context.template.system, name.strip())
    new = _value(entry, value.strip())
    try:
        made = edit_of(context, entry, new)
    except Refused as refused:
        raise NotUsed(
            f"--set {name}: {in_words(refused.refusal.why)}", next_step=in_words(refused.refusal.question)
        ) from refused
    after = context.with_changes({edit.parameter: edit.new for edit in made.edits})
    rules = levers_of(context.template.system, entry.id)
    _still_holds(context, after, rules, assignment, planned)
    why = _another_experiment(context, after, entry, rules)
    if why and not may_change_training:
        raise NotUsed(
            f"--set {assignment}: {why}", next_step="May the experiment be changed? Then say --may-change-training.",
        )
    old = context.template.setting(entry.id)
    shown = "(not set)" if old is None else old.value if old.value is not None else "(not known)"
    spelling = condition_of(made.edits[0].spellings[0])[0] if made.edits else name
    planned.set_words.append(f"{spelling} {shown} → {new if new is not None else '(taken out)'}")
    if why:
        planned.notes.append(f"{spelling}: {why}")
    return made.edits


def _still_holds(
    context: LeverContext, after: LeverContext, rules: Sequence[LeverRule], assignment: str, planned: Planned
) -> None:
    """What the levers of a parameter keep, a value given by hand must not break. What cannot be told, or does not hold
    as the template is, is said."""
    for rule in rules:
        if not in_this_version(context.template, rule):
            continue
        for need in rule.holds:
            unmet = refusal_of(partial(require, after, need))
            if unmet is None:
                continue
            if refusal_of(partial(require, context, need)) is None:
                raise NotUsed(f"--set {assignment}: {in_words(unmet.why)}", next_step=in_words(unmet.question))
            note = f"not certain: {in_words(unmet.why)}"
            if note not in planned.notes:
                planned.notes.append(note)


def _another_experiment(
    context: LeverContext, after: LeverContext, entry: Parameter, rules: Sequence[LeverRule]
) -> str:
    """Why a value may be another experiment; "" where it is none by the document."""
    batch = context.template.system.batch
    parts = (batch.micro, batch.accumulation, batch.total, *batch.model_parallel) if batch is not None else ()
    if entry.id in parts:
        misfit = _misfit(after)
        if misfit:
            raise NotUsed(f"{condition_of(entry.spellings[0])[0]}: {misfit}")
        before, now = _global_batch(context), _global_batch(after)
        if before is not None and before == now:
            return ""
        return (
            f"it makes the global batch {now} in place of {before}" if before is not None and now is not None
            else "whether the global batch stays the same is not known"
        )
    if any(rule.effect is Effect.TRAINING for rule in rules):
        return "it changes what is trained"
    if not rules:
        return "what it does to the experiment is not known: no lever changes it"
    return ""


def _misfit(context: LeverContext) -> str:
    """Why the numbers of a batch do not divide; "" where they do, or that is not known."""
    batch, template = context.template.system.batch, context.template
    try:
        ranks = context.data_parallel()
    except Refused as refused:
        return in_words(refused.refusal.why)
    try:
        total, micro = template.total_batch(), template.number(batch.micro) if batch is not None else None
    except Refused:
        return ""
    if total is not None and micro is not None and ranks and total % (micro * ranks):
        return f"a global batch of {total} is no multiple of micro-batch {micro} × {ranks} data-parallel ranks"
    return ""


def _global_batch(context: LeverContext) -> int | None:
    """Its option where the program derives the rest from it, else the product, in samples; None: not known."""
    batch = context.template.system.batch
    if batch is None:
        return None
    template = context.template
    try:
        total, micro, ranks = template.total_batch(), template.number(batch.micro), context.data_parallel()
        if micro is None:
            return None
        if derives(context):
            if total is None:
                return micro * ranks if ranks and batch.total_when_absent == "micro_times_ranks" else None
            return total if ranks and total % (micro * ranks) == 0 else None
        steps = template.number(batch.accumulation) if batch.accumulation else 1
    except Refused:
        return None
    # Without the number of ranks the samples of a step on one rank decide, as long as no degree changes: those of two
    # contexts are compared with each other alone.
    if steps is None or (ranks is None and batch.model_parallel):
        return None
    return micro * steps * (ranks or 1)


def _parameter(document: LeverDocument, name: str) -> Parameter:
    found = answers(name, [document])
    for item in found:
        if isinstance(item.entry, Parameter):
            return item.entry
    for item in found:
        raise NotFound(
            f"--set: {name} is no parameter that a template of {document.title} carries",
            next_step=f"`runbook explain {item.name}` says why",
        )
    spelt = {plain(one): one for entry in document.parameters for one in (entry.id, *entry.spellings)}
    near = [spelt[one] for one in difflib.get_close_matches(plain(name), spelt, 3, 0.6)]
    raise NotFound(
        f"--set: {document.title} has no parameter {name!r} that is known here",
        next_step=f"perhaps {', '.join(near)}" if near else "change it by hand",
    )


def _value(entry: Parameter, value: str) -> str | None:
    """The value as it will be written; None takes a flag out. Raises `BadInput`."""
    shown = f"--set {entry.id}={value}"
    if not value.isprintable() or len(value) > 4096:
        raise BadInput(f"{entry.id}: the value has characters that no template should hold")
    if entry.type == "integer":
        if not re.fullmatch(r"-?\d{1,15}", value):
            raise BadInput(f"{shown}: it has to be a whole number")
        if entry.floor is not None and int(value) < entry.floor:
            raise BadInput(f"{shown}: not below {entry.floor}")
    if entry.type == "number" and not re.fullmatch(r"-?\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,2})?", value):
        raise BadInput(f"{shown}: it has to be a number")
    if entry.type in ("boolean", "flag") and value.lower() not in ("true", "false"):
        raise BadInput(f"{shown}: it has to be true or false")
    if entry.type == "choice" and entry.allowed and value not in entry.allowed:
        raise BadInput(f"{shown}: it has to be one of {', '.join(entry.allowed)}")
    if entry.type == "flag":
        return "true" if value.lower() == "true" else None
    return value


def _directives_hint(files: JobFiles) -> str:
    """`--nodes 2 --gpus 8`, as the script's own directives ask for it; "" where they do not say both."""
    found = {item.parameter: item.value or "" for item in all_settings(files.files[:1]) if item.kind == "sbatch"}
    nodes = found.get("--nodes", "")
    gpus = found.get("--gpus-per-node", "") or found.get("--gres", "")
    count = re.fullmatch(r"(?:gpu:)?(?:[A-Za-z][\w.-]{0,40}:)?([1-9]\d?)", gpus)
    if not nodes.isdecimal() or count is None:
        return ""
    return f"--nodes {nodes} --gpus {count[1]}"


def _shown_names(names: Sequence[str], most: int = 12) -> str:
    """A list for a message, cut where it is long."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
