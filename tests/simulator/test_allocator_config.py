"""Which variable and which keys a PyTorch version reads, and how it refuses the others."""

from __future__ import annotations

import pytest

from simulator.allocator_config import AllocatorConfigError, config_from_environment, parse_config
from simulator.versions import TorchVersion

MIB = 1 << 20
CUDA = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
GENERIC = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize(
    ("version", "environment", "expandable"),
    [
        ("2.1.2", CUDA, True),
        ("2.6.0", CUDA, True),
        ("2.6.0", GENERIC, False),
        ("2.8.0", GENERIC, False),
        ("2.9.1", GENERIC, False),
        ("2.9.1", CUDA, True),
        ("2.10.0", GENERIC, True),
        ("2.13.0", GENERIC, True),
        ("2.13.0", CUDA, True),
        ("2.11.0", {**GENERIC, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, False),
        ("2.6.0", {}, False),
    ],
)
def test_the_name_that_counts(version: str, environment: dict[str, str], expandable: bool) -> None:
    outcome = config_from_environment(environment, TorchVersion.parse(version))
    assert outcome.config.expandable_segments is expandable


def test_only_2_9_warns_of_the_old_name() -> None:
    warnings = {
        minor: config_from_environment(CUDA, TorchVersion(2, minor)).warning for minor in (6, 8, 9, 10, 13)
    }
    assert [minor for minor, warning in warnings.items() if warning] == [9]


def test_several_options() -> None:
    text = " max_split_size_mb:256, garbage_collection_threshold:0.8 ,roundup_power2_divisions:4"
    config = parse_config(text, TorchVersion(2, 6))
    assert config.max_split_size_bytes == 256 * MIB
    assert config.garbage_collection_threshold == 0.8
    assert config.roundup_power2_divisions == 4
    assert not config.expandable_segments


@pytest.mark.parametrize(
    ("version", "text", "message"),
    [
        ("2.6", "expandable_segment:True", "Unrecognized CachingAllocator option: expandable_segment"),
        ("2.0", "expandable_segments:True", "Unrecognized CachingAllocator option: expandable_segments"),
        ("2.10", "nonsense:1", "Unrecognized key 'nonsense' in CUDA allocator config."),
        ("2.9", "per_process_memory_fraction:0.5", "Unrecognized CachingAllocator option"),
        ("2.6", "expandable_segments:true", "Expected a single True/False argument for expandable_segments"),
        ("2.6", "max_split_size_mb:20", "must be > 20"),
        ("2.10", "max_split_size_mb:19", "must be >= 20"),
        ("2.6", "max_split_size_mb:many", "expecting max_split_size_mb value"),
        ("2.6", "garbage_collection_threshold:0", "garbage_collect_threshold too small, set it 0.0~1.0"),
        ("2.6", "garbage_collection_threshold:1.0", "garbage_collect_threshold too big, set it 0.0~1.0"),
        ("2.6", "roundup_power2_divisions:3", "power of 2"),
        ("2.6", "backend:malloc", "Unknown allocator backend"),
        ("2.6", "expandable_segments", "expected :"),
    ],
)
def test_refused(version: str, text: str, message: str) -> None:
    with pytest.raises(AllocatorConfigError) as caught:
        parse_config(text, TorchVersion.parse(version))
    assert message in str(caught.value)


def test_max_split_size_of_20_is_allowed_from_2_10_on() -> None:
    assert parse_config("max_split_size_mb:20", TorchVersion(2, 10)).max_split_size_bytes == 20 * MIB


@pytest.mark.parametrize("text", ["two", "2", "2.x", ""])
def test_not_a_version(text: str) -> None:
    with pytest.raises(ValueError, match="not a PyTorch version"):
        TorchVersion.parse(text)
