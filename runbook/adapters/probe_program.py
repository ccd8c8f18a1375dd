"""The node probe as the adapters ship it: built once a process from the modules that are installed here."""

from __future__ import annotations

import functools
from importlib.resources import files

from runbook.probe.build import NoPynvml, program


@functools.lru_cache(maxsize=1)
def probe_program() -> str:
    """The program text for `python3 -`; "" where nvidia-ml-py is not installed: nodes are then asked by nvidia-smi."""
    try:
        return program()
    except (NoPynvml, OSError):
        return ""


@functools.lru_cache(maxsize=1)
def end_program() -> str:
    """The program text that ends one process on a node."""
    return files("runbook.probe").joinpath("end_process.py").read_text(encoding="utf-8")
