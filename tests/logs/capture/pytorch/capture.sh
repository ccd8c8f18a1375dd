#!/bin/bash
# Makes the captured logs of PyTorch programs: capture.sh OUTPUT_FOLDER [PATTERN]
#
# Needs root (namespaces, one memory cgroup, small tmpfs), and on PATH python3 with torch (CPU build), numpy, accelerate,
# transformers, lightning and deepspeed. Logs whose name matches PATTERN are made, each from its own run; only the paths
# of the environment and of the working folder are replaced.
set -u
out=$(realpath "$1") only=${2:-.} here=$(dirname "$(realpath "$0")")
if [ -z "${CAPTURE_INSIDE:-}" ]; then
    CAPTURE_INSIDE=1 exec unshare --mount --uts "$(realpath "$0")" "$out" "$only"
fi
hostname gpu-21
base=$(python3 -c 'import sys; print(sys.base_prefix)')
work=$(mktemp -d) home=$(dirname "$(dirname "$(command -v torchrun)")")
printf '127.0.0.1 localhost\n127.0.1.1 gpu-21\n127.0.1.2 gpu-22\n' >"$work.hosts"
mount --bind "$work.hosts" /etc/hosts
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=${PYTHONUNBUFFERED-1} PYTHONDONTWRITEBYTECODE=1 TERM=dumb
cp "$here/train.py" "$here/frameworks.py" "$work"
cd "$work" || exit 1
groups=/sys/fs/cgroup/memory/capture_$$ tasks=/sys/fs/cgroup/pids/capture_$$
clean() { cd /; rmdir "$groups" "$tasks" 2>/dev/null; rm -rf "$work" "$work.hosts"; }
trap clean EXIT

neutral() { # FILES: paths of this machine out
    sed -i "s#$base#/opt/python#g; s#$home#/home/ada/venv#g; s#$work#/home/ada/run#g; s#${work#/}#home/ada/run#g" "$@"
}
log() { # NAME COMMAND…: one log of both streams
    name=$1
    shift
    [[ $name =~ $only ]] || return 0
    echo "$name" >&2
    timeout 100 bash -c "$*" >"$out/$name.log" 2>&1 </dev/null
    neutral "$out/$name.log"
}
folder() { # NAME FOLDER COMMAND…: the log and the folder that the command wrote
    name=$1 made=$2
    shift 2
    [[ $name =~ $only ]] || return 0
    echo "$name" >&2
    rm -rf "$out/$name" "${made:?}"
    timeout 100 bash -c "$*" >"$out/$name.log" 2>&1 </dev/null
    mv "$made" "$out/$name"
    mv "$out/$name.log" "$out/$name/launcher.log"
    find "$out/$name" -type f -print0 | while read -rd '' file; do neutral "$file"; done
}
within() { # LIMIT COMMAND…: in a memory cgroup (version 1)
    mkdir -p "$groups"
    echo "$1" >"$groups/memory.limit_in_bytes"
    shift
    (echo $BASHPID >"$groups/cgroup.procs"; "$@")
}
few_tasks() { # LIMIT COMMAND…: in a cgroup of processes and threads (version 1)
    mkdir -p "$tasks"
    echo "$1" >"$tasks/pids.max"
    shift
    (echo $BASHPID >"$tasks/cgroup.procs"; "$@")
}
nodes() { # COMMAND…: torchrun on two "nodes", gpu-21 and gpu-22, output in order of arrival
    local port=$((20000 + RANDOM % 9000))
    local rdzv="--nnodes 2 --rdzv-backend c10d --rdzv-endpoint gpu-21:$port --rdzv-id 77"
    unshare --uts bash -c "hostname gpu-22; exec torchrun $rdzv $*" 2>&1 | eval "${SECOND:-cat}" &
    torchrun $rdzv "$@" 2>&1 | eval "${FIRST:-cat}"
    wait
}
small_shm() { # SIZE COMMAND…: with a /dev/shm of that size
    local size=$1
    shift
    unshare --mount bash -c "mount -t tmpfs -o size=$size tmpfs /dev/shm && $*"
}
by_hand() { # RANKS COMMAND…: one process a rank, each with its own file by_hand/train-rankN.log
    local ranks=$1 port=$((20000 + RANDOM % 9000))
    shift
    mkdir -p by_hand
    for ((rank = 0; rank < ranks; rank++)); do
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            "$@" >"by_hand/train-rank$rank.log" 2>&1 &
    done
    wait
}
export -f within few_tasks nodes small_shm by_hand
export groups tasks
two="torchrun --nproc-per-node 2" four="torchrun --nproc-per-node 4"
memory_of_address_space=$((12 << 30))

# torchrun: which rank, where in the loop
log torchrun_init_rank1 "$two train.py --fail python --at init --rank 1"
log torchrun_forward_rank0 "$two train.py --fail torch --rank 0"
log torchrun_backward_rank1 "$two train.py --fail torch --at backward --rank 1"
log torchrun_optimizer_rank3 "$four train.py --fail torch --at optimizer --rank 3 --step 4"
log torchrun_data_numpy_rank1 "$two train.py --fail numpy --at data --rank 1"
log torchrun_checkpoint_rank0 "$two train.py --fail torch --at checkpoint --rank 0 --step 4 --checkpoint ."
log torchrun_every_rank "$two train.py --fail torch --rank -1 --step 2 --style every"
log torchrun_every_rank_prints "$four train.py --fail python --rank 2 --step 5 --style every"
log torchrun_petabyte "$two train.py --fail torch --rank 1 --size $((1 << 50))"
log torchrun_buffered "PYTHONUNBUFFERED= $two train.py --fail python --rank 0 --step 4"
log torchrun_logging "$two train.py --fail torch --at backward --rank 1 --step 5 --style logging"
log torchrun_resumed "$two train.py --fail torch --rank 1 --step 14 --steps 20 --resume 10"
log torchrun_limit_reached "$two train.py --fail torch --rank 1 --size $((9 << 30)) --address-space $((6 << 30))"

# torchrun: ways to write a log
log torchrun_tee "$four --tee 3 train.py --fail torch --at backward --rank 2"
log torchrun_tee_role "$two --tee 3 --role trainer train.py --fail torch --rank 1 --style every"
log torchrun_template "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[\${role_name}-\${local_rank}|rank \${rank}] ' \
    $two --tee 3 train.py --fail torch --rank 1 --style every"
folder torchrun_folder logs "$two --log-dir logs --redirects 3 train.py --fail torch --at backward --rank 1"
folder torchrun_folder_restarts logs \
    "$two --log-dir logs --redirects 3 --max-restarts 1 train.py --fail torch --rank 1 --step 2"
log torchrun_restarts "$two --max-restarts 2 train.py --fail torch --rank 1 --step 3"
log torchrun_restart_hangs "$two --max-restarts 2 train.py --fail torch --rank 1 --step 3 --attempts 1"
log torchrun_restarts_info "LOGLEVEL=INFO $two --max-restarts 2 --rdzv-backend c10d --rdzv-endpoint localhost:0 \
    train.py --fail torch --rank 1 --step 3 --attempts 1"
log torchrun_restart_heals "$two --max-restarts 2 train.py --store heals --fail torch --rank 1 --step 3 --attempts 1"
log torchrun_restarts_other "LOGLEVEL=INFO $four --max-restarts 1 train.py --store meet --fail torch --rank 2 --step 4"
log two_nodes "nodes --nproc-per-node 2 train.py --fail torch --at backward --rank 3 --step 4"
log two_nodes_tee "nodes --nproc-per-node 2 --tee 3 train.py --fail python --rank 2 --step 3 --style every"
folder two_nodes_files files "mkdir files; FIRST='cat >files/train-gpu-21.log' SECOND='cat >files/train-gpu-22.log' \
    nodes --nproc-per-node 2 train.py --fail torch --rank 2 --step 3"
log two_nodes_killed "nodes --nproc-per-node 1 train.py --fail kill --rank 1 --step 3"
folder by_hand by_hand "by_hand 3 python3 train.py --fail torch --rank 1 --step 4 --style every"
folder by_hand_killed by_hand "by_hand 3 python3 train.py --fail kill --rank 2 --step 4 --style every"

# signals
log killed_rank1 "$two train.py --fail kill --rank 1"
log killed_rank0_of_4 "$four train.py --fail kill --rank 0 --step 5"
log terminated_rank1 "$two train.py --fail term --rank 1"
log segfault_rank1 "$two train.py --fail segv --rank 1"
log abort_rank0 "$two train.py --fail abort --rank 0"
log bus_rank1 "$two train.py --fail bus --rank 1"
log bad_alloc_aborts_rank1 "$two train.py --fail bad_alloc_aborts --rank 1"
log bad_alloc_rank1 "$two train.py --fail bad_alloc --rank 1"
log interrupted "timeout -s INT 9 $two train.py --fail wait --rank -1 --step 4"
log terminated "timeout -s TERM 9 $two train.py --fail wait --rank -1 --step 4"
log exit_code_rank1 "$two train.py --fail exit --rank 1"
log quiet_exit_rank1 "$two train.py --fail quiet_exit --rank 1"
log fault_handler_rank1 "PYTHONFAULTHANDLER=1 $two train.py --fail segv --rank 1 --at backward"

# limits of the host
log alone_refused "ulimit -v $((memory_of_address_space / 1024)); \
    python3 train.py --fail torch --size $((14 << 30)) 2>&1 | tee train.out"
log alone_numpy "python3 train.py --fail numpy --at data"
log alone_mmap "python3 train.py --fail mmap --at data"
log alone_libraries "ulimit -v 300000; python3 train.py"
log alone_killed "within $((400 << 20)) python3 train.py --fail take_all --step 4"
log cgroup_rank1 "within $((1200 << 20)) $two train.py --fail take_all --rank 1 --step 3"
log cgroup_rank1_kernel "before=\$(dmesg | wc -l); within $((1200 << 20)) $two train.py --fail take_all --rank 1 --step 3; \
    echo '--- memory.oom_control'; cat $groups/memory.oom_control; echo '--- dmesg'; dmesg | tail -n +\$((before + 1)) | cut -c1-400"
log cgroup_loader "within $((1200 << 20)) $two train.py --fail take_all --at data --rank 1 --step 3 --workers 1"
log threads "few_tasks 60 python3 train.py --fail threads"
log open_files "ulimit -n 256; python3 train.py --fail files"
log disk_full "mkdir -p disk; unshare --mount bash -c 'mount -t tmpfs -o size=1m tmpfs disk && \
    exec $two train.py --checkpoint disk --size 4000000'"

# data loading
log loader_killed "$two train.py --fail kill --at data --rank 1 --step 3 --workers 1"
log loader_memory_error "$two train.py --fail python --at data --rank 1 --step 3 --workers 2"
log loader_numpy "$two train.py --fail numpy --at data --rank 0 --step 3 --workers 1"
log loader_shape "$two train.py --fail shape --at data --rank 1 --step 3 --workers 1"
log loader_shm "small_shm 4m python3 train.py --workers 1 --fail share --at data --size 8000000"
log loader_bus_error "small_shm 4m $two train.py --workers 1 --fail write_shared --at data --rank 1 --size 8000000"
log loader_segv "python3 train.py --workers 1 --fail segv --at data"
log shm_full "small_shm 4m $two train.py --fail share --rank 1 --size 8000000"
log shm_bus_rank1 "small_shm 4m $two train.py --fail write_shared --rank 1 --size 8000000"
log shm_semaphores "small_shm 4k python3 train.py --workers 2"
log loader_exits "python3 train.py --workers 1 --fail quiet_exit --at data"
log pin_alone "python3 train.py --pin --fail pin"

# no memory at all
log value_rank1 "$two train.py --fail value --rank 1"
log assert_every_rank "$two train.py --fail assert --rank -1"
log cuda_missing "$two train.py --fail cuda --rank -1 --at init"
log nccl_missing "$two train.py --backend nccl"
log nan_rank1 "$four train.py --fail nan --rank 1 --step 5"
log shape_rank0 "$two train.py --fail shape --rank 0"
log index_rank1 "$two train.py --fail index --rank 1"
log file_rank1 "$two train.py --fail file --at data --rank 1"
log recursion "python3 train.py --fail recursion"
log unused "$two train.py --fail unused"
log alone_interrupted "python3 train.py --fail interrupt"
log finished "$four train.py --style every"
log finished_retried "$two train.py --fail python --at retried --rank 0"
log finished_saved "$two train.py --checkpoint . --steps 8"
log port_taken "python3 -m http.server 29711 >/dev/null 2>&1 & sleep 1; \
    $two --master-port 29711 train.py; kill %1"
log no_rendezvous "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint gpu-21:29733 \
    --rdzv-conf join_timeout=5 train.py"
log no_script "$two trian.py"

# waiting for one another
log hang_rank1 "$four train.py --fail wait --rank 1 --step 3 --timeout-s 6"
log hang_barrier "$four train.py --fail barrier --rank 2 --step 3 --timeout-s 4"
log disagree "$two train.py --fail disagree --rank 1 --timeout-s 6"
log disagree_detail "TORCH_DISTRIBUTED_DEBUG=DETAIL $two train.py --fail disagree --rank 1 --timeout-s 6"

# other launchers and frameworks
log spawn_exception "python3 train.py --spawn 2 --fail torch --rank 1"
log spawn_killed "python3 train.py --spawn 2 --fail kill --rank 1"
log compile_fails "CXX=/usr/bin/false TORCHINDUCTOR_CACHE_DIR=cache python3 train.py --compile"
log compile_torch "TORCHINDUCTOR_CACHE_DIR=cache python3 train.py --compile --fail torch --at optimizer"
accelerate="accelerate launch --num_machines 1 --mixed_precision no --dynamo_backend no"
log accelerate_rank1 "$accelerate --multi_gpu --num_processes 2 frameworks.py accelerate --fail torch --rank 1"
log accelerate_finished "$accelerate --cpu --num_processes 1 frameworks.py accelerate"
log accelerate_alone "$accelerate --cpu --num_processes 1 frameworks.py accelerate --fail torch"
log accelerate_alone_killed "$accelerate --cpu --num_processes 1 frameworks.py accelerate --fail kill"
log accelerate_batch_size "python3 frameworks.py batch_size --steps 4"
log accelerate_batch_size_zero "python3 frameworks.py batch_size --steps 4 --fits 0"
log transformers_fails "python3 frameworks.py transformers --fail torch --step 8"
log transformers_torchrun "$two frameworks.py transformers --fail torch --step 8 --rank 1"
log transformers_value "python3 frameworks.py transformers --fail value --step 8 --save"
log transformers_finished "python3 frameworks.py transformers"
log lightning_fails "python3 frameworks.py lightning --fail torch"
log lightning_tqdm "python3 frameworks.py lightning --fail torch --tqdm"
log lightning_ddp "python3 frameworks.py lightning --fail torch --devices 2 --rank 1"
log lightning_finished "python3 frameworks.py lightning"
log lightning_interrupted "python3 frameworks.py lightning --fail interrupt"
ds="DS_ACCELERATOR=cpu deepspeed --num_nodes 1 --num_gpus 2"
log deepspeed_rank1 "$ds train.py --fail torch --at backward --rank 1"
log deepspeed_rank0 "$ds train.py --fail value --rank 0 --style every"
log deepspeed_killed "$ds train.py --fail kill --rank 1"
log deepspeed_finished "$ds train.py"
