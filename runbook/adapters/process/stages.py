"""What runs first in a process that gets another user's rights, as source for a Python without libraries (`-I -S`), and
how it speaks to `process`, which starts it."""

from __future__ import annotations

READY = b"runbook-stage ready\n"
STAGE_ERROR = b"runbook-stage error "

# Reads "LENGTH\n" and that many bytes of JSON byte by byte where needed, so that what follows on standard input is
# left for the command. Signals ignored by a parent service must not stay ignored in the command.
IN_MEMORY = "{memory}"
"""Where a word of a command names a file that lies in the command's own memory (`Command.in_memory`)."""

STAGE = r"""
import json, os, signal, sys, time
def go():
    size = b""
    while not size.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(125)
        size += byte
    want = int(size)
    text = b""
    while len(text) < want:
        part = os.read(0, want - len(text))
        if not part:
            sys.exit(125)
        text += part
    head = json.loads(text.decode("ascii"))
    if head["until"] is not None:
        left = head["until"] - time.clock_gettime(7)
        if left <= 0:
            sys.exit(124)
        # What this becomes keeps the timer, and ends by it whatever becomes of us.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, left)
    env = dict((os.fsencode(k), os.fsencode(v)) for k, v in head["env"].items())
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.umask(head["umask"])
    for word, text in head["in_memory"].items():
        held = os.memfd_create("text", 0)
        with os.fdopen(os.dup(held), "wb") as stream:
            stream.write(text.encode("utf-8", "surrogateescape"))
        os.lseek(held, 0, 0)
        named = word.replace(head["place"], "/proc/self/fd/%d" % held)
        sys.argv[1:] = [named if given == word else given for given in sys.argv[1:]]
    what = "enter"
    try:
        os.chdir(head["cwd"])
        what = "run"
        os.write(2, b"runbook-stage ready\n")
        program = globals().get("closed")
        if program is not None:
            try:
                os.execve(program, sys.argv[1:], env)
            except OSError:
                pass  # such as a machine that runs nothing from memory
        os.execvpe(sys.argv[1], sys.argv[1:], env)
    except OSError as error:
        line = "runbook-stage error %d %s\n" % (error.errno, what)
        os.write(2, line.encode("ascii"))
        sys.exit(126)
go()
"""

KEYS_OF_ITS_OWN = r"""
def leave_keys():
    import ctypes, os
    number = {"x86_64": 250, "aarch64": 219, "ppc64le": 271}.get(os.uname().machine)
    kernel = ctypes.CDLL(None, use_errno=True)
    kernel.syscall.restype = ctypes.c_long
    if number is not None and kernel.syscall(ctypes.c_long(number), ctypes.c_long(1), None) < 0:
        if ctypes.get_errno() not in (1, 13, 38):  # EPERM, EACCES, ENOSYS: nothing asks for keys here
            os.write(2, b"no session of keys of its own: %s" % os.strerror(ctypes.get_errno()).encode())
            os._exit(125)
"""
"""keyctl(KEYCTL_JOIN_SESSION_KEYRING): whoever changes its user keeps its session's keys, such as an administrator's
Kerberos tickets, unless it begins a session of keys of its own. Where the kernel has no such call, or a container's
rules refuse it, nothing there can ask for keys; where it fails otherwise, such as for a quota, nothing is begun."""

AS_OWNER = r"""
import os, stat, sys
user, group, *groups = map(int, sys.argv.pop(1).split(","))
def closed_copy(path):
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return None
            program = stream.read()
            if not program.startswith(b"\x7fELF") or b"$ORIGIN" in program or b"${ORIGIN}" in program:
                return None
            try:
                held = os.memfd_create(os.path.basename(path), os.MFD_CLOEXEC | 16)
            except OSError:
                held = os.memfd_create(os.path.basename(path), os.MFD_CLOEXEC)
            os.fchmod(held, 0o711)
            with open(os.dup(held), "wb") as copy:
                copy.write(program)
            return held
    except OSError:
        return None
path = sys.argv.pop(1)
closed = closed_copy(path) if path.startswith("/") else None
""" + KEYS_OF_ITS_OWN + r"""leave_keys()
os.setgroups(groups)
os.setresgid(group, group, group)
os.setresuid(user, user, user)
if closed is not None and not os.access(path, os.X_OK):
    closed = None  # its own mode decides who runs it
exec(compile(sys.argv.pop(1), "<string>", "exec"))
"""
"""What runs first, as root. A process that gives up root by itself is closed to its new user, unless
`fs.suid_dumpable` is 1: none of that user's may trace it or take its descriptors, from its first moment on. So that it
stays so when it becomes another program, that program is one which its user may run and not read: a copy in memory
(16: MFD_EXEC, of Linux 6.3). A script is not one, as its interpreter has to read it, and neither is a program that
looks for its libraries beside itself. The session of keys is begun as root: its user may have used up his own quota."""

BEHIND_SUDO = r"""
import ctypes, sys
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
""" + KEYS_OF_ITS_OWN + r"""leave_keys()
exec(compile(sys.argv.pop(1), "<string>", "exec"))
"""
"""What runs first, as the owner: PR_SET_DUMPABLE closes the process to the owner's others. Until then, for the
milliseconds in which Python starts, they can take it over; so whatever it says is bounded by whoever listens."""

ENDS_THEM = r"""
import os, select, signal, subprocess, sys
held = {}
for line in sys.stdin.buffer:
    sign, pid, name = line.decode().rstrip("\n").split(" ", 2)
    if sign == "+":
        try:
            held[int(pid)] = os.pidfd_open(int(pid)), name
        except OSError:
            pass
    elif int(pid) in held:
        os.close(held.pop(int(pid))[0])
for pid, (descriptor, name) in held.items():
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    if ended.poll(0):
        continue  # its number may be another's
    try:
        if name:  # first what is behind sudo: to kill sudo alone leaves it
            def below(one):
                try:
                    with open("/proc/%s/task/%s/children" % (one, one)) as children:
                        return children.read().split()
                except OSError:
                    return []
            commands = below(pid)
            commands += [one for child in commands for one in below(child)]
            kill = ("sudo", "-n", "-u", name, "--", "kill", "-KILL", "--", "-%d" % pid, *commands)
            subprocess.run(kill, stdin=subprocess.DEVNULL, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        pass
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
"""
"""What only asks ends with a process that is killed: this one is told of it, and kills it when the line ends."""
