#!/bin/bash
# Captures Open MPI's, pdsh's and clush's framing (the latter two over ssh to the sandbox's nodes). usage: capture.sh FOLDER
set -u
target=$(mkdir -p "$1" && cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
python=${PYTHON:-/usr/bin/python3}
member="$python $here/../slurm/member.py"
mpi="mpirun --allow-run-as-root --oversubscribe -np 4"
config=/var/lib/runbook-sandbox/ssh/ssh_config

keep() { # NAME COMMAND…
    local name=$1
    shift
    mkdir -p "$target/$name"
    PORT=$((29000 + RANDOM % 900)) timeout 60 "$@" >"$target/$name/job.out" 2>&1
    echo "$name: $?"
}

keep mpi_raise_rank2 $mpi --tag-output $member 9 2:4:raise
keep mpi_kill_rank1 $mpi --tag-output $member 9 1:4:kill
keep mpi_refused_rank3 $mpi --tag-output --timestamp-output $member 9 3:5:refused
keep mpi_untagged_segv $mpi $member 9 1:3:segv
keep mpi_healthy $mpi --tag-output $member 5

# One rank a node, started by hand over ssh, as deepspeed's and many sites' launchers do.
cp "$here/../slurm/member.py" /var/lib/runbook-sandbox/home/sb-alice/ && chmod a+r /var/lib/runbook-sandbox/home/sb-alice/member.py
nodes="gpu-21,gpu-22,gpu-23,gpu-24"
line() { # faults: the command that each node runs
    echo "export WORLD=4 LEADER=gpu-21 PORT=$1 RANK=\$(( \$(hostname | cut -d- -f2) - 21 )); $python /var/lib/runbook-sandbox/home/sb-alice/member.py $2"
}
export PDSH_RCMD_TYPE=ssh PDSH_SSH_ARGS_APPEND="-F $config"
keep pdsh_raise_rank2 pdsh -S -w "$nodes" "$(line 29801 '9 2:4:raise')"
keep pdsh_refused_rank1 pdsh -w "$nodes" "$(line 29802 '9 1:6:refused')"
keep pdsh_kill_rank3 pdsh -S -w "$nodes" "$(line 29803 '9 3:4:kill')"
clush=$(command -v clush || echo "$root/.venv/bin/clush")
keep clush_raise_rank1 "$clush" -o "-F $config" -w "$nodes" "$(line 29804 '9 1:4:raise')"
keep clush_refused_rank2 "$clush" -S -o "-F $config" -w "$nodes" "$(line 29805 '9 2:4:refused')"
