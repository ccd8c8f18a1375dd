"""Vocabulary: PyTorch versions, compared by their first two numbers."""

from __future__ import annotations

from typing import NamedTuple


class TorchVersion(NamedTuple):
    """Major and minor number of a PyTorch release; compares like a tuple."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> TorchVersion:
        """Read ``2.6``, ``2.6.0`` or ``2.6.0+cu124``; ValueError says what was expected."""
        parts = text.split("+")[0].split(".")
        if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
            raise ValueError(f"not a PyTorch version: {text!r} (expected for example 2.6.0)")
        return cls(int(parts[0]), int(parts[1]))


ALLOC_CONF_GENERIC_NAME_READ = TorchVersion(2, 10)
"""First release whose CUDA allocator reads ``PYTORCH_ALLOC_CONF`` (in 2.9 it only warns; before, nothing)."""
