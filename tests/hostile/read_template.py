"""Read `template_files` of one kind as a box does, each under limits of CPU and memory that are the kernel's and no
timing: what it came to is printed, a line of JSON a file. `python -m tests.hostile.read_template cut_scripts`."""

from __future__ import annotations

import json
import resource
import sys

from runbook.model.template import Edit, ParameterNames, SettingKind, TemplateFile
from runbook.template import CannotEdit, all_settings, apply, named_files, settings_in_force
from tests.hostile import template_files

CPU_S = 20
MEMORY_BYTES = 640 << 20
NAMES = (
    ParameterNames("micro_batch", SettingKind.ARGUMENT, ("--micro-batch-size",)),
    ParameterNames("key", SettingKind.KEY, ("a.b",)),
    ParameterNames("allocator", SettingKind.ENVIRONMENT, ("PYTORCH_CUDA_ALLOC_CONF",)),
)
_EDITS = {
    True: Edit("micro_batch", SettingKind.ARGUMENT, ("--micro-batch-size",), "4"),
    False: Edit("key", SettingKind.KEY, ("a.b",), "4"),
}


def main(kind: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for file in getattr(template_files, kind)():
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CPU_S, resource.RLIM_INFINITY))
        print(file.path, file=sys.stderr, flush=True)
        everything, names, wanted = all_settings((file,)), named_files(file), settings_in_force((file,), NAMES)
        print(json.dumps({
            "path": file.path, "everything": [str(item.unresolved or "") for item in everything],
            "names": [str(item.unresolved) for item in names],
            "wanted": {item.parameter: [item.value, str(item.unresolved or "")] for item in wanted},
            "refused": _refused(file),
        }))


def _refused(file: TemplateFile) -> str:
    try:
        apply((file,), (_EDITS[file.path.endswith(".sh")],), names=NAMES)
    except CannotEdit as refusal:
        return refusal.what
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
