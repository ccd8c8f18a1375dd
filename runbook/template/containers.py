"""Which file of the node a path inside a container is: by the mounts that the launch command names.

Source: the pyxis plug-in (`--container-image`, `--container-mounts=SRC:DST[:FLAGS][,…]`, which mounts nothing else but
the folders of its configuration), apptainer exec (`--bind`; it mounts the home folder, /tmp and the working folder, so
what no bind names is the node's own), enroot start (`--mount`), docker and podman run (`--volume`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runbook.template.bash.launchers import basename, command_chain, launcher_words
from runbook.template.bash.state import Command, Token
from runbook.template.bash.syntax import Header

_OPTIONS = {
    "srun": ("--container-mounts",),
    "apptainer": ("--bind", "-B"), "singularity": ("--bind", "-B"),
    "enroot": ("--mount", "-m"),
    "docker": ("--volume", "-v"), "podman": ("--volume", "-v"),
}
"""What names mounts, by what starts a container."""
_SHOWS_THE_NODE = frozenset({"apptainer", "singularity"})
_IMAGE = "--container-image"
_FOLDER = "--container-workdir"


@dataclass(frozen=True, slots=True)
class Container:
    """What of the node a container shows."""

    said: str
    """By what: "apptainer at line 4"."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Folder or file of the node, and where the container shows it; the last of a place counts."""
    open: bool = False
    """Whether what no mount names is the node's own."""
    known: bool = True
    """False: a mount is computed."""
    folder: str = ""
    """In which the command runs, where it is said."""

    def on_node(self, path: str) -> str | None:
        """The file of the node that the container shows under `path`; None where that is not known. A relative path
        stays one where the folder is not said: it is then meant from the job's."""
        inside = posixpath.join(self.folder, path)
        if not posixpath.isabs(inside):
            return path
        inside = posixpath.normpath(inside)
        if not self.known:
            return None
        covering = [
            (source, place) for source, place in self.mounts
            if inside == place or inside.startswith(f"{place.rstrip('/')}/")
        ]
        if not covering:
            return inside if self.open else None
        longest = max(len(place.rstrip("/")) for _, place in covering)
        source, _ = [item for item in covering if len(item[1].rstrip("/")) == longest][-1]
        return posixpath.normpath(posixpath.join(source, inside[longest:].lstrip("/")))


def container_of(command: Command, header: Header) -> Container | None:
    """The container in which a command runs, of several the innermost; None: in none that is seen."""
    for current in command_chain(command):
        words = launcher_words(current)
        names = {basename(token): token for token in words}
        starters = [name for name in _OPTIONS if name in names and (name != "srun" or _has(words, _IMAGE))]
        if not starters:
            continue
        starter = starters[-1]
        token = names[starter]
        values = [value for option in _OPTIONS[starter] for value in _values(words, option)]
        folder = next(iter(_values(words, _FOLDER)), "") or ""
        return _container(f"{starter} at line {token.line}", values, starter in _SHOWS_THE_NODE, folder)
    image = header.last((_IMAGE,))
    if image is None:
        return None
    mounts, folder_said = header.last(_OPTIONS["srun"]), header.last((_FOLDER,))
    values = [mounts.value] if mounts is not None else []
    folder = (folder_said.value if folder_said is not None else "") or ""
    return _container(f"#SBATCH {_IMAGE} at line {image.line}", values, False, folder)


def _container(said: str, values: Sequence[str | None], shows_the_node: bool, folder: str) -> Container:
    mounts: list[tuple[str, str]] = []
    for item in (part for value in values if value is not None for part in value.split(",")):
        source, _, rest = item.partition(":")
        mounts.append((source, posixpath.normpath(rest.partition(":")[0] or source)))
    known = None not in values and all(source.startswith("/") for source, _ in mounts)
    return Container(said, tuple(mounts), shows_the_node, known, folder)


def _has(words: Sequence[Token], option: str) -> bool:
    return any(token.prefix == option or token.prefix.startswith(f"{option}=") for token in words)


def _values(words: Sequence[Token], option: str) -> Iterator[str | None]:
    """What an option was given, each time; None where that is computed."""
    for at, token in enumerate(words):
        if token.prefix.startswith(f"{option}=") and option.startswith("--"):
            yield token.text[len(option) + 1 :] if token.text is not None else None
        elif token.text == option and at + 1 < len(words):
            yield words[at + 1].text
