"""The kinds of the installed playbook by name, for tests that compare with them: `Kind.TRUE_OOM`; and what a diagnosis
asks of its documents."""

from __future__ import annotations

from runbook.kinds import load_kinds
from runbook.locations import playbook_folder
from runbook.logs.signatures import load_signatures
from runbook.model import diagnosis

KINDS = load_kinds()
MEANINGS = load_signatures(playbook_folder() / "signatures", KINDS).meanings


class _ByName:
    def __getattr__(self, name: str) -> diagnosis.Kind:
        if name.lower() not in KINDS:
            raise AttributeError(name)
        return KINDS[name.lower()]


Kind = _ByName()
