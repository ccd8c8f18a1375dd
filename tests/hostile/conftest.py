"""The cluster as the cluster's own tests use it."""

from __future__ import annotations

from tests.cluster.conftest import cluster
from tests.cluster.test_service_user import packages

__all__ = ["cluster", "packages"]
