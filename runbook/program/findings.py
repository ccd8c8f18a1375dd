"""What is met on the way through a program: parsers, where they are given the command line, why more may be taken."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from runbook.model.program import OpenReason, ProgramOption, ProgramOptions


@dataclass(slots=True, eq=False)
class CommandLine:
    """What one parser takes. `abbreviations`: the beginning of an option will do."""

    library: str
    options: list[ProgramOption] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    inherits: list[str] = field(default_factory=list)
    config: list[str] = field(default_factory=list)
    abbreviations: bool = False
    file: str = ""
    line: int = 0
    _places: dict[str, int] = field(default_factory=dict)

    def add(self, option: ProgramOption) -> None:
        """A second one of the same name takes the first one's place; of two that exclude each other the default is not
        known."""
        at = next((self._places[name] for name in option.names if name in self._places), len(self.options))
        if at < len(self.options):
            before = self.options[at]
            if (before.conditional or option.conditional) and before.default != option.default:
                option = replace(option, default=None)
            both = before.conditional and option.conditional
            names = tuple(dict.fromkeys((*option.names, *(before.names if both else ()))))
            self.options[at] = replace(option, names=names, conditional=both)
        else:
            self.options.append(option)
        self._places.update(dict.fromkeys(option.names, at))

    def change_defaults(self, defaults: dict[str, str | None]) -> None:
        """By the options' names in the program."""
        self.options[:] = [
            replace(option, default=defaults.get(option.dest, option.default)) for option in self.options
        ]

    def open(self, reason: OpenReason, what: str, file: str, line: int) -> None:
        self.reasons.append(said(reason, what, file, line))

    def inherit(self, name: str, file: str, line: int) -> None:
        self.inherits.append(name)
        self.open(OpenReason.INHERITS, name, file, line)


@dataclass(frozen=True, slots=True)
class _Parse:
    """A parser that is given the command line. `keeps`: it goes on with what it does not know."""

    of: CommandLine
    keeps: str
    unsure: bool


@dataclass(slots=True, eq=False)
class Findings:
    """Of one walk."""

    made: list[CommandLine] = field(default_factory=list)
    parses: list[_Parse] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    own_reading: str = ""
    """Where the program looks into `sys.argv` itself."""
    shared: dict[str, CommandLine] = field(default_factory=dict)
    """By library: what every module of a program adds to."""
    schemas: CommandLine = field(default_factory=lambda: CommandLine(""))
    """Keys of classes that are a configuration's schema."""
    outside: list[str] = field(default_factory=list)
    """Functions of packages not read that the program's own first statements call."""

    @property
    def seen(self) -> bool:
        return bool(self.made)

    @property
    def surely_parsed(self) -> bool:
        return any(not parse.unsure for parse in self.parses)

    def reads_words(self, file: str, line: int) -> None:
        """The program looks into `sys.argv` itself, or hands it to what is not read."""
        self.own_reading = self.own_reading or said(OpenReason.OWN_READING, "sys.argv", file, line)

    def makes_words(self, file: str, line: int) -> None:
        """The program gives its parser other words than those of its command line."""
        self.reasons.append(said(OpenReason.OWN_READING, "sys.argv =", file, line))

    def parsed(self, line: CommandLine, keeps: str, unsure: bool) -> None:
        """`keeps`: the reason's text where options that it does not know do not end the program; else empty."""
        self.parses.append(_Parse(line, keeps, unsure))

    def called_outside(self, name: str) -> None:
        if name not in self.outside and len(self.outside) < 100:
            self.outside.append(name)

    def result(self, *, cut: bool) -> ProgramOptions | None:
        """`cut`: a limit was met before the way through the program was at its end."""
        lines = list(dict.fromkeys(parse.of for parse in self.parses))
        reasons = list(self.reasons)
        if not lines:
            lines = self.made
            reasons += [said(OpenReason.NOT_PARSED, line.library, line.file, line.line) for line in lines]
        if not lines and not self.own_reading:
            return None
        strict = [at for at, parse in enumerate(self.parses) if not parse.keeps]
        last = max((at for at in strict if not self.parses[at].unsure), default=-1)
        keeping = [parse for at, parse in enumerate(self.parses) if parse.keeps and at > last]
        reasons += [parse.keeps for parse in keeping]
        reasons += [reason for line in lines for reason in line.reasons]
        if cut and last < 0 and not any(parse.keeps and not parse.unsure for parse in self.parses):
            reasons.append(OpenReason.LIMIT.value)
        if not lines:
            reasons.append(self.own_reading)
        every = CommandLine("")
        if any(line.library in ("hydra", "omegaconf") for line in lines):
            lines = [*lines, self.schemas]
            reasons += self.schemas.reasons
        for line in lines:
            for option in line.options:
                every.add(option)
        return ProgramOptions(
            parsers=tuple(dict.fromkeys(line.library for line in lines if line.library)) or ("sys.argv",),
            options=tuple(every.options), complete=not reasons, open_because=tuple(dict.fromkeys(reasons)),
            inherits=tuple(dict.fromkeys(name for line in lines for name in line.inherits)),
            abbreviations=any(line.abbreviations for line in lines),
            config=tuple(dict.fromkeys(path for line in lines for path in line.config)),
        )


def said(reason: OpenReason, what: str, file: str, line: int) -> str:
    return " ".join(part for part in (reason.value, what, f"{file}:{line}") if part)
