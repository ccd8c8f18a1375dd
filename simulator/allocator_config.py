"""Pure: the allocator's settings, read from the environment as a named PyTorch version would read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runbook.allocator import LARGE_SEGMENT_BYTES, MIB, UNLIMITED_BYTES, AllocatorConfig

from .versions import ALLOC_CONF_GENERIC_NAME_READ, TorchVersion

CUDA_NAME = "PYTORCH_CUDA_ALLOC_CONF"
GENERIC_NAME = "PYTORCH_ALLOC_CONF"

_FIRST_VERSION = {
    "backend": TorchVersion(2, 0),
    "max_split_size_mb": TorchVersion(1, 10),
    "garbage_collection_threshold": TorchVersion(1, 12),
    "roundup_power2_divisions": TorchVersion(1, 12),
    "expandable_segments": TorchVersion(2, 1),
    "release_lock_on_cudamalloc": TorchVersion(2, 1),
    "pinned_use_cuda_host_register": TorchVersion(2, 1),
    "pinned_num_register_threads": TorchVersion(2, 1),
    "max_non_split_rounding_mb": TorchVersion(2, 5),
    "per_process_memory_fraction": TorchVersion(2, 10),
}
_WITHOUT_EFFECT_HERE = frozenset(
    {"release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "pinned_num_register_threads"}
)


class AllocatorConfigError(RuntimeError):
    """A setting the named PyTorch version would refuse; the text is PyTorch's."""


@dataclass(frozen=True, slots=True)
class EnvironmentConfig:
    """What a version made of the environment: the settings, the variable they came from, and any warning."""

    config: AllocatorConfig
    honoured_name: str | None
    warning: str | None = None


def config_from_environment(environment: Mapping[str, str], version: TorchVersion) -> EnvironmentConfig:
    """The settings that ``version`` would use.

    Up to 2.9 the CUDA allocator reads ``PYTORCH_CUDA_ALLOC_CONF`` only (2.9 already parses the new name and
    warns, with no effect: pytorch#183387); from 2.10 on both, the CUDA name first. Raises AllocatorConfigError.
    """
    honoured: str | None = None
    if CUDA_NAME in environment:
        honoured = CUDA_NAME
    elif GENERIC_NAME in environment and version >= ALLOC_CONF_GENERIC_NAME_READ:
        honoured = GENERIC_NAME
    warning = None
    if version == TorchVersion(2, 9) and CUDA_NAME in environment:
        warning = f"{CUDA_NAME} is deprecated, use {GENERIC_NAME} instead"
    text = environment[honoured] if honoured else ""
    return EnvironmentConfig(parse_config(text, version), honoured, warning)


def parse_config(text: str, version: TorchVersion) -> AllocatorConfig:
    """Read ``key:value,key:value`` as ``CUDAAllocatorConfig::parseArgs`` does; blanks are ignored.

    Raises AllocatorConfigError with the version's wording for a key or value it does not accept.
    """
    values: dict[str, bool | int | float] = {}
    for part in _split_options(text.replace(" ", "")):
        key, colon, value = part.partition(":")
        _check_key(key, version)
        if not colon:
            raise AllocatorConfigError("Error parsing CachingAllocator settings, expected :")
        if key not in _WITHOUT_EFFECT_HERE:
            values[key] = _VALUE_READERS[key](value, version)
    fraction = values.get("per_process_memory_fraction")
    max_split_mb = values.get("max_split_size_mb")
    rounding_mb = values.get("max_non_split_rounding_mb")
    return AllocatorConfig(
        expandable_segments=bool(values.get("expandable_segments", False)),
        max_split_size_bytes=UNLIMITED_BYTES if max_split_mb is None else int(max_split_mb) * MIB,
        max_non_split_rounding_bytes=LARGE_SEGMENT_BYTES if rounding_mb is None else int(rounding_mb) * MIB,
        garbage_collection_threshold=float(values.get("garbage_collection_threshold", 0.0)),
        roundup_power2_divisions=int(values.get("roundup_power2_divisions", 0)),
        per_process_memory_fraction=None if fraction is None else float(fraction),
    )


def _split_options(text: str) -> list[str]:
    """Parts between the commas that are not inside ``[...]``."""
    parts: list[str] = []
    depth = start = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part for part in parts if part]


def _check_key(key: str, version: TorchVersion) -> None:
    first = _FIRST_VERSION.get(key)
    if first is not None and version >= first:
        return
    if version >= ALLOC_CONF_GENERIC_NAME_READ:
        raise AllocatorConfigError(f"Unrecognized key '{key}' in CUDA allocator config.")
    raise AllocatorConfigError(f"Unrecognized CachingAllocator option: {key}")


def _read_backend(value: str, version: TorchVersion) -> bool:
    del version
    if value == "native":
        return True
    if value == "cudaMallocAsync":
        raise AllocatorConfigError("the simulation has no backend:cudaMallocAsync; use backend:native")
    raise AllocatorConfigError("Unknown allocator backend, options are native and cudaMallocAsync")


def _read_expandable(value: str, version: TorchVersion) -> bool:
    del version
    if value not in ("True", "False"):
        raise AllocatorConfigError("Expected a single True/False argument for expandable_segments")
    return value == "True"


def _read_max_split(value: str, version: TorchVersion) -> int:
    size_mb = _number(value, "max_split_size_mb")
    limit_mb = LARGE_SEGMENT_BYTES // MIB
    if version >= ALLOC_CONF_GENERIC_NAME_READ:
        if size_mb < limit_mb:
            raise AllocatorConfigError(f"CachingAllocator option max_split_size_mb too small, must be >= {limit_mb}")
    elif size_mb <= limit_mb:
        raise AllocatorConfigError(f"CachingAllocator option max_split_size_mb too small, must be > {limit_mb}")
    return int(size_mb)


def _read_rounding(value: str, version: TorchVersion) -> int:
    del version
    size_mb = _number(value, "max_non_split_rounding_mb")
    if size_mb <= LARGE_SEGMENT_BYTES // MIB:
        raise AllocatorConfigError("CachingAllocator option max_non_split_rounding_mb too small, must be > 20")
    return int(size_mb)


def _read_threshold(value: str, version: TorchVersion) -> float:
    del version
    threshold = _number(value, "garbage_collection_threshold")
    if threshold <= 0:
        raise AllocatorConfigError("garbage_collect_threshold too small, set it 0.0~1.0")
    if threshold >= 1:
        raise AllocatorConfigError("garbage_collect_threshold too big, set it 0.0~1.0")
    return threshold


def _read_divisions(value: str, version: TorchVersion) -> int:
    del version
    if value.startswith("["):
        raise AllocatorConfigError("the simulation reads one number for roundup_power2_divisions, not a list")
    divisions = int(_number(value, "roundup_power2_divisions"))
    if divisions & (divisions - 1):
        raise AllocatorConfigError("For roundups, the divisions has to be power of 2 ")
    return divisions


def _read_fraction(value: str, version: TorchVersion) -> float:
    del version
    fraction = _number(value, "per_process_memory_fraction")
    if not 0.0 <= fraction <= 1.0:
        raise AllocatorConfigError(
            "per_process_memory_fraction is invalid, set it in [0.0, 1.0]",
        )
    return fraction


def _number(value: str, key: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise AllocatorConfigError(f"Error, expecting {key} value") from None


_VALUE_READERS = {
    "backend": _read_backend,
    "expandable_segments": _read_expandable,
    "max_split_size_mb": _read_max_split,
    "max_non_split_rounding_mb": _read_rounding,
    "garbage_collection_threshold": _read_threshold,
    "roundup_power2_divisions": _read_divisions,
    "per_process_memory_fraction": _read_fraction,
}
