"""A listed folder tree, and what the judgements of all checkpoint formats share."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from runbook.model.checkpoint import Checkpoint, DirectoryEntry

TRACKER = "latest_checkpointed_iteration.txt"
SMALL_FILE_BYTES = 4 << 20
"""A Hugging Face trainer_state.json holds the whole log history and must be read whole to be judged."""
CLOCK_TOLERANCE_S = 2.0
_NUMBER = re.compile(r"[0-9]{1,12}")
_SHARD = re.compile(rb"__[0-9]{1,7}_[0-9]{1,7}\.distcp")


class Torn(Exception):
    """Why a folder is no checkpoint that a job could go on from."""


@dataclass(slots=True)
class Listing:
    """Entries by folder, with the small files that were read."""

    small: Mapping[str, bytes]
    _inside: dict[str, dict[str, DirectoryEntry]] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[DirectoryEntry], small: Mapping[str, bytes]) -> Listing:
        listing = cls(small)
        for entry in entries:
            folder, name = posixpath.split(entry.path)
            listing._inside.setdefault(folder, {})[name] = entry
        return listing

    def inside(self, folder: str) -> Mapping[str, DirectoryEntry]:
        """What lies in a folder, by name."""
        return self._inside.get(folder, {})

    def file(self, path: str) -> DirectoryEntry | None:
        folder, name = posixpath.split(path)
        entry = self.inside(folder).get(name)
        return entry if entry is not None and not entry.is_dir else None

    def has(self, *paths: str) -> bool:
        return all(self.file(path) is not None for path in paths)

    def folders(self, folder: str) -> tuple[str, ...]:
        return tuple(sorted(entry.path for entry in self.inside(folder).values() if entry.is_dir))

    def files(self, folder: str) -> tuple[DirectoryEntry, ...]:
        """The files directly in a folder."""
        return tuple(entry for entry in self.inside(folder).values() if not entry.is_dir)

    def all_files(self, folder: str) -> Iterator[DirectoryEntry]:
        """The files in a folder and below it."""
        waiting = [folder]
        while waiting:
            for entry in self.inside(waiting.pop()).values():
                if entry.is_dir:
                    waiting.append(entry.path)
                else:
                    yield entry

    def every_folder(self) -> tuple[str, ...]:
        """All folders that hold something or are listed, outer ones first."""
        named = {entry.path for inside in self._inside.values() for entry in inside.values() if entry.is_dir}
        return tuple(sorted(named | set(self._inside), key=lambda path: (path.count("/"), path)))

    def text(self, path: str) -> str | None:
        """A small file's text, stripped; None where there is none or it was not read."""
        content = self.small.get(path)
        return content.decode("utf-8", "replace").strip() if content is not None else None

    def document(self, path: str) -> dict[str, object] | None:
        return read_json(self.small.get(path))

    def tracked(self, folder: str) -> int | None:
        """The number that Megatron's tracker in `folder` names."""
        return whole_number(self.text(f"{folder}/{TRACKER}"))


def whole_number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def read_json(content: bytes | None) -> dict[str, object] | None:
    if content is None:
        return None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def positive(value: object) -> int | None:
    """A world size as JSON has it."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def step_of(name: str) -> int | None:
    """The step in a folder's name: its last number behind a word for steps."""
    found = re.findall(r"(?:step|iter|iteration|checkpoint|ckpt)[=_-]?([0-9]{1,12})(?![0-9])", name)
    return int(found[-1]) if found else None


def check_contiguous(numbers: Iterable[int], what: str) -> int:
    """How many there are, 0 upwards. Raises `Torn` for the first that is missing."""
    present = set(numbers)
    for number in range(max(present, default=-1) + 1):
        if number not in present:
            raise Torn(f"{what} {number} is missing")
    return len(present)


def check_not_empty(files: Sequence[DirectoryEntry], what: str) -> None:
    empty = next((entry for entry in files if entry.size_bytes == 0), None)
    if empty is not None:
        raise Torn(f"{what} is empty ({posixpath.basename(empty.path)})")


def check_dcp(listing: Listing, folder: str) -> None:
    """A folder of torch.distributed.checkpoint is complete, or `Torn` is raised.

    `.metadata` is renamed into place after all ranks wrote; in a folder that is used again the old one stays until
    then, so newer shards beside it are a save that did not finish (torch/distributed/checkpoint/filesystem.py).
    """
    shards = [entry for entry in listing.files(folder) if entry.path.endswith(".distcp")]
    metadata = listing.file(f"{folder}/.metadata")
    where = posixpath.basename(folder)
    if not shards:
        raise Torn(f"no shard files in {where}")
    if metadata is None:
        raise Torn(f"no .metadata in {where}: the save did not finish")
    if metadata.size_bytes == 0:
        raise Torn(f".metadata in {where} is empty")
    if max(entry.modified_s for entry in shards) > metadata.modified_s + CLOCK_TOLERANCE_S:
        raise Torn(f"shards in {where} are newer than .metadata: a save over it did not finish")
    check_not_empty(shards, "a shard file")
    content = listing.small.get(metadata.path)
    if content is not None and len(content) == metadata.size_bytes:
        present = {posixpath.basename(entry.path) for entry in shards}
        missing = sorted({name.decode() for name in _SHARD.findall(content)} - present)
        if missing:
            raise Torn(f".metadata in {where} names {missing[0]}, which is missing")


@dataclass(frozen=True, slots=True)
class Found:
    """A judged checkpoint with what orders those that have no step in their name."""

    checkpoint: Checkpoint
    order: int = 0


Judge = Callable[[Listing, str], Found | Sequence[Found] | None]
"""The checkpoints of a folder; None where it has none of the format."""
_OneJudge = TypeVar("_OneJudge", bound=Judge)


@dataclass(frozen=True, slots=True)
class Format:
    """A way to write checkpoints, by its module's name."""

    name: str
    judge: Judge
    asked: int
    """The formats are asked in this order, and the first that knows a folder has it."""
    takes: tuple[str, ...]
    small_files: frozenset[str]
    marker: str


_registered: list[Format] = []


def checkpoint_format(
    *, asked: int, takes: Iterable[str] = ("",), small_files: Iterable[str] = (), marker: str = ""
) -> Callable[[_OneJudge], _OneJudge]:
    """Registers the judge of a format. `takes`: the folders below the judged one that no other format looks into, ""
    for all of it. `small_files`: the names of those whose contents it needs. `marker`: the end of the name of a file
    that stands for a folder that is not there yet."""

    def register(judge: _OneJudge) -> _OneJudge:
        name = judge.__module__.rpartition(".")[2]
        _registered.append(Format(name, judge, asked, tuple(takes), frozenset(small_files), marker))
        return judge

    return register


def registered() -> tuple[Format, ...]:
    """In the order in which they are asked."""
    return tuple(sorted(_registered, key=lambda one: one.asked))


def torn(path: str, step: int | None, why: str, world_size: int | None = None, form: str = "") -> Found:
    """One that no job could go on from. `form`: as of a whole one."""
    return Found(Checkpoint(path, step, False, why, form, world_size), step or 0)


@dataclass(frozen=True, slots=True)
class Sharding:
    """How many ranks wrote it, whether another number can load it, and what limits that. None: not known."""

    world_size: int | None = None
    reshardable: bool | None = None
    why: str = ""


def whole(
    path: str,
    step: int | None,
    sharding: Sharding,
    *,
    form: str = "",
    latest: bool | None = None,
    order: int | None = None,
) -> Found:
    """A complete checkpoint. `form`: what a format that can write several calls it; "": by the format's name."""
    checkpoint = Checkpoint(
        path, step, True, sharding.why, form, sharding.world_size, sharding.reshardable, latest
    )
    return Found(checkpoint, order if order is not None else step or 0)
