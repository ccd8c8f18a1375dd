"""Ports that refuse every act: what a box is given when it was not allowed to do anything outside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn, cast

from runbook.errors import NotAllowed
from runbook.ports import Files, Nodes, Scheduler
from runbook.steps.base import Ports

_ACTS = frozenset({"submit", "cancel", "drain", "undrain", "replace", "end_process"})


def without_leave(ports: Ports) -> Ports:
    """The same ports, with every act refused. What a box read when it proposed can have changed by the time it runs;
    without a yes it may then only find that out."""
    return replace(
        ports,
        scheduler=cast(Scheduler, _Tied(ports.scheduler)),
        nodes=cast(Nodes, _Tied(ports.nodes)),
        files=cast(Files, _Tied(ports.files)),
    )


class _Tied:
    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return _refuse if name in _ACTS else getattr(self._inner, name)


def _refuse(*_arguments: object, **_named: object) -> NoReturn:
    raise NotAllowed(
        "the cluster changed between the question and the act, so nothing was done without a yes",
        next_step="`runbook resume` looks and asks again",
    )
