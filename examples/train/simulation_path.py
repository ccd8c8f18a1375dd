"""Makes ``runbook.simulator`` importable for the scripts of this folder, without importing anything of runbook.

A folder ``simulator`` beside this file wins, so that the scripts can be copied to a place of their own together
with ``runbook/simulator``; otherwise the repository that this folder belongs to is used.
"""

import os
import sys
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


def _make_importable() -> None:
    if os.path.isdir(os.path.join(_HERE, "simulator")):
        package = ModuleType("runbook")
        package.__path__ = [_HERE]
        sys.modules["runbook"] = package
        return
    repository = os.path.dirname(os.path.dirname(_HERE))
    if os.path.isdir(os.path.join(repository, "runbook", "simulator")):
        sys.path.append(repository)


_make_importable()
