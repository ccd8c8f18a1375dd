"""The one runner: every process that the product starts on this machine is started here.

A command is a tuple of arguments, never a shell string, with a timeout and a cap on its output. A command of another
user is started through a tiny Python stage that runs with that user's rights: it takes working directory and
environment from its standard input (so that no secret shows in a process list), enters the directory with the user's
own rights, and becomes the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from runbook.adapters.identity import Identity, PrivilegeMode, privilege_mode, stage_interpreter, sudo_refused
from runbook.adapters.process.stages import AS_OWNER, BEHIND_SUDO, ENDS_THEM, IN_MEMORY, READY, STAGE, STAGE_ERROR
from runbook.errors import NotFound, Unavailable

OUTPUT_LIMIT_BYTES = 64 << 20
_OWNERS_OUTPUT_BYTES = 4 << 20
"""Of a command with another user's rights, whose pipes that user's processes can take and fill."""
KILL_WAIT_S = 2.0
_MOST_BELOW = 32
"""Processes below sudo that are killed one by one."""
_BEFORE_ITS_END_S = 0.2
_ENDED_BY_TIMER = (-signal.SIGALRM, 128 + signal.SIGALRM, 124)


def awake_s() -> float:
    """Seconds of this machine that nobody sets and that go on while it sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command ended. `exit_code` is negative for a signal; `truncated` means that output was cut at the cap."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    duration_s: float

    def text(self) -> str:
        """Standard output; bytes that are not UTF-8 survive as surrogates."""
        return self.stdout.decode("utf-8", "surrogateescape")

    def error_text(self) -> str:
        return self.stderr.decode("utf-8", "replace").strip()


@dataclass(frozen=True, slots=True)
class Command:
    """What is to run, and how. `argv` is never a shell string."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] | None = None
    """The whole environment; None: ours, or the login environment of another user."""
    cwd: str | None = None
    as_user: Identity | None = None
    umask: int = 0o022
    """Counts for another user's command only."""
    in_memory: Mapping[str, bytes] = field(default_factory=dict)
    """By word of `argv` that holds `IN_MEMORY`: what the file holds that the word is made to name. It is handed over in
    the command's own memory, so that nothing has to lie on a disk, and nobody else can read or change it."""
    hold: int | None = None
    """A descriptor that the command inherits, such as a lock that it keeps while it lives; sudo closes it."""
    until_s: float | None = None
    """By `awake_s`: it does not begin then, and has ended by then even where this process has not lived so long. Counts
    for another user's command, and for one with something `in_memory`."""
    asks: bool = False
    """It changes nothing: it ends with this process (`end_questions_with_us`). What acts goes on: whoever takes up what
    was begun waits for its lock or looks what came of it, and must not look before Slurm or the node has done it."""
    output_limit_bytes: int = OUTPUT_LIMIT_BYTES
    """Caps standard output and standard error each; the rest is thrown away."""


def run(command: Command, timeout_s: float) -> Completed:
    """Run a command to its end; a non-zero exit code is an answer, not an error.

    At the timeout the command and its process group are killed. Raises `Unavailable` (timeout, the machine cannot
    start processes), `NotFound` (no such program or directory), `NotAllowed` (sudo refuses).
    """
    argv, as_user, stdin = command.argv, command.as_user, command.stdin
    started = time.monotonic()
    if command.until_s is not None:
        timeout_s = max(0.0, min(timeout_s, command.until_s - awake_s() - _BEFORE_ITS_END_S))
    staged = as_user is not None and (privilege_mode(as_user) is not PrivilegeMode.SAME or bool(command.in_memory))
    if staged:
        assert as_user is not None
        head = json.dumps(
            {
                "cwd": command.cwd or "/",
                "env": dict(command.env) if command.env is not None else as_user.login_environment(),
                "umask": command.umask,
                "in_memory": {
                    word: content.decode("utf-8", "surrogateescape") for word, content in command.in_memory.items()
                },
                "place": IN_MEMORY,
                "until": command.until_s,
            }
        ).encode("ascii")
        stdin = b"%d\n" % len(head) + head + stdin
        process = start_as(STAGE, as_user, subprocess.PIPE, argv, hold=command.hold, becomes=argv[0])
    else:
        with _told(argv, command.cwd or ""):
            process = start(argv, Streams(), env=command.env, cwd=command.cwd, hold=command.hold)
    collected = _Collected(min(command.output_limit_bytes, _OWNERS_OUTPUT_BYTES if staged else OUTPUT_LIMIT_BYTES))
    try:
        with ended_with_us(process, as_user) if command.asks else contextlib.nullcontext():
            in_time = _pump(process, stdin, started + timeout_s, collected)
    except BaseException:
        stop(process, as_user)
        raise
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
    duration_s = time.monotonic() - started
    if not in_time or (command.until_s is not None and process.returncode in _ENDED_BY_TIMER):
        gone = stop(process, as_user)
        raise Unavailable(
            f"`{argv[0]}` did not answer within {timeout_s:g} s"
            + ("" if gone else " and cannot be killed (it waits in the kernel, as on a hung file system)"),
            where=_shown(argv, as_user),
            next_step="try again; if it stays, look at the service or file system that the command talks to",
        )
    stderr = bytes(collected.stderr)
    if staged:
        assert as_user is not None
        stderr = _stage_answer(stderr, argv, command.cwd or "/", as_user)
    return Completed(
        argv=argv,
        exit_code=process.returncode,
        stdout=bytes(collected.stdout),
        stderr=stderr,
        truncated=collected.truncated,
        duration_s=duration_s,
    )


@dataclass(frozen=True, slots=True)
class Streams:
    """Where a process reads and writes: a descriptor, a socket, or what `subprocess` has for a pipe and for nothing."""

    stdin: int | IO[bytes] | socket.socket = subprocess.PIPE
    stdout: int | socket.socket = subprocess.PIPE
    stderr: int | socket.socket = subprocess.PIPE


def start(
    argv: Sequence[str],
    streams: Streams,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    hold: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own. The caller must end it with `stop`. `env` None: ours. Raises `OSError`,
    and `ValueError` for an argument that cannot be one."""
    return subprocess.Popen(
        argv, stdin=_descriptor(streams.stdin), stdout=_descriptor(streams.stdout), stderr=_descriptor(streams.stderr),
        env=None if env is None else dict(env), cwd=cwd, start_new_session=True,
        pass_fds=() if hold is None else (hold,),
    )


def start_as(
    source: str,
    identity: Identity,
    stdin: int | IO[bytes] | socket.socket,
    arguments: Sequence[str] = (),
    *,
    hold: int | None = None,
    becomes: str = "",
) -> subprocess.Popen[bytes]:
    """Start a Python program of ours with another user's rights: a session of its own, in `/`, with a bare environment
    and no keys of ours, closed to that user's other processes. `becomes` is the full path of the program that it turns
    into, which stays closed where root starts it; by sudo it does not.

    `stdin` may be a socket: sudo hands it on unchanged. Standard output and error are pipes. The caller must end it
    with `stop`."""
    command: tuple[str, ...] = (stage_interpreter(), "-I", "-S", "-c")
    match privilege_mode(identity):
        case PrivilegeMode.ROOT:
            numbers = ",".join(map(str, (identity.uid, identity.gid, *identity.groups)))
            command = (*command, AS_OWNER, numbers, becomes, source, *arguments)
        case PrivilegeMode.SUDO:
            # sudo closes what it does not know.
            hold, command = None, ("sudo", "-n", "-u", identity.name, "--", *command, BEHIND_SUDO, source, *arguments)
        case PrivilegeMode.SAME:
            command = (*command, source, *arguments)
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "LANG": "C.UTF-8"}
    with _told(command, "/"):
        return start(command, Streams(stdin), env=environment, cwd="/", hold=hold)


def stop(process: subprocess.Popen[bytes], identity: Identity | None = None) -> bool:
    """Kill a process and its group, and reap it. False when it does not go away in 2 s."""
    owner = _sudo_became(identity)
    if owner and process.poll() is None and not _stop_behind_sudo(process.pid, owner):
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _sudo_became(identity: Identity | None) -> str:
    """Whom sudo makes of us for another's process; "" where none is needed."""
    return identity.name if identity and privilege_mode(identity) is PrivilegeMode.SUDO else ""


def _stop_behind_sudo(pid: int, owner: str) -> bool:
    """Kill the command of a sudo that we started. It is the owner's to kill. We may kill sudo itself, which leaves the
    command behind: so that comes last, and not at all while the command is there, which nobody could count then."""
    with contextlib.ExitStack() as held:
        # The command is not the first of its session, so that it may have left the group. Where sudo logs what is
        # written, a process of its own is between them.
        commands: dict[str, int] = {}
        with contextlib.suppress(OSError):
            below = _children(pid)
            for command in [*below, *(one for child in below for one in _children(int(child)))][:_MOST_BELOW]:
                commands[command] = os.pidfd_open(int(command))
                held.callback(os.close, commands[command])
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            kill, none = ("sudo", "-n", "-u", owner, "--", "kill", "-KILL", "--", f"-{pid}"), subprocess.DEVNULL
            subprocess.run((*kill, *commands), stdin=none, stdout=none, stderr=none, timeout=KILL_WAIT_S, check=False)
        until_s = time.monotonic() + KILL_WAIT_S
        return all(_ends(command, until_s - time.monotonic()) for command in commands.values())


def _ends(descriptor: int, within_s: float) -> bool:
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    return bool(ended.poll(max(0.0, within_s) * 1000))


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


# What only asks ends with a process that is killed: another of ours is told of it, and kills it when the line ends.

_lines: list[int] = []


def end_questions_with_us() -> None:
    """From now on what only asks ends when this process does, however that is. Raises `OSError`."""
    told, tells = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(told, True)
    with os.fdopen(told, "rb") as line:
        start((sys.executable, "-I", "-S", "-c", ENDS_THEM), Streams(line, subprocess.DEVNULL, subprocess.DEVNULL))
    _lines.append(tells)


@contextlib.contextmanager
def ended_with_us(process: subprocess.Popen[bytes], identity: Identity | None = None) -> Iterator[None]:
    """While it lasts, the process and its group end when this process does."""
    with contextlib.suppress(OSError):
        for line in _lines:
            os.write(line, f"+ {process.pid} {_sudo_became(identity)}\n".encode())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for line in _lines:
                os.write(line, f"- {process.pid} \n".encode())


class _Collected:
    """Output so far, each stream cut at the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.truncated = False
        self._limit_bytes = limit_bytes

    def add(self, buffer: bytearray, data: bytes) -> None:
        room = self._limit_bytes - len(buffer)
        if len(data) > room:
            self.truncated = True
        buffer += data[: max(room, 0)]


def _descriptor(stream: int | IO[bytes] | socket.socket) -> int | IO[bytes]:
    return stream.fileno() if isinstance(stream, socket.socket) else stream


@contextlib.contextmanager
def _told(argv: tuple[str, ...], cwd: str) -> Iterator[None]:
    """What keeps a process from being started, as one of our errors."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise _not_started(argv, cwd, str(error.filename or ""), error) from error
    except OSError as error:
        raise Unavailable(
            f"cannot start `{argv[0]}`: {error.strerror}", where="this machine",
            next_step="look at the machine's memory and process limits, then try again",
        ) from error
    except ValueError as error:
        raise NotFound(f"cannot start `{argv[0]}`: {error}", where="an argument or a variable") from error


def _not_started(argv: tuple[str, ...], cwd: str, culprit: str, error: OSError) -> NotFound:
    if cwd and culprit == cwd:
        return NotFound(
            f"cannot enter the working directory: {error.strerror}", where=cwd, next_step="see whether it was moved"
        )
    return NotFound(
        f"cannot run `{argv[0]}`: {error.strerror}", where="this machine",
        next_step="install it, or name its folder in the inventory",
    )


def _stage_answer(stderr: bytes, argv: tuple[str, ...], cwd: str, identity: Identity) -> bytes:
    """Strip the stage's own words from standard error; turn its failures into errors."""
    before, ready, after = stderr.partition(READY)
    line, _, _ = (after if ready else stderr).partition(b"\n")
    words = line[len(STAGE_ERROR) :].split() if line.startswith(STAGE_ERROR) else []
    if len(words) == 2 and words[0].isdigit():
        error = OSError(int(words[0]), os.strerror(int(words[0])))
        raise _not_started(argv, cwd, cwd if words[1] == b"enter" else "", error)
    if not ready:
        words_text = stderr.decode("utf-8", "replace").strip().replace("\n", "; ")[-300:]
        if privilege_mode(identity) is PrivilegeMode.SUDO:
            raise sudo_refused(identity, words_text)
        raise Unavailable(
            f"cannot act as user {identity.name}: {words_text or 'the helper process said nothing'}",
            where=stage_interpreter(),
            next_step="see whether that Python runs for this user",
        )
    return before + after


def _pump(
    process: subprocess.Popen[bytes], stdin: bytes, deadline: float, collected: _Collected
) -> bool:
    """Feed and drain the pipes until the command ended; False at the deadline.

    A grandchild that keeps a pipe open after the command's end is not waited for."""
    assert process.stdin and process.stdout and process.stderr
    pending = memoryview(stdin)
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(stream.fileno(), False)
        if pending:
            selector.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        selector.register(process.stdout, selectors.EVENT_READ, collected.stdout)
        selector.register(process.stderr, selectors.EVENT_READ, collected.stderr)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            events = selector.select(min(remaining, 0.1))
            if not events and process.poll() is not None:
                break
            for key, _ in events:
                if key.fileobj is process.stdin:
                    try:
                        pending = pending[os.write(key.fd, pending[: 1 << 16]) :]
                    except BrokenPipeError:
                        pending = pending[:0]
                    if not pending:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                data = os.read(key.fd, 1 << 16)
                if data:
                    collected.add(key.data, data)
                else:
                    selector.unregister(key.fileobj)
    try:
        process.wait(max(deadline - time.monotonic(), 0.01))
    except subprocess.TimeoutExpired:
        return False
    return True


def _shown(argv: tuple[str, ...], identity: Identity | None) -> str:
    text = " ".join(argv)
    who = f" as {identity.name}" if identity else ""
    return (text if len(text) <= 200 else text[:197] + "...") + who
