"""Values in force: what the template sets, else what the document knows as default, else unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.model.template import Edit, Setting
from runbook.remedy.documents import LeverDocument


@dataclass(frozen=True, slots=True)
class Value:
    """A parameter's value, or why it is not known."""

    text: str | None
    why_not: str = ""
    from_template: bool = False

    @property
    def number(self) -> int | None:
        try:
            return int(self.text) if self.text is not None else None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Values:
    """All parameters of one template, by id of the lever document."""

    system: LeverDocument
    settings: tuple[Setting, ...]

    def of(self, parameter: str) -> Value:
        """The value in force. Two settings that differ are not known: which one counts is the program's secret."""
        entry = self.system.parameters.get(parameter)
        if entry is None:
            return Value(None, f"{self.system.id} has no parameter {parameter}")
        found = [setting for setting in self.settings if setting.parameter == parameter]
        for setting in found:
            if setting.value is None:
                return Value(None, f"{setting.spelling}: {setting.unresolved or 'its value is not known'}")
        distinct = list(dict.fromkeys(setting.value for setting in found))
        if len(distinct) > 1:
            return Value(None, f"{found[0].spelling} is set to {' and to '.join(str(item) for item in distinct)}")
        if distinct:
            return Value(distinct[0], from_template=True)
        if entry.default is not None:
            return Value(entry.default)
        return Value(None, f"{entry.spellings[0]} is not set in the template")

    def edit(self, parameter: str, new: str) -> Edit:
        """The wanted change, with the spelling that the template uses first."""
        entry = self.system.parameters[parameter]
        found = [setting for setting in self.settings if setting.parameter == parameter]
        used = tuple(dict.fromkeys(setting.spelling for setting in found))
        spellings = (*used, *(spelling for spelling in entry.spellings if spelling not in used))
        old = found[0].value if found else None
        return Edit(parameter, entry.kind, spellings, new=new, old=old, flag=entry.flag)


def values_of(system: LeverDocument, settings: Sequence[Setting]) -> Values:
    return Values(system, tuple(settings))
