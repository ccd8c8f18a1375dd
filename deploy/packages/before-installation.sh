#!/bin/sh
# Debian's preinst and the rpm's pre: what a person installed into the package's place is not written over.
set -e
case ${1-} in abort-*) exit 0 ;; esac
for record in /opt/runbook/lib/python3*/site-packages/runbook_oom-*.dist-info/INSTALLER; do
    [ -f "$record" ] || continue
    case $(cat "$record") in
        deb | rpm) ;;
        *)
            echo "runbook: /opt/runbook holds an environment that no package brought: $record" >&2
            echo "  next: systemctl stop runbook; mv /opt/runbook /opt/runbook.old; then install the package again" >&2
            exit 1
            ;;
    esac
done
