"""A machine of its own for the sandbox, of another Debian release and so with another Slurm: `sandbox --slurm VERSION`.

The release lies in a folder, made once by mmdebstrap. Its processes see that folder as their root, and have network,
mounts, process numbers, host name and control groups of their own, so that clusters of several versions run side by
side. In there the sandbox is what it is outside; this repository, and the Python of its virtual environment, lie where
they lie on the machine itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cluster.packages import install
from cluster.settings import PACKAGES
from cluster.system import SandboxError, attempt, phase, wait_until

#: Debian's releases by the Slurm that they have (sid moves on: what it had when it was made is what counts).
SUITES = {"22.05": "bookworm", "24.11": "trixie", "26.05": "sid"}
ROOTS = Path("/var/cache/runbook-sandbox")
RUN = Path("/run/runbook-sandbox-machines")
REPOSITORY = Path(__file__).resolve().parents[3]
CGROUPS = Path("/sys/fs/cgroup")
MORE_PACKAGES = ("slurmrestd", "slurm-wlm-jwt-plugin", "procps", "python3")


def root_of(version: str) -> Path:
    """The folder of the release that has this Slurm."""
    return ROOTS / version


def pid_of(version: str) -> int | None:
    """The machine's first process, as this machine counts; None when it is not up."""
    try:
        pid = int((RUN / f"{version}.pid").read_text(encoding="ascii"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if mark(version).encode() in words else None


def mark(version: str) -> str:
    """How the machine's first process is recognised, and its host name."""
    return "sandbox-" + version.replace(".", "-")


def pass_on(version: str, command: str, words: Sequence[str]) -> int:
    """Run one command of the sandbox in the machine of that version; `up` makes and starts it first, `down` ends it.
    Returns its exit status."""
    if version not in SUITES:
        raise SandboxError(f"there is no Slurm {version} here", f"use one of: {', '.join(SUITES)}")
    if command == "up":
        make_root(version)
        boot(version)
    elif pid_of(version) is None:
        raise SandboxError(f"the machine of Slurm {version} is down", f"run `sandbox --slurm {version} up` first")
    status = subprocess.call(inside(version, str(REPOSITORY / "deploy" / "sandbox" / "sandbox"), command, *words))
    if command == "down" and status == 0:
        halt(version)
    return status


def inside(version: str, *argv: str) -> tuple[str, ...]:
    """The command line that runs `argv` in the machine, in the folder of the same name."""
    spaces = ("--mount", "--net", "--uts", "--ipc", "--pid")
    # What names files of this machine, which the other one need not have.
    of_here = [f"--unset={name}" for name in os.environ if name.startswith("SSL_CERT_") or name.endswith("_CA_BUNDLE")]
    there = ("env", *of_here, "sh", "-c", 'cd "$0" 2>/dev/null || cd /; exec "$@"', os.getcwd(), *argv)
    return ("nsenter", f"--target={pid_of(version)}", *spaces, "--wd", "--", *there)


def make_root(version: str) -> None:
    """Make the release's folder, unless it is there: some 650 MB, from the mirror of this machine's own sources."""
    root = root_of(version)
    if (root / "etc" / "debian_version").exists():
        return
    install("mmdebstrap")
    making = root.with_name(root.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    ROOTS.mkdir(parents=True, exist_ok=True)
    packages = ",".join((*PACKAGES, *MORE_PACKAGES))
    with phase(f"make a Debian {SUITES[version]}"):
        # A mirror that stands still has a release file that has run out; its signature is checked all the same.
        options = ('--aptopt=Acquire::Check-Valid-Until "false"', "--variant=minbase", f"--include={packages}")
        source = f"deb {mirror()} {SUITES[version]} main"
        argv = ("mmdebstrap", "--quiet", *options, SUITES[version], str(making), source)
        status, out, err = attempt(argv, timeout_s=900)
        if status != 0:
            raise SandboxError(
                f"mmdebstrap could not make {making}: {' / '.join((err or out).strip().splitlines()[-3:])}",
                "check the network and the package sources, then run it again",
            )
        _, found, _ = attempt(("dpkg-query", f"--root={making}", "-W", "-f", "${Version}", "slurmctld"))
        if not found.startswith(version + "."):
            shutil.rmtree(making)
            raise SandboxError(
                f"Debian's {SUITES[version]} has Slurm {found or '(none)'}, not {version}",
                "set the release that has it in SUITES of cluster/machine.py",
            )
        making.rename(root)


def mirror() -> str:
    """The mirror that this machine's own packages come from."""
    _, out, _ = attempt(("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"))
    return next((line for line in out.split() if line.rstrip("/").endswith("/debian")), "http://deb.debian.org/debian")


def boot(version: str) -> None:
    """Start the machine, unless it is up."""
    if pid_of(version) is not None:
        return
    if (CGROUPS / "cgroup.controllers").exists():
        raise SandboxError(
            "another version's machine has only been tried with control groups of version 1",
            "run it where /sys/fs/cgroup has a folder for each controller",
        )
    with phase(f"machine of Slurm {version}"):
        RUN.mkdir(mode=0o755, parents=True, exist_ok=True)
        output = RUN / f"{version}.out"
        spaces = ("--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--propagation=private")
        script = ("sh", "-c", SET_UP, mark(version), str(root_of(version)), *bound())
        with output.open("wb") as stream:
            outer = subprocess.Popen(
                ("unshare", *spaces, *script), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                start_new_session=True, cwd="/",
            )
        first = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")

        def is_up() -> bool:
            if outer.poll() is not None:
                raise SandboxError(
                    f"the machine of Slurm {version} did not start: {output.read_text(errors='replace').strip()}",
                    "the machine has to allow namespaces (a virtual machine, or a privileged container)",
                )
            return output.read_bytes().endswith(b"ready\n")

        problem = f"the machine of Slurm {version} did not start"
        wait_until(is_up, timeout_s=20, problem=problem, next_step=f"read {output}")
        (RUN / f"{version}.pid").write_text(first.read_text(encoding="ascii").split()[0], encoding="ascii")


def bound() -> tuple[str, ...]:
    """Folders of this machine that lie in the other at the same place: the repository, and the Python that its virtual
    environment is of."""
    found = [REPOSITORY]
    try:
        settings = (REPOSITORY / ".venv" / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        settings = []
    values = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in settings)}
    homes = [Path(values["home"])] if "home" in values else []
    found += [home.parent for home in homes if home.name == "bin" and home.parent != Path("/usr")]
    return tuple(str(path) for path in found)


# $0 is the host name, $1 the root, what follows is bound. A node is entered by its mounts, and would be out of a
# chroot: so the root is changed for the whole namespace. The first process is a shell that always waits for a child,
# and so for every process that nobody else waits for: zombies of slurmstepd would look like living steps.
SET_UP = r"""
set -e
root=$1
shift
hostname "$0"
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir -p "$root/run/lock" "$root/run/sshd"
mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
for controller in /sys/fs/cgroup/*/; do
    [ -e "$controller/tasks" ] || continue
    own=$controller$0
    mkdir -p "$own" "$root$controller"
    for one in cpus mems; do
        [ ! -e "$own/cpuset.$one" ] || cat "$controller/cpuset.$one" >"$own/cpuset.$one"
    done
    mount --bind "$own" "$root$controller"
done
chmod 711 "$root/root"
for folder; do
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
done
grep -qs " $0\$" "$root/etc/hosts" || echo "127.0.0.1 localhost $0" >>"$root/etc/hosts"
ip link set lo up
cd "$root"
mkdir -p .outside
pivot_root . .outside
cd /
umount -l /.outside
rmdir /.outside
echo ready
exec </dev/null
exec sh -c 'while :; do sleep 3600; done' "$0"
"""


def halt(version: str) -> None:
    """End the machine with everything in it, and remove its control groups. Its root stays for the next time."""
    pid = pid_of(version)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        problem = f"the machine of Slurm {version} did not end"
        wait_until(lambda: pid_of(version) is None, timeout_s=10, problem=problem, next_step="run it again")
    (RUN / f"{version}.pid").unlink(missing_ok=True)
    for top in CGROUPS.glob(f"*/{mark(version)}"):
        below = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
        for path in (*below, top):
            path.rmdir()

