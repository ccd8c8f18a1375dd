"""Where the documents are: beside the package when installed, at the repository's root in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """Folder `playbooks`, `inventories`, `deploy` or `examples`, from wherever the package was installed."""
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def playbook_folder(chosen: Path | None = None) -> Path:
    """The playbook that is decided by: the folder that a person chose, else the one that is installed, of several the
    first by name."""
    return chosen or min(path.parent for path in data_folder("playbooks").glob("*/flow.yaml"))
