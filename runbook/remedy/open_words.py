"""Words of the training command whose meaning or text is not known: what they may hold is not taken to be absent.

A sourced array, `$EXTRA` or `"$@"` may set the global batch size or a parallel degree. Everything else that is not
seen can be set behind it, for the last of equal options wins; but a global batch reckoned with a default would be
another one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.model.template import Setting, SettingKind
from runbook.remedy.document import LeverDocument

_LAUNCHERS = frozenset({
    "srun", "torchrun", "deepspeed", "accelerate", "mpirun", "mpiexec", "torch.distributed.run",
    "torch.distributed.launch", "submit", "ray",
})
_SHORTENED = re.compile(r"--[a-z]+[-_.][-_.a-z]+")
"""Options of two words at least: a shorter one (`--train`) is more often one of the program's own."""


def with_open_batch(
    settings: Sequence[Setting], listed: Sequence[Setting], system: LeverDocument
) -> tuple[Setting, ...]:
    """The settings, with an open one for each option that makes up the global batch, is not seen, and may stand in a
    word that is not known. `listed` is everything that the template makes in force (`template.all_settings`)."""
    words = [item for item in listed if _open(item)]
    batch = system.batch
    if batch is None:
        return tuple(settings)
    settings = _without_shortened(settings, listed, system)
    if not words:
        return tuple(settings)
    seen = {item.parameter for item in settings}
    why = f"it may stand in {words[0].spelling}: {words[0].unresolved}"
    return (*settings, *(
        Setting(entry.id, entry.kind, entry.spellings[0], None, words[0].file, words[0].line, unresolved=why)
        for parameter in dict.fromkeys((batch.accumulation, batch.total, *batch.model_parallel))
        if parameter and parameter not in seen
        for entry in [system.parameter(parameter)]
        if any(item.startswith("-") for item in entry.spellings)
    ))


def _without_shortened(
    settings: Sequence[Setting], listed: Sequence[Setting], system: LeverDocument
) -> tuple[Setting, ...]:
    """The settings, those of the batch not known where the command has the beginning of such an option
    (`--gradient_accumulation`): Python's argparse takes it for the whole, unless the program has it by itself."""
    batch = system.batch
    own = {spelling for entry in system.parameters for spelling in entry.spellings}
    options = [item for item in listed if _SHORTENED.fullmatch(item.spelling) and item.spelling not in own]
    if batch is None or not options:
        return tuple(settings)
    open_ones = {}
    for parameter in dict.fromkeys((batch.micro, batch.accumulation, batch.total, *batch.model_parallel)):
        entry = system.parameter(parameter) if parameter else None
        for item in options if entry is not None else ():
            if entry is not None and any(spelling.startswith(item.spelling) for spelling in entry.spellings):
                why = f"{item.spelling} may be short for it"
                open_ones[entry.id] = Setting(
                    entry.id, entry.kind, entry.spellings[0], None, item.file, item.line, unresolved=why
                )
    return (*(item for item in settings if item.parameter not in open_ones), *open_ones.values())


def open_word(listed: Sequence[Setting]) -> str:
    """The first word of the training program that is not known, as written; "" where all are."""
    return next((item.spelling for item in listed if _open(item)), "")


def _open(item: Setting) -> bool:
    """Whether it is a word of the training program that is not known."""
    if item.kind is not SettingKind.ARGUMENT or item.value is not None or not item.trail:
        return False
    return item.spelling.lstrip('"').startswith("$") and item.trail[0].partition(" at line")[0] not in _LAUNCHERS
