"""sbatch's options: the table of which take a value, and the reading of submit lines and `#SBATCH` headers; srun's, as
far as a step's submit line tells where its tasks write.

Slurm stores a submit line as its arguments joined by single spaces, without quoting (`slurm_option_get_argv_str` in
`src/common/slurm_opt.c`): `sbatch --comment "a b" x.sh` is kept as `sbatch --comment a b x.sh`. So it must not be read
with shell rules. Free text that the job record has anyway (name, comment, …) is recognised whole; where the boundary
between options and script stays unclear, the line is refused instead of guessed.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from runbook.errors import BadInput


class Takes(Enum):
    NOTHING = auto()
    VALUE = auto()
    MAYBE = auto()
    """A value only behind `=` (long) or without a space (short)."""


_Tables = tuple[Mapping[str, Takes], Mapping[str, str]]
"""Long options, and short ones by the long."""


def _table(kind: Takes, names: str) -> dict[str, Takes]:
    return dict.fromkeys(names.split(), kind)


#: Source: sbatch(1) of Slurm 22.05 to 26.05, whose `sbatch --help` the tests read, and the sbatch options of the pyxis
#: plug-in (container-*).
LONG_OPTIONS: dict[str, Takes] = {
    **_table(
        Takes.VALUE,
        """account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container
        container-id container-type core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot
        dependency distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus
        gpus-per-node
        gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type
        mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks
        ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output partition
        power prefer priority profile qos reservation segment signal sockets-per-node switches thread-spec
        threads-per-core time time-min tmp tres-bind tres-per-task uid wait-all-nodes wckey workdir wrap
        container-image container-mounts container-workdir container-name container-save container-env""",
    ),
    **_table(
        Takes.NOTHING,
        """contiguous consolidate-segments help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet
        reboot share spread-job spread-segments stepmgr test-only usage use-min-nodes verbose version wait
        container-mount-home no-container-mount-home container-remap-root no-container-remap-root
        container-entrypoint no-container-entrypoint container-writable container-readonly""",
    ),
    **_table(Takes.MAYBE, "exclusive get-user-env immediate nice no-kill oom-kill-step propagate requeue resv-ports"),
}

SHORT_OPTIONS: dict[str, str] = {
    "a": "array", "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "h": "help", "H": "hold",
    "i": "input", "I": "immediate", "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution",
    "M": "clusters", "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit", "p": "partition", "q": "qos",
    "Q": "quiet", "s": "oversubscribe", "S": "core-spec", "t": "time", "u": "usage", "v": "verbose",
    "V": "version", "w": "nodelist", "W": "wait", "x": "exclude",
}  # fmt: skip

#: Where srun's table is another. Source: srun(1) of Slurm 22.05 to 26.05.
_SRUN_LONG: dict[str, Takes] = {
    **LONG_OPTIONS,
    **_table(
        Takes.VALUE,
        """accel-bind bcast-exclude cpu-bind epilog het-group jobid msg-timeout mpi prolog relative slurmd-debug
        task-epilog task-prolog threads treewidth tres-per-job wait""",
    ),
    **_table(
        Takes.NOTHING,
        """disable-status exact external interactive label multi-prog no-allocate overlap preserve-env
        quit-on-interrupt unbuffered whole""",
    ),
    **_table(Takes.MAYBE, "bcast compress kill-on-bad-exit pty send-libs x11"),
}
_SRUN_SHORT: dict[str, str] = {
    **SHORT_OPTIONS, "E": "preserve-env", "K": "kill-on-bad-exit", "l": "label", "r": "relative", "T": "threads",
    "u": "unbuffered", "X": "disable-status", "Z": "no-allocate",
}  # fmt: skip

_LONGEST_HEADER = 16 << 10
"""Of one `#SBATCH` line: the standard library's reader takes the square of a word's length."""
_SAME = {"workdir": "chdir", "share": "oversubscribe"}


@dataclass(frozen=True, slots=True)
class SbatchOption:
    """One option by its long name without dashes. `value` is None where it has none."""

    name: str
    value: str | None = None

    def argument(self) -> str:
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class SubmitLine:
    """A submit line taken apart."""

    options: tuple[SbatchOption, ...] = ()
    script: str = ""
    """Empty for `--wrap` and for a script from standard input."""
    arguments: tuple[str, ...] = ()

    def value(self, name: str) -> str | None:
        """The last value given to an option, as sbatch takes it."""
        return last_value(self.options, name)

    def has(self, name: str) -> bool:
        return any(option.name == name for option in self.options)


def last_value(options: Iterable[SbatchOption], name: str) -> str | None:
    found = None
    for option in options:
        if option.name == name:
            found = option.value
    return found


def parse_arguments(
    arguments: Sequence[str], *, script: str = "", tables: _Tables = (LONG_OPTIONS, SHORT_OPTIONS)
) -> SubmitLine:
    """Arguments of sbatch, as a shell would hand them over. `script`, where known, settles unknown site options.

    Raises `BadInput` where an option that is not in the table stands before something that may be its value."""
    options: list[SbatchOption] = []
    rest = deque(arguments)
    while rest:
        word = rest.popleft()
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            rest.appendleft(word)
            break
        if word.startswith("--"):
            options.append(_long(word, rest, script, tables[0]))
        else:
            options.extend(_short(word, rest, tables))
    chosen, *given = rest or ("",)
    return SubmitLine(tuple(options), chosen, tuple(given))


def parse_submit_line(
    line: str, *, known: Mapping[str, str] | None = None, script: str = "", wrapped: str = ""
) -> SubmitLine:
    """A submit line as Slurm stored it. `known` holds free-text values from the record by option name ("job-name",
    "comment"); `script` the script's path as the controller knows it; `wrapped` the text of `--wrap`.

    Raises `BadInput` for several components (a heterogeneous job) or where the line cannot be told apart."""
    program, _, text = line.strip().partition(" ")
    if program.rpartition("/")[2] != "sbatch":
        raise BadInput(
            f"the job was not submitted by sbatch but by {program.rpartition('/')[2] or 'an unknown program'!r}",
            where="SubmitLine",
            next_step="submit it by hand with the patched script",
        )
    values = {name: value for name, value in {**(known or {}), "wrap": wrapped}.items() if " " in value}
    parsed = parse_arguments(_tokens(text, values), script=script)
    if parsed.script == ":":
        raise BadInput(
            "the job is heterogeneous: its submit line has several components",
            where="SubmitLine",
            next_step="submit it by hand with the patched script",
        )
    if parsed.has("wrap"):
        if parsed.script:
            raise BadInput(
                "the submit line's --wrap text cannot be told from its options",
                where="SubmitLine",
                next_step="submit it by hand with the patched script",
            )
        return parsed
    if script and parsed.script and _last_part(parsed.script) != _last_part(script):
        raise BadInput(
            f"the submit line's script seems to be {parsed.script!r}, but the job ran {script!r}: "
            "an option value with spaces was stored without quotes",
            where="SubmitLine",
            next_step="submit it by hand with the patched script",
        )
    return parsed


def step_options(line: str) -> tuple[SbatchOption, ...]:
    """srun's options in a step's submit line; () where a step was started otherwise, or its line cannot be read."""
    program, _, text = line.strip().partition(" ")
    if program.rpartition("/")[2] != "srun":
        return ()
    try:
        return parse_arguments(text.split(" "), tables=(_SRUN_LONG, _SRUN_SHORT)).options
    except BadInput:
        return ()


def header_options(script: str) -> tuple[SbatchOption, ...]:
    """The options of a script's `#SBATCH` lines: those before its first command, with shell quoting."""
    options: list[SbatchOption] = []
    for line in script.splitlines():
        stripped = line.strip()
        if line.startswith("#SBATCH"):
            if len(line) > _LONGEST_HEADER:
                raise BadInput(f"a #SBATCH line has more than {_LONGEST_HEADER} letters", where=line[:120])
            try:
                words = shlex.split(line[len("#SBATCH") :], comments=True)
            except ValueError as error:
                raise BadInput(f"a #SBATCH line cannot be read: {error}", where=line[:120]) from error
            options.extend(parse_arguments(words).options)
        elif stripped and not stripped.startswith("#"):
            break
    return tuple(options)


def wrapped_text(script: str) -> str:
    """The command that sbatch put into a script for `--wrap`, or ""."""
    head, mark, body = script.partition("# This script was created by sbatch --wrap.")
    return body.strip("\n") if mark and head.startswith("#!") else ""


def _long(token: str, rest: deque[str], script: str, table: Mapping[str, Takes]) -> SbatchOption:
    name, equals, value = token[2:].partition("=")
    full = _full_name(name, table)
    takes = table.get(full)
    full = _SAME.get(full, full)
    if equals:
        return SbatchOption(full, value)
    if takes is Takes.VALUE:
        if not rest:
            raise BadInput(f"sbatch's option --{full} has no value", where=token)
        return SbatchOption(full, rest.popleft())
    if takes is None and rest and not rest[0].startswith("-") and _last_part(rest[0]) != _last_part(script):
        raise BadInput(
            f"--{full} is not an sbatch option of this table, and {rest[0]!r} may be its value or the script",
            where="SubmitLine",
            next_step="write it as --option=value when submitting, or submit by hand with the patched script",
        )
    return SbatchOption(full)


def _full_name(name: str, table: Mapping[str, Takes]) -> str:
    """getopt takes an unambiguous beginning of a long option for the option."""
    if name in table:
        return name
    candidates = [known for known in table if known.startswith(name)] if len(name) > 2 else []
    return candidates[0] if len(candidates) == 1 else name


def _short(token: str, rest: deque[str], tables: _Tables) -> list[SbatchOption]:
    options: list[SbatchOption] = []
    for end, letter in enumerate(token[1:], start=2):
        name = tables[1].get(letter)
        if name is None:
            raise BadInput(
                f"-{letter} is not an option of sbatch",
                where=token[:120],
                next_step="submit by hand with the patched script",
            )
        takes = tables[0][name]
        letters = "" if takes is Takes.NOTHING else token[end:]
        if takes is Takes.VALUE:
            if not letters and not rest:
                raise BadInput(f"sbatch's option -{letter} has no value", where=token[:120])
            options.append(SbatchOption(name, letters or rest.popleft()))
            break
        if takes is Takes.MAYBE and letters:
            options.append(SbatchOption(name, letters))
            break
        options.append(SbatchOption(name))
    return options


def _tokens(text: str, values: Mapping[str, str]) -> list[str]:
    """Split at single spaces, except inside the known value of an option that stands right there."""
    starts: list[tuple[str, str]] = []
    for name, value in values.items():
        letter = next((short for short, long in SHORT_OPTIONS.items() if long == name), "")
        ways = (f"--{name}=", f"--{name} ", *((f"-{letter}", f"-{letter} ") if letter else ()))
        starts += [(f"{way}{value}", f"--{name}={value}") for way in ways]
    tokens: list[str] = []
    position = 0
    # By index: the rest of a line of a million words, copied at each of them, would take minutes.
    while position < len(text):
        for start, whole in starts:
            end = position + len(start)
            if text.startswith(start, position) and text[end : end + 1] in ("", " "):
                tokens.append(whole)
                break
        else:
            end = text.find(" ", position) % (len(text) + 1)
            tokens.append(text[position:end])
        position = end + 1
    return tokens


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
