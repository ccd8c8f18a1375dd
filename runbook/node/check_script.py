"""The question to a node: one POSIX shell script whose answer is a document of sections (see `node_answers`).

One script is one round trip. The kernel log comes first, so that an nvidia-smi that hangs costs its own figures and
not those of the log; each command has a limit of its own where the node has `timeout`. Nothing is written there.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from runbook.errors import BadInput
from runbook.model.job import JobRecord
from runbook.node.gres import SCRIPT as SLURM_GRES

GPU_FIELDS = (
    "index", "uuid", "pci.bus_id", "name", "driver_version", "memory.total", "memory.used", "memory.free",
    "ecc.errors.uncorrected.volatile.total", "ecc.errors.uncorrected.aggregate.total", "mig.mode.current",
    "gpu_recovery_action",
)
"""Fields of the first query, newest driver first: one unknown field fails the whole query, so that shorter queries
follow. `gpu_recovery_action` is from driver 565 on, `mig.mode.current` from 450 on."""

GPU_QUERIES = {"gpus": GPU_FIELDS, "gpus_before_565": GPU_FIELDS[:-1], "gpus_basic": GPU_FIELDS[:8]}
APP_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")
"""The name comes last: it may hold commas."""

_FORMAT = "--format=csv,noheader,nounits"
MATCHED_LINES = 4000
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MARKER = re.compile(r"@@[A-Za-z0-9-]{8,64}\Z")
_JOB = re.compile(r"[0-9]{1,12}(?:[_+][0-9]{1,12})?\Z")

OWNER_VARIABLES = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_LOCALID", "LOCAL_RANK")
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


PROBE_COMMANDS = (
    "the node probe: NVML through nvidia-ml-py",
    "journalctl -o short-unix _TRANSPORT=kernel",
    "/dev/kmsg, or dmesg --time-format iso (or -T)",
    "/proc/PID/{stat,status,cgroup,environ} of the processes on the GPUs",
)
"""What the check looked at where the probe answered, for the report."""

HOST_PIDS = "pid:[4026531836]"
"""What /proc/self/ns/pid points to on a host: the number is the kernel's own constant (PROC_PID_INIT_INO)."""

PYTHONS = ("python3", "/usr/libexec/platform-python")
"""The second is the system's own on RHEL 8 and its kin, where there may be no python3."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that each command may take on the node, shared out of the deadline of the whole question."""

    log_s: int
    gpu_s: int
    probe_s: int = 11
    """For the probe by its own clock; it is ended from outside a little later."""

    @staticmethod
    def within(deadline_s: float) -> Limits:
        """nvidia-smi gets nearly half (it is slow without persistence mode), the log commands a sixth each."""
        return Limits(
            log_s=max(1, int(deadline_s / 6)), gpu_s=max(1, int(deadline_s * 0.45)),
            probe_s=max(1, int(deadline_s * 0.75)),
        )


def shown_commands() -> tuple[str, ...]:
    """What the check asks a node, for the report."""
    return (
        "/dev/kmsg, or dmesg --time-format iso (or -T)",
        "journalctl _TRANSPORT=kernel -o short-unix",
        f"nvidia-smi --query-gpu={','.join(GPU_FIELDS)} {_FORMAT}",
        f"nvidia-smi --query-compute-apps={','.join(APP_FIELDS)} {_FORMAT}",
        "nvidia-smi -q -x",
        "/proc/PID/{stat,status,cgroup,environ} of the processes on the GPUs",
    )


def shell_command(sudo: bool) -> str:
    """The command that reads a script from standard input: never a login shell. With `sudo`, as root where allowed,
    and otherwise as the user that logged in; the script's first argument tells which."""
    if not sudo:
        return "sh -s plain"
    return "sh -c 'sudo -n sh -c : </dev/null >/dev/null 2>&1 && exec sudo -n sh -s sudo; exec sh -s sudo-refused'"


def shell_arguments(sudo: bool) -> tuple[str, ...]:
    """As `shell_command`, as an argument list for this machine."""
    return ("sh", "-s", "plain") if not sudo else tuple(shlex.split(shell_command(sudo)))


def check_script(marker: str, node: str, since_s: float | None, limits: Limits, probe: str = "") -> str:
    """The script of a node check. `marker` is a word `@@…` that nothing on the node can know.

    `probe` is the probe's program text. Where the node has a Python and an NVML library, it answers alone; else, and
    where it fails, nvidia-smi and the log's own commands do."""
    queries = {name: f"--query-gpu={','.join(fields)} {_FORMAT}" for name, fields in GPU_QUERIES.items()}
    first, *others = queries
    fallback = "".join(
        f'case "$out" in *"not a valid field"*) smi {name} {queries[name]} ;; esac\n' for name in others
    )
    since = "-b" if since_s is None else f"--since @{int(since_s) - 86400}"
    return whole_script(marker, f"""
NODE={shlex.quote(node)}
begin node
printf 'hostname=%s\\nnow=%s\\noffset=%s\\n' "$(uname -n)" "$(date +%s)" "$(date +%z)"
printf 'uptime=%s\\nticks=%s\\n' "$(cut -d' ' -f1 /proc/uptime)" "$(getconf CLK_TCK 2>/dev/null || echo 100)"
printf 'user=%s\\nas=%s\\nsimulated=%s\\n' "$(id -un)" "$AS" "${{SIMULATED_GPU_DIR:-}}"
for d in /sys/fs/cgroup/slurm* /sys/fs/cgroup/*/slurm* /sys/fs/cgroup/*/*slurmstepd.scope; do
  [ -e "$d" ] && printf 'slurm_cgroup=%s\\n' "$d" && break
done
for d in /proc/driver/nvidia/gpus/*; do [ -d "$d" ] && printf 'gpu=%s\\n' "${{d##*/}}"; done
for d in /sys/bus/pci/devices/*; do
  read -r v <"$d/vendor" && [ "$v" = 0x10de ] && read -r c <"$d/class" || continue
  case $c in 0x03*) printf 'pci=%s\\n' "${{d##*/}}" ;; esac
done 2>/dev/null
grep -q slurm /proc/self/cgroup 2>/dev/null && echo inside=slurm
for f in /.dockerenv /run/.containerenv; do [ -e $f ] && echo inside=container; done
case $(readlink /proc/self/ns/pid 2>/dev/null) in ''|'{HOST_PIDS}') ;; *) echo inside=namespace ;; esac
end node 0
{SLURM_GRES}nvrm() {{
  awk -v m={MATCHED_LINES} 'NR == 1 {{ print substr($0, 1, 1000); next }}
    /NVRM: |nvidia-nvswitch[0-9]+: |oom-kill:|Out of memory: |emory cgroup out of memory/ {{
      n++; kept[n % m] = substr($0, 1, 1000) }}
    END {{ for (i = (n > m ? n - m + 1 : 1); i <= n; i++) print kept[i % m]; if (n > m) print "dropped=" n - m }}'
}}
have=$(command -v nvidia-smi)
if [ -z "$have" ] && [ -n "${{SIMULATED_GPU_DIR:-}}" ]; then
  for n in "$NODE" "$(uname -n)"; do
    d=$SIMULATED_GPU_DIR/$n
    [ -f "$d/state.json" ] && break
  done
  begin simulated_state; head -c 1000000 "$d/state.json"; end simulated_state $?
  begin simulated_processes
  for f in "$d"/processes/*/*; do
    [ -f "$f" ] && printf '%s %s ' "${{f#"$d"/processes/}}" "$(stat -c %Y "$f")" &&
      head -c 4096 "$f" | tr '\\n' ' ' && echo
  done
  end simulated_processes 0
  owners $(for f in "$d"/processes/*/*; do [ -f "$f" ] && echo "${{f##*/}}"; done
    grep -oE '"pid": *[0-9]+' "$d/state.json" 2>/dev/null | grep -oE '[0-9]+')
  finish
fi
K=${{RUNBOOK_KMSG:-/dev/kmsg}}
{_probe_part(probe, since_s, limits)}records=
if [ -n "${{RUNBOOK_KMSG:-}}" ] || [ "${{SIMULATED_GPU_DIR:-}}$(stat -Lc %t:%T "$K" 2>/dev/null)" = 1:b ]; then
  records=$(limit {limits.log_s} dd if="$K" iflag=nonblock bs=8192 2>/dev/null | nvrm)
fi
if [ -n "$records" ]; then
  begin kmsg
  printf '%s\\n' "$records"
  end kmsg 0
else
  begin kernel_log
  {{ limit {limits.log_s} dmesg --time-format iso 2>/dev/null || limit {limits.log_s} dmesg -T 2>/dev/null ||
    limit {limits.log_s} dmesg; }} 2>&1 | nvrm
  end kernel_log 0
fi
if command -v journalctl >/dev/null 2>&1; then
  begin journal
  limit {limits.log_s} journalctl -q --no-pager -o short-unix _TRANSPORT=kernel 2>&1 | head -n 1
  limit {limits.log_s} journalctl -q --no-pager -o short-unix _TRANSPORT=kernel {since} 2>&1 | nvrm
  end journal 0
fi
if [ -z "$have" ]; then begin no_nvidia_smi; end no_nvidia_smi 0; finish; fi
smi() {{
  name=$1; shift
  begin "$name"
  out=$(limit {limits.gpu_s} nvidia-smi "$@" 2>&1); status=$?
  printf '%s\\n' "$out"
  end "$name" "$status"
  case $status in 124|137) finish ;; esac
}}
apps() {{
  smi apps --query-compute-apps={','.join(APP_FIELDS)} {_FORMAT}
  pids=$(printf '%s\\n' "$out" | awk -F', *' '$2 ~ /^[0-9]+$/ {{ print $2 }}' | sort -un | head -n 512)
  owners $pids
}}
smi {first} {queries[first]}
{fallback}apps
[ -n "$gone" ] && {{ sleep 1; apps; }}
smi report -q -x
[ "$status" = 0 ] || smi report_full -q
finish
""")


def _probe_part(program: str, since_s: float | None, limits: Limits) -> str:
    """The program goes in through standard input of Python: nothing is written on the node. A builtin prints it, so
    that it needs no argument list and no file for a here-document."""
    if not program:
        return ""
    if "'" in program:
        raise ValueError("the probe's program may not hold a single quote")
    since = "" if since_s is None else f" --since {int(since_s)}"
    return f"""nvml=
[ -e /proc/driver/nvidia ] || [ -e /dev/nvidiactl ] && nvml=1
for d in $(printf %s "${{LD_LIBRARY_PATH:-}}" | tr : ' '); do [ -e "$d/libnvidia-ml.so.1" ] && nvml=1; done
[ -n "$nvml" ] || {{ ldconfig -p 2>/dev/null | grep -q 'libnvidia-ml[.]so[.]1' && nvml=1; }}
python=
[ -n "$nvml" ] && for p in {' '.join(PYTHONS)}; do
  "$p" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null && python=$p && break
done
if [ -n "$python" ]; then
  begin probe
  out=$(printf '%s\\n' '{program}' |
    limit {limits.probe_s + 1} "$python" -I -S -B - --need-nvml --kmsg "$K" \\
      --deadline {limits.probe_s}{since} 2>/dev/null)
  status=$?
  printf '%s\\n' "$out"
  end probe "$status"
  case "$status$out" in 0*'"runbook-node"'*) finish ;; esac
fi
"""


def process_script(marker: str, job: JobRecord, variables: tuple[str, ...]) -> str:
    """The script that shows a job's processes: of those that run with its owner's user number the ones in its cgroup or
    with its SLURM_JOB_ID, with argv and the variables asked for. Others are not even looked into, however many there
    are. No other variable leaves the node. Raises `BadInput` on a name that is no variable's."""
    if not _JOB.match(job.id):
        raise BadInput(f"not a Slurm job id: {job.id[:40]!r}", next_step="give the id as squeue prints it")
    wrong = [name for name in variables if not _VARIABLE.match(name)]
    if wrong:
        raise BadInput(f"not the name of an environment variable: {wrong[0]!r}")
    names = "|".join(dict.fromkeys((*variables, *RANK_VARIABLES)))
    number = re.split(r"[_+]", job.id)[0]
    array, task = job.id.split("_") if "_" in job.id else ("", "")
    wanted = f"SLURM_JOB_ID={number}" if not array else f"SLURM_ARRAY_JOB_ID={array}"
    both = f'[ "$(own SLURM_ARRAY_TASK_ID)" = {task} ] || continue' if array else ":"
    by_cgroup = ":" if array else f"files cgroup | xargs -r grep -lsE '/job_{number}(/|$)'"
    uid = str(job.uid) if job.uid is not None else f'$(id -u -- {shlex.quote(job.owner)} 2>/dev/null)'
    return whole_script(marker, f"""
own() {{ variables | sed -n "s/^$1=//p" | head -n 1; }}
variables() {{ tr '\\000\\n' '\\n\\001' 2>/dev/null </proc/$p/environ; }}
files() {{ [ -z "$mine" ] || printf "/proc/%s/$1\\n" $mine; }}
uid={uid}
begin node
printf 'user=%s\\nas=%s\\nowner_uid=%s\\n' "$(id -un)" "$AS" "$uid"
end node 0
begin processes
mine=
[ -z "$uid" ] || mine=$(grep -lsE "^Uid:[[:space:]]+$uid[[:space:]]" /proc/[0-9]*/status 2>/dev/null | cut -d/ -f3)
found=$({{ {by_cgroup}; files environ | xargs -r grep -lszx '{wanted}'; }} 2>/dev/null |
  cut -d/ -f3 | sort -un | head -n 2048)
for p in $found; do
  [ "$p" = $$ ] && continue
  {both}
  u=$(sed -n 's/^Uid:[[:space:]]*\\([0-9]*\\).*/\\1/p' /proc/$p/status 2>/dev/null)
  [ -n "$u" ] || continue
  printf '%s owner %s %s\\n' "$p" "$u" "$(account "$u")"
  printf '%s argv %s\\n' "$p" "$(tr '\\000\\n' '\\001\\002' 2>/dev/null </proc/$p/cmdline)"
  if v=$(variables); then
    printf '%s environ readable\\n' "$p"
    printf '%s\\n' "$v" | grep -E '^({names})=' | sed "s/^/$p env /"
  fi
done
end processes 0
finish
""")


def whole_script(marker: str, body: str) -> str:
    """One group that the shell reads to its end before it starts: half a script runs nothing, and no command can
    take the rest of the script for its standard input."""
    return "{\n" + _head(marker) + body + "} </dev/null\n"


def _head(marker: str) -> str:
    """Shell functions of both scripts. `owners` prints whose the given processes are and sets `gone`."""
    if not _MARKER.match(marker):
        raise ValueError(f"not a marker: {marker!r}")
    names = "|".join(OWNER_VARIABLES)
    return f"""AS=${{1:-plain}}
LC_ALL=C; export LC_ALL
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH
begin() {{ printf '\\n{marker} begin %s\\n' "$1"; }}
end() {{ printf '\\n{marker} end %s %s\\n' "$1" "$2"; }}
finish() {{ printf '\\n{marker} done\\n'; exit 0; }}
if timeout -k 1 1 true >/dev/null 2>&1; then limit() {{ timeout -k 1 "$@"; }}; else limit() {{ shift; "$@"; }}; fi
account() {{ getent passwd "$1" 2>/dev/null | cut -d: -f1; }}
owners() {{
  gone=
  begin owners
  for p in "$@"; do
    u=$(sed -n 's/^Uid:[[:space:]]*\\([0-9]*\\).*/\\1/p' /proc/$p/status 2>/dev/null)
    if [ -z "$u" ]; then gone=1; printf '%s gone\\n' "$p"; continue; fi
    printf '%s owner %s %s\\n' "$p" "$u" "$(account "$u")"
    printf '%s stat %s\\n' "$p" "$(tr '\\n' '\\001' 2>/dev/null </proc/$p/stat)"
    sed "s/^/$p cgroup /" /proc/$p/cgroup 2>/dev/null
    if v=$(tr '\\000\\n' '\\n\\001' 2>/dev/null </proc/$p/environ); then
      printf '%s environ readable\\n' "$p"
      printf '%s\\n' "$v" | grep -E '^({names})=' | sed "s/^/$p env /"
    fi
  done
  end owners 0
}}
"""
