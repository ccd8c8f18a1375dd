"""Constraints on the job that failed: figures of the failure, who held the card, hosts, nodes, checkpoints."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator

from runbook.model.sentences import Sentence, as_written
from runbook.model.sentences.of_levers import Say
from runbook.model.template import TemplateFile
from runbook.remedy.constraints.training_loop import syntax_tree
from runbook.remedy.lever_context import Arguments, LeverContext, texts_of
from runbook.remedy.recognition import code_alone, first_uncommented_match, names_alone
from runbook.remedy.template_settings import RefusalReason, Refused


def allocator_could_have_served(context: LeverContext, arguments: Arguments) -> None:
    """Free plus reserved but unallocated memory must hold the request: else no allocator setting could have helped.

    Rule R-04 (perfect defragmentation). Missing figures exclude nothing."""
    fields = context.fields
    free, unallocated, tried = fields.free_bytes, fields.unallocated, fields.tried_bytes
    if free is None or unallocated is None or tried is None:
        return
    if free + unallocated + (fields.rounding_bytes or 0) >= tried:
        return
    raise Refused(Say.TOO_LITTLE_WITHOUT_FRAGMENTATION(free=free + unallocated, tried=tried))


def much_lies_unallocated(context: LeverContext, arguments: Arguments) -> None:
    """At least a twentieth of what is reserved must be unallocated: what the allocator holds back of a full card in
    ordinary running is less, and another setting of it frees no more than that. Missing figures exclude nothing."""
    reserved, unallocated = context.fields.reserved, context.fields.unallocated
    if not reserved or unallocated is None or unallocated * 20 >= reserved:
        return
    raise Refused(Say.NEXT_TO_NOTHING_UNALLOCATED(share=unallocated / reserved))


def request_fits_the_gpu(context: LeverContext, arguments: Arguments) -> None:
    """A request above the GPU's capacity is not a matter of the allocator (R-08)."""
    tried, capacity = context.fields.tried_bytes, context.fields.capacity_bytes
    if tried is None or capacity is None or tried <= capacity:
        return
    raise Refused(Say.REQUEST_LARGER_THAN_GPU(tried=tried, capacity=capacity))


def no_private_pools(context: LeverContext, arguments: Arguments) -> None:
    """Memory in private pools (CUDA graphs) is not the allocator's to give (R-14)."""
    held = context.fields.private_pool_bytes
    if not held:
        return
    raise Refused(Say.HELD_IN_PRIVATE_POOLS(held=held), Say.CAN_CUDA_GRAPHS_BE_FEWER())


def checkpoint_reshardable(context: LeverContext, arguments: Arguments) -> None:
    """The checkpoint to resume from must not be known to be tied to its sharding. Where that is not known yet, the
    lever's `needs_reshard` makes the choice of the checkpoint ask for one that can be loaded at another sharding."""
    if context.template.system.checkpoint.reshardable is False:
        raise Refused(Say.LOADS_ONLY_AT_ITS_SHARDING())
    usable = [item for item in context.checkpoints or () if item.complete]
    if usable and not any(item.reshardable for item in usable):
        raise Refused(Say.NO_CHECKPOINT_KNOWN_TO_RESHARD(path=usable[0].path), Say.CAN_IT_BE_RESHARDED())
    return


def free_held_the_request(context: LeverContext, arguments: Arguments) -> None:
    """The card had the memory free that was asked for, and it was not given: something keeps it back."""
    free, tried = context.fields.free_bytes, context.fields.tried_bytes
    if free is None or tried is None:
        raise Refused(Say.FREE_AT_FAILURE_NOT_KNOWN())
    if free >= tried:
        return
    raise Refused(Say.LESS_FREE_ON_CARD_THAN_ASKED())


def others_hold(context: LeverContext, arguments: Arguments) -> None:
    """Other processes hold at least `percent` of the card, as the failed process's message shows.

    An engine that left the card keeps its context and little more, so its share is nothing to lower then."""
    fields = context.fields
    capacity, free, own = fields.capacity_bytes, fields.free_bytes, fields.process_bytes
    held: int = sum(item.bytes or 0 for item in fields.other_processes)
    if not held and capacity is not None and free is not None and own is not None:
        held = capacity - free - own
    elif not held:
        raise Refused(Say.OTHERS_ON_CARD_NOT_KNOWN())
    if capacity is not None and held * 100 >= capacity * int(str(arguments["percent"])):
        return
    raise Refused(Say.OTHER_PROCESSES_HOLD_LITTLE(held=max(held, 0)))


def host_memory_holds(context: LeverContext, arguments: Arguments) -> None:
    """What goes from the GPUs to the host must fit beside what the host holds. Bounded from above: all that PyTorch
    had allocated on a GPU, times the GPUs of a node; to be below the job's limit by a tenth.

    Offloading on a host that is short of memory turns a GPU's failure into a node's."""
    allocated = context.fields.allocated_bytes
    limit, gpus = context.job.memory_limit_bytes_per_node, context.job.gpus_per_node
    used = [item.host_used_bytes for item in context.story.progress.memory if item.host_used_bytes is not None]
    if allocated is not None and gpus:
        what = Say.HAS_EACH_NODE_GIB_TO_SPARE(allocated=allocated * gpus)
    else:
        what = Say.HAS_EACH_NODE_MEMORY_TO_SPARE()
    if allocated is None or not limit or not gpus or not used:
        raise Refused(Say.ROOM_OF_HOST_NOT_KNOWN(), what)
    share = max(used) * (gpus if any(item.host_is_process for item in context.story.progress.memory) else 1)
    if allocated * gpus + share <= limit * 0.9:
        return
    raise Refused(Say.HOST_WOULD_BE_FULL(allocated=allocated * gpus, share=share, limit=limit), what)


_FIRST_STEPS = 10
_STARTED_WITHIN_S = 900.0


def died_early(context: LeverContext, arguments: Arguments) -> None:
    """The job ended within its first ten steps, and within a quarter of an hour where its log shows no step or its
    times are known; or the log prints main memory along more steps than that, in which a leak would show. `question`
    is asked else: a leak looks the same."""
    progress, job = context.story.progress, context.job
    if len({item.step for item in progress.memory if item.host_used_bytes is not None}) > _FIRST_STEPS:
        return
    ran = None if None in (job.start_time_s, job.end_time_s) else (job.end_time_s or 0) - (job.start_time_s or 0)
    if progress.last_step is not None:
        # Not counted from the first step that is printed: a job may print each thousandth.
        begun = progress.resumed_from_step or 0
        if progress.last_step - begun <= _FIRST_STEPS and (ran is None or ran <= _STARTED_WITHIN_S):
            return
        why = Say.MADE_STEPS_AND_PRINTS_NO_MEMORY(last_step=progress.last_step - begun)
    else:
        if ran is not None and ran <= _STARTED_WITHIN_S:
            return
        why = Say.STEPS_MADE_NOT_KNOWN()
    raise Refused(Say.LEAK_OR_SIZE(why=why), as_written(arguments["question"]), RefusalReason.CONSENT)


def frames_show(context: LeverContext, arguments: Arguments) -> None:
    """A function's name in the traceback matches `pattern`; `means` says in words what that shows."""
    cause = context.story.root_cause
    frames = cause.frames if cause is not None else ()
    if any(re.search(str(arguments["pattern"]), name) for name in frames):
        return
    raise Refused(Say.TRACEBACK_DOES_NOT_SHOW(means=arguments["means"]))


def on_one_node(context: LeverContext, arguments: Arguments) -> None:
    """The job has one node; `question` is asked otherwise: what a node's own disk gives is not there on another."""
    nodes = context.job.num_nodes or len(context.job.nodes)
    if nodes == 1:
        return
    question = as_written(arguments["question"])
    if not nodes:
        raise Refused(Say.NODES_NOT_KNOWN(), question, RefusalReason.RANKS_NOT_KNOWN)
    raise Refused(Say.SEVERAL_NODES(nodes=nodes), question)


def no_word_of(context: LeverContext, arguments: Arguments) -> None:
    """No live line of the job's files matches `pattern`, in a program none of its names: it is of a kind for which
    the lever is another thing. `why` says what; a person may say otherwise, with `experiment` knowing that it is
    another one then."""
    running = {posixpath.basename(file.path): names_alone(file) for file in context.template.code()}
    files = [running.get(posixpath.basename(file.path), file) for file in context.template.templates]
    found = first_uncommented_match(str(arguments["pattern"]), files)
    if found is None:
        return
    text, file, line = found
    raise _told(Say.SEEN_AT(text=text, file=posixpath.basename(file.path), line=line), arguments)


def no_code_of(context: LeverContext, arguments: Arguments) -> None:
    """No code of the programs and of the modules of their own that they import matches `pattern`; what their docstrings
    and comments say is none. `why` says what follows where it does, `question` what a person may decide, with
    `experiment` knowing that it is another one then. Code that matches `beside` allows it."""
    found = _in_code(context, str(arguments["pattern"]))
    if found is None or ("beside" in arguments and _in_code(context, str(arguments["beside"])) is not None):
        return
    text, file, line = found
    shown = " ".join(text.split())[:80]
    raise _told(Say.SEEN_AT(text=shown, file=posixpath.basename(file.path), line=line), arguments)


def code_of(context: LeverContext, arguments: Arguments) -> None:
    """Some code of the programs, as in `no_code_of`, matches `pattern`. `means` says in words what that shows."""
    if _in_code(context, str(arguments["pattern"])) is None:
        raise Refused(Say.PROGRAM_CODE_DOES_NOT_SHOW(means=arguments["means"]))


def _in_code(context: LeverContext, pattern: str) -> tuple[str, TemplateFile, int] | None:
    return first_uncommented_match(pattern, [code_alone(file) for file in context.template.code()])


def _told(found: Sentence, arguments: Arguments) -> Refused:
    reason = RefusalReason.EXPERIMENT if arguments.get("experiment") else RefusalReason.NOT_MET
    question = as_written(arguments.get("question", ""))
    return Refused(Say.FOUND_AND_SO(found=found, why=arguments["why"]), question, reason)


def not_done_in_code(context: LeverContext, arguments: Arguments) -> None:
    """The program does not do by itself, whatever its options are, what the lever does: no statement that calls one of
    `calls` or sets one of `attributes` to true stands outside of a condition, nor in one of an option that is given as
    true. `why` says what follows."""
    calls, attributes = set(texts_of(arguments, "calls")), set(texts_of(arguments, "attributes"))
    for file in context.template.templates:
        if file.path.endswith(".py") and any(name in file.text for name in calls | attributes):
            for node, guards in _with_guards(file.text):
                if _does(node, calls, attributes) and all(_given(context, guard) for guard in guards):
                    where = f"{posixpath.basename(file.path)}:{getattr(node, 'lineno', 1)}"
                    raise Refused(Say.PROGRAM_DOES_IT_BY_ITSELF(where=where, why=arguments["why"]))


def _with_guards(text: str) -> Iterator[tuple[ast.AST, tuple[ast.expr | None, ...]]]:
    """Every statement with the conditions in which it stands; None for one that is no plain `if`."""
    tree = syntax_tree(text)
    ahead: list[tuple[ast.AST, tuple[ast.expr | None, ...]]] = [(tree, ())] if tree is not None else []
    while ahead:
        node, guards = ahead.pop()
        yield node, guards
        for name, value in ast.iter_fields(node):
            below = guards
            if isinstance(node, ast.If) and name in ("body", "orelse"):
                below = (*guards, node.test if name == "body" else None)
            elif isinstance(node, ast.FunctionDef) and "checkpoint" in node.name:
                below = (*guards, None)  # a method for others to call
            items = value if isinstance(value, list) else [value]
            ahead += [(item, below) for item in items if isinstance(item, ast.AST)]


def _does(node: ast.AST, calls: set[str], attributes: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in calls
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is True:
        return any(isinstance(target, ast.Attribute) and target.attr in attributes for target in node.targets)
    return False


def _given(context: LeverContext, guard: ast.expr | None) -> bool:
    """Whether the condition is an option that the command gives as true, or the module's own main."""
    if isinstance(guard, ast.Compare) and isinstance(guard.left, ast.Name) and guard.left.id == "__name__":
        return True
    name = guard.attr if isinstance(guard, ast.Attribute) else guard.id if isinstance(guard, ast.Name) else ""
    option = "--" + name.replace("_", "[-_]") + r"""(?:[ =]["']?(?:[Tt]rue|1)\b|\s*(?:\\|$))"""
    return bool(name) and any(re.search(option, line.text) for line in context.template.lines())
