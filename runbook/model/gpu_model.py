"""How much memory a GPU of a model has, as the catalogue document says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.model.units import Bytes

_MAKERS = ("nvidia ", "tesla ")


@dataclass(frozen=True, slots=True)
class GpuModels:
    """Model name → the least total memory that a sound one of it shows, with source and date."""

    least_bytes: Mapping[str, Bytes] = field(default_factory=dict)
    source: str = ""
    date: str = ""

    def capacity(self, name: str) -> Bytes | None:
        """None: the model is not in the catalogue, or is a slice or virtual GPU of one."""
        return self.least_bytes.get(model_key(name))


def model_key(name: str) -> str:
    """ "NVIDIA A100-SXM4-80GB" and "A100-SXM4-80GB" are one model: drivers before 470 leave the maker out."""
    key = " ".join(name.lower().split())
    for maker in _MAKERS:
        key = key.removeprefix(maker)
    return key
