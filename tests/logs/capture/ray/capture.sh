#!/bin/bash
# Captures what Ray prints. usage: PYTHON=…/bin/python capture.sh FOLDER; driver.log and the session's logs of each.
set -u
target=$(mkdir -p "$1" && cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
used=$(awk '/MemTotal/ {t=$2} /MemAvailable/ {a=$2} END {printf "%.2f", 1 - a / t + 0.08}' /proc/meminfo)
for name in healthy actor_raise actor_memory actor_kill actor_segv actor_term two_raise memory_monitor task_killed; do
    mkdir -p "$target/$name"
    colour=""
    [ "$name" = actor_raise ] && colour=1
    RAY_memory_monitor_refresh_ms=100 RAY_memory_usage_threshold=$used RAY_USAGE_STATS_ENABLED=0 RAY_COLOR_PREFIX=$colour \
        timeout 120 "$python" "$here/jobs.py" "$name" >"$target/$name/driver.log" 2>&1
    echo "$name: $?"
    cp -r /tmp/ray/session_latest/logs "$target/$name/session" 2>/dev/null
    "$(dirname "$python")/ray" stop --force >/dev/null 2>&1
done
