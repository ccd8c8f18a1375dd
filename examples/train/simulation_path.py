"""Makes ``runbook.simulator`` importable for the scripts of this folder, without importing anything of runbook.

A folder ``simulator`` beside this file wins, so that the scripts can be copied to a place of their own together
with ``runbook/simulator``; otherwise it is looked for in the repository or the installed package around this folder.
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
    folder = _HERE
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        if os.path.isdir(os.path.join(folder, "runbook", "simulator")):
            sys.path.append(folder)
            return


_make_importable()
