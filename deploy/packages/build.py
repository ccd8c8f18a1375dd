"""A deb and an rpm of this checkout, in dist/: `make packages`.

    python deploy/packages/build.py [--into FOLDER]

An environment in /opt/runbook that holds every library in the version and with the hash of deploy/supply, for each of
PYTHONS; the interpreter is the distribution's, which gets its security updates. What is the same for all versions lies
there once. The same commit gives the same bytes (SOURCE_DATE_EPOCH is the commit's time unless it is set).
"""

from __future__ import annotations

import argparse
import csv
import filecmp
import gzip
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILD = REPOSITORY / "build" / "packages"
ROOT = BUILD / "root"
PYTHONS = ("3.11", "3.12", "3.13")
"""Those of Debian 12 and 13, Ubuntu 24.04 and Enterprise Linux; `depends` in nfpm.yaml names them, too."""
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
GLIBC = "manylinux_2_28"
"""Enterprise Linux 8's; `depends` in nfpm.yaml has it for Debian."""
PROGRAM = """\
#!/opt/runbook/bin/python3 -I
import sys

from runbook.cli.main import main

sys.exit(main())
"""
ENVIRONMENT = """\
home = /usr/bin
include-system-site-packages = false
"""
SHARED = Path("opt/runbook/lib/python3/site-packages")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--into", type=Path, default=REPOSITORY / "dist", metavar="FOLDER")
    into = options.parse_args().into.resolve()
    if platform.machine() not in MACHINES:
        return _refuse(f"no package is made for {platform.machine()}", f"build on one of {', '.join(MACHINES)}")
    os.umask(0o022)
    try:
        _make(into)
    except subprocess.CalledProcessError as error:
        words = " ".join(map(str, error.cmd))
        return _refuse(f"a program ended with status {error.returncode}: {words}\n{error.stderr or ''}".rstrip(),
                       "read what it said; the package index has to be reached, and git or SOURCE_DATE_EPOCH be there")
    return 0


def _refuse(what: str, next_step: str) -> int:
    print(f"packages: {what}\n  next: {next_step}", file=sys.stderr)
    return 2


def _make(into: Path) -> None:
    settings = {
        "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or _said("git", "log", "-1", "--format=%ct"),
        "PACKAGE_ARCH": MACHINES[platform.machine()], "PACKAGE_VERSION": _version(), "LC_ALL": "C.UTF-8", "TZ": "UTC",
    }
    tools = _tools()
    wheel = _wheel(tools, settings)
    shutil.rmtree(ROOT, ignore_errors=True)
    for version in PYTHONS:
        print(f"libraries for Python {version}", flush=True)
        _install(tools, version, wheel)
    _share()
    _beside(tools, settings)
    into.mkdir(parents=True, exist_ok=True)
    for kind in ("deb", "rpm"):
        _name_the_installer(kind)
        _date(int(settings["SOURCE_DATE_EPOCH"]))
        _run(tools / "nfpm", "package", "--config", HERE / "nfpm.yaml", "--packager", kind, "--target", into,
             **settings)


def _tools() -> Path:
    """The programs that build, in an environment of their own that is made anew when their lock changes."""
    lock = HERE / "tools.lock"
    folder = BUILD / f"tools-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", folder)
        _run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--require-hashes", "--no-deps", "--only-binary", ":all:", "--requirement", lock)
        (folder / "ready").touch()
    return folder / "bin"


def _wheel(tools: Path, settings: Mapping[str, str]) -> Path:
    shutil.rmtree(BUILD / "wheel", ignore_errors=True)
    _run(tools / "python", "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--no-build-isolation", "--wheel-dir", BUILD / "wheel", REPOSITORY, **settings)
    (made,) = (BUILD / "wheel").glob("*.whl")
    return made


def _install(tools: Path, version: str, wheel: Path) -> None:
    target = ROOT / f"opt/runbook/lib/python{version}/site-packages"
    install = (tools / "uv", "pip", "install", "--quiet", "--no-config", "--no-deps", "--link-mode", "copy",
               "--only-binary", ":all:", "--python", sys.executable, "--python-version", version,
               "--python-platform", f"{platform.machine()}-{GLIBC}", "--target", target)
    _run(*install, "--require-hashes", "--requirement", REPOSITORY / "deploy" / "supply" / "requirements.lock")
    _run(*install, wheel)
    shutil.rmtree(target / "bin", ignore_errors=True)
    (target / ".lock").unlink(missing_ok=True)
    (target / "shared.pth").write_text(f"{os.path.relpath(ROOT / SHARED, target)}\n", encoding="ascii")


def _share() -> None:
    """Moves the distributions that are the same for all versions of Python to one place, which each of them looks into.
    Whole ones: compiled modules find their libraries beside them."""
    first, *others = (ROOT / f"opt/runbook/lib/python{version}/site-packages" for version in PYTHONS)
    holders: dict[str, set[str]] = {}
    for record in first.glob("*.dist-info/RECORD"):
        with record.open(encoding="utf-8", newline="") as stream:
            for name, *_ in csv.reader(stream):
                holders.setdefault(name.split("/")[0], set()).add(record.parent.name)
    names = holders.keys() - {"..", "bin"}
    same = {name: all(_same(first / name, other / name) for other in others) for name in names}
    apart = {holder for name, equal in same.items() if not equal for holder in holders[name]}
    (ROOT / SHARED).mkdir(parents=True)
    for name in sorted(name for name in same if not holders[name] & apart):
        (first / name).rename(ROOT / SHARED / name)
        for other in others:
            copy = other / name
            shutil.rmtree(copy) if copy.is_dir() else copy.unlink()
    # This package's own metadata: nobody else can remove it, and where it was built is nobody's business.
    for metadata in (ROOT / "opt/runbook/lib").glob("*/site-packages/runbook_oom-*.dist-info"):
        for name in ("RECORD", "direct_url.json", "uv_cache.json"):
            (metadata / name).unlink(missing_ok=True)


def _same(one: Path, other: Path) -> bool:
    if one.is_dir() and other.is_dir():
        names = sorted(path.name for path in one.iterdir())
        return names == sorted(path.name for path in other.iterdir()) and all(
            _same(one / name, other / name) for name in names
        )
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def _beside(tools: Path, settings: Mapping[str, str]) -> None:
    """What lies outside the environment's libraries: the program, units, manual, completion, epilogs, documents."""
    home, share = ROOT / "opt" / "runbook", ROOT / "usr" / "share"
    (home / "pyvenv.cfg").write_text(ENVIRONMENT, encoding="ascii")
    (home / "bin").mkdir()
    (home / "bin" / "runbook").write_text(PROGRAM, encoding="ascii")
    (home / "bin" / "runbook").chmod(0o755)

    _copy(HERE / "runbook.sysusers", ROOT / "usr/lib/sysusers.d/runbook.conf")
    _copy(HERE / "runbook.tmpfiles", ROOT / "usr/lib/tmpfiles.d/runbook.conf")
    for unit in sorted((REPOSITORY / "deploy" / "systemd").glob("*.[st][ei][rm]*")):
        _copy(unit, ROOT / "usr/lib/systemd/system" / unit.name)
    _copy(REPOSITORY / "deploy/systemd/as-owners.conf", share / "runbook/as-owners.conf")
    for name in ("runbook-epilog", "runbook-node-epilog"):
        _copy(REPOSITORY / "deploy" / "slurm" / name, ROOT / "usr/libexec/runbook" / name, mode=0o755)

    # This machine's own version of Python runs what is asked of the program here.
    running = ROOT / "opt/runbook/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    libraries = os.pathsep.join((str(running), str(ROOT / SHARED)))
    runbook = {**settings, "PYTHONPATH": libraries, "PYTHONDONTWRITEBYTECODE": "1"}
    _run(sys.executable, "-m", "runbook", "probe", "--build", ROOT / "usr/libexec/runbook/runbook-probe.pyz", **runbook)
    for shell, place in (("bash", share / "bash-completion/completions/runbook"), ("zsh", ROOT / "zsh/_runbook"),
                         ("fish", share / "fish/vendor_completions.d/runbook.fish")):
        place.parent.mkdir(parents=True, exist_ok=True)
        script = _said(sys.executable, "-m", "runbook", "completion", shell, **runbook)
        place.write_text(f"{script}\n", encoding="utf-8")
    manual = share / "man" / "man1"
    manual.mkdir(parents=True)
    _run(tools / "click-man", "--target", manual, "runbook", **runbook)
    for page in sorted(manual.glob("*.1")):
        page.with_name(f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        page.unlink()

    documents = share / "doc" / "runbook"
    for name in ("README.md", "CHANGELOG.md", "SECURITY.md"):
        _copy(REPOSITORY / name, documents / name)
    _copy(REPOSITORY / "LICENSE", documents / "copyright")
    for path in sorted(path for path in (REPOSITORY / "docs").rglob("*") if path.is_file()):
        _copy(path, documents / path.relative_to(REPOSITORY))
    for part in ("ansible", "slurm", "systemd"):
        _copy(REPOSITORY / "deploy" / part / "README.md", documents / "deploy" / part / "README.md")
    for name in ("licences.txt", "sbom.cdx.json"):
        _copy(REPOSITORY / "deploy" / "supply" / name, documents / "deploy" / "supply" / name)


def _name_the_installer(kind: str) -> None:
    """`runbook --version` says it."""
    for metadata in (ROOT / "opt/runbook/lib").glob("*/site-packages/runbook_oom-*.dist-info"):
        (metadata / "INSTALLER").write_text(f"{kind}\n", encoding="ascii")


def _date(epoch_s: int) -> None:
    for path in (ROOT, *ROOT.rglob("*")):
        os.utime(path, (epoch_s, epoch_s), follow_symlinks=False)


def _copy(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _version() -> str:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    text = (REPOSITORY / project["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
    return text.split('__version__ = "')[1].split('"')[0]


def _run(*command: object, **settings: str) -> None:
    subprocess.run([str(word) for word in command], cwd=REPOSITORY, env={**os.environ, **settings}, check=True)


def _said(*command: str, **settings: str) -> str:
    environment = {**os.environ, **settings}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
