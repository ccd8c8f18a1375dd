"""What every test folder shares."""

from __future__ import annotations

import os
import time

import pytest

from tests.programs import require


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="write golden files anew from what the program prints now"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        require(*mark.args)


_BEGAN_S = time.monotonic()
# Taken out, so that a test that itself runs pytest adds no line to the table; what a worker inherits, it does not use.
_TABLE, _GROUP = os.environ.pop("RUNBOOK_GROUPS", None), os.environ.pop("RUNBOOK_GROUP", None)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """For the table at the end of tests/run."""
    if _TABLE and _GROUP and not hasattr(terminalreporter.config, "workerinput"):
        passed, failed, error, skipped = (
            len(terminalreporter.stats.get(outcome, ())) for outcome in ("passed", "failed", "error", "skipped")
        )
        with open(_TABLE, "a", encoding="utf-8") as lines:
            lines.write(f"{_GROUP}\t{passed}\t{failed + error}\t{skipped}\t{time.monotonic() - _BEGAN_S:.0f}\n")
