"""Which device file is which GPU: the driver's index counts by PCI bus, /dev/nvidiaN as the kernel found them."""

from __future__ import annotations

import pytest

from runbook.model.units import Unknown
from runbook.node import Window
from runbook.node.probe_document import read_document
from tests.nvml.standin import document_of

pytestmark = pytest.mark.needs("gcc")


def minors(scenario: str) -> list[int | Unknown]:
    answer = read_document(document_of(scenario), ahead_s=0.0, window=Window())
    assert not isinstance(answer.gpus, Unknown)
    return [gpu.minor for gpu in answer.gpus]


def test_the_probe_tells_the_number_of_each_device_file() -> None:
    assert minors("h100_570_device_files") == [1, 0]


def test_a_library_that_does_not_tell_it_makes_it_unknown() -> None:
    assert all(isinstance(minor, Unknown) for minor in minors("h100_570_healthy"))
