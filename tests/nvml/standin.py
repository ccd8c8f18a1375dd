"""The stand-in NVML library and the probe, built once a test run; no GPU is behind any answer."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runbook.probe import build
from tests.programs import find

HERE = Path(__file__).parent
SCENARIOS = HERE / "scenarios"
GCC = find("gcc")


NO_KMSG = "/nonexistent/kmsg"


def _folder(prefix: str) -> Path:
    """A folder that goes when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.lru_cache(maxsize=1)
def library_folder() -> Path:
    """A folder with the stand-in as `libnvidia-ml.so.1`, for LD_LIBRARY_PATH."""
    assert GCC, "gcc is not installed"
    folder = _folder("standin-nvml-")
    command = (GCC, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")
    subprocess.run((*command, "-o", str(folder / "libnvidia-ml.so.1"), str(HERE / "standin_nvml.c")), check=True)
    return folder


@functools.lru_cache(maxsize=1)
def probe_file() -> Path:
    """The zipapp."""
    path = _folder("probe-") / "runbook-probe.pyz"
    path.write_bytes(build.archive())
    return path


def oldest_python() -> str:
    """The oldest Python 3 from 3.6 on that starts here, else the present one."""
    folders = [*os.environ.get("PATH", "").split(":"), *map(str, Path.home().glob(".pyenv/versions/3.*/bin"))]
    for minor in range(6, sys.version_info.minor):
        for folder in folders:
            path = Path(folder) / f"python3.{minor}"
            if not os.access(path, os.X_OK):
                continue
            if subprocess.run((path, "-c", "import ctypes"), capture_output=True, check=False).returncode == 0:
                return str(path)
    return sys.executable


def environment(scenario: str | None) -> dict[str, str]:
    """What makes the probe load the stand-in with a scenario; None: no NVML library at all. This machine's own kernel
    log is nobody's."""
    found = {"PATH": "/usr/bin:/bin", "RUNBOOK_KMSG": NO_KMSG}
    if scenario is not None:
        path = SCENARIOS / f"{scenario}.txt"
        assert path.is_file(), path
        found |= {"LD_LIBRARY_PATH": str(library_folder()), "STANDIN_NVML_SCENARIO": str(path)}
    return found


@functools.lru_cache(maxsize=1)
def hanging_directory() -> Path:
    """A library for LD_PRELOAD in which the names of users never come, as with a directory service that hangs."""
    source, built = library_folder() / "hang.c", library_folder() / "hang.so"
    source.write_text("#include <unistd.h>\nint getpwuid_r(void) { for (;;) sleep(1000); }\n")
    assert GCC
    subprocess.run((GCC, "-shared", "-fPIC", "-fno-builtin", "-o", str(built), str(source)), check=True)
    return built


@functools.cache
def document_of(scenario: str) -> dict[str, Any]:
    """The document of a scenario on this machine, asked for once a test run."""
    return run_probe(scenario, "--deadline", "5")


def run_probe(
    scenario: str | None, *arguments: str, python: str = sys.executable, extra: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The document of the zipapp under a scenario."""
    done = subprocess.run(
        (python, "-I", "-S", str(probe_file()), "--kmsg", NO_KMSG, *arguments),
        env={**environment(scenario), **(extra or {})}, capture_output=True, timeout=60, check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document
