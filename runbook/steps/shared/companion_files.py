"""The files that a job's script names, read as the job's owner: configuration, scripts that it runs, the program."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runbook.errors import NotAllowed, NotFound, RunbookError
from runbook.model.checkpoint import DirectoryEntry
from runbook.model.job import JobRecord
from runbook.model.program import ProgramOption
from runbook.model.remedy import AnswerKind, Ask
from runbook.model.sentences.of_levers import Say
from runbook.model.template import Companion, SubmitContext, TemplateFile
from runbook.ports import Files
from runbook.remedy import Refusal, RefusalReason
from runbook.template import Container, NamedFile, all_settings, named_files

_MOST_FILES = 30
_MOST_ASKED = 100
"""Folders that are looked into, and files that are looked for: each is asked for as the owner."""
_MOST_SENTENCES = 20
_MOST_ABOVE = 5
"""How far above a script the folder may lie in which it was started."""
LARGEST_BYTES = 1 << 20
_MOST_BYTES = 2 << 20
"""Of all files that are kept with an incident together: it is written again at each box, and so are they."""


def read_companions(
    files: Files, job: JobRecord, script: TemplateFile, known: SubmitContext
) -> tuple[tuple[Companion, ...], tuple[str, ...]]:
    """What a job's script names, what those name, and so on, read as the job's owner; and what could not be read.

    A configuration is read when the job has died: one that was written to since the job began is not what the job
    read, and counts as not read."""
    reader = _Reader(files, job)
    found: list[Companion] = []
    unread: list[str] = []
    queue = [script]
    seen = {script.path}
    inside: dict[str, Container | None] = {}
    kept_bytes = 0
    while queue:
        parent = queue.pop(0)
        known = replace(known, sourced={item.file.path: item.file.text for item in found})
        for written in named_files(parent, known):
            if written.container is None:
                # What runs in a container names what is in there.
                around = inside.get(parent.path)
                if around is not None:
                    around = around.after(written.folder.gone_to if written.folder is not None else "")
                    written = replace(written, container=around, folder=None)
            named = reader.as_meant(written)
            if named.path is not None and named.path in seen:
                continue
            where = f"{posixpath.basename(parent.path)}:{named.line}"
            many = len(found) >= _MOST_FILES
            if named.path is None or many or len(seen) > _MOST_ASKED or reader.asked >= _MOST_ASKED:
                why = named.unresolved or f"more than {_MOST_FILES if many else _MOST_ASKED} files are named"
                if not named.program and (named.option or named.script or not named.likely):
                    unread.append(f"a file that {where} names ({named.option or 'a script'}): {why}")
                continue
            seen.add(named.path)
            companion = reader.read(named, where)
            if isinstance(companion, Companion):
                size_bytes = len(companion.file.text.encode("utf-8", "surrogateescape"))
                if kept_bytes + size_bytes > _MOST_BYTES:
                    companion = (
                        f"{named.path} (named at {where}): the files that the script names have more than "
                        f"{_MOST_BYTES >> 20} MiB together"
                    )
                else:
                    kept_bytes += size_bytes
            if isinstance(companion, Companion):
                if written.path is not None and written.path != named.path:
                    # The script's own word is what a copy takes the place of.
                    companion = replace(companion, file=TemplateFile(written.path, companion.file.text))
                    seen.add(written.path)
                if written.container is not None:
                    companion = replace(companion, contained=written.container.said)
                    inside[companion.file.path] = written.container
                found.append(companion)
                if not companion.program:
                    queue.append(companion.file)
                if named.sourced:
                    queue.insert(0, parent)  # what it names further may hang on what that file sets
                    break
            elif not named.program:
                unread.append(companion)
    if len(unread) > _MOST_SENTENCES:
        unread[_MOST_SENTENCES:] = [f"{len(unread) - _MOST_SENTENCES} further files that are named"]
    return tuple(found), tuple(unread)


_OF_LAUNCHERS = (
    "--config_file", "--config-file", "--deepspeed", "--deepspeed_config", "--deepspeed-config", "--ds_config",
    "--ds-config", "--fsdp_config", "--accelerate_config", "--runtime-env",
)
"""Options of launchers and engines: their files hold little of what a training program is told."""
_ARGUMENT = re.compile(r"\$\{?([0-9]{1,2})\b")
_VARIABLE = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
_GIVEN_BY_THE_MACHINE = re.compile(r"SLURM_|(?:HOME|PWD|USER|TMPDIR|SCRATCH|WORK)$")


def _where_it_lies(named: NamedFile, script: str) -> Refusal:
    place = f"{named.option} at {script}:{named.line}".removeprefix(" at ")
    argument, variable = _ARGUMENT.match(named.decided_by), _VARIABLE.fullmatch(named.decided_by)
    reason, which = RefusalReason.UNKNOWN, Ask(AnswerKind.OPTION, "NAME")
    if named.path is not None:
        asked = Say.WHERE_DOES_CONFIGURATION_LIE(path=named.path, place=place)
        return Refusal(Say.CONFIGURATION_NOT_HERE(path=named.path, place=place), asked, reason, which)
    why = Say.CONFIGURATION_NOT_READ(place=place, why=named.unresolved)
    if argument is not None:
        asked = Say.WHAT_WAS_ARGUMENT(number=argument[1], place=place)
        return Refusal(why, asked, reason, Ask(AnswerKind.VALUE, argument[1]))
    if variable is not None and not _GIVEN_BY_THE_MACHINE.match(variable[1]):
        asked = Say.WHAT_IS_IT_NAMES_CONFIGURATION(name=variable[1], place=place)
        return Refusal(why, asked, reason, Ask(AnswerKind.VALUE, variable[1]))
    return Refusal(why, Say.WHICH_FILE_IS_NAMED(place=place), reason, which)


def asked_of_unread(files: Sequence[TemplateFile], known: SubmitContext) -> Refusal | None:
    """The question for a configuration of a training command that was not read, where one names any: which file it is,
    or where it lies. `files`: what was read, the script first."""
    read = {file.path for file in files}
    for file in files:
        for named in named_files(file, known):
            alone = not named.option and named.path is None
            aside = named.program or named.script or alone or named.option in _OF_LAUNCHERS
            if not aside and not {named.path, posixpath.normpath(named.likely)} & read:
                return _where_it_lies(named, posixpath.basename(file.path))
    return None


_MOST_SOURCES = 200
"""Folders and files of a program that are asked for as the owner."""


@dataclass(slots=True)
class ProgramSources:
    """The source of a job's programs, read as its owner."""

    reader: _Reader
    read: dict[str, bytes | None] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Files, job: JobRecord) -> ProgramSources:
        return cls(_Reader(files, job, most=_MOST_SOURCES))

    def apart(self) -> ProgramSources:
        """The same with a budget of its own, for files that are looked for after a program's modules."""
        return ProgramSources(replace(self.reader, asked=0))

    def path_of(self, named: NamedFile) -> str | None:
        """Where a program lies; None: it is not there, or may be one of several."""
        named = self.reader.as_meant(named)
        found = self.reader.read(named, "") if named.path is not None else ""
        return found.source if isinstance(found, Companion) else None

    def source_of(self, path: str) -> bytes | None:
        """A file's bytes; None where there is none that the owner may read."""
        if path not in self.read:
            self.read[path] = self._read(posixpath.normpath(path))
        return self.read[path]

    def _read(self, path: str) -> bytes | None:
        if len(self.read) - sum(item is None for item in self.read.values()) >= _MOST_SOURCES:
            return None
        entry = self.reader.entry(path)
        if entry is None or entry.size_bytes > LARGEST_BYTES:
            return None
        try:
            return self.reader.files.read_small(path, self.reader.job.owner, LARGEST_BYTES + 1)
        except (NotFound, NotAllowed):
            return None


HEAD_BYTES = 1 << 16
_MOST_HEADS = 4


def log_heads(files: Files, job: JobRecord) -> list[tuple[str, str]]:
    """Path and beginning of each of the job's logs, as far as they can be read: there programs print what they were
    told."""
    found: list[tuple[str, str]] = []
    for path in job.log_paths[:_MOST_HEADS]:
        try:
            found.append((path, files.read_small(path, job.owner, HEAD_BYTES).decode("utf-8", "replace")))
        except RunbookError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class _NotRead:
    """A file that is there, and why what stands in it does not count."""

    why: str


@dataclass(slots=True)
class _Reader:
    """Finds what a script names, in the folder in which it ran."""

    files: Files
    job: JobRecord
    most: int = _MOST_ASKED
    asked: int = 0
    listed: dict[str, tuple[DirectoryEntry, ...] | str] = field(default_factory=dict)
    """By folder: what lies there, or why that is not known."""
    started_in: str = ""
    """Where no scheduler says it: the only folder from which another file of the job was found."""

    def as_meant(self, named: NamedFile) -> NamedFile:
        """One inside a container as the node's own. Of files alone: one whose path is not known, as the one that lies
        where such a path mostly leads; an absolute path that is not on this machine as the one that lies below the
        script's folder."""
        if named.container is not None and named.path is not None:
            cd = named.folder.gone_to if named.folder is not None else ""
            start = posixpath.join(self.job.work_dir or "", cd) if cd is not None else ""
            there = named.container.on_node(named.path, start)
            why = f"{named.path} lies in a container ({named.container.said}), and no mount tells which file that is"
            named = replace(named, path=there, unresolved=named.unresolved if there is not None else why, likely="")
        if not self._only_files:
            return named
        if named.path is None and named.likely:
            parts = posixpath.normpath(named.likely).split("/")
            for at in range(len(parts) if named.program and parts[0] != ".." else 1):
                # A folder of another machine, `$HOME/project/train.py`, is mostly the one in which all of this lies.
                path = "/".join(parts[at:])
                likely = replace(named, path=path, likely=path, unresolved="", folder=None, hydra=False)
                if isinstance(self.read(likely, ""), Companion):
                    return likely
            return named
        if named.path is None or not posixpath.isabs(named.path) or isinstance(self.read(named, ""), Companion):
            return named
        parts = named.path.strip("/").split("/")
        for at in range(1, len(parts)):
            likely = replace(named, path="/".join(parts[at:]), folder=None)
            if isinstance(self.read(likely, ""), Companion):
                return likely
        return named

    def read(self, named: NamedFile, where: str) -> Companion | str:
        """The file, or a sentence on why what it sets is not known."""
        assert named.path is not None
        shown = f"{named.path} (named at {where})"
        absolute = posixpath.isabs(named.path)
        if named.hydra and not absolute:
            return f"{shown}: it lies in a folder of the program's own, which is not known"
        folders = ("/",) if absolute else tuple(self._folders(named))
        if not folders:
            assert named.folder is not None
            return f"{shown}: the command runs in another folder ({named.folder.said})"
        there: dict[str, str] = {}
        why = ""
        for folder in folders:
            path = posixpath.normpath(posixpath.join(folder, named.path))
            text = self._text(path, named)
            if text is None:
                why = why or self._why_not(path)
            elif isinstance(text, _NotRead):
                return f"{shown}: {text.why}"
            else:
                there[folder] = text
        if not there:
            return f"{shown}: {why}"
        if self.started_in in there:
            there = {self.started_in: there[self.started_in]}
        if len(set(there.values())) > 1:
            paths = " or ".join(posixpath.normpath(posixpath.join(folder, named.path)) for folder in there)
            return f"{shown}: it may be {paths}, as the folder in which the script was started is not known"
        folder, text = next(iter(there.items()))
        if len(there) == 1 and len(folders) > 1:
            self.started_in = self.started_in or folder
        path = posixpath.normpath(posixpath.join(folder, named.path))
        return Companion(TemplateFile(named.path, text), path, where, named.program)

    @property
    def started_folders(self) -> tuple[str, ...]:
        """In which the job was started, and its `src`: where Python looks for its modules."""
        start = self.started_in or self.job.work_dir or "/"
        return start, posixpath.join(start, "src")

    def _folders(self, named: NamedFile) -> Iterator[str]:
        """In which the command may run. A scheduler knows where the job started; of files alone it may be the script's
        own folder or one above it, as far as the root of its repository."""
        said = named.folder
        elsewhere = said is not None and bool(said.path)
        if said is not None and elsewhere:
            yield said.path
            if not self._only_files or isinstance(self._entries(said.path), tuple):
                return
            # On another machine the same folder may lie below the script's own, or below one above that.
            parts = said.path.strip("/").split("/")
            for start in self._starts():
                yield from (posixpath.join(start, *parts[at:]) for at in range(max(1, len(parts) - 3), len(parts)))
        if said is not None and said.below is None and not self._only_files:
            return
        below = said.below or "" if said is not None else ""
        for start in self._starts():
            if said is not None and said.likely and self._only_files:
                yield posixpath.normpath(posixpath.join(start, said.likely))
            yield posixpath.normpath(posixpath.join(start, below))

    def _starts(self) -> Iterator[str]:
        """Where the job was started: its folder; of files alone that or one above it, up to its repository's root."""
        start = self.job.work_dir or "/"
        yield start
        for _ in range(_MOST_ABOVE if self._only_files else 0):
            root = isinstance(here := self._entries(start), tuple) and any(
                posixpath.basename(entry.path) == ".git" for entry in here
            )
            if root or start == "/":
                return
            start = posixpath.dirname(start)
            yield start

    @property
    def _only_files(self) -> bool:
        """Whether nobody submitted the job, as far as we know: then its folder is a guess."""
        return not self.job.submit_line and self.job.submit_time_s is None

    def _entries(self, folder: str) -> tuple[DirectoryEntry, ...] | str:
        if folder not in self.listed:
            if self.asked >= self.most:
                return f"more than {self.most} folders would be looked into"
            self.asked += 1
            try:
                self.listed[folder] = self.files.entries(folder, self.job.owner)
            except (NotFound, NotAllowed) as error:
                self.listed[folder] = error.what
        return self.listed[folder]

    def _why_not(self, path: str) -> str:
        entries = self._entries(posixpath.dirname(path))
        return entries if isinstance(entries, str) else f"{path} is not there"

    def entry(self, path: str) -> DirectoryEntry | None:
        """The file as it is listed; None: it is not there."""
        entries = self._entries(posixpath.dirname(path))
        if isinstance(entries, str):
            return None
        return next((item for item in entries if item.path == path and not item.is_dir), None)

    def _text(self, path: str, named: NamedFile) -> str | _NotRead | None:
        """What stands in it; None: it is not there."""
        entry = self.entry(path)
        if entry is None:
            return None
        if entry.size_bytes > LARGEST_BYTES:
            return _NotRead(f"{path} is larger than 1 MiB")
        began = self.job.start_time_s if self.job.start_time_s is not None else self.job.submit_time_s
        if began is not None and entry.modified_s > began and not named.program:
            return _NotRead(f"{path} was written to since the job began, so what the job read is not known")
        try:
            content = self.files.read_small(path, self.job.owner, LARGEST_BYTES + 1)
        except (NotFound, NotAllowed) as error:
            return _NotRead(error.what)
        return content.decode("utf-8", "surrogateescape")


# The keys of a configuration that Hydra composes, read as the job's owner.

_DEFAULTS = re.compile(r"^defaults:[ \t]*\n((?:[ \t]*(?:-[^\n]*|#[^\n]*)?\n)*)", re.MULTILINE)
_GROUP = re.compile(r"-[ \t]*(?:(override)[ \t]+)?(/?)([\w/]+)(@[\w.]*)?[ \t]*:[ \t]*['\"]?([\w./-]+)")
_OTHER = re.compile(r"-[ \t]*['\"]?(/?)([\w./-]+)['\"]?[ \t]*(?:#.*)?$")
_MOST_KEYS = 500
_DEEPEST = 5
_MOST_FILES = 400
"""Entered by one composition, each time counted; real ones have some dozens."""
_YAML = (".yaml", ".yml")


def composed_options(sources: ProgramSources, path: str, chosen: Mapping[str, str | None]) -> list[ProgramOption]:
    """The keys that Hydra makes of a configuration and of the groups in its `defaults`, each once, as options; what is
    written in the file itself wins unless `_self_` stands in front of the others. `chosen`: what the command says. None
    where a group overrides the choice of another in turn, or more files are named than are entered: what is in force is
    not known then."""
    told: dict[str, str | None] = dict(chosen)
    for _ in range(2):
        composing = _Composing(sources, posixpath.dirname(path), told)
        keys = composing.keys_of(path, "", ())
        if composing.entered > _MOST_FILES:
            return []
        overrides = {group: name for group, name in composing.overrides.items() if group not in chosen}
        if all(told.get(group) == name for group, name in overrides.items()):
            last = {item.dest: item for item in keys}
            return list(last.values())[:_MOST_KEYS]
        told = {**overrides, **chosen}
    return []


@dataclass(slots=True)
class _Composing:
    sources: ProgramSources
    root: str
    chosen: Mapping[str, str | None]
    """By group below the root, as the command says it or another group overrides it."""
    overrides: dict[str, str] = field(default_factory=dict)
    entered: int = 0

    def keys_of(self, path: str, package: str, within: tuple[str, ...]) -> list[ProgramOption]:
        """`within`: the files that led here, of which none is entered again."""
        self.entered += 1
        if self.entered > _MOST_FILES:
            return []
        data = self.sources.source_of(path)
        if data is None or path in within or len(within) >= _DEEPEST:
            return []
        text = data.decode("utf-8", "replace") + "\n"
        own = [
            ProgramOption(
                (key,), key, "boolean" if item.value.lower() in ("true", "false") else "", item.value, file=path,
                line=item.line or 1,
            )
            for item in all_settings((TemplateFile(path, text),))
            if item.value is not None and not item.parameter.startswith("defaults")
            for key in [f"{package}.{item.parameter}".lstrip(".")]
        ]
        listed = _DEFAULTS.search(text)
        parts: list[list[ProgramOption]] = []
        inside = (*within, path)
        for line in map(str.strip, listed[1].splitlines() if listed is not None else ()):
            if line.startswith("- _self_"):
                parts.append(own)
            elif not line.startswith("#") and (group := _GROUP.match(line)) is not None:
                parts.append(self._group(group, path, package, inside))
            elif (other := _OTHER.match(line)) is not None:
                parts.append(self.keys_of(self._file(path, other[1], other[2]), package, inside))
        if own not in parts:
            parts.append(own)
        return [item for part in parts for item in part][: 4 * _MOST_KEYS]

    def _group(self, group: re.Match[str], path: str, package: str, within: tuple[str, ...]) -> list[ProgramOption]:
        override, absolute, words, told, default = group.groups()
        folder = posixpath.join(self.root if absolute else posixpath.dirname(path), words)
        named = posixpath.relpath(folder, self.root)
        if override:
            self.overrides[named] = default
            return []
        name = self.chosen.get(named) or default
        if name == "null":
            return []
        below = ("" if absolute else f"{package}.") + words.replace("/", ".")
        below = told[1:] if told else below.lstrip(".")
        file = posixpath.join(folder, name if name.endswith(_YAML) else f"{name}.yaml")
        is_global = b"@package _global_" in (self.sources.source_of(file) or b"")[:400]
        return self.keys_of(file, "" if is_global or below in ("_global_", "_here_") else below, within)

    def _file(self, path: str, absolute: str, name: str) -> str:
        return posixpath.join(
            self.root if absolute else posixpath.dirname(path), name if name.endswith(_YAML) else f"{name}.yaml"
        )
