#!/bin/bash
# Captures real Slurm output on the sandbox cluster (deploy/sandbox/sandbox up). usage: capture.sh FOLDER
# Each job's files land in FOLDER/NAME/; sacct's word on it in FOLDER/NAME/sacct.
set -u
target=$(mkdir -p "$1" && cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
eval "$("$root/deploy/sandbox/sandbox" env)"
python=${PYTHON:-$(command -v python3)}
home=/var/lib/runbook-sandbox/home/sb-alice/capture
mkdir -p "$home" && cp "$here/member.py" "$home/" && chown -R sb-alice "$home"

job() { # NAME 'sbatch options' 'body'
    local name=$1 options=$2 body=$3 folder="$home/$1"
    rm -rf "$folder" && mkdir -p "$folder"
    {
        echo '#!/bin/bash'
        for option in $options; do echo "#SBATCH $option"; done
        echo "export LEADER=\$(scontrol show hostnames \$SLURM_JOB_NODELIST | head -1) PORT=\$((20000 + SLURM_JOB_ID % 9000))"
        echo "echo \"job \$SLURM_JOB_ID on \$SLURM_JOB_NODELIST, slurm \$(sinfo -V | cut -d' ' -f2)\""
        echo "$body"
    } >"$folder/job.sh"
    chown -R sb-alice "$folder"
    chmod +x "$folder/job.sh"
    id=$(cd "$folder" && sudo -u sb-alice SLURM_CONF="$SLURM_CONF" sbatch --parsable --job-name "$name" --mem=256M job.sh)
    echo "$name: job $id"
}

settle() { # NAME: wait for the job and keep what it wrote
    local folder="$home/$1"
    for _ in $(seq 900); do
        [ -z "$(squeue -h -j "$id" 2>/dev/null)" ] && break
        sleep 0.2
    done
    sleep 6
    mkdir -p "$target/$1" && cp -r "$folder"/. "$target/$1/"
    sacct -j "$id" --parsable2 -o JobID,State,ExitCode,NodeList,MaxRSS,ReqMem >"$target/$1/sacct" 2>/dev/null
}

member="$python $home/member.py"
run() { job "$@" && settle "$1"; }
four="-N4 -n4 -t2"

run raise_rank2 "$four" "srun --label $member 12 2:5:raise"
run raise_rank2_kill "$four" "srun --label --kill-on-bad-exit=1 $member 12 2:5:raise"
run raise_rank3_eight "-N4 -n8 -t2" "srun --label --kill-on-bad-exit=1 $member 9 5:4:raise"
run memory_rank1 "$four" "srun --label --kill-on-bad-exit=1 $member 9 1:4:memory"
run memory_rank3_unlabelled "$four" "srun --kill-on-bad-exit=1 $member 9 3:6:memory"
run memory_batch "-N1 -n1 -t2" "$member 9 0:3:memory"
run memory_per_rank_files "$four" "srun --output=rank-%t.out --error=rank-%t.err $member 9 2:4:memory"
run memory_per_node_files "-N2 -n4 -t2" "srun --label --output=%N.out $member 9 3:4:memory"
run helper_killed "$four" "srun --label $member 9 1:4:helper"
run refused_rank0 "$four" "srun --label --kill-on-bad-exit=1 $member 9 0:4:refused"
run refused_rank3 "$four" "srun --kill-on-bad-exit=1 --output=%x-%t.log $member 9 3:2:refused"
run caught_then_done "$four" "srun --label $member 9 2:4:caught"
run segv_rank1 "$four" "srun --label --kill-on-bad-exit=1 $member 9 1:4:segv"
run abort_rank2 "$four" "srun --label --kill-on-bad-exit=1 $member 9 2:4:abort"
run bus_rank3 "$four" "srun --label --kill-on-bad-exit=1 $member 9 3:4:bus"
run killed_rank2 "$four" "srun --label --kill-on-bad-exit=1 $member 9 2:4:kill"
run exit_code_7 "$four" "srun --label --kill-on-bad-exit=1 $member 9 3:4:exit-7"
run two_fail "$four" "srun --label --kill-on-bad-exit=1 $member 9 1:4:raise 3:4:raise"
run healthy "$four" "srun --label $member 9"
run array_task "-N1 -n1 -t2 --array=3 --output=%A_%a.out" "$member 5 0:3:raise"
run bash_killed "-N1 -n1 -t2" "$member 9 0:3:kill; echo \"trainer ended with \$?\"; exit 1"
run command_not_found "$four" "srun --label ./no-such-trainer --steps 9"
run two_steps "$four" "srun --label $member 4; srun --label --kill-on-bad-exit=1 $member 9 2:3:memory"

job time_limit "-N2 -n2 -t1" "srun --label $member 2000" && settle time_limit
job cancelled "$four" "srun --label $member 400" && sleep 4 && scancel "$id" && settle cancelled
job signalled "$four" "srun --label $member 400" && sleep 4 && scancel --signal=TERM "$id" && settle signalled
job hang_cancelled "$four" "srun --label $member 60 2:5:hang" && sleep 5 && scancel "$id" && settle hang_cancelled
job requeued "-N2 -n2 -t2 --requeue --open-mode=append" "srun --label $member 30" && sleep 3 && scontrol requeue "$id" \
    && sleep 1 && scontrol release "$id" 2>/dev/null
settle requeued
echo "captured in $target"
