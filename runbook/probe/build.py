"""Pack the probe into one file: its modules and nvidia-ml-py's, as they are installed here. Not shipped itself.

The same modules and the same zlib give the same bytes: names in order, no dates.
"""

import base64
import importlib.util
import io
import os
import sys
import zipfile
from pathlib import Path

PACKAGE = "runbook_probe"
"""The package's name inside, so that no runbook that is installed on a node is taken for it."""
MODULES = ("__init__", "host", "kernel_log", "main", "nvml", "processes", "worker")
_MAIN = b"import sys\n\nfrom runbook_probe.main import main\n\nsys.exit(main())\n"
_DATE = (1980, 1, 1, 0, 0, 0)
_LOADER = """\
import sys, zlib, base64, io, zipfile, importlib.abc, importlib.util
archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(PAYLOAD)))
class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    names = {name[:-3].replace("/", "."): name for name in archive.namelist()}
    def find_spec(self, name, path=None, target=None):
        for key in (name, name + ".__init__"):
            if key in self.names and key != "__main__":
                return importlib.util.spec_from_loader(name, self, is_package=key != name)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = self.names.get(module.__name__) or self.names[module.__name__ + ".__init__"]
        exec(compile(archive.read(name), "probe/" + name, "exec"), module.__dict__)
sys.meta_path.insert(0, Loader())
sys.dont_write_bytecode = True
from runbook_probe.main import main
sys.exit(main())
"""


class NoPynvml(Exception):
    """nvidia-ml-py is not installed where the probe is built."""


def archive() -> bytes:
    """The zipapp. Raises `NoPynvml`."""
    files = {"__main__.py": _MAIN, "pynvml.py": _pynvml()}
    here = Path(__file__).parent
    for name in MODULES:
        files["%s/%s.py" % (PACKAGE, name)] = (here / (name + ".py")).read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as target:
        for path in sorted(files):
            entry = zipfile.ZipInfo(path, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            target.writestr(entry, files[path])
    return b"#!/usr/bin/env python3\n" + packed.getvalue()


def program() -> str:
    """The same as one Python text for `python3 -`: it loads itself from memory and writes no file. ASCII without a
    single quote, so that a shell can hold it as one word."""
    payload = base64.b64encode(archive()).decode("ascii")
    return 'PAYLOAD = "%s"\n%s' % (payload, _LOADER)


def main() -> int:
    """`python -m runbook.probe.build FILE`."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m runbook.probe.build FILE\n")
        return 2
    target = Path(sys.argv[1])
    try:
        data = archive()
    except NoPynvml as error:
        sys.stderr.write("%s\n" % error)
        return 1
    # Made new beside it and put in its place: a link that somebody planted is replaced, and nothing written through it.
    beside = target.with_name(".%s.%d.%s" % (target.name, os.getpid(), os.urandom(4).hex()))
    descriptor = os.open(str(beside), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        os.fchmod(stream.fileno(), 0o755)
    beside.replace(target)
    sys.stdout.write("%s: %d bytes\n" % (target, len(data)))
    return 0


def _pynvml() -> bytes:
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None or not found.origin.endswith("pynvml.py"):
        raise NoPynvml("nvidia-ml-py is not installed here (its module is pynvml.py): pip install nvidia-ml-py")
    return Path(found.origin).read_bytes()


if __name__ == "__main__":
    sys.exit(main())
