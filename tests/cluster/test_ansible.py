"""deploy/ansible applied twice to the sandbox: this machine as the controller, and nodes over their own sshd.

The controller's part writes into /etc, /opt and /var: it is given a copy of this machine's root that is its own, which
is thrown away, with the sandbox's Slurm and everything below /run as they are.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runbook.config import load_inventory
from runbook.model.incident import Policy
from tests.cluster.conftest import REPOSITORY, ROOT, SLURM, Cluster

pytestmark = [
    pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.needs("ansible-playbook", "promtool", "visudo")
]

# $1: where the copy lies. $2: libraries that need not be installed again, $3: where they would be. What follows is of
# this machine itself. The rest of the root is written to in memory.
COPY = """\
set -e
root=$1/root
mount -t tmpfs -o mode=755 tmpfs "$1"
copied() {
    mkdir -p "$1/above" "$1/work" "$3"
    mount -t overlay -o "lowerdir=$2,upperdir=$1/above,workdir=$1/work" overlay "$3"
}
copied "$1/whole" / "$root"
copied "$1/libraries" "$2" "$root$3"
rm -rf "$root$3"/pip "$root$3"/pip-*  # the environment is given one with its programs
shift 3
for folder; do mkdir -p "$root$folder"; mount --rbind "$folder" "$root$folder"; done
echo ready
exec sleep infinity
"""


@dataclass(frozen=True)
class CopyOfTheRoot:
    """A machine that is this one until something is written."""

    pid: int
    root: Path

    def run(self, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ("nsenter", f"--target={self.pid}", "--mount", "chroot", str(self.root), "env", "-i",
             "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8",
             *(f"{name}={value}" for name, value in environment.items()), *argv),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip

    def path(self, name: str) -> Path:
        return Path(f"/proc/{self.pid}/root{self.root}{name}")


@pytest.fixture
def machine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CopyOfTheRoot]:
    place = tmp_path_factory.mktemp("machine")
    own = (REPOSITORY, Path(sys.base_prefix), tmp_path)
    libraries = Path(sysconfig.get_path("purelib"))
    installed = f"/opt/runbook/lib/{libraries.parent.name}/site-packages"
    folders = ("/proc", "/sys", "/dev", "/run", str(ROOT), *(str(one) for one in own if one != Path("/usr")))
    outer = subprocess.Popen(
        ("unshare", "--mount", "--propagation=private", "sh", "-c", COPY, "sh", str(place), str(libraries), installed,
         *folders),
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert outer.stdout is not None
    try:
        assert outer.stdout.readline() == "ready\n", "no copy of the root could be made"
        yield CopyOfTheRoot(outer.pid, place / "root")
    finally:
        os.killpg(outer.pid, signal.SIGKILL)
        outer.wait()


@pytest.fixture
def open_door() -> Iterator[Path]:
    """The file of keys that may log in to the nodes, as it was afterwards."""
    keys = ROOT / "ssh" / "authorized_keys" / "root"
    before = keys.read_text(encoding="utf-8")
    yield keys
    keys.write_text(before, encoding="utf-8")


def hosts(cluster: Cluster, wheel: Path, keys: Path) -> str:
    """Ansible's inventory of the sandbox. JSON is YAML."""
    here = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
    nodes = {
        name: {"runbook_host_key": f"{ROOT}/ssh/nodes/{name}/ssh_host_ed25519_key.pub"} for name in ("gpu-21", "gpu-22")
    }
    return json.dumps({"all": {
        "vars": {
            "runbook_install": "pip", "runbook_package": str(wheel), "runbook_lock": "",
            "runbook_python": sys.executable,
            "runbook_owners_group": "sb-alice", "runbook_spool": f"{cluster.state}/spool",
            "runbook_epilog_folder": "/usr/local/libexec", "runbook_passing": f"{cluster.state}/passing",
            "runbook_environment": SLURM, "runbook_slurm_user": "root",
        },
        "children": {
            "runbook_controller": {"hosts": {"sandbox-ctl": here}},
            "runbook_nodes": {"hosts": nodes, "vars": {
                "ansible_user": "root", "ansible_python_interpreter": "/usr/bin/python3",
                "ansible_ssh_common_args": f"-F {ROOT}/ssh/ssh_config",
                "ansible_remote_tmp": f"{cluster.state}/ansible",
                "runbook_node_folder": f"{cluster.state}/node", "runbook_authorized_keys": str(keys),
            }},
            "runbook_prometheus": {"hosts": {"monitor": here}, "vars": {
                "runbook_grafana_dashboards": "/etc/prometheus/runbook",
            }},
        },
    }})  # fmt: skip


@dataclass(frozen=True)
class Applied:
    changed: dict[str, int]
    """By host."""
    tasks: tuple[str, ...]
    """That changed something."""


def apply(machine: CopyOfTheRoot, cluster: Cluster) -> Applied:
    done = machine.run(
        "ansible-playbook", "-i", str(cluster.state / "hosts.yml"), str(REPOSITORY / "deploy/ansible/site.yml"),
        ANSIBLE_LOCAL_TEMP=f"{cluster.state}/ansible-here", ANSIBLE_NOCOLOR="1",
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    rows = dict(re.findall(r"^(\S+) +: ok=.* changed=(\d+) .*$", done.stdout, re.MULTILINE))
    parts = re.split(r"^(?:TASK|RUNNING HANDLER) \[", done.stdout, flags=re.MULTILINE)
    tasks = [part.partition("]")[0] for part in parts if re.search("^changed: ", part, re.MULTILINE)]
    return Applied({host: int(count) for host, count in rows.items()}, tuple(tasks))


def policy_of(inventory: Path, folder: Path) -> Policy:
    """As it is read; a path through /proc leads astray where it is resolved, so a copy is."""
    copy = folder / "inventory.yaml"
    copy.write_bytes(inventory.read_bytes())
    return load_inventory(str(copy)).policy.mode


def test_applied_twice_it_changes_nothing_the_second_time(
    cluster: Cluster, machine: CopyOfTheRoot, open_door: Path, tmp_path: Path
) -> None:
    built = subprocess.run(
        (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir",
         str(tmp_path), str(REPOSITORY)),
        capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    (cluster.state / "hosts.yml").write_text(hosts(cluster, wheel, open_door), encoding="utf-8")

    began_s = time.monotonic()
    first = apply(machine, cluster)
    print(f"applied in {time.monotonic() - began_s:.0f} s")
    assert all(first.changed[host] for host in ("sandbox-ctl", "gpu-21", "monitor")), first

    # A person's change stays, and is no reason to write anything.
    inventory = machine.path("/etc/runbook/inventory.yaml")
    assert policy_of(inventory, tmp_path) is Policy.PLAN
    inventory.write_text(inventory.read_text(encoding="utf-8").replace("mode: plan", "mode: approve"), encoding="utf-8")
    began_s = time.monotonic()
    second = apply(machine, cluster)
    print(f"applied again in {time.monotonic() - began_s:.0f} s")
    assert second == Applied(dict.fromkeys(("sandbox-ctl", "gpu-21", "gpu-22", "monitor"), 0), ())
    assert policy_of(inventory, tmp_path) is Policy.APPROVE

    # Nobody but the service reads its addresses, and it may become the owners and nobody else.
    seen = inventory.stat()
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid) == (0o640, 0)
    sudoers = machine.path("/etc/sudoers.d/runbook").read_text(encoding="utf-8")
    assert "runbook ALL=(%sb-alice) NOPASSWD: ALL" in sudoers
    assert "installed by pip" in machine.run("/opt/runbook/bin/runbook", "--version").stdout
    assert machine.path("/usr/local/libexec/runbook-epilog").stat().st_mode & 0o111
    for name in ("runbook.rules.yml", "runbook-absent-sandbox.rules.yml", "runbook-scrape.yml", "runbook.json"):
        assert machine.path(f"/etc/prometheus/runbook/{name}").stat().st_size
    assert machine.path("/etc/systemd/system/runbook.service").exists()

    # The service reaches the nodes by its own key, and knows them by theirs.
    said = machine.run(
        "setpriv", "--reuid=runbook", "--regid=runbook", "--clear-groups", "env", "HOME=/var/lib/runbook",
        "ssh", "-o", "BatchMode=yes", "-i", "/etc/runbook/id_ed25519", "root@gpu-21", "hostname",
    )  # fmt: skip
    assert said.stdout.strip() == "gpu-21", said.stderr
    node = cluster.state / "node"
    assert (node / "runbook-node-epilog").stat().st_mode & 0o111
    probed = subprocess.run(
        ("ssh", "-F", f"{ROOT}/ssh/ssh_config", "gpu-21", f"{node}/runbook-probe.pyz", "--help"),
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert probed.returncode == 0, probed.stderr
    # This machine itself is what it was.
    assert not Path("/etc/runbook").exists() and not Path("/etc/sudoers.d/runbook").exists()
