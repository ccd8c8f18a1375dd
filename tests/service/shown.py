"""What the pages show in tests: a real store, its read model, one drawing of the flow for every incident."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runbook.adapters.store import IncidentStore
from runbook.adapters.store.read_model import ReadModel
from runbook.service.app import Shown
from tests.report.sample_incidents import FLOW

HEALTHY: Mapping[str, Any] = {"ok": True}


def shown(
    store: IncidentStore, health: Mapping[str, Any] = HEALTHY, metrics: Callable[[], bytes] = lambda: b""
) -> Shown:
    return Shown(store, ReadModel(store), lambda _incident: FLOW, lambda: health, metrics)
