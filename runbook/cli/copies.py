"""A patch written beside the originals: under new names, wired to each other; no file of the user is replaced."""

from __future__ import annotations

from pathlib import Path

from runbook.errors import Unavailable
from runbook.model.template import Patch
from runbook.template import named_files, wire_copies


def write_copies(patch: Patch, template: Path, output: Path) -> list[Path]:
    """The changed template, and copies of the files beside it that change, to which it is pointed.

    `patch.copies` says which files beside it need a copy; where it says that they lie is not looked at. Raises
    `CannotEdit` before anything is written, `OSError`."""
    copies: dict[str, str] = {}
    texts: dict[str, Path] = {}
    for file in patch.files[1:]:
        if file.path in patch.copies:
            name = Path(file.path)
            # What names another copy will have another text than this.
            rewired = any(item.path in patch.copies for item in named_files(file))
            text = None if rewired else file.text
            texts[file.path] = _free(output, f"{name.stem}.runbook", name.suffix, text, set(texts.values()))
            copies[file.path] = str(texts[file.path])
    files = wire_copies(patch.files, copies).files if copies else patch.files
    taken = set(texts.values())
    texts[files[0].path] = _free(output, f"{template.stem}.runbook", template.suffix, files[0].text, taken)
    for file in files:
        if file.path in texts:
            texts[file.path].write_text(file.text, encoding="utf-8", errors="surrogateescape", newline="")
    return [texts[file.path] for file in files if file.path in texts]


def _free(folder: Path, stem: str, suffix: str, text: str | None, taken: set[Path]) -> Path:
    """A name that no other file has; the same text under the same name is no other file."""
    content = text.encode("utf-8", "surrogateescape") if text is not None else None
    for number in range(1, 1000):
        target = folder.absolute() / (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}")
        if target in taken:
            continue
        if not target.exists() and not target.is_symlink():
            return target
        if content is not None and target.is_file() and not target.is_symlink() and target.read_bytes() == content:
            return target
    raise Unavailable("a thousand patched templates lie there already", where=str(folder))
