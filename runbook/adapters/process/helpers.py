"""Helpers: a small program of ours that runs again and again, each time with the rights of whoever it is asked as.

To start an interpreter takes ten times as long as what most of them do. So one process is started that has read nothing
but that program, has no threads, hears nobody but whoever started it, and forks one for each time. A fork that gives up
root by itself is closed to its new user from its first moment on, as `stages.AS_OWNER` says. What they are asked, and
what they answer, goes past it. It ends when it is hung up; those that it made go on as far as their own lines let them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable

from runbook.adapters.identity import Identity, PrivilegeMode, privilege_mode, stage_interpreter
from runbook.adapters.process import KILL_WAIT_S, Streams, start, stop
from runbook.adapters.process.stages import KEYS_OF_ITS_OWN
from runbook.errors import Unavailable

_PROGRAM = r"""
import _json, ctypes, errno, fcntl, json, os, resource, select, signal, socket, stat, sys, traceback
""" + KEYS_OF_ITS_OWN + r"""
def be_one(user, line, errors):
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.dup2(line, 0)
        os.dup2(errors, 2)
        os.closerange(3, 1 << 16)
        if user is not None:
            leave_keys()
            os.setgroups(user[2])
            os.setresgid(user[1], user[1], user[1])
            os.setresuid(user[0], user[0], user[0])
        exec(program, {"__name__": "__main__"})
        os._exit(0)
    except SystemExit as end:
        os.write(2, str(end.code).encode("utf-8", "replace"))
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(1)

def begin():
    message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 3)
    if not message:
        os._exit(0)
    line, errors, watch = descriptors
    try:
        child = os.fork()
    except OSError as error:
        child = -1
        os.write(errors, os.strerror(error.errno).encode())
    if child == 0:
        be_one(json.loads(message), line, errors)
    os.close(line)
    os.close(errors)
    if child > 0:
        held[child] = watch
        events.register(watch, select.POLLIN)
    else:
        os.close(watch)

def heard(watch):
    child = next(one for one, its in held.items() if its == watch)
    try:
        asked = os.read(watch, 1)
    except OSError:
        asked = b""
    if asked:
        kill(child)
    else:
        events.unregister(watch)  # whoever asked has ended: it goes on, as far as its own line lets it
        os.close(watch)
        held[child] = -1

def kill(child):
    for end in (os.killpg, os.kill):  # it may have no group of its own yet
        try:
            end(child, signal.SIGKILL)
        except OSError:
            pass

def reap():
    for child, watch in list(held.items()):
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            continue
        kill(child)  # who else is in its group; its number is not another's before it is waited for
        status = os.waitpid(child, 0)[1]
        del held[child]
        if watch >= 0:
            events.unregister(watch)
            try:
                os.write(watch, b"%d" % os.waitstatus_to_exitcode(status))
            except OSError:
                pass
            os.close(watch)

program = compile(sys.argv.pop(1), "<string>", "exec")
control = socket.socket(fileno=os.dup(0))
os.set_inheritable(control.fileno(), False)
nothing = os.open(os.devnull, os.O_RDWR)
os.dup2(nothing, 0)
os.dup2(nothing, 1)
held = {}
wakes, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
events = select.poll()
for one in (control.fileno(), wakes):
    events.register(one, select.POLLIN)
while True:
    ready = [one for one, _ in events.poll()]
    if control.fileno() in ready:
        begin()
    if wakes in ready:
        os.read(wakes, 512)
        reap()
    for watch in ready:
        if watch in held.values():
            heard(watch)
"""


class Helper:
    """One that `Helpers` started: waited for and stopped as a process of ours."""

    stdout = None

    def __init__(self, watch: socket.socket, errors: int) -> None:
        self.stderr = os.fdopen(errors, "rb", buffering=0)
        self.returncode: int | None = None
        self._watch = watch
        self._held = os.fdopen(os.dup(errors), "rb", buffering=0)
        """The helper has the other end open for as long as it lives, whoever else may be gone."""

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit status. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            self._watch.settimeout(max(timeout, 1e-6))
            try:
                told = self._watch.recv(16)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("a helper", timeout) from None
            except OSError:
                told = b""
            if not told and not self._hung_up(timeout):
                raise subprocess.TimeoutExpired("a helper", timeout)
            # Nothing: whoever started it could not, or is gone.
            self.returncode = int(told or b"1")
            self._watch.close()
            self._held.close()
        return self.returncode

    def _hung_up(self, timeout_s: float) -> bool:
        """Whether it is gone, or goes within that time, where whoever would say how it ended is gone itself."""
        errors = select.poll()
        errors.register(self._held, 0)
        return bool(errors.poll(timeout_s * 1000))

    def stop(self) -> bool:
        """Kill it and its group. False when it does not go away in 2 s. Where whoever started it is gone, nobody
        kills it: it ends when its own line is closed, unless a file system holds it."""
        if self.returncode is None:
            with contextlib.suppress(OSError):
                self._watch.send(b"k")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(KILL_WAIT_S)
        return self.returncode is not None


class Helpers:
    """Starts a small Python program of ours again and again, as us or where we are root as anybody: as `start_as`, for
    a tenth of its processor time. `source`: the program, asked for once."""

    def __init__(self, source: Callable[[], str]) -> None:
        self._source = source
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self, identity: Identity, stdin: socket.socket) -> Helper:
        """The caller must end it with `stop`. Raises `Unavailable`."""
        mode = privilege_mode(identity)
        assert mode is not PrivilegeMode.SUDO
        become = [identity.uid, identity.gid, identity.groups] if mode is PrivilegeMode.ROOT else None
        watch, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors, tells = os.pipe2(os.O_CLOEXEC)
        try:
            self._send(json.dumps(become).encode(), [stdin.fileno(), tells, theirs.fileno()])
        except BaseException:
            watch.close()
            os.close(errors)
            raise
        finally:
            theirs.close()
            os.close(tells)
        return Helper(watch, errors)

    def _send(self, message: bytes, descriptors: list[int]) -> None:
        with self._lock:
            for last in (False, True):
                if self._control is None:
                    self._begin()
                assert self._control is not None
                try:
                    socket.send_fds(self._control, [message], descriptors)
                    return
                except OSError as error:
                    self._control.close()
                    self._control = None
                    if last:
                        raise _not_started(error) from error

    def _begin(self) -> None:
        if self._process is not None:
            stop(self._process)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = (stage_interpreter(), "-I", "-S", "-c", _PROGRAM, self._source())
        environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "LANG": "C.UTF-8"}
        try:
            with theirs:
                streams = Streams(theirs, subprocess.DEVNULL, 2)
                self._process = start(command, streams, env=environment, cwd="/")
        except OSError as error:
            ours.close()
            raise _not_started(error) from error
        self._control = ours


def _not_started(error: OSError) -> Unavailable:
    return Unavailable(
        f"cannot start a process that opens files: {error.strerror}", where="this machine",
        next_step="look at the machine's memory and process limits, then try again",
    )
