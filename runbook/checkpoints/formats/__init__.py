"""One module a format: what is written last, and what is missing from a save that did not finish.

A format is found by its registration (`checkpoint_format`): a module more in this folder is a format more.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from runbook.checkpoints.folders import Format, registered


@cache
def all_formats() -> tuple[Format, ...]:
    """Every format of this folder, in the order in which they are asked."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return registered()
