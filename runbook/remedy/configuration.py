"""Whether a program's own defaults are what holds where a template sets nothing."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.model.template import Setting
from runbook.remedy.document import LeverDocument


def defaults_hold(system: LeverDocument, settings: Sequence[Setting]) -> bool:
    """False where the job names a configuration that is not the system's own and was not read with its template: what
    stands there is in force, and is not known."""
    rule = system.configuration
    if rule is None:
        return True
    named = [item for item in settings if item.parameter == rule.parameter]
    return all(item.value is not None and _known(item.value, rule.own, settings) for item in named)


def _known(value: str, own: Sequence[str], settings: Sequence[Setting]) -> bool:
    stem = _stem(value)
    if stem in own:
        return True
    read = [item.file for item in settings]
    read += [word.partition(":")[0] for item in settings for word in " ".join(item.trail).split()]
    return any(path.endswith((".yaml", ".yml")) and _stem(path) == stem for path in read)


def _stem(path: str) -> str:
    return path.rsplit("/", 1)[-1].removesuffix(".yaml").removesuffix(".yml")
