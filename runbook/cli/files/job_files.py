"""A launch script with the files that it names, read from this machine's disk as the flow reads a job's; changed copies
are written beside the originals.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import posixpath
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from runbook.adapters.files import OwnerFiles
from runbook.adapters.identity import current_identity, identity_of_uid
from runbook.adapters.silent import PATIENCE_S, within
from runbook.adapters.whole_file import is_own_file, settled_folder, whole_file, write_new
from runbook.errors import BadInput, NotAllowed, Unavailable
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import LogStory
from runbook.model.template import Companion, Patch, SubmitContext, TemplateFile
from runbook.model.units import JobId, Unknown, UserName, name_within
from runbook.remedy import LeverDocument, first_uncommented_match, mark_weight
from runbook.steps.shared.companion_files import ProgramSources, read_companions
from runbook.steps.shared.template_reading import TemplateReading
from runbook.template import named_files, wire_copies

_LARGEST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class JobFiles:
    """A template and what it names. `unread`: sentences on files that could not be read."""

    path: Path
    script: TemplateFile
    companions: tuple[Companion, ...]
    unread: tuple[str, ...]

    @property
    def files(self) -> tuple[TemplateFile, ...]:
        """The script first."""
        return (self.script, *(item.file for item in self.companions))

    def reading(
        self, levers: Sequence[LeverDocument], story: LogStory, named: LeverDocument | None = None
    ) -> TemplateReading:
        """As the flow reads a template. No job was submitted: neither its number nor its owner is known."""
        job = replace(job_of(self.path), id=JobId(""), owner=UserName(""))
        return TemplateReading(
            self.files, self.unread, story, levers, submitted=job, failed=job.id,
            ask_environment=lambda: Unknown("no job was submitted"), named=named,
            sources=ProgramSources.of(files_of(self.path), job),
        )


def read_job_files(path: Path, *, pipe: bool = False) -> JobFiles:
    """Read a template and the files that it names, relative to its folder. `pipe`: the template may be one. Raises
    `BadInput`."""
    script = TemplateFile(str(path), read_template(path, pipe=pipe))
    companions, unread = read_companions(files_of(path), job_of(path), script, SubmitContext())
    return JobFiles(path, script, companions, unread)


def files_of(template: Path, logs: Sequence[Path] = ()) -> OwnerFiles:
    """With our own rights; root has those of the template's owner for all but the template and these logs, for he may
    have named what only somebody else may read. Raises `BadInput`."""
    ours = current_identity()
    uid = template.stat().st_uid if ours.uid == 0 and template.is_file() else ours.uid
    if uid == ours.uid:
        return OwnerFiles(identify=lambda _owner: ours)
    try:
        theirs = identity_of_uid(uid)
    except NotAllowed as error:
        raise BadInput(
            f"{template} belongs to user {uid}, with whose rights root would read what it names: {error.what}",
            next_step="copy it, and read the copy",
        ) from error
    return OwnerFiles(identify=lambda _owner: theirs, ours=[str(path.absolute()) for path in (template, *logs)])


def read_template(path: Path, *, pipe: bool = False) -> str:
    """A template's text. Raises `BadInput` for what is no file of moderate size, nor, where it may be, a pipe, and
    `Hung`."""
    if pipe and within(PATIENCE_S, str(path), path.is_fifo):
        return _text_of(path, pipe=True)
    return within(PATIENCE_S, str(path), partial(_text_of, path, pipe=False))


def _text_of(path: Path, *, pipe: bool) -> str:
    if not path.exists():
        near = _near_files(path)
        raise BadInput(f"{path} is not there", next_step=f"perhaps {near}" if near else "name a launch script")
    if not path.is_file() and not (pipe and path.is_fifo()):
        what = "a folder" if path.is_dir() else "no regular file"
        raise BadInput(f"{path} is {what}", next_step="name the launch script itself")
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise BadInput(f"{path} is larger than {_LARGEST_BYTES >> 20} MiB", next_step="name the launch script")
        return path.read_bytes().decode("utf-8", "surrogateescape")  # line ends stay as they are
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}", next_step="run as somebody who may"
        ) from error


def job_of(path: Path, *, nodes: int | None = None, gpus_per_node: int | None = None) -> JobRecord:
    """The job that a template would be, as far as the command line says."""
    return JobRecord(
        JobId("files"), "files", path.name, current_identity().name, JobState("UNKNOWN", JobClass.UNKNOWN),
        num_nodes=nodes, gpus_per_node=gpus_per_node, work_dir=str(path.absolute().parent), command=str(path),
    )


@dataclass(frozen=True, slots=True)
class SeenMark:
    """A mark of a system that is there."""

    text: str
    place: str
    weight: int


def marks_of(document: LeverDocument, reading: TemplateReading) -> tuple[SeenMark, ...]:
    """By what a system is recognised: the first uncommented line that has each mark."""
    found = []
    for mark in document.marks:
        if mark.framework and mark.framework == reading.story.framework:
            found.append(SeenMark(mark.framework, "the log", mark.weight))
        elif mark.pattern and (seen := first_uncommented_match(mark.pattern, reading.files)) is not None:
            text, file, line = seen
            found.append(SeenMark(text, f"{file.path}:{line}", mark.weight))
    return tuple(sorted(found, key=lambda item: -item.weight))


def contenders(reading: TemplateReading) -> tuple[LeverDocument, ...]:
    """Where no system was recognised: those that weigh the same."""
    weights = {item.id: mark_weight(item, reading.files, reading.story) for item in reading.levers
               if not item.fallback and not item.roles}
    best = max(weights.values(), default=0)
    return tuple(item for item in reading.levers if best and weights.get(item.id) == best)


def _near_files(path: Path) -> str:
    try:
        names = [item.name for item in path.absolute().parent.iterdir() if item.is_file()]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, 1, 0.7)
    return str(path.with_name(near[0])) if near else ""


def write_copies(
    patch: Patch, template: Path, output: Path, companions: Sequence[Companion], known: SubmitContext | None = None
) -> list[Path]:
    """The changed template, and copies of the files beside it that change, to which it is pointed. `known` as the patch
    was made.

    `patch.copies` says which files beside it need a copy, and which of these have to lie beside what they are copies
    of: under the folder by which that is named; the others go to `output`. Raises `CannotEdit` before anything is
    written, `OSError`."""
    source = {item.file.path: Path(item.source) for item in companions}
    tied = {
        path: source[path] for path, copy in patch.copies.items() if posixpath.dirname(copy) == posixpath.dirname(path)
    }

    def write() -> list[Path]:
        with contextlib.ExitStack() as opened:
            settled = {
                folder: opened.enter_context(settled_folder(folder))
                for folder in (output, *(path.parent for path in tied.values()))
            }
            folders = {path: (settled[original.parent], original.parent) for path, original in tied.items()}
            written = _written(patch, template, (settled[output], output.absolute()), folders, source, known)
            return [folders.get(file, ("", output.absolute()))[1] / path.name for file, path in written.items()]

    return within(PATIENCE_S, str(output), write)


_Folder = tuple[Path, Path]
"""A folder that is settled, and what texts call it."""


def _written(
    patch: Patch, template: Path, output: _Folder, tied: Mapping[str, _Folder], source: Mapping[str, Path],
    known: SubmitContext | None,
) -> dict[str, Path]:
    """By the file's name in the patch: where its copy lies in the settled folder. `source`: where each was read."""
    copies: dict[str, str] = {}
    texts: dict[str, Path] = {}
    for file in patch.files[1:]:
        if file.path in patch.copies:
            name = Path(file.path)
            settled, called = tied.get(file.path, output)
            # What names another copy will have another text than this.
            rewired = any(item.path in patch.copies for item in named_files(file))
            text = None if rewired else file.text
            texts[file.path] = _free(settled, f"{name.stem}.runbook", name.suffix, text, set(texts.values()))
            beside = posixpath.dirname(file.path) if file.path in tied else str(called)
            copies[file.path] = posixpath.join(beside, texts[file.path].name)
    files = wire_copies(patch.files, copies, known).files if copies else patch.files
    taken = set(texts.values())
    texts[files[0].path] = _free(output[0], f"{template.stem}.runbook", template.suffix, files[0].text, taken)
    for file in files:
        if file.path in texts and not is_own_file(texts[file.path]):
            original = template if file is files[0] else source.get(file.path, Path(file.path))
            content = file.text.encode("utf-8", "surrogateescape")
            write_new(texts[file.path], content, _mode_of_copy(original))
    return {file.path: texts[file.path] for file in files if file.path in texts}


def put_beside(output: Path, stem: str, suffix: str, content: bytes) -> Path:
    """A new file for whoever runs this alone, in place of nothing but an earlier one of his own. Raises `OSError`."""

    def put() -> Path:
        with settled_folder(output) as settled:
            earlier = settled / f"{stem}{suffix}"
            if is_own_file(earlier):
                with whole_file(earlier, durable=False) as stream:
                    stream.write(content)
                return output / earlier.name
            path = _free(settled, stem, suffix, None, set())
            write_new(path, content)
            return output / path.name

    return within(PATIENCE_S, str(output), put)


def _mode_of_copy(original: Path) -> int:
    """That of the file that was read. Root's copies are root's alone: by now the name may lead to another file."""
    try:
        mode = stat.S_IMODE(original.stat().st_mode) & 0o777
    except OSError:
        mode = 0o600
    return (mode & 0o700 if os.geteuid() == 0 else mode) | 0o600


def _free(folder: Path, stem: str, suffix: str, text: str | None, taken: set[Path]) -> Path:
    """A name that no other file has; the same text under the same name is no other file."""
    content = text.encode("utf-8", "surrogateescape") if text is not None else None
    for number in range(1, 1000):
        target = folder / name_within(f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}", 250)
        if target in taken:
            continue
        if not target.exists() and not target.is_symlink():
            return target
        if content is not None and is_own_file(target) and target.read_bytes() == content:
            return target
    raise Unavailable("a thousand patched templates lie there already", where=str(folder))
