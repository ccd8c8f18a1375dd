"""`PYTORCH_CUDA_ALLOC_CONF`: read, merge and write its options.

Sources: PyTorch's `CUDAAllocatorConfig`; issues pytorch#123548 (max_split_size_mb beside expandable segments),
pytorch#134338 (garbage_collection_threshold beside them); pull request #76648 (the threshold needs a fraction).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runbook.remedy.situation import Refusal
from runbook.remedy.versions import Versions

Options = tuple[tuple[str, str], ...]

SMALLEST_SPLIT_MIB = 21
"""`max_split_size_mb` must be above 20 (at least 20 from 2.10)."""


def read_options(text: str) -> Options | Refusal:
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
            return Refusal(f"the allocator's setting {text!r} has a part that is no key:value: {item!r}")
        options.append((key.strip(), value.strip()))
    if depth or part.strip():
        return Refusal(f"the allocator's setting {text!r} has an open bracket")
    keys = [key for key, _ in options]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        return Refusal(f"the allocator's setting {text!r} gives {twice[0]} twice")
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
