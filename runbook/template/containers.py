"""Which file of the node a path inside a container is: by the mounts that the launch command names.

Source: the pyxis plug-in (`--container-image` or `--container-name`, `--container-mounts=SRC:DST[:FLAGS][,…]`, which
mounts nothing else but the folders of its configuration), apptainer exec (`--bind`, `--mount`, APPTAINER_BIND and
APPTAINER_BINDPATH; it mounts the home folder, /tmp and the working folder, and leaves out what `--contain` and the like
name), shifter (`--volume`; a site's folders beside it), enroot start (`--mount`), docker and podman run (`--volume`,
`--mount`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.template.bash.launchers import LAUNCHERS, basename, command_chain, environment_entry, launcher_words
from runbook.template.bash.state import Command, Token, text_of
from runbook.template.bash.syntax import Header


@dataclass(frozen=True, slots=True)
class _Kind:
    """The words of what starts a container."""

    mounts: tuple[str, ...]
    folder: tuple[str, ...]
    """What says in which folder of the container the command runs."""
    variables: tuple[str, ...] = ()
    """What names mounts in the environment."""
    open: bool = False
    """Whether the node's home, /tmp and working folder are shown without being named."""
    closed_by: tuple[str, ...] = ()
    """What takes these away again."""


_APPTAINER = _Kind(
    ("--bind", "-B", "--mount"), ("--pwd", "--cwd"),
    ("APPTAINER_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BIND", "SINGULARITY_BINDPATH"), True,
    ("--contain", "-c", "--containall", "-C", "--no-home", "--no-mount"),
)
_DOCKER = _Kind(("--volume", "-v", "--mount"), ("--workdir", "-w"))
_PYXIS = _Kind(("--container-mounts",), ("--container-workdir",))
_KINDS = {
    "srun": _PYXIS, "apptainer": _APPTAINER, "singularity": _APPTAINER, "enroot": _Kind(("--mount", "-m"), ()),
    "docker": _DOCKER, "podman": _DOCKER, "shifter": _Kind(("--volume", "-V"), ("--workdir", "-w"), (), True),
}
"""By what starts it."""
_NAMES_ONE = ("--container-image", "--container-name")
_NODES_OWN = ("/home", "/tmp", "/var/tmp")  # noqa: S108
_STARTED = frozenset({"bash", "sh", "dash", "zsh", "env", "nohup"})
_FLAGS = re.compile(r"-[ditPq]+(?=[vw])")


@dataclass(frozen=True, slots=True)
class Container:
    """What of the node a container shows."""

    said: str
    """By what: "apptainer at line 4"."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Folder or file of the node, and where the container shows it; the last of a place counts."""
    open: bool = False
    """Whether the home, /tmp and the working folder are the node's own where no mount names them."""
    known: bool = True
    """False: a mount is computed."""
    folder: str = ""
    """In which the command runs, where that is said of the container."""
    from_outside: bool = False
    """The command runs in the folder in which the container was started; else one that is not said is the image's."""

    def on_node(self, path: str, started_in: str = "") -> str | None:
        """The file of the node that the container shows under `path`; None where that is not known. A relative path
        may stay one: it is then meant from `started_in`, the folder in which the container was started."""
        inside = posixpath.normpath(posixpath.join(started_in if self.from_outside else "", self.folder, path))
        as_outside = None
        if self.from_outside and not posixpath.isabs(posixpath.join(self.folder, path)):
            as_outside = posixpath.normpath(posixpath.join(self.folder, path))
        if not posixpath.isabs(inside) or not self.known:
            return as_outside
        covering = [(source, place) for source, place in self.mounts if _below(inside, place)]
        if not covering:
            return as_outside or self._own(inside, started_in)
        longest = max(len(place.rstrip("/")) for _, place in covering)
        source, _ = [item for item in covering if len(item[1].rstrip("/")) == longest][-1]
        return posixpath.normpath(posixpath.join(source, inside[longest:].lstrip("/")))

    def after(self, cd: str | None) -> Container:
        """The same for a command in front of which the container's own words go to `cd`; None: where is not known."""
        if cd == "":
            return self
        if cd is None or not (posixpath.isabs(cd) or self.folder or self.from_outside):
            return replace(self, folder="", from_outside=False)
        outside = self.from_outside and not posixpath.isabs(cd)
        return replace(self, folder=posixpath.join(self.folder, cd), from_outside=outside)

    def _own(self, inside: str, started_in: str) -> str | None:
        working = (started_in,) if started_in.strip("/") else ()
        return inside if self.open and any(_below(inside, place) for place in (*_NODES_OWN, *working)) else None


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def starts_container(command: Command, header: Header) -> tuple[Command | None, str] | None:
    """The command of those around this one that starts the innermost container, and by what; no command where a
    directive puts the whole script into it. None: no container is seen."""
    for current in command_chain(command):
        words = launcher_words(current)
        names = [basename(token) for token in words]
        starters = [name for name in _KINDS if name in names and (name != "srun" or _has(words, _NAMES_ONE))]
        if starters:
            return current, max(starters, key=names.index)
    return (None, "srun") if header.last(_NAMES_ONE) is not None else None


def container_of(command: Command, header: Header, environment: Mapping[str, str] | None = None) -> Container | None:
    """The container in which a command runs, of several the innermost; None: in none that is seen. `environment`: of
    whoever submitted the script, where it is known."""
    found = starts_container(command, header)
    if found is None:
        return None
    current, starter = found
    kind = _KINDS[starter]
    words = _own_words(launcher_words(current), starter) if current is not None else ()
    image = header.last(_NAMES_ONE) if current is None else None
    said = f"#SBATCH {image.option} at line {image.line}" if image else f"{starter} at line {words[0].line}"
    values = [value for name in kind.variables for value in _of_variable(command, name, header, environment)]
    values += [value for option in kind.mounts for value in _values(words, option)]
    folders = [value for option in kind.folder for value in _values(words, option)]
    if starter in ("srun", "shifter"):
        values = values or [item.value for item in (header.last(kind.mounts),) if item is not None]
    if starter == "srun":
        folders = folders or [item.value for item in (header.last(kind.folder),) if item is not None]
    shows = kind.open and not _has(words, kind.closed_by)
    mounts = [_mount(item) for value in values if value for item in _each_mount(value)]
    known = None not in values and all(source.startswith("/") for source, _ in mounts)
    return Container(said, tuple(mounts), shows, known, (folders or [""])[-1] or "", shows and not folders)


def _own_words(words: Sequence[Token], starter: str) -> Sequence[Token]:
    """From what starts the container to what is started in it."""
    at = next(index for index, token in enumerate(words) if basename(token) == starter)
    end = next((
        index for index in range(at + 1, len(words))
        if basename(words[index]) in LAUNCHERS or basename(words[index]) in _STARTED
    ), len(words))
    return words[at:end]


def _of_variable(
    command: Command, name: str, header: Header, environment: Mapping[str, str] | None
) -> list[str | None]:
    entry = environment_entry(command, name, header)
    if entry is not None:
        return [text_of(entry.atoms)]
    return [environment[name]] if environment and name in environment else []


def _each_mount(value: str) -> list[str]:
    """Docker's and Apptainer's `type=bind,source=/a,target=/b` is one; else commas are between them, and shifter's
    semicolons."""
    return [value] if re.match(r"[a-z]+=", value) else [item for item in re.split("[,;]", value) if item]


def _mount(item: str) -> tuple[str, str]:
    if not re.match(r"[a-z]+=", item):
        source, _, rest = item.partition(":")
        return source, posixpath.normpath(rest.partition(":")[0] or source)
    fields = dict(part.partition("=")[::2] for part in item.split(","))
    source = fields.get("source") or fields.get("src") or ""
    place = fields.get("target") or fields.get("destination") or fields.get("dst") or source or "/"
    return (source if fields.get("type", "bind") == "bind" else ""), posixpath.normpath(place)


def _has(words: Sequence[Token], options: Sequence[str]) -> bool:
    return any(token.prefix == option or token.prefix.startswith(f"{option}=") for token in words for option in options)


def _values(words: Sequence[Token], option: str) -> Iterator[str | None]:
    """What an option was given, each time; None where that is computed."""
    for at, token in enumerate(words):
        skipped = len(flags[0]) - 1 if (flags := _FLAGS.match(token.prefix)) else 0
        word = f"-{token.prefix[skipped + 1 :]}" if skipped else token.prefix
        stuck = f"{option}=" if option.startswith("--") else option
        if word == option and token.text is not None:
            if at + 1 < len(words):
                yield words[at + 1].text
        elif word.startswith(stuck) and not (option.startswith("-") and word.startswith("--") and len(option) == 2):
            yield token.text[skipped + len(stuck) :].removeprefix("=") if token.text is not None else None
