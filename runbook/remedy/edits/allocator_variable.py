"""`PYTORCH_CUDA_ALLOC_CONF`: read, merge and write its options.

Sources: PyTorch's `CUDAAllocatorConfig`; issues pytorch#123548 (max_split_size_mb beside expandable segments),
pytorch#134338 (garbage_collection_threshold beside them); pull request #76648 (the threshold needs a fraction).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runbook.model.sentences import Sentence
from runbook.model.sentences.of_levers import Say
from runbook.model.template import Edit
from runbook.remedy.edits.parameter_edit import Edits, edit_of
from runbook.remedy.lever_context import Arguments, LeverContext, Versions, texts_of
from runbook.remedy.lever_document import Parameter
from runbook.remedy.template_settings import Refused

Options = tuple[tuple[str, str], ...]

SMALLEST_SPLIT_MIB = 21
"""`max_split_size_mb` must be above 20 (at least 20 from 2.10)."""


def read_options(text: str) -> Options:
    """`key:value,key:[a:b,c:d]` in order. An empty text has no options."""
    options: list[tuple[str, str]] = []
    depth, part = 0, ""
    for char in f"{text},":
        depth += (char == "[") - (char == "]")
        if char != "," or depth:
            part += char
            continue
        item, part = part.strip(), ""
        if not item:
            continue
        key, colon, value = item.partition(":")
        if not colon or not key.strip() or not value.strip():
            raise Refused(Say.ALLOCATOR_SETTING_NOT_KEY_VALUE(text=text, item=item))
        options.append((key.strip(), value.strip()))
    if depth or part.strip():
        raise Refused(Say.ALLOCATOR_SETTING_OPEN_BRACKET(text=text))
    keys = [key for key, _ in options]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise Refused(Say.ALLOCATOR_SETTING_GIVES_TWICE(text=text, twice=twice[0]))
    return tuple(options)


def write_options(options: Options) -> str:
    return ",".join(f"{key}:{value}" for key, value in options)


def merge(options: Options, wanted: Mapping[str, str], without: Sequence[str] = ()) -> Options:
    """Keep what is set, in its order; set `wanted`; leave out `without`."""
    kept = [(key, wanted.get(key, value)) for key, value in options if key not in without]
    present = {key for key, _ in kept}
    return (*kept, *((key, value) for key, value in wanted.items() if key not in present))


def without_for_expandable(options: Options, versions: Versions) -> tuple[tuple[str, ...], tuple[Sentence, ...]]:
    """Options that have to go when expandable segments come, and why each."""
    gone, reasons = [], []
    keys = dict(options)
    if "max_split_size_mb" in keys:
        gone.append("max_split_size_mb")
        reasons.append(Say.MAX_SPLIT_SIZE_MB_LEFT_OUT())
    if "garbage_collection_threshold" in keys and not versions.surely_at_least((2, 6)):
        gone.append("garbage_collection_threshold")
        reasons.append(Say.GARBAGE_COLLECTION_THRESHOLD_LEFT_OUT())
    return tuple(gone), tuple(reasons)


def native_backend(options: Options) -> bool:
    """Whether PyTorch's own allocator is in use: cudaMallocAsync ignores these options."""
    return dict(options).get("backend", "native") == "native"


# Merge an option into the allocator's variable, under the name that this version of PyTorch reads.

ROCM_NAME = "PYTORCH_HIP_ALLOC_CONF"
"""The variable of PyTorch built for ROCm."""


def merge_allocator(context: LeverContext, parameter: Parameter, arguments: Arguments) -> Edits:
    """Merge `option:value` into what is set there.

    `parameter` is the name that every version reads; the argument `newer` is the parameter of the name that counts
    from 2.10 on. `without` lists options to take out. On ROCm only its own variable is edited, where it is set.
    """
    _named_as_rocm_reads_it(context, parameter)
    newer = context.template.system.parameter(str(arguments["newer"]))
    old, new = context.template.text(parameter.id), context.template.text(newer.id)
    name, new_name = context.template.spelling(parameter.id), newer.spellings[0]
    if old is not None and new is not None and old != new:
        raise Refused(
            Say.BOTH_NAMES_SET_AND_DIFFER(name=name, new_name=new_name),
            Say.WHICH_NAME_IS_MEANT(name=name, new_name=new_name)
        )
    ignored = old is None and new is not None and context.versions.surely_below((2, 10))
    options = read_options("" if ignored else (old if old is not None else new) or "")
    text, remarks = _merged(context, options, arguments)
    targets, why = _targets(context, parameter, newer, old, new)
    present = {parameter.id: old, newer.id: new}
    edits: list[Edit] = []
    for target in targets:
        if present[target.id] == text:
            continue
        made = edit_of(context, target, text)
        edits += made.edits
    if not edits:
        raise Refused(Say.ALLOCATOR_SETTING_ALREADY(text=text))
    return Edits(tuple(edits), (*remarks, why))


def _named_as_rocm_reads_it(context: LeverContext, parameter: Parameter) -> None:
    """Refused where the log shows a build for ROCm (PT-HIP-01: "HIP out of memory", the variable's name), and the
    template does not set the variable of that build: which names it reads differs between builds."""
    cause = context.story.root_cause
    excerpt = cause.excerpt if cause is not None else ""
    rocm = "HIP out of memory" in excerpt or ROCM_NAME in excerpt or "rocm" in context.versions.said.lower()
    if not rocm or context.template.spelling(parameter.id) == ROCM_NAME:
        return
    raise Refused(Say.NAME_FOR_ROCM_NOT_KNOWN(), Say.DOES_THIS_BUILD_READ(ROCM_NAME=ROCM_NAME))


def _merged(context: LeverContext, options: Options, arguments: Arguments) -> tuple[str, tuple[Sentence, ...]]:
    option, value = str(arguments["option"]), str(arguments["value"])
    keys = dict(options)
    if not native_backend(options):
        raise Refused(Say.ALLOCATOR_BACKEND_IGNORES(backend=keys["backend"], option=option))
    gone = texts_of(arguments, "without")
    remarks = tuple(Say.IS_LEFT_OUT(item=item) for item in gone if item in keys)
    if option == "expandable_segments":
        _may_be_expandable(context, keys, value)
        more, reasons = without_for_expandable(options, context.versions)
        gone, remarks = (*gone, *more), (*remarks, *reasons)
    elif option == "max_split_size_mb":
        if int(value) < SMALLEST_SPLIT_MIB:
            raise Refused(Say.MAX_SPLIT_SIZE_MB_AT_LEAST(SMALLEST_SPLIT_MIB=SMALLEST_SPLIT_MIB))
        present = keys.get(option, "")
        if present.isdecimal() and int(present) <= int(value):
            raise Refused(Say.MAX_SPLIT_SIZE_MB_ALREADY(present=present))
    return write_options(merge(options, {option: value}, gone)), remarks


def _may_be_expandable(context: LeverContext, keys: dict[str, str], value: str) -> None:
    if context.versions.surely_below((2, 1)):
        raise Refused(Say.PYTORCH_HAS_NO_EXPANDABLE_SEGMENTS(said=context.versions.said))
    present = keys.get("expandable_segments")
    if present == value:
        raise Refused(Say.EXPANDABLE_SEGMENTS_SET_ALREADY(value=value))
    if present is not None:
        raise Refused(Say.EXPANDABLE_SEGMENTS_SET_ON_PURPOSE(present=present), Say.MAY_EXPANDABLE_SEGMENTS_BE_ON())


def _targets(
    context: LeverContext, parameter: Parameter, newer: Parameter, old: str | None, new: str | None
) -> tuple[tuple[Parameter, ...], Sentence]:
    """Which variable to write, and why. 2.10 is the first version whose CUDA allocator reads the newer name: up to
    2.8 it is unknown, in 2.9 it is parsed without effect (pytorch#183387)."""
    name, new_name, versions = context.template.spelling(parameter.id), newer.spellings[0], context.versions
    if name == ROCM_NAME:
        return (parameter,), Say.NAME_IN_TEMPLATE_OF_ROCM(name=name)
    if old is not None and new is not None:
        return (parameter, newer), Say.BOTH_NAMES_SET(name=name, new_name=new_name)
    if old is not None:
        return (parameter,), Say.NAME_IN_TEMPLATE_ALL_VERSIONS_READ(name=name)
    if new is None:
        why = Say.NAME_THAT_ALL_VERSIONS_READ(name=name)
        return (parameter,), why if versions.said else Say.VERSION_OF_JOB_NOT_KNOWN(why=why)
    if versions.surely_at_least((2, 10)):
        return (newer,), Say.NAME_IN_TEMPLATE_PYTORCH_READS(new_name=new_name, said=versions.said)
    if versions.surely_below((2, 10)):
        return (parameter,), Say.PYTORCH_DOES_NOT_READ_NEW_NAME(said=versions.said, new_name=new_name, name=name)
    return (parameter, newer), (
        Say.WHETHER_PYTORCH_READS_NOT_KNOWN(new_name=new_name, said=versions.said or "no version in the log")
    )
