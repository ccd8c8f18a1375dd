"""How a node's slurmd numbers its GPUs: its gres.conf, read where slurmd reads it, and never by asking slurmd.

gres.conf(5): lines count in their order, a line with NodeName for those nodes only, `AutoDetect` of the node's own line
before the file's. With AutoDetect=nvml slurmd sorts the GPUs by PCI bus, whatever the device files are called.
"""

from __future__ import annotations

import re

from runbook.host_lists import expand_hosts
from runbook.model.node import SlurmGpus
from runbook.model.units import NodeName, Unknown
from runbook.node.sections import NodeAnswers, printable

SECTION = "slurm_gres"
SCRIPT = """begin slurm_gres
conf=; running=
for f in $(grep -lsx -e slurmd -e slurmd-wlm /proc/[0-9]*/comm | head -n 64); do
  p=${f%/comm}
  a=$(tr '\\000' '\\n' 2>/dev/null <$p/cmdline)
  n=$(printf '%s\\n' "$a" | sed -n '/^-N$/{n;p;}')
  case $n in ''|"$NODE"|"${NODE%%.*}") ;; *) continue ;; esac
  case $(stat -c %u $p) in 0|$(id -u)) ;; *) continue ;; esac
  [ -r $p/environ ] || { echo environment=hidden; continue; }
  e=$(readlink $p/exe)
  case ${e##*/} in slurmd*) ;; *) continue ;; esac
  running=1
  c=$(printf '%s\\n' "$a" | sed -n '/^-f$/{n;p;}')
  [ -n "$c" ] || c=$(tr '\\000' '\\n' 2>/dev/null <$p/environ | sed -n 's/^SLURM_CONF=//p')
  conf=${c%/*}
done
[ -n "$running" ] && echo slurmd=running
for d in ${conf:-/etc/slurm /etc/slurm-llnl /opt/slurm/etc /usr/local/etc /run/slurm/conf}; do
  [ -f "$d/gres.conf" ] || continue
  printf 'path=%s/gres.conf\\n' "$d"
  head -c 100000 "$d/gres.conf" | sed -n 's/^/gres=/p' | head -n 1000
  sed -n 's/^[[:space:]]*[Cc]onstrain[Dd]evices[[:space:]]*=[[:space:]]*/constrain=/p' "$d/cgroup.conf" 2>/dev/null
  sed -n 's/^[[:space:]]*[Tt]ask[Pp]lugin[[:space:]]*=[[:space:]]*/task=/p' "$d/slurm.conf" 2>/dev/null
done
end slurm_gres 0
"""
"""Part of the check script: prints the files, changes nothing. NODE is the node's name. Anybody can call a program
slurmd, and give root's own programs that name with a link: only root's slurmd counts (or that of who asks). Debian
calls its file slurmd-wlm, and so does the kernel once slurmd has started itself anew for `scontrol reconfigure` (24.11
and later)."""

_PAIR = re.compile(r"(?P<key>[A-Za-z]+)\s*=\s*(?P<value>\S+)")
_FILES = re.compile(r"(?P<head>/dev/[A-Za-z0-9_./-]*?)(?:\[(?P<list>[0-9,-]{1,400})\])?\Z")
_MOST_FILES = 256


def read_slurm_gpus(answers: NodeAnswers, node: NodeName) -> SlurmGpus | Unknown:
    """What the node's gres.conf says of its GPUs; Unknown where it was not found, or holds what is not read here."""
    if answers.get(SECTION) is None:
        return Unknown("the node did not say how its Slurm numbers GPUs")
    paths = answers.values(SECTION, "path")
    if answers.value(SECTION, "environment"):
        return Unknown("which gres.conf is slurmd's could not be told: its environment is for root to read")
    if not paths or not answers.value(SECTION, "slurmd"):
        return Unknown("no gres.conf was found there" if not paths else "no slurmd runs there under this name")
    if len(paths) > 1:
        return Unknown(f"several files may be slurmd's: {printable(', '.join(paths), 160)}")
    lines = [line.partition("#")[0].strip() for line in answers.values(SECTION, "gres")]
    if any(line.endswith("\\") or line.lower().startswith("include") for line in lines):
        return Unknown(f"{printable(paths[0], 120)} is not one plain file (Include, continued lines)")
    autodetect, unread = "", False
    own_autodetect: str | None = None
    files: list[str] = []
    types: set[str] = set()
    for line in lines:
        values = {pair["key"].lower(): pair["value"] for pair in _PAIR.finditer(line)}
        named = values.get("nodename")
        if named is not None and not _names(named, node):
            continue
        if "autodetect" in values:
            if named is None:
                autodetect = values["autodetect"].lower()
            else:
                own_autodetect = values["autodetect"].lower()
        if values.get("name", "").lower() == "gpu":
            types |= {values["type"].lower()} if "type" in values else set()
            listed = _expanded(values.get("file", ""))
            unread |= (listed is None and "file" in values) or "multiplefiles" in values
            files += listed or ()
    found = own_autodetect if own_autodetect is not None else autodetect
    found = "" if found in ("off", "none") else printable(found, 20)
    if unread or (not found and not files):
        return Unknown(f"{printable(paths[0], 120)} names no plain device files of GPUs")
    if not found and len(types) > 1:
        # slurmd puts the types in the order in which slurm.conf's Gres names them.
        return Unknown(f"{printable(paths[0], 120)} has several types of GPUs, and slurm.conf says in which order")
    return SlurmGpus(printable(paths[0], 120), found, tuple(files), _constrained(answers))


def _names(named: str, node: NodeName) -> bool:
    nodes = expand_hosts(named)
    return node in nodes or node.partition(".")[0] in nodes


def _constrained(answers: NodeAnswers) -> bool | Unknown:
    """cgroup.conf(5): off where it is not said; task/cgroup is what does it."""
    if (answers.value(SECTION, "constrain").split() or [""])[0].lower() != "yes":
        return False
    if "cgroup" in answers.value(SECTION, "task"):
        return True
    return Unknown("ConstrainDevices=yes, but slurm.conf does not say TaskPlugin=task/cgroup")


def _expanded(text: str) -> tuple[str, ...] | None:
    """"/dev/nvidia[2-3,0]" in the order as written, which is Slurm's; None for what is no list of device files."""
    found: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        match = _FILES.match(part)
        if match is None:
            return None
        for item in (match["list"] or "").split(","):
            first, dash, last = item.partition("-")
            if dash and not (first.isdecimal() and last.isdecimal() and int(last) - int(first) < _MOST_FILES):
                return None
            numbers = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)] if dash else [first]
            found += [match["head"] + number for number in numbers]
    return tuple(found) if len(found) <= _MOST_FILES else None
