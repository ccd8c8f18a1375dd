#!/bin/sh
# Debian's prerm and the rpm's preun: $1 is `remove` or 0 where nothing takes its place, else another version does.
set -e
case ${1-} in
    remove | 0)
        if [ -d /run/systemd/system ]; then
            systemctl --no-reload disable --now runbook.service runbook-metrics.timer >/dev/null 2>&1 || :
        fi
        ;;
esac
find /opt/runbook/lib -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || :
