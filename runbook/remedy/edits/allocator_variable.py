"""`PYTORCH_CUDA_ALLOC_CONF`: read, merge and write its options.

Sources: PyTorch's `CUDAAllocatorConfig`; issues pytorch#123548 (max_split_size_mb beside expandable segments),
pytorch#134338 (garbage_collection_threshold beside them); pull request #76648 (the threshold needs a fraction).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
            raise Refused(f"the allocator's setting {text!r} has a part that is no key:value: {item!r}")
        options.append((key.strip(), value.strip()))
    if depth or part.strip():
        raise Refused(f"the allocator's setting {text!r} has an open bracket")
    keys = [key for key, _ in options]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise Refused(f"the allocator's setting {text!r} gives {twice[0]} twice")
    return tuple(options)


def write_options(options: Options) -> str:
    return ",".join(f"{key}:{value}" for key, value in options)


def merge(options: Options, wanted: Mapping[str, str], without: Sequence[str] = ()) -> Options:
    """Keep what is set, in its order; set `wanted`; leave out `without`."""
    kept = [(key, wanted.get(key, value)) for key, value in options if key not in without]
    present = {key for key, _ in kept}
    return (*kept, *((key, value) for key, value in wanted.items() if key not in present))


def without_for_expandable(options: Options, versions: Versions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Options that have to go when expandable segments come, and why each."""
    gone, reasons = [], []
    keys = dict(options)
    if "max_split_size_mb" in keys:
        gone.append("max_split_size_mb")
        reasons.append("max_split_size_mb is left out: beside expandable segments it takes a wrong release path")
    if "garbage_collection_threshold" in keys and not versions.surely_at_least((2, 6)):
        gone.append("garbage_collection_threshold")
        reasons.append(
            "garbage_collection_threshold is left out: older PyTorch fails an assertion on it beside expandable "
            "segments, and without a memory fraction it has no effect"
        )
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
            f"{name} and {new_name} are both set and differ, so which one holds is not certain",
            f"Which of {name} and {new_name} is meant? Remove the other.",
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
        raise Refused(f"the allocator's setting is {text} already")
    return Edits(tuple(edits), (*remarks, why))


def _named_as_rocm_reads_it(context: LeverContext, parameter: Parameter) -> None:
    """Refused where the log shows a build for ROCm (PT-HIP-01: "HIP out of memory", the variable's name), and the
    template does not set the variable of that build: which names it reads differs between builds."""
    cause = context.story.root_cause
    excerpt = cause.excerpt if cause is not None else ""
    rocm = "HIP out of memory" in excerpt or ROCM_NAME in excerpt or "rocm" in context.versions.said.lower()
    if not rocm or context.template.spelling(parameter.id) == ROCM_NAME:
        return
    raise Refused(
        "the log is of PyTorch for ROCm, and which name of the allocator's variable this build reads is not known",
        f"Does this build read {ROCM_NAME}? Then write it into the template with its present options.",
    )


def _merged(context: LeverContext, options: Options, arguments: Arguments) -> tuple[str, tuple[str, ...]]:
    option, value = str(arguments["option"]), str(arguments["value"])
    keys = dict(options)
    if not native_backend(options):
        raise Refused(f"the allocator's backend is {keys['backend']}, which ignores {option}")
    gone = texts_of(arguments, "without")
    remarks = tuple(f"{item} is left out" for item in gone if item in keys)
    if option == "expandable_segments":
        _may_be_expandable(context, keys, value)
        more, reasons = without_for_expandable(options, context.versions)
        gone, remarks = (*gone, *more), (*remarks, *reasons)
    elif option == "max_split_size_mb":
        if int(value) < SMALLEST_SPLIT_MIB:
            raise Refused(f"max_split_size_mb must be at least {SMALLEST_SPLIT_MIB}")
        present = keys.get(option, "")
        if present.isdecimal() and int(present) <= int(value):
            raise Refused(f"max_split_size_mb is {present} already")
    return write_options(merge(options, {option: value}, gone)), remarks


def _may_be_expandable(context: LeverContext, keys: dict[str, str], value: str) -> None:
    if context.versions.surely_below((2, 1)):
        raise Refused(f"PyTorch {context.versions.said} has no expandable segments (2.1 and later have)")
    present = keys.get("expandable_segments")
    if present == value:
        raise Refused(f"expandable_segments:{value} is set already")
    if present is not None:
        raise Refused(
            f"expandable_segments:{present} is set on purpose",
            "Somebody switched expandable_segments off. May it be switched on?",
        )


def _targets(
    context: LeverContext, parameter: Parameter, newer: Parameter, old: str | None, new: str | None
) -> tuple[tuple[Parameter, ...], str]:
    """Which variable to write, and why. 2.10 is the first version whose CUDA allocator reads the newer name: up to
    2.8 it is unknown, in 2.9 it is parsed without effect (pytorch#183387)."""
    name, new_name, versions = context.template.spelling(parameter.id), newer.spellings[0], context.versions
    if name == ROCM_NAME:
        return (parameter,), f"{name} is the name in the template; a build for ROCm that lacks the option warns only"
    if old is not None and new is not None:
        return (parameter, newer), f"{name} and {new_name} are both set: both get the same value"
    if old is not None:
        return (parameter,), f"{name} is the name in the template, and every version of PyTorch reads it"
    if new is None:
        why = f"{name} is the name that every version of PyTorch reads"
        return (parameter,), why if versions.said else f"{why}; which version this job has is not known"
    if versions.surely_at_least((2, 10)):
        return (newer,), f"{new_name} is the name in the template, and PyTorch {versions.said} reads it"
    if versions.surely_below((2, 10)):
        return (parameter,), f"PyTorch {versions.said} does not read {new_name} (2.10 and later do), so {name} is set"
    return (parameter, newer), (
        f"whether this PyTorch reads {new_name} is not known ({versions.said or 'no version in the log'}), so both "
        "names get the same value"
    )
