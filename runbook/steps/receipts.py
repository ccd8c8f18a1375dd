"""Receipts: that a lever really is in the relaunched job, in its script and in its processes."""

from __future__ import annotations

import hashlib

from runbook.model.incident import Attempt, Receipt
from runbook.model.job import JobClass, JobRecord, JobScript
from runbook.model.node import ProcessView
from runbook.model.template import Edit, SettingKind, condition_of
from runbook.steps.base import StepContext
from runbook.steps.companions import submitted_files
from runbook.steps.template_view import surroundings, system_of


def gather_receipts(context: StepContext, attempt: Attempt, job: JobRecord) -> tuple[Receipt, ...]:
    """What was seen so far. Once a process carried every edit, nothing more is asked of the nodes."""
    edits = _seen_in_ranks(context, attempt.plan.edits if attempt.plan else ())
    if not edits or any(receipt.where.startswith("process") and receipt.seen for receipt in attempt.receipts):
        return attempt.receipts
    receipts = [_script_receipt(context, attempt, job)]
    if job.state.job_class is JobClass.ACTIVE:
        receipts.extend(_process_receipts(context, attempt, job, edits))
    elif job.state.job_class.ended and not any(r.where.startswith("process") for r in attempt.receipts):
        receipts.append(Receipt(_lever(attempt), "process", False, "the job ended before its processes were seen"))
    else:
        receipts.extend(receipt for receipt in attempt.receipts if receipt.where.startswith("process"))
    return tuple(receipts)


def _seen_in_ranks(context: StepContext, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Without the options of launchers (torchrun's, srun's), which no rank carries among its own words."""
    system = system_of(context)
    if system is None:
        return edits
    launchers = {item.id for item in system.parameters if item.launcher or item.program}
    return tuple(edit for edit in edits if edit.parameter not in launchers)


def _script_receipt(context: StepContext, attempt: Attempt, job: JobRecord) -> Receipt:
    kept = context.ports.scheduler.script(job.id)
    if not isinstance(kept, JobScript):
        return Receipt(_lever(attempt), "script", False, f"the scheduler keeps no script ({kept.unknown})")
    wanted = submitted_files(attempt.patch, surroundings(context))[0].text if attempt.patch else ""
    same = _digest(kept.text) == _digest(wanted)
    detail = "the scheduler holds the changed script, byte for byte" if same else "the scheduler's script differs"
    return Receipt(_lever(attempt), "script", same, f"{detail} ({kept.source})")


def _process_receipts(context: StepContext, attempt: Attempt, job: JobRecord, edits: tuple[Edit, ...]) -> list[Receipt]:
    names = [name for edit in edits if edit.kind is SettingKind.ENVIRONMENT for name in edit.spellings]
    copies = tuple(attempt.patch.copies.values()) if attempt.patch else ()
    seen_anything = False
    reasons: list[str] = []
    for node in job.nodes[:1]:
        views = context.ports.nodes.processes(node, job.id, job.owner, names)
        if not isinstance(views, tuple):
            reasons.append(f"{node}: {views.unknown}")
            continue
        ranks = [view for view in views if _is_rank(view, edits, copies)]
        seen_anything = seen_anything or bool(ranks)
        if ranks:
            return [_judged(attempt, edit, ranks, copies) for edit in edits if edit.kind is not SettingKind.SBATCH]
    if reasons:
        return [Receipt(_lever(attempt), "process", False, "; ".join(reasons))]
    return []


def _is_rank(view: ProcessView, edits: tuple[Edit, ...], copies: tuple[str, ...]) -> bool:
    """A training process: it carries one of the options in question or the copy of a configuration, or, for the
    environment, it is a ranked Python. Launchers (srun, the batch shell) carry the same words and are none."""
    program = view.argv[0].rpartition("/")[2] if view.argv else ""
    if not program.startswith("python"):
        return False
    if view.argv[1:3] in (("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch")):
        return False
    spellings = {
        name.lstrip("+") for edit in edits if edit.kind in (SettingKind.ARGUMENT, SettingKind.KEY)
        for name in edit.spellings
    }
    if not spellings:
        return view.rank is not None
    return any(
        argument.split("=", 1)[0].lstrip("+") in spellings or _names_copy(argument, copies) for argument in view.argv
    )


def _names_copy(argument: str, copies: tuple[str, ...]) -> str:
    """The copy of a configuration that an argument names; "" for another argument."""
    value = argument.partition("=")[2] if argument.startswith("-") and "=" in argument else argument
    return next((copy for copy in copies if value == copy or value == copy.rpartition("/")[2].rpartition(".")[0]), "")


def _judged(attempt: Attempt, edit: Edit, ranks: list[ProcessView], copies: tuple[str, ...]) -> Receipt:
    if edit.kind is SettingKind.ENVIRONMENT:
        having = [view for view in ranks if any(view.environment.get(name) == edit.new for name in edit.spellings)]
        what = f"{edit.spellings[0]}={edit.new}"
        where = "process environment"
    elif edit.kind is SettingKind.KEY and not any(_carries(view.argv, edit) for view in ranks):
        # The key stands in a file: that the process was given the changed copy is what can be seen of it.
        having = [view for view in ranks if any(_names_copy(argument, copies) for argument in view.argv)]
        what = f"the changed copy with {condition_of(edit.spellings[0])[0]} {edit.new}"
        where = "process arguments"
    else:
        having = [view for view in ranks if _argument_is(view.argv, edit)]
        what = f"{edit.spellings[0]} {edit.new}" if edit.new is not None else f"no {edit.spellings[0]}"
        where = "process arguments"
    first = having[0] if having else ranks[0]
    detail = f"{what}: in {len(having)} of {len(ranks)} processes on {first.node} (pid {first.pid})"
    return Receipt(_lever(attempt), where, bool(having), detail)


def _argument_is(argv: tuple[str, ...], edit: Edit) -> bool:
    value: str | None = None
    present = False
    for index, argument in enumerate(argv):
        name, equals, inline = argument.partition("=")
        if name.lstrip("+") in {spelling.lstrip("+") for spelling in edit.spellings}:
            present = True
            value = inline if equals else (argv[index + 1] if index + 1 < len(argv) else None)
    if edit.new is None:
        return not present
    return present if edit.flag else _same(value, edit.new)


def _same(value: str | None, wanted: str) -> bool:
    """Alike but for case of true and false, and for the quotes that a shell left inside a Hydra override."""
    return value is not None and (value == wanted or value.strip("'\"").lower() == wanted.lower())


def _carries(argv: tuple[str, ...], edit: Edit) -> bool:
    """Whether the key is on the command line at all."""
    spellings = {spelling.lstrip("+") for spelling in edit.spellings}
    return any(argument.split("=", 1)[0].lstrip("+") in spellings for argument in argv)


def _lever(attempt: Attempt) -> str:
    return ", ".join(use.lever for use in attempt.plan.uses) if attempt.plan and attempt.plan.uses else "none"


def _digest(text: str) -> str:
    # Accounting may add or drop the final line end.
    return hashlib.sha256(text.rstrip("\n").encode("utf-8", "surrogateescape")).hexdigest()
