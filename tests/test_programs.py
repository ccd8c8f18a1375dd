"""A test whose program is missing is skipped by name; where no test may be left out, it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
TESTS = """\
import pytest
from tests.programs import PACKAGES, require

PACKAGES["of-no-machine"] = "its-package"

@pytest.mark.needs("of-no-machine")
def test_marked():
    raise AssertionError("it ran")

@pytest.fixture
def server():
    require("of-no-machine")

def test_with_a_fixture(server):
    raise AssertionError("it ran")

@pytest.mark.needs("sh")
def test_that_has_its_program():
    pass

def test_skipped_for_another_reason():
    pytest.skip("root may read everything")
"""


@pytest.mark.parametrize(
    ("required", "figures", "words"),
    [
        ("", "1 passed, 3 skipped", "of-no-machine not installed (apt-get install its-package)"),
        ("1", "1 passed, 1 skipped, 2 errors", "(apt-get install its-package), and RUNBOOK_REQUIRE_ALL is set"),
    ],
)
def test_a_missing_program(tmp_path: Path, required: str, figures: str, words: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = needs\n")
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-ra", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)),
        env={**os.environ, "RUNBOOK_REQUIRE_ALL": required, "PYTHONPATH": str(REPOSITORY)}, capture_output=True,
        text=True, timeout=60, check=False,
    )
    assert figures in done.stdout, done.stdout
    assert words in done.stdout
    assert done.returncode == (1 if required else 0)
