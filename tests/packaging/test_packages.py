"""The deb and the rpm of `make packages`: made twice, installed, used, upgraded and purged in clean Debian roots.

The roots are made by mmdebstrap for this run, from the mirror of this machine's own packages. No root of Enterprise
Linux is at hand: the rpm's files are unpacked into a Debian, where they run on its Python.
"""

from __future__ import annotations

import filecmp
import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from runbook import __version__
from tests.programs import require

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).resolve().parents[2]
SUITES = {"bookworm": "3.11", "trixie": "3.13"}
PROGRAMS = ("mmdebstrap", "dpkg-deb", "rpm", "rpm2cpio", "cpio", "unshare")
NEEDED = "python3,systemd,passwd"
ENTER = 'mount -t proc proc "$0/proc" && exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin HOME=/tmp LC_ALL=C.UTF-8 "$@"'
DPKG = ("dpkg", "--force-unsafe-io", "--force-confdef", "--force-confold")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
INVENTORY = """\
version: 1
id: site
title: A site
cluster: alpha
scheduler: {kind: local}
nodes: {kind: none}
policy: {mode: plan}
paths: {state: /var/lib/runbook, spool: /var/spool/runbook}
"""
TEMPLATE = """\
#!/bin/bash
srun torchrun --nproc-per-node=8 pretrain_gpt.py --micro-batch-size 8 --global-batch-size 512 --save ck --load ck
"""
LOG = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/srv/train/pretrain_gpt.py", line 210, in forward_step
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 3 has a total capacity of 79.11 \
GiB of which 1.02 GiB is free. Including non-PyTorch memory, this process has 78.08 GiB memory in use. Of the \
allocated memory 74.50 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated.
"""


@dataclass(frozen=True)
class Root:
    """A Debian in a folder."""

    suite: str
    path: Path

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run in there, in mounts and processes of its own, which end with it."""
        spaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private")
        return subprocess.run(
            (*spaces, "sh", "-c", ENTER, str(self.path), *argv), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=300, check=False,
        )

    def say(self, *argv: str) -> str:
        done = self.run(*argv)
        assert done.returncode == 0, f"{argv}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def paths(self) -> set[str]:
        """All files and folders, but for what dpkg and the programs that were tried keep for themselves."""
        apart = ("/dev", "/proc", "/run", "/tmp", "/var/cache", "/var/lib/dpkg", "/var/log")
        found = set()
        for folder, folders, files in os.walk(self.path):
            here = folder.removeprefix(str(self.path))
            folders[:] = [name for name in folders if f"{here}/{name}" not in apart]
            found |= {f"{here}/{name}" for name in (*folders, *files)}
        return found


@dataclass(frozen=True)
class Packages:
    deb: Path
    rpm: Path
    before: Path
    """The deb of an older version."""
    again: Path
    """Where both were made a second time."""


def make_root(suite: str, folder: Path, mirror: str) -> Root:
    path = folder / suite
    # A mirror that stands still has a release file that has run out; its signature is checked all the same.
    options = ('--aptopt=Acquire::Check-Valid-Until "false"', "--variant=minbase", f"--include={NEEDED}")
    argv = ("mmdebstrap", "--quiet", *options, suite, str(path), f"deb {mirror} {suite} main")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise OSError(f"no {suite}: {done.stderr[-500:]}")
    return Root(suite, path)


def make_packages(into: Path, **environment: str) -> None:
    argv = (sys.executable, str(REPOSITORY / "deploy/packages/build.py"), "--into", str(into))
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=600, check=False, cwd="/", env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def make_older(deb: Path, folder: Path) -> Path:
    """The same package as an older version that had another configuration file and a module more."""
    tree = folder / "older"
    subprocess.run(("dpkg-deb", "--raw-extract", str(deb), str(tree)), check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(control.read_text().replace(f"Version: {__version__}-1", "Version: 0.1.0-1"))
    (tree / "etc/default/runbook").write_text("# of an older version\n")
    (tree / "opt/runbook/lib/python3/site-packages/runbook/gone.py").write_text("GONE = 1\n")
    older = folder / "runbook_0.1.0-1.deb"
    subprocess.run(("dpkg-deb", "-Znone", "--root-owner-group", "--build", str(tree), str(older)), check=True)
    shutil.rmtree(tree)
    return older


@pytest.fixture(scope="module")
def making(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Root]]]:
    """The roots, which are made beside the packages."""
    require(*PROGRAMS)
    if os.geteuid() != 0:
        pytest.skip("clean roots are made and entered by root alone")
    said = subprocess.run(
        ("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"), capture_output=True, text=True,
        check=True,
    ).stdout.split()
    mirror = next(line for line in said if line.rstrip("/").endswith("/debian"))
    folder = tmp_path_factory.mktemp("roots")
    with ThreadPoolExecutor(1) as pool:
        yield {suite: pool.submit(make_root, suite, folder, mirror) for suite in SUITES}
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def packages(making: dict[str, Future[Root]], tmp_path_factory: pytest.TempPathFactory) -> Packages:
    into = tmp_path_factory.mktemp("packages")
    make_packages(into / "one")
    make_packages(into / "two", TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")
    (deb,), (rpm,) = (into / "one").glob("*.deb"), (into / "one").glob("*.rpm")
    return Packages(deb, rpm, make_older(deb, into), into / "two")


@pytest.fixture
def root(request: pytest.FixtureRequest, making: dict[str, Future[Root]]) -> Root:
    try:
        return making[request.param].result()
    except OSError as error:
        if os.environ.get("RUNBOOK_REQUIRE_ALL") == "1":
            pytest.fail(f"{error}, and RUNBOOK_REQUIRE_ALL is set", pytrace=False)
        pytest.skip(str(error))


def use(root: Root, installer: str) -> None:
    """What a person does after the installation, as root and as an ordinary user."""
    python = SUITES[root.suite]
    said = root.say("runbook", "--version")
    way = f"installed by {installer} in /opt/runbook; Python {python}."
    assert said.startswith(f"runbook, version {__version__}\n{way}"), said
    assert "documents are sound" in root.say("runbook", "doctor", "--inventory", "local")
    work = root.path / "tmp" / "work"
    work.mkdir(exist_ok=True)
    (work / "train.sbatch").write_text(TEMPLATE)
    (work / "job.out").write_text(LOG)
    work.chmod(0o777)
    # A module environment of the user's own may name other libraries: they are none of the program's.
    (work / "pydantic.py").write_text("raise RuntimeError('not this one')\n")
    root.say(
        *NOBODY, "env", "PYTHONPATH=/tmp/work", "HOME=/tmp/work", "sh", "-c",
        "cd /tmp/work && runbook oom --log job.out --template train.sbatch",
    )
    assert "--micro-batch-size 4 " in (work / "train.runbook.sbatch").read_text()
    shutil.rmtree(work)


def look_around(root: Root) -> None:
    """Manual, completion and units."""
    page = gzip.decompress((root.path / "usr/share/man/man1/runbook-oom.1.gz").read_bytes()).decode()
    assert "Bring back a job that died of out-of-memory" in page and r"\-\-template" in page
    script = "/usr/share/bash-completion/completions/runbook"
    typed = "COMP_WORDS=(runbook diag); COMP_CWORD=1; _runbook_completion runbook; echo ${COMPREPLY[@]}"
    assert root.say("bash", "-c", f"source {script}; complete -p runbook >/dev/null && {typed}") == "diagnose\n"
    for path in ("zsh/vendor-completions/_runbook", "fish/vendor_completions.d/runbook.fish"):
        assert "_RUNBOOK_COMPLETE" in (root.path / "usr/share" / path).read_text()
    units = [f"/usr/lib/systemd/system/runbook{name}" for name in (".service", "-metrics.service", "-metrics.timer")]
    assert root.run("systemd-analyze", "verify", *units).stderr == ""
    assert root.run("/usr/libexec/runbook/runbook-epilog").returncode == 0


def refuse_to_write_over_an_environment(root: Root, deb: str) -> None:
    """What somebody installed into the package's folder with pip is left as it is."""
    record = root.path / "opt/runbook/lib/python3.11/site-packages/runbook_oom-0.0.9.dist-info/INSTALLER"
    record.parent.mkdir(parents=True)
    record.write_text("pip\n")
    done = root.run(*DPKG, "--install", f"/tmp/{deb}")
    assert done.returncode != 0 and "holds an environment that no package brought" in done.stderr, done.stderr
    assert record.read_text() == "pip\n" and not (root.path / "usr/bin/runbook").is_symlink()
    shutil.rmtree(root.path / "opt/runbook")


def files_of(package: Path) -> set[str]:
    """A line for each file, with its digest."""
    deb, rpm = ("dpkg-deb", "--info", package, "md5sums"), ("rpm", "-qp", "--dump", package)
    listing = deb if package.suffix == ".deb" else rpm
    return set(subprocess.run(listing, capture_output=True, text=True, check=True).stdout.splitlines())


def test_the_same_commit_makes_the_same_bytes(packages: Packages) -> None:
    for path in (packages.deb, packages.rpm):
        again = packages.again / path.name
        assert sorted(files_of(path) ^ files_of(again)) == []
        same = filecmp.cmp(path, again, shallow=False)  # not the bytes: pytest would look for hours where they differ
        assert same, path.name


@pytest.mark.parametrize("root", SUITES, indirect=True)
def test_the_deb_is_installed_upgraded_used_and_purged(packages: Packages, root: Root) -> None:
    for deb in (packages.deb, packages.before):
        shutil.copy(deb, root.path / "tmp")
    root.say("useradd", "--system", "slurm")
    before = root.paths()
    refuse_to_write_over_an_environment(root, packages.deb.name)

    root.say(*DPKG, "--install", f"/tmp/{packages.before.name}")
    compiled = root.path / "opt/runbook/lib/python3/site-packages/runbook/__pycache__"
    assert list(compiled.glob("gone.*.pyc"))
    with (root.path / "etc/default/runbook").open("a") as stream:
        stream.write("PATH=/opt/slurm/bin\n")
    (root.path / "etc/runbook/inventory.yaml").write_text(INVENTORY)
    as_service = ("setpriv", "--reuid=runbook", "--regid=runbook", "--init-groups")
    root.say(*as_service, "sh", "-c", "umask 077 && mkdir -p /var/lib/runbook/incidents/one")

    root.say(*DPKG, "--install", f"/tmp/{packages.deb.name}")
    assert (root.path / "etc/default/runbook").read_text() == "# of an older version\nPATH=/opt/slurm/bin\n"
    assert (root.path / "etc/runbook/inventory.yaml").read_text() == INVENTORY
    assert compiled.is_dir() and not list(compiled.glob("gone.*"))
    use(root, "deb")
    look_around(root)
    told = root.say(*as_service, "runbook", "doctor")
    assert "state folder: /var/lib/runbook" in told and "problem" not in told
    spool = root.say("stat", "-c", "%a %U %G", "/var/spool/runbook", "/var/spool/runbook/nodes")
    assert spool == "2770 slurm runbook\n2750 root runbook\n"

    told = root.say("dpkg", "--force-unsafe-io", "--purge", "runbook")
    assert "/var/lib/runbook stays" in told
    # systemd keeps copies of the accounts' files that it adds to.
    copies = {f"/etc/{name}-" for name in ("passwd", "group", "shadow", "gshadow")}
    assert {path for path in root.paths() - before - copies if not path.startswith("/var/lib/runbook")} == set()
    assert (root.path / "var/lib/runbook/incidents/one").is_dir()
    assert root.run("getent", "passwd", "runbook").returncode == 0


@pytest.mark.parametrize("root", ["trixie"], indirect=True)
def test_the_rpms_files_run(packages: Packages, root: Root) -> None:
    question = ("rpm", "-qp", "--requires", "--configfiles", str(packages.rpm))
    asked = subprocess.run(question, capture_output=True, text=True, check=True)
    assert "/usr/bin/python3.12\n" in asked.stdout and "/etc/default/runbook\n" in asked.stdout
    with subprocess.Popen(("rpm2cpio", str(packages.rpm)), stdout=subprocess.PIPE) as archive:
        subprocess.run(("cpio", "-idmu", "--quiet"), stdin=archive.stdout, cwd=root.path, check=True)
    # The name that the interpreter has on Enterprise Linux.
    (root.path / "usr/bin/python3.12").symlink_to("python3")
    use(root, "rpm")
