"""The kinds of the installed playbook by name, for tests that compare with them: `Kind.TRUE_OOM`."""

from __future__ import annotations

from runbook.kinds import load_kinds
from runbook.model import diagnosis

KINDS = load_kinds()


class _ByName:
    def __getattr__(self, name: str) -> diagnosis.Kind:
        if name.lower() not in KINDS:
            raise AttributeError(name)
        return KINDS[name.lower()]


Kind = _ByName()
