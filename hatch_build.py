"""The compiled forms of the playbooks' documents: made when the wheel is built (an editable one as well), or by running
this file in a checkout whose documents were changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run in a checkout
    BuildHookInterface = object  # type: ignore[assignment, misc]


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compile_playbooks(Path(self.root))


def compile_playbooks(root: Path) -> None:
    """Raises `DocumentsInvalid` with every problem of the documents."""
    sys.path.insert(0, str(root))
    from runbook.documents import keep_data
    from runbook.foresight import compiled_memory
    from runbook.kinds import compiled_kinds
    from runbook.logs.signatures import compiled_signatures
    from runbook.remedy.loading import compiled_levers, compiled_restarters

    for flow in (root / "playbooks").glob("*/flow.yaml"):
        kinds = compiled_kinds(flow.with_name("kinds.yaml")).keep()
        compiled_signatures(flow.with_name("signatures"), kinds).keep()
        compiled_levers(flow.with_name("levers"), kinds).keep()
        compiled_restarters(flow.with_name("restarters.yaml")).keep()
        for name in ("flow.yaml", "node_rules.yaml", "xid.yaml", "gpu_models.yaml"):
            if flow.with_name(name).is_file():
                keep_data(flow.with_name(name))
        if (memory := flow.with_name("memory.yaml")).is_file():
            compiled_memory(memory).keep()


if __name__ == "__main__":
    compile_playbooks(Path(__file__).resolve().parent)
